// Long sequences one piece at a time: an MLP (TiledMLP), and output layer with loss (TiledFusedLogitsLoss; torchtitan's
// ChunkedCELoss), so that only a piece of what lies between their ends is there at once. Leaves out adapters and experts, and of
// DeepSpeed's two tensor-parallel layers (strategies/rules.cpp).
// Source: DeepSpeed runtime/sequence_parallel/ulysses_sp.py; Bekman et al. 2025 (Arctic Long Sequence Training, arXiv 2506.13996);
// torchtitan components/loss.py.
#include <algorithm>

#include "strategies/layer/blocks.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;

namespace {

/// One linear layer of a piece.
struct Linear {
  std::string name;
  std::int64_t in = 0, out = 0;
  int weight = -1;
  bool trained = true;
};

class Tiles {
 public:
  Tiles(const LowerContext& c, Operators& op, Tape& tape, std::int64_t count) : c_(c), op_(op), tape_(tape), rows_((c.tokens + count - 1) / count) {}

  /// `shared`: `out` is a rank's share of it over the tensor group.
  Linear linear(const std::string& name, std::int64_t in, std::int64_t out, bool shared = false) {
    Weight matrix = op_.weight(name + ".weight", in * out);
    matrix.replicated_over_tensor = !shared;
    matrix.columns = in;
    const bool trained = matrix.trainable;
    return {name, in, out, tape_.weight(std::move(matrix)), trained};
  }
  std::int64_t bytes(std::int64_t width) const { return rows_ * width * c_.element(); }
  std::int64_t rows() const { return rows_; }

  void forward(std::vector<Item>& list, const Linear& l, int output) const {
    list.insert(list.end(), {Operators::alloc(output, bytes(l.out)), op_.gemm(l.name, GemmRole::forward, rows_, l.out, l.in, c_.activation, false)});
  }
  void data_gradient(std::vector<Item>& list, const Linear& l, int gradient) const {
    list.insert(list.end(), {Operators::alloc(gradient, bytes(l.in)), op_.gemm(l.name + " data gradient", GemmRole::data_gradient, rows_, l.in, l.out, c_.activation, false)});
  }
  /// The first piece makes the gradient, the others add to it.
  void weight_gradient(std::vector<Item>& list, const Linear& l, bool first) const {
    if (!l.trained) return;
    const Item product = op_.gemm(l.name + " weight gradient", GemmRole::weight_gradient, l.out, l.in, rows_, c_.activation, false);
    if (first) list.push_back(op_.weight_gradient(l.weight, product));
    else add_weight_gradient(list, l, product);
  }
  void add_weight_gradient(std::vector<Item>& list, const Linear& l, const Item& product) const {
    const std::int64_t weight = l.in * l.out * c_.element();
    list.insert(list.end(), {Operators::alloc(kWeight, weight), product, op_.kernel("gradient accumulate", 2 * weight, weight), Operators::free(kWeight)});
  }
  static constexpr int kWeight = 15;

 private:
  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  std::int64_t rows_;   // of a piece
};

/// What a piece of an MLP has in hand, by temporary.
enum Held : int { kGate, kUp, kActivated, kProduct, kOutput, kProductGradient, kUpGradient, kActivatedGradient, kGateGradient, kInputGradient, kOtherInputGradient, kPieces = 16 };

class TiledMlp {
 public:
  TiledMlp(const LowerContext& c, Operators& op, Tape& tape, std::int64_t width, std::int64_t count)
      : c_(c), op_(op), tiles_(c, op, tape, count), width_(width), joined_(c.model.gated_mlp && c.profile.fused_gate_up), gated_(c.model.gated_mlp), eager_(c.activation_fusion() != Fusion::fused) {
    const std::int64_t h = c.model.hidden;
    if (!gated_) first_ = tiles_.linear("fc1", h, width);
    else first_ = joined_ ? tiles_.linear("gate_up", h, 2 * width) : tiles_.linear("gate_proj", h, width);
    if (gated_ && !joined_) up_ = tiles_.linear("up_proj", h, width);
    last_ = tiles_.linear(gated_ ? "down_proj" : "fc2", width, h);
  }

