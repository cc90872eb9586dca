#include "sim/scenario/scenario_file.h"

#include "hwmodels/collective/parameters.h"
#include "hwmodels/device/gpu.h"
#include "hwmodels/topology/cluster.h"
#include "sim/core/suggestion.h"
#include "sim/importers/import_file.h"
#include "strategies/data/catalog.h"
#include "strategies/framework/names.h"
#include "strategies/framework/profile.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/pipeline/catalog.h"

namespace rehearse::scenario {

using config::at_least;
using config::between;
using config::positive;
namespace st = strategies;

namespace {

const config::Fields<MeasuredBandwidthSection>& measured_bandwidth_fields() {
  using T = MeasuredBandwidthSection;
  static const config::Fields<T> table{
      config::rate("all_reduce", &T::all_reduce, "of all GPUs of the job"),
      config::rate("all_gather", &T::all_gather, "of all GPUs of the job"),
      config::rate("reduce_scatter", &T::reduce_scatter, "of all GPUs of the job"),
      config::rate("all_reduce_node", &T::all_reduce_node, "of the GPUs of one node"),
      config::rate("all_gather_node", &T::all_gather_node, "of the GPUs of one node"),
      config::rate("reduce_scatter_node", &T::reduce_scatter_node, "of the GPUs of one node"),
      config::bytes("message", &T::message, "size of the message that was measured", positive),
      config::boolean("lists", &T::lists, "gathered into, and scattered from, lists of tensors (PyTorch's all_gather), which copies the message once more"),
  };
  return table;
}

const config::Fields<ClusterSection>& cluster_fields() {
  static const config::Fields<ClusterSection> table{
      config::named_or_file("node", &ClusterSection::node, "node design (hardware list)", "node design", hwmodels::node_names).required(),
      config::integer("nodes", &ClusterSection::nodes, "number of nodes", between(1, 100000)),
      config::named_or_file("fabric", &ClusterSection::fabric, "network between nodes; a file: a graph written by hand", "fabric", hwmodels::fabric_names),
      config::named_or_file("gpu", &ClusterSection::gpu, "GPU in each slot, if not the design's own", "GPU", hwmodels::gpu_names),
      config::integer("gpus_per_node", &ClusterSection::gpus_per_node, "GPUs used on each node, if not all", between(1, 72)),
      config::frequency("gpu_clock", &ClusterSection::gpu_clock, "clock that the GPUs are locked at (nvidia-smi --lock-gpu-clocks); the power limit may hold them lower", positive),
      config::power("gpu_power", &ClusterSection::gpu_power, "what each GPU may draw (nvidia-smi --power-limit), if not as much as its node lets it", positive),
      config::number("oversubscription", &ClusterSection::oversubscription, "bandwidth down : bandwidth up of a leaf switch", at_least(1)),
      config::fraction("nic_efficiency", &ClusterSection::nic_efficiency, "achieved fraction of the NICs' line rate", between(0.01, 1)),
      config::integer("nics", &ClusterSection::nics, "network cards of a node for its GPUs' traffic, if not as many as the design has", between(1, 1024)),
      config::rate("nic_bandwidth", &ClusterSection::nic_bandwidth, "line rate of one of them in one direction, if not the design's", positive),
      config::nested("measured_bandwidth", &ClusterSection::measured_bandwidth, "bus bandwidths that nccl-tests, or the job itself, measured on these machines: collectives of such groups take their time from them", measured_bandwidth_fields()),
      config::named_or_file("collectives", &ClusterSection::collectives, "measured constants of NCCL; a file: what calibrate fit wrote", "set of constants", hwmodels::collective_parameter_names),
      config::boolean("nvls", &ClusterSection::nvls, "NVLink SHARP may be used (NCCL_NVLS_ENABLE)"),
      config::named("backend", &ClusterSection::backend, "communication library: nccl, gloo or mpi", "backend", [] { return std::vector<std::string>{"nccl", "gloo", "mpi"}; }),
  };
  return table;
}

/// A field whose words the schema and the reference list.
template <typename T, typename E>
config::Field<T> listing(const Catalog<E>& catalog, config::Field<T> field) {
  std::string names;
  for (const auto& entry : catalog.entries()) {
    names += (names.empty() ? "\"" : ", \"") + entry.name + "\"";
    field.info.type.choices.emplace_back(entry.name, entry.summary);
  }
  field.info.type.schema = "{\"enum\": [" + names + "]}";
  return field;
}

template <typename T, typename E>
config::Field<T> from_catalog(const char* name, E T::*member, const char* doc, const Catalog<E>& catalog) {
  return listing(catalog, config::custom<T>(name, doc, doc, "{}", [member, &catalog](const config::Value& v, T& object, config::FieldReader& reader) {
    const std::string* word = reader.scalar(v, "a name", true);
    if (word == nullptr) return;
    if (const E* found = catalog.find(*word)) {
      object.*member = *found;
      return;
    }
    std::string known;
    for (const std::string& n : catalog.names()) known += (known.empty() ? "" : ", ") + n;
    reader.complain(v, "there is no " + catalog.what() + " '" + *word + "'", did_you_mean(*word, catalog.names(), "Known: " + known));
  }));
}

/// A key that import_section.cpp takes away before this table is read; it stands here for the schema and the reference.
config::Field<st::Training> read_by_import(const char* name, const char* doc, const char* words, std::string schema) {
  return config::custom<st::Training>(name, doc, words, std::move(schema), [](const config::Value&, st::Training&, config::FieldReader&) {});
}

std::string import_formats() {
  std::string names;
  for (const std::string& n : importers::formats().names()) names += (names.empty() ? "\"" : ", \"") + n + "\"";
  return "{\"enum\": [" + names + "]}";
}

const config::Fields<st::Training>& training_fields() {
  using T = st::Training;
  static const config::Fields<T> table{
      read_by_import("from", "read the other keys of the scenario from a file of this framework: deepspeed, megatron, torchtitan, accelerate; keys written in the scenario win", "choice", import_formats()),
      read_by_import("path", "the file to read, relative to this one", "text", R"({"type": "string"})"),
      read_by_import("version", "version of the framework, for defaults that changed; default: the newest known", "text", R"({"type": ["string", "number"]})"),
      read_by_import("without", "keys of that file to leave out, with all below them: [zero_optimization.offload_optimizer]", "list of text", R"({"type": "array", "items": {"type": "string"}})"),
      read_by_import("variables", "variables of that script which come from outside, and its arguments by their numbers: {WORLD_SIZE: 4, 1: 8B}", "map of text", R"({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}})"),
      read_by_import("strict", "keys of that file that are not understood are errors", "true or false", R"({"type": "boolean"})"),
      config::integer("sequence_length", &T::sequence_length, "tokens per sample", between(1, 1 << 26)).required_unless("from"),
      config::integer("document_length", &T::document_length, "samples are packed documents of this many tokens, and attention stays within each (variable-length kernels); where lengths differ: mean of their squares over their mean", between(1, 1 << 26)),
      config::number("documents_per_sample", &T::documents_per_sample, "packed documents of a sample; default: as many of document_length as it takes", at_least(1)),
      config::integer("global_batch_size", &T::global_batch_size, "samples per optimizer step", between(1, 1e12)).required_unless("from"),
      config::integer("micro_batch_size", &T::micro_batch_size, "samples per data-parallel rank per micro-step", between(1, 1e9)),
      config::choice("precision", &T::precision, "number format of matrix products",
                     {{"fp32", st::Precision::fp32, "32 bit throughout"}, {"tf32", st::Precision::tf32, "fp32 in memory, TF32 products"}, {"fp16", st::Precision::fp16, "with loss scaling"},
                      {"bf16", st::Precision::bf16, ""}, {"fp8", st::Precision::fp8, "8-bit products, tensor-wide scales"},
                      {"fp8-rowwise", st::Precision::fp8_rowwise, "8-bit products, a scale per row of each operand (torchao)"}, {"mxfp8", st::Precision::mxfp8, "8-bit products, scales per 32"},
                      {"nvfp4", st::Precision::nvfp4, "4-bit products, scales per 16"}}),
      config::integer("first_layers_16bit", &T::first_layers_16bit, "with fp8, mxfp8 or nvfp4: layers at the start whose products stay in 16 bit", between(0, 10000)),
      config::integer("last_layers_16bit", &T::last_layers_16bit, "the same at the end", between(0, 10000)),
      from_catalog("optimizer", &T::optimizer, "parameter update", st::optimizers()).shown_default("adamw"),
      config::choice("optimizer_state_dtype", &T::optimizer_state_dtype, "moments; default: the framework's (precision-aware optimizers have 16 bit)", {{"fp32", DType::fp32, ""}, {"bf16", DType::bf16, ""}, {"fp16", DType::fp16, ""}}),
      config::choice("phase", &T::phase, "what one step is", {{"training", st::StepKind::training, "forward, backward, update"}, {"evaluation", st::StepKind::evaluation, "forward only, beside the states of training"}}),
      config::named_or_file("framework", &T::framework, "how a step is carried out: megatron-core, torchtitan, deepspeed, ...; `framework list` shows all", "framework profile", st::profile_names, st::profiles_meant_by).required_unless("from"),
      config::boolean("compile", &T::compile, "torch.compile on each layer; default: the framework's habit"),
      config::boolean("cuda_graph", &T::cuda_graph, "the whole step is replayed from one CUDA graph"),
      config::text("cuda_graph_modules", &T::cuda_graph_modules, "parts of each layer that are replayed from graphs: attn, mlp, moe_router, moe_preprocess, moe"),
      config::integer("collection_interval", &T::collection_interval, "Python collects its garbage every so many steps, between which it may not (Megatron's --manual-gc-interval); the host stops meanwhile", between(1, 1e9)),
      config::boolean("launch_blocking", &T::launch_blocking, "the job runs under CUDA_LAUNCH_BLOCKING=1: the host thread waits for each kernel that it launches, NCCL's included"),
      config::boolean("serial_collectives", &T::serial_collectives, "compute that is issued after a collective waits for it: CUDA_DEVICE_MAX_CONNECTIONS=1 with TORCH_NCCL_ENABLE_TIMING=1"),
      config::named("attention", &T::attention, "attention kernel, flash or unfused; default: the framework's", "attention kind", [] { return std::vector<std::string>{"flash", "unfused"}; }),
      config::choice("attention_kernel", &T::attention_kernel, "which kernel fused attention is; default: the framework's", st::attention_kernels()),
      config::boolean("multi_token_prediction", &T::multi_token_prediction, "the model's multi-token-prediction layers are trained as well"),
      config::boolean("clip_gradients", &T::clip_gradients, "the gradient norm is computed and clipped"),
      config::choice("cross_entropy", &T::cross_entropy, "how the loss treats the logits; default: the framework's habit", st::loss_kinds()),
      config::integer("loss_chunks", &T::loss_chunks, "cross_entropy chunked-linear (torchtitan): pieces of the sequence whose logits are there at once", positive),
      config::boolean("fp8_parameters", &T::fp8_parameters, "with fp8 or mxfp8 in Transformer Engine's layers: weights are kept, and fp8 ones gathered, in 8 bits (Megatron's --fp8-param-gather); default: the framework's habit"),
      config::boolean("fp8_attention", &T::fp8_attention, "with fp8, mxfp8 or nvfp4 in Transformer Engine's layers: attention takes queries, keys and values in 8 bits (Megatron's --fp8-dot-product-attention)"),
      config::boolean("fp8_head", &T::fp8_head, "with mxfp8 in Transformer Engine's layers: the output layer multiplies in 8 bits as well (Megatron's fp8_output_proj)"),
      config::boolean("fused_rope", &T::fused_rope, "rotary embedding is a kernel of its own (false: PyTorch's operators, as Megatron's --no-rope-fusion, and with YaRN); default: the framework's habit"),
      config::boolean("fused_gradient_accumulation", &T::fused_gradient_accumulation, "weight-gradient products add into the kept gradient (false: Megatron's --no-gradient-accumulation-fusion); default: the framework's habit"),
      config::boolean("transformer_engine", &T::transformer_engine, "false: the framework's own layers (Megatron's --transformer-impl local); default: the framework's habit"),
  };
  return table;
}

const config::Fields<ParallelismSection>& parallelism_fields() {
  using T = ParallelismSection;
  static const config::Fields<T> table{
      config::integer("tensor", &T::tensor, "tensor-parallel degree", between(1, 1024)),
      config::integer("context", &T::context, "context-parallel degree", between(1, 1024)),
      config::choice("context_kind", &T::context_kind, "how context-parallel ranks attend to one another's tokens; default: the framework's", st::context_kinds()),
      config::integer("context_ulysses", &T::context_ulysses, "ulysses-ring: neighbours that exchange heads; they form rings with the others", between(1, 1024)),
      config::integer("pipeline", &T::pipeline, "pipeline stages", between(1, 1024)),
      config::integer("expert", &T::expert, "expert-parallel degree", between(1, 4096)),
      config::integer("expert_tensor", &T::expert_tensor, "tensor-parallel degree of experts", between(1, 1024)),
      config::integer_or_auto("data", &T::data, "data-parallel degree; auto: what the other degrees leave", between(1, 1 << 20)),
      config::integer("data_shard", &T::data_shard, "data-parallel ranks that share sharded states (hybrid sharding)", between(1, 1 << 20)).word("all"),
      config::boolean("sequence_parallel", &T::sequence_parallel, "Megatron sequence parallelism beside tensor parallelism"),
      config::boolean("overlap_tensor", &T::overlap_tensor, "its collectives travel in pieces under the matrix products (Megatron's tp_comm_overlap, torchtitan's asynchronous tensor parallelism); default: the framework's habit"),
      config::text("order", &T::order, "how ranks are laid on nodes, fastest first; default tp-cp-ep-dp-pp"),
  };
  return table;
}

const config::Fields<st::DataParallel>& data_parallel_fields() {
  using T = st::DataParallel;
  static const config::Fields<T> table{
      from_catalog("kind", &T::kind, "what data-parallel ranks keep and exchange; default: ddp where there are several, else none", st::data_parallel_kinds()),
      config::choice("gather", &T::gather, "data-parallel: what the first GPU gathers from the others", {{"logits", st::Gathered::logits, "the model's outputs; it has the loss alone"}, {"loss", st::Gathered::loss, "the loss that each GPU has made"}}),
      config::boolean("overlap_gradient_reduce", &T::overlap_gradient_reduce, "gradients are reduced under backward; zero3: parameters are fetched under compute too (DeepSpeed's overlap_comm); default: the framework's habit, zero3: true"),
      config::boolean("overlap_parameter_gather", &T::overlap_parameter_gather, "parameters are gathered under the next forward"),
      config::bytes("bucket", &T::bucket, "gradient bucket, as sent", at_least(1024)),
      config::boolean("reshard_after_forward", &T::reshard_after_forward, "FSDP: parameters are dropped after forward (ZeRO-3) or kept (ZeRO-2 like); default: dropped, but kept under pipeline stages"),
      config::choice("fp8_gather", &T::fp8_gather, "fsdp2 with fp8 products of torchao: weights are cast on their shards and gathered in 8 bits (enable_fsdp_float8_all_gather)",
                     {{"none", st::NarrowGather::none, "gathered in 16 bits"}, {"scaled-by-weight", st::NarrowGather::scaled_by_weight, "each gather reduces its weights' maxima, one by one"},
                      {"scaled-ahead", st::NarrowGather::scaled_ahead, "all maxima are reduced at once after the optimizer (precompute_float8_dynamic_scale_for_fsdp)"}}),
      config::boolean("gather_under_update", &T::gather_under_update, "distributed-optimizer under interleaved stages: the first model chunk is updated first, and its parameters gathered while the others are updated (Megatron's --overlap-param-gather-with-optimizer-step); default: false"),
      config::boolean("double_buffer", &T::double_buffer, "megatron-fsdp: gathered layers, and gradients under reduction, lie in two lasting buffers each (fsdp_double_buffer); default: false"),
      config::boolean("registered_buffers", &T::registered_buffers, "distributed-optimizer, megatron-fsdp: NCCL gathers from and scatters into registered buffers, and holds fewer SMs (nccl_ub; megatron-fsdp: with double buffers); default: false"),
      config::integer("prefetch_bucket", &T::prefetch_bucket, "zero3: elements that are gathered ahead of their use (stage3_prefetch_bucket_size); default: 50000000", config::non_negative),
      config::integer("max_live_parameters", &T::max_live_parameters, "zero3: gathered elements beyond which none are gathered ahead (stage3_max_live_parameters); default: 1000000000", config::non_negative),
      config::integer("max_reuse_distance", &T::max_reuse_distance, "zero3: parameters used again within so many elements stay gathered (stage3_max_reuse_distance); default: 1000000000", config::non_negative),
      config::integer("persistence_threshold", &T::persistence_threshold, "zero3: parameters of up to so many elements stay gathered (stage3_param_persistence_threshold); default: 100000", config::non_negative),
      config::integer("sub_group", &T::sub_group, "zero3: elements of a rank that the optimizer updates at a time (sub_group_size); default: 1000000000", config::positive),
      config::boolean("memory_efficient_linear", &T::memory_efficient_linear, "zero3: linear layers save no gathered weight for backward; false: PyTorch's own, which do (DeepSpeed's key of the same name; true by default)"),
      config::integer("secondary_partition", &T::secondary_partition, "zero3: so many neighbouring ranks hold the weights once more, shared among them, and backward gathers from there (ZeRO++ hpZ, zero_hpz_partition_size; usually the GPUs of a node); 1: none do", between(1, 1 << 20)),
      config::boolean("quantized_weights", &T::quantized_weights, "zero3: weights are gathered in 8 bit (ZeRO++ qwZ, zero_quantized_weights)"),
      config::boolean("quantized_gradients", &T::quantized_gradients, "zero3: gradients are reduced by 4-bit all-to-alls, inside nodes and then between them (ZeRO++ qgZ, zero_quantized_gradients)"),
      config::choice("parameter_dtype", &T::parameter_dtype, "mixed-precision policy: gathered parameters", {{"fp32", DType::fp32, ""}, {"bf16", DType::bf16, ""}, {"fp16", DType::fp16, ""}}),
      config::choice("reduce_dtype", &T::reduce_dtype, "mixed-precision policy: gradients on the wire", {{"fp32", DType::fp32, ""}, {"bf16", DType::bf16, ""}, {"fp16", DType::fp16, ""}}),
      config::choice("gradient_dtype", &T::gradient_dtype, "gradients as they are accumulated over micro-batches; default: the framework's habit", {{"fp32", DType::fp32, ""}, {"bf16", DType::bf16, ""}, {"fp16", DType::fp16, ""}}),
  };
  return table;
}

const config::Fields<st::Pipeline>& pipeline_fields() {
  using T = st::Pipeline;
  static const config::Fields<T> table{
      listing(st::kPipelineSchedules, config::named("schedule", &T::schedule, "order of forwards and backwards", "pipeline schedule", [] { return st::kPipelineSchedules.names(); })),
      config::text("table", &T::table_file, "a schedule of your own: a CSV with a row per rank and a cell per action, as PyTorch writes it; takes the place of schedule"),
      config::boolean("overlap_messages", &T::overlap_messages, "messages of interleaved-1f1b travel under the passes (Megatron's overlap_p2p_comm); default: the framework's habit"),
      config::boolean("overlap_warmup_flush", &T::overlap_warmup_flush, "interleaved-1f1b: messages of the warm-up and the flush travel under the passes too (Megatron's --overlap-p2p-communication-warmup-flush)"),
      config::integer("group_size", &T::group_size, "interleaved-1f1b: micro-batches that go through a model chunk before the next chunk's turn (Megatron's --microbatch-group-size-per-virtual-pipeline-stage); default: as many as stages", between(1, 65536)),
      config::boolean("post_validation", &T::post_validation, "each stage's optimizer goes on with the norm of the stages before it (zero bubble)"),
      config::integer("virtual_stages", &T::virtual_stages, "model chunks per rank (interleaving)", between(1, 64)),
      config::integer("accumulation_steps", &T::accumulation_steps, "times per step that the schedule runs and drains, each with its part of the micro-batches (gradient accumulation around PyTorch's schedules: torchtitan, NeMo AutoModel)", between(1, 10000)),
      config::integer("layers_per_stage", &T::layers_per_stage, "layers of each virtual stage; default: even", config::non_negative),
      config::integer("deferred_head_gradients", &T::deferred_head_gradients, "micro-batches whose weight gradient of the output layer is made after all backward passes (Megatron's --defer-embedding-wgrad-compute, --wgrad-deferral-limit); 0: all of them; default: none", config::non_negative),
  };
  return table;
}

const config::Fields<st::Offload>& offload_fields() {
  using T = st::Offload;
  static const config::Fields<T> table{
      config::choice("optimizer", &T::optimizer, "optimizer states, fp32 copy and update", {{"none", st::MemoryTier::device, "on the GPU"}, {"cpu", st::MemoryTier::cpu, "in host memory"}, {"nvme", st::MemoryTier::nvme, "on local disks"}}),
      config::choice("parameters", &T::parameters, "shards of parameters between uses (zero3, FSDP)", {{"none", st::MemoryTier::device, "on the GPU"}, {"cpu", st::MemoryTier::cpu, "in host memory"}, {"nvme", st::MemoryTier::nvme, "on local disks"}}),
      config::choice("activations", &T::activations, "what layers keep for backward: recomputed ones their inputs, others all that they save", {{"none", st::MemoryTier::device, "on the GPU"}, {"cpu", st::MemoryTier::cpu, "in host memory"}}),
      config::integer("activation_layers", &T::activation_layers, "layers of each pipeline stage's chunk whose activations are offloaded, from the first on (Megatron's --cpu-offloading-num-layers), where layers are not recomputed; 0: all", config::non_negative),
      config::text("modules", &T::modules, "modules whose saved tensors wait in host memory, group by group (Megatron's --fine-grained-activation-offloading, --offload-modules): attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act, fused_group_mlp"),
      config::integer("least_elements", &T::least_elements, "modules: elements of the smallest tensor that is offloaded (Megatron's --min-offloaded-tensor-size); default: 1048576", config::non_negative),
      config::integer("in_flight", &T::in_flight, "modules: copies of one module that compute does not wait for (Megatron's --fine-grained-offloading-max-inflight-offloads); default: all", between(0, 10000)),
      config::boolean("pinned", &T::pinned, "host buffers are page-locked"),
      config::boolean("pipelined", &T::pipelined, "nvme: reading and writing overlap with the update (pipeline_read, pipeline_write)"),
      config::fraction("ratio", &T::ratio, "share of the optimizer that is offloaded (Twin-Flow)", between(0.01, 1)),
      config::integer("threads", &T::threads, "threads of each process on the CPU (OMP_NUM_THREADS); default: one under torchrun and accelerate, one per core under DeepSpeed's launcher", between(1, 1024)),
      config::integer("buffers", &T::buffers, "nvme: pinned buffers, each for a piece (data_parallel.sub_group) of one of the optimizer's states (buffer_count); default: one for each of parameters, gradients and moments, three where pieces are pipelined", between(1, 1024)),
      config::integer("max_in_cpu", &T::max_in_cpu, "nvme: elements of each rank's parameters that stay in host memory, in whole pieces (DeepSpeed's key of the same name)", config::non_negative),
  };
  return table;
}

const config::Fields<st::DeviceMap>& device_map_fields() {
  using T = st::DeviceMap;
  static const config::Fields<T> table{
      config::text("cpu", &T::cpu, "weights by part: embedding, head, layers.8-31, layers.8-31.mlp, experts, ..."),
      config::bytes("gpu_memory", &T::gpu_memory, "weights of each GPU: layers in order until this is full, the rest waits in host memory (accelerate's max_memory)", positive),
  };
  return table;
}

const config::Fields<st::Memory>& memory_fields() {
  using T = st::Memory;
  static const config::Fields<T> table{
      config::choice("recompute", &T::recompute, "activations that backward makes again", {{"none", st::Recompute::none, "keep all"}, {"selective", st::Recompute::selective, "the framework's cheap ones"},
                                                                                         {"full", st::Recompute::full, "whole layers"}}),
      config::integer("recompute_every", &T::recompute_every, "full: every n-th layer", positive),
      config::integer("recompute_span", &T::recompute_span, "full: so many consecutive layers under one checkpoint, which keeps its first one's input and makes all of them again at once (Megatron's uniform method)", positive),
      config::integer("recompute_layers", &T::recompute_layers, "full: the first n layers of each stage, or of each of its chunks, only (Megatron's block method); default: all", positive),
      config::nested("offload", &T::offload, "what waits in host memory or on disks", offload_fields()),
      config::nested("device_map", &T::device_map, "frozen weights that wait in host memory and are copied to the GPU for each use (accelerate's device_map)", device_map_fields()),
      config::boolean("paged_optimizer", &T::paged_optimizer, "optimizer states in CUDA's unified memory, moved over PCIe where the GPU is full (bitsandbytes' paged optimizers)"),
      config::boolean("optimizer_in_backward", &T::optimizer_in_backward, "weights are updated, and their gradients freed, as soon as their layer's backward is over (torchtune's optimizer_in_bwd)"),
      config::boolean("contiguous_checkpoints", &T::contiguous_checkpoints, "DeepSpeed's contiguous_memory_optimization: buffers for all inputs of recomputed layers are made together"),
      config::integer("number_checkpoints", &T::number_checkpoints, "contiguous_checkpoints: how many buffers; default: one for each recomputed layer", config::non_negative),
      config::boolean("synchronize_checkpoints", &T::synchronize_checkpoints, "the host waits for the device around each recomputed layer (DeepSpeed's synchronize_checkpoint_boundary)"),
      config::boolean("expandable_segments", &T::expandable_segments, "segments of PyTorch's caching allocator grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True); default: the framework's habit"),
      config::boolean("fp8_activation_inputs", &T::fp8_activation_inputs, "the input of a fused SwiGLU waits for backward in 8 bits (Megatron's --activation-func-fp8-input-store); default: the framework's habit"),
      config::boolean("tiled_mlp", &T::tiled_mlp, "dense MLPs take a piece of the sequence at a time and are made again in backward (DeepSpeed's TiledMLP)"),
      config::integer("tiled_mlp_num_shards", &T::tiled_mlp_num_shards, "tiled_mlp: how many pieces; default: sequence over hidden size, rounded up", positive),
      config::integer("sequence_chunk", &T::sequence_chunk, "tokens of the whole sequence that attention, MLP and loss take at a time; queries, keys and values of the others wait in host memory (DeepSpeed's FPDT, --ds-sequence-parallel-fpdt-chunk-size)", positive),
      config::boolean("partition_activations", &T::partition_activations, "each tensor rank keeps a piece of a recomputed layer's input"),
      config::text("recompute_modules", &T::recompute_modules, "selective: core_attn, layernorm, latent_layernorm, mlp, mlp_act, mla_up_proj, moe, moe_act, shared_experts, shared_experts_act, or operators (with grouped_products: experts' too are kept), or products, weight_products, attention_products, attention_projections or qkv_products (all else is made again)"),
  };
  return table;
}

const config::Fields<st::Tuning>& tuning_fields() {
  using T = st::Tuning;
  static const config::Fields<T> table{
      config::choice("kind", &T::kind, "what is trained",
                     {{"full", st::TuningKind::full, "every weight"}, {"lora", st::TuningKind::lora, "low-rank adapters"}, {"qlora", st::TuningKind::qlora, "low-rank adapters over 4-bit weights"},
                      {"frozen", st::TuningKind::frozen, "only what `trainable` names"}, {"adapter", st::TuningKind::adapter, "LLaMA-Adapter: a learned prompt in attention (LitGPT)"},
                      {"adapter-v2", st::TuningKind::adapter_v2, "the same, norms, and a scale and bias on every linear layer"}}).required(),
      config::integer("rank", &T::rank, "of an adapter", between(1, 65536)),
      config::number("alpha", &T::alpha, "scale of an adapter's output; costs nothing"),
      config::fraction("dropout", &T::dropout, "of an adapter's input", between(0, 0.99)),
      config::text("targets", &T::targets, "linear layers with adapters: all-linear, attention, mlp, q_proj, ...; default q_proj and v_proj"),
      config::text("trainable", &T::trainable, "weights that are trained themselves: embedding, head, norms, router, layers.0-5, layers.0-5.mlp, ..."),
      config::boolean("quantized", &T::quantized, "linear weights that are not trained are stored in 4 bits; kind qlora says so itself"),
      config::choice("format", &T::format, "of 4-bit weights", {{"nf4", st::FourBit::nf4, "bitsandbytes"}, {"gptq", st::FourBit::gptq, "AutoGPTQ without its kernels, in groups of 128"}}),
      config::boolean("double_quantization", &T::double_quantization, "nf4: the scales are quantised as well"),
      config::boolean("decomposed", &T::decomposed, "lora, qlora: adapters change a weight's direction, its magnitude is trained beside them (DoRA)"),
  };
  return table;
}

const config::Fields<st::Routing>& routing_fields() {
  using T = st::Routing;
  static const config::Fields<T> table{
      config::choice("distribution", &T::distribution, "how many tokens each expert gets; every layer draws its own popular experts",
                     {{"balanced", st::RoutingKind::balanced, "all the same"}, {"zipf", st::RoutingKind::zipf, "the k-th most popular expert gets k^-skew of what the first gets"},
                      {"dirichlet", st::RoutingKind::dirichlet, "shares drawn with a concentration"},
                      {"round-robin", st::RoutingKind::round_robin, "all the same, token after token the next experts in their order, so that a token visits few ranks (NeMo AutoModel's fake_balanced_gate)"}}).required(),
      config::number("skew", &T::skew, "zipf: 0 is balanced, 1 is Zipf's law", between(0, 16)),
      config::number("concentration", &T::concentration, "dirichlet: of every expert; shares vary by about 1 / sqrt(concentration)", between(0.001, 1e9)),
      config::number("batch_concentration", &T::batch_concentration, "micro-batches differ: an expert's share varies around its own by about 1 / sqrt(batch_concentration) of the mean; default: all are alike", between(0.001, 1e9)),
      config::integer("batch_draws", &T::batch_draws, "micro-batches drawn with batch_concentration; they come in turn", between(1, 1000)),
      config::integer("seed", &T::seed, "another seed, other popular experts", between(0, 9e15)),
  };
  return table;
}

const config::Fields<st::ExpertRouting>& experts_fields() {
  using T = st::ExpertRouting;
  static const config::Fields<T> table{
      config::choice("dispatcher", &T::dispatcher, "how tokens reach their experts; default: the framework's", st::dispatchers()),
      config::number("capacity_factor", &T::capacity_factor, "slots per expert over the mean, tokens beyond are dropped; default: none are", at_least(0.01)),
      config::boolean("pad_to_capacity", &T::pad_to_capacity, "empty slots are computed as well"),
      config::number("imbalance", &T::imbalance, "load of the fullest expert rank over the mean; every rank is taken to be as full", at_least(1)),
      config::nested("routing", &T::routing, "routing as a distribution: ranks with popular experts have more to do and to keep", routing_fields()),
      config::boolean("overlap_shared", &T::overlap_shared, "shared experts run while tokens travel; default: the framework's habit"),
      config::boolean("fused_mlp", &T::fused_mlp, "activation, biases and quantisation inside the experts' products; default: the framework's habit"),
      config::boolean("fused_router", &T::fused_router, "the router's scores, map and balancing loss are a few kernels (Megatron's --moe-router-fusion), not PyTorch's operators; default: the framework's habit"),
      config::boolean("fused_permute", &T::fused_permute, "tokens are copied for their experts and summed by kernels of their own (Megatron's --moe-permute-fusion), not PyTorch's operators; default: the framework's habit"),
      config::boolean("fused_index_map", &T::fused_index_map, "DeepEP: the list of experts that arrives with a token becomes a map in one kernel, without the host waiting (Megatron's --enable-experimental); default: the framework's habit"),
      config::boolean("mask_products", &T::mask_products, "tokens reach their slots, and outputs their tokens, by products with one-hot masks (GShard; DeepSpeed without Tutel, MaxText's sparse_matmul: false); default: the framework's habit"),
      config::boolean("overlap_exchange", &T::overlap_exchange, "tokens of one micro-batch travel while another's backward is computed (Megatron's --overlap-moe-expert-parallel-comm)"),
      config::integer("dispatch_sms", &T::dispatch_sms, "SMs that DeepEP's or HybridEP's kernels hold (Megatron's --moe-deepep-num-sms, --moe-hybridep-num-sms); default: what the library takes, 20 and 16", between(1, 1024)),
      config::number("rank_capacity_factor", &T::rank_capacity_factor, "fused_mlp: slots that a rank's buffers hold, over the mean, as whole-step CUDA graphs need it (Megatron's --moe-expert-rank-capacity-factor); default: those that come", at_least(1)),
      config::boolean("paged_stash", &T::paged_stash, "what fused experts keep for backward is copied into pages of a common buffer after forward, and back before backward (Megatron's --moe-paged-stash)"),
  };
  return table;
}

}  // namespace

const config::Fields<ScenarioFile>& scenario_fields() {
  using T = ScenarioFile;
  static const config::Fields<T> table{
      config::text("title", &T::title, "one line that says what this stands for"),
      config::custom<T>("model", "a preset's name, one with keys of its own ({preset: llama-3-8b, layers: 8}), a Hugging Face config.json or its folder, or shapes {layers, hidden, heads, vocab, ...} (section model of the reference)", "name or map", "{\"type\": [\"string\", \"object\"]}",
                        [](const config::Value& v, T& file, config::FieldReader&) { file.model.inline_model = v; }).required_unless("training.from"),
      config::nested("cluster", &T::cluster, "the machines", cluster_fields()).required(),
      config::nested("training", &T::training, "batch, precision, framework", training_fields()).required(),
      config::nested("parallelism", &T::parallelism, "how many ways each thing is split", parallelism_fields()),
      config::nested("data_parallel", &T::data_parallel, "data-parallel strategy", data_parallel_fields()),
      config::nested("pipeline", &T::pipeline, "pipeline schedule", pipeline_fields()),
      config::nested("experts", &T::experts, "mixture of experts: what routing means for ranks", experts_fields()),
      config::nested("memory", &T::memory, "what is traded for memory", memory_fields()),
      config::nested("tuning", &T::tuning, "fine-tuning: adapters, frozen parts", tuning_fields()),
      config::custom<T>("profile", "keys of the framework profile (`framework show NAME`) in place of those that training.framework has, for a version or a machine that differs", "a map", "{\"type\": \"object\"}",
                        [](const config::Value& v, T& file, config::FieldReader&) { file.profile = v; }),
      config::custom<T>("sweep", "dotted key -> list of values: every combination is simulated by `sweep`", "a map", "{\"type\": \"object\"}",
                        [](const config::Value& v, T& file, config::FieldReader& reader) {
                          config::read_map(v, reader, [&](const config::Value::Entry& e) {
                            if (!e.value.is_list() || e.value.items().empty()) {
                              reader.complain(e.value, "a swept key needs a list of values", "Write [value, value, ...]");
                              return;
                            }
                            file.sweep.emplace_back(e.key, e.value.items());
                          });
                        }),
  };
  return table;
}

void amend_strategy(st::Strategy& strategy, const config::Value& sections) {
  using S = st::Strategy;
  static const config::Fields<S> table{
      config::nested("training", &S::training, "batch, precision, framework", training_fields()),
      config::nested("data_parallel", &S::data_parallel, "data-parallel strategy", data_parallel_fields()),
      config::nested("pipeline", &S::pipeline, "pipeline schedule", pipeline_fields()),
      config::nested("experts", &S::experts, "mixture of experts", experts_fields()),
      config::nested("memory", &S::memory, "what is traded for memory", memory_fields()),
      config::nested("tuning", &S::tuning, "fine-tuning", tuning_fields()),
  };
  config::Diagnostics problems;
  config::amend(strategy, sections, table, problems);
  config::throw_if_any(std::move(problems));
}

}  // namespace rehearse::scenario
