#include "strategies/framework/profile.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include <fmt/ranges.h>

#include "sim/config/document.h"
#include "sim/config/fields.h"
#include "sim/config/layers.h"
#include "sim/core/error.h"
#include "sim/core/remembered.h"
#include "sim/core/resources.h"
#include "sim/core/suggestion.h"
#include "strategies/data/catalog.h"
#include "strategies/framework/names.h"

namespace rehearse::strategies {

const Catalog<OffloadReturn>& offload_returns() {
  static const Catalog<OffloadReturn> list{"offload return", {
      {"narrow", "cast by the CPU into a buffer of its own", OffloadReturn::narrow},
      {"wide", "in fp32, cast by the GPU", OffloadReturn::wide},
      {"cast", "cast by the CPU into a new pageable tensor", OffloadReturn::cast},
      {"under-update", "in fp32, while later ones are updated", OffloadReturn::under_update},
  }};
  return list;
}

const Catalog<LossKind>& loss_kinds() {
  static const Catalog<LossKind> list{"loss", {
      {"upcast", "fp32 copy of the logits", LossKind::upcast},
      {"upcast-compiled", "fp32 copy of the logits, gradient beside it", LossKind::upcast_compiled},
      {"upcast-fused", "fp32 copy of the logits, gradient in place", LossKind::upcast_fused},
      {"native", "in the logits' own format", LossKind::native},
      {"chunked", "fp32 copy of the logits, in pieces", LossKind::chunked},
      {"chunked-output", "eight pieces, one at a time in fp32", LossKind::chunked_output},
      {"vocab-parallel", "Megatron's fp32 copy, in place", LossKind::vocab_parallel},
      {"vocab-parallel-copied", "Megatron's before March 2020: the fp32 copy, another and exponentials", LossKind::vocab_parallel_copied},
      {"vocab-parallel-compiled", "Megatron's cross_entropy_loss_fusion, native", LossKind::vocab_parallel_compiled},
      {"sharded", "nanotron's fp32 copies", LossKind::sharded},
      {"sequence-parallel", "Megatron-DeepSpeed's under Ulysses: fp32 logits, softmax and its logarithm", LossKind::sequence_parallel},
      {"fused", "16-bit logits, gradient in place", LossKind::fused},
      {"compiled", "statistics only", LossKind::compiled},
      {"compiled-with-head", "the same in one graph with the output layer, gradient in place", LossKind::compiled_with_head},
      {"tiled", "DeepSpeed's TiledFusedLogitsLoss", LossKind::tiled},
      {"fused-linear", "Liger's fused linear cross-entropy: output layer and loss in pieces", LossKind::fused_linear},
      {"chunked-linear", "torchtitan's ChunkedCELoss: output layer and loss in eight pieces, forward and backward", LossKind::chunked_linear},
  }};
  return list;
}

const Catalog<model::AttentionKernel>& attention_kernels() {
  using model::AttentionKernel;
  static const Catalog<AttentionKernel> list{"attention kernel", {
      {"flash2", "FlashAttention 2", AttentionKernel::flash2},
      {"flash3", "FlashAttention 3, Hopper's", AttentionKernel::flash3},
      {"cudnn", "cuDNN's, 9.13 and later", AttentionKernel::cudnn_9_13},
      {"mem-efficient", "PyTorch's memory-efficient kernel", AttentionKernel::mem_efficient},
      {"flex", "PyTorch's FlexAttention, as Triton compiles it", AttentionKernel::flex},
  }};
  return list;
}

const Catalog<ContextKind>& context_kinds() {
  static const Catalog<ContextKind> list{"context parallelism", {
      {"ring", "keys and values go round (zigzag)", ContextKind::ring},
      {"all-gather", "keys and values are gathered", ContextKind::all_gather},
      {"ulysses", "all-to-all: each rank has all tokens of some heads", ContextKind::ulysses},
      {"ulysses-ring", "ulysses among parallelism.context_ulysses neighbours, rings around them", ContextKind::ulysses_ring},
      {"p2p", "ring, as Megatron calls it", ContextKind::ring},
      {"all_gather", "all-gather, as Megatron calls it", ContextKind::all_gather},
      {"a2a", "ulysses, as Megatron calls it", ContextKind::ulysses},
      {"a2a+p2p", "ulysses-ring, as Megatron calls it", ContextKind::ulysses_ring},
  }};
  return list;
}

const Catalog<Dispatcher>& dispatchers() {
  static const Catalog<Dispatcher> list{"dispatcher", {
      {"all-to-all", "a copy per chosen expert, NCCL all-to-all", Dispatcher::all_to_all},
      {"hierarchical", "the same copies, all-to-all inside nodes, then between the equal places of all nodes (DeepSpeed-MoE, Tutel's 2DH)", Dispatcher::hierarchical},
      {"all-gather", "every rank of the group gets every token", Dispatcher::all_gather},
      {"deepep", "a copy per destination rank in a node, per node between nodes", Dispatcher::deepep},
      {"hybridep", "the same traffic; rows padded for 8-bit products on the way", Dispatcher::hybridep},
  }};
  return list;
}

ContextKind context_kind(const Strategy& strategy, const FrameworkProfile& profile) { return strategy.parallelism.context_kind.value_or(profile.context); }

namespace {

constexpr const char* kFolder = "strategies/framework/data";
// Host times in seconds: a call that takes a second is a mistake of units, and thousands of them are added.
constexpr config::Limits kOfCall = config::between(0, 1), kOfStep = config::between(0, 3600);
using P = FrameworkProfile;

template <class Member>   // Fusion, or an optional one
config::Field<P> fusion(const char* name, Member P::*member, const char* doc) {
  return config::choice(name, member, doc, {{"eager", Fusion::eager, "one kernel per tensor operation"},
                                            {"native", Fusion::native, "PyTorch's own fused operator"},
                                            {"fused", Fusion::fused, "a hand-written kernel"},
                                            {"compiled", Fusion::compiled, "TorchInductor; pointwise results are made again in backward where no matrix product reads them"}});
}

template <class Member>   // DType, or an optional one
config::Field<P> format(const char* name, Member P::*member, const char* doc) {
  return config::choice(name, member, doc, {{"fp32", DType::fp32, ""}, {"fp16", DType::fp16, ""}, {"bf16", DType::bf16, ""}});
}

const config::Fields<P>& fields() {
  using model::AttentionKernel;
  static const config::Fields<P> table{
      config::text("title", &P::title, "what this profile stands for").required(),
      config::text("source", &P::source, "where its values come from").required(),
      config::custom<P>("sources", "per value: where it comes from", "a map from key to text", "{\"type\": \"object\"}", [](const config::Value&, P&, config::FieldReader&) {}),
      fusion("norm", &P::norm, "LayerNorm and RMSNorm"),
      fusion("rope", &P::rope, "rotary embedding"),
      config::choice("rope_form", &P::rope_form, "rotary embedding where it is eager, or complex",
                     {{"rotate-half", RopeForm::rotate_half, "times cos and, halves exchanged, times sin"}, {"angles", RopeForm::angles, "the same, cos and sin made of the angles for each tensor"}, {"gathered", RopeForm::gathered, "the same, with cos and sin gathered by position into tensors as large as the input, which are kept"}, {"pairs", RopeForm::pairs, "fp32, every second element"}, {"matrices", RopeForm::matrices, "fp32, 2 x 2 matrices"}, {"widened", RopeForm::widened, "fp32, one kernel"}, {"complex", RopeForm::complex, "fp32, complex numbers, eager under torch.compile too"}}),
      config::boolean("joins_unrotated", &P::joins_unrotated, "rope_form angles: what of a head does not rotate is joined on, were it empty"),
      config::boolean("rope_by_document", &P::rope_by_document, "rope_form angles: packed documents are rotated one after the other, the host waiting for their lengths"),
      fusion("activation", &P::activation, "GELU, SwiGLU"),
      fusion("gated_activation", &P::gated_activation, "SwiGLU, where it is another"),
      config::boolean("offloads_marked", &P::offloads_marked, "CPU offloading of layers takes what Transformer Engine's modules and fused SwiGLU mark, not what operators keep"),
      config::text("native_activation_of", &P::native_activation_of, "families of models whose SwiGLU is made of PyTorch's operators"),
      config::boolean("gate_offset", &P::gate_offset, "SwiGLU without a kernel of its own: an offset is added to the linear half, were it zero"),
      fusion("residual", &P::residual, "bias, dropout and residual add"),
      config::choice("loss", &P::loss, "cross-entropy over the vocabulary", loss_kinds()),
      config::choice("context_loss", &P::context_loss, "the same under context parallelism, where it is another", loss_kinds()),
      config::choice("linear_loss", &P::linear_loss, "loss fused-linear, by Liger's release",
                     {{"fp32", LinearLossForm::fp32, "until 0.4: fp32 logits, the host asks each piece for its targets"}, {"scaled", LinearLossForm::scaled, "0.5.0 to 0.5.2: the same in 16 bits"},
                      {"in-place", LinearLossForm::in_place, "0.5.3 to 0.6.1: the product adds into the gradient"}, {"widened", LinearLossForm::widened, "since 0.6.2: the product is cast to fp32 and added"}}),
      config::choice("attention", &P::attention, "fused attention kernel",
                     {{"flash1", AttentionKernel::flash1, ""}, {"flash2", AttentionKernel::flash2, ""}, {"flash3", AttentionKernel::flash3, ""},
                      {"cudnn", AttentionKernel::cudnn, "9.4 to 9.12"}, {"cudnn-9.13", AttentionKernel::cudnn_9_13, "and later"}, {"mem-efficient", AttentionKernel::mem_efficient, ""}, {"math", AttentionKernel::sdpa_math, ""},
                      {"triton", AttentionKernel::triton, ""}, {"flex", AttentionKernel::flex, "FlexAttention, as Triton compiles it"}}),
      config::boolean("aiter_attention", &P::aiter_attention, "on AMD's GPUs fused attention is AITER's, as Transformer Engine takes it"),
      config::boolean("sdpa_attention", &P::sdpa_attention, "fused attention is PyTorch's scaled_dot_product_attention (on AMD's GPUs AOTriton's), not flash-attn's"),
      config::boolean("untuned_products", &P::untuned_products, "aiter_attention: on AMD's GPUs products are as hipBLASLt's heuristics choose them"),
      config::boolean("triton_backward", &P::triton_backward, "sdpa_attention: on AMD's GPUs its backward is Triton's (AOTriton before 0.11), not AITER's assembly"),
      config::boolean("sinks_rescale", &P::sinks_rescale, "attention sinks: the kernel's output is scaled by operators"),
      config::choice("flex_attention", &P::flex_attention, "whose attention is PyTorch's FlexAttention, on GPUs from Ampere on",
                     {{"never", FlexUse::never, ""}, {"with-sinks", FlexUse::with_sinks, "models with attention sinks (GPT-OSS)"}, {"without-sinks", FlexUse::without_sinks, "all others"}}),
      config::integer("cudnn_attention_from", &P::cudnn_attention_from, "compute capability from which cuDNN's attention is preferred; 0: never", config::non_negative),
      config::choice("cudnn_attention", &P::cudnn_attention, "which cuDNN that is", {{"cudnn", AttentionKernel::cudnn, "9.4 to 9.12"}, {"cudnn-9.13", AttentionKernel::cudnn_9_13, "and later"}}),
      config::boolean("masked_attention", &P::masked_attention, "fused attention gets the causal mask as a tensor, and computes all scores"),
      config::boolean("attention_fused", &P::attention_fused, "false: scores in memory"),
      config::boolean("softmax_in_fp32", &P::softmax_in_fp32, "attention_fused false: scale, mask and softmax are operators of their own on an fp32 copy of the scores"),
      config::boolean("clamps_scores", &P::clamps_scores, "eager attention keeps masked scores, of which it takes none below the least number, and softmax of fp16 is in fp32"),
      config::boolean("memory_buffer", &P::memory_buffer, "unfused scores, and tokens that experts gather, are written into a buffer that grows to the largest and stays"),
      config::boolean("weighted_squared_relu", &P::weighted_squared_relu, "experts' squared relu multiplies by the router's weights in its own kernel"),
      config::boolean("scripted_gelu", &P::scripted_gelu, "the MLP's gelu is a script that is not fused, of which autograd keeps six tensors beside its input"),
      config::boolean("masks_by_product", &P::masks_by_product, "attention_fused false: heads are copied, scores are multiplied with the mask and a large number is taken off"),
      config::boolean("wide_residual", &P::wide_residual, "the residual stream is fp32; one kernel drops out, adds and normalises"),
      config::boolean("gradients_in_place", &P::gradients_in_place, "fused kernels write gradients over what they read"),
      config::boolean("norm_sums_weights", &P::norm_sums_weights, "a norm's backward kernel sums the weight's gradient too"),
      config::boolean("fused_dense", &P::fused_dense, "bias gradients, and the gelu of an MLP without gate, are made inside products"),
      config::boolean("spelled_layer_norm", &P::spelled_layer_norm, "LayerNorm is written out in operators: mean, var, difference, quotient, product and sum"),
      config::boolean("norm_upcasts", &P::norm_upcasts, "norms read an fp32 copy of their input; copy and norm are made again in backward"),
      config::boolean("fused_qkv", &P::fused_qkv, "one product for query, key and value"),
      config::boolean("copies_fused_qkv", &P::copies_fused_qkv, "queries, keys and values of one product are copied out of it"),
      config::boolean("fused_gate_up", &P::fused_gate_up, "one product for gate and up"),
      config::boolean("whole_embedding", &P::whole_embedding, "tensor parallel: every rank has the whole table of words; false: its part of the vocabulary"),
      config::boolean("whole_head_without_sequence", &P::whole_head_without_sequence, "tensor parallel without sequence parallelism: every rank has the whole output layer; false: its part of the vocabulary"),
      config::boolean("one_hot_embedding", &P::one_hot_embedding, "tokens are looked up by a product with the table"),
      config::boolean("keeps_logits", &P::keeps_logits, "16-bit logits are held until the loss is known"),
      config::boolean("copies_shifted_logits", &P::copies_shifted_logits, "loss upcast, upcast-fused: the last position is cut off and the rest of the fp32 logits copied"),
      config::boolean("loss_parallel", &P::loss_parallel, "loss upcast, compiled: under tensor parallelism the loss works on sharded logits as PyTorch's loss_parallel does"),
      config::boolean("gathers_logits", &P::gathers_logits, "tensor parallel: shards of the logits are gathered, every rank computes the whole loss"),
      config::boolean("waits_for_input_gradients", &P::waits_for_input_gradients, "tensor parallel: the input gradient's reduction does not run beside the weight gradient"),
      config::boolean("keeps_gathered_input", &P::keeps_gathered_input, "sequence parallel: the gathered input is kept for backward"),
      config::boolean("gathers_by_block", &P::gathers_by_block, "sequence parallel: what attention and the MLP read is gathered once for all their products"),
      config::boolean("shares_gathered", &P::shares_gathered, "sequence parallel: products that read the same input gather it once and keep it, each scatters its own gradient"),
      config::boolean("sequence_second", &P::sequence_second, "sequence parallel: tensors are copied after they are gathered along the sequence, and before they are scattered"),
      config::boolean("gathers_into_buffers", &P::gathers_into_buffers, "sequence parallel: gathered tensors lie in two buffers made once"),
      config::choice("record_streams", &P::record_streams, "which collectives of the tensor group keep freed buffers until the device has got there",
                     {{"none", RecordStreams::none, ""}, {"async", RecordStreams::async, ""}, {"all", RecordStreams::all, ""}}),
      config::boolean("asynchronous_row", &P::asynchronous_row, "row-parallel products keep their input as it came, not a copy in their own order"),
      config::boolean("repacks_qkv", &P::repacks_qkv, "q, k and v are copied into their own layouts before rotation and attention"),
      config::boolean("packs_qkv", &P::packs_qkv, "q, k and v are reordered and joined for the attention kernel, its output is ordered back"),
      config::boolean("orders_by_sample", &P::orders_by_sample, "flash attention: values are copied out of the fused product; of several samples queries and keys too are ordered by sample, and the output back"),
      config::boolean("joint_branches", &P::joint_branches, "parallel residual: the sum of both branches is reduced over the tensor group, not each"),
      config::boolean("repeat_kv", &P::repeat_kv, "keys and values are copied to all query heads"),
      config::boolean("exchanges_repeated_kv", &P::exchanges_repeated_kv, "repeat_kv under Ulysses: keys and values are copied before heads are exchanged"),
      config::choice("context", &P::context, "attention under context parallelism", context_kinds()),
      config::boolean("dropout", &P::dropout, "trains with dropout"),
      config::boolean("scripted_dropout", &P::scripted_dropout, "bias, dropout and residual add are a TorchScript function, whose backward keeps a mask even where nothing is dropped"),
      config::boolean("grouped_experts", &P::grouped_experts, "one grouped product for all experts of a rank; false: a loop"),
      config::boolean("sums_slots_by_index_add", &P::sums_slots_by_index_add, "each token's outputs are summed by index_add_, whose autograd keeps them"),
      config::boolean("default_save_list", &P::default_save_list, "per-operator selective checkpointing keeps every product with a bias and every exchange of tokens"),
      config::boolean("weighs_wide_outputs", &P::weighs_wide_outputs, "with weighs_expert_outputs: they multiply an fp32 copy"),
      config::boolean("weighs_expert_outputs", &P::weighs_expert_outputs, "the router's weights multiply what experts return, not what their second product reads"),
      config::boolean("fused_expert_mlp", &P::fused_expert_mlp, "activation, biases and quantisation of grouped experts happen inside their products"),
      config::boolean("native_grouped", &P::native_grouped, "grouped products are PyTorch's own kernel, torch._grouped_mm"),
      config::boolean("expert_launches", &P::expert_launches, "each expert's product and quantisation is a launch of its own"),
      config::boolean("separate_expert_bias", &P::separate_expert_bias, "the bias after the experts is added expert by expert in fp32"),
      config::boolean("separate_first_expert_bias", &P::separate_first_expert_bias, "the bias of experts' first product is added expert by expert"),
      config::boolean("cublas_10", &P::cublas_10, "cuBLAS before 11.0: 16-bit products that are not aligned are computed on CUDA cores"),
      config::boolean("repeats_expert_bias", &P::repeats_expert_bias, "where nothing is compiled, experts' biases are copied to each of their slots and added, and their gradients added up by atomics"),
      config::boolean("separate_clamp", &P::separate_clamp, "clamping before experts' activations is operators of its own"),
      config::boolean("routes_by_map", &P::routes_by_map, "experts have Megatron's map of tokens and experts, balancing loss and counts, which are exchanged before tokens are"),
      config::boolean("fused_router", &P::fused_router, "routes_by_map: the router's scores, map and loss are Transformer Engine's kernels; false: PyTorch's operators"),
      config::boolean("fused_permute", &P::fused_permute, "routes_by_map: tokens are copied and summed by Transformer Engine's kernels; false: PyTorch's operators, which the host waits for"),
      config::boolean("mask_products", &P::mask_products, "tokens reach their slots, and outputs their tokens, by products with one-hot masks"),
      config::boolean("masks_by_sample", &P::masks_by_sample, "mask_products: a mask is of one sample's tokens and slots, not of all of the micro-batch"),
      config::boolean("dispatcher_keeps_weights", &P::dispatcher_keeps_weights, "DeepEP: the layer keeps the router's weights and the graph that made them until its next forward"),
      config::boolean("wide_router", &P::wide_router, "experts: the router's product is of fp32 copies of its operands"),
      config::boolean("fused_index_map", &P::fused_index_map, "DeepEP: a token's list of experts becomes a map of tokens and experts in one kernel; false: by operators, which the host waits for"),
      config::boolean("activation_finds_maximum", &P::activation_finds_maximum, "SwiGLU and its backward find the maximum of what the next product casts, where its scale is the tensor's own"),
      config::boolean("current_scaling", &P::current_scaling, "fp8 scales come from a pass over the tensor itself"),
      config::choice("dispatcher", &P::dispatcher, "how tokens reach their experts", dispatchers()),
      config::boolean("overlap_shared_experts", &P::overlap_shared_experts, "shared experts run while tokens travel"),
      config::boolean("deterministic_attention", &P::deterministic_attention, "attention's backward adds in a fixed order"),
      config::boolean("compiled", &P::compiled, "torch.compile on each layer"),
      format("stored_parameter", &P::stored_parameter, "what modules hold"),
      config::boolean("master_parameters", &P::master_parameters, "fp32 copy beside 16-bit parameters"),
      format("master_parameter", &P::master_parameter, "format of that copy"),
      config::boolean("parameter_remainders", &P::parameter_remainders, "of that copy only the 16 bits that the parameters lack (Apex's store_param_remainders)"),
      format("gradient", &P::gradient, "accumulated gradients"),
      format("reduce", &P::reduce, "gradient reduction"),
      format("context_reduce", &P::context_reduce, "the same under context parallelism, where it is another"),
      config::boolean("wide_bf16_in_stages", &P::wide_bf16_in_stages, "bf16 training under pipeline stages, or under ZeRO-1 with fp32 gradients asked for, adds the 16-bit gradients of each micro-batch to whole fp32 ones"),
      format("wide_bf16_reduce", &P::wide_bf16_reduce, "the format in which those are reduced"),
      config::boolean("wide_bf16_gradients", &P::wide_bf16_gradients, "training accumulates and reduces gradients in fp32, but training in fp16 in 16 bits"),
      format("optimizer_state", &P::optimizer_state, "moments"),
      config::boolean("columns_in_backward", &P::columns_in_backward, "fp8: operands of weight gradients are made in backward, of what forward multiplied or of what recomputation makes again"),
      config::integer("attention_output_bits", &P::attention_output_bits, "attention's output waits for backward in so many bits per value; 0: as it is", config::between(0, 16)),
      config::boolean("narrow_dispatch", &P::narrow_dispatch, "fp8: tokens, and gradients of experts' outputs, travel to the experts' ranks in 8 bits"),
      config::boolean("narrows_one_by_one", &P::narrows_one_by_one, "fp32 is cast to 16 bits element by element (PyTorch before 2.6)"),
      config::boolean("autocast", &P::autocast, "16-bit copies of fp32 weights are made per use"),
      config::boolean("narrow_embedding", &P::narrow_embedding, "autocast: the embedding's result has 16 bits, and so has the residual stream"),
      config::boolean("keeps_cast_weights", &P::keeps_cast_weights, "copies of weights in fewer bits stay from a step's first micro-batch on"),
      config::boolean("keeps_transposed_weights", &P::keeps_transposed_weights, "fp8 weights in both orientations stay from use to use"),
      config::boolean("fp8_parameters", &P::fp8_parameters, "weights of 8-bit products are kept in 8 bits, without 16-bit ones"),
      config::boolean("fused_gradient_accumulation", &P::fused_gradient_accumulation, "weight-gradient products add into the main gradient"),
      config::boolean("dummy_weight_gradients", &P::dummy_weight_gradients, "one 16-bit dummy gradient per weight shape"),
      format("adapter", &P::adapter, "low-rank adapters"),
      config::boolean("adapter_autocast", &P::adapter_autocast, "fp32 adapters are computed in 16 bit"),
      config::boolean("scales_adapter_inside", &P::scales_adapter_inside, "an adapter is scaled between its two products, not after them"),
      config::boolean("adapter_per_part", &P::adapter_per_part, "a fused linear layer has an adapter for each of its parts"),
      config::boolean("clones_quantised_output", &P::clones_quantised_output, "adapters beside 4-bit weights: the product's output is copied; their input is not cast to fp32 under autocast"),
      config::boolean("unties_embeddings", &P::unties_embeddings, "the output layer has a table of its own where the model ties it"),
      config::boolean("value_is_view", &P::value_is_view, "values stay a view of the fused projection"),
      config::boolean("input_require_gradients", &P::input_require_gradients, "the embedding's output wants a gradient under recomputation"),
      config::boolean("keeps_original_of_trained", &P::keeps_original_of_trained, "modules trained whole beside adapters are copies"),
      config::boolean("quantises_head", &P::quantises_head, "4-bit weights: the output layer as well"),
      config::boolean("keeps_quantised_inputs", &P::keeps_quantised_inputs, "4-bit weights: a product's node holds its input until the graph goes"),
      config::boolean("quantised_from_fp16", &P::quantised_from_fp16, "4-bit weights come back in fp16 and are cast to the format of the product"),
      config::boolean("holds_last_graph", &P::holds_last_graph, "the graph of a micro-batch lives until the next one's loss"),
      config::boolean("holds_output", &P::holds_output, "the model's output, logits with it, lives as long as the graph"),
      config::boolean("checkpoints_in_units", &P::checkpoints_in_units, "FSDP1: checkpoints are inside units; false: around them"),
      config::boolean("narrows_activation_input", &P::narrows_activation_input, "a fused activation saves its input in 8 bits"),
      config::boolean("remakes_from_narrow", &P::remakes_from_narrow, "narrows_activation_input: a fused activation is made again of its input in 8 bits"),
      config::boolean("root_unit", &P::root_unit, "FSDP: embedding, final norm and output layer are one unit, gathered from the start of a micro-batch to its end"),
      config::boolean("wraps_adapters", &P::wraps_adapters, "FSDP1: adapters are units of their own; false: what is frozen beside them is reduced as zeros"),
      config::boolean("upcasts_unquantised", &P::upcasts_unquantised, "4-bit weights: what stays 16 bit becomes fp32"),
      config::boolean("narrows_tables", &P::narrows_tables, "upcasts_unquantised: embedding and output layer go back to 16 bit"),
      config::integer("bucket_elements", &P::bucket_elements, "gradient bucket; 0: one bucket", config::non_negative),
      config::integer("bucket_elements_per_rank", &P::bucket_elements_per_rank, "buckets have at least this times the data-parallel degree", config::non_negative),
      config::boolean("flattens_on_device", &P::flattens_on_device, "ZeRO-1 and 2: parameters are copied into one tensor on the GPU"),
      config::boolean("bucket_in_reduce_format", &P::bucket_in_reduce_format, "ZeRO-3: the bucket has the format in which gradients are reduced"),
      config::boolean("bucket_by_layer", &P::bucket_by_layer, "distributed optimizer: a bucket is a layer, under pipeline stages a chunk, whatever its size"),
      config::bytes("replica_bucket", &P::replica_bucket, "sharded parameters: shards whose gradients are summed over replicas in one go; 0: a unit's", config::non_negative),
      config::boolean("overlap_gradient_reduce", &P::overlap_gradient_reduce, "reduction runs under backward"),
      config::boolean("overlap_parameter_gather", &P::overlap_parameter_gather, "gather runs under the next forward"),
      config::boolean("fused_optimizer", &P::fused_optimizer, "one pass over the states; false: foreach"),
      config::boolean("muon_owners", &P::muon_owners, "without ZeRO: each matrix is orthogonalised by one rank of the data-parallel group, which alone has its moment"),
      config::boolean("sums_muon_updates", &P::sums_muon_updates, "muon_owners: updates travel in 16 bits, as a sum over all ranks"),
      config::boolean("reduces_each_pass", &P::reduces_each_pass, "without ZeRO: gradients are reduced after every micro-batch"),
      config::boolean("waits_after_step", &P::waits_after_step, "the host waits for the device when a step is over"),
      config::boolean("blocking_input", &P::blocking_input, "the host waits for the device before each micro-batch, whose copy to it is blocking"),
      config::integer("training_metrics", &P::training_metrics, "losses taken once more of each micro-batch's logits, after its backward, to log them", config::non_negative),
      config::boolean("reads_loss", &P::reads_loss, "the host waits for each micro-batch's loss"),
      config::boolean("keeps_gradient_sums", &P::keeps_gradient_sums, "offloaded optimizer under ZeRO-3: host memory has 16-bit sums of gradients even of one micro-batch"),
      config::boolean("fetch_sync", &P::fetch_sync, "ZeRO-3: parameters are gathered one by one, the host waiting for the device before each and before modules that needed any"),
      config::boolean("counts_live_anew", &P::counts_live_anew, "ZeRO-3: what stays gathered from one micro-batch to the next does not count among live parameters"),
      config::boolean("main_gradients", &P::main_gradients, "gradients add up in the framework's own buffers, which are reduced, whatever their format"),
      config::boolean("widens_gradients", &P::widens_gradients, "the update begins with joined fp32 copies of 16-bit gradients: under ZeRO-1 and 2 of its own, in fp16 of all without ZeRO"),
      config::boolean("unscales_gradients", &P::unscales_gradients, "fp16 without ZeRO: the update begins with fp32 copies of gradients, which are divided by the loss scale and searched for overflow"),
      config::boolean("flattens_gradients", &P::flattens_gradients, "without ZeRO: after backward all 16-bit gradients are copied into one tensor, averaged, reduced and copied back, of one replica too"),
      config::number("gradient_buffer", &P::gradient_buffer, "ZeRO-1 and 2: the buffer that gradients are put together in from the loss on, in reduction buckets; 0: made at the start", config::non_negative),
      config::boolean("synchronises_buckets", &P::synchronises_buckets, "ZeRO-1 and 2 under backward: the host waits for the device before each bucket"),
      config::choice("bucket_wait", &P::bucket_wait, "ZeRO-1 and 2 under backward: for what compute waits as a bucket goes",
                     {{"none", BucketWait::none, "nothing"}, {"earlier", BucketWait::earlier, "the reductions before it"}, {"own", BucketWait::own, "its own reduction too"}}),
      config::boolean("buckets_late", &P::buckets_late, "gradient_buffer is made with the first gradient, not after the loss"),
      config::boolean("zero1_gradient_buffer", &P::zero1_gradient_buffer, "gradient_buffer is ZeRO-1's too; false: its buckets are put together when they are reduced"),
      config::choice("offload_return", &P::offload_return, "offloaded optimizer under ZeRO-1 and 2: how updated parameters get back to the GPU", offload_returns()),
      config::integer("update_tile", &P::update_tile, "under-update: elements that are updated before they cross", config::positive),
      config::boolean("checks_by_parameter", &P::checks_by_parameter, "ZeRO-1 and 2: overflow and norm are found parameter by parameter, the host waiting for each; in fp16 without ZeRO overflow alone"),
      config::boolean("gradient_norm_sync", &P::gradient_norm_sync, "the host reads the gradient norm"),
      config::boolean("overlap_messages", &P::overlap_messages, "messages of the interleaved schedule travel under the passes"),
      config::boolean("message_sync", &P::message_sync, "the host waits for the device after each blocking exchange between stages"),
      config::boolean("send_sync", &P::send_sync, "message_sync: also after exchanges that only send"),
      config::duration("message_poll", &P::message_poll, "blocking exchanges: the host sleeps so long between looks at the two messages that announce each tensor", kOfCall),
      config::boolean("widens_before_adding", &P::widens_before_adding, "of each 16-bit gradient an fp32 copy is made, and added to the fp32 sum after the micro-batch's backward"),
      config::boolean("zeroes_narrow_gradients", &P::zeroes_narrow_gradients, "accumulates_after_backward: the 16-bit gradients stay, are zeroed before each backward and added to"),
      config::boolean("lazy_modules", &P::lazy_modules, "kernels are loaded when they are first used (CUDA_MODULE_LOADING=LAZY); false: all of a library with it"),
      config::boolean("connects_at_once", &P::connects_at_once, "NCCL before 2.22: a communicator connects rings, trees and NVLS when it is made, not at first use"),
      config::boolean("splits_messages", &P::splits_messages, "tensor parallel without sequence parallel: each rank sends its share of a message"),
      config::boolean("pipeline_by_cost", &P::pipeline_by_cost, "stages are balanced by compute, head included"),
      config::boolean("passes_share", &P::passes_share, "pipeline_by_cost: a stage ends with the layer that goes beyond its share; false: that reaches it"),
      config::boolean("ddp_bucket_copies", &P::ddp_bucket_copies, "under DDP its 16-bit buckets live beside the fp32 gradients"),
      config::boolean("fsdp2", &P::fsdp2, "sharded by FSDP2; false: by FSDP1"),
      config::boolean("accumulates_unsharded", &P::accumulates_unsharded, "FSDP: gradients of all but the last micro-batch stay whole (no_sync)"),
      config::boolean("accumulates_after_backward", &P::accumulates_after_backward, "16-bit gradients live until the micro-batch's backward is over"),
      config::boolean("reduces_over_all", &P::reduces_over_all, "buckets are flattened, summed over all replicas at once and copied back"),
      config::boolean("scatters_gradients", &P::scatters_gradients, "ZeRO-1: buckets of gradients are reduce-scattered; false: all-reduced"),
      config::boolean("reduces_to_owner", &P::reduces_to_owner, "ZeRO-2: buckets of gradients are reduced to the ranks that own their parts; false: all-reduced"),
      config::boolean("joins_scattered", &P::joins_scattered, "scatters_gradients: the pieces are joined to all gradients once more"),
      config::boolean("gathers_by_broadcast", &P::gathers_by_broadcast, "sharded updates: one broadcast after the other, of each rank's share"),
      config::integer("cpu_threads", &P::cpu_threads, "threads of a process's work on the CPU, as the launcher leaves it; 0: one per core", config::non_negative),
      config::boolean("states_at_first_step", &P::states_at_first_step, "optimizer states are made in the first step, weight by weight; false: with the parameters"),
      config::boolean("reduces_whole", &P::reduces_whole, "distributed optimizer: one all-reduce of all gradients after the last backward"),
      config::boolean("gathers_through_copies", &P::gathers_through_copies, "sharded updates: gathered into a buffer per rank, then copied"),
      config::boolean("parameter_buffer", &P::parameter_buffer, "Megatron's distributed optimizer: parameters are made one by one, then copied into one buffer"),
      config::boolean("gathers_in_gradients", &P::gathers_in_gradients, "Megatron's distributed optimizer before 2024: weights are gathered in the gradients' buffer, whose view is made beside a tensor of its size"),
      config::boolean("keeps_sent_output", &P::keeps_sent_output, "pipeline stages: what was sent on stays until its backward"),
      config::boolean("overlap_tensor", &P::overlap_tensor, "sequence-parallel collectives travel in pieces under the products that need or make them"),
      config::boolean("receives_into_buffers", &P::receives_into_buffers, "pipeline messages of all micro-batches have buffers of their own, which stay"),
      config::boolean("retains_graph", &P::retains_graph, "a split backward keeps all that was saved until the weight gradients"),
      config::boolean("early_stop_recompute", &P::early_stop_recompute, "recomputation stops after the last needed tensor"),
      config::boolean("checkpoints_fused_attention", &P::checkpoints_fused_attention, "selective recomputation of core_attn: also where one kernel computes it"),
      config::boolean("reentrant_checkpoint", &P::reentrant_checkpoint, "a recomputed layer has a backward of its own within backward"),
      config::duration("kernel_host", &P::kernel_host, "host time to issue one forward kernel", kOfCall),
      config::duration("backward_kernel_host", &P::backward_kernel_host, "host time to issue one backward kernel", kOfCall),
      config::duration("collective_host", &P::collective_host, "host time to issue one collective", kOfCall),
      config::duration("layer_host", &P::layer_host, "host time per layer beyond its kernels", kOfCall),
      config::duration("layer_backward_host", &P::layer_backward_host, "host time per layer of backward beyond its kernels", kOfCall),
      config::duration("checkpoint_host", &P::checkpoint_host, "host time of a checkpoint that is not reentrant, per layer of forward", kOfCall),
      config::duration("recompute_host", &P::recompute_host, "the same per recomputed layer, beyond a forward", kOfCall),
      config::duration("reentrant_host", &P::reentrant_host, "host time of a reentrant checkpoint per recomputed layer, beyond a forward", kOfCall),
      config::duration("tensor_host", &P::tensor_host, "host time per layer under tensor parallelism, beyond its launches", kOfCall),
      config::duration("tensor_backward_host", &P::tensor_backward_host, "the same of backward", kOfCall),
      config::duration("tensor_recompute_host", &P::tensor_recompute_host, "the same of a recomputed forward, beyond a forward's", kOfCall),
      config::duration("operator_checkpoint_host", &P::operator_checkpoint_host, "host time per layer of forward whose checkpoint decides operator by operator", kOfCall),
      config::duration("operator_recompute_host", &P::operator_recompute_host, "the same where the layer is recomputed, beyond recompute_host", kOfCall),
      config::duration("adapter_host", &P::adapter_host, "host time of a low-rank adapter's forward, beyond its kernels", kOfCall),
      config::duration("unpack_host", &P::unpack_host, "host time of making a GPTQ weight 16 bits, beyond its kernels", kOfCall),
      config::duration("gradient_host", &P::gradient_host, "host time of ZeRO-2's hook per trained parameter of a layer, of backward", kOfCall),
      config::duration("list_part_host", &P::list_part_host, "ZeRO-3: host time per rank of a gather or reduce-scatter of lists of tensors, one per rank; 0: of whole tensors", kOfCall),
      config::duration("submodule_host", &P::submodule_host, "host time of ZeRO-3's hooks per module of a layer", kOfCall),
      config::duration("submodule_backward_host", &P::submodule_backward_host, "host time of ZeRO-3's hooks per module of a layer, of backward", kOfCall),
      config::duration("reduction_host", &P::reduction_host, "host time of ZeRO-3 per reduction of a bucket, beyond its launches", kOfCall),
      config::duration("unit_host", &P::unit_host, "host time of FSDP's hooks per unit of forward, beyond launches", kOfCall),
      config::duration("unit_backward_host", &P::unit_backward_host, "the same of backward", kOfCall),
      config::duration("gather_host", &P::gather_host, "host time of ZeRO-3 per all-gather of parameters, beyond its launches", kOfCall),
      config::duration("gathered_parameter_host", &P::gathered_parameter_host, "the same per parameter in it, until it is let go", kOfCall),
      config::duration("gathered_part_host", &P::gathered_part_host, "the same per parameter gathered with others and rank that has a part of it", kOfCall),
      config::duration("gradient_part_host", &P::gradient_part_host, "host time of ZeRO-3 per gradient and rank that gets a part of it", kOfCall),
      config::integer("part_ranks_measured", &P::part_ranks_measured, "ranks of the largest group that gathered_part_host and gradient_part_host were measured over; larger ones are noted", config::non_negative),
      config::duration("bucket_host", &P::bucket_host, "host time of ZeRO-3 per gradient that enters the bucket, beyond its copy", kOfCall),
      config::duration("expert_host", &P::expert_host, "host time per layer of experts beyond its kernels", kOfCall),
      config::duration("expert_backward_host", &P::expert_backward_host, "host time per layer of experts of backward beyond its kernels", kOfCall),
      config::duration("exchange_host", &P::exchange_host, "host time per layer of exchanging slots between ranks of experts, beyond its launches", kOfCall),
      config::duration("exchange_backward_host", &P::exchange_backward_host, "the same of backward", kOfCall),
      config::duration("region_host", &P::region_host, "host time per recomputed part of a layer, beyond its launches", kOfCall),
      config::duration("grouped_host", &P::grouped_host, "host time per expert and grouped linear layer beyond its kernels", kOfCall),
      config::duration("grouped_backward_host", &P::grouped_backward_host, "host time per expert and grouped linear layer of backward beyond its kernels", kOfCall),
      config::duration("grouped_low_host", &P::grouped_low_host, "grouped_host of products in 8 or fewer bits", kOfCall),
      config::duration("scan_exchange_host", &P::scan_exchange_host, "host time of a scan's exchanges over a context group, forward", kOfCall),
      config::duration("scan_exchange_backward_host", &P::scan_exchange_backward_host, "the same, backward", kOfCall),
      config::duration("scan_host", &P::scan_host, "host time per Triton kernel of a state-space scan, beyond a plain launch", kOfCall),
      config::duration("triton_host", &P::triton_host, "Python's part of a launch by Triton: Transformer Engine's fused permutations", kOfCall),
      config::duration("grouped_low_backward_host", &P::grouped_low_backward_host, "grouped_backward_host of products in 8 or fewer bits", kOfCall),
      config::duration("fused_operator_host", &P::fused_operator_host, "host time per norm, rotary embedding and activation in forward that Python launches: Liger's, unsloth's", kOfCall),
      config::duration("fused_operator_backward_host", &P::fused_operator_backward_host, "the same in backward", kOfCall),
      config::duration("norm_host", &P::norm_host, "host time per parameter that a rank updates, until the norm of gradients", kOfCall),
      config::duration("update_host", &P::update_host, "host time per parameter that a rank updates, from the norm of gradients on", kOfCall),
      config::duration("collection_host", &P::collection_host, "Python collects its garbage once", kOfStep),
      config::duration("step_host", &P::step_host, "host time per step: data, logging, scheduler", kOfStep),
      config::duration("proxy_stall", &P::proxy_stall, "wait of a layer's collective within a node per rank, while pipeline messages between nodes are outstanding", kOfCall),
      config::number("collective_sm_factor", &P::collective_sm_factor, "SMs that collectives take from kernels beside them, of what the GPU's file says", config::non_negative),
      config::boolean("expandable_segments", &P::expandable_segments, "allocator setting"),
      config::bytes("cublas_workspace", &P::cublas_workspace, "cuBLAS workspace of one handle; 0: PyTorch's on that GPU", config::non_negative),
      config::boolean("transformer_engine", &P::transformer_engine, "linear layers are Transformer Engine's"),
      config::bytes("misc_device", &P::misc_device, "other device bytes outside the allocator", config::non_negative),
      config::integer("vocab_multiple", &P::vocab_multiple, "vocabulary rows are padded to a multiple", config::positive),
      config::boolean("vocab_times_tensor", &P::vocab_times_tensor, "the multiple grows with the tensor degree"),
      config::text("data_parallel_kinds", &P::data_parallel_kinds, "kinds of data parallelism that the framework has: advise offers no others"),
      config::text("selective_modules", &P::selective_modules, "what `recompute: selective` recomputes"),
      config::choice("default_recompute", &P::default_recompute, "recomputation of its published configurations", {{"none", Recompute::none, ""}, {"selective", Recompute::selective, ""}, {"full", Recompute::full, ""}}),
  };
  return table;
}

}  // namespace

namespace {

std::filesystem::path file_of_profile(const std::string& name, const std::function<Diagnostic(std::string, std::string)>& complain) {
  const auto names = profile_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known;
    for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
    if (const std::string meant = profiles_meant_by(name); !meant.empty()) throw ConfigError(complain("there is no framework profile '" + name + "'", meant));
    throw ConfigError(complain("there is no framework profile '" + name + "'", did_you_mean(name, names, "Known: " + known)));
  }
  return resource_root() / kFolder / (name + ".yaml");
}

/// A profile over another: `extends` names one of ours, or a file beside this one.
config::Value layered(const std::filesystem::path& file, int depth) {
  const config::Document document = config::load_document(file);
  const config::Value* base = document.root.find("extends");
  if (base == nullptr) return document.root;
  if (!base->is_scalar() || depth > 8) throw ConfigError(base->diagnostic("is no name of a profile, or the files extend one another in a circle", "Write extends: megatron-core"));
  config::Value below;
  if (config::is_file_name(base->text())) below = layered(file.parent_path() / base->text(), depth + 1);
  else below = config::load_document(file_of_profile(base->text(), [&](std::string problem, std::string fix) { return base->diagnostic(std::move(problem), std::move(fix)); })).root;
  std::vector<config::Value::Entry> own;
  for (const config::Value::Entry& e : document.root.entries())
    if (e.key != "extends") own.push_back(e);
  return config::merged(below, config::Value::map(std::move(own), document.root.place(), document.root.path()));
}

/// Names in a list that a catalog knows better than the field: no kind of data parallelism is misspelt.
void check_kinds(const FrameworkProfile& profile, const config::Value& keys, config::Diagnostics& problems) {
  const config::Value* list = keys.find("data_parallel_kinds");
  if (list == nullptr) return;
  const std::vector<std::string> names = data_parallel_kinds().names();
  for (const std::string& kind : profile.data_parallel_kinds)
    if (data_parallel_kinds().find(kind) == nullptr) problems.push_back(list->diagnostic("there is no kind of data parallelism '" + kind + "'", did_you_mean(kind, names, fmt::format("Known: {}", fmt::join(names, ", ")))));
}

FrameworkProfile read_profile(const std::string& name) {
  const bool own = config::is_file_name(name);
  const std::filesystem::path path = own ? std::filesystem::path(name) : file_of_profile(name, [](std::string problem, std::string fix) {
    return Diagnostic{{}, "training.framework", std::move(problem), std::move(fix), ""};
  });
  config::Diagnostics problems;
  const config::Value root = layered(path, 0);
  FrameworkProfile profile = config::read(root, fields(), problems);
  check_kinds(profile, root, problems);
  config::throw_if_any(std::move(problems));
  if (own) profile.own_text = config::to_yaml(root);
  profile.name = name;
  profile.file = own ? name : std::string(kFolder) + "/" + name + ".yaml";
  return profile;
}

}  // namespace

