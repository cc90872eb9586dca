#include "sim/advice/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "strategies/data/catalog.h"
#include "strategies/rules.h"
#include "strategies/stage_layers.h"

namespace rehearse::advice {
namespace {

namespace st = strategies;

class Near {
 public:
  explicit Near(const scenario::Scenario& s) : s_(s), job_(s.strategy), d_(s.strategy.parallelism.degrees) {}

  std::vector<Change> all() {
    if (job_.training.precision == st::Precision::fp32) sixteen_bits();
    recomputation();
    if (!s_.profile.expandable_segments && !hwmodels::is_cdna(s_.cluster.gpu.architecture)) add("expandable segments", {"memory.expandable_segments=true"});
    micro_batches();
    if (d_.data * d_.context > 1) data_parallel();
    shards();
    degrees();
    experts();
    schedule();
    cut();
    mapping();
    if (s_.communication.backend != "nccl") add("NCCL", {"cluster.backend=nccl"});
    offload();
    return std::move(out_);
  }

 private:
  void add(std::string name, std::vector<std::string> settings, bool offloads = false) { out_.push_back({std::move(name), std::move(settings), offloads}); }

  /// bf16; fp16 where the tensor cores are from before it (Volta, Turing).
  void sixteen_bits() {
    for (const auto& [type, name] : {std::pair{DType::bf16, "bf16"}, {DType::fp16, "fp16"}})
      if (s_.cluster.gpu.peak.contains(type)) return add(name, {fmt::format("training.precision={}", name)});
  }

  void recomputation() {
    const st::Recompute now = job_.memory.recompute;
    if (now != st::Recompute::none) add("recompute none", {"memory.recompute=none"});
    if (now != st::Recompute::selective) add("recompute selective", {"memory.recompute=selective"});
    if (now != st::Recompute::full) add("recompute full", {"memory.recompute=full"});
    if (job_.memory.recompute_every == 1) some_layers();
  }

  /// Between keeping all and making all again: whole layers, fewer or more of each chunk than now.
  void some_layers() {
    const std::int64_t chunks = std::int64_t{d_.pipeline} * job_.pipeline.virtual_stages, all = (s_.model.layer_count() + chunks - 1) / chunks;
    const bool full = job_.memory.recompute == st::Recompute::full;
    const std::int64_t listed = job_.memory.recompute_layers, now = !full ? 0 : listed > 0 ? std::min(listed, all) : all;
    std::set<std::int64_t> counts{(now + all) / 2};
    if (full) counts.insert({now / 2, now - now / 4, now - 1, now + 1, all});
    for (const std::int64_t n : counts)
      if (n >= 1 && n <= all && n != now && (full || n < all)) add(fmt::format("recompute {} of {} layers", n, all), {"memory.recompute=full", fmt::format("memory.recompute_layers={}", n)});
  }

  /// The global batch stays where the new micro-batch divides it; else it is the nearest multiple above.
  std::string global_batch(std::int64_t micro, std::int64_t data) const {
    const std::int64_t unit = micro * data, now = job_.training.global_batch_size;
    return fmt::format("training.global_batch_size={}", (now + unit - 1) / unit * unit);
  }

  void micro_batches() {
    const std::int64_t now = job_.training.micro_batch_size;
    for (const std::int64_t micro : {now * 2, now / 2})
      if (micro >= 1 && micro != now) {
        std::vector<std::string> settings{fmt::format("training.micro_batch_size={}", micro)};
        std::string name = fmt::format("micro-batch {}", micro);
        if (job_.training.global_batch_size % (micro * d_.data) != 0) {
          settings.push_back(global_batch(micro, d_.data));
          name += ", batch " + settings.back().substr(settings.back().find('=') + 1);
        }
        add(std::move(name), std::move(settings));
      }
  }

