// Megatron's degrees of parallelism, stages and machines as keys of a scenario.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "sim/config/units.h"
#include "sim/importers/argument_text.h"
#include "sim/importers/hybrid_pattern.h"
#include "sim/importers/megatron_parts.h"
#include "sim/model/pipeline_layout.h"

namespace rehearse::importers {
namespace {

using config::between;
using config::positive;

std::int64_t degree(Importer& in, const char* name, const char* ours) {
  const auto v = in.integer_or_stated(name, ours, between(1, 1 << 20));
  if (v && !in.is_open(name)) in.set(ours, std::to_string(*v), name);
  return v.value_or(1);
}

/// Source: megatron/training/arguments.py, validate_args: "Number of layers should be divisible by the pipeline-model-parallel size". DeepSpeed's
/// pipeline deals out any number, and a hybrid pattern's layers are counted otherwise.
void refuse_unlike_stages(Importer& in, std::int64_t stages, std::int64_t chunks, std::int64_t layers, const char* list) {
  if (list != nullptr || layers < 1 || layers % (stages * chunks) == 0 || in.has("deepspeed_config") || find_dotted(in.context().scenario, "pipeline.layers_per_stage") != nullptr || in.has("hybrid_layer_pattern") || in.has("hybrid_override_pattern")) return;
  const char* key = in.has("num_layers") ? "num_layers" : in.has("encoder_num_layers") ? "encoder_num_layers" : "pipeline_model_parallel_size";
  in.complain(key, fmt::format("{} layers do not divide over {} stages{}", layers, stages, chunks > 1 ? fmt::format(" of {} chunks", chunks) : ""), "Megatron refuses it without decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers, account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split or pipeline_model_parallel_layout: add one, or change the stages");
}

/// Stages of unlike length: the first and the last are given, or embedding and loss count as a layer. `list`: the argument that lists all; null where none does.
void read_uneven_stages(Importer& in, std::int64_t stages, std::int64_t chunks, std::int64_t layers, const char* list) {
  const auto first = in.integer("decoder_first_pipeline_num_layers", positive), last = in.integer("decoder_last_pipeline_num_layers", positive);
  const bool embedding = in.flag("account_for_embedding_in_pipeline_split").value_or(false), loss = in.flag("account_for_loss_in_pipeline_split").value_or(false);
  if (!first && !last && !embedding && !loss) return refuse_unlike_stages(in, stages, chunks, layers, list);
  const char* by = first ? "decoder_first_pipeline_num_layers" : last ? "decoder_last_pipeline_num_layers" : embedding ? "account_for_embedding_in_pipeline_split" : "account_for_loss_in_pipeline_split";
  if (list != nullptr) return in.complain(by, std::string(list) + " says what each stage holds", std::string("Leave out ") + by);
  const std::int64_t parts = stages * chunks;
  if (parts > 4096) return in.complain(by, "there are more stages than layers can be counted for");
  std::vector<std::int64_t> split;
  if (embedding || loss) {
    if (layers < 1) return in.complain(by, "the number of layers is not known", "Give num_layers, or the scenario a model");
    const std::int64_t all = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (all % parts != 0) return in.complain(by, fmt::format("{} layers with embedding and loss do not divide into {} stages", all, parts));
    split.assign(static_cast<std::size_t>(parts), all / parts);
    split.front() -= embedding ? 1 : 0;
    split.back() -= loss ? 1 : 0;
  } else {
    if (chunks > 1) return in.refuse(by, "a first or last stage of another length with virtual stages");
    if (layers < 1) return in.complain(by, "the number of layers is not known, so neither is what is left for the other stages", "Give num_layers, or the scenario a model");
    if (first.value_or(0) + last.value_or(0) > layers) return in.complain(by, fmt::format("the first and the last stage hold {} of {} layers", first.value_or(0) + last.value_or(0), layers), "Give them fewer layers");
    const std::int64_t ends = (first ? 1 : 0) + (last ? 1 : 0), rest = layers - first.value_or(0) - last.value_or(0), middle = stages - ends;
    if (middle < 0 || rest < 0 || (middle == 0 ? rest != 0 : rest % middle != 0)) return in.complain(by, fmt::format("{} layers do not divide over the {} other stages", rest, middle));
    split.assign(static_cast<std::size_t>(stages), middle > 0 ? rest / middle : 0);
    if (first) split.front() = *first;
    if (last) split.back() = *last;
  }
  std::vector<std::string> words;
  for (const std::int64_t n : split) words.push_back(std::to_string(n));
  in.set_list("pipeline.layers_per_stage", words, by);
}

/// Interleaved schedules take micro-batches in groups of as many as there are stages; Megatron can make the groups larger.
void read_group_size(Importer& in, std::int64_t stages, std::int64_t chunks) {
  for (const char* name : {"microbatch_group_size_per_vp_stage", "microbatch_group_size_per_virtual_pipeline_stage"}) {
    const auto size = in.integer(name, positive);
    if (!size) continue;
    if (stages == 1 || chunks == 1) in.use(name, "no interleaved schedule");
    else if (*size == stages) in.use(name, "as many as there are stages: the default");
    else in.set("pipeline.group_size", std::to_string(*size), name);
  }
}

/// Megatron's own data parallelism reduced gradients after backward until 2023, PyTorch's under it.
void read_first_data_parallelism(Importer& in) {
  constexpr const char* key = "DDP_impl";
  const auto kind = in.word(key);
  if (!kind) return;
  if (*kind == "local") in.set("data_parallel.overlap_gradient_reduce", "false", key, "Megatron's own");
  else if (*kind == "torch") in.set("data_parallel.overlap_gradient_reduce", "true", key, "PyTorch's");
  else in.complain(key, fmt::format("'{}' is no kind of data parallelism", *kind), "Use local or torch");
}

/// Until January 2026 (NVIDIA/Megatron-LM 639c08ab82): input gradients wait for their all-reduce before the weights' are computed.
void read_blocking_all_reduce(Importer& in, std::int64_t tensor) {
  constexpr const char* key = "no_async_tensor_model_parallel_allreduce";
  if (!in.flag(key).value_or(false)) return;
  if (tensor == 1) in.use(key, "one tensor-parallel rank: nothing to reduce");
  else if (in.flag("sequence_parallel").value_or(false)) in.use(key, "sequence parallelism scatters the sums, whatever this says");
  else in.refuse(key, "an all-reduce of input gradients before the weights' gradients");
}

/// Layers of each chunk, in model order, dealt out to the stages. The chunks of each stage; 0 where the list cannot be, or there is nothing to deal out.
std::int64_t read_chunks(Importer& in, const char* key, const std::vector<std::int64_t>& chunks, std::int64_t stages) {
  const std::int64_t parts = std::ssize(chunks);
  if (parts < 2) return 0;
  if (parts % stages != 0) return in.complain(key, fmt::format("has {} parts, which do not divide into {} stages", parts, stages)), 0;
  if (stages == 1) return 0;
  std::vector<std::string> words;
  for (const std::int64_t n : chunks) words.push_back(std::to_string(n));
  in.set_list("pipeline.layers_per_stage", words, key);
  return parts / stages;
}

/// Bars of a hybrid pattern part the layers into stages, or into as many chunks on each.
std::int64_t read_parted_pattern(Importer& in, std::int64_t stages) {
  constexpr const char* key = "hybrid_layer_pattern";
  const HybridPattern pattern = hybrid_pattern(in.word(key).value_or(""));
  return pattern.problem.empty() ? read_chunks(in, key, pattern.chunks, stages) : 0;
}

/// Letters say what each chunk holds. Prediction layers are simulated on the last stage.
std::int64_t read_layout(Importer& in, std::int64_t stages) {
  constexpr const char* key = "pipeline_model_parallel_layout";
  const std::string text = in.word(key).value_or("");
  if (text.empty() || text == "None") return 0;
  const model::PipelineLayout layout = model::read_pipeline_layout(text);
  if (layout.layers.empty()) return in.complain(key, "'" + text + "' is not a pipeline layout", "Write letters for layers (t) and bars between chunks, as in Et*3|(tt|)*2tL"), 0;
  const std::int64_t predictions = in.integer("mtp_num_layers").value_or(0);
  if (layout.predictions != predictions) in.complain(key, fmt::format("has {} prediction layers, but mtp_num_layers is {}", layout.predictions, predictions));
  if (const std::size_t m = text.find('m'); m != std::string::npos && text.find('|', m) != std::string::npos) in.refuse(key, "multi-token prediction before the last chunk");
  return read_chunks(in, key, layout.layers, stages);
}

/// Chunks on each stage where they are counted; `by`: the argument that counts them, null where none does.
std::int64_t count_chunks(Importer& in, std::int64_t stages, std::int64_t layers, const char*& by) {
  std::int64_t chunks = 1;
  for (const char* name : {"virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"})
    if (const auto n = in.integer(name, between(1, 1024))) chunks = *n, by = name;
  const auto per_stage = in.integer("num_layers_per_virtual_pipeline_stage", positive);
  if (per_stage && by == nullptr) {
    by = "num_layers_per_virtual_pipeline_stage";
    if (layers == 0 || layers % bounded_product({stages, *per_stage}) != 0) in.complain(by, fmt::format("{} layers do not divide into {} stages with chunks of {} layers", layers, stages, *per_stage), "Give num_layers, or set pipeline.virtual_stages");
    else chunks = layers / stages / *per_stage;
  } else if (per_stage) {
    in.use("num_layers_per_virtual_pipeline_stage", "the number of virtual stages says it");
  }
  return chunks;
}

/// The embedding and the loss, where stages count them as a layer each.
std::int64_t further_layers(Importer& in) {
  return (in.flag("account_for_embedding_in_pipeline_split").value_or(false) ? 1 : 0) + (in.flag("account_for_loss_in_pipeline_split").value_or(false) ? 1 : 0);
}

void read_stages(Importer& in, std::int64_t stages) {
  // A model of the scenario stands above the arguments' sizes.
  const auto written = in.integer("num_layers"), encoder = in.integer("encoder_num_layers");
  const std::int64_t layers = find_dotted(in.context().scenario, "model") != nullptr && in.context().layers ? *in.context().layers : written.value_or(encoder.value_or(in.context().layers.value_or(0)));
  const char* list = "hybrid_layer_pattern";
  std::int64_t listed = read_parted_pattern(in, stages);
  if (listed == 0) list = "pipeline_model_parallel_layout", listed = read_layout(in, stages);
  const char* by = nullptr;
  std::int64_t chunks = count_chunks(in, stages, layers == 0 ? 0 : layers + further_layers(in), by);
  if (listed > 0 && by != nullptr) {
    if (chunks != listed) in.complain(by, fmt::format("{} chunks on each stage, but {} has {}", chunks, list, listed));
    else in.use(by, std::string(list) + " says it");
  }
  if (listed > 0) chunks = listed, by = list;
  read_group_size(in, stages, chunks);
  // --overlap-p2p-communication was opt-in from 2023-05 to 2024-11; --no-overlap-p2p-communication opts out since.
  const bool interleaves = stages > 2 && chunks > 1;
  for (const char* name : {"overlap_p2p_comm", "overlap_p2p_communication", "no_overlap_p2p_communication"})
    if (const auto on = in.flag(name)) {
      const bool overlaps = *on != std::string_view(name).starts_with("no_");
      if (interleaves) in.set("pipeline.overlap_messages", overlaps ? "true" : "false", name);
      else in.use(name, "matters to interleaved schedules of three stages and more only");
    }
  for (const char* name : {"overlap_p2p_comm_warmup_flush", "overlap_p2p_communication_warmup_flush"})
    if (const auto on = in.flag(name)) {
      if (*on && stages > 1 && chunks > 1) in.set("pipeline.overlap_warmup_flush", "true", name);
      else in.use(name, *on ? "no interleaved schedule" : "the default");
    }
  if (stages > 1 && chunks > 1) {
    in.set("pipeline.virtual_stages", std::to_string(chunks), by);
    in.fragment().set("pipeline.schedule", "interleaved-1f1b", in.find(by)->place());
  } else if (by != nullptr && listed == 0) {
    in.use(by, "one chunk per stage");
  }
  if (stages > 1) read_uneven_stages(in, stages, chunks, layers, listed > 0 ? list : nullptr);
}

/// The number behind the last colon: 8, h100:8 and gpu:a100:4, as --gpus-per-node and --gres have it.
std::optional<std::int64_t> batch_gpus(Importer& in, const char* name) {
  const auto text = in.word(name);
  if (!text || (std::string_view(name) == "sbatch_gres" && !text->starts_with("gpu"))) return std::nullopt;
  const auto n = config::parse_integer(text->substr(text->rfind(':') + 1)).value;
  return n && *n >= 1 && *n <= 72 ? n : std::nullopt;
}

/// #SBATCH lines, where no launcher's argument says it. Without a launcher each task is a process, which has one GPU.
void read_batch_machines(Importer& in, bool nodes_known, bool gpus_known) {
  constexpr const char *kNodes = "sbatch_nodes", *kTasks = "sbatch_ntasks_per_node", *kAllTasks = "sbatch_ntasks";
  const auto tasks = in.has(kTasks) ? config::parse_integer(in.word(kTasks).value_or("")).value : std::nullopt, all = in.has(kAllTasks) ? config::parse_integer(in.word(kAllTasks).value_or("")).value : std::nullopt;
  if (in.has(kNodes) && nodes_known) in.use(kNodes, "the launcher's arguments say how many take part");
  else if (in.has(kNodes) && in.stated("cluster.nodes")) in.use(kNodes, fmt::format("{}, but cluster.nodes = {} of the scenario stands in its place", in.word(kNodes).value_or(""), *in.stated("cluster.nodes")));
  else if (const auto nodes = in.integer(kNodes, between(1, 100000))) in.set("cluster.nodes", std::to_string(*nodes), kNodes);
  else if (!in.has(kNodes) && !nodes_known && all && tasks && *tasks > 0 && *all >= *tasks && *all % *tasks == 0) in.set("cluster.nodes", std::to_string(*all / *tasks), kAllTasks, fmt::format("{} tasks, {} on each node", *all, *tasks));
  for (const char* name : {kTasks, "sbatch_gpus_per_node", "sbatch_gres"}) {
    const bool counts_tasks = name == kTasks;
    const auto gpus = counts_tasks ? tasks : batch_gpus(in, name);
    if (!gpus || (counts_tasks && (*gpus < 2 || *gpus > 72))) continue;
    if (gpus_known) in.use(name, "said already how many GPUs of a node take part");
    else in.set("cluster.gpus_per_node", std::to_string(*gpus), name, counts_tasks ? "a process each" : "");
    gpus_known = true;
  }
}

/// Arguments of torchrun or of DeepSpeed's launcher, or the world size of a dump on nodes as large as the scenario's.
void read_machines(Importer& in) {
  bool nodes_known = false, gpus_known = false;
  for (const char* name : {"nnodes", "num_nodes", "nodes"})
    if (in.is_open(name) && in.has("sbatch_nodes") && !in.stated("cluster.nodes")) in.use(name, "as many as sbatch_nodes asks for");
    else if (const auto nodes = in.integer_or_stated(name, "cluster.nodes", between(1, 100000)); nodes && !in.is_open(name)) in.set("cluster.nodes", std::to_string(*nodes), name), nodes_known = true;
  for (const char* name : {"nproc_per_node", "num_gpus", "GPUS_PER_NODE"})
    if (in.is_open(name) && in.context().gpus_per_node) in.use(name, fmt::format("{}, as the scenario's node has", *in.context().gpus_per_node)), gpus_known = true;
    else if (const auto per_node = in.integer(name, between(1, 72))) in.set("cluster.gpus_per_node", std::to_string(*per_node), name), gpus_known = true;
  read_batch_machines(in, nodes_known, gpus_known);
  const auto world = in.integer("world_size", between(1, 1 << 24));
  if (!world) return;
  if (in.stated("cluster.nodes") || in.stated("cluster.gpus_per_node")) {
    in.use("world_size", "the scenario states its cluster");
  } else if (!in.context().gpus_per_node) {
    in.use("world_size", "the cluster is not known yet");
  } else {
    const std::int64_t full = *in.context().gpus_per_node;
    if (*world > full && *world % full != 0) return in.complain("world_size", fmt::format("{} GPUs do not fill nodes of {}", *world, full), "Set cluster.nodes and cluster.gpus_per_node");
    in.set("cluster.nodes", std::to_string(std::max<std::int64_t>(1, *world / full)), "world_size");
    if (*world < full) in.fragment().set("cluster.gpus_per_node", std::to_string(*world), in.find("world_size")->place());
  }
}

/// Megatron-FSDP, if it is on.
bool read_fsdp(Importer& in) {
  const char* by = nullptr;
  for (const char* name : {"use_megatron_fsdp", "use_custom_fsdp"})
    if (in.flag(name).value_or(false)) by = name;
  if (by == nullptr) return false;
  constexpr const char *kStrategy = "data_parallel_sharding_strategy", *kKept = "megatron_fsdp_main_grads_dtype", *kSent = "megatron_fsdp_grad_comm_dtype";
  const std::string strategy = in.word(kStrategy).value_or("no_shard");
  if (strategy == "no_shard") {
    in.set("data_parallel.kind", "ddp", in.has(kStrategy) ? kStrategy : by);
    return true;
  }
  // Without sharded gradients it reduces once per step, as the distributed optimizer does, in buckets of its own size.
  // Source: megatron_fsdp/param_and_grad_buffer.py, BucketingPolicy.suggested_bucket_size; megatron_fsdp.py, is_delay_grad_reduce.
  constexpr std::int64_t kBucketElements = 40'000'000;
  const bool states_alone = strategy == "optim";
  if (!states_alone && strategy != "optim_grads" && strategy != "optim_grads_params") {
    in.complain(kStrategy, fmt::format("'{}' is no strategy of Megatron-FSDP", strategy), "Use no_shard, optim, optim_grads or optim_grads_params");
    return true;
  }
  in.set("data_parallel.kind", states_alone ? "distributed-optimizer" : "megatron-fsdp", kStrategy);
  in.use(by, std::string(kStrategy) + " says it");
  const std::string kept = in.word(kKept).value_or("auto"), sent = in.word(kSent).value_or("auto"), reduced = sent != "auto" ? sent : kept != "auto" ? kept : "bf16";
  if (kept != "auto") in.set("data_parallel.gradient_dtype", kept, kKept);
  else in.assume("data_parallel.gradient_dtype", "bf16", "megatron_fsdp_main_grads_dtype is the parameters' unless given");
  if (sent != "auto") in.set("data_parallel.reduce_dtype", sent, kSent);
  else in.assume("data_parallel.reduce_dtype", reduced, "megatron_fsdp_grad_comm_dtype is the kept gradients' unless given");
  if (states_alone) in.assume("data_parallel.bucket", fmt::format("{} B", kBucketElements * (reduced == "fp32" ? 4 : 2)), "Megatron-FSDP's buckets hold 40 million elements where layers are not sharded");
  if (strategy == "optim_grads") in.assume("data_parallel.reshard_after_forward", "false", "optim_grads keeps parameters whole");
  return true;
}

/// PyTorch's FSDP2 around Megatron's layers: 16-bit parameters, whose gradients are reduced in every micro-batch, in 16 bits. There is no gradient
/// accumulation in products with it. Source: megatron/core/distributed/torch_fully_sharded_data_parallel.py; megatron/training/arguments.py.
bool read_torch_fsdp2(Importer& in) {
  constexpr const char *kOn = "use_torch_fsdp2", *kKeeps = "torch_fsdp2_no_reshard_after_forward";
  if (!in.flag(kOn).value_or(false)) {
    if (in.flag(kKeeps)) in.use(kKeeps, "no FSDP2");
    return false;
  }
  in.set("data_parallel.kind", "fsdp2", kOn);
  in.assume("data_parallel.reduce_dtype", "bf16", "FSDP2 reduces in the format of the parameters");
  in.assume("training.fused_gradient_accumulation", "false", "Megatron refuses it with FSDP2");
  if (const auto keeps = in.flag(kKeeps)) in.set("data_parallel.reshard_after_forward", *keeps ? "false" : "true", kKeeps);
  if (in.has("data_parallel_sharding_strategy")) in.ignore("data_parallel_sharding_strategy", "an option of Megatron-FSDP");
  return true;
}

/// Buffers that last and that NCCL knows. Source: megatron/core/distributed/distributed_data_parallel_config.py, nccl_ub, fsdp_double_buffer.
void read_buffers(Importer& in, bool fsdp, bool distributed) {
  constexpr const char* kDouble = "fsdp_double_buffer";
  if (in.flag(kDouble).value_or(false)) {
    if (fsdp) in.set("data_parallel.double_buffer", "true", kDouble);
    else in.use(kDouble, "no Megatron-FSDP");
  }
  for (const char* name : {"nccl_ub", "use_nccl_ub"})
    if (in.flag(name).value_or(false)) {
      if (fsdp || distributed) in.set("data_parallel.registered_buffers", "true", name);
      else in.use(name, "gradients are summed, not scattered");
    }
}

/// A list, or the same as the shell has it: "2 4".
std::vector<std::string> words_of(const config::Value& v) {
  std::vector<std::string> words;
  if (v.is_list()) {
    for (const config::Value& item : v.items()) words.push_back(item.text());
    return words;
  }
  const std::string text = v.text();
  constexpr const char* kBetween = " ,[]";
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBetween, end);
  }
  return words;
}

