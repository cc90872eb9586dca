// How a framework carries out a layer and a step: which operators are fused, which number formats it keeps, what its
// host thread costs, how its allocator is set. Data: strategies/framework/data/<name>.yaml, each value with a source.
// Leaves out what the user chooses (spec.h) and what kernels cost (hwmodels).
#pragma once

#include <string>
#include <vector>

#include "sim/config/value.h"
#include "sim/core/catalog.h"
#include "sim/core/dtype.h"
#include "sim/core/units.h"
#include "sim/model/kernel.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// How pointwise operators are carried out.
///   eager     one kernel per tensor operation, each intermediate in memory (Hugging Face modelling code)
///   native    PyTorch's own fused operator where it has one (nn.LayerNorm, nn.RMSNorm, F.silu ...)
///   fused     a hand-written kernel per operator (Transformer Engine, Apex, Liger, Triton)
///   compiled  TorchInductor: chains of pointwise operators become one kernel; what a matrix product of backward reads is kept, what only pointwise
///             operators read is made again (torch/_functorch/partitioners.py, ban_recompute_materialized_backward)
enum class Fusion : std::uint8_t { eager, native, fused, compiled };

/// PyTorch's own kernels, one operator at a time.
inline bool is_native(Fusion f) { return f == Fusion::eager || f == Fusion::native; }

/// How eager rotary embedding is written.
///   rotate_half  x * cos + cat(-x2, x1) * sin, in the activations' format (Hugging Face)
///   pairs        fp32 copy, four products of every second element, stacked (torchtune)
///   matrices     fp32 copy times 2 x 2 matrices, summed over pairs (Foundation Model Stack)
///   widened      fp32 copy, flash-attn's rotary kernel on it, copied back (Qwen 1)
///   angles       rotate_half with cosines and sines made of the angles for each tensor, and the end of each head joined on (Megatron-Core)
///   complex      fp32 copy, its pairs as complex numbers times other ones, copied back (torchtitan's Llama models)
/// TorchInductor makes no kernels of complex numbers: under torch.compile their product is a kernel apart, the copies are part of others.
enum class RopeForm : std::uint8_t { rotate_half, angles, gathered, pairs, matrices, widened, complex };

/// Whose attention is PyTorch's FlexAttention: models with attention sinks (GPT-OSS), of which it gives the sums, or all others.
enum class FlexUse : std::uint8_t { never, with_sinks, without_sinks };

/// For what compute waits as a bucket of gradients goes, under ZeRO-1 and 2 whose reductions run under backward.
enum class BucketWait : std::uint8_t {
  none,     // DeepSpeed until 0.14.2
  earlier,  // the reductions before it: 0.14.3 on (a41729f6a)
  own,      // its own too, so that nothing runs under it: 0.17.5 to 0.18.4 (f897b6739, 15ad92b45)
};

/// How parameters that the CPU has updated get back to the GPU under ZeRO-1 and 2 (DeepSpeed's runtime/zero/stage_1_and_2.py, step).
enum class OffloadReturn : std::uint8_t {
  narrow,        // cast by the CPU into a buffer that is pinned where the rest is (from May 2025, 17c8be070)
  wide,          // in fp32 from pinned memory into a new tensor, cast by the GPU (from April 2024, 7b5b06602)
  cast,          // cast by the CPU into a new pageable tensor (from March 2023, 4b6d7c159)
  under_update,  // in fp32 while later ones are updated (before: csrc/adam/cpu_adam.cpp)
};

enum class LossKind : std::uint8_t {
  upcast,          // logits.float(), then PyTorch's cross-entropy (Hugging Face, nanotron, torchtitan eager)
  upcast_compiled, // logits.float(), then a compiled cross-entropy that keeps them: their gradient is a tensor of its own (torchtune)
  upcast_fused,    // logits.float(), then a hand-written cross-entropy that writes the gradient in place (fms-acceleration)
  native,          // PyTorch's cross-entropy on logits as they are
  chunked,         // fp32 copy of the logits, cross-entropy piece by piece: gradients take the softmax's place (LitGPT under Lightning Fabric)
  chunked_output,  // logits made in eight pieces, each cast and reduced on its own; log-softmax kept in fp32 (torchtune)
  vocab_parallel,  // Megatron's: fp32 copy of the logits shard, softmax in place
  vocab_parallel_copied,  // the same before March 2020: the fp32 copy is copied again, exponentials are a third tensor
  vocab_parallel_compiled,  // Megatron's through torch.compile: exponentials are written beside the fp32 copy
  sharded,         // nanotron's: fp32 logits and their copy less the maximum live together; exponentials, softmax and gradient are written over the copy
  sequence_parallel,  // Megatron-DeepSpeed's: fp32 logits, their softmax and its logarithm live together; the gradient is made in the softmax
  fused,           // logits stay in 16 bit, gradient in place (Transformer Engine, Liger without the head)
  compiled,        // softmax statistics only; gradient fused into the backward
  compiled_with_head,  // the same in one graph with the output layer: caps of logits are part of the loss's kernels, the gradient takes the logits' place
  tiled,           // output layer and loss a piece at a time, gradients made in forward (DeepSpeed's TiledFusedLogitsLoss)
  fused_linear,    // the same in other pieces, logits in place (Liger's fused linear cross-entropy)
  chunked_linear,  // the same in eight pieces along the sequence, each with a backward of its own (torchtitan from 2026-04-27)
};