  /// The framework has this kind of data parallelism, as far as its profile says.
  bool has(const std::string& kind) const {
    const std::vector<std::string>& listed = s_.profile.data_parallel_kinds;
    return listed.empty() || std::find(listed.begin(), listed.end(), kind) != listed.end();
  }

  /// Megatron's optimizers come with its layers, which add gradients into whole buffers; DeepSpeed's and PyTorch's shards come
  /// with the other frameworks. Replicas whose gradients are summed are everybody's, and one process for all GPUs is nobody's choice.
  bool offered(const std::string& name, st::DataParallelKind kind) const {
    if (kind == st::DataParallelKind::none || kind == st::DataParallelKind::one_process || kind == job_.data_parallel.kind || !has(name)) return false;
    const bool megatron = kind == st::DataParallelKind::distributed_optimizer || kind == st::DataParallelKind::megatron_fsdp;
    return kind == st::DataParallelKind::ddp || megatron == s_.profile.fused_gradient_accumulation;
  }

  void data_parallel() {
    for (const auto& entry : st::data_parallel_kinds().entries())
      if (offered(entry.name, entry.value)) add(entry.name, {fmt::format("data_parallel.kind={}", entry.name)});
  }

  /// Hybrid sharding: those who share states fill one node, or eight; the others are replicas of them. Rings over thousands of ranks
  /// wait for their messages. Where nothing is shared the rules refuse it.
  void shards() {
    if (st::keeps_whole_states(job_.data_parallel.kind)) return;
    const int inside = s_.cluster.gpus_per_node / (d_.tensor * d_.context);
    for (const int shard : {inside, 8 * inside})
      if (shard > 1 && shard < d_.data && d_.data % shard == 0 && shard != d_.shard()) add(fmt::format("shards of {}", shard), {fmt::format("parallelism.data_shard={}", shard)});
    if (d_.shard() < d_.data) add("shards over all", {"parallelism.data_shard=all"});
  }

  void degrees() {
    const int gpus = s_.gpus(), linked = s_.cluster.linked_gpus();
    auto split = [&](int tensor, int pipeline, int context) {
      const int parts = tensor * pipeline * context;
      if (parts < 1 || gpus % parts != 0 || tensor > linked) return;
      // Only what becomes different is set, so that the advice is short; the data degree may be written out.
      std::vector<std::string> settings;
      const auto set = [&](bool differs, std::string setting) {
        if (differs) settings.push_back(std::move(setting));
      };
      set(tensor != d_.tensor, fmt::format("parallelism.tensor={}", tensor));
      set(pipeline != d_.pipeline, fmt::format("parallelism.pipeline={}", pipeline));
      set(context != d_.context, fmt::format("parallelism.context={}", context));
      set(true, "parallelism.data=auto");
      set((tensor > 1) != job_.parallelism.sequence_parallel, fmt::format("parallelism.sequence_parallel={}", tensor > 1));
      const std::string batch = global_batch(job_.training.micro_batch_size, gpus / parts);
      set(batch != fmt::format("training.global_batch_size={}", job_.training.global_batch_size), batch);
      set(pipeline > 1 && d_.pipeline == 1, "pipeline.schedule=1f1b");
      set(pipeline == 1 && job_.pipeline.virtual_stages > 1, "pipeline.virtual_stages=1");
      set(pipeline != d_.pipeline && !job_.pipeline.layers_per_stage.empty(), "pipeline.layers_per_stage=[]");
      add(context != d_.context ? fmt::format("context {}", context) : fmt::format("tensor {} pipeline {}", tensor, pipeline), std::move(settings));
    };
    if (gpus == 1) return;
    split(d_.tensor * 2, d_.pipeline, d_.context);
    split(d_.tensor / 2, d_.pipeline, d_.context);
    split(d_.tensor, d_.pipeline * 2, d_.context);
    split(d_.tensor, d_.pipeline / 2, d_.context);
    split(d_.tensor, d_.pipeline, d_.context * 2);
    split(d_.tensor, d_.pipeline, d_.context / 2);
  }