  /// `keeps`: under autograd, for the piece's own backward.
  void forward(std::vector<Item>& list, int output, bool keeps) const {
    const std::int64_t mid = tiles_.bytes(width_), gate = tiles_.bytes(first_.out);
    const auto drop = [&](int held) { if (!keeps) list.push_back(Operators::free(held)); };
    tiles_.forward(list, first_, kGate);
    const bool beside = gated_ && eager_;   // the activated gate is a tensor of its own, then multiplied
    if (beside) list.insert(list.end(), {Operators::alloc(kActivated, mid), op_.kernel("silu", mid, mid)});
    if (beside && !joined_) drop(kGate);
    if (up_.out > 0) tiles_.forward(list, up_, kUp);
    list.insert(list.end(), {Operators::alloc(kProduct, mid), op_.kernel(gated_ ? beside ? "gate product" : "swiglu" : "gelu", gated_ ? 2 * mid : gate, mid)});
    if (!(beside && !joined_)) drop(kGate);
    if (beside) drop(kActivated);
    if (up_.out > 0) drop(kUp);
    tiles_.forward(list, last_, output);
    drop(kProduct);
  }

  void backward(std::vector<Item>& list, bool first) const {
    const std::int64_t mid = tiles_.bytes(width_), gate = tiles_.bytes(first_.out), in = tiles_.bytes(c_.model.hidden);
    forward(list, kOutput, true);
    tiles_.data_gradient(list, last_, kProductGradient);
    tiles_.weight_gradient(list, last_, first);
    list.push_back(Operators::free(kProduct));
    const bool beside = gated_ && eager_, apart = up_.out > 0;
    if (beside) {
      list.insert(list.end(), {Operators::alloc(kActivatedGradient, mid), op_.kernel("gate product backward", 2 * mid, mid)});
      if (apart) list.push_back(Operators::alloc(kUpGradient, mid));
      else list.push_back(Operators::alloc(kGateGradient, gate));
      list.insert(list.end(), {op_.kernel("gate product backward", 2 * mid, mid), Operators::free(kProductGradient), Operators::free(kActivated)});
      if (apart) list.insert(list.end(), {Operators::free(kUp), Operators::alloc(kGateGradient, gate)});
      list.insert(list.end(), {op_.kernel("silu backward", 2 * mid, mid), Operators::free(kActivatedGradient)});
    } else {
      list.push_back(Operators::alloc(kGateGradient, gate));
      if (apart) list.push_back(Operators::alloc(kUpGradient, mid));
      list.insert(list.end(), {op_.kernel("activation backward", mid + gate + (apart ? mid : 0), gate + (apart ? mid : 0)), Operators::free(kProductGradient)});
      if (apart) list.push_back(Operators::free(kUp));
    }
    list.push_back(Operators::free(kGate));
    tiles_.data_gradient(list, first_, kInputGradient);
    tiles_.weight_gradient(list, first_, first);
    list.push_back(Operators::free(kGateGradient));
    if (apart) {
      tiles_.data_gradient(list, up_, kOtherInputGradient);
      tiles_.weight_gradient(list, up_, first);
      list.insert(list.end(), {Operators::free(kUpGradient), op_.kernel("gradient add", 2 * in, in), Operators::free(kOtherInputGradient)});
    }
    list.insert(list.end(), {op_.kernel("input gradient add", 2 * in, in), Operators::free(kInputGradient), Operators::free(kOutput)});
  }

  std::int64_t piece() const { return tiles_.bytes(c_.model.hidden); }

 private:
  const LowerContext& c_;
  Operators& op_;
  Tiles tiles_;
  std::int64_t width_;
  bool joined_, gated_, eager_;
  Linear first_, up_, last_;
};

}  // namespace

std::int64_t mlp_tiles(const LowerContext& c) {
  const std::int64_t asked = c.strategy.memory.sequence_chunk > 0 ? 2 * sequence_chunks(c) : c.strategy.memory.tiled_mlp_num_shards;   // Megatron-DeepSpeed: fpdt_FFN_chunk_size
  return std::clamp<std::int64_t>(asked > 0 ? asked : (c.sequence + c.model.hidden - 1) / c.model.hidden, 1, c.sequence);
}