/// How Liger's fused linear cross-entropy does a piece, by release.
///   fp32      until 0.4: an fp32 copy of the logits; the host asks each piece for its number of targets and scales its gradients by it
///   scaled    0.5.0 to 0.5.2: the same on 16-bit logits
///   in_place  0.5.3 to 0.6.1: neither; the product adds into the weight's gradient
///   widened   0.6.2 on: the product is cast to fp32 and added
enum class LinearLossForm : std::uint8_t { fp32, scaled, in_place, widened };

/// Which collectives mark their buffers as used on their own stream (Tensor.record_stream), so that a freed buffer is not
/// reused before the device has got there, however far ahead the host is.
///   none    TORCH_NCCL_AVOID_RECORD_STREAMS=1, or torch from 2.8 (pytorch/pytorch pull request 150398)
///   async   those issued with async_op=True (pull request 111431, for all-gather and reduce-scatter)
///   all     torch before that
enum class RecordStreams : std::uint8_t { none, async, all };

struct FrameworkProfile {
  std::string name, title, source;
  std::string file;                       // where it was read
  std::string own_text;                   // all that a file of the user's own says, what it extends included

  // Kernels
  Fusion norm = Fusion::native;
  Fusion rope = Fusion::eager;
  RopeForm rope_form = RopeForm::rotate_half;   // where it is eager, or complex
  bool joins_unrotated = true;            // rope_form angles: what of a head does not rotate is joined on, were it empty; false: where there is any (Microsoft's Megatron-DeepSpeed)
  bool rope_by_document = false;          // angles: packed documents are rotated one after the other, the host waiting for their lengths (Megatron-Core from 2026-06-17 to 08-17)
  Fusion activation = Fusion::native;
  std::optional<Fusion> gated_activation;   // of SwiGLU, where it is another
  bool offloads_marked = false;           // CPU offloading of layers knows what Transformer Engine's modules and fused SwiGLU mark, not what operators keep
  std::vector<std::string> native_activation_of;   // families of models whose SwiGLU is made of PyTorch's operators
  bool gate_offset = false;               // SwiGLU without a kernel of its own: an offset is added to the linear half, were it zero (Megatron-Core's glu_linear_offset)
  Fusion residual = Fusion::native;
  LossKind loss = LossKind::upcast;
  std::optional<LossKind> context_loss;   // under context parallelism, where it is another
  LinearLossForm linear_loss = LinearLossForm::widened;   // of loss fused_linear
  model::AttentionKernel attention = model::AttentionKernel::flash2;
  bool aiter_attention = false;           // on AMD's GPUs fused attention is AITER's, as Transformer Engine takes it; false: PyTorch's (AOTriton) or flash-attn's
  bool sdpa_attention = false;            // fused attention is PyTorch's scaled_dot_product_attention; false: flash-attn's, or another library's
  bool untuned_products = false;          // aiter_attention: on AMD's GPUs products are as hipBLASLt's heuristics choose them, nobody searched (Primus without PRIMUS_HIPBLASLT_TUNING)
  bool triton_backward = false;           // sdpa_attention: that one's backward is Triton's on AMD's GPUs (AOTriton before 0.11, PyTorch before 2.9)
  bool sinks_rescale = false;             // attention sinks: the kernel's output is scaled by operators, by the sigmoid of its sums less the sinks; false: in the kernel
  FlexUse flex_attention = FlexUse::never;   // on GPUs from Ampere on
  int cudnn_attention_from = 0;           // compute capability from which cuDNN's attention is preferred; 0: never
  model::AttentionKernel cudnn_attention = model::AttentionKernel::cudnn;  // which cuDNN: 9.4 to 9.12, or later
  bool masked_attention = false;          // fused attention gets the causal mask as a tensor and computes all scores (PyTorch's memory-efficient kernel; FlashAttention takes no tensor)
  bool attention_fused = true;            // false: scores in memory (2021 Megatron)
  bool softmax_in_fp32 = false;           // unfused: scale, mask and softmax are operators of their own on an fp32 copy of the scores (Megatron's --no-masked-softmax-fusion)
  bool clamps_scores = false;             // eager attention: the maximum of the masked scores and the least number is kept, and softmax of fp16 is in fp32 (transformers' OPT until it took a common attention)
  bool memory_buffer = false;             // unfused scores, and tokens that experts gather, are written into a buffer that grows to the largest and stays (Megatron's GlobalMemoryBuffer)
  bool weighted_squared_relu = false;     // experts' squared relu multiplies by the router's weights in its own kernel, which keeps its input alone (Megatron-Core's use_fused_weighted_squared_relu)
  bool scripted_gelu = false;             // the MLP's gelu is scripted Python without a backward of its own: a kernel per operation, six tensors are kept beside its input (Megatron-LM until 2020)
  bool masks_by_product = false;          // unfused: heads are copied out of q, k and v; scores are multiplied with the mask, and a large number is taken off elsewhere (Megatron-LM until 2020)
  bool wide_residual = false;             // fused norm and residual: the residual stream is fp32; each branch is dropped out, added to it and the sum normalised in one kernel (flash-attn's dropout_add_layer_norm, residual_in_fp32)
  bool gradients_in_place = false;        // fused kernels write gradients over what they read: a norm's and rotary embedding's over the result's, SwiGLU's over gate and up
  bool norm_sums_weights = false;         // a norm's backward kernel sums the weight's gradient too (Triton's: flash-attn's, Liger's)
  bool fused_dense = false;               // bias gradients, and the gelu of an MLP without gate, are made inside products (cuBLASLt's epilogues: Apex's and flash-attn's fused dense)
  bool spelled_layer_norm = false;        // LayerNorm is written out in operators, in the stream's own format: mean, var, difference, quotient, product and sum
  bool norm_upcasts = false;              // norms read an fp32 copy of their input; copy and norm are made again in backward (InternEvo)
  bool fused_qkv = true, fused_gate_up = true;
  bool copies_fused_qkv = false;          // queries, keys and values of one product are copied out of it
  bool whole_embedding = false;           // tensor parallel: every rank has the whole table of words, and looks all of them up; false: its part of the vocabulary
  bool whole_head_without_sequence = false;  // tensor parallel, not sequence parallel: every rank has the whole output layer and computes all logits (KempnerForge's stages)
  bool one_hot_embedding = false;         // tokens are looked up by a product with the table, and its gradient is one (MaxText, use_iota_embed)
  bool keeps_logits = true;               // the training loop holds the 16-bit logits until the loss is known
  bool copies_shifted_logits = false;     // upcast, upcast_fused: the last position is cut off, and the rest of the fp32 logits copied
  bool loss_parallel = false;             // upcast, compiled: under tensor parallelism logits stay sharded DTensors in the loss (PyTorch's loss_parallel)
  bool gathers_logits = false;            // tensor parallel: shards of the logits are gathered, and every rank computes the whole loss
  bool waits_for_input_gradients = false; // tensor parallel: the reduction of a product's input gradient does not run beside the weight gradient
  bool keeps_gathered_input = false;      // sequence parallel: linear layers keep the gathered input for backward, not their shard
  bool gathers_by_block = false;          // sequence parallel: what attention and the MLP read is gathered once, as a tensor that all their products keep (torchtitan's PrepareModuleInput); false: by each product
  bool shares_gathered = false;           // sequence parallel: products that read the same input gather it once and keep it, each scatters its own gradient (torch.compile merges equal all-gathers)
  bool sequence_second = false;           // sequence parallel: tensors are [batch, sequence, hidden]: what is gathered along the sequence is copied into order, and before it is scattered (torch.distributed's functional collectives)
  bool gathers_into_buffers = false;      // sequence parallel: gathered tensors lie in two buffers that are made once (nanotron's MemoryBuffer)
  RecordStreams record_streams = RecordStreams::none;   // of the tensor group's collectives
  bool asynchronous_row = false;          // row-parallel products are autograd functions of their own, which keep their input as it came (nanotron's tp_linear_async_communication)
  bool repacks_qkv = false;               // q, k and v are permuted out of one product, k and v joined and permuted again (nanotron)
  bool packs_qkv = false;                 // q, k and v are reordered from [sequence, batch], joined for the attention kernel, and its output is ordered back (GPT-NeoX)
  bool orders_by_sample = false;          // flash attention: values are copied out of the fused product; of several samples queries and keys too are brought from [sequence, batch] into [batch, sequence], and the output back (Megatron-LM of 2023)
  bool joint_branches = false;            // parallel residual: attention's bias is added by itself, the sum of both branches is reduced over the tensor group once (GPT-NeoX)
  bool repeat_kv = false;                 // keys and values are copied to all query heads before attention
  bool exchanges_repeated_kv = false;     // repeat_kv, under Ulysses: the copies are made before heads are exchanged, not of what has arrived
  ContextKind context = ContextKind::ring;  // how attention is carried out under context parallelism
  bool dropout = false;                   // trains with dropout masks by default
  bool scripted_dropout = false;          // bias, dropout and residual add are a TorchScript function, whose backward keeps a mask even where nothing is dropped (Megatron-LM before torch.compile)
  bool grouped_experts = true;            // one grouped product for all experts of a rank; false: a loop over experts
  bool sums_slots_by_index_add = false;   // each token's outputs are summed by index_add_, whose autograd keeps them; else by scatter_add_ or a kernel of its own
  bool default_save_list = false;         // per-operator selective checkpointing keeps what PyTorch's partitioner calls compute-intensive, products with a bias (addmm) among it, and every exchange of tokens
  bool weighs_wide_outputs = false;       // weighs_expert_outputs: an fp32 copy, which is cast back (torchtitan)
  bool weighs_expert_outputs = false;     // the router's weights multiply what experts return, not what their second product reads
  bool fused_expert_mlp = false;          // grouped: activation, biases and quantisation inside the products
  bool native_grouped = false;            // grouped: by torch._grouped_mm
  bool expert_launches = false;           // grouped: each expert's product, and its operands' quantisation, is a launch of its own, on a few streams
  bool separate_expert_bias = false;      // the second product's bias, times the router's weight, is added expert by expert, in fp32
  bool separate_first_expert_bias = false;   // the first product's bias is added expert by expert
  bool cublas_10 = false;                 // CUDA 10: 16-bit products that are not aligned are computed on CUDA cores
  bool repeats_expert_bias = false;       // grouped, eager: experts' biases are copied to each of their slots and added; their gradients are added up by atomics
  bool separate_clamp = false;            // clamping before experts' activations is operators of its own
  bool routes_by_map = false;             // Megatron's experts: a map of tokens and experts, scores of the balancing loss and counts per expert, exchanged before tokens are
  bool fused_router = false;              // routes_by_map: the router's scores, map and loss are Transformer Engine's kernels; false: PyTorch's operators
  bool fused_permute = true;              // routes_by_map: tokens are copied and summed by Transformer Engine's kernels; false: PyTorch's operators, which the host waits for
  bool mask_products = false;             // tokens reach their slots, and outputs their tokens, by products with one-hot masks (GShard's einsums)
  bool masks_by_sample = false;           // such a mask is of one sample's tokens and slots, not of all of the micro-batch
  bool dispatcher_keeps_weights = false;  // DeepEP: an object of the layer keeps the router's weights, and with them the graph that made them, until its next forward
  bool wide_router = false;               // experts: the router's product is of fp32 copies of its operands
  bool fused_index_map = true;            // DeepEP: a token's list of experts becomes a map of tokens and experts in one kernel; false: by operators, which the host waits for
  Dispatcher dispatcher = Dispatcher::all_to_all;
  bool overlap_shared_experts = false;    // shared experts run while tokens travel
  bool deterministic_attention = false;   // attention's backward adds in a fixed order (NVTE_ALLOW_NONDETERMINISTIC_ALGO=0)
  bool compiled = false;                  // torch.compile on each layer by default

