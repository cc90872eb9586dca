// Low-rank adapters beside a linear layer: y + B(A(dropout(x))) * alpha / rank, as operators with their own saved inputs.
// Sources: huggingface/peft tuners/lora/layer.py (Linear.forward); Lightning-AI/litgpt lora.py (LoRAQKVLinear.zero_pad).
#include <utility>

#include "strategies/layer/linear_layer.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;

namespace {

/// Widths of what a linear layer holds, in the order of parts_of().
std::vector<std::int64_t> part_widths(const model::ModelDescription& m, const std::vector<std::string>& parts, std::int64_t out) {
  if (parts.size() == 3) return {m.heads * m.head_dim, m.kv_heads * m.head_dim, m.kv_heads * m.head_dim};
  return std::vector<std::int64_t>(parts.size(), out / static_cast<std::int64_t>(parts.size()));
}

/// The adapter of one linear layer while it is written to the tape. Unsharded widths in -> out, as in Operators::linear.
class Adapter {
 public:
  Adapter(const LowerContext& context, Tape& tape, const std::string& name, std::int64_t in, std::int64_t out, Operators::Split split)
      : c_(context), tape_(tape), op_(context, tape), name_(name), in_(in), out_(out), split_(split) {}
  /// The layer's output with what the adapter makes of the layer's input.
  TensorId add(TensorId x, TensorId y);

 private:
  LowerContext inside() const;
  TensorId pointwise(const std::string& what, TensorId from, std::int64_t read, std::int64_t written);
  TensorId clone(TensorId y);
  TensorId input(TensorId x);
  TensorId down(TensorId source);
  TensorId up(TensorId branch);
  TensorId up_by_part(TensorId branch);
  TensorId sum(TensorId y, TensorId branch);
  TensorId sum_in_one_kernel(TensorId y, TensorId branch);
  TensorId decomposed(TensorId y, TensorId branch);

  const LowerContext& c_;
  Tape& tape_;
  const Operators op_;
  const std::string& name_;
  const std::int64_t in_, out_;
  const Operators::Split split_;
  const Tuning& tuning_ = c_.strategy.tuning;

  // Formats: the stream's, and the adapter's own
  const bool clones_ = quantises(tuning_, c_.profile, name_) && tuning_.format == FourBit::nf4 && c_.profile.clones_quantised_output;
  const bool kept_wide_ = c_.profile.adapter == DType::fp32 && c_.element() == 2;
  const bool wide_ = kept_wide_ && !c_.profile.adapter_autocast;
  const bool casts_ = kept_wide_ && (wide_ || !clones_);
  const LowerContext inner_ = inside();
  const Operators inner_op_{inner_, tape_};
  const std::int64_t narrow_ = c_.element(), e_ = inner_.element();

  // Shapes on this rank
  const std::int64_t t_ = c_.tensor;
  const bool row_ = split_ == Operators::Split::row && t_ > 1, scattered_ = row_ && c_.sequence_parallel;
  const std::int64_t in_elements_ = row_ ? c_.tokens * (in_ / t_) : (split_ == Operators::Split::column ? c_.stream_tokens() : c_.tokens) * in_;
  const std::int64_t rows_ = split_ == Operators::Split::none || scattered_ ? c_.stream_tokens() : c_.tokens;
  const std::int64_t out_elements_ = rows_ * (split_ == Operators::Split::column ? out_ / t_ : out_);
  const std::int64_t bytes_ = out_elements_ * narrow_, branch_bytes_ = out_elements_ * e_;   // of the layer's output, of the adapter's

