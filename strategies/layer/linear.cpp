// Linear layers: the three products, what travels around and under them, and what casts their operands.
#include <algorithm>
#include <iterator>

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

using model::KernelKind;

TensorId Operators::linear(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split) {
  const TensorId y = c_.mixed() ? narrow_product(x, name, in, out, bias, split) : product(x, name, in, out, bias, split);
  if (c_.adapter) return y;
  return c_.strategy.tuning.kind == TuningKind::adapter_v2 ? scaled_and_shifted(y, name, out, split) : with_adapter(x, y, name, in, out, split);
}

/// A 4-bit weight is written out in 16 bits before each product and dropped after it: temporaries from this number on, of which the
/// first holds the operand. Where it was quantised from fp16 it comes back as fp16 and is cast, both there at once.
/// Sources: bitsandbytes autograd/_functions.py, MatMul4Bit, and functional.py, dequantize_4bit; Lightning Fabric 2.1 to 2.4
/// plugins/precision/bitsandbytes.py, _Linear4bit (weight.to(torch.half)).
void Operators::dequantise(std::vector<Item>& list, int temporary, std::int64_t elements) const {
  const std::int64_t scales = elements / 64, bytes = elements * c_.element();
  const bool nested = c_.strategy.tuning.double_quantization, casts = c_.profile.quantised_from_fp16 && c_.activation != DType::fp16;
  const int first = casts ? temporary + 2 : temporary;
  // The scales are there before the weight: they lie in its way when it goes.
  if (nested) list.insert(list.end(), {alloc(temporary + 1, scales * 4), kernel("dequantise scales", scales, scales * 4)});
  list.insert(list.end(), {alloc(first, elements * 2), kernel("dequantise weight", quantised_bytes(elements, c_.strategy.tuning), elements * 2)});
  if (nested) list.push_back(free(temporary + 1));
  if (casts) list.insert(list.end(), {alloc(temporary, bytes), kernel("cast", elements * 2, bytes), free(first)});
}

/// A GPTQ weight in 16 bits, by PyTorch's operators: shifted out of 32-bit words that hold eight values each, narrowed, masked, less its
/// group's zero, times its group's scale. Uses three temporaries from this number on; the result is the caller's.
/// Source: AutoGPTQ 0.4 and 0.5 nn_modules/qlinear/qlinear_cuda_old.py, forward, from kernel_switch_threshold (128) tokens on.
void Operators::unpack(std::vector<Item>& list, int temporary, std::int64_t elements) const {
  const std::int64_t groups = gptq_groups(elements);
  const auto apart = [&](const char* name, std::int64_t read, std::int64_t written) { return kernel(name, read, written, KernelKind::strided); };
  list.insert(list.end(), {alloc(temporary, groups * 4), apart("shift zeros", groups / 2, groups * 4), alloc(temporary + 1, groups), kernel("narrow zeros", groups * 4, groups), free(temporary),
                           kernel("mask zeros", groups, groups), alloc(temporary, groups), kernel("zeros plus one", groups, groups), free(temporary + 1)});
  list.insert(list.end(), {alloc(temporary + 1, elements * 4), apart("shift weight", elements / 2, elements * 4), alloc(temporary + 2, elements), kernel("narrow weight", elements * 4, elements), free(temporary + 1),
                           kernel("mask weight", elements, elements), alloc(temporary + 1, elements), apart("weight less zeros", elements + groups, elements), free(temporary + 2), free(temporary),
                           apart("scale weight", elements + groups * 2, elements * 2), free(temporary + 1)});
}

/// A 16-bit product within an fp32 stream: its input is cast, and its result back. Sources: torch.autocast;
/// bitsandbytes nn/modules.py, Linear4bit.forward (x.to(compute_dtype), out.to(inp_dtype)).
TensorId Operators::narrow_product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split) {
  const LowerContext narrow = c_.narrowed();
  Operators op(narrow, tape_);
  const std::int64_t t = c_.tensor, input = split == Split::row ? c_.tokens * (in / t) : c_.stream_tokens() * in;
  const std::int64_t output = split == Split::column ? c_.tokens * (out / t) : c_.stream_tokens() * out;
  const TensorId y = op.product(cast(x, name + " input", input, narrow.activation), name, in, out, bias, split);
  return cast(y, name + " output", output, c_.activation);
}