FrameworkProfile load_profile(const std::string& name) {
  static Remembered<std::string, FrameworkProfile> profiles;
  return config::is_file_name(name) ? read_profile(name) : profiles.get(name, [&] { return read_profile(name); });
}

FrameworkProfile with_keys(FrameworkProfile profile, const config::Value& keys) {
  config::Diagnostics problems;
  config::amend(profile, keys, fields(), problems);
  check_kinds(profile, keys, problems);
  config::throw_if_any(std::move(problems));
  return profile;
}

config::Value different_keys(const FrameworkProfile& profile, const FrameworkProfile& other) { return config::differences(profile, other, fields(), "profile"); }

FrameworkProfile with_precision(FrameworkProfile profile, Precision precision) {
  const bool wide = precision == Precision::fp32 || precision == Precision::tf32;
  const DType narrow = precision == Precision::fp16 ? DType::fp16 : DType::bf16;
  for (DType* format : {&profile.stored_parameter, &profile.gradient, &profile.reduce, &profile.optimizer_state, &profile.adapter})
    *format = wide ? DType::fp32 : bits(*format) == 16 ? narrow : *format;
  if (precision == Precision::fp16) profile.parameter_remainders = false;   // fp16 is no prefix of fp32, as bf16 is
  if (profile.wide_bf16_gradients && !wide) profile.gradient = profile.reduce = precision == Precision::fp16 ? DType::fp16 : DType::fp32;
  if (!wide) return profile;
  profile.master_parameters = false;
  profile.autocast = false;
  return profile;
}

