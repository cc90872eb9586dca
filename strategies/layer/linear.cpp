// Linear layers: the product (linear_layer.h) with casts of the residual stream around it; how weights of 4 bits are written out for it.
#include "strategies/layer/linear_layer.h"

namespace rehearse::strategies {

using model::KernelKind;

TensorId Operators::linear(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split) {
  if (const std::int64_t elements = c_.stream_tokens() * in; c_.autocast_stream && is_wide(x, elements)) x = cast(x, name + " input", elements, c_.activation);
  const TensorId y = c_.mixed() ? narrow_product(x, name, in, out, bias, split) : product(x, name, in, out, bias, split);
  if (c_.adapter) return y;
  return c_.strategy.tuning.kind == TuningKind::adapter_v2 ? scaled_and_shifted(y, name, out, split) : with_adapter(x, y, name, in, out, split);
}

/// torchtitan models/llama3/parallelize.py: prepare_module_input of attention and feed_forward, whose desired layout is Replicate. 8-bit
/// operands with one scale are cast before (PrepareFloat8ModuleInput), and rest in 16 bit here.
TensorId Operators::gather_sequence(TensorId x, const std::string& name, std::int64_t width) {
  const std::int64_t elements = c_.tokens * width, bytes = elements * c_.element(), own = bytes / c_.tensor;
  const bool narrow = bits(c_.gemm) <= 8 && !c_.row_scaled, orders = c_.profile.sequence_second, orders_gathered = orders && c_.batch > 1;
  const std::int64_t sent = narrow ? elements * bits(c_.gemm) / 8 : bytes;
  const int both = plan::kAfterCompute | plan::kComputeWaits;
  const TensorId y = tape_.tensor(name + " gathered", bytes);
  Node node{.name = name + " gather", .inputs = {x}, .outputs = {y}};
  std::vector<Item>& f = node.forward;
  if (narrow && scales_from_tensor()) f.push_back(kernel(name + " input maximum", own, 4, KernelKind::reduction));
  if (narrow) f.push_back(kernel(name + " cast input", own, sent / c_.tensor));
  if (orders_gathered) f.push_back(alloc(0, sent));
  f.push_back(collective(CollectiveKind::all_gather, name + " gather input", sent, both));
  if (orders_gathered) f.insert(f.end(), {kernel(name + " order input", sent, sent, KernelKind::strided), free(0)});
  std::vector<Item>& b = node.backward;
  if (orders) b.insert(b.end(), {alloc(1, bytes), kernel(name + " order input gradient", bytes, bytes, KernelKind::strided)});
  b.insert(b.end(), {{.kind = Item::Kind::produce_input_gradients}, collective(CollectiveKind::reduce_scatter, name + " scatter input gradient", bytes, both)});
  if (orders) b.push_back(free(1));
  tape_.nodes.push_back(std::move(node));
  return y;
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
  if (casts) list.insert(list.end(), {alloc(temporary, bytes), convert("cast", elements * 2, bytes), free(first)});
}

/// A GPTQ weight in 16 bits, by PyTorch's operators: shifted out of 32-bit words that hold eight values each, narrowed, masked, less its
/// group's zero, times its group's scale. Uses three temporaries from this number on; the result is the caller's.
/// Source: AutoGPTQ 0.4 and 0.5 nn_modules/qlinear/qlinear_cuda_old.py, forward, from kernel_switch_threshold (128) tokens on.
void Operators::unpack(std::vector<Item>& list, int temporary, std::int64_t elements) const {
  const std::int64_t groups = gptq_groups(elements);
  list.insert(list.end(), {alloc(temporary, groups * 4), strided("shift zeros", groups / 2, groups * 4, 4), alloc(temporary + 1, groups), kernel("narrow zeros", groups * 4, groups), free(temporary),
                           kernel("mask zeros", groups, groups), alloc(temporary, groups), kernel("zeros plus one", groups, groups), free(temporary + 1)});
  list.insert(list.end(), {alloc(temporary + 1, elements * 4), strided("shift weight", elements / 2, elements * 4, 4), alloc(temporary + 2, elements), kernel("narrow weight", elements * 4, elements), free(temporary + 1),
                           kernel("mask weight", elements, elements), alloc(temporary + 1, elements), strided("weight less zeros", elements + groups, elements, 1), free(temporary + 2), free(temporary),
                           strided("scale weight", elements + groups * 2, elements * 2, 2), free(temporary + 1)});
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
  tape_.nodes.push_back({.name = name + " cast", .inputs = {x}, .outputs = {y}, .forward = {convert("cast", read, written)}, .backward = {convert("cast", written, read)}});
  return y;
}

/// Scales of the blocks of an 8- or 4-bit operand, into the order in which products read them.
Item Operators::swizzle(const std::string& name, std::int64_t elements) const {
  const std::int64_t scales = elements / (c_.gemm == DType::nvfp4 ? 16 : 32);
  return kernel(name + " swizzle weight scales", scales, scales);
}

TensorId Operators::product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split) {
  return LinearLayer(c_, tape_, x, name, in, out, bias, split).write();
}

}  // namespace rehearse::strategies
