// What a user decides about training: batch, precision, how the work is spread out and what is traded for memory.
// Leaves out the model (sim/model), the machines (hwmodels) and how a framework carries it out (framework/profile.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/dtype.h"
#include "sim/core/units.h"
#include "sim/model/kernel.h"
#include "strategies/layout.h"
#include "strategies/pipeline/pass_times.h"

namespace rehearse::strategies {

enum class Optimizer : std::uint8_t { sgd, momentum, adamw, adamw_8bit, lion, adafactor, muon };
/// What one step is: training, or a pass without gradients beside the states of training.
enum class StepKind : std::uint8_t { training, evaluation };
enum class Precision : std::uint8_t {
  fp32, tf32, fp16, bf16,
  fp8,          // one scale per tensor
  fp8_rowwise,  // one scale per row of each operand (torchao's recipe "rowwise")
  mxfp8, nvfp4,
};

/// How data-parallel replicas keep parameters, gradients and optimizer states.
enum class DataParallelKind : std::uint8_t { none, one_process, ddp, zero1, zero2, zero3, fsdp1, fsdp2, distributed_optimizer, megatron_fsdp };

/// What one process gathers from its GPUs (torch.nn.DataParallel): the model's outputs, or losses that each GPU has made.
enum class Gathered : std::uint8_t { logits, loss };

/// How cross-entropy is carried out (framework/profile.h).
enum class LossKind : std::uint8_t;

enum class Recompute : std::uint8_t { none, selective, full };

struct Training {
  std::int64_t sequence_length = 0;
  std::int64_t document_length = 0;      // samples are packed documents of this length, and attention stays in each; 0: one document
  std::optional<double> documents_per_sample;   // their number; unset: as many of document_length as it takes
  std::int64_t documents() const { return documents_per_sample ? std::max<std::int64_t>(1, std::llround(*documents_per_sample)) : (sequence_length + attended_length() - 1) / attended_length(); }
  /// Tokens that attend to one another.
  std::int64_t attended_length() const { return document_length > 0 && document_length < sequence_length ? document_length : sequence_length; }
  std::int64_t global_batch_size = 0;    // samples per optimizer step
  std::int64_t micro_batch_size = 1;     // samples per data-parallel rank per micro-step
  Precision precision = Precision::bf16;
  Optimizer optimizer = Optimizer::adamw;
  std::optional<DType> optimizer_state_dtype;   // of elementwise moments; unset: the profile's
  StepKind phase = StepKind::training;
  std::string framework;                 // name of a framework profile
  std::optional<bool> compile;           // torch.compile; unset: the profile's habit
  std::optional<bool> cuda_graph;        // the whole step is replayed from one CUDA graph
  std::vector<std::string> cuda_graph_modules;  // parts of a layer that are (Megatron's names): attn, mlp, moe_router, moe_preprocess, moe
  std::int64_t collection_interval = 0;  // Python collects its garbage every so many steps, and not in between; 0: whenever it wants
  bool launch_blocking = false;          // CUDA_LAUNCH_BLOCKING=1: the host thread waits for each kernel
  bool serial_collectives = false;       // compute issued after a collective waits for it (one device queue, events that carry times)
  std::optional<std::string> attention;  // flash | unfused | ...; unset: the profile's habit
  std::optional<model::AttentionKernel> attention_kernel;  // which one is fused attention's; unset: the profile's
  bool clip_gradients = true;
  int first_layers_16bit = 0, last_layers_16bit = 0;  // of 8- and 4-bit precisions: layers at either end whose products stay in 16 bit
  bool in_16bit(int layer, int layers) const { return layer < first_layers_16bit || layer >= layers - last_layers_16bit; }
  bool multi_token_prediction = false;   // the model's further layers that predict later tokens are trained
  std::optional<LossKind> cross_entropy;            // these four unset: the profile's habit
  std::int64_t loss_chunks = 8;                     // of LossKind::chunked_linear: pieces of the sequence
  std::optional<bool> fp8_parameters;               // weights of 8-bit products are kept in 8 bits
  bool fp8_attention = false;                       // attention's operands are in 8 bits too, in the format of the products
  bool fp8_head = false;                            // the output layer's as well
  std::optional<bool> fused_rope;                   // rotary embedding is a kernel of its own; unset: the profile's habit
  std::optional<bool> fused_gradient_accumulation;  // the weight-gradient product adds into the kept gradient
  std::optional<bool> transformer_engine;           // false: the framework's own layers
};

/// How the ranks of a context group, each with its tokens, compute attention over the whole sequence.
enum class ContextKind : std::uint8_t {
  ring,          // keys and values go round, a block of scores per step (p2p)
  all_gather,    // keys and values are gathered
  ulysses,       // all-to-all: whole sequences of some heads, and back (a2a)
  ulysses_ring,  // heads are exchanged inside, rings outside (a2a+p2p, USP)
};

struct Parallelism {
  Degrees degrees;
  std::optional<ContextKind> context_kind;   // unset: the profile's habit
  bool sequence_parallel = false;
  std::optional<bool> overlap_tensor;    // its collectives in pieces under the products; unset: the profile's habit
  std::string order;                     // rank order, "" = the usual tp-cp-ep-dp-pp
};

/// FSDP2's weights of 8-bit products, cast on their shards and gathered in 8 bits (torchao's enable_fsdp_float8_all_gather).
enum class NarrowGather : std::uint8_t { none, scaled_by_weight, scaled_ahead };

struct DataParallel {
  DataParallelKind kind = DataParallelKind::ddp;
  Gathered gather = Gathered::logits;             // kind one_process
  std::optional<bool> overlap_gradient_reduce;    // unset: the profile's habit
  std::optional<bool> overlap_parameter_gather;
  std::optional<Bytes> bucket;                   // gradient bucket as sent; unset: the framework's default
  std::optional<bool> reshard_after_forward;      // FSDP: ZeRO-3 (true) or ZeRO-2 like (false); unset: true without pipeline stages (torchtitan)
  NarrowGather fp8_gather = NarrowGather::none;
  bool gather_under_update = false;               // distributed optimizer: the first model chunk is updated first, and gathered while the others are
  bool double_buffer = false;                     // Megatron-FSDP: gathered layers, and gradients under reduction, lie in two lasting buffers each
  bool registered_buffers = false;                // what is gathered and scattered lies in buffers that NCCL knows, whose kernels then hold fewer SMs
  std::optional<DType> parameter_dtype;           // mixed-precision policy; unset: from `precision` and the profile
  std::optional<DType> reduce_dtype;
  std::optional<DType> gradient_dtype;            // accumulated gradients; unset: the profile's
  // What DeepSpeed's ZeRO-3 keeps gathered, in elements; unset: its defaults.
  std::optional<std::int64_t> prefetch_bucket;        // fetched ahead (stage3_prefetch_bucket_size)
  std::optional<std::int64_t> max_live_parameters;    // nothing is fetched ahead beyond (stage3_max_live_parameters)
  std::optional<std::int64_t> max_reuse_distance;     // used again within: kept (stage3_max_reuse_distance)
  std::optional<std::int64_t> persistence_threshold;  // parameters up to this are not let go (stage3_param_persistence_threshold)
  std::optional<std::int64_t> sub_group;              // updated at a time (sub_group_size)
  bool memory_efficient_linear = true;                // false: PyTorch's linear, whose graph keeps the gathered weight until backward (memory_efficient_linear)
  // ZeRO++, on top of ZeRO-3
  std::optional<std::int64_t> secondary_partition;    // hpZ: neighbouring ranks that hold the weights once more (zero_hpz_partition_size); 1 or unset: none do
  bool quantized_weights = false;                     // qwZ: weights are gathered in 8 bit (zero_quantized_weights)
  bool quantized_gradients = false;                   // qgZ: gradients are reduced by 4-bit all-to-alls (zero_quantized_gradients)
};

struct Pipeline {
  std::string schedule = "1f1b";
  int virtual_stages = 1;                         // model chunks per rank
  int accumulation_steps = 1;                     // times per step that the schedule runs, and drains, each with its part of the micro-batches
  std::vector<std::int64_t> layers_per_stage;     // empty: even
  std::string table, table_file;                  // schedule "table": the text and where it was read
  PassTimes times;                                // of this job, where the schedule is searched for with them
  std::optional<bool> overlap_messages;           // of Megatron's interleaved schedule, under the passes; unset: they do
  bool overlap_warmup_flush = false;              // those of its warm-up and flush too
  int group_size = 0;                             // micro-batches that go through a chunk before the next one's turn (interleaved); 0: as many as stages
  std::optional<std::int64_t> deferred_head_gradients;  // micro-batches whose weight gradient of the output layer waits for the end of all backward passes; 0: all
  bool post_validation = false;                   // the optimizer does not wait for the norm of all stages (zero bubble)
};

/// Where something waits while it is not used.
enum class MemoryTier : std::uint8_t { device, cpu, nvme };

struct Offload {
  MemoryTier optimizer = MemoryTier::device;        // optimizer states, fp32 copy and update
  MemoryTier parameters = MemoryTier::device;       // shards of parameters between uses (ZeRO-3, FSDP)
  MemoryTier activations = MemoryTier::device;      // what layers keep for backward: recomputed ones their input
  int activation_layers = 0;              // of each chunk of layers that are not recomputed, from the first on; 0: all
  std::vector<std::string> modules;       // whose saved tensors wait in host memory, module by module (layer/offload_groups.h)
  std::int64_t least_elements = 1 << 20;  // modules: smaller tensors stay
  std::optional<int> in_flight;           // modules: copies of one module that compute does not wait for; unset: all
  bool pinned = true;                     // host buffers are page-locked
  bool pipelined = false;                 // nvme: reading and writing overlap with the update
  double ratio = 1;                       // share of the optimizer that is offloaded (Twin-Flow)
  std::optional<int> threads;             // of each process's work on the CPU (OMP_NUM_THREADS); unset: as the profile's launcher leaves it
  std::optional<int> buffers;             // nvme: pinned ones for pieces of the optimizer's states (buffer_count); unset: as few as do
  std::int64_t max_in_cpu = 1'000'000'000;   // nvme: elements of each rank's parameters that stay in host memory
};

/// Weights that wait in host memory and are copied to the GPU for each use (accelerate's device_map with "cpu").
struct DeviceMap {
  std::vector<std::string> cpu;                   // weights by part (tuning/tuning.h, Selector)
  std::optional<Bytes> gpu_memory;                // layers in order until these bytes are full; the rest waits (accelerate's max_memory)
  bool active() const { return !cpu.empty() || gpu_memory.has_value(); }
};

struct Memory {
  Recompute recompute = Recompute::none;
  Offload offload;
  DeviceMap device_map;
  bool paged_optimizer = false;                   // states in unified memory that the driver moves when the GPU is full (bitsandbytes)
  std::vector<bool> states_are_evicted;           // paged_optimizer, by rank class: other tensors leave them too little room
  bool optimizer_in_backward = false;             // weights are updated, and their gradients freed, as soon as their layer's backward is over
  bool partition_activations = false;             // each tensor rank keeps a piece of a recomputed layer's input
  bool contiguous_checkpoints = false;            // pieces are copied into buffers made together at the first one (DeepSpeed)
  int number_checkpoints = 0;                     // contiguous: how many buffers; 0: one for each recomputed layer
  bool synchronize_checkpoints = false;           // the host waits for the device around each recomputed layer (DeepSpeed)
  std::optional<bool> expandable_segments;        // PyTorch's caching allocator maps pages into segments that grow; unset: the profile's habit
  std::optional<bool> fp8_activation_inputs;      // SwiGLU's input waits for backward in 8 bits (Megatron's activation_func_fp8_input_store); unset: the profile's habit
  bool tiled_mlp = false;                         // dense MLPs a piece of the sequence at a time, made again in backward (DeepSpeed's TiledMLP)
  std::int64_t tiled_mlp_num_shards = 0;          // pieces; 0: none longer than the model is wide
  std::int64_t sequence_chunk = 0;                // tokens of the whole sequence that a layer takes at a time, the rest in host memory (DeepSpeed's FPDT); 0: all
  int recompute_every = 1;                        // every n-th layer when full
  int recompute_span = 1;                         // full: so many consecutive layers of a chunk under one checkpoint (Megatron's uniform method)
  int recompute_layers = 0;                       // full: the first n layers of each chunk only (Megatron's block method); 0: all
  std::vector<std::string> recompute_modules;     // selective: core_attn, mlp, layernorm, ...; empty: the profile's habit
};

/// What is trained of the model.
enum class TuningKind : std::uint8_t {
  full,    // every weight
  lora,    // low-rank adapters on some linear layers, and what `trainable` names
  qlora,   // the same over linear weights stored in 4 bits
  frozen,  // only what `trainable` names
  adapter,     // LLaMA-Adapter: a learned prompt that the upper layers attend to
  adapter_v2,  // the same, and a learned scale and bias on every linear layer; norms are trained
};

/// How linear weights of 4 bits are kept, and made whole for a product.
enum class FourBit : std::uint8_t {
  nf4,   // bitsandbytes: scales per block of 64; a kernel writes 16 bits for each product, forward and backward
  gptq,  // AutoGPTQ without its kernels: scales and zeros per group of 128 rows; PyTorch operators make 16 bits in forward, which backward keeps
};

struct Tuning {
  TuningKind kind = TuningKind::full;
  std::int64_t rank = 8;                  // of an adapter
  double alpha = 16;                      // scales an adapter's output: one multiplication, whatever its value
  double dropout = 0;                     // of an adapter's input
  std::vector<std::string> targets;       // linear layers that carry adapters; empty: queries and values
  std::vector<std::string> trainable;     // weights that are trained themselves (tuning/tuning.h, Selector)
  bool quantized = false;                 // linear weights are stored in 4 bits (kind qlora: always)
  FourBit format = FourBit::nf4;          // of 4-bit weights
  bool double_quantization = true;        // nf4: the scales of 4-bit weights are quantised as well
  bool decomposed = false;                // low-rank adapters change a weight's direction only, its magnitude is learned (DoRA)
  bool low_rank() const { return kind == TuningKind::lora || kind == TuningKind::qlora; }
  bool prompts() const { return kind == TuningKind::adapter || kind == TuningKind::adapter_v2; }
  bool four_bit() const { return quantized || kind == TuningKind::qlora; }
};

/// How tokens reach their experts.
enum class Dispatcher : std::uint8_t {
  all_to_all,     // a copy per chosen expert, NCCL all-to-all
  all_gather,     // every rank gets every token of the group and keeps what its experts want
  hierarchical,   // a copy per chosen expert, all-to-all inside nodes, then between the equal places of all nodes
  deepep,         // a copy per destination rank inside a node, per destination node between nodes
  hybridep,       // the same traffic; rows are padded for 8-bit products on the way
};

/// How the router spreads tokens over experts. Every layer has popular experts of its own, drawn with `seed`; micro-batches
/// may differ around them.
enum class RoutingKind : std::uint8_t { balanced, zipf, dirichlet, round_robin };
struct Routing {
  RoutingKind distribution = RoutingKind::balanced;
  std::optional<double> skew;            // zipf: the k-th most popular expert gets k^-skew
  std::optional<double> concentration;   // dirichlet: of each expert's share; the larger the more even
  std::optional<double> batch_concentration;   // of a micro-batch's shares around those; the larger the more alike they are
  std::int64_t batch_draws = 8;                // micro-batches drawn; they come in turn
  std::int64_t seed = 0;
  bool round_robin() const { return distribution == RoutingKind::round_robin; }
  bool even() const { return !batch_concentration && (distribution == RoutingKind::balanced || round_robin() || (distribution == RoutingKind::zipf && skew.value_or(0) == 0)); }
};

/// Mixture of experts: what the router's choices mean for ranks.
struct ExpertRouting {
  std::optional<Dispatcher> dispatcher;   // unset: the profile's habit
  double capacity_factor = 0;             // slots per expert over the mean, rest dropped; 0: dropless
  bool pad_to_capacity = false;           // empty slots are computed as well
  double imbalance = 1;                   // load of the fullest rank over the mean (dropless): every rank is as full
  Routing routing;                        // ranks as full as the experts they hold
  std::optional<bool> overlap_shared;     // shared experts run while tokens travel; unset: the profile's habit
  std::optional<bool> fused_mlp;          // both products of the experts, activation, biases and quantisation in fused kernels; unset: the profile's habit
  std::optional<bool> fused_router;       // Megatron: scores, map and balancing loss in Transformer Engine's kernels; unset: the profile's habit
  std::optional<bool> fused_permute;      // Megatron: tokens are copied to experts and summed in Transformer Engine's kernels; unset: the profile's habit
  std::optional<bool> fused_index_map;    // DeepEP: a token's list of experts becomes a map in one kernel, without the host; unset: the profile's habit
  std::optional<bool> mask_products;      // tokens reach their slots, and outputs their tokens, by products with one-hot masks; unset: the profile's habit
  bool overlap_exchange = false;          // tokens of one micro-batch travel while another's backward is computed
  std::optional<std::int64_t> dispatch_sms;   // SMs that DeepEP's or HybridEP's kernels hold; unset: what the library takes
  double rank_capacity_factor = 0;        // with fused_mlp: slots that a rank's buffers hold, over the mean; 0: those that come
  bool paged_stash = false;               // what fused experts keep for backward is copied into pages, and back
};

/// Who carries collectives. Gloo and MPI take them through host memory, and the host thread waits for them.
enum class Backend : std::uint8_t { nccl, gloo, mpi };

struct Strategy {
  Training training;
  Backend backend = Backend::nccl;
  Parallelism parallelism;
  DataParallel data_parallel;
  Pipeline pipeline;
  Memory memory;
  Tuning tuning;
  ExpertRouting experts;

  /// Ranks hold experts of different popularity. Slots that are computed whether they are filled or not make them equal.
  bool uneven_experts() const { return !experts.routing.even() && !experts.pad_to_capacity; }
  /// Micro-batches of a step that the router treats differently; the others repeat them in turn.
  std::int64_t routing_draws() const {
    return uneven_experts() && experts.routing.batch_concentration ? std::min(experts.routing.batch_draws, micro_batches()) : 1;
  }
  /// Micro-batches that one pipeline runs per step. Precondition: the batch divides (checked by problems_of).
  std::int64_t micro_batches() const {
    return training.global_batch_size / (training.micro_batch_size * parallelism.degrees.data);
  }
  /// Tokens of one micro-batch on one rank, sequence dimension split by context parallelism.
  std::int64_t tokens() const { return training.micro_batch_size * training.sequence_length / parallelism.degrees.context; }
};

}  // namespace rehearse::strategies
