#include "sim/report/effective_config.h"

#include <fmt/format.h>

#include "hwmodels/collective/parameters.h"
#include "hwmodels/device/measured_points.h"
#include "sim/config/scalar_types.h"
#include "sim/config/units.h"
#include "sim/core/hash.h"
#include "sim/report/effective_model.h"
#include "strategies/data/catalog.h"
#include "strategies/optimizer/optimizer.h"

namespace rehearse::report {
namespace {

using config::Value;
namespace st = strategies;

/// Entries of one map, in the order in which they are written.
class Section {
 public:
  explicit Section(std::string path) : path_(std::move(path)) {}
  void add(const std::string& key, std::string text) { put(key, Value::scalar(std::move(text), false, {}, config::child_path(path_, key))); }
  void add(const std::string& key, bool flag) { add(key, std::string(flag ? "true" : "false")); }
  void add(const std::string& key, std::int64_t n) { add(key, std::to_string(n)); }
  void add(const std::string& key, int n) { add(key, std::to_string(n)); }
  void add(const std::string& key, double x) { add(key, config::number_text(x)); }
  void add(const std::string& key, std::string_view text) { add(key, std::string(text)); }
  template <typename T>
  void add_if(const std::string& key, const std::optional<T>& value) {
    if (value) add(key, *value);
  }
  template <typename T>
  void add_list(const std::string& key, const std::vector<T>& items) {
    std::vector<Value> list;
    for (const T& item : items) list.push_back(Value::scalar(fmt::format("{}", item), false, {}, ""));
    put(key, Value::list(std::move(list), {}, config::child_path(path_, key)));
  }
  void put(const std::string& key, Value value) { entries_.push_back({key, {}, std::move(value)}); }
  Value take() { return Value::map(std::move(entries_), {}, path_); }

