#include "sim/scenario/simulate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>

#include "hwmodels/memory/device_memory.h"
#include "hwmodels/network/communicator_memory.h"
#include "sim/executor/shortest_step.h"
#include "sim/scenario/machine_profile.h"
#include "sim/scenario/memory_waits.h"
#include "sim/scenario/pass_times.h"
#include "sim/scenario/stage_paces.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// The clock counts 106 days in picoseconds. Two steps are run, in which stages may wait for each other in turn and work that
/// contends takes longer than alone: this leaves room for five times.
constexpr double kLongestStep = 10 * 86400.0;  // seconds

/// Throws where a step would take longer than can be counted.
void check_length(const Scenario& s, const plan::Plan& plan, const executor::CostTable& costs) {
  double longest = 0;
  for (std::size_t i = 0; i < plan.classes.size(); ++i) longest = std::max(longest, executor::serial_seconds(plan, costs, i));
  longest *= s.strategy.parallelism.degrees.pipeline;
  if (longest < kLongestStep) return;
  throw ConfigError(Diagnostic{{s.file, 0, 0}, "training", fmt::format("one step is {} of work{}, more than {:.0f} days cannot be simulated", std::isfinite(longest) ? fmt::format("{:.3g} days", longest / 86400) : "an endless time",
                                                                         s.strategy.parallelism.degrees.pipeline > 1 ? " for a pipeline" : "", kLongestStep / 86400),
                               "Use more or faster GPUs, a shorter sequence or a smaller global_batch_size", ""});
}

/// Communicators that the program really uses, with the collectives it runs on them.
Bytes communicator_bytes(const plan::Plan& plan, const plan::RankClass& c, const hwmodels::Network& network, Bytes token) {
  std::array<std::vector<CollectiveKind>, plan::kGroupAxes> kinds;
  bool messages = false, dispatches = false;
  std::vector<bool> seen(plan.blocks.size(), false);
  for (const plan::Call& call : c.program.step) {
    if (seen[call.block]) continue;
    seen[call.block] = true;
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::send || i.op == plan::Opcode::recv) messages = true;
      if (i.op != plan::Opcode::collective) continue;
      const plan::CollectiveSpec& spec = plan.collectives[i.index];
      if (spec.kind == CollectiveKind::scatter || spec.kind == CollectiveKind::gather) continue;  // copies, without a communicator
      if (spec.tokens.choices > 0) {  // DeepEP's kernels have buffers of their own instead of NCCL's
        dispatches = true;
        continue;
      }
      auto& list = kinds[static_cast<std::size_t>(spec.axis)];
      if (std::find(list.begin(), list.end(), spec.kind) == list.end()) list.push_back(spec.kind);
    }
  }
  if (messages) kinds[static_cast<std::size_t>(plan::GroupAxis::pipeline)].push_back(CollectiveKind::send_recv);
  Bytes total;
  for (std::size_t a = 0; a < kinds.size(); ++a)
    if (!kinds[a].empty() && c.groups[a].ranks > 1) total += network.communicator_memory(c.groups[a], kinds[a]).device;
  if (dispatches) total += hwmodels::dispatch_buffers(c.groups[static_cast<std::size_t>(plan::GroupAxis::expert)].ranks, token);
  return total;
}

void run_time(const Scenario& s, const SimulateOptions& options, const executor::CostTable& costs, bool progress, Result& result) {
  executor::TimingResult timing = executor::run_timing(result.plan, costs, {.steps = 2, .trace = options.trace, .progress = progress, .shortcuts = options.shortcuts});
  result.deadlock = timing.deadlock;
  result.instructions = timing.instructions;
  result.step_time = to_seconds(Duration{timing.step});
  result.trace = std::move(timing.trace);
  for (std::size_t i = 0; i < timing.classes.size(); ++i) result.classes[i].timing = std::move(timing.classes[i]);
  if (result.step_time > 0) {
    result.samples_per_second = static_cast<double>(s.strategy.training.global_batch_size) / result.step_time;
    result.tokens_per_second = result.samples_per_second * static_cast<double>(s.strategy.training.sequence_length);
  }
  const auto waiting = [&](std::size_t i) { return result.classes[i].timing.time[static_cast<std::size_t>(executor::Cause::bubble)] + result.classes[i].timing.time[static_cast<std::size_t>(executor::Cause::idle)]; };
  for (std::size_t i = 1; i < result.classes.size() && i < timing.classes.size(); ++i)
    if (waiting(i) < waiting(result.critical_class)) result.critical_class = i;
}