/// Source: deepspeedai/Megatron-DeepSpeed megatron/arguments.py.
void read_deepspeed_context(Importer& in) {
  constexpr const char *kOn = "ds_sequence_parallel_fpdt", *kChunk = "ds_sequence_parallel_fpdt_chunk_size", *kOffload = "ds_sequence_parallel_fpdt_offloading";
  const std::int64_t context = degree(in, "ds_sequence_parallel_size", "parallelism.context");
  if (context > 1) in.set("parallelism.context_kind", "ulysses", "ds_sequence_parallel_size");
  const bool on = in.flag(kOn).value_or(false), offloads = in.flag(kOffload).value_or(false);
  const std::int64_t chunk = in.integer(kChunk, between(1, 1e12)).value_or(65536);
  if (!on || context == 1) {
    for (const char* unused : {kChunk, kOffload, kOn})
      if (in.has(unused)) in.use(unused, "sequences are whole");
    return;
  }
  if (!offloads) return in.refuse(kOn, "chunks of the sequence that all stay on the GPU", "Set ds_sequence_parallel_fpdt_offloading");
  in.use(kOffload, "what other chunks have waits in host memory");
  in.set("memory.sequence_chunk", std::to_string(chunk), in.has(kChunk) ? kChunk : kOn);
  if (in.has(kChunk)) in.use(kOn, "in chunks");
}