  // Number formats
  DType stored_parameter = DType::bf16;   // what the module holds (fp32 under autocast / FSDP)
  bool master_parameters = true;          // fp32 copy beside 16-bit parameters
  DType master_parameter = DType::fp32;   // format of that copy; bf16: DeepSpeed's bf16_master_weights_and_grads
  bool parameter_remainders = false;      // of a copy in fp32 only the 16 bits that the parameters lack
  /// Bytes per element that the optimizer keeps of the parameters themselves.
  std::int64_t master_bytes() const { return !master_parameters ? 0 : parameter_remainders ? 2 : bits(master_parameter) / 8; }
  /// An update reads them and not the parameters themselves.
  bool updates_master() const { return master_parameters && !parameter_remainders; }
  DType gradient = DType::fp32;           // accumulated gradient
  DType reduce = DType::fp32;             // gradient reduction on the wire
  std::optional<DType> context_reduce;    // the same under context parallelism, where it is another (DeepSpeed's seq_parallel_communication_data_type)
  bool wide_bf16_in_stages = false;       // bf16 training under pipeline stages, or under ZeRO-1 with fp32 gradients asked for: a micro-batch's 16-bit gradients live until its backward is over, then go into whole fp32 ones, which are reduced (DeepSpeed's BF16_Optimizer)
  DType wide_bf16_reduce = DType::fp32;   // format in which those are reduced
  bool wide_bf16_gradients = false;       // training accumulates and reduces gradients in fp32, but training in fp16 in 16 bits (Megatron-LM)
  DType optimizer_state = DType::fp32;
  bool activation_finds_maximum = false;  // SwiGLU and its backward find the maximum of what the next product casts, where its scale is the tensor's own
  bool current_scaling = false;           // fp8 scales come from a pass over the tensor itself before it is quantised; false: from steps before
  bool transposes_fp8 = true;             // fp8 products take operands in one orientation only (before Blackwell): quantised twice. Set by with_workspaces' caller
  bool columns_in_backward = false;       // the operands of fp8 weight gradients, which are scaled along the tokens, are made in backward: of the 8-bit tensor that forward multiplied, or where recomputation makes its source again, of that; false: with the others
  std::int64_t attention_output_bits = 0; // attention's output waits for backward in so many bits per value, for its own backward and the output projection's; 0: as it is
  bool narrow_dispatch = false;           // fp8: tokens, and the gradients of what returns from experts, travel to the experts' ranks in 8 bits with a scale per 128 values; what returns is in 16 bits
  bool narrows_one_by_one = false;        // fp32 is cast to 16 bits element by element (PyTorch before 2.6)
  bool autocast = false;                  // 16-bit copies of fp32 weights are made per use
  bool narrow_embedding = false;          // autocast: the embedding's result has 16 bits, and so has the residual stream
  bool keeps_cast_weights = false;        // Transformer Engine's copies of weights in fewer bits, from a step's first micro-batch on
  bool fp8_parameters = false;            // weights of 8-bit products are kept in 8 bits, without 16-bit ones (Megatron's --fp8-param-gather)
  bool fused_gradient_accumulation = false;  // weight-gradient GEMM adds into the fp32 gradient
  bool keeps_transposed_weights = true;   // fp8 weights in both orientations stay from use to use; false: the second is made for each backward (ROCm/TransformerEngine keep_fp8_weight_transpose_cache)
  bool dummy_weight_gradients = false;    // Transformer Engine keeps one 16-bit dummy per weight shape

