// Low-rank adapters beside a linear layer: y + B(A(dropout(x))) * alpha / rank, as operators with their own saved inputs.
// Sources: huggingface/peft tuners/lora/layer.py (Linear.forward); Lightning-AI/litgpt lora.py (LoRAQKVLinear.zero_pad).
#include <algorithm>
#include <numeric>

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;

namespace {

/// Widths of what a linear layer holds, in the order of parts_of().
std::vector<std::int64_t> part_widths(const model::ModelDescription& m, const std::vector<std::string>& parts, std::int64_t out) {
  if (parts.size() == 3) return {m.heads * m.head_dim, m.kv_heads * m.head_dim, m.kv_heads * m.head_dim};
  return std::vector<std::int64_t>(parts.size(), out / static_cast<std::int64_t>(parts.size()));
}

}  // namespace

TensorId Operators::with_adapter(TensorId x, TensorId y, const std::string& name, std::int64_t in, std::int64_t out, Split split) {
  const Tuning& tuning = c_.strategy.tuning;
  const std::vector<std::string> parts = parts_of(name);
  const std::vector<std::size_t> adapted = adapted_parts(tuning, name, parts);
  if (adapted.empty()) return y;
  LowerContext inner = c_.narrowed();
  inner.adapter = true;
  if (bits(c_.gemm) <= 8) inner.gemm = c_.activation;
  const bool quantised = quantises(tuning, c_.profile, name), clones = quantised && tuning.format == FourBit::nf4 && c_.profile.clones_quantised_output;
  const bool kept_wide = c_.profile.adapter == DType::fp32 && c_.element() == 2;
  const bool wide = kept_wide && !c_.profile.adapter_autocast;
  const bool casts = kept_wide && (wide || !clones);
  if (wide) inner.activation = inner.gemm = DType::fp32;
  Operators op(inner, tape_);
  const std::int64_t t = c_.tensor, e = inner.element(), narrow = c_.element();
  const bool row = split == Split::row && t > 1;
  const std::int64_t in_elements = row ? c_.tokens * (in / t) : (split == Split::column ? c_.stream_tokens() : c_.tokens) * in;
  const bool scattered = row && c_.sequence_parallel;
  const std::int64_t rows = split == Split::none || scattered ? c_.stream_tokens() : c_.tokens;
  const std::int64_t width = split == Split::column ? out / t : out, out_elements = rows * width;

  TensorId source = x;
  auto pointwise = [&](const std::string& what, TensorId from, std::int64_t read, std::int64_t written) {
    const TensorId to = tape_.tensor(name + " " + what, written);
    tape_.nodes.push_back({.name = name + " " + what, .inputs = {from}, .outputs = {to}, .forward = {kernel(what, read, written)}, .backward = {kernel(what + " backward", written, read)}});
    return to;
  };
  if (clones) {  // peft tuners/lora/bnb.py, Linear4bit.forward
    const std::int64_t bytes = out_elements * narrow;
    const TensorId copy = tape_.tensor(name + " clone", bytes);
    tape_.nodes.push_back({.name = name + " clone", .inputs = {y}, .outputs = {copy}, .forward = {kernel("clone", bytes, bytes)}, .passed_inputs = 1});
    y = copy;
  }
  if (casts) source = pointwise("adapter cast", source, in_elements * narrow, in_elements * 4);
  const std::int64_t source_bytes = in_elements * (casts ? 4 : narrow);
  if (tuning.dropout > 0) {
    const TensorId mask = tape_.tensor(name + " adapter dropout mask", in_elements, false);
    source = pointwise("adapter dropout", source, source_bytes, source_bytes);
    tape_.nodes.back().saved = tape_.nodes.back().intermediates = {mask};
  }
  if (source_bytes != in_elements * e) source = pointwise("adapter autocast", source, source_bytes, in_elements * e);
  // One for the whole layer, or one for each part that it holds.
  const bool whole = parts.size() == 1 || !c_.profile.adapter_per_part;
  const std::int64_t used = whole ? 1 : static_cast<std::int64_t>(adapted.size());
  TensorId branch = op.product(source, name + ".lora_A", in, tuning.rank * used, false, row ? Split::row : Split::none);
  tape_.nodes.back().forward_host = c_.profile.adapter_host;
  if (whole) {
    branch = op.product(branch, name + ".lora_B", tuning.rank, out, false, split == Split::column ? Split::column : Split::none);
  } else {
    // A fused layer: one small product per adapted part, written into its columns of a zeroed result.
    const std::vector<std::int64_t> widths = part_widths(c_.model, parts, out);
    std::int64_t sum = 0;
    for (std::size_t i : adapted) sum += widths[i] / t;
    Weight up = op.weight(name + ".lora_B.weight", tuning.rank * sum);
    up.columns = tuning.rank;
    const int w = tape_.weight(std::move(up));
    const TensorId result = tape_.tensor(name + " adapter output", out_elements * e);
    Node node{.name = name + " adapter up", .inputs = {branch}, .outputs = {result}, .saved = {branch}};
    const bool padded = adapted.size() < parts.size();
    if (padded) {  // index_copy keeps its source (torch derivatives.yaml)
      node.intermediates.push_back(tape_.tensor(name + " adapter columns", rows * sum * e));
      node.saved.push_back(node.intermediates.back());
    }
    if (padded) node.backward.insert(node.backward.end(), {alloc(0, rows * sum * e), op.kernel("gather columns", rows * sum * e, rows * sum * e)});
    for (std::size_t i : adapted) {
      const std::int64_t n = widths[i] / t;
      node.forward.push_back(op.gemm(name + ".lora_B", GemmRole::forward, rows, n, tuning.rank, inner.activation, false));
      node.backward.push_back(op.gemm(name + ".lora_B data gradient", GemmRole::data_gradient, rows, tuning.rank, n, inner.activation, false));
    }
    node.backward.push_back(weight_gradient(w, op.gemm(name + ".lora_B weight gradient", GemmRole::weight_gradient, sum, tuning.rank, rows, inner.activation, false)));
    if (padded) {
      node.forward.insert(node.forward.end(), {op.kernel("zero fill", 0, out_elements * e, KernelKind::memset), op.kernel("scatter columns", rows * sum * e, rows * sum * e)});
      node.backward.push_back(free(0));
    }
    tape_.nodes.push_back(std::move(node));
    branch = result;
  }

  const std::int64_t branch_bytes = out_elements * e, bytes = out_elements * narrow;
  if (tuning.decomposed) return op.decomposed(y, branch, name, in, out, narrow);
  const bool fused = c_.profile.activation == Fusion::fused || c_.profile.activation == Fusion::compiled;
  const TensorId sum = tape_.tensor(name + " with adapter", bytes);
  if (fused) {
    // TorchInductor adds inside the kernel that reads the sum (rotary embedding, activation, residual), and scales the gradient inside
    // the one that makes it: one tensor more is read, and one more written (tests/oracles/torch_compiled_layer.py). Not where attention
    // reads the sum and makes its gradient, nor what comes from the layer above.
    const bool compiled = c_.profile.activation == Fusion::compiled, attends = name == "v_proj" && c_.model.heads == c_.model.kv_heads;
    const bool inside = compiled && !attends, scaled_inside = inside && name != "down_proj" && name != "fc2";
    tape_.nodes.push_back({.name = name + " adapter add", .inputs = {y, branch}, .outputs = {sum}, .forward = {kernel("adapter scaled add", inside ? branch_bytes : bytes + branch_bytes, inside ? 0 : bytes)},
                           .backward = {kernel("adapter scale backward", scaled_inside ? 0 : bytes, branch_bytes)}, .passed_inputs = 1});
    return sum;
  }
  branch = pointwise("adapter scale", branch, branch_bytes, branch_bytes);
  if (branch_bytes < bytes) {  // a 16-bit branch beside an fp32 stream
    tape_.nodes.push_back({.name = name + " adapter add", .inputs = {y, branch}, .outputs = {sum}, .forward = {kernel("adapter add", bytes + branch_bytes, bytes)},
                           .backward = {kernel("cast", bytes, branch_bytes)}, .passed_inputs = 1});
    return sum;
  }
  if (!wide) {
    tape_.nodes.push_back({.name = name + " adapter add", .inputs = {y, branch}, .outputs = {sum}, .forward = {kernel("adapter add", 2 * bytes, bytes)}, .passed_inputs = 2});
    return sum;
  }
  // 16 + 32 bit: the sum is fp32 and is cast back; so is the gradient on its way down.
  const TensorId wide_sum = tape_.tensor(name + " adapter sum", branch_bytes);
  tape_.nodes.push_back({.name = name + " adapter add", .inputs = {branch, y}, .outputs = {wide_sum}, .forward = {kernel("adapter add", bytes + branch_bytes, branch_bytes)},
                         .backward = {kernel("cast", branch_bytes, bytes)}, .passed_inputs = 1});
  tape_.nodes.push_back({.name = name + " adapter cast back", .inputs = {wide_sum}, .outputs = {sum}, .forward = {kernel("cast", branch_bytes, bytes)}, .backward = {kernel("cast", bytes, branch_bytes)}});
  return sum;
}