void read_context(Importer& in) {
  constexpr const char *kKind = "cp_comm_type", *kSizes = "hierarchical_context_parallel_sizes";
  // Megatron-DeepSpeed's sequence parallelism exchanges heads (--ds-sequence-parallel-size).
  if (in.has("ds_sequence_parallel_size") && !in.has("context_parallel_size")) return read_deepspeed_context(in);
  const std::int64_t context = degree(in, "context_parallel_size", "parallelism.context");
  const config::Value *kind = in.find(kKind), *sizes = in.find(kSizes);
  std::string chosen = "p2p";
  if (kind != nullptr) {
    const std::vector<std::string> words = words_of(*kind);
    chosen = words.empty() ? "p2p" : words.front();
    if (std::any_of(words.begin(), words.end(), [&](const std::string& w) { return w != chosen; }))
      return in.refuse(kKind, "context parallelism that differs from layer to layer", "Give one type for all layers");
    static constexpr const char* kKnown[] = {"p2p", "all_gather", "a2a", "a2a+p2p"};
    if (std::find(std::begin(kKnown), std::end(kKnown), chosen) == std::end(kKnown)) return in.complain(kKind, fmt::format("'{}' is no type", chosen), "Use p2p, all_gather, a2a or a2a+p2p");
    if (context > 1) in.set("parallelism.context_kind", chosen, kKind);
    else in.use(kKind, "one context-parallel rank: nothing to exchange");
  }
  const std::vector<std::string> levels = sizes != nullptr ? words_of(*sizes) : std::vector<std::string>{};
  if (chosen != "a2a+p2p" || context == 1) {
    if (sizes != nullptr) in.use(kSizes, "only a2a+p2p has two levels");
    return;
  }
  if (levels.size() != 2) return in.complain(sizes != nullptr ? kSizes : kKind, "a2a+p2p needs two sizes, of the all-to-all and of the ring", "Set hierarchical_context_parallel_sizes, say 2 4 of context_parallel_size 8");
  const auto inside = config::parse_integer(levels[0]).value, outside = config::parse_integer(levels[1]).value;
  if (!inside || !outside || *inside < 1 || *outside < 1 || bounded_product({*inside, *outside}) != context)
    return in.complain(kSizes, fmt::format("{} x {} are not the {} context-parallel ranks", levels[0], levels[1], context));
  if (*inside == 1 || *outside == 1) {
    in.fragment().set("parallelism.context_kind", *inside == 1 ? "p2p" : "a2a", kind->place());
    return in.use(kSizes, "one level has one rank: Transformer Engine runs the other alone");
  }
  in.set("parallelism.context_ulysses", levels[0], kSizes);
}

}  // namespace