/// Whether what a class takes again in a step, after its allocator has waited for other streams and given back what it had cached, is little beside
/// the step: at most a tenth (assumption).
bool lives_at_limit(const plan::Plan& plan, std::size_t rank_class, executor::MemoryOptions memory, BytesPerSecond rate, Duration step) {
  if (rate.value <= 0 || memory.allocator.expandable_segments) return false;   // what mapping pages again takes is not known
  memory.steps = kSettledSteps;
  memory.taken_again = true;
  const executor::ClassMemory settled = run_memory(plan, rank_class, memory);
  if (settled.out_of_memory) return false;
  Bytes bytes;
  for (const executor::TakenAgain& t : settled.taken_again) bytes += t.bytes;
  return to_seconds(bytes / rate) <= 0.1 * to_seconds(step);
}

/// A class at the limit of its memory: writes what it waits for in each step into the plan, and says so. False where it waits for nothing.
bool waits_at_limit(std::size_t rank_class, executor::MemoryOptions memory, BytesPerSecond rate, Result& result) {
  if (rate.value <= 0 || memory.allocator.expandable_segments) return false;   // what mapping pages again takes is not known
  memory.steps = kSettledSteps;
  memory.taken_again = true;
  const executor::ClassMemory settled = run_memory(result.plan, rank_class, memory);
  if (settled.out_of_memory || settled.taken_again.empty()) return false;
  Bytes bytes;
  int times = 0;
  for (const executor::TakenAgain& t : settled.taken_again) {
    bytes += t.bytes;
    times += t.gave_back ? 1 : 0;
  }
  if (times == 0) return false;
  wait_for_memory(result.plan, rank_class, settled.taken_again, rate);
  result.notes.push_back(fmt::format("'{}' has so little memory that its allocator gives back what it has cached {} a step, and takes {:.1f} GB again", result.plan.classes[rank_class].name,
                                     times == 1 ? "once" : std::to_string(times) + " times", static_cast<double>(bytes.value) * 1e-9));
  return true;
}

/// True where the plan has waits for memory since: its time is another one.
bool simulate_memory(const Scenario& s, const SimulateOptions& options, const hwmodels::Network& network, Result& result) {
  const hwmodels::DeviceOverheads overheads = hwmodels::device_overheads(s.cluster.gpu, s.profile.lazy_modules);
  bool waits = false;
  const auto run = [&](std::size_t i, const executor::MemoryOptions& memory) {
    return options.memory_cache != nullptr ? options.memory_cache->run(result.plan, i, memory) : run_memory(result.plan, i, memory);
  };
  for (std::size_t i = 0; i < result.plan.classes.size(); ++i) {
    const plan::RankClass& c = result.plan.classes[i];
    ClassResult& r = result.classes[i];
    if (options.ablation.overheads) {
      r.context = overheads.context;
      r.misc = overheads.misc + s.profile.misc_device;
      r.communicators = communicator_bytes(result.plan, c, network, Bytes{2 * s.model.hidden});
    }
    executor::MemoryOptions memory;
    memory.steps = options.memory_steps;
    memory.timeline = options.timeline;
    memory.shortcuts = options.shortcuts;
    std::optional<executor::DeviceProgress> progress;   // only of use where another stream keeps a tensor
    if (!r.timing.call_device.empty()) memory.progress = &progress.emplace(result.plan, c.program, r.timing);
    memory.allocator = allocator_settings(s, r);
    const Bytes limit = memory.allocator.limit;
    if (options.only_fits && memory.progress == nullptr && c.unified == 0) {
      // With what there is alone: what needs no more than that is given the same addresses.
      if (limit > Bytes{0}) r.memory = run(i, memory);
      if (limit > Bytes{0} && !r.memory.out_of_memory) continue;
      result.fits = false;
      return false;
    }
    // First with all the memory one could wish for: what is needed. Then, if that is too much, with what there is: the
    // allocator may still manage by giving cached segments back.
    memory.allocator.limit = Bytes{std::int64_t{1} << 40} - 1_GiB;
    r.memory = run(i, memory);
    if (!options.ablation.segments) r.memory.peak_reserved = r.memory.peak_allocated;
    r.unified = std::clamp(s.cluster.gpu.memory - r.peak_device(), Bytes{0}, Bytes{c.unified});
    const bool beyond = r.memory.out_of_memory.has_value();  // more than the simulated allocator's addresses
    if (beyond) {
      r.needs_more = true;
      hwmodels::OutOfMemory& end = *r.memory.out_of_memory;
      r.memory.peak_allocated = std::max(r.memory.peak_allocated, end.allocated + end.asked);
      r.memory.peak_reserved = std::max(r.memory.peak_reserved, end.reserved + end.segment);
      end.limit = limit;
      result.notes.push_back("'" + result.plan.classes[i].name + "' asks for more than a TiB: its memory is what it had when it asked, a lower bound");
    }
    if (beyond || r.peak_device() > s.cluster.gpu.memory) {
      memory.allocator.limit = limit;
      if (limit > Bytes{0} && !beyond) {
        executor::ClassMemory tight = run(i, memory);
        // Who lives from waiting for other streams' events and would spend much of the step on taking memory again is not counted as fitting: of
        // the Ultra-Scale Playbook's runs that would, most ended out of memory and the others took five times as long.
        if (!tight.out_of_memory && (memory.progress == nullptr || lives_at_limit(result.plan, i, memory, overheads.taken_again, Duration{r.timing.step}))) {
          r.memory = std::move(tight);
          if (options.time && options.ablation.host && waits_at_limit(i, memory, overheads.taken_again, result)) waits = true;
          continue;
        }
        if (!tight.out_of_memory) r.memory.end_reserved = tight.end_reserved;
        r.memory.out_of_memory = tight.out_of_memory;
        r.memory.failed_call = tight.failed_call;
        r.memory.failed_step = tight.failed_step;
      }
      result.fits = false;
    }
  }
  for (std::size_t i = 1; i < result.classes.size(); ++i)
    if (result.classes[i].peak_device() > result.classes[result.fullest_class].peak_device()) result.fullest_class = i;
  return waits;
}