  // Tuning
  DType adapter = DType::bf16;            // low-rank adapters: fp32 where they are kept, and computed, beside a 16-bit model (PEFT)
  bool adapter_autocast = false;          // fp32 adapters are computed in 16 bit under autocast
  bool scales_adapter_inside = false;     // alpha / rank multiplies what adapter A makes (NeMo AutoModel); false: what B makes, the layer's whole output
  bool adapter_per_part = false;          // a layer that holds several has an adapter for each of them (LitGPT); false: one for the whole (PEFT, Megatron-Bridge)
  bool unties_embeddings = false;         // the output layer has a table of its own even where the model ties it (LitGPT)
  bool clones_quantised_output = false;   // adapters beside 4-bit weights: the product's output is copied; under autocast their input is not cast (PEFT)
  bool value_is_view = false;             // values stay a view of the fused projection, which therefore lives until backward
  bool input_require_gradients = false;   // the embedding's output wants a gradient under recomputation (enable_input_require_grads)
  bool keeps_original_of_trained = false; // modules that are trained whole beside adapters are copies (PEFT modules_to_save)
  bool quantises_head = false;            // 4-bit weights: the output layer as well
  bool keeps_quantised_inputs = false;    // 4-bit weights: a product's node holds its input (bitsandbytes before 0.43.2)
  bool quantised_from_fp16 = false;       // 4-bit weights: they come back in fp16 and are cast for the product (Lightning Fabric)
  bool holds_last_graph = false;          // the loss is a variable of the training loop: the graph of a micro-batch lives until the next one's loss
  bool holds_output = false;              // the model's output, logits with it, is a variable of the training loop: it lives as long as the graph
  bool checkpoints_in_units = false;      // FSDP1: checkpoints are inside its units (apply_activation_checkpointing after wrapping); false: around them, whose forward then runs again
  bool narrows_activation_input = false;  // fused activations save their input in 8 bits (Megatron's activation_func_fp8_input_store)
  bool remakes_from_narrow = false;       // narrows_activation_input: where a fused activation is made again, it is of its input in 8 bits, and nothing else of it is kept; false: of the input as it was (Megatron)
  bool root_unit = false;                 // FSDP: what no wrapped module holds (embedding, final norm, output layer) is one unit, there from a micro-batch's start to its end
  bool wraps_adapters = false;            // FSDP1: adapters are units of their own, so that frozen weights have no gradient (PEFT's wrapping policy)
  bool upcasts_unquantised = false;       // 4-bit weights: what stays 16 bit becomes fp32 (prepare_model_for_kbit_training)
  bool narrows_tables = false;            // and embedding and output layer go back to 16 bit (TRL, peft_module_casting_to_bf16)