TensorId Operators::cast(TensorId x, const std::string& name, std::int64_t elements, DType to) {
  const std::int64_t written = elements * bits(to) / 8, read = elements * (bits(to) == 32 ? 2 : 4);
  const TensorId y = tape_.tensor(name + " cast", written);
  tape_.nodes.push_back({.name = name + " cast", .inputs = {x}, .outputs = {y}, .forward = {kernel("cast", read, written)}, .backward = {kernel("cast", written, read)}});
  return y;
}

/// Fewer than 16 bits: what casts the operands of a linear layer's three products, and what scales their results.
///   Transformer Engine, torchao's tensor-wide scales   operands are cast before they travel; Transformer Engine also writes the
///       columns that the weight gradient wants, where they are not gathered again for it
///   torchao's row scales   scales run along the sum of each product: the gradient has other ones for the weight's gradient than for the
///       input's, and so has the weight here than in forward. The kernels and their traffic are those of torchao's roofline
///       (roofline_utils.py, "rowwise"): the second orientation is a transposed 16-bit copy, then a cast. Backward products accumulate
///       in fp32, for which cuBLAS's tensor-wide kernel runs with scales of one and its result is scaled afterwards (float8_ops.py).
///   torchao's mxfp8        a kernel for each operand and direction (mx_linear.py)
///   torchao's nvfp4        the maximum first, then one kernel for both directions (nvfp4_linear.py)
/// Scales of the blocks of an 8- or 4-bit operand, into the order in which products read them.
Item Operators::swizzle(const std::string& name, std::int64_t elements) const {
  const std::int64_t scales = elements / (c_.gemm == DType::nvfp4 ? 16 : 32);
  return kernel(name + " swizzle weight scales", scales, scales);
}

bool Operators::made_by_norm(TensorId x) const {
  const auto made = std::find_if(tape_.nodes.rbegin(), tape_.nodes.rend(), [&](const Node& n) { return std::find(n.outputs.begin(), n.outputs.end(), x) != n.outputs.end(); });
  return made != tape_.nodes.rend() && made->name.find("norm") != std::string::npos;
}