 private:
  std::string path_;
  std::vector<Value::Entry> entries_;
};

std::string_view word_of(st::Precision p) {
  constexpr std::string_view kWords[] = {"fp32", "tf32", "fp16", "bf16", "fp8", "fp8-rowwise", "mxfp8", "nvfp4"};
  return kWords[static_cast<std::size_t>(p)];
}
std::string_view word_of(st::Optimizer o) {
  for (const auto& entry : st::optimizers().entries())
    if (entry.value == o) return entry.name;
  return "?";
}
std::string_view word_of(st::Recompute r) {
  constexpr std::string_view kWords[] = {"none", "selective", "full"};
  return kWords[static_cast<std::size_t>(r)];
}
std::string_view word_of(st::TuningKind k) {
  constexpr std::string_view kWords[] = {"full", "lora", "qlora", "frozen", "adapter", "adapter-v2"};
  return kWords[static_cast<std::size_t>(k)];
}
std::string word_of(st::DataParallelKind kind) {
  for (const auto& entry : st::data_parallel_kinds().entries())
    if (entry.value == kind) return entry.name;
  return "?";
}

Value measured_section(const hwmodels::MeasuredBandwidth& m) {
  Section out("cluster.measured_bandwidth");
  const auto add = [&](const char* key, double gbps) { if (gbps > 0) out.add(key, config::to_text(BytesPerSecond{gbps * 1e9})); };
  add("all_reduce", m.all_reduce_world);
  add("all_gather", m.all_gather_world);
  add("reduce_scatter", m.reduce_scatter_world);
  add("all_reduce_node", m.all_reduce_node);
  add("all_gather_node", m.all_gather_node);
  add("reduce_scatter_node", m.reduce_scatter_node);
  out.add("message", config::to_text(m.message));
  out.add("lists", m.through_lists);
  return out.take();
}

Value cluster_section(const scenario::Scenario& s) {
  const hwmodels::ClusterDescription& c = s.cluster;
  Section out("cluster");
  out.add("node", c.node.name);
  out.add("nodes", c.nodes);
  out.add("gpu", c.gpu.name);
  if (c.gpu.locked_clock_mhz > 0) out.add("gpu_clock", fmt::format("{:g} MHz", c.gpu.locked_clock_mhz));
  if (c.gpu.limit_watts > 0 && c.gpu.limit_watts != c.node.gpu_power) out.add("gpu_power", fmt::format("{:g} W", c.gpu.limit_watts));
  out.add("gpus_per_node", c.gpus_per_node);
  out.add("fabric", c.fabric.name);
  out.add("oversubscription", c.effective_oversubscription());
  // Stated, it holds under several leaves too.
  if (c.nic_efficiency || c.node.nic.spine_efficiency == 1) out.add("nic_efficiency", c.effective_nic_efficiency());
  if (c.node.nic.count > 0) {
    out.add("nics", c.node.nic.count);
    out.add("nic_bandwidth", config::to_text(c.node.nic.bandwidth));
  }
  if (s.communication.measured) out.put("measured_bandwidth", measured_section(*s.communication.measured));
  out.add("collectives", c.collectives ? c.collectives->file : "nccl");
  out.add("nvls", s.communication.nvls);
  out.add("backend", s.communication.backend);
  return out.take();
}

Value training_section(const scenario::Scenario& s) {
  const st::Training& t = s.strategy.training;
  Section out("training");
  out.add("sequence_length", t.sequence_length);
  if (t.document_length > 0) out.add("document_length", t.document_length);
  if (t.documents_per_sample) out.add("documents_per_sample", *t.documents_per_sample);
  out.add("global_batch_size", t.global_batch_size);
  out.add("micro_batch_size", t.micro_batch_size);
  out.add("precision", word_of(t.precision));
  if (t.first_layers_16bit > 0) out.add("first_layers_16bit", t.first_layers_16bit);
  if (t.last_layers_16bit > 0) out.add("last_layers_16bit", t.last_layers_16bit);
  out.add("optimizer", word_of(t.optimizer));
  out.add_if("optimizer_state_dtype", t.optimizer_state_dtype ? std::optional(std::string(name_of(*t.optimizer_state_dtype))) : std::nullopt);
  out.add("phase", std::string(t.phase == st::StepKind::evaluation ? "evaluation" : "training"));
  out.add("framework", s.profile.name);
  out.add("compile", t.compile.value_or(s.profile.compiled));
  out.add_if("cuda_graph", t.cuda_graph);
  if (!t.cuda_graph_modules.empty()) out.add_list("cuda_graph_modules", t.cuda_graph_modules);
  if (t.collection_interval > 0) out.add("collection_interval", t.collection_interval);
  if (t.launch_blocking) out.add("launch_blocking", true);
  if (t.serial_collectives) out.add("serial_collectives", true);
  out.add("attention", t.attention.value_or(s.profile.attention_fused ? "flash" : "unfused"));
  if (t.attention_kernel)
    for (const auto& e : st::attention_kernels().entries())
      if (e.value == *t.attention_kernel) out.add("attention_kernel", e.name);
  out.add("multi_token_prediction", t.multi_token_prediction);
  out.add("clip_gradients", t.clip_gradients);
  if (t.cross_entropy)
    for (const auto& e : st::loss_kinds().entries())
      if (e.value == *t.cross_entropy) out.add("cross_entropy", e.name);
  if (t.loss_chunks != st::Training{}.loss_chunks) out.add("loss_chunks", t.loss_chunks);
  out.add_if("fp8_parameters", t.fp8_parameters);
  if (t.fp8_attention) out.add("fp8_attention", true);
  if (t.fp8_head) out.add("fp8_head", true);
  out.add_if("fused_rope", t.fused_rope);
  out.add_if("fused_gradient_accumulation", t.fused_gradient_accumulation);
  out.add_if("transformer_engine", t.transformer_engine);
  return out.take();
}

Value parallelism_section(const scenario::Scenario& s) {
  const st::Parallelism& p = s.strategy.parallelism;
  const st::Degrees& d = p.degrees;
  Section out("parallelism");
  out.add("tensor", d.tensor);
  out.add("context", d.context);
  if (d.context > 1)
    for (const auto& e : st::context_kinds().entries())
      if (e.value == st::context_kind(s.strategy, s.profile)) {
        out.add("context_kind", e.name);
        break;
      }
  if (d.context_ulysses > 1) out.add("context_ulysses", d.context_ulysses);
  out.add("pipeline", d.pipeline);
  out.add("data", d.data);
  out.add("data_shard", d.shard());
  out.add("expert", d.expert);
  out.add("expert_tensor", d.expert_tensor);
  out.add("sequence_parallel", p.sequence_parallel);
  out.add("overlap_tensor", p.sequence_parallel && d.tensor > 1 && p.overlap_tensor.value_or(s.profile.overlap_tensor));
  out.add("order", p.order.empty() ? std::string(st::kMegatronOrder) : p.order);
  return out.take();
}

Value data_parallel_section(const scenario::Scenario& s) {
  const st::DataParallel& d = s.strategy.data_parallel;
  Section out("data_parallel");
  out.add("kind", word_of(d.kind));
  const bool one_process = d.kind == st::DataParallelKind::one_process;   // its gradients wait for each other, whatever the framework's habit
  if (one_process) out.add("gather", std::string_view(d.gather == st::Gathered::loss ? "loss" : "logits"));
  const bool habit = d.kind == st::DataParallelKind::zero3 || s.profile.overlap_gradient_reduce;   // overlap_comm is on for stage 3 unless a job says otherwise
  out.add("overlap_gradient_reduce", !one_process && d.overlap_gradient_reduce.value_or(habit));
  out.add("overlap_parameter_gather", d.overlap_parameter_gather.value_or(s.profile.overlap_parameter_gather));
  if (d.bucket) out.add("bucket", config::to_text(*d.bucket));
  out.add("reshard_after_forward", d.reshard_after_forward.value_or(s.strategy.parallelism.degrees.pipeline == 1));
  if (d.fp8_gather != st::NarrowGather::none) out.add("fp8_gather", std::string_view(d.fp8_gather == st::NarrowGather::scaled_ahead ? "scaled-ahead" : "scaled-by-weight"));
  if (d.gather_under_update) out.add("gather_under_update", true);
  if (d.double_buffer) out.add("double_buffer", true);
  if (d.registered_buffers) out.add("registered_buffers", true);
  out.add_if("prefetch_bucket", d.prefetch_bucket);
  out.add_if("max_live_parameters", d.max_live_parameters);
  out.add_if("max_reuse_distance", d.max_reuse_distance);
  out.add_if("persistence_threshold", d.persistence_threshold);
  out.add_if("sub_group", d.sub_group);
  if (!d.memory_efficient_linear) out.add("memory_efficient_linear", false);
  out.add_if("secondary_partition", d.secondary_partition);
  if (d.quantized_weights) out.add("quantized_weights", true);
  if (d.quantized_gradients) out.add("quantized_gradients", true);
  if (d.parameter_dtype) out.add("parameter_dtype", name_of(*d.parameter_dtype));
  if (d.reduce_dtype) out.add("reduce_dtype", name_of(*d.reduce_dtype));
  if (d.gradient_dtype) out.add("gradient_dtype", name_of(*d.gradient_dtype));
  return out.take();
}

Value pipeline_section(const st::Pipeline& p) {
  Section out("pipeline");
  if (p.table_file.empty()) out.add("schedule", p.schedule);
  if (!p.table_file.empty()) out.add("table", p.table_file);
  out.add("overlap_messages", p.overlap_messages.value_or(true));
  if (p.overlap_warmup_flush) out.add("overlap_warmup_flush", true);
  if (p.group_size > 0) out.add("group_size", p.group_size);
  out.add("post_validation", p.post_validation);
  out.add("virtual_stages", p.virtual_stages);
  if (p.accumulation_steps > 1) out.add("accumulation_steps", p.accumulation_steps);
  out.add_if("deferred_head_gradients", p.deferred_head_gradients);
  if (!p.layers_per_stage.empty()) out.add_list("layers_per_stage", p.layers_per_stage);
  return out.take();
}

Value routing_section(const st::Routing& r) {
  constexpr std::string_view kDistributions[] = {"balanced", "zipf", "dirichlet", "round-robin"};
  Section out("experts.routing");
  out.add("distribution", kDistributions[static_cast<std::size_t>(r.distribution)]);
  out.add_if("skew", r.skew);
  out.add_if("concentration", r.concentration);
  out.add_if("batch_concentration", r.batch_concentration);
  if (r.batch_concentration) out.add("batch_draws", r.batch_draws);
  if (!r.even()) out.add("seed", r.seed);
  return out.take();
}

Value experts_section(const scenario::Scenario& s) {
  const st::ExpertRouting& e = s.strategy.experts;
  Section out("experts");
  for (const auto& d : st::dispatchers().entries())
    if (d.value == e.dispatcher.value_or(s.profile.dispatcher)) out.add("dispatcher", d.name);
  if (e.capacity_factor > 0) out.add("capacity_factor", e.capacity_factor);
  out.add("pad_to_capacity", e.pad_to_capacity);
  out.add("imbalance", e.imbalance);
  out.add("overlap_shared", e.overlap_shared.value_or(s.profile.overlap_shared_experts));
  out.add("fused_mlp", e.fused_mlp.value_or(s.profile.fused_expert_mlp));
  if (s.profile.routes_by_map && s.model.experts.experts > 0) {
    out.add("fused_router", e.fused_router.value_or(s.profile.fused_router));
    out.add("fused_permute", e.fused_permute.value_or(s.profile.fused_permute));
  }
  out.add("fused_index_map", e.fused_index_map.value_or(s.profile.fused_index_map));
  if (e.mask_products || s.profile.mask_products) out.add("mask_products", e.mask_products.value_or(true));
  out.add("overlap_exchange", e.overlap_exchange);
  if (e.dispatch_sms) out.add("dispatch_sms", *e.dispatch_sms);
  if (e.rank_capacity_factor > 0) out.add("rank_capacity_factor", e.rank_capacity_factor);
  out.add("paged_stash", e.paged_stash);
  if (e.routing.distribution != st::RoutingKind::balanced || e.routing.batch_concentration) out.put("routing", routing_section(e.routing));
  return out.take();
}

Value offload_section(const st::Offload& o) {
  constexpr std::string_view kPlaces[] = {"none", "cpu", "nvme"};
  Section out("memory.offload");
  out.add("optimizer", kPlaces[static_cast<std::size_t>(o.optimizer)]);
  out.add("parameters", kPlaces[static_cast<std::size_t>(o.parameters)]);
  out.add("activations", kPlaces[static_cast<std::size_t>(o.activations)]);
  if (o.activation_layers > 0) out.add("activation_layers", o.activation_layers);
  if (!o.modules.empty()) {
    out.add_list("modules", o.modules);
    out.add("least_elements", o.least_elements);
    out.add_if("in_flight", o.in_flight);
  }
  out.add("pinned", o.pinned);
  out.add("pipelined", o.pipelined);
  out.add("ratio", o.ratio);
  out.add_if("threads", o.threads);
  out.add_if("buffers", o.buffers);
  if (o.parameters == st::MemoryTier::nvme) out.add("max_in_cpu", o.max_in_cpu);
  return out.take();
}

Value memory_section(const st::Memory& m) {
  Section out("memory");
  out.add("recompute", word_of(m.recompute));
  out.add("recompute_every", m.recompute_every);
  if (m.recompute_span > 1) out.add("recompute_span", m.recompute_span);
  if (m.recompute_layers > 0) out.add("recompute_layers", m.recompute_layers);
  out.put("offload", offload_section(m.offload));
  if (m.device_map.active()) {
    Section map("memory.device_map");
    if (!m.device_map.cpu.empty()) map.add_list("cpu", m.device_map.cpu);
    if (m.device_map.gpu_memory) map.add("gpu_memory", config::to_text(*m.device_map.gpu_memory));
    out.put("device_map", map.take());
  }
  if (m.paged_optimizer) out.add("paged_optimizer", true);
  if (m.optimizer_in_backward) out.add("optimizer_in_backward", true);
  if (m.contiguous_checkpoints) out.add("contiguous_checkpoints", true);
  if (m.number_checkpoints > 0) out.add("number_checkpoints", m.number_checkpoints);
  if (m.synchronize_checkpoints) out.add("synchronize_checkpoints", true);
  if (m.expandable_segments) out.add("expandable_segments", *m.expandable_segments);
  if (m.fp8_activation_inputs) out.add("fp8_activation_inputs", *m.fp8_activation_inputs);
  if (m.tiled_mlp) out.add("tiled_mlp", true);
  if (m.tiled_mlp_num_shards > 0) out.add("tiled_mlp_num_shards", m.tiled_mlp_num_shards);
  if (m.sequence_chunk > 0) out.add("sequence_chunk", m.sequence_chunk);
  out.add("partition_activations", m.partition_activations);
  if (!m.recompute_modules.empty()) out.add_list("recompute_modules", m.recompute_modules);
  return out.take();
}

Value tuning_section(const st::Tuning& t) {
  Section out("tuning");
  out.add("kind", word_of(t.kind));
  out.add("rank", t.rank);
  out.add("alpha", t.alpha);
  out.add("dropout", t.dropout);
  if (!t.targets.empty()) out.add_list("targets", t.targets);
  if (!t.trainable.empty()) out.add_list("trainable", t.trainable);
  if (t.kind != st::TuningKind::full) out.add("quantized", t.four_bit());
  if (t.four_bit()) out.add("format", std::string(t.format == st::FourBit::gptq ? "gptq" : "nf4"));
  out.add("double_quantization", t.double_quantization);
  if (t.kind != st::TuningKind::full) out.add("decomposed", t.decomposed);
  return out.take();
}

/// What the framework's profile would be without its keys in the scenario. What parallelism.overlap_tensor says is not said twice.
st::FrameworkProfile named_profile(const scenario::Scenario& s) {
  st::FrameworkProfile named = st::with_choices(st::with_precision(st::load_profile(s.profile.name), s.strategy.training.precision), s.strategy);
  named.overlap_tensor = s.profile.overlap_tensor;
  return named;
}

void flatten(const Value& value, const std::string& path, std::vector<std::pair<std::string, std::string>>& out) {
  if (value.is_map()) {
    for (const Value::Entry& e : value.entries()) flatten(e.value, config::child_path(path, e.key), out);
  } else if (value.is_list()) {
    std::string text;
    for (const Value& item : value.items()) text += (text.empty() ? "" : ", ") + item.text();
    out.emplace_back(path, "[" + text + "]");
  } else {
    out.emplace_back(path, value.text());
  }
}

std::string collectives_text(const hwmodels::CollectiveParameters& p) {
  std::string text;
  for (const auto& [name, timing] : p.generations)
    for (const auto& number : hwmodels::generation_numbers()) text += fmt::format("{} {} {}\n", name, number.name, timing.*number.member);
  for (const auto& [name, timing] : p.networks) {
    text += fmt::format("{} ll128 {}\n", name, timing.ll128);
    for (const auto& number : hwmodels::network_numbers()) text += fmt::format("{} {} {}\n", name, number.name, timing.*number.member);
  }
  for (const auto& [name, b] : p.backends) text += fmt::format("{} {} {} {} {} {}\n", name, b.alpha, b.intra, b.inter, b.nic_fraction, b.copies);
  text += fmt::format("{} {} {} {}\n", p.common.own_piece, p.common.message_efficiency, p.common.all_channels, p.common.copy_efficiency);
  for (const auto* k : {&p.expert_dispatch.dispatch, &p.expert_dispatch.combine, &p.expert_dispatch.bulk}) text += fmt::format("{} {} {} {} {}\n", k->sms, k->launch, k->token, k->rate, k->link_efficiency);
  const hwmodels::RegisteredBuffers& r = p.registered_buffers;
  for (const auto* sms : {&r.nvlink, &r.both, &r.both_sharp, &r.network, &r.network_sharp}) text += fmt::format("{} {}\n", sms->gather, sms->scatter);
  return text;
}

/// What a scenario's answer depends on beyond its own keys.
std::string hardware_text(const scenario::Scenario& s) {
  const hwmodels::Gpu& g = s.cluster.gpu;
  const hwmodels::NodeDesign& n = s.cluster.node;
  const hwmodels::FabricDesign& f = s.cluster.fabric;
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}\n", g.compute_capability, g.sms, g.boost_clock_mhz, g.locked_clock_mhz / g.highest_clock_mhz(), g.memory.value, g.hbm_bandwidth.value, g.l2.value,
                                 g.nvlink_bandwidth.value, g.nvlink_links, g.pcie_generation, g.host_to_device.value, g.device_to_host.value);
  if (g.limit_watts > 0) text += fmt::format("{}\n", g.limit_watts / g.own_watts);
  for (const auto& [type, rate] : g.peak) text += fmt::format("{} {}\n", name_of(type), rate.value);
  for (const auto& [name, value] : g.kernel_parameters) text += fmt::format("{} {}\n", name, value);
  for (const hwmodels::MeshLinks& l : n.links) text += fmt::format("{}-{} {} ", l.from, l.to, l.count);
  text += fmt::format("{} {} {} {} {} {} {} {}\n", n.gpus, name_of(n.scale_up), n.links_per_pair, n.domain, n.nvls, n.nic.count, n.nic.bandwidth.value, n.nic.network);
  text += fmt::format("{} {} {} {} {} {} {} {} {} {}\n", n.nic.efficiency, n.cpu.sockets, n.cpu.memory_bandwidth.value, n.cpu.socket_link.value, n.cpu.memory.value, n.cpu.copy_bandwidth.value,
                      n.cpu.update_bandwidth.value, n.cpu.pageable_fraction, n.nvme.read.value, n.nvme.write.value);
  text += fmt::format("{} {} {} {} {} {}\n", static_cast<int>(n.cpu.vendor), n.cpu.cores, n.cpu.launch_time, n.nvme.capacity.value, n.nic.per_communicator, n.nic.spine_efficiency);
  if (n.cpu.numa_nodes > 0) text += fmt::format("numa {}\n", n.cpu.numa_nodes);
  if (n.cpu.core_bandwidth.value > 0) text += fmt::format("{}\n", n.cpu.core_bandwidth.value);
  text += fmt::format("{} {} {} {} {}\n", n.pcie.gpus_per_switch, n.pcie.peer_to_peer, n.pcie.efficiency, n.pcie.efficiency_across, n.pcie.all_to_all_across);
  text += fmt::format("{} {} {} {}\n", name_of(f.kind), f.nodes_per_leaf, f.spines, f.hop_latency.count());
  for (const hwmodels::GraphLink& l : f.graph_links) text += fmt::format("{} {} {} {}\n", l.from, l.to, l.bandwidth.value, l.latency.count());
  // Files of the user's own: their numbers, since a name does not tell them.
  if (!g.measured_kernels.empty()) text += hwmodels::measured_kernels_csv(g.measured_kernels) + fmt::format("{} {} {}\n", g.reach.gemm, g.reach.attention, g.reach.memory);
  if (s.cluster.collectives) text += collectives_text(*s.cluster.collectives);
  text += s.profile.own_text + s.strategy.pipeline.table;
  return text;
}

}  // namespace

Value effective_config(const scenario::Scenario& s) {
  Section out("");
  if (!s.title.empty()) out.add("title", s.title);
  out.put("model", effective_model(s.model));
  out.put("cluster", cluster_section(s));
  out.put("training", training_section(s));
  out.put("parallelism", parallelism_section(s));
  out.put("data_parallel", data_parallel_section(s));
  out.put("pipeline", pipeline_section(s.strategy.pipeline));
  out.put("experts", experts_section(s));
  out.put("memory", memory_section(s.strategy.memory));
  out.put("tuning", tuning_section(s.strategy.tuning));
  if (Value keys = st::different_keys(s.profile, named_profile(s)); !keys.is_null()) out.put("profile", std::move(keys));
  return out.take();
}

std::vector<std::pair<std::string, std::string>> flattened(const Value& value) {
  std::vector<std::pair<std::string, std::string>> out;
  flatten(value, "", out);
  return out;
}

std::string hash_of(const scenario::Scenario& s) {
  std::string text = hardware_text(s);
  for (const auto& [key, value] : flattened(effective_config(s)))
    if (key != "title" && key != "pipeline.table") text += key + "=" + value + "\n";
  return fmt::format("{:016x}", hash_of_text(text));
}

}  // namespace rehearse::report
