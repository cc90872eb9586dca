// Output layer and loss as one operator: Liger's fused linear cross-entropy. Logits, loss and both gradients of a piece of the tokens at a time, all of
// it in forward; no more logits are there than the hidden states are large. A bias, adapters and 4-bit weights of the output layer are refused (memory/rules.cpp).
// Source: linkedin/Liger-Kernel ops/fused_linear_cross_entropy.py; its calls are those that the GPU on paper records (calibrate/paper_gpu).
#include <algorithm>
#include <bit>

#include "strategies/layer/blocks.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;

namespace {

class LinearLoss {
 public:
  LinearLoss(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns)
      : c_(c), op_(op), tape_(tape), hidden_(hidden), width_(width), columns_(columns), form_(c.profile.linear_loss) {
    const DataParallelKind kind = c.strategy.data_parallel.kind;
    autocast_ = c.profile.autocast && c.profile.stored_parameter == DType::fp32 && c.element() == 2 && kind != DataParallelKind::fsdp1 && kind != DataParallelKind::fsdp2;
    Weight matrix = op.weight("lm_head.weight", width * columns);
    matrix.replicated_over_tensor = true;
    matrix.columns = width;
    trained_ = matrix.trainable;
    weight_ = tape.weight(std::move(matrix));
  }

  void add() {
    const std::int64_t hidden = c_.tokens * width_ * c_.element();
    const TensorId gradient = tape_.tensor("hidden gradient", hidden, false), rows = tape_.tensor("loss per token", c_.tokens * 4, false);
    Node n{.name = "linear loss", .inputs = {hidden_}, .saved = {gradient, rows}, .intermediates = {gradient, rows}};
    forward_ = &n.forward;
    push({op_.kernel("zero fill", 0, hidden, KernelKind::memset)});
    if (trained_) push({Operators::alloc(kWeightSum, sum_bytes()), op_.kernel("zero fill", 0, sum_bytes(), KernelKind::memset)});
    push({op_.kernel("zero fill", 0, c_.tokens * 4, KernelKind::memset)});
    count_targets(c_.tokens);
    if (!scales()) push({{.kind = Item::Kind::host_sync}});   // total_n_non_ignore.item()
    const std::int64_t piece = piece_tokens();
    std::int64_t pieces = 0;
    for (std::int64_t first = 0; first < c_.tokens; first += piece) add_piece(std::min(piece, c_.tokens - first), pieces++);
    push({Operators::free(pieces % 2 == 1 ? kLogits : kOtherLogits)});
    if (scales()) push({Operators::free(pieces % 2 == 1 ? kScaled : kOtherScaled)});
    push({op_.kernel("sum", c_.tokens * 4, 4, KernelKind::reduction)});
    if (trained_) push({Operators::free(kWeightSum)});   // the same bytes as the gradient that backward names
    n.backward = backward(hidden);
    tape_.nodes.push_back(std::move(n));
  }

 private:
  enum Temporary : int { kLogits, kOtherLogits, kWide, kScaled, kOtherScaled, kPieceGradient, kWeightSum, kProduct, kWideProduct, kCopy };

  std::int64_t narrow(std::int64_t rows) const { return rows * columns_ * c_.element(); }
  std::int64_t weight_bytes() const { return width_ * columns_ * c_.element(); }
  std::int64_t sum_bytes() const { return autocast_ ? width_ * columns_ * 4 : weight_bytes(); }
  bool scales() const { return form_ == LinearLossForm::fp32 || form_ == LinearLossForm::scaled; }
  void push(std::initializer_list<Item> items) { forward_->insert(forward_->end(), items); }