  /// Where experts lie, who carries tokens to them, and whether another micro-batch is computed meanwhile.
  void experts() {
    if (s_.model.experts.experts == 0) return;
    for (const int ranks : {d_.expert * 2, d_.expert / 2})
      if (ranks >= 1) add(fmt::format("experts over {}", ranks), {fmt::format("parallelism.expert={}", ranks)});
    if (d_.expert == 1) return;
    const st::Dispatcher now = job_.experts.dispatcher.value_or(s_.profile.dispatcher);
    for (const auto& entry : st::dispatchers().entries())
      if (entry.value != now && carries(entry.value)) add(fmt::format("tokens by {}", entry.name), {fmt::format("experts.dispatcher={}", entry.name)});
    if (!s_.profile.routes_by_map || job_.experts.overlap_exchange) return;
    std::vector<std::string> settings{"experts.overlap_exchange=true"};
    if (d_.pipeline > 1 && job_.pipeline.virtual_stages == 1) settings.insert(settings.end(), {"pipeline.schedule=interleaved-1f1b", "pipeline.virtual_stages=2"});
    add("tokens under backward", std::move(settings));
  }

  /// Megatron has all but DeepSpeed's exchange in two steps; torchtitan, NeMo AutoModel and DeepSeek have DeepEP beside NCCL.
  bool carries(st::Dispatcher dispatcher) const {
    const st::FrameworkProfile& p = s_.profile;
    if (dispatcher == st::Dispatcher::all_to_all) return true;
    if (dispatcher == st::Dispatcher::deepep) return p.routes_by_map || p.dispatcher_keeps_weights || p.dispatcher == st::Dispatcher::deepep;
    return p.routes_by_map && dispatcher != st::Dispatcher::hierarchical;
  }

  /// Other orders of the same passes: one that fills the pipeline, and chunks that shorten its bubble.
  void schedule() {
    const st::Pipeline& p = job_.pipeline;
    if (d_.pipeline == 1) return;
    if (p.schedule == "naive" || p.schedule == "gpipe") add("1f1b", {"pipeline.schedule=1f1b"});
    const auto chunks = [&](int count) {
      std::vector<std::string> settings{count > 1 ? "pipeline.schedule=interleaved-1f1b" : "pipeline.schedule=1f1b", fmt::format("pipeline.virtual_stages={}", count)};
      if (!p.layers_per_stage.empty()) settings.emplace_back("pipeline.layers_per_stage=[]");
      add(count > 1 ? fmt::format("interleaved, {} chunks", count) : "not interleaved", std::move(settings));
    };
    if (p.schedule != "interleaved-1f1b" && p.schedule != "1f1b") return;
    if (std::int64_t{d_.pipeline} * p.virtual_stages * 2 <= s_.model.layer_count()) chunks(p.virtual_stages * 2);
    if (p.virtual_stages > 1) chunks(p.virtual_stages / 2);
  }

  /// The ends of a pipeline hold embedding, head and loss as well, and the first stage keeps most micro-batches: one layer of an end goes to
  /// that other stage which has the fewest, of equals to the latest.
  void cut() {
    const auto& p = job_.pipeline;
    if (d_.pipeline == 1 || !(p.schedule == "1f1b" || p.schedule == "interleaved-1f1b" || p.schedule == "gpipe" || p.schedule == "naive" || p.schedule == "pytorch-1f1b")) return;
    std::vector<std::int64_t> now;
    for (const st::StageLayers& stage : st::stage_layers(s_.model, job_, s_.profile, d_.pipeline * p.virtual_stages)) now.push_back(stage.count);
    const std::size_t last = now.size() - 1;
    for (const std::size_t from : {last, std::size_t{0}}) {
      std::size_t to = last - from;
      for (std::size_t i = 1; i < last; ++i)
        if (to == last - from || now[i] <= now[to]) to = i;
      if (now[from] < 2) continue;
      std::vector<std::int64_t> moved = now;
      --moved[from];
      ++moved[to];
      add(from == 0 ? "first stage a layer less" : "last stage a layer less", {fmt::format("pipeline.layers_per_stage=[{}]", fmt::join(moved, ", "))});
    }
  }