  // Data parallelism and step
  std::int64_t bucket_elements = 0;       // gradient bucket in elements (0: one bucket)
  std::int64_t bucket_elements_per_rank = 0;    // where larger: this times the data-parallel degree (Megatron)
  bool flattens_on_device = false;        // ZeRO-1 and 2: parameters are copied into one tensor on the GPU (DeepSpeed from 0.18.7 on), not on the host
  bool bucket_in_reduce_format = false;   // ZeRO-3: the bucket has the format in which gradients are reduced (DeepSpeed from 0.17.2 on); false: their own
  bool bucket_by_layer = false;           // distributed optimizer: a bucket is a layer, under pipeline stages a chunk; what is in no layer goes with the first one (NeMo under Apex's Adam)
  Bytes replica_bucket{};                 // sharded parameters: gradients are summed over replicas once so many bytes of shards are there; 0: unit by unit
  bool overlap_gradient_reduce = true;
  bool overlap_parameter_gather = false;
  bool states_at_first_step = true;       // optimizer states are made in the first step, weight by weight (PyTorch); false: with the parameters (XLA)
  bool fused_optimizer = true;            // one multi-tensor kernel without temporaries; false: foreach
  int cpu_threads = 1;                    // of a process's work on the CPU where a node has several (torchrun sets OMP_NUM_THREADS to 1); 0: one per core of the node
  int training_metrics = 0;               // losses that the training loop takes once more of each micro-batch's logits, after its backward, to log them (Composer); not under pipeline stages
  bool reads_loss = false;                // the host waits for each micro-batch's loss (Hugging Face's Trainer looks for NaN); not under pipeline stages
  bool muon_owners = false;               // without ZeRO: each matrix is orthogonalised by one rank of the data-parallel group, which alone has its moment (Muon of modded-nanogpt and nanochat)
  bool sums_muon_updates = false;         // muon_owners: updates travel in 16 bits, as a sum of all ranks' over zeros; false: what is updated is gathered, which a reduction to the owner pays for
  bool reduces_each_pass = false;         // without ZeRO: gradients are reduced after every micro-batch (DDP whose no_sync leaves forward out)
  bool waits_after_step = false;          // the host waits for the device when a step is over (nanotron, which times each)
  bool blocking_input = false;            // each micro-batch is copied to the device by a copy that the host waits for, and with it for all work before; not under pipeline stages
  bool keeps_gradient_sums = true;        // offloaded optimizer under ZeRO-3: 16-bit sums of gradients lie in host memory; false: only where micro-batches add up (DeepSpeed before 0.6)
  bool fetch_sync = false;                // ZeRO-3: parameters are gathered one by one, the host waiting for the device before each and before modules that needed any (DeepSpeed before 2022)
  bool counts_live_anew = false;          // ZeRO-3: what stays gathered from one micro-batch to the next does not count among live parameters (DeepSpeed, but for 0.16.0 to 0.16.7)
  bool main_gradients = false;            // gradients add up in the framework's own buffers, which are reduced, whatever their format (Megatron's main_grad)
  bool widens_gradients = false;          // the update begins with joined fp32 copies of 16-bit gradients: of its partition under ZeRO-1 and 2, in fp16 of all without ZeRO (DeepSpeed)
  bool unscales_gradients = false;        // fp16 without ZeRO: the update begins with fp32 copies of all gradients, which are divided by the loss scale and searched for overflow (Megatron)
  bool flattens_gradients = false;        // without ZeRO, of one replica too: after backward all 16-bit gradients are copied into one tensor, averaged, reduced, waited for and copied back (Megatron's local DDP until 2021, DeepSpeed)
  double gradient_buffer = 0;             // ZeRO-1 and 2: gradients are put together in a buffer of so many reduction buckets, made after the loss (DeepSpeed, contiguous_gradients); 0: in one made at the start
  bool buckets_late = false;              // that buffer is made with the first gradient, after the output layer's backward (DeepSpeed from 0.18.3 on); false: after the loss
  bool zero1_gradient_buffer = true;      // so do those of ZeRO-1; false: its buckets are put together when they are reduced, after backward (DeepSpeed 0.4.4 to 0.12)
  OffloadReturn offload_return = OffloadReturn::under_update;   // ZeRO-1 and 2; as Ren et al. 2021 (ZeRO-Offload) have it
  std::int64_t update_tile = std::int64_t{1} << 27;   // elements that are updated before they cross, under OffloadReturn::under_update
  bool synchronises_buckets = false;      // ZeRO-1 and 2 under backward: the host waits for the device before each bucket is reduced (DeepSpeed until 0.7)
  BucketWait bucket_wait = BucketWait::none;
  bool checks_by_parameter = false;       // ZeRO-1 and 2: overflow and norm are found parameter by parameter, the host waiting for each (DeepSpeed until 2022); in fp16 without ZeRO overflow alone
  bool gradient_norm_sync = true;         // the host reads the norm before the optimizer step
  bool overlap_messages = true;           // messages of Megatron's interleaved schedule travel under the passes
  bool message_sync = false;              // the host waits for the device after each blocking exchange between stages
  bool send_sync = true;                  // and after exchanges that only send; false: where something is received (nanotron)
  Duration message_poll{};                // blocking exchanges: how often the host looks whether one of the two messages that announce a tensor has arrived (nanotron of December 2024)
  bool widens_before_adding = false;      // accumulates_after_backward: of each 16-bit gradient an fp32 copy is made, which is added (DeepSpeed); false: added as it is
  bool zeroes_narrow_gradients = false;   // accumulates_after_backward: the 16-bit gradients stay; they are zeroed before each backward, which adds to them (DeepSpeed 0.12.6 to 0.14.1, 0.16.5 on)
  bool lazy_modules = true;               // kernels are loaded when they are first used (since CUDA 11.7); false: all of a library with it
  bool connects_at_once = false;          // NCCL before 2.22 (2024-06): a communicator connects for all algorithms when it is made
  bool splits_messages = false;           // tensor parallel without sequence parallel: each rank sends its share of a message, which is gathered on arrival
  bool pipeline_by_cost = false;          // stages are balanced by compute, head included (nanotron); false: by layers
  bool passes_share = false;              // pipeline_by_cost: a stage ends with the layer that goes beyond its share (nanotron until the end of 2024); false: that reaches it
  bool ddp_bucket_copies = false;         // under DDP its 16-bit buckets live beside the fp32 gradients (nanotron)
  bool accumulates_after_backward = false;  // 16-bit gradients live until the micro-batch's backward is over, then go into the fp32 ones
  bool fsdp2 = false;                     // sharded by FSDP2 (fully_shard); false: by FSDP1
  bool accumulates_unsharded = false;     // FSDP: no_sync for all but the last micro-batch, whose gradients then stay whole on every GPU
  bool reduces_over_all = false;          // buckets are flattened, all-reduced over all replicas at once whoever shares states, and copied back (InternEvo)
  bool scatters_gradients = false;        // ZeRO-1: buckets are reduce-scattered as lists of pieces, which are copies, and parameters gathered into one; false: all-reduced
  bool reduces_to_owner = false;          // ZeRO-2: each part of a bucket is reduced to the rank that owns it (DeepSpeed before 0.12.4); false: all-reduced
  bool joins_scattered = false;           // scatters_gradients: the pieces are joined to all gradients once more (DeepSpeed, 2020-09 to 2020-11)
  bool gathers_by_broadcast = false;      // sharded updates: each rank's share is broadcast, one rank after the other (InternEvo)
  bool reduces_whole = false;             // distributed optimizer: all gradients are one all-reduce once the last backward is over; nothing is bucketed (nanotron)
  bool gathers_through_copies = false;    // sharded updates: each rank's updated share arrives in a buffer of its own, then is copied, weight by weight (nanotron)
  bool parameter_buffer = false;          // Megatron's distributed optimizer: parameters are made one by one, then copied into one buffer
  bool gathers_in_gradients = false;      // Megatron's distributed optimizer before 2024: updated weights are gathered in the gradients' buffer, whose view as weights is made beside a tensor of its size
  bool keeps_sent_output = false;         // pipeline stages: what was sent on (of a split message the share) stays until its backward; false: its storage is let go (Megatron)
  bool overlap_tensor = false;            // sequence parallel: collectives travel in pieces under the products that need or make them
  bool retains_graph = false;             // a split backward keeps all that was saved until the weight gradients are made
                                          // (torch.distributed.pipelining); false: their operands only (Megatron, DualPipe)
  bool receives_into_buffers = false;     // a buffer for the message of each micro-batch, made when the schedule first runs (torch.distributed.pipelining)
  bool early_stop_recompute = false;      // non-reentrant checkpoint stops after the last needed tensor
  bool checkpoints_fused_attention = false;  // selective recomputation of the core of attention: also where one kernel computes it
  bool reentrant_checkpoint = false;      // a recomputed layer has a backward of its own within backward (torch.utils.checkpoint, use_reentrant=True)