TensorId tiled_mlp_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x, std::int64_t width) {
  const std::int64_t count = mlp_tiles(c), bytes = c.tokens * c.model.hidden * c.element();
  const TiledMlp mlp(c, op, tape, width, count);
  const TensorId y = tape.tensor("tiled mlp", bytes);
  Node n{.name = "tiled mlp", .inputs = {x}, .outputs = {y}, .saved = {x}};
  for (int i = 0; i < count; ++i) mlp.forward(n.forward, kPieces + i, false);
  n.forward.insert(n.forward.end(), {{.kind = Item::Kind::produce_outputs}, op.kernel("cat", bytes, bytes)});
  for (int i = 0; i < count; ++i) n.forward.push_back(Operators::free(kPieces + i));
  n.backward = {{.kind = Item::Kind::produce_input_gradients}, op.kernel("zero fill", 0, bytes, KernelKind::memset)};
  for (int i = 0; i < count; ++i) mlp.backward(n.backward, i == 0);
  tape.nodes.push_back(std::move(n));
  return y;
}

/// Forward makes the input's gradient and the weight's as it goes; backward scales the one and hands on the other.
void add_tiled_output(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns) {
  constexpr std::int64_t kSlice = 1 << 30;   // of fp32 logits: the shards that ALST's documentation and ArcticTraining derive
  const std::int64_t count = std::clamp<std::int64_t>((c.tokens * columns * 4 + kSlice - 1) / kSlice, 1, c.tokens), bytes = c.tokens * width * c.element();
  Tiles tiles(c, op, tape, count);
  const Linear head = tiles.linear("lm_head", width, columns);
  const std::int64_t narrow = tiles.bytes(columns), wide = tiles.rows() * columns * 4, row = tiles.rows() * 4, piece = tiles.bytes(width), weight = width * columns * c.element();
  const TensorId gradient = tape.tensor("hidden gradient", bytes, false);
  enum : int { kLogits, kWide, kLogSoftmax, kWideGradient, kOtherGradient, kNarrowGradient, kPieceGradient, kWeightSum };
  Node n{.name = "tiled loss", .inputs = {hidden}, .saved = {gradient}, .intermediates = {gradient}};
  auto& f = n.forward;
  f.push_back(op.kernel("zero fill", 0, bytes, KernelKind::memset));
  if (head.trained) f.push_back(Operators::alloc(kWeightSum, weight));
  for (std::int64_t i = 0; i < count; ++i) {
    tiles.forward(f, head, kLogits);
    f.insert(f.end(), {Operators::alloc(kWide, wide), op.convert("cast", narrow, wide), Operators::alloc(kLogSoftmax, wide), op.log_softmax(wide), op.kernel("nll loss", row, row),
                       Operators::free(kWide), Operators::free(kLogits),
                       Operators::alloc(kWideGradient, wide), op.kernel("zero fill", 0, wide, KernelKind::memset), op.kernel("nll loss backward", row, row), Operators::alloc(kOtherGradient, wide),
                       op.log_softmax_backward(wide), Operators::free(kWideGradient), Operators::free(kLogSoftmax), Operators::alloc(kNarrowGradient, narrow),
                       op.convert("cast", wide, narrow), Operators::free(kOtherGradient)});
    tiles.data_gradient(f, head, kPieceGradient);
    f.insert(f.end(), {op.kernel("input gradient add", 2 * piece, piece), Operators::free(kPieceGradient)});
    const Item product = op.gemm("lm_head weight gradient", GemmRole::weight_gradient, columns, width, tiles.rows(), c.activation, false);
    if (head.trained && i == 0) f.push_back(product);
    else if (head.trained) tiles.add_weight_gradient(f, head, product);
    f.push_back(Operators::free(kNarrowGradient));
  }
  if (head.trained) f.push_back(Operators::free(kWeightSum));   // the same bytes as the gradient that backward names
  n.backward = {op.kernel("scale gradient", bytes, bytes)};
  if (head.trained) n.backward.push_back(op.weight_gradient(head.weight, op.kernel("hand on gradient", 4, 4)));
  tape.nodes.push_back(std::move(n));
}