/// What the ranks of one node keep outside their GPUs, RAM and NVMe each on the node that keeps most of it.
HostLedger fullest_node(const Scenario& s, const st::Layout& layout, const plan::Plan& plan) {
  HostLedger fullest;
  const bool by_rank = plan.classes.size() == static_cast<std::size_t>(s.gpus()) && plan.classes.size() > 1;
  const auto class_of = [&](int rank) {
    return static_cast<std::size_t>(!plan.class_of_rank.empty() ? plan.class_of_rank[static_cast<std::size_t>(rank)] : by_rank ? rank : layout.stage_of(rank));
  };
  for (int node = 0; node < s.cluster.nodes; ++node) {
    HostLedger sum;
    for (int g = 0; g < s.cluster.gpus_per_node; ++g) {
      const int rank = node * s.cluster.gpus_per_node + g;
      const plan::HostBytes& host = plan.classes[class_of(rank)].host;
      sum.pinned += Bytes{host.pinned};
      sum.pageable += Bytes{host.pageable};
      sum.nvme += Bytes{host.nvme};
    }
    fullest.cover(sum);
  }
  return fullest;
}

}  // namespace

hwmodels::AllocatorSettings allocator_settings(const Scenario& s, const ClassResult& r) {
  hwmodels::AllocatorSettings settings;
  settings.limit = s.cluster.gpu.memory - r.context - r.misc - r.communicators;
  settings.expandable_segments = s.profile.expandable_segments;
  return settings;
}

/// Where unified memory is asked for, who has room for it depends on everything else that lies on the device.
static Scenario with_evictions(const Scenario& s, SimulateOptions options) {
  Scenario out = s;
  std::vector<bool>& evicted = out.strategy.memory.states_are_evicted;
  evicted = {false};
  options.time = options.bound = options.only_fits = options.trace = options.timeline = false;
  options.memory = true;
  const Result r = simulate(out, options);
  evicted.clear();
  for (std::size_t i = 0; i < r.classes.size(); ++i) evicted.push_back(r.classes[i].unified < Bytes{r.plan.classes[i].unified});
  return out;
}