void read_megatron_parallelism(Importer& in) {
  const char* tensor_name = in.has("tensor_model_parallel_size") ? "tensor_model_parallel_size" : "model_parallel_size";
  const std::int64_t tensor = degree(in, tensor_name, "parallelism.tensor"), stages = degree(in, "pipeline_model_parallel_size", "parallelism.pipeline");
  read_context(in);
  const std::int64_t expert = degree(in, "expert_model_parallel_size", "parallelism.expert");
  const auto expert_tensor = in.integer("expert_tensor_parallel_size", between(1, 1 << 20));
  // A dump fills it in for dense models, and Megatron takes any.
  const bool experts = expert > 1 || in.has("num_experts") || in.has("num_moe_experts") || find_dotted(in.context().scenario, "model") != nullptr;
  if (expert_tensor && (!experts || (expert == 1 && *expert_tensor == tensor && !in.has("num_experts") && !in.has("num_moe_experts")))) in.use("expert_tensor_parallel_size", "no experts to cut");
  else if (expert_tensor) in.set("parallelism.expert_tensor", std::to_string(*expert_tensor), "expert_tensor_parallel_size");
  else if ((in.has("num_experts") || in.has("num_moe_experts")) && tensor > 1) in.assume("parallelism.expert_tensor", std::to_string(tensor), "experts are cut as the rest is unless expert_tensor_parallel_size says otherwise");
  if (in.flag("sequence_parallel").value_or(false)) {
    if (tensor > 1) in.set("parallelism.sequence_parallel", "true", "sequence_parallel");
    else in.use("sequence_parallel", "one tensor-parallel rank: nothing to split");
  }
  if (in.flag("tp_comm_overlap").value_or(false)) {
    if (tensor > 1) in.set("parallelism.overlap_tensor", "true", "tp_comm_overlap");
    else in.use("tp_comm_overlap", "one tensor-parallel rank: nothing to overlap");
  }
  if (in.flag("use_tp_pp_dp_mapping").value_or(false)) in.set("parallelism.order", "tp-cp-ep-pp-dp", "use_tp_pp_dp_mapping");
  read_stages(in, stages);

  if (in.flag("defer_embedding_wgrad_compute").value_or(false)) {
    const auto limit = in.integer("wgrad_deferral_limit", config::non_negative);
    if (stages > 1) in.set("pipeline.deferred_head_gradients", std::to_string(limit.value_or(0)), limit ? "wgrad_deferral_limit" : "defer_embedding_wgrad_compute");
    else in.complain("defer_embedding_wgrad_compute", "Megatron defers them under pipeline stages only", "Leave it out, or set pipeline_model_parallel_size");
  }
  const bool distributed = in.flag("use_distributed_optimizer").value_or(in.has(kSections));   // on in Megatron-Bridge's recipes
  const std::string optimizer = in.word("optimizer").value_or("adam");
  const bool muon = optimizer == "dist_muon" || (optimizer == "muon" && distributed), fsdp = !muon && read_fsdp(in), torch_fsdp = !muon && !fsdp && read_torch_fsdp2(in);
  if (muon) {
    // The layer-wise optimizer (megatron/training/arguments.py; megatron/core/optimizer/layer_wise_optimizer.py).
    in.set("data_parallel.kind", "ddp", distributed ? "use_distributed_optimizer" : "optimizer", "each matrix is updated by one rank, which alone has its moment");
    in.set("profile.muon_owners", "true", distributed ? "use_distributed_optimizer" : "optimizer");
  } else if (torch_fsdp) {
    if (distributed) in.complain("use_distributed_optimizer", "Megatron has it without FSDP2 only", "Leave out one of the two");
  } else if (fsdp) {
    if (distributed) in.use("use_distributed_optimizer", "part of Megatron-FSDP");
  } else if (distributed) in.set("data_parallel.kind", "distributed-optimizer", "use_distributed_optimizer");
  else in.assume("data_parallel.kind", "ddp", "use_distributed_optimizer is not set");
  read_buffers(in, fsdp, distributed && !muon);
  for (const auto& [name, ours] : {std::pair{"overlap_grad_reduce", "data_parallel.overlap_gradient_reduce"}, {"overlap_param_gather", "data_parallel.overlap_parameter_gather"}, {"overlap_param_gather_with_optimizer_step", "data_parallel.gather_under_update"}})
    if (const auto on = in.flag(name)) in.set(ours, *on ? "true" : "false", name);
  read_first_data_parallelism(in);
  read_blocking_all_reduce(in, tensor);
  read_machines(in);
}

}  // namespace rehearse::importers