bool chunks_output(const LowerContext& c) {
  return c.profile.loss == LossKind::chunked_linear && !c.profile.gathers_logits && !c.profile.whole_head_without_sequence && !c.model.softcapped_logits && !c.model.head_bias && !c.strategy.training.multi_token_prediction &&
         c.strategy.training.phase != StepKind::evaluation && adapted_parts(c.strategy.tuning, "lm_head", {"lm_head"}).empty();
}

namespace {

/// torchtitan's ChunkedCELoss (786e26f8e; ChunkedLossWrapper in 0.3): hidden states are gathered once; a piece's backward follows its loss, its input
/// gradient goes into an fp32 buffer, its weight gradient is added up unsharded in the format that gradients are reduced in (FSDP2 without
/// synchronisation, _fsdp_param.py, to_accumulated_grad_if_needed). Input gradients of a tensor group are summed once.
class ChunkedLinear {
 public:
  ChunkedLinear(const LowerContext& c, Operators& op, Tape& tape, std::int64_t width, std::int64_t columns)
      : c_(c), op_(op), tape_(tape), count_(std::clamp<std::int64_t>(c.strategy.training.loss_chunks, 1, c.tokens)), tiles_(c, op, tape, count_), width_(width), rows_(tiles_.rows()), narrow_(tiles_.bytes(columns)), wide_(rows_ * columns * 4),
        row_(rows_ * 4), parallel_(c.tensor > 1) {
    head_ = tiles_.linear("lm_head", width, columns, parallel_);
    weight_ = width * columns * c.element();
    weight_sum_ = c.strategy.data_parallel.kind == DataParallelKind::fsdp2 && bits(c.profile.reduce) == 32 ? width * columns * 4 : weight_;
  }

  void add(TensorId hidden) {
    const std::int64_t bytes = c_.tokens * width_ * c_.element(), piece = tiles_.bytes(width_), piece_sum = rows_ * width_ * 4;
    const TensorId gradient = tape_.tensor("hidden gradient", bytes, false);
    Node n{.name = "chunked output and loss", .inputs = {hidden}, .saved = {gradient}, .intermediates = {gradient}};
    auto& f = n.forward;
    if (gathers()) f.insert(f.end(), {Operators::alloc(kHidden, bytes), op_.collective(CollectiveKind::all_gather, "gather hidden states", bytes, kBoth), op_.kernel("concatenate", bytes, bytes)});
    if (c_.batch > 1) f.insert(f.end(), {Operators::alloc(kPiecesOfHidden, bytes), op_.kernel("contiguous", bytes, bytes)});
    f.insert(f.end(), {Operators::alloc(kSum, c_.tokens * width_ * 4), op_.kernel("zero fill", 0, c_.tokens * width_ * 4, KernelKind::memset)});
    if (head_.trained) f.push_back(Operators::alloc(kWeightSum, weight_sum_));
    for (std::int64_t i = 0; i < count_; ++i) {
      tiles_.forward(f, head_, kLogits);
      if (c_.profile.compiled) compiled_loss(f);
      else eager_loss(f);
      tiles_.data_gradient(f, head_, kPieceGradient);
      f.insert(f.end(), {op_.convert("gradient fp32", piece, piece_sum), op_.kernel("gradient into buffer", piece_sum, piece_sum), Operators::free(kPieceGradient)});
      if (head_.trained) add_weight_gradient(f, i == 0);
      f.insert(f.end(), {Operators::free(kGradient), Operators::free(kLogits)});
    }
    f.insert(f.end(), {op_.convert("gradient of hidden states", c_.tokens * width_ * 4, bytes), Operators::free(kSum)});
    if (head_.trained) f.push_back(Operators::free(kWeightSum));   // the same gradient that backward names
    if (c_.batch > 1) f.push_back(Operators::free(kPiecesOfHidden));
    if (gathers()) f.push_back(Operators::free(kHidden));
    if (parallel_) n.backward.push_back(op_.collective(gathers() ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce, "sum hidden gradients", bytes, kBoth));
    if (head_.trained) n.backward.push_back(op_.weight_gradient(head_.weight, op_.kernel("hand on gradient", 4, 4)));
    tape_.nodes.push_back(std::move(n));
  }