hwmodels::Gpu gpu_of(const Scenario& s) {
  hwmodels::Gpu gpu = s.cluster.gpu;
  auto& parameters = gpu.kernel_parameters;
  const auto fp32 = gpu.peak.find(DType::fp32), fp16 = gpu.peak.find(DType::fp16);
  if (s.profile.cublas_10 && fp32 != gpu.peak.end() && fp16 != gpu.peak.end()) {
    parameters["gemm_unaligned_fraction"] = std::min(1.0, parameters.at("gemm_fp32_fraction") * fp32->second.value / (parameters.at("gemm_peak_fraction") * fp16->second.value));
    parameters["gemm_unaligned_batch_on_cores"] = 0;   // single ones and batches alike
  }
  const auto share = parameters.find("gemm_default_share");
  if ((s.profile.aiter_attention && !s.profile.untuned_products) || share == parameters.end()) return gpu;
  parameters.at("gemm_peak_fraction") *= share->second;
  parameters.at("gemm_fp8_fraction") = std::min(1.0, parameters.at("gemm_fp8_fraction") / share->second);
  return gpu;
}

namespace {

/// Tiles that do not fill a wave take their share of its time.
hwmodels::Gpu without_waves(hwmodels::Gpu gpu) {
  for (auto& [name, value] : gpu.kernel_parameters)
    if (name.ends_with("wave_quantisation")) value = 0;
  return gpu;
}

hwmodels::KernelModel kernel_model_of(const Scenario& s, const executor::Ablation& ablation) {
  return hwmodels::KernelModel(ablation.waves ? gpu_of(s) : without_waves(gpu_of(s)), ablation.power ? hwmodels::ClockState::sustained : hwmodels::ClockState::burst,
                               hwmodels::pace_of_slowest(ablation.spread ? s.gpus() : 1));
}

}  // namespace

Result simulate(const Scenario& s, const SimulateOptions& options) {
  if (wants_pass_times(s)) return simulate(with_pass_times(s), options);
  if (s.strategy.memory.paged_optimizer && s.strategy.memory.states_are_evicted.empty()) return simulate(with_evictions(s, options), options);
  Result result;
  result.notes = s.notes;
  st::FrameworkProfile profile = profile_on_machine(s);
  const auto network = network_of(s);
  if (profile.proxy_stall > Duration{}) profile.ring_step_wait = network->ring_step_wait();
  const auto parameters = st::parameters_per_stage(s.model, s.strategy, s.profile);
  if (!options.ablation.host) {
    for (Duration* d : st::issue_times(profile)) *d = Duration{};
    profile.step_host = profile.collection_host = profile.proxy_stall = profile.ring_step_wait = Duration{};
  }
  result.plan = st::write_plan(s.model, s.strategy, profile, s.cluster.gpus_per_node, options.unfold ? st::Folding::unfolded : st::Folding::folded);
  const hwmodels::KernelModel kernels = kernel_model_of(s, options.ablation);
  result.classes.resize(result.plan.classes.size());
  const st::Layout layout(s.strategy.parallelism.degrees, s.strategy.parallelism.order);
  for (std::size_t i = 0; i < result.classes.size(); ++i) {
    result.classes[i].name = result.plan.classes[i].name;
    result.classes[i].ranks = result.plan.classes[i].ranks;
    result.classes[i].parameters = parameters[static_cast<std::size_t>(layout.coordinates_of(result.plan.classes[i].representative).pipeline)];
  }
  result.flops = count_flops(s, result.plan);
  result.peak_flops_per_gpu = s.cluster.gpu.peak.at(product_format(s.strategy.training.precision)).value;

  const bool progress = options.memory && executor::records_streams(result.plan);
  executor::CostTable costs;
  if (options.time || options.bound || progress) {
    costs = executor::price(result.plan, {kernels, *network, hwmodels::host_rates(s.cluster), s.profile.collective_sm_factor, options.ablation.spread ? paces_of(s, result.plan, kernels) : std::vector<hwmodels::Pace>{}}, options.ablation);
    check_length(s, result.plan, costs);
    if (options.bound) result.shortest_step = to_seconds(Duration{executor::shortest_step(result.plan, costs)});
    if (options.time || progress) run_time(s, options, costs, progress, result);
  }
  if (options.memory && simulate_memory(s, options, *network, result)) run_time(s, options, costs, false, result);
  for (std::size_t i = 0; i < result.classes.size(); ++i) result.plan.classes[i].host.pageable += result.plan.classes[i].unified - result.classes[i].unified.value;
  result.host = fullest_node(s, layout, result.plan);
  if (result.host.ram() > s.cluster.node.cpu.memory || result.host.nvme > s.cluster.node.nvme.capacity) result.fits = false;
  return result;
}

}  // namespace rehearse::scenario