  /// Which groups get the fast links: replicas beside each other, or the stages of one pipeline.
  void mapping() {
    if (s_.cluster.nodes == 1 || d_.pipeline == 1 || d_.data == 1) return;
    const std::string& order = job_.parallelism.order;
    if (order.empty() || order.ends_with("pp")) add("stages beside each other", {"parallelism.order=tp-cp-ep-pp-dp"});
    else add("replicas beside each other", {"parallelism.order=tp-cp-ep-dp-pp"});
  }

  /// States and parameters to these places ("": they stay), with the strategy that can leave them there: the present one if it can.
  std::vector<std::string> away(const std::string& states, const std::string& parameters) const {
    const st::DataParallelKind kind = job_.data_parallel.kind;
    std::vector<std::string> out;
    const bool able = parameters.empty() ? !st::keeps_whole_states(kind) : st::shards_parameters(kind);
    if (!able && s_.profile.fused_gradient_accumulation) out.emplace_back("data_parallel.kind=distributed-optimizer");
    else if (!able)
      for (const char* other : {parameters.empty() ? "zero2" : "zero3", "fsdp2", "fsdp1"})
        if (has(other)) {
          out.push_back(std::string("data_parallel.kind=") + other);
          break;
        }
    if (!states.empty()) out.push_back("memory.offload.optimizer=" + states);
    if (!parameters.empty()) out.push_back("memory.offload.parameters=" + parameters);
    return out;
  }

  /// States first, then parameters, to the host and from there to disks; activations only where layers are recomputed. And back, in the
  /// other order: nothing waits elsewhere that has room nearer.
  void offload() {
    using st::MemoryTier;
    const st::Offload& o = job_.memory.offload;
    const bool states = o.optimizer != MemoryTier::device, parameters = o.parameters != MemoryTier::device;
    if (o.activations != MemoryTier::device) add("activations on the GPU", {"memory.offload.activations=none"});
    if (parameters) add("parameters on the GPU", {"memory.offload.parameters=none"});
    if (states) back_to_gpu(o);
    if (o.parameters == MemoryTier::nvme) add("parameters in host memory", {"memory.offload.parameters=cpu"});
    if (o.optimizer == MemoryTier::nvme) add("states in host memory", {"memory.offload.optimizer=cpu"});
    if (!states && job_.training.optimizer != st::Optimizer::sgd) add("offload states", away("cpu", ""), true);
    if (!parameters) add("offload states, parameters", away(states ? "" : "cpu", "cpu"), true);
    if (s_.cluster.node.nvme.capacity > Bytes{0}) {
      if (o.optimizer == MemoryTier::cpu) add("states on NVMe", away("nvme", ""), true);
      if (o.parameters == MemoryTier::cpu) add("parameters on NVMe", away("", "nvme"), true);
      if (o.optimizer != MemoryTier::nvme && o.parameters != MemoryTier::nvme) add("states, parameters on NVMe", away("nvme", "nvme"), true);
    }
    if (o.activations == MemoryTier::device && job_.memory.recompute == st::Recompute::full) add("offload activations", {"memory.offload.activations=cpu"}, true);
  }

  void back_to_gpu(const st::Offload& o) {
    const bool parameters = o.parameters != st::MemoryTier::device;
    std::vector<std::string> settings{"memory.offload.optimizer=none"};
    if (parameters) settings.push_back("memory.offload.parameters=none");
    if (o.ratio < 1) settings.push_back("memory.offload.ratio=1");
    add(parameters ? "states, parameters on the GPU" : "states on the GPU", std::move(settings));
  }

