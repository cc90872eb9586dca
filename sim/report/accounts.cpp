#include "sim/report/accounts.h"

#include <algorithm>

#include <fmt/format.h>

#include <filesystem>

#include "hwmodels/collective/parameters.h"
#include "sim/core/resources.h"
#include "sim/report/error_bands.h"

namespace rehearse::report {
namespace {

/// A data file as its place below the program's data, so that two machines write the same text.
std::string shown_file(const std::string& file) {
  if (file.empty()) return {};
  const std::filesystem::path relative = std::filesystem::path(file).lexically_proximate(resource_root());
  return relative.begin() != relative.end() && *relative.begin() != ".." ? relative.generic_string() : file;
}

/// Seconds by cause. A rank that comes to a step before others, and is no later than they at its end, has waited for longer than ranks wait in a row of
/// steps: what is beyond the step goes.
std::array<double, executor::kCauses> within_step(const executor::ClassTiming& timing, double step) {
  std::array<double, executor::kCauses> seconds{};
  double beyond = -step;
  for (std::size_t k = 0; k < seconds.size(); ++k) beyond += seconds[k] = to_seconds(Duration{timing.time[k]});
  for (const executor::Cause waiting : {executor::Cause::idle, executor::Cause::bubble, executor::Cause::pipeline_message}) {
    double& waited = seconds[static_cast<std::size_t>(waiting)];
    const double cut = std::clamp(beyond, 0.0, waited);
    waited -= cut, beyond -= cut;
  }
  return seconds;
}

}  // namespace

Utilisation utilisation_of(const Result& r) {
  Utilisation u;
  if (r.step_time <= 0 || r.peak_flops_per_gpu <= 0) return u;
  u.model_flops_per_second = r.flops.model_causal / r.step_time;
  u.hardware_flops_per_second = r.flops.hardware / r.step_time;
  u.mfu = u.model_flops_per_second / r.peak_flops_per_gpu;
  u.mfu_full = r.flops.model_full / r.step_time / r.peak_flops_per_gpu;
  u.hfu = r.flops.hardware_at_peak / r.step_time / r.peak_flops_per_gpu;
  return u;
}

StepAccount account_of(const Result& r) {
  StepAccount a;
  if (r.classes.empty()) return a;
  double ranks = 0;
  for (const auto& c : r.classes) ranks += c.ranks;
  for (std::size_t i = 0; i < r.classes.size(); ++i) {
    const auto time = within_step(r.classes[i].timing, r.step_time);
    for (std::size_t k = 0; k < a.mean.size(); ++k) {
      if (i == r.critical_class) a.critical[k] = time[k];
      a.mean[k] += time[k] * r.classes[i].ranks / ranks;
    }
  }
  return a;
}

std::vector<std::size_t> causes_by_time(const StepAccount& a) {
  std::vector<std::size_t> order;
  for (std::size_t k = 0; k < a.mean.size(); ++k)
    if (a.critical[k] != 0 || a.mean[k] != 0) order.push_back(k);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return a.mean[x] > a.mean[y]; });
  return order;
}

std::string label_of(executor::Cause cause, const Result& result) {
  constexpr auto kPipeline = static_cast<std::size_t>(plan::GroupAxis::pipeline);
  const bool stages = std::any_of(result.plan.classes.begin(), result.plan.classes.end(), [](const plan::RankClass& c) { return c.groups[kPipeline].ranks > 1; });
  if (cause == executor::Cause::bubble && stages) return "pipeline bubble";
  return std::string(name_of(cause));
}

std::string key_of(executor::Cause cause) {
  using executor::Cause;
  switch (cause) {
    case Cause::gemm: return "gemm";
    case Cause::attention: return "attention";
    case Cause::scan: return "scan";
    case Cause::memory_bound: return "memory_bound";
    case Cause::optimizer: return "optimizer";
    case Cause::other_compute: return "other_compute";
    case Cause::tensor: return "exposed_tensor";
    case Cause::context: return "exposed_context";
    case Cause::expert: return "exposed_expert";
    case Cause::data: return "exposed_data";
    case Cause::pipeline_message: return "exposed_pipeline";
    case Cause::bubble: return "bubble";
    case Cause::host: return "host";
    case Cause::host_work: return "cpu_optimizer";
    case Cause::copy: return "exposed_copy";
    case Cause::idle: return "idle";
    case Cause::count_: break;
  }
  return "unknown";
}

Bytes headroom_of(const Scenario& s, const Result& r) {
  return s.cluster.gpu.memory - r.classes[r.fullest_class].peak_device();
}

bool lacks_memory(const Scenario& s, const scenario::ClassResult& c) {
  return c.memory.out_of_memory.has_value() || c.peak_device() > s.cluster.gpu.memory;
}

std::string moment_text(const plan::Plan& plan, std::size_t rank_class, std::int64_t call) {
  if (call < 0) return "setup (parameters and buffers)";
  const plan::Call& c = plan.classes[rank_class].program.step.at(static_cast<std::size_t>(call));
  std::string text;
  if (c.micro_batch >= 0) text += fmt::format("micro-batch {}, ", c.micro_batch);
  if (c.layer >= 0) text += fmt::format("layer {}, ", c.layer);
  text += plan::name_of(c.phase);
  const std::string_view block = plan::title_of(plan.blocks[c.block]);
  if (!block.empty() && block != plan::name_of(c.phase)) text += fmt::format(" ({})", block);
  return text;
}

ErrorBand error_band_of(const Scenario& s) {
  const Band band = stored_band(s.profile.name, std::string(name_of(s.cluster.gpu.architecture)));
  return {band.step_time, band.peak_memory, band.basis};
}

std::vector<Foundation> foundations_of(const Scenario& s) {
  std::vector<Foundation> out;
  const hwmodels::Gpu& gpu = s.cluster.gpu;
  std::string card = gpu.title;
  if (gpu.locked_clock_mhz > 0) card += fmt::format(", locked at {:g} MHz", gpu.locked_clock_mhz);
  if (gpu.limit_watts > 0 && gpu.limit_watts < gpu.own_watts) card += fmt::format(", held to {:g} W", gpu.limit_watts);
  out.push_back({"GPU", card, shown_file(s.cluster.gpu.file)});
  out.push_back({"kernels", "parameters of " + std::string(name_of(s.cluster.gpu.architecture)),
                 "hwmodels/data/kernel/" + std::string(name_of(s.cluster.gpu.architecture)) + ".yaml"});
  if (!s.cluster.gpu.measured_kernels.empty())
    out.push_back({"measured kernels", fmt::format("{}, and their neighbours", s.cluster.gpu.measured_kernels.size()), shown_file(s.cluster.gpu.measured_kernels_file)});
  out.push_back({"node", s.cluster.node.title, shown_file(s.cluster.node.file)});
  if (s.cluster.nodes > 1) out.push_back({"fabric", s.cluster.fabric.title, shown_file(s.cluster.fabric.file)});
  out.push_back({"collectives", s.communication.backend, s.cluster.collectives ? shown_file(s.cluster.collectives->file) : "hwmodels/data/collective/nccl.yaml"});
  out.push_back({"framework", s.profile.title, s.profile.file});
  return out;
}

}  // namespace rehearse::report
