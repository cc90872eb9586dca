#include "strategies/layer/operators.h"

#include <algorithm>

namespace rehearse::strategies {

using model::KernelKind;

namespace {
constexpr std::int64_t kNormBlocks = 128;  // about one per SM

/// torch.autocast around modules with fp32 weights: nn.Embedding returns fp32, layer_norm runs in fp32 (aten/src/ATen/autocast_mode.cpp), rms_norm and norms written
/// in Python return what fp32 weights make of their input, and a sum of an fp32 stream and a 16-bit branch is fp32. FSDP gathers 16-bit weights. Compiled norms
/// write the 16 bits that products read. Mixtures of experts and adapters under autocast are left out.
bool has_autocast_stream(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile) {
  const DataParallelKind kind = strategy.data_parallel.kind;
  const bool narrow_weights = kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2;
  const bool in_python = profile.norm == Fusion::eager || is_native(profile.norm), compiled = profile.norm == Fusion::compiled && profile.residual == Fusion::compiled;
  return profile.autocast && profile.stored_parameter == DType::fp32 && (compiled || (in_python && !profile.compiled)) && !profile.narrow_embedding && !profile.wide_residual && !narrow_weights && model.experts.experts == 0 && strategy.tuning.kind == TuningKind::full;
}

}  // namespace

LowerContext make_context(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder) {
  LowerContext c{model, strategy, profile, builder};
  const Degrees& d = strategy.parallelism.degrees;
  c.batch = strategy.training.micro_batch_size;
  c.sequence = strategy.training.sequence_length / d.context;
  c.tokens = c.batch * c.sequence;
  c.tensor = d.tensor;
  c.sequence_parallel = strategy.parallelism.sequence_parallel && d.tensor > 1;
  switch (strategy.training.precision) {
    case Precision::fp32: c.activation = DType::fp32; c.gemm = DType::fp32; break;
    case Precision::tf32: c.activation = DType::fp32; c.gemm = DType::tf32; break;
    case Precision::fp16: c.activation = DType::fp16; c.gemm = DType::fp16; break;
    case Precision::bf16: c.activation = DType::bf16; c.gemm = DType::bf16; break;
    case Precision::fp8: c.activation = DType::bf16; c.gemm = DType::fp8; break;
    case Precision::fp8_rowwise: c.activation = DType::bf16; c.gemm = DType::fp8; c.row_scaled = true; break;
    case Precision::mxfp8: c.activation = DType::bf16; c.gemm = DType::mxfp8; break;
    case Precision::nvfp4: c.activation = DType::bf16; c.gemm = DType::nvfp4; break;
  }
  // Norms with fp32 weights make an fp32 stream; autocast's products stay in 16 bits. Hand-written norms return the format of their input.
  const bool promotes = is_native(profile.norm);
  if (upcasts_unquantised(strategy, profile) && promotes && profile.adapter_autocast && c.element() == 2 && bits(c.gemm) == 16) c.activation = DType::fp32;
  c.autocast_stream = has_autocast_stream(model, strategy, profile) && c.element() == 2 && bits(c.gemm) == 16;
  c.attention = strategy.training.attention.value_or(profile.attention_fused ? "flash" : "unfused");
  return c;
}

Item Operators::kernel(const std::string& name, std::int64_t read, std::int64_t written, KernelKind kind, model::GemmRole role) const {
  const std::int64_t elements = (read + written) / std::max<std::int64_t>(1, c_.element());
  return {.kind = Item::Kind::kernel,
          .spec = c_.builder.kernel({.kind = kind, .role = role, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = read, .bytes_written = written,
                                     .elements = kind == KernelKind::strided ? written / std::max<std::int64_t>(1, c_.element()) : 0, .flops = static_cast<double>(elements), .name = name})};
}

/// calibrate/ground_truth/operators.py and training steps on an H200: 8,192 tokens of 4,096 over a vocabulary of 128,256 take 0.64 ms beside the zeros,
/// 16,384 of 768 over 50,304 0.31 ms, 52 and 40 billion elements a second in fp32; in bf16 65 to 78: 4.5 times what scatter_add_ takes.
Item Operators::embedding_backward(std::int64_t tokens, std::int64_t width) const {
  const std::int64_t bytes = tokens * width * c_.element();
  return {.kind = Item::Kind::kernel,
          .spec = c_.builder.kernel({.kind = KernelKind::embedding, .role = model::GemmRole::data_gradient, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = bytes, .bytes_written = bytes,
                                     .elements = 9 * tokens * width / 2, .name = "embedding backward"})};
}

Item Operators::strided(const std::string& name, std::int64_t read, std::int64_t written, std::int64_t width) const {
  return {.kind = Item::Kind::kernel,
          .spec = c_.builder.kernel({.kind = KernelKind::strided, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = read, .bytes_written = written,
                                     .elements = written / width, .flops = static_cast<double>((read + written) / std::max<std::int64_t>(1, c_.element())), .name = name})};
}

Item Operators::convert(const std::string& name, std::int64_t read, std::int64_t written) const {
  const KernelKind kind = conversion(c_.profile, read, written);
  const std::int64_t converted = std::min(read, written);   // of n elements n 16-bit ones and n of 32 bits: as many as 16-bit bytes
  return {.kind = Item::Kind::kernel,
          .spec = c_.builder.kernel({.kind = kind, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = read, .bytes_written = written, .elements = kind == KernelKind::converting ? converted : 0,
                                     .flops = static_cast<double>((read + written) / std::max<std::int64_t>(1, c_.element())), .name = name})};
}

Item Operators::mixed(const std::string& name, std::int64_t read, std::int64_t written, std::int64_t elements) const {
  return {.kind = Item::Kind::kernel,
          .spec = c_.builder.kernel({.kind = KernelKind::converting, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = read, .bytes_written = written, .elements = 3 * elements,
                                     .flops = static_cast<double>(elements), .name = name})};
}

namespace {

/// torch.compile copies operands whose rows are not a multiple of 16 bytes into longer ones (shape_padding, on by default from PyTorch 2.1 on; it times both
/// forms and takes the faster). Source: torch/_inductor/fx_passes/pad_mm.py.
void pad(model::KernelSpec& s) {
  const std::int64_t multiple = 128 / bits(s.dtype), m = s.m, n = s.n, k = s.k;
  const auto padded = [&](std::int64_t length) { return (length + multiple - 1) / multiple * multiple; };
  s.m = padded(m), s.n = padded(n), s.k = padded(k);
  const std::int64_t bytes = (s.k != k || s.m != m ? s.m * s.k : 0) + (s.k != k || s.n != n ? s.k * s.n : 0);
  s.bytes_read = s.bytes_written = bytes * bits(s.dtype) / 8;
}

}  // namespace

Item Operators::gemm(const std::string& name, model::GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k, DType output, bool accumulate, bool staggered) const {
  model::KernelSpec spec{.kind = KernelKind::gemm, .role = role, .dtype = c_.gemm, .output_dtype = output, .accumulate = accumulate, .staggered = staggered, .m = m, .n = n, .k = k, .name = name};
  if (c_.profile.compiled && bits(c_.gemm) == 16) pad(spec);
  return {.kind = Item::Kind::kernel, .spec = c_.builder.kernel(spec)};
}

Item Operators::collective(CollectiveKind kind, const std::string& name, std::int64_t bytes, int sync, plan::GroupAxis axis, plan::Stream stream) const {
  return {.kind = Item::Kind::collective, .stream = stream, .sync = sync, 
          .spec = c_.builder.collective({.kind = kind, .axis = axis, .bytes = Bytes{bytes}, .name = name, .host_waits = axis == plan::GroupAxis::tensor && c_.profile.ring_step_wait > Duration{}})};
}

Item Operators::weight_gradient(int weight, Item made_by) const {
  made_by.kind = Item::Kind::weight_gradient;
  made_by.weight = weight;
  return made_by;
}

/// A weight of the model as the job keeps it: trained or not, a copy beside its original, widened by k-bit preparation.
Weight Operators::weight(const std::string& name, std::int64_t elements) const {
  const Tuning& tuning = c_.strategy.tuning;
  Weight w{.name = name, .elements = elements, .trainable = c_.trains(name)};
  // Tied: one table under two names.
  if (c_.model.tied_embeddings && (name == "lm_head.weight" || name == "word_embeddings.weight")) w.trainable = c_.trains("lm_head.weight") || c_.trains("word_embeddings.weight");
  w.adapter = c_.adapter;
  const bool adapters = tuning.low_rank();
  if (adapters && w.trainable && !c_.adapter) w.copied = c_.profile.keeps_original_of_trained;
  const bool narrow = bits(c_.profile.stored_parameter) == 16;
  if (narrow && c_.adapter && c_.profile.adapter == DType::fp32) w.wide_bytes = 4;
  const bool table = name.starts_with("lm_head") || name.starts_with("word_embeddings") || name.starts_with("position_embeddings");
  if (narrow && !c_.adapter && upcasts_unquantised(c_.strategy, c_.profile) && !w.trainable && !(table && c_.profile.narrows_tables)) w.wide_bytes = 4;
  return w;
}

void Operators::cast_by_engine(Weight& w) const {
  const DataParallelKind kind = c_.strategy.data_parallel.kind;
  // Only layers make their weights in 8 bits: the output layer's are cast (megatron/core/transformer/transformer_block.py, is_init).
  const bool alone = c_.profile.fp8_parameters && c_.gemm != DType::nvfp4 && w.name != "lm_head.weight";
  const bool shards = kind == DataParallelKind::megatron_fsdp;
  if (kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2 || kind == DataParallelKind::zero3 || (shards && !(alone && c_.gemm == DType::fp8))) return;   // left out where weights are sharded
  if (bits(c_.gemm) > 8 || !c_.profile.transformer_engine || w.packed_bytes >= 0 || !(alone || c_.profile.keeps_cast_weights)) return;
  const std::int64_t scales = c_.gemm == DType::fp8 ? 0 : w.elements / (c_.gemm == DType::nvfp4 ? 16 : 32);
  w.cast_bytes = (transposes_weights() ? 1 : quantised_copies()) * (w.elements * bits(c_.gemm) / 8 + scales);
  if (!alone) return;
  w.packed_bytes = w.cast_bytes;
  w.travel_bytes = w.elements * (c_.gemm == DType::fp8 ? 1 : 2);
}

// Normalisation ------------------------------------------------------------------------------------------------------

TensorId Operators::norm(TensorId x, const std::string& name, std::int64_t rows, std::int64_t width, bool replicated, bool learned, bool rotated) {
  const std::int64_t elements = rows * width, bytes = elements * c_.element();
  const bool widened = c_.autocast_stream && is_wide(x, elements);
  if (widened && c_.profile.norm != Fusion::compiled) {
    LowerContext wide = c_;
    wide.activation = DType::fp32;
    wide.autocast_stream = false;
    return Operators(wide, tape_).norm(x, name, rows, width, replicated, learned, rotated);
  }
  const bool adds = c_.profile.wide_residual && tape_.tensors[static_cast<std::size_t>(tape_.root(x))].bytes == elements * c_.stream_element();
  const TensorId y = tape_.tensor(name, bytes);
  const bool layer_norm = c_.model.norm == model::Norm::layer_norm;
  Weight scale = weight(name + ".weight", width * (layer_norm && c_.model.norm_bias ? 2 : 1));
  scale.matrix = false;
  scale.replicated_over_tensor = replicated;
  learned = learned && c_.model.norm_weight;
  const bool trained = learned && scale.trainable;
  const int w = learned ? tape_.weight(std::move(scale)) : -1;
  if (layer_norm && c_.profile.spelled_layer_norm) {
    layer_norm_spelled(x, y, name, elements, rows, w);
    return y;
  }
  Node node{.name = name, .inputs = {x}, .outputs = {y}};
  if (c_.profile.norm == Fusion::eager && !layer_norm) {
    norm_eager(node, x, y, name, elements, rows, w);
  } else {
    const TensorId statistics = tape_.tensor(name + " statistics", rows * 4 * (layer_norm ? 2 : 1), false);
    node.intermediates = {statistics};
    node.saved = {x, statistics};
    const KernelKind kind = is_native(c_.profile.norm) ? KernelKind::native_normalization : KernelKind::normalization;
    // The kernel that has added a branch to a wide stream normalises the sum too: it only writes the result. Backward, one kernel likewise, reads
    // the result's gradient and the sum and writes the sum's gradient; what the stream's adds is the tape's (add_kernel), the branch's the
    // residual's. Source: Dao-AILab/flash-attention@4f285b354 csrc/layer_norm/ln_fwd_kernels.cuh, ln_bwd_kernels.cuh.
    const std::int64_t sum = adds || widened ? elements * c_.stream_element() : bytes;
    node.forward = {kernel(name, adds || sums_and_normalises(x) ? 0 : sum, rotated ? 0 : bytes, kind)};
    // Kernels that sum the weight's gradient beside it are the slow ones.
    node.backward = {kernel(name + " backward", (rotated ? 0 : bytes) + sum, sum, kind, learned ? model::GemmRole::data_gradient : model::GemmRole::forward)};
    // Transformer Engine's backward and Triton's kernels sum the weight's gradient in the same pass, one row per block of threads, and add those up
    // (common/normalization/rmsnorm, layernorm: *_bwd_kernels.cuh; flash_attn/ops/triton/layer_norm.py); others read input and gradient once more.
    const std::int64_t again = c_.profile.transformer_engine || c_.profile.norm_sums_weights ? kNormBlocks * width * 4 : bytes + (widened ? sum : bytes);
    if (trained) node.backward.push_back(weight_gradient(w, kernel(name + " weight gradient", again, width * 4, KernelKind::reduction)));
    if (c_.profile.norm_upcasts) norm_upcasts(node, name, elements);
    if (c_.profile.norm == Fusion::fused) launch_from_python(node);
    node.gradient_in_place = c_.profile.norm == Fusion::fused && c_.profile.gradients_in_place && sum == bytes && !rotated && !c_.profile.norm_upcasts;
  }
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// TorchInductor's kernel that adds a branch to the stream goes on to normalise the sum (tests/oracles/torch_compiled_layer.py: add, mean,
/// rsqrt and products of one kernel). It has the sum at hand.
bool Operators::sums_and_normalises(TensorId x) const {
  if (c_.profile.norm != Fusion::compiled || c_.profile.residual != Fusion::compiled || tape_.nodes.empty()) return false;
  const Node& last = tape_.nodes.back();
  return last.passed_inputs == 2 && last.outputs == std::vector<TensorId>{x};
}

/// tests/oracles/torch_compiled_layer.py, normalised_rotation: one kernel for queries and one for keys in each pass.
bool Operators::rotates_what_it_normalises() const {
  const bool compiled = c_.profile.norm == Fusion::compiled && c_.profile.rope == Fusion::compiled && !complex_rope();
  return compiled && c_.model.qk_norm && !c_.model.joint_qk_norm && c_.model.position == model::Position::rotary;
}

/// norm(x.float()) inside a checkpoint of its own: the copy goes at once, backward makes it and the norm again. Where whole
/// layers are checkpoints, their recomputation is that already.
/// Source: InternLM/InternEvo internlm/model/modeling_internlm.py, _dropout_and_norm_attn, dropout_selective_checkpoint.
void Operators::norm_upcasts(Node& node, const std::string& name, std::int64_t elements) {
  if (c_.element() == 4) return;
  const std::int64_t wide = elements * 4, narrow = elements * c_.element();
  const std::vector<Item> up{alloc(0, wide), convert("cast", narrow, wide), kernel(name, wide, narrow, KernelKind::normalization)};
  node.forward = up;
  node.forward.push_back(free(0));
  std::vector<Item> back{kernel(name + " backward", wide + narrow, wide, KernelKind::normalization, model::GemmRole::data_gradient)};
  for (std::size_t i = 1; i < node.backward.size(); ++i) back.push_back(node.backward[i]);   // the weight's gradient
  back.push_back(convert("cast backward", wide, narrow));
  node.backward = {alloc(0, wide), convert("cast", narrow, wide)};
  if (c_.strategy.memory.recompute != Recompute::full) node.backward.insert(node.backward.end(), {alloc(1, narrow), kernel(name, wide, narrow, KernelKind::normalization), free(1)});
  node.backward.insert(node.backward.end(), {alloc(2, wide)});
  node.backward.insert(node.backward.end(), back.begin(), back.end());
  node.backward.insert(node.backward.end(), {free(0), free(2)});
}

/// x.float(), pow, mean, rsqrt, multiply, cast back, times weight: as Hugging Face's RMSNorm modules compute it. Gemma's and Qwen3-Next's multiply by
/// one plus the weight before they cast back.
void Operators::norm_eager(Node& node, TensorId x, TensorId, const std::string& name, std::int64_t elements, std::int64_t rows, int w) {
  const std::int64_t wide = elements * 4, narrow = elements * c_.element();
  const bool cast = c_.element() != 4;
  const TensorId x32 = cast ? tape_.tensor(name + " input fp32", wide) : x;
  const bool wide_product = cast && w >= 0 && c_.model.norm_weight_in_fp32;
  const std::int64_t scaled = wide_product ? wide : narrow;
  const TensorId normalised = tape_.tensor(name + " normalised", scaled);
  const TensorId statistics = tape_.tensor(name + " rsqrt", rows * 4, false);
  node.intermediates = {statistics, normalised};
  if (cast) node.intermediates.push_back(x32);
  node.saved_for_input = {x32, statistics};
  const bool trained = w >= 0 && tape_.weights[static_cast<std::size_t>(w)].trainable;
  if (trained) node.saved = {normalised};  // the other factor of the weight's gradient
  if (cast) node.forward.push_back(convert("cast", narrow, wide));
  node.forward.insert(node.forward.end(), {alloc(0, wide), kernel("pow", wide, wide), kernel("mean", wide, rows * 4, KernelKind::reduction), free(0),
                                           kernel("rsqrt", rows * 4, rows * 4)});
  const Item by_weight = wide_product ? strided("mul weight", wide, wide, 4) : kernel("mul weight", narrow, narrow, KernelKind::strided);
  if (wide_product) node.forward.insert(node.forward.end(), {strided("mul", wide, wide, 4), alloc(1, wide), by_weight, convert("cast", wide, narrow), free(1)});
  else if (cast) node.forward.insert(node.forward.end(), {alloc(1, wide), strided("mul", wide, wide, 4), convert("cast", wide, narrow), free(1)});
  else node.forward.push_back(strided("mul", wide, wide, 4));
  if (w >= 0 && !wide_product) node.forward.push_back(by_weight);

  // d(weight * n): one product per operand, the weight's is summed over rows.
  auto& b = node.backward;
  if (wide_product) b = {alloc(2, wide), convert("cast", narrow, wide), {.kind = Item::Kind::release_output_gradients}};
  const std::size_t product_from = b.size();
  b.insert(b.end(), {alloc(0, scaled), wide_product ? strided("mul backward", wide, wide, 4) : kernel("mul backward", narrow, narrow, KernelKind::strided)});
  if (trained)
    b.insert(b.end(), {for_weights(alloc(1, scaled)), for_weights(kernel("mul backward", 2 * scaled, scaled)), weight_gradient(w, kernel("sum rows", scaled, 4096, KernelKind::reduction)), for_weights(free(1))});
  b.push_back(wide_product ? free(2) : Item{.kind = Item::Kind::release_output_gradients});
  b[product_from].for_input = b[product_from + 1].for_input = true;
  const std::size_t input_from = b.size();
  if (cast && !wide_product) b.insert(b.end(), {alloc(2, wide), convert("cast", narrow, wide), free(0)});
  const int g = cast && !wide_product ? 2 : 0;
  b.insert(b.end(), {alloc(3, wide), strided("mul backward", wide, wide, 4), alloc(4, wide), kernel("mul backward", 2 * wide, wide), free(g),
                     kernel("sum columns", wide, rows * 4, KernelKind::reduction), free(4)});
  // The mean's gradient is written out for every element; that of x^2 is grad * (2 * x^1), each a kernel.
  b.insert(b.end(), {alloc(5, wide), strided("mean backward", rows * 4, wide, 4), alloc(6, wide), kernel("pow backward", wide, wide),
                     alloc(7, wide), kernel("pow backward", wide, wide), free(6), alloc(8, wide), kernel("pow backward", 2 * wide, wide), free(7), free(5),
                     kernel("gradient add", 2 * wide, wide), free(8)});
  b.insert(b.end(), {{.kind = Item::Kind::produce_input_gradients}, convert("cast", wide, narrow), free(3)});
  for (std::size_t i = input_from; i < b.size(); ++i) b[i].for_input = true;
}

/// scale * ((x - mean) / sqrt(var + eps)) + shift, an operator each, as textbooks write it. Backward keeps x, the difference and the quotient.
/// Source: PyTorch tools/autograd/derivatives.yaml and FunctionsManual.cpp (var_backward, div_tensor_other_grad); tests/oracles/torch_live_bytes.py has the tensors.
void Operators::layer_norm_spelled(TensorId x, TensorId y, const std::string& name, std::int64_t elements, std::int64_t rows, int w) {
  const std::int64_t whole = elements * c_.element(), column = rows * c_.element(), width = elements / rows;
  const auto sum_columns = [&](const std::string& what) { return kernel(what, whole, column, KernelKind::reduction); };
  const auto by_column = [&](const std::string& what) { return strided(what, whole, whole, c_.element()); };
  const TensorId mean = tape_.tensor(name + " mean", column), deviation = tape_.tensor(name + " deviation", column);
  const TensorId difference = tape_.tensor(name + " difference", whole), quotient = w >= 0 ? tape_.tensor(name + " quotient", whole) : y;
  tape_.nodes.push_back({.name = name + " mean", .inputs = {x}, .outputs = {mean}, .forward = {sum_columns("mean")}, .backward = {strided("mean backward", column, whole, c_.element())}});
  tape_.nodes.push_back({.name = name + " deviation", .inputs = {x}, .outputs = {deviation}, .saved = {x, deviation},
                         .forward = {sum_columns("var"), kernel("add", column, column), kernel("sqrt", column, column)},
                         .backward = {kernel("sqrt backward", 2 * column, column), sum_columns("mean"), alloc(0, whole), by_column("var backward"), by_column("var backward"), free(0)}});
  tape_.nodes.push_back({.name = name + " difference", .inputs = {x, mean}, .outputs = {difference}, .forward = {by_column("difference")},
                         .backward = {alloc(0, whole), kernel("difference backward", whole, whole), sum_columns("difference backward"), free(0)}, .passed_inputs = 1});
  tape_.nodes.push_back({.name = name + " quotient", .inputs = {difference, deviation}, .outputs = {quotient}, .saved = {difference, deviation}, .forward = {by_column("quotient")},
                         .backward = {by_column("quotient backward"), alloc(0, whole), by_column("quotient backward"), alloc(1, whole), by_column("quotient backward"), free(0),
                                      alloc(2, whole), kernel("quotient backward", whole, whole), alloc(3, whole), kernel("quotient backward", 2 * whole, whole), free(1), free(2),
                                      sum_columns("quotient backward"), free(3)}});
  if (w < 0) return;
  Node product{.name = name, .inputs = {quotient}, .outputs = {y}, .forward = {alloc(0, whole), by_column("scale"), by_column("shift"), free(0)}, .backward = {by_column("scale backward")}};
  if (tape_.weights[static_cast<std::size_t>(w)].trainable) {
    product.saved = {quotient};
    product.backward.insert(product.backward.end(), {for_weights(alloc(0, whole)), for_weights(kernel("scale backward", 2 * whole, whole)),
                                                     weight_gradient(w, kernel("sum rows", 2 * whole, 2 * width * c_.element(), KernelKind::reduction)), for_weights(free(0))});
  }
  tape_.nodes.push_back(std::move(product));
}

// Linear layers -------------------------------------------------------------------------------------------------------

// Pointwise operators --------------------------------------------------------------------------------------------------

/// torchtitan's Llama models rotate complex numbers; its Qwen 3, which has norms of queries and keys, halves (models/qwen3).
bool Operators::complex_rope() const { return c_.profile.rope_form == RopeForm::complex && !c_.model.qk_norm; }

TensorId Operators::rope(TensorId x, const std::string& name, std::int64_t width) {
  const std::int64_t bytes = c_.tokens * width * c_.element();
  const TensorId y = tape_.tensor(name, bytes);
  Node node{.name = name, .inputs = {x}, .outputs = {y}};
  // Frequencies are broadcast over heads, heads are permuted or halved.
  const bool widens = c_.profile.rope_form == RopeForm::pairs || c_.profile.rope_form == RopeForm::matrices || c_.profile.rope_form == RopeForm::widened;
  const auto apart = [&](const char* kernel_name, std::int64_t read, std::int64_t written) { return strided(kernel_name, read, written, widens ? 4 : c_.element()); };
  const std::int64_t wide = c_.tokens * width * 4, half = wide / 2;   // an fp32 copy; every second element of it
  const bool part_rotates = c_.model.rotary_dim > 0 && c_.model.rotary_dim < c_.model.head_dim;
  if (c_.profile.rope == Fusion::eager && c_.profile.rope_form == RopeForm::pairs) {
    // Every second element: a read touches all of them. Gradients of such views are zeros that the half is copied into.
    node.forward = {alloc(0, wide), convert("cast", bytes, wide)};
    for (const int sum : {3, 4}) node.forward.insert(node.forward.end(), {alloc(1, half), apart("product", wide, half), alloc(2, half), apart("product", wide, half), alloc(sum, half), apart("add", 2 * half, half), free(1), free(2)});
    node.forward.insert(node.forward.end(), {alloc(1, wide), apart("stack", wide, wide), free(3), free(4), convert("cast", wide, bytes), free(1), free(0)});
    node.backward = {alloc(0, wide), convert("cast", bytes, wide), alloc(1, wide)};
    for (int i = 0; i < 4; ++i) {
      node.backward.insert(node.backward.end(), {alloc(2, half), apart("product backward", wide, half)});
      if (i > 0) node.backward.push_back(alloc(3, wide));
      node.backward.insert(node.backward.end(), {kernel("zero fill", 0, wide, KernelKind::memset), apart("select backward", half, wide), free(2)});
      if (i > 0) node.backward.insert(node.backward.end(), {kernel("gradient add", 2 * wide, wide), free(3)});
    }
    node.backward.insert(node.backward.end(), {convert("cast", wide, bytes), free(1), free(0)});
  } else if (c_.profile.rope == Fusion::eager && c_.profile.rope_form == RopeForm::matrices) {
    node.forward = {alloc(0, wide), convert("cast", bytes, wide), alloc(1, 2 * wide), apart("matrices", wide, 2 * wide), alloc(2, wide), apart("sum pairs", 2 * wide, wide), free(1),
                    convert("cast", wide, bytes), free(2), free(0)};
    node.backward = {alloc(0, wide), convert("cast", bytes, wide), alloc(1, 2 * wide), apart("matrices backward", wide, 2 * wide), alloc(2, wide), apart("sum matrices", 2 * wide, wide), free(1),
                     convert("cast", wide, bytes), free(2), free(0)};
  } else if (c_.profile.rope == Fusion::eager && c_.profile.rope_form == RopeForm::widened) {
    // Queries and keys are views of one projection's rows.
    node.forward = {alloc(0, wide), apart("cast", bytes, wide), alloc(1, wide), kernel(name, wide, wide), free(0), convert("cast", wide, bytes), free(1)};
    node.backward = {alloc(0, wide), convert("cast", bytes, wide), alloc(1, wide), kernel(name + " backward", wide, wide), free(0), convert("cast", wide, bytes), free(1)};
  } else if (complex_rope() && c_.profile.rope == Fusion::eager) {
    node.forward = {alloc(0, wide), convert("cast", bytes, wide), alloc(1, wide), kernel("product", wide, wide), free(0), convert("cast", wide, bytes), free(1)};
    node.backward = {alloc(0, wide), convert("cast", bytes, wide), alloc(1, wide), kernel("product backward", wide, wide), free(0), convert("cast", wide, bytes), free(1)};
  } else if (complex_rope()) {
    node.forward = {alloc(0, wide), kernel(name, bytes, bytes), alloc(1, wide), kernel(name + " product", wide, wide), free(0), free(1)};
    node.backward = {alloc(0, wide), kernel(name + " backward", bytes, bytes), alloc(1, wide), kernel(name + " product backward", wide, wide), free(0), free(1)};
  } else if (c_.profile.rope == Fusion::eager && c_.profile.rope_form == RopeForm::angles) {
    const std::int64_t turning = part_rotates ? c_.model.rotary_dim : c_.model.head_dim, table = angles_bytes(turning);
    Rotation rotates = rotation(width / c_.model.head_dim, c_.model.head_dim, turning, false);
    node.forward = std::move(rotates.forward);
    node.backward = std::move(rotates.backward);
    node.saved = node.intermediates = {tape_.tensor(name + " cosines", table, false), tape_.tensor(name + " sines", table, false)};
  } else if (c_.profile.rope == Fusion::eager) {
    // x * cos + cat(-x2, x1) * sin
    const std::int64_t r = part_rotates ? bytes / c_.model.head_dim * c_.model.rotary_dim : bytes;
    const bool gathered = c_.profile.rope_form == RopeForm::gathered;
    const std::int64_t factors = gathered ? r : 0;   // bytes; a table that is broadcast stays in the cache
    node.forward = {alloc(0, r), apart("mul cos", r + factors, r), alloc(1, r / 2), apart("neg", r / 2, r / 2), alloc(2, r),
                    apart("cat", r, r), free(1), alloc(3, r), apart("mul sin", r + factors, r), free(2), apart("add", 2 * r, r), free(0), free(3)};
    node.backward = {alloc(0, r), apart("mul sin backward", r + factors, r), alloc(1, r), apart("slice backward", r, r),
                     apart("neg", r / 2, r / 2), apart("slice backward", r, r), apart("add", 2 * r, r), free(0),
                     apart("mul cos backward", r + factors, r), kernel("gradient add", 2 * r, r), free(1)};
    if (gathered) {
      node.saved = node.intermediates = {tape_.tensor(name + " cosines", r, false), tape_.tensor(name + " sines", r, false)};
      node.forward.insert(node.forward.begin(), {apart("gather cosines", 0, r), apart("gather sines", 0, r)});
    }
    if (part_rotates) {
      // The rest of each head is joined on again. Gradients of both parts are zeros that they are copied into, and added.
      node.forward.push_back(apart("cat parts", bytes, bytes));
      node.backward.insert(node.backward.end(), {alloc(2, bytes), kernel("zero fill", 0, bytes, KernelKind::memset), apart("slice backward", r, r),
                                                 alloc(3, bytes), kernel("zero fill", 0, bytes, KernelKind::memset), apart("slice backward", bytes - r, bytes - r),
                                                 kernel("gradient add", 2 * bytes, bytes), free(2), free(3)});
    }
  } else {
    const std::int64_t normalised = rotates_what_it_normalises() ? 0 : bytes;   // in registers
    node.forward = {kernel(name, normalised, bytes)};
    node.backward = {kernel(name + " backward", bytes, normalised)};
    if (c_.profile.rope == Fusion::fused) launch_from_python(node, 2);   // queries and keys at once
    node.gradient_in_place = c_.profile.rope == Fusion::fused && c_.profile.gradients_in_place;
  }
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// A library's autograd function around a kernel of its own, as often as `nodes` nodes of ours are.
void Operators::launch_from_python(Node& node, int nodes) const {
  node.forward_host += c_.profile.fused_operator_host / nodes;
  node.backward_host += c_.profile.fused_operator_backward_host / nodes;
}

TensorId Operators::repeat(TensorId x, const std::string& name, std::int64_t from_width, std::int64_t to_width) {
  const std::int64_t from = c_.tokens * from_width * c_.element(), to = c_.tokens * to_width * c_.element();
  const TensorId y = tape_.tensor(name, to);
  tape_.nodes.push_back({.name = name, .inputs = {x}, .outputs = {y}, .forward = {kernel(name, to, to, KernelKind::strided)},
                         .backward = {kernel(name + " backward", to, from, KernelKind::reduction)}});
  return y;
}

std::vector<TensorId> Operators::split(TensorId x, const std::string& name, const std::vector<std::int64_t>& widths, std::int64_t rows) {
  if (rows == 0) rows = c_.tokens;
  Node node{.name = name, .inputs = {x}};
  std::int64_t bytes = 0;
  for (std::int64_t width : widths) {
    bytes += rows * width * c_.element();
    node.outputs.push_back(tape_.part(name, x, rows * width * c_.element()));
  }
  node.backward = {kernel(name + " backward", bytes, bytes)};  // concatenates the parts' gradients
  const std::vector<TensorId> parts = node.outputs;
  tape_.nodes.push_back(std::move(node));
  return parts;
}

/// 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), one operator at a time: Hugging Face's "gelu_new".
/// x, its half, the tanh, one plus it and the product are kept. Autocast takes powers in fp32 (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32), of a copy
/// of x, and so is what follows: tests/oracles/torch_live_bytes.py has the tensors.
TensorId Operators::gelu_eager(TensorId x, std::int64_t width) {
  const std::int64_t elements = c_.tokens * width, narrow = elements * c_.element();
  const bool widens = c_.profile.autocast && c_.element() == 2;
  const std::int64_t bytes = widens ? elements * 4 : narrow;
  auto step = [&](const std::string& name, std::vector<TensorId> inputs, int passed, std::int64_t read, std::int64_t written) -> Node& {
    const TensorId y = tape_.tensor("gelu " + name, written);
    Node node{.name = "gelu " + name, .inputs = std::move(inputs), .outputs = {y}, .forward = {kernel("gelu " + name, read, written)}, .passed_inputs = passed};
    if (passed == 0) node.backward = {kernel("gelu " + name + " backward", written, written)};
    tape_.nodes.push_back(std::move(node));
    return tape_.nodes.back();
  };
  auto result = [&] { return tape_.nodes.back().outputs.front(); };
  step("half", {x}, 0, narrow, narrow);
  const TensorId half = result(), base = widens ? cast(x, "gelu", elements, DType::fp32) : x;
  Node& power = step("pow", {base}, 0, bytes, bytes);
  power.saved = {base};
  power.backward = {alloc(0, bytes), kernel("gelu pow backward", bytes, bytes), alloc(1, bytes), kernel("gelu pow backward", bytes, bytes), free(0),
                    {.kind = Item::Kind::produce_input_gradients}, kernel("gelu pow backward", 2 * bytes, bytes), free(1)};
  step("scaled cube", {result()}, 0, bytes, bytes);
  if (widens) {   // of a 16-bit tensor, whose gradient is cast, and an fp32 one
    Node& sum = step("sum", {result(), x}, 1, narrow + bytes, bytes);
    sum.forward = {mixed("gelu sum", narrow + bytes, bytes, elements)};
    sum.backward = {convert("cast", bytes, narrow)};
  } else {
    step("sum", {x, result()}, 2, 2 * bytes, bytes);
  }
  step("scale", {result()}, 0, bytes, bytes);
  Node& tanh = step("tanh", {result()}, 0, bytes, bytes);
  tanh.saved = {tanh.outputs.front()};
  tanh.backward = {kernel("gelu tanh backward", 2 * bytes, bytes)};
  step("one plus", {result()}, 1, bytes, bytes);
  Node& product = step("product", {half, result()}, 0, narrow + bytes, bytes);
  product.saved = product.inputs;
  product.backward = {kernel("gelu product backward", 2 * bytes, bytes), kernel("gelu product backward", narrow + bytes, bytes)};
  if (widens) {
    product.forward = {mixed("gelu product", narrow + bytes, bytes, elements)};
    product.backward = {alloc(0, bytes), mixed("gelu product backward", 2 * bytes, bytes, elements), convert("cast", bytes, narrow), free(0), mixed("gelu product backward", narrow + bytes, bytes, elements)};
  }
  return result();
}

/// 0.5 * x * (1 + tanh(a * x * (1 + b * x * x))) under torch.jit.script. Autodiff keeps x, both operands of each of the three products of tensors
/// and the tanh: x, b * x; a * x, 1 + ...; the tanh; 0.5 * x, 1 + tanh. Nothing is fused: PyTorch's profiling executor wants flags for that, which
/// NVIDIA/Megatron-LM 51a2e6b0ff (2020-09, "flags required to enable jit fusion kernels") sets and this code does not.
/// Source: torch/csrc/jit/runtime/symbolic_script.cpp, mul and tanh; the graph of DeepSpeedExamples a79272cc8 Megatron-LM/mpu/transformer.py,
/// gelu_impl, returns the six beside its result (graph_for).
TensorId Operators::gelu_scripted(TensorId x, std::int64_t width) {
  const std::int64_t bytes = c_.tokens * width * c_.element();
  const auto of_one = [&](const char* name) { return kernel(name, bytes, bytes); };
  const auto of_two = [&](const char* name) { return kernel(name, 2 * bytes, bytes); };
  const TensorId y = tape_.tensor("activation", bytes);
  Node node{.name = "gelu", .inputs = {x}, .outputs = {y}, .saved = {x}};
  for (const char* name : {"gelu cube factor", "gelu scaled", "gelu one plus square", "gelu tanh", "gelu half", "gelu one plus tanh"}) {
    node.saved.push_back(tape_.tensor(name, bytes));
    node.intermediates.push_back(node.saved.back());
  }
  node.forward = {of_one("gelu cube factor"), alloc(0, bytes), of_two("gelu square"), of_one("gelu one plus square"), free(0), of_one("gelu scaled"), alloc(0, bytes), of_two("gelu product"),
                  of_one("gelu tanh"), free(0), of_one("gelu one plus tanh"), of_one("gelu half"), of_two("gelu")};
  // The last product's operands, the tanh, its argument's operands, the square's; four parts of the input's gradient, three of them added.
  node.backward = {alloc(0, bytes), of_two("gelu half gradient"), of_one("gelu backward"), free(0), alloc(1, bytes), of_two("gelu one plus tanh gradient"), alloc(2, bytes), of_two("gelu tanh backward"), free(1),
                   alloc(0, bytes), of_two("gelu scaled gradient"), alloc(1, bytes), of_two("gelu one plus square gradient"), free(2),
                   alloc(2, bytes), of_one("gelu backward scale"), free(0), of_two("gelu backward add"), free(2),
                   alloc(0, bytes), of_two("gelu cube factor gradient"), alloc(2, bytes), of_two("gelu square gradient"), free(1), of_two("gelu backward add"), free(2),
                   alloc(2, bytes), of_one("gelu backward scale"), free(0), of_two("gelu backward add"), free(2)};
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// silu(gate) * up, operator by operator. Halves of one tensor's rows (torch.chunk) are views: PyTorch's own kernels load them one by one (those of
/// torch.compile, Megatron's jit_fuser, do not: Liger's table, bias_swiglu_impl at its first size, before shapes that change make sizes symbolic), and
/// one concatenation joins their gradients (SplitBackward).
TensorId Operators::swiglu_native(TensorId gate, TensorId up, std::int64_t width, const std::string& prefix) {
  const std::int64_t bytes = c_.tokens * width * c_.element();
  const KernelKind halves = up == kNoTensor ? KernelKind::strided : KernelKind::elementwise;
  if (up == kNoTensor) {
    if (c_.profile.transformer_engine) tape_.tensors[static_cast<std::size_t>(tape_.root(gate))].stays = true;   // its halves are not contiguous (pytorch/cpu_offload.py, _check_if_offload)
    const std::vector<TensorId> parts = split(gate, prefix + "split gate and up", {width, width});
    gate = parts[0], up = parts[1];
  }
  const TensorId silu = tape_.tensor("silu", bytes), y = tape_.tensor("activation", bytes);
  tape_.tensors[static_cast<std::size_t>(silu)].stays = c_.profile.offloads_marked;
  tape_.nodes.push_back({.name = prefix + "silu", .inputs = {gate}, .outputs = {silu}, .saved = {gate}, .forward = {kernel("silu", bytes, bytes, halves)},
                         .backward = {kernel("silu backward", 2 * bytes, bytes, halves)}});
  Node product{.name = prefix + "gate product", .inputs = {silu, up}, .outputs = {y}, .saved = {silu, up}, .forward = {kernel("gate product", 2 * bytes, bytes, halves)},
               .backward = {kernel("gate product backward", 2 * bytes, bytes), kernel("gate product backward", 2 * bytes, bytes, halves)}};
  if (c_.profile.gate_offset) {
    const TensorId offset = tape_.tensor("linear half", bytes, false);
    tape_.tensors[static_cast<std::size_t>(offset)].stays = c_.profile.offloads_marked;
    product.intermediates = {offset};
    product.saved = {silu, offset};
    product.forward = {kernel("gate offset", bytes, bytes, halves), kernel("gate product", 2 * bytes, bytes)};
    product.backward = {kernel("gate product backward", 2 * bytes, bytes), kernel("gate product backward", 2 * bytes, bytes)};
  }
  tape_.nodes.push_back(std::move(product));
  return y;
}

TensorId Operators::activation(TensorId gate_or_fused, TensorId up, std::int64_t width, const std::string& prefix) {
  if (!c_.model.gated_mlp && c_.profile.activation == Fusion::eager && c_.model.activation == model::Activation::gelu_tanh) return gelu_eager(gate_or_fused, width);
  if (!c_.model.gated_mlp && c_.profile.scripted_gelu) return gelu_scripted(gate_or_fused, width);
  if (c_.model.gated_mlp && is_native(c_.activation_fusion())) return swiglu_native(gate_or_fused, up, width, prefix);
  const std::int64_t bytes = c_.tokens * width * c_.element();
  const TensorId y = tape_.tensor("activation", bytes);
  if (!c_.model.gated_mlp) {
    // Made where the products' results are written: forward writes the second tensor too, backward reads the first.
    const bool inside = c_.profile.fused_dense;
    Node node{.name = prefix + "gelu", .inputs = {gate_or_fused}, .outputs = {y}, .saved = {gate_or_fused}, .forward = {kernel("gelu", inside ? 0 : bytes, bytes)},
              .backward = {inside ? kernel("gelu backward", bytes, 0) : kernel("gelu backward", 2 * bytes, bytes)}};
    node.gradient_in_place = inside;
    tape_.nodes.push_back(std::move(node));
    return y;
  }
  std::vector<TensorId> inputs{gate_or_fused};
  if (up != kNoTensor) inputs.push_back(up);
  Node node{.name = prefix + "swiglu", .inputs = inputs, .outputs = {y}, .saved = inputs, .forward = {kernel("swiglu", 2 * bytes, bytes)}, .backward = {kernel("swiglu backward", 3 * bytes, 2 * bytes)}};
  // Cast on the way to backward and back (Megatron-LM megatron/core/fusions/fused_bias_swiglu.py, SwiGLUFunction: fp8_input_store).
  if (c_.profile.narrows_activation_input) {
    const std::int64_t elements = 2 * c_.tokens * width;
    node.saved = {tape_.tensor("activation input in 8 bits", elements, false)};
    if (c_.profile.remakes_from_narrow && up == kNoTensor) tape_.keep_as(gate_or_fused, node.saved.front());
    else node.intermediates = node.saved;
    node.forward.push_back(kernel("activation input cast", 2 * bytes, elements));
    node.backward = {alloc(0, 2 * bytes), kernel("activation input cast back", elements, 2 * bytes), kernel("swiglu backward", 3 * bytes, 2 * bytes), free(0)};
  }
  if (c_.activation_fusion() == Fusion::fused) launch_from_python(node);
  node.gradients_over_saved = c_.activation_fusion() == Fusion::fused && c_.profile.gradients_in_place && node.saved == inputs;
  tape_.nodes.push_back(std::move(node));
  return y;
}

bool Operators::is_wide(TensorId x, std::int64_t elements) const { return tape_.tensors[static_cast<std::size_t>(tape_.root(x))].bytes == elements * 4; }

TensorId Operators::residual(TensorId stream, TensorId branch, const std::string& name) {
  const std::int64_t elements = c_.stream_tokens() * c_.model.hidden, bytes = elements * c_.element(), wide = elements * c_.stream_element();
  const bool compiled = c_.profile.residual == Fusion::compiled;
  const auto bytes_of = [&](TensorId t) { return tape_.tensors[static_cast<std::size_t>(tape_.root(t))].bytes; };
  if (bytes_of(stream) < bytes_of(branch)) std::swap(stream, branch);
  const TensorId y = tape_.tensor(name, wide);
  if (c_.profile.dropout && (c_.model.dropout > 0 || c_.profile.scripted_dropout)) {
    const TensorId mask = tape_.tensor(name + " dropout mask", elements, false);
    if (c_.profile.residual == Fusion::fused) {  // bias, dropout and add in one kernel
      tape_.nodes.push_back({.name = name, .inputs = {stream, branch}, .outputs = {y}, .saved = {mask}, .intermediates = {mask},
                             .forward = {kernel("bias dropout add", wide + bytes, wide + elements)},
                             .backward = {kernel("dropout backward", (c_.profile.wide_residual ? 0 : bytes) + elements, bytes)}, .passed_inputs = 1});
      return y;
    }
    const TensorId dropped = tape_.tensor(name + " dropout", bytes);
    tape_.nodes.push_back({.name = name + " dropout", .inputs = {branch}, .outputs = {dropped}, .saved = {mask}, .intermediates = {mask},
                           .forward = {kernel("dropout", bytes, bytes + elements)}, .backward = {kernel("dropout backward", bytes + elements, bytes)}});
    branch = dropped;
  }
  Node node{.name = name, .inputs = {stream, branch}, .outputs = {y}, .forward = {c_.autocast_stream && !compiled ? mixed(name, wide + bytes, wide, elements) : kernel(name, wide + bytes, wide)}, .passed_inputs = 2};
  if ((c_.mixed() || c_.stream_element() > c_.element()) && bytes_of(branch) < bytes_of(stream)) {  // the sum is fp32, the branch's gradient is cast
    node.passed_inputs = 1;
    // A compiled kernel that makes the sum's gradient writes the branch's beside it.
    node.backward = {compiled ? kernel("cast", 0, bytes_of(branch)) : convert("cast", wide, bytes_of(branch))};
  }
  tape_.nodes.push_back(std::move(node));
  return y;
}

}  // namespace rehearse::strategies