  const scenario::Scenario& s_;
  const st::Strategy& job_;
  const st::Degrees& d_;
  std::vector<Change> out_;
};

}  // namespace

std::vector<Change> changes_near(const scenario::Scenario& scenario) { return Near(scenario).all(); }

std::vector<Change> changes_beyond(const scenario::Scenario& s) {
  std::vector<Change> out;
  const st::Strategy& job = s.strategy;
  const hwmodels::ClusterDescription& c = s.cluster;
  const auto machines = [&](std::string name, std::string setting, int times) {
    const std::int64_t unit = job.training.micro_batch_size * job.parallelism.degrees.data * times, batch = (job.training.global_batch_size + unit - 1) / unit * unit;
    out.push_back({std::move(name), {std::move(setting), "parallelism.data=auto", fmt::format("training.global_batch_size={}", batch)}});
  };
  for (const int times : {2, 4, 8}) {
    if (c.nodes == 1 && c.gpus_per_node * times <= c.node.gpus) machines(fmt::format("{} GPUs", c.gpus_per_node * times), fmt::format("cluster.gpus_per_node={}", c.gpus_per_node * times), times);
    else if (c.node.nic.count > 0) machines(fmt::format("{} nodes", c.nodes * times), fmt::format("cluster.nodes={}", c.nodes * times), times);
  }
  for (const int part : {2, 4})
    if (job.training.sequence_length % part == 0) out.push_back({fmt::format("sequence {}", job.training.sequence_length / part), {fmt::format("training.sequence_length={}", job.training.sequence_length / part)}});
  if (job.training.optimizer == st::Optimizer::adamw) out.push_back({"8-bit Adam", {"training.optimizer=adamw-8bit"}});
  if (job.tuning.kind == st::TuningKind::full) out.push_back({"LoRA, rank 16", {"tuning={kind: lora, rank: 16, targets: [all-linear]}"}});
  if (job.tuning.kind == st::TuningKind::full) out.push_back({"QLoRA, rank 16", {"tuning={kind: qlora, rank: 16, targets: [all-linear]}"}});
  if (job.tuning.kind == st::TuningKind::lora) out.push_back({"QLoRA", {"tuning.kind=qlora"}});
  return out;
}

std::vector<Change> other_links(const scenario::Scenario& s) {
  std::vector<Change> out;
  const hwmodels::ClusterDescription& c = s.cluster;
  const auto chip = [](const std::string& gpu) { return gpu.substr(0, gpu.find('-')); };   // "a100" of a100-80gb-pcie
  for (const std::string& name : hwmodels::node_names()) {
    const hwmodels::NodeDesign there = hwmodels::load_node(name);
    if (name == c.node.name || chip(there.gpu) != chip(c.gpu.name) || there.gpus < c.gpus_per_node || (c.nodes > 1 && there.nic.count == 0)) continue;
    out.push_back({name, {"cluster.node=" + name, "cluster.gpu=" + c.gpu.name, fmt::format("cluster.gpus_per_node={}", c.gpus_per_node)}});
  }
  if (c.nodes == 1) return out;
  for (const std::string& name : hwmodels::fabric_names())
    if (name != c.fabric.name) out.push_back({"fabric " + name, {"cluster.fabric=" + name}});
  return out;
}

std::optional<Change> both(const Change& a, const Change& b) {
  Change out{a.name + " + " + b.name, a.settings, a.offloads || b.offloads};
  for (const std::string& setting : b.settings) {
    const std::string key = setting.substr(0, setting.find('=') + 1);
    const auto same = std::find_if(out.settings.begin(), out.settings.end(), [&](const std::string& s) { return s.starts_with(key); });
    if (same == out.settings.end()) out.settings.push_back(setting);
    else if (*same != setting) return std::nullopt;
  }
  return out;
}

}  // namespace rehearse::advice