Operators::Casts Operators::casts_of(const Product& p) const {
  Casts c;
  if (bits(c_.gemm) > 8) return c;
  const std::int64_t e = c_.element(), in = p.m * p.k * e, out = p.m * p.n * e, weight = p.k * p.n * e;
  const auto narrow = [&](std::int64_t elements) { return elements * bits(c_.gemm) / 8; };
  const auto columns = [&](const char* what, std::int64_t bytes) { return kernel(p.name + " cast " + what + " columns", bytes, narrow(bytes / e)); };
  if (c_.row_scaled) {
    c.before_product = {alloc(6, p.m * p.k + p.m * 4), kernel(p.name + " cast input", in, p.m * p.k + p.m * 4), alloc(7, p.k * p.n + p.n * 4), kernel(p.name + " cast weight", weight, p.k * p.n + p.n * 4)};
    c.after_product = {free(6), free(7)};
    c.before_gradients = {alloc(6, p.m * p.n + p.m * 4)};
    if (p.trained) c.before_gradients.push_back(alloc(8, out));
    c.before_gradients.push_back(kernel(p.name + " cast gradient", out, p.m * p.n + p.m * 4 + (p.trained ? out : 0)));
    c.before_data_gradient = {alloc(7, weight), kernel(p.name + " transpose weight", weight, weight), alloc(9, p.k * p.n + p.k * 4), kernel(p.name + " cast weight", weight, p.k * p.n + p.k * 4), free(7)};
    c.after_data_gradient = {kernel(p.name + " scale data gradient", in, in), free(9)};
    c.after_input = {free(6)};
    if (!p.trained) return c;
    c.before_weight_gradient = {alloc(10, p.m * p.n + p.n * 4), kernel(p.name + " cast gradient columns", out, p.m * p.n + p.n * 4), alloc(11, in), kernel(p.name + " transpose input", in, in),
                                alloc(12, p.m * p.k + p.k * 4), kernel(p.name + " cast input columns", in, p.m * p.k + p.k * 4), free(11)};
    c.after_weight_gradient = {kernel(p.name + " scale weight gradient", weight, weight), free(8), free(10), free(12)};
    return c;
  }
  const bool blocks = c_.gemm == DType::mxfp8 || c_.gemm == DType::nvfp4, engine = c_.profile.transformer_engine;
  const bool both_ways = blocks && !engine && c_.gemm == DType::nvfp4, apart = blocks && !engine && !both_ways;
  const std::int64_t input_copies = both_ways || (engine && p.trained && !p.gathers) ? quantised_copies() : 1;
  const std::int64_t gradient_copies = apart ? 1 : engine ? quantised_copies() : 2;
  // A scale for the whole tensor: its maximum is set to zero, found (in the pass of the norm that makes the tensor, where there is one) and
  // made a scale. Source: Transformer Engine common/recipe/current_scaling.cu and pytorch/csrc/extensions/normalization.cpp, FUSED_NORM_AMAX_FP8.
  const bool scales = scales_from_tensor() && engine, maximum = scales_from_tensor() || both_ways;
  const auto find_scale = [&](std::vector<Item>& list, const char* what, std::int64_t bytes, bool found) {
    if (scales) list.push_back(kernel(p.name + " " + what + " maximum reset", 0, 4));
    if (maximum && !found) list.push_back(kernel(p.name + " " + what + " maximum", bytes, 4, KernelKind::reduction));
    if (scales) list.push_back(kernel(p.name + " " + what + " scale", 4, 8));
  };
  find_scale(c.before_gather, "input", p.own_rows * p.k * e, scales && p.after_norm);
  c.before_gather.push_back(kernel(p.name + " cast input", p.own_rows * p.k * e, narrow(p.own_rows * p.k) * input_copies));
  if (both_ways) c.before_gather.push_back(kernel(p.name + " weight maximum", weight, 4, KernelKind::reduction));
  if (both_ways || apart) c.before_gather.push_back(kernel(p.name + " cast weight", weight, narrow(p.k * p.n) * (both_ways ? 2 : 1)));
  find_scale(c.before_gradient_gather, "gradient", p.out_rows * p.n * e, false);
  c.before_gradient_gather.push_back(kernel(p.name + " cast gradient", p.out_rows * p.n * e, narrow(p.out_rows * p.n) * gradient_copies));
  if (blocks && engine) {
    // Activations are quantised with their scales in the product's order, weights are not: theirs are brought into it for each product.
    // Source: Transformer Engine 2.12 and later, optimize_for_gemm in module/linear.py; pytorch/csrc/extensions/swizzle.cpp.
    c.before_product = {swizzle(p.name, p.k * p.n)};
    c.before_data_gradient = {swizzle(p.name, p.k * p.n)};
  }
  if (transposes_weights()) {
    const std::int64_t bytes = narrow(p.k * p.n);
    c.before_data_gradient = {alloc(13, bytes), kernel(p.name + " transpose weight", bytes, bytes, KernelKind::permute)};
    c.after_data_gradient = {free(13)};
  }
  if (!apart) return c;
  c.before_data_gradient = {columns("weight", weight)};
  if (p.trained) c.before_weight_gradient = {columns("gradient", out), columns("input", in)};
  return c;
}