/// DoRA: y + (s - 1) y + s * branch * scale, where s is the learned magnitude over the norm of each row of W + scale * BA. BA is
/// made anew for it, by sending an identity matrix through the adapter, and so is a copy of W in the adapter's format.
/// Source: huggingface/peft tuners/lora/dora.py (DoraLinearLayer.forward), variants.py: without dropout y itself is the base.
/// With dropout PEFT computes x W again; that product is left out here.
TensorId Operators::decomposed(TensorId y, TensorId branch, const std::string& name, std::int64_t in, std::int64_t out, std::int64_t narrow) {
  const std::int64_t e = c_.element(), rows = c_.tokens, wide = rows * out * e, bytes = rows * out * narrow, matrix = in * out * e, rank = c_.strategy.tuning.rank;
  const bool casts = e != narrow;
  Weight magnitude = weight(name + ".lora_magnitude", out);
  magnitude.matrix = false;
  const int w = tape_.weight(std::move(magnitude));
  const TensorId result = tape_.tensor(name + " with adapter", bytes);
  Node node{.name = name + " adapter magnitude", .inputs = {y, branch}, .outputs = {result}, .saved = {y, branch}};
  auto& f = node.forward;
  f = {alloc(0, in * in * e), kernel("identity", 0, in * in * e, KernelKind::memset), alloc(1, in * rank * e), gemm(name + ".lora_A of identity", GemmRole::forward, in, rank, in, c_.activation, false),
       alloc(2, matrix), gemm(name + ".lora_B of identity", GemmRole::forward, in, out, rank, c_.activation, false)};
  if (casts) f.insert(f.end(), {alloc(3, matrix), kernel("cast weight", in * out * narrow, matrix)});
  f.insert(f.end(), {alloc(4, matrix), kernel("scale BA", matrix, matrix), alloc(5, matrix), kernel("add weight", 2 * matrix, matrix), free(4), kernel("weight norm", matrix, out * e, KernelKind::reduction), free(5)});
  f.insert(f.end(), {alloc(6, wide), kernel("magnitude times base", bytes, wide), alloc(7, wide), kernel("magnitude times branch", wide, wide), alloc(8, wide), kernel("adapter scale", wide, wide), free(7),
                     alloc(9, wide), kernel("adapter add", 2 * wide, wide), free(6), free(8), free(0), free(1), free(2)});
  if (casts) f.push_back(free(3));
  if (casts) f.insert(f.end(), {alloc(10, wide), kernel("adapter add", bytes + wide, wide), free(9), kernel("cast", wide, bytes), free(10)});
  else f.insert(f.end(), {kernel("adapter add", 2 * wide, wide), free(9)});
  auto& b = node.backward;
  if (casts) b.insert(b.end(), {alloc(0, wide), kernel("cast", bytes, wide)});
  b.insert(b.end(), {alloc(1, wide), kernel("base product", wide + bytes, wide), kernel("magnitude gradient", wide, out * e, KernelKind::reduction), free(1), kernel("base gradient", wide + bytes, bytes),
                     alloc(2, wide), kernel("adapter scale backward", wide, wide), alloc(3, wide), kernel("branch product", 2 * wide, wide),
                     weight_gradient(w, kernel("magnitude gradient", wide, out * e, KernelKind::reduction)), free(3), kernel("branch gradient", wide, wide), free(2)});
  if (casts) b.push_back(free(0));
  tape_.nodes.push_back(std::move(node));
  return result;
}

}  // namespace rehearse::strategies