  // One adapter for the whole layer, or one for each part that it holds.
  const std::vector<std::string> parts_ = parts_of(name_);
  const std::vector<std::size_t> adapted_ = adapted_parts(tuning_, name_, parts_);
  const bool whole_ = parts_.size() == 1 || !c_.profile.adapter_per_part;
};

LowerContext Adapter::inside() const {
  LowerContext inner = c_.narrowed();
  inner.adapter = true;
  if (bits(c_.gemm) <= 8) inner.gemm = c_.activation;
  if (wide_) inner.activation = inner.gemm = DType::fp32;
  return inner;
}

TensorId Adapter::add(TensorId x, TensorId y) {
  if (clones_) y = clone(y);
  TensorId branch = down(input(x));
  branch = whole_ ? up(branch) : up_by_part(branch);
  return tuning_.decomposed ? decomposed(y, branch) : sum(y, branch);
}

TensorId Adapter::pointwise(const std::string& what, TensorId from, std::int64_t read, std::int64_t written) {
  const TensorId to = tape_.tensor(name_ + " " + what, written);
  const auto kernel = [&](const std::string& name, std::int64_t in, std::int64_t out) { return in == out ? op_.kernel(name, in, out) : op_.convert(name, in, out); };
  tape_.nodes.push_back({.name = name_ + " " + what, .inputs = {from}, .outputs = {to}, .forward = {kernel(what, read, written)}, .backward = {kernel(what + " backward", written, read)}});
  return to;
}

/// Source: huggingface/peft tuners/lora/bnb.py, Linear4bit.forward.
TensorId Adapter::clone(TensorId y) {
  const TensorId copy = tape_.tensor(name_ + " clone", bytes_);
  tape_.nodes.push_back({.name = name_ + " clone", .inputs = {y}, .outputs = {copy}, .forward = {op_.kernel("clone", bytes_, bytes_)}, .passed_inputs = 1});
  return copy;
}

/// The layer's input in the adapter's format, with its dropout.
TensorId Adapter::input(TensorId x) {
  TensorId source = x;
  if (casts_) source = pointwise("adapter cast", source, in_elements_ * narrow_, in_elements_ * 4);
  const std::int64_t source_bytes = in_elements_ * (casts_ ? 4 : narrow_);
  if (tuning_.dropout > 0) {
    const TensorId mask = tape_.tensor(name_ + " adapter dropout mask", in_elements_, false);
    source = pointwise("adapter dropout", source, source_bytes, source_bytes);
    tape_.nodes.back().saved = tape_.nodes.back().intermediates = {mask};
  }
  if (source_bytes != in_elements_ * e_) source = pointwise("adapter autocast", source, source_bytes, in_elements_ * e_);
  return source;
}

TensorId Adapter::down(TensorId source) {
  const std::int64_t used = whole_ ? 1 : static_cast<std::int64_t>(adapted_.size());
  const TensorId branch = LinearLayer(inner_, tape_, source, name_ + ".lora_A", in_, tuning_.rank * used, false, row_ ? Operators::Split::row : Operators::Split::none).write();
  tape_.nodes.back().forward_host = c_.profile.adapter_host;
  return branch;
}

TensorId Adapter::up(TensorId branch) {
  const Operators::Split split = split_ == Operators::Split::column ? Operators::Split::column : Operators::Split::none;
  return LinearLayer(inner_, tape_, branch, name_ + ".lora_B", tuning_.rank, out_, false, split).write();
}

/// A fused layer: one small product per adapted part, written into its columns of a zeroed result.
TensorId Adapter::up_by_part(TensorId branch) {
  const std::vector<std::int64_t> widths = part_widths(c_.model, parts_, out_);
  std::int64_t columns = 0;
  for (std::size_t i : adapted_) columns += widths[i] / t_;
  Weight up = inner_op_.weight(name_ + ".lora_B.weight", tuning_.rank * columns);
  up.columns = tuning_.rank;
  const int w = tape_.weight(std::move(up));
  const TensorId result = tape_.tensor(name_ + " adapter output", branch_bytes_);
  Node node{.name = name_ + " adapter up", .inputs = {branch}, .outputs = {result}, .saved = {branch}};
  const bool padded = adapted_.size() < parts_.size();
  const std::int64_t adapted_bytes = rows_ * columns * e_;
  if (padded) {  // index_copy keeps its source (torch derivatives.yaml)
    node.intermediates.push_back(tape_.tensor(name_ + " adapter columns", adapted_bytes));
    node.saved.push_back(node.intermediates.back());
    node.backward = {op_.alloc(0, adapted_bytes), inner_op_.kernel("gather columns", adapted_bytes, adapted_bytes)};
  }
  for (std::size_t i : adapted_) {
    const std::int64_t n = widths[i] / t_;
    node.forward.push_back(inner_op_.gemm(name_ + ".lora_B", GemmRole::forward, rows_, n, tuning_.rank, inner_.activation, false));
    node.backward.push_back(inner_op_.gemm(name_ + ".lora_B data gradient", GemmRole::data_gradient, rows_, tuning_.rank, n, inner_.activation, false));
  }
  node.backward.push_back(op_.weight_gradient(w, inner_op_.gemm(name_ + ".lora_B weight gradient", GemmRole::weight_gradient, columns, tuning_.rank, rows_, inner_.activation, false)));
  if (padded) {
    node.forward.insert(node.forward.end(), {inner_op_.kernel("zero fill", 0, branch_bytes_, KernelKind::memset), inner_op_.kernel("scatter columns", adapted_bytes, adapted_bytes)});
    node.backward.push_back(op_.free(0));
  }
  tape_.nodes.push_back(std::move(node));
  return result;
}

TensorId Adapter::sum(TensorId y, TensorId branch) {
  if (c_.profile.activation == Fusion::fused || c_.profile.activation == Fusion::compiled) return sum_in_one_kernel(y, branch);
  const TensorId sum = tape_.tensor(name_ + " with adapter", bytes_);
  if (!c_.profile.scales_adapter_inside) branch = pointwise("adapter scale", branch, branch_bytes_, branch_bytes_);
  if (branch_bytes_ < bytes_) {  // a 16-bit branch beside an fp32 stream
    tape_.nodes.push_back({.name = name_ + " adapter add", .inputs = {y, branch}, .outputs = {sum}, .forward = {op_.mixed("adapter add", bytes_ + branch_bytes_, bytes_, bytes_ / 4)},
                           .backward = {op_.convert("cast", bytes_, branch_bytes_)}, .passed_inputs = 1});
    return sum;
  }
  if (!wide_) {
    tape_.nodes.push_back({.name = name_ + " adapter add", .inputs = {y, branch}, .outputs = {sum}, .forward = {op_.kernel("adapter add", 2 * bytes_, bytes_)}, .passed_inputs = 2});
    return sum;
  }
  // 16 + 32 bit: the sum is fp32 and is cast back; so is the gradient on its way down.
  const TensorId wide_sum = tape_.tensor(name_ + " adapter sum", branch_bytes_);
  tape_.nodes.push_back({.name = name_ + " adapter add", .inputs = {branch, y}, .outputs = {wide_sum}, .forward = {op_.mixed("adapter add", bytes_ + branch_bytes_, branch_bytes_, branch_bytes_ / 4)},
                         .backward = {op_.convert("cast", branch_bytes_, bytes_)}, .passed_inputs = 1});
  tape_.nodes.push_back({.name = name_ + " adapter cast back", .inputs = {wide_sum}, .outputs = {sum}, .forward = {op_.convert("cast", branch_bytes_, bytes_)}, .backward = {op_.convert("cast", bytes_, branch_bytes_)}});
  return sum;
}

/// TorchInductor adds inside the kernel that reads the sum (rotary embedding, activation, residual), and scales the gradient inside
/// the one that makes it: one tensor more is read, and one more written (tests/oracles/torch_compiled_layer.py). Not where attention
/// reads the sum and makes its gradient, nor what comes from the layer above.
TensorId Adapter::sum_in_one_kernel(TensorId y, TensorId branch) {
  const bool compiled = c_.profile.activation == Fusion::compiled, attends = name_ == "v_proj" && c_.model.heads == c_.model.kv_heads;
  const bool inside = compiled && !attends, scaled_inside = inside && name_ != "down_proj" && name_ != "fc2";
  const bool scales = !c_.profile.scales_adapter_inside;
  const TensorId sum = tape_.tensor(name_ + " with adapter", bytes_);
  tape_.nodes.push_back({.name = name_ + " adapter add", .inputs = {y, branch}, .outputs = {sum},
                         .forward = {op_.kernel("adapter scaled add", inside ? branch_bytes_ : bytes_ + branch_bytes_, inside ? 0 : bytes_)},
                         .passed_inputs = scales ? 1 : 2});
  if (scales) tape_.nodes.back().backward = {op_.kernel("adapter scale backward", scaled_inside ? 0 : bytes_, branch_bytes_)};
  return sum;
}

/// DoRA: y + (s - 1) y + s * branch * scale, where s is the learned magnitude over the norm of each row of W + scale * BA. BA is
/// made anew for it, by sending an identity matrix through the adapter, and so is a copy of W in the adapter's format.
/// Source: huggingface/peft tuners/lora/dora.py (DoraLinearLayer.forward), variants.py: without dropout y itself is the base.
/// With dropout PEFT computes x W again; that product is left out here.
TensorId Adapter::decomposed(TensorId y, TensorId branch) {
  const Operators& op = inner_op_;
  const std::int64_t wide = c_.tokens * out_ * e_, bytes = c_.tokens * out_ * narrow_, matrix = in_ * out_ * e_, rank = tuning_.rank;
  const bool casts = e_ != narrow_;
  Weight magnitude = op.weight(name_ + ".lora_magnitude", out_);
  magnitude.matrix = false;
  const int w = tape_.weight(std::move(magnitude));
  const TensorId result = tape_.tensor(name_ + " with adapter", bytes);
  Node node{.name = name_ + " adapter magnitude", .inputs = {y, branch}, .outputs = {result}, .saved = {y, branch}};
  auto& f = node.forward;
  f = {op.alloc(0, in_ * in_ * e_), op.kernel("identity", 0, in_ * in_ * e_, KernelKind::memset), op.alloc(1, in_ * rank * e_), op.gemm(name_ + ".lora_A of identity", GemmRole::forward, in_, rank, in_, inner_.activation, false),
       op.alloc(2, matrix), op.gemm(name_ + ".lora_B of identity", GemmRole::forward, in_, out_, rank, inner_.activation, false)};
  if (casts) f.insert(f.end(), {op.alloc(3, matrix), op.convert("cast weight", in_ * out_ * narrow_, matrix)});
  f.insert(f.end(), {op.alloc(4, matrix), op.kernel("scale BA", matrix, matrix), op.alloc(5, matrix), op.kernel("add weight", 2 * matrix, matrix), op.free(4), op.kernel("weight norm", matrix, out_ * e_, KernelKind::reduction), op.free(5)});
  f.insert(f.end(), {op.alloc(6, wide), op.kernel("magnitude times base", bytes, wide), op.alloc(7, wide), op.kernel("magnitude times branch", wide, wide), op.alloc(8, wide), op.kernel("adapter scale", wide, wide), op.free(7),
                     op.alloc(9, wide), op.kernel("adapter add", 2 * wide, wide), op.free(6), op.free(8), op.free(0), op.free(1), op.free(2)});
  if (casts) f.push_back(op.free(3));
  if (casts) f.insert(f.end(), {op.alloc(10, wide), op.mixed("adapter add", bytes + wide, wide, wide / 4), op.free(9), op.convert("cast", wide, bytes), op.free(10)});
  else f.insert(f.end(), {op.kernel("adapter add", 2 * wide, wide), op.free(9)});
  auto& b = node.backward;
  if (casts) b.insert(b.end(), {op.alloc(0, wide), op.convert("cast", bytes, wide)});
  b.insert(b.end(), {op.alloc(1, wide), op.kernel("base product", wide + bytes, wide), op.kernel("magnitude gradient", wide, out_ * e_, KernelKind::reduction), op.free(1), op.kernel("base gradient", wide + bytes, bytes),
                     op.alloc(2, wide), op.kernel("adapter scale backward", wide, wide), op.alloc(3, wide), op.kernel("branch product", 2 * wide, wide),
                     op.weight_gradient(w, op.kernel("magnitude gradient", wide, out_ * e_, KernelKind::reduction)), op.free(3), op.kernel("branch gradient", wide, wide), op.free(2)});
  if (casts) b.push_back(op.free(0));
  tape_.nodes.push_back(std::move(node));
  return result;
}

}  // namespace

TensorId Operators::with_adapter(TensorId x, TensorId y, const std::string& name, std::int64_t in, std::int64_t out, Split split) {
  if (adapted_parts(c_.strategy.tuning, name, parts_of(name)).empty()) return y;
  return Adapter(c_, tape_, name, in, out, split).add(x, y);
}

}  // namespace rehearse::strategies