  // Host thread (per call, on the issuing thread)
  Duration kernel_host{}, backward_kernel_host{}, collective_host{};
  Duration layer_host{}, layer_backward_host{};   // per layer and micro-batch, beyond its kernels: modules, hooks, autograd
  /// Per recomputed layer, beyond its passes. Other checkpoints than reentrant ones pack what is saved through Python hooks, in forward
  /// (checkpoint_host) and again while it is made anew (recompute_host); reentrant ones run an autograd engine within backward (reentrant_host).
  Duration checkpoint_host{}, recompute_host{}, reentrant_host{};
  /// Per layer under tensor parallelism, beyond its launches, where its operators go through DTensor's dispatch: forward, backward, and what a
  /// recomputed forward takes more than the first. Part of layer_host and the like once a strategy is known (with_layer_host).
  Duration tensor_host{}, tensor_backward_host{}, tensor_recompute_host{};
  /// Per layer whose checkpoint decides operator by operator what it keeps (a Python dispatch mode): forward, and again where it is recomputed.
  Duration operator_checkpoint_host{}, operator_recompute_host{};
  Duration list_part_host{};              // ZeRO-3: per rank of a gather or reduce-scatter, where those take lists of tensors, one per rank (a copy is launched for each besides); 0: they take whole tensors
  Duration submodule_host{}, submodule_backward_host{};   // ZeRO-3's hooks, per module of a layer: its parameters are fetched, released, their gradients shared out
  /// ZeRO-3, beyond launches: per all-gather, per parameter in it (its release included), per gradient that enters the bucket, per reduction of a bucket.
  Duration gather_host{}, gathered_parameter_host{}, bucket_host{}, reduction_host{};
  /// The same per rank that shards: of a parameter gathered with others, whose parts are cut out of what came and joined; of a gradient, which is cut into parts.
  Duration gathered_part_host{}, gradient_part_host{};
  int part_ranks_measured = 0;            // of the largest group that those two were measured over; beyond it they are carried on
  Duration unit_host{}, unit_backward_host{};   // FSDP's hooks of a unit, beyond launches: unsharded and resharded, streams, events; in backward its gradients too
  Duration gradient_host{};   // ZeRO-2's hook of a trained parameter of a layer: its gradient goes into a bucket, and out of it into the ranks' shares
  Duration adapter_host{};   // of a linear layer's low-rank adapter in forward, beyond its kernels
  Duration unpack_host{};    // of a GPTQ weight that is made 16 bits by PyTorch's operators, beyond its kernels
  Duration expert_host{}, expert_backward_host{};  // the same of a layer's experts: routing, dispatch, splitting by expert
  /// Of a layer's exchange of slots between the ranks of experts (all-to-all), beyond its launches: splits, copies of counts to the host, streams. Half
  /// of it is on the way there, half on the way back.
  Duration exchange_host{}, exchange_backward_host{};
  Duration region_host{};   // per part of a layer that is recomputed (selective): its checkpoint's function, and its modules once more
  /// Per expert of the rank and grouped linear layer, where each expert's product is a launch: loops over weights, quantizers and gradients.
  Duration scan_exchange_host{}, scan_exchange_backward_host{};   // of exchanging heads for tokens and back around a scan, over a context group, beyond launches
  Duration scan_host{};                   // of each Triton kernel of a state-space scan: its wrapper's Python and the launch
  Duration triton_host{};                 // of each launch of Transformer Engine's fused permutations, which are Triton's kernels
  Duration grouped_host{}, grouped_backward_host{}, grouped_low_host{}, grouped_low_backward_host{};   // low: products of at most 8 bits
  /// Of each norm, rotary embedding and activation whose kernel a library's own autograd function launches from Python (Liger's, unsloth's).
  Duration fused_operator_host{}, fused_operator_backward_host{};
  /// Per parameter that a rank updates: shares are listed and copied before the gradients' norm is known (norm_host), and after it (update_host).
  Duration norm_host{}, update_host{};
  Duration step_host{};
  Duration collection_host{};             // Python collects its garbage once (gc.collect)
  /// Observed while messages between pipeline stages on different nodes are outstanding, and on slow networks: host time of a layer's collective
  /// within a node, per rank of the tensor group. Likely NCCL's proxy threads, which poll the NICs on the cores of the host threads.
  Duration proxy_stall{};
  bool proxies_always_stall = false;   // not only beside such messages. Set by with_workspaces' caller
  Duration ring_step_wait{};           // the same of a collective over nodes, per step of its ring: the network's. Set by with_workspaces' caller
  /// SMs that collectives take from kernels beside them, as a multiple of what the GPU's file says: frameworks limit NCCL's
  /// blocks (NCCL_MAX_CTAS) or leave SMs free for it (Transformer Engine's SM margins). Fitted by `calibrate against`.
  double collective_sm_factor = 1;