TensorId Operators::product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split) {
  const std::int64_t t = c_.tensor;
  const bool sharded = split != Split::none && t > 1;
  const std::int64_t k = split == Split::row ? in / t : in, n = split == Split::column ? out / t : out;
  const std::int64_t m = split == Split::none ? c_.stream_tokens() : c_.tokens;
  const bool gather = sharded && split == Split::column && c_.sequence_parallel;
  const bool scatter = sharded && split == Split::row && c_.sequence_parallel;
  const bool reduce = sharded && split == Split::row && !c_.sequence_parallel && !c_.joint_reduction;
  const std::int64_t e = c_.element();
  const std::int64_t out_rows = scatter ? m / t : m;
  const bool low_precision = bits(c_.gemm) <= 8;
  const std::int64_t whole_in = m * k * e, whole_out = m * n * e;
  // Operands travel in the format of the product (Transformer Engine's quantised all-gather, torchtitan's
  // Float8ColwiseParallel). Block-scaled gradients travel twice, scaled along rows and along columns.
  // Operands with row scales travel in 16 bit and are cast on arrival (torchtitan parallelize_llama: rowwise recipes take the plain plan).
  const bool by_row = low_precision && c_.row_scaled, travels_narrow = low_precision && !by_row;
  const std::int64_t sent_in = travels_narrow ? m * k * bits(c_.gemm) / 8 : whole_in;
  const bool block_scaled = c_.gemm == DType::mxfp8 || c_.gemm == DType::nvfp4;
  const bool own_blocks = block_scaled && !c_.profile.transformer_engine;   // torchao's linear layers
  const std::int64_t own_rows = gather ? m / t : m;
  const std::int64_t sent_gradient = travels_narrow ? m * n * bits(c_.gemm) / 8 * (block_scaled ? 2 : 1) : whole_out;
  const bool overlaps = sharded && c_.sequence_parallel && c_.layer >= 0 && c_.profile.overlap_tensor;

  const TensorId y = tape_.tensor(name, out_rows * n * e);
  Weight matrix = weight(name + ".weight", k * n);
  matrix.replicated_over_tensor = !sharded;
  matrix.columns = k;
  const bool trained = matrix.trainable;
  const bool quantised = !trained && quantises(c_.strategy.tuning, c_.profile, name) && !(c_.model.tied_embeddings && name == "lm_head");
  const bool nf4 = quantised && c_.strategy.tuning.format == FourBit::nf4, gptq = quantised && !nf4;
  if (quantised) matrix.packed_bytes = quantised_bytes(k * n, c_.strategy.tuning), matrix.wide_bytes = 0;
  cast_by_engine(matrix);
  const int w = tape_.weight(std::move(matrix));
  Node node{.name = name, .inputs = {x}, .outputs = {y}};
  const bool keeps_gathered = gather && trained && c_.profile.keeps_gathered_input;
  if (keeps_gathered) {
    node.intermediates.push_back(tape_.tensor(name + " gathered input", whole_in, false));
    node.saved.push_back(node.intermediates.back());
  } else if (trained && own_blocks && c_.gemm == DType::nvfp4) {
    // torchao keeps both operands as backward multiplies them: quantised along the other direction (nvfp4_linear.py, save_for_backward).
    for (const auto& [what, elements] : {std::pair("input", own_rows * k), std::pair("weight", k * n)}) {
      node.intermediates.push_back(tape_.tensor(name + " quantised " + what, elements / 2 + elements / 16, false));
      node.saved.push_back(node.intermediates.back());
    }
  } else if (trained && low_precision && c_.profile.transformer_engine) {
    // Transformer Engine keeps the operand as it was multiplied: cast, with its scales (module/linear.py, layernorm_linear.py: inputmat).
    const std::int64_t elements = (gather ? m / t : m) * k, blocks = c_.gemm == DType::fp8 ? 0 : elements / (c_.gemm == DType::nvfp4 ? 16 : 32);
    node.intermediates.push_back(tape_.tensor(name + " cast input", elements * bits(c_.gemm) / 8 + blocks, false));
    node.saved.push_back(node.intermediates.back());
  } else if (trained) {
    node.saved.push_back(x);
  } else if (nf4 && c_.profile.keeps_quantised_inputs) {  // bitsandbytes autograd/_functions.py, MatMul4Bit: ctx.tensors = (A, B)
    node.attributes.push_back(x);
  }
  if (gptq) {  // a product of plain tensors: autograd keeps the weight for the input's gradient
    node.intermediates.push_back(tape_.tensor(name + " whole weight", k * n * e, false));
    node.saved_for_input.push_back(node.intermediates.back());
  }
  // What PyTorch was seen to do (tests/oracles, torch_flops.json): a recomputation that stops early leaves out a last mm,
  // but runs a last addmm again.
  node.recomputed_last = bias;
  if (!quantised && c_.profile.autocast && c_.profile.stored_parameter == DType::fp32 && e == 2 && c_.strategy.data_parallel.kind != DataParallelKind::fsdp1 &&
      c_.strategy.data_parallel.kind != DataParallelKind::fsdp2) {
    // Autocast copies the fp32 weight; the copy is what backward reads.
    const TensorId copy = tape_.tensor(name + " weight copy", k * n * 2, false);
    node.intermediates.push_back(copy);
    node.saved.push_back(copy);
    node.forward.push_back(kernel("cast weight", k * n * 4, k * n * 2));
  }

  // Forward
  auto& f = node.forward;
  const int both = plan::kAfterCompute | plan::kComputeWaits;
  const auto product_of = [&](const std::string& what, model::GemmRole role, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    return gemm(what, role, rows, columns, depth, c_.activation, false);
  };
  const auto step = [&](const std::string& what, std::int64_t bytes, int sync) { return collective(CollectiveKind::send_recv, what, bytes, sync); };
  // Each rank's rows are multiplied while the next rank's travel round the ring.
  const auto gathered_product = [&](std::vector<Item>& list, const std::string& what, const std::string& travels, std::int64_t bytes, model::GemmRole role,
                                    std::int64_t columns, std::int64_t depth) {
    for (std::int64_t i = 0; i < t; ++i) {
      if (i + 1 < t) list.push_back(step(travels, bytes / t, i == 0 ? plan::kAfterCompute : 0));
      list.push_back(product_of(what, role, m / t, columns, depth));
      if (i + 1 < t) list.push_back(wait(plan::Stream::tensor));
    }
  };
  // Each rank's rows travel while the next rank's are multiplied; the own rows come last and are summed with what arrived.
  const auto scattered_product = [&](std::vector<Item>& list, const std::string& what, const std::string& travels, std::int64_t bytes, model::GemmRole role,
                                     std::int64_t columns, std::int64_t depth) {
    for (std::int64_t i = 0; i < t; ++i) {
      list.push_back(product_of(what, role, m / t, columns, depth));
      if (i + 1 < t) list.push_back(step(travels, bytes / t, plan::kAfterCompute));
    }
    list.push_back(wait(plan::Stream::tensor));
    list.push_back(kernel(what + " sum", bytes, bytes / t));
  };
  const bool regathers = gather && trained && !keeps_gathered;
  const bool buffers = c_.profile.gathers_into_buffers, gathers_anew = gather && !keeps_gathered && !buffers;
  const RecordStreams records = c_.profile.record_streams;
  Casts casts = casts_of({.name = name, .m = m, .k = k, .n = n, .own_rows = own_rows, .out_rows = out_rows, .gathers = gather, .trained = trained, .after_norm = split != Split::none && made_by_norm(x)});
  const auto append = [](std::vector<Item>& list, std::vector<Item>& items) { list.insert(list.end(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end())); };
  append(f, casts.before_gather);
  if (gathers_anew) f.push_back(alloc(0, sent_in));
  if (gather && !overlaps) f.push_back(collective(CollectiveKind::all_gather, name + " gather input", sent_in, both));
  append(f, casts.before_product);
  if (scatter || reduce) f.push_back(alloc(1, whole_out));
  if (nf4) dequantise(f, 5, k * n);
  if (gptq) unpack(f, 5, k * n);
  if (gather && overlaps) gathered_product(f, name, name + " gather input", sent_in, model::GemmRole::forward, n, k);
  else if (scatter && overlaps) scattered_product(f, name, name + " scatter output", whole_out, model::GemmRole::forward, n, k);
  else f.push_back(product_of(name, model::GemmRole::forward, m, n, k));
  if (nf4) f.push_back(free(5));
  append(f, casts.after_product);
  if (gathers_anew) f.push_back(free(0));
  if (scatter) f.push_back({.kind = Item::Kind::produce_outputs});
  if (scatter && !overlaps) f.push_back(collective(CollectiveKind::reduce_scatter, name + " scatter output", whole_out, both));
  if (reduce) f.push_back(collective(CollectiveKind::all_reduce, name + " reduce output", whole_out, both));
  // What a collective reads and what it writes are marked alike.
  if ((scatter || reduce) && records == RecordStreams::all) f.push_back(record_stream(1));
  if (scatter && records == RecordStreams::all) f.push_back(record(Item::Kind::record_outputs));
  if (scatter || reduce) f.push_back(free(1));
  if (bias && !low_precision && c_.profile.norm == Fusion::eager && split == Split::row && sharded) f.push_back(kernel("bias add", whole_out, whole_out));

  // Backward: the gradient of the input, then of the weight; collectives overlap with the other GEMM.
  auto& b = node.backward;
  append(b, casts.before_gradient_gather);
  if (scatter && !buffers) b.push_back(alloc(2, sent_gradient));
  if (scatter && !overlaps) b.push_back(collective(CollectiveKind::all_gather, name + " gather gradient", sent_gradient, both));
  if (scatter && !overlaps && records != RecordStreams::none) b.push_back(record(Item::Kind::record_outputs));
  if (regathers && !buffers) b.push_back(for_weights(alloc(0, sent_in)));
  if (regathers) b.push_back(for_weights(collective(CollectiveKind::all_gather, name + " gather input", sent_in, plan::kAfterCompute)));
  if (regathers && records != RecordStreams::none) b.push_back(for_weights(record(Item::Kind::record_inputs)));
  append(b, casts.before_gradients);
  const std::size_t input_from = b.size();
  if (gather) b.push_back(alloc(3, whole_in));
  else b.push_back({.kind = Item::Kind::produce_input_gradients});
  if (nf4) dequantise(b, 5, k * n);
  append(b, casts.before_data_gradient);
  if (scatter && overlaps) gathered_product(b, name + " data gradient", name + " gather gradient", sent_gradient, model::GemmRole::data_gradient, k, n);
  else b.push_back(product_of(name + " data gradient", model::GemmRole::data_gradient, m, k, n));
  if (nf4) b.push_back(free(5));
  append(b, casts.after_data_gradient);
  for (std::size_t i = input_from; i < b.size(); ++i) b[i].for_input = true;
  append(b, casts.after_input);
  if (regathers) b.push_back(for_weights(wait(plan::Stream::tensor)));
  const std::size_t scatter_from = b.size();
  const int reduction = c_.profile.waits_for_input_gradients ? both : plan::kAfterCompute;
  if (gather) b.insert(b.end(), {{.kind = Item::Kind::produce_input_gradients},
                                 collective(CollectiveKind::reduce_scatter, name + " scatter gradient", whole_in, reduction)});
  else if (sharded && split == Split::column) b.push_back(collective(CollectiveKind::all_reduce, name + " reduce gradient", whole_in, reduction));
  if (gather && records != RecordStreams::none) b.insert(b.end(), {record_stream(3), record(Item::Kind::record_input_gradients)});
  for (std::size_t i = scatter_from; i < b.size(); ++i) b[i].for_input = true;
  const bool fused = c_.profile.fused_gradient_accumulation;
  for (Item& i : casts.before_weight_gradient) b.push_back(for_weights(std::move(i)));
  if (trained) {
    b.push_back(weight_gradient(w, gemm(name + " weight gradient", model::GemmRole::weight_gradient, n, k, m, fused ? c_.profile.gradient : c_.activation, fused)));
    b.back().reads_gathered = scatter;
  }
  for (Item& i : casts.after_weight_gradient) b.push_back(for_weights(std::move(i)));
  if (bias) {
    Weight added = weight(name + ".bias", n);
    added.matrix = false;
    added.replicated_over_tensor = !sharded || split == Split::row;
    const bool bias_trained = added.trainable;
    const int bw = tape_.weight(std::move(added));
    if (bias_trained) {
      b.push_back(weight_gradient(bw, kernel(name + " bias gradient", m * n * e, n * 4, KernelKind::reduction)));
      b.back().reads_gathered = scatter;
    }
  }
  if (sharded && split == Split::column) b.push_back(wait(plan::Stream::tensor));
  if (regathers && !buffers) b.push_back(for_weights(free(0)));
  if (gather) {
    b.push_back(free(3));
    b.back().for_input = true;
  }
  if (scatter && !buffers) b.push_back(for_weights(free(2)));
  tape_.nodes.push_back(std::move(node));
  return y;
}

}  // namespace rehearse::strategies