FrameworkProfile with_workspaces(FrameworkProfile profile, Bytes cublas, Bytes transformer_engine, bool experts) {
  const Bytes handle = profile.cublas_workspace > Bytes{0} ? profile.cublas_workspace : cublas;
  profile.workspaces = {handle, handle};
  const bool routes_by_it = experts && profile.expert_launches;   // Megatron, of whose layers some are its own
  if (profile.transformer_engine || routes_by_it) profile.workspaces.push_back(transformer_engine);
  constexpr int kStreams = 4;   // transformer_engine/common/util/multi_stream.cpp, nvte_get_num_compute_streams
  if (routes_by_it && profile.transformer_engine && profile.grouped_experts) profile.workspaces.insert(profile.workspaces.end(), kStreams, transformer_engine);
  return profile;
}

std::vector<Duration*> issue_times(FrameworkProfile& p) {
  return {&p.kernel_host, &p.backward_kernel_host, &p.collective_host, &p.layer_host, &p.layer_backward_host, &p.checkpoint_host, &p.recompute_host, &p.reentrant_host,
          &p.tensor_host, &p.tensor_backward_host, &p.tensor_recompute_host, &p.operator_checkpoint_host, &p.operator_recompute_host,
          &p.submodule_host, &p.submodule_backward_host, &p.unit_host, &p.unit_backward_host, &p.gather_host, &p.gathered_parameter_host, &p.gathered_part_host, &p.gradient_part_host, &p.list_part_host, &p.bucket_host, &p.reduction_host, &p.gradient_host, &p.adapter_host, &p.unpack_host, &p.expert_host, &p.expert_backward_host, &p.exchange_host, &p.exchange_backward_host, &p.region_host,
          &p.grouped_host, &p.grouped_backward_host, &p.grouped_low_host, &p.grouped_low_backward_host, &p.triton_host, &p.scan_host, &p.scan_exchange_host, &p.scan_exchange_backward_host, &p.collection_host,
          &p.fused_operator_host, &p.fused_operator_backward_host, &p.norm_host, &p.update_host};
}