  // Allocator and surroundings
  bool expandable_segments = false;
  Bytes cublas_workspace{};               // of one handle; 0: what PyTorch takes on the GPU
  bool transformer_engine = false;        // its cuBLASLt products have a workspace of their own
  Bytes misc_device{};
  std::vector<Bytes> workspaces;          // of one process on the GPU at hand, as set by with_workspaces

  int vocab_multiple = 1;                 // padding multiple, times tensor degree when vocab_times_tensor
  bool vocab_times_tensor = false;
  std::vector<std::string> data_parallel_kinds;  // that the framework has, by their names; empty: not stated
  std::vector<std::string> selective_modules;  // what `recompute: selective` means here
  Recompute default_recompute = Recompute::none;  // of its published configurations
};

/// Reads strategies/framework/data/<name>.yaml, or the user's own file when `name` is a path (holds a '/' or ends in
/// .yaml); that one may `extends: NAME` a profile of ours and states only what differs. Throws ConfigError; unknown names
/// list the valid ones.
FrameworkProfile load_profile(const std::string& name);
std::vector<std::string> profile_names();

/// The profile with these keys of its file in place of its own. Throws ConfigError at the key that it does not have.
FrameworkProfile with_keys(FrameworkProfile profile, const config::Value& keys);

/// The keys that with_keys would make `profile` of `other` with; null where there are none.
config::Value different_keys(const FrameworkProfile& profile, const FrameworkProfile& other);