  /// So many that a piece's logits are about as large as all hidden states, rounded up to a power of two.
  std::int64_t piece_tokens() const {
    const std::int64_t pieces = (columns_ + width_ - 1) / width_, tokens = (c_.tokens + pieces - 1) / pieces;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens)));
  }

  /// (target != ignore_index).sum()
  void count_targets(std::int64_t rows) { push({op_.kernel("compare targets", rows * 8, rows), op_.convert("widen", rows, rows * 8), op_.kernel("sum", rows * 8, 8, KernelKind::reduction)}); }

  void add_piece(std::int64_t rows, std::int64_t index) {
    const auto of = [&](int even, int odd, std::int64_t i) { return i % 2 == 0 ? even : odd; };
    const int logits = of(kLogits, kOtherLogits, index), before = of(kLogits, kOtherLogits, index + 1);
    const std::int64_t bytes = narrow(rows), wide = rows * columns_ * 4, hidden = rows * width_ * c_.element();
    const auto done = [&](int temporary) {   // the variable held what the piece before had
      if (index > 0) push({Operators::free(temporary)});
    };
    if (autocast_) push({Operators::alloc(kCopy, weight_bytes()), op_.convert("cast weight", 2 * weight_bytes(), weight_bytes())});
    push({Operators::alloc(logits, bytes), op_.gemm("lm_head", GemmRole::forward, rows, columns_, width_, c_.activation, false)});
    if (autocast_) push({Operators::free(kCopy)});
    if (scales()) {
      done(before);
      count_targets(rows);
      push({{.kind = Item::Kind::host_sync}});
    }
    if (form_ == LinearLossForm::fp32) {
      push({Operators::alloc(kWide, wide), op_.convert("cast", bytes, wide), Operators::free(logits), op_.kernel("cross entropy", 2 * wide, wide, KernelKind::cross_entropy),
            Operators::alloc(logits, bytes), op_.convert("cast", wide, bytes), Operators::free(kWide)});
    } else {
      push({op_.kernel("cross entropy", 2 * bytes, bytes, KernelKind::cross_entropy)});
    }
    if (scales()) {
      const int scaled = of(kScaled, kOtherScaled, index);
      push({op_.kernel("any targets", 8, 1), {.kind = Item::Kind::host_sync}, op_.kernel("reciprocal", 8, 4), op_.kernel("share of targets", 4, 4), op_.kernel("scale loss", rows * 4, rows * 4), op_.kernel("copy loss", rows * 4, rows * 4),
            Operators::alloc(scaled, bytes), op_.kernel("scale gradient", bytes, bytes, KernelKind::strided)});   // by a tensor of one element
      done(of(kScaled, kOtherScaled, index + 1));
    } else {
      done(before);
    }
    push({Operators::alloc(kPieceGradient, hidden), op_.gemm("lm_head data gradient", GemmRole::data_gradient, rows, width_, columns_, c_.activation, false), op_.kernel("copy gradient", hidden, hidden), Operators::free(kPieceGradient)});
    if (trained_) add_weight_gradient(rows);
  }

  void add_weight_gradient(std::int64_t rows) {
    const auto product = [&](bool adds) { return op_.gemm("lm_head weight gradient", GemmRole::weight_gradient, columns_, width_, rows, c_.activation, adds); };
    if (form_ != LinearLossForm::widened) {
      if (scales()) push({{.kind = Item::Kind::host_sync}});   // addmm's alpha is a tensor
      push({product(true)});
      return;
    }
    const std::int64_t bytes = weight_bytes(), wide = width_ * columns_ * 4;
    if (bytes == wide) {   // fp32 already
      push({Operators::alloc(kProduct, bytes), product(false), op_.kernel("gradient accumulate", 2 * wide, wide), Operators::free(kProduct)});
      return;
    }
    push({Operators::alloc(kProduct, bytes), product(false), Operators::alloc(kWideProduct, wide), op_.convert("cast", bytes, wide), Operators::free(kProduct),
          sum_bytes() == wide ? op_.kernel("gradient accumulate", 2 * wide, wide) : op_.mixed("gradient accumulate", wide + sum_bytes(), sum_bytes(), width_ * columns_), Operators::free(kWideProduct)});
  }

  /// Gradients are there already. They are multiplied with the loss's own where that is not one, which the host asks the device (torch.equal).
  std::vector<Item> backward(std::int64_t hidden) {
    std::vector<Item> items{op_.kernel("compare", 8, 4), {.kind = Item::Kind::host_sync}};
    const bool divided = c_.strategy.micro_batches() > 1;   // by the number of micro-batches
    if (divided) items.push_back(op_.kernel("scale gradient", hidden, hidden));
    if (trained_) items.push_back(op_.weight_gradient(weight_, divided ? op_.kernel("scale weight gradient", sum_bytes(), sum_bytes()) : op_.kernel("hand on gradient", 4, 4)));
    return items;
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  TensorId hidden_;
  std::int64_t width_, columns_;
  LinearLossForm form_;
  bool autocast_ = false, trained_ = true;
  int weight_ = -1;
  std::vector<Item>* forward_ = nullptr;
};

}  // namespace

void add_linear_loss(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns) { LinearLoss(c, op, tape, hidden, width, columns).add(); }

}  // namespace rehearse::strategies