std::vector<std::string> profile_names() { return resource_names(kFolder, ".yaml"); }

model::KernelKind conversion(const FrameworkProfile& profile, std::int64_t read, std::int64_t written) {
  return written > read || profile.narrows_one_by_one ? model::KernelKind::converting : model::KernelKind::elementwise;
}

FrameworkProfile with_choices(FrameworkProfile p, const Strategy& strategy) {
  const Training& training = strategy.training;
  p.dropout = p.dropout && training.phase != StepKind::evaluation;   // model.eval()
  // DeepSpeed v0.12.6 runtime/engine.py, _do_optimizer_sanity_check: BFLOAT16.
  const bool wide_asked_for = strategy.data_parallel.kind == DataParallelKind::zero1 && strategy.data_parallel.gradient_dtype == DType::fp32 && strategy.memory.offload.optimizer == MemoryTier::device;
  if (p.wide_bf16_in_stages && training.precision == Precision::bf16 && (strategy.parallelism.degrees.pipeline > 1 || wide_asked_for)) {
    p.gradient = DType::fp32;
    p.reduce = p.wide_bf16_reduce;
    p.accumulates_after_backward = true;
  }
  p.gradient = strategy.data_parallel.gradient_dtype.value_or(p.gradient);
  p.optimizer_state = training.optimizer_state_dtype.value_or(p.optimizer_state);
  if (strategy.parallelism.degrees.context > 1) {
    p.loss = p.context_loss.value_or(p.loss);
    p.reduce = p.context_reduce.value_or(p.reduce);
  }
  p.loss = training.cross_entropy.value_or(p.loss);
  p.overlap_tensor = strategy.parallelism.overlap_tensor.value_or(p.overlap_tensor);
  p.expandable_segments = strategy.memory.expandable_segments.value_or(p.expandable_segments);
  p.narrows_activation_input = strategy.memory.fp8_activation_inputs.value_or(p.narrows_activation_input);
  // One launch of the whole step: nothing is issued kernel by kernel.
  if (training.cuda_graph.value_or(false)) {
    for (Duration* d : issue_times(p)) *d = Duration{};
    p.proxy_stall = Duration{};
  }
  if (training.fused_rope) p.rope = *training.fused_rope ? Fusion::fused : Fusion::eager;
  if (const auto fused = training.fused_gradient_accumulation) {
    p.fused_gradient_accumulation = *fused;
    if (!*fused) p.dummy_weight_gradients = false;
  }
  p.fp8_parameters = training.fp8_parameters.value_or(p.fp8_parameters) && p.transformer_engine;
  // Shards are of rows alone (Megatron-FSDP's keep_fp8_transpose_cache is off unless set).
  if (p.fp8_parameters && strategy.data_parallel.kind == DataParallelKind::megatron_fsdp) p.keeps_transposed_weights = false;
  if (training.transformer_engine && !*training.transformer_engine) p.transformer_engine = p.fp8_parameters = p.dummy_weight_gradients = false;
  return p;
}

const std::vector<std::string>& selective_modules(const FrameworkProfile& profile, const Memory& memory) {
  return memory.recompute_modules.empty() ? profile.selective_modules : memory.recompute_modules;
}

bool recomputes_selectively(const FrameworkProfile& profile, const Memory& memory, const char* module) {
  const std::vector<std::string>& modules = selective_modules(profile, memory);
  return memory.recompute == Recompute::selective && std::find(modules.begin(), modules.end(), module) != modules.end();
}

FrameworkProfile with_layer_host(FrameworkProfile p, const Strategy& strategy) {
  if (strategy.parallelism.degrees.tensor > 1) {
    p.layer_host += p.tensor_host;
    p.layer_backward_host += p.tensor_backward_host;
    p.recompute_host += p.tensor_recompute_host;
  }
  if (recomputes_selectively(p, strategy.memory, "operators") && p.operator_checkpoint_host > Duration{}) {
    p.region_host = p.layer_host + p.recompute_host + p.operator_recompute_host;
    p.layer_host += p.operator_checkpoint_host;
  }
  return p;
}

}  // namespace rehearse::strategies