/// Every time that the host thread takes to issue a step's work.
std::vector<Duration*> issue_times(FrameworkProfile& profile);

/// The profile as it trains in `precision`: fp32 and tf32 keep everything in 32 bit and need no master copy; fp16 takes
/// the place of bf16 and the other way round; 8- and 4-bit recipes keep the profile's formats.
FrameworkProfile with_precision(FrameworkProfile profile, Precision precision);

/// The profile with the workspaces that stay in the allocator. PyTorch keeps one per cuBLAS handle and stream, and handles
/// belong to threads: the main thread and autograd's have one each (CublasHandlePool.cpp). `cublas`, `transformer_engine`:
/// what the GPU's libraries take. `experts`: layers have some. Transformer Engine's grouped products then have a workspace
/// for each of their four streams, and the router's product is Transformer Engine's beside Megatron's own layers too.
/// Source: transformer_engine/pytorch/cpp_extensions/gemm.py, get_cublas_workspace; megatron/core/transformer/moe/moe_utils.py,
/// RouterGatingLinearFunction.
FrameworkProfile with_workspaces(FrameworkProfile profile, Bytes cublas, Bytes transformer_engine, bool experts);

/// Every kind of context parallelism by the names that frameworks give it; the first of a kind is the one we print.
const Catalog<ContextKind>& context_kinds();
/// The same for the ways of tokens to their experts.
const Catalog<Dispatcher>& dispatchers();
ContextKind context_kind(const Strategy& strategy, const FrameworkProfile& profile);

/// Every kind of loss by the name that profiles and scenarios give it.
const Catalog<LossKind>& loss_kinds();
/// Kernels of fused attention that a user may choose (training.attention_kernel).
const Catalog<model::AttentionKernel>& attention_kernels();
const Catalog<OffloadReturn>& offload_returns();

/// How PyTorch copies a tensor into one of another width: to fp32 element by element; to 16 bits too before 2.6 (pytorch/pytorch pull request 137053).
/// Compiled and hand-written kernels do neither. Found with the GPU on paper (calibrate/paper_gpu): LoadWithCast in the kernels' names.
model::KernelKind conversion(const FrameworkProfile& profile, std::int64_t read, std::int64_t written);

/// The profile with what the user changed in it: training.cross_entropy, fused_gradient_accumulation, transformer_engine;
/// data_parallel.gradient_dtype.
FrameworkProfile with_choices(FrameworkProfile profile, const Strategy& strategy);

/// The modules that `recompute: selective` makes again: the user's, or what the framework means by it.
const std::vector<std::string>& selective_modules(const FrameworkProfile& profile, const Memory& memory);
/// Whether that module is made again as one of them; of no module under another policy.
bool recomputes_selectively(const FrameworkProfile& profile, const Memory& memory, const char* module);

/// What a layer costs the host under that strategy's tensor parallelism and checkpoints: layer_host, layer_backward_host, recompute_host and
/// region_host with what tensor_host, operator_checkpoint_host and their like add.
FrameworkProfile with_layer_host(FrameworkProfile profile, const Strategy& strategy);

}  // namespace rehearse::strategies