 private:
  static constexpr int kBoth = plan::kAfterCompute | plan::kComputeWaits;
  enum : int { kLogits, kWide, kLogSoftmax, kWideGradient, kOtherGradient, kGradient, kPieceGradient, kWeightSum, kMadeWeight, kSum, kHidden, kPiecesOfHidden };

  bool gathers() const { return parallel_ && c_.sequence_parallel; }

  void sum_statistics(std::vector<Item>& list) const {
    for (int i = 0; parallel_ && i < 3; ++i) list.push_back(op_.collective(CollectiveKind::all_reduce, "loss statistics", row_, kBoth));
  }

  /// An fp32 copy of the logits; the shards' operators as in loss.cpp.
  void eager_loss(std::vector<Item>& f) const {
    f.insert(f.end(), {Operators::alloc(kWide, wide_), op_.convert("cast", narrow_, wide_), Operators::alloc(kLogSoftmax, wide_)});
    if (parallel_)
      f.insert(f.end(), {op_.kernel("max", wide_, row_, KernelKind::reduction), op_.kernel("subtract maximum", wide_, wide_), op_.kernel("exp", wide_, wide_), op_.kernel("sum", wide_, row_, KernelKind::reduction),
                         op_.kernel("subtract logarithm", wide_, wide_)});
    else f.push_back(op_.log_softmax(wide_));
    f.insert(f.end(), {op_.kernel("nll loss", row_, row_), Operators::free(kWide)});
    sum_statistics(f);
    f.insert(f.end(), {Operators::alloc(kWideGradient, wide_), op_.kernel("zero fill", 0, wide_, KernelKind::memset), op_.kernel("nll loss backward", row_, row_), Operators::alloc(kOtherGradient, wide_)});
    if (parallel_) f.insert(f.end(), {op_.kernel("exp", wide_, wide_), op_.kernel("add", 2 * wide_, wide_), op_.kernel("scale gradient", wide_, wide_)});
    else f.push_back(op_.log_softmax_backward(wide_));
    f.insert(f.end(), {Operators::free(kWideGradient), Operators::free(kLogSoftmax), Operators::alloc(kGradient, narrow_), op_.convert("cast", wide_, narrow_), Operators::free(kOtherGradient)});
  }

  void compiled_loss(std::vector<Item>& f) const {
    if (parallel_) {
      f.insert(f.end(), {Operators::alloc(kWide, wide_), op_.kernel("max", narrow_, row_, KernelKind::reduction), op_.kernel("exp and sum", narrow_, row_, KernelKind::cross_entropy), op_.kernel("zero fill", 0, wide_, KernelKind::memset),
                         op_.kernel("add softmax", narrow_ + wide_, wide_)});
      sum_statistics(f);
      f.insert(f.end(), {Operators::alloc(kGradient, narrow_), op_.kernel("scale gradient and cast", wide_, narrow_), Operators::free(kWide)});
    } else {
      f.insert(f.end(), {op_.kernel("cross entropy", 2 * narrow_, row_, KernelKind::reduction), Operators::alloc(kGradient, narrow_), op_.kernel("cross entropy backward", narrow_, narrow_)});
    }
  }

  void add_weight_gradient(std::vector<Item>& f, bool first) const {
    f.insert(f.end(), {Operators::alloc(kMadeWeight, weight_), op_.gemm("lm_head weight gradient", GemmRole::weight_gradient, head_.out, head_.in, rows_, c_.activation, false)});
    if (weight_sum_ > weight_ && first) f.push_back(op_.convert("gradient fp32", weight_, weight_sum_));
    else if (!first) f.push_back(op_.kernel("gradient accumulate", weight_ + weight_sum_, weight_sum_));
    f.push_back(Operators::free(kMadeWeight));
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  std::int64_t count_;
  Tiles tiles_;
  std::int64_t width_, rows_, narrow_, wide_, row_, weight_ = 0, weight_sum_ = 0;
  bool parallel_;
  Linear head_;
};

}  // namespace

void add_chunked_linear(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns) {
  ChunkedLinear(c, op, tape, width, columns).add(hidden);
}

}  // namespace rehearse::strategies
