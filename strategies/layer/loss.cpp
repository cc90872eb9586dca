// The loss over logits [tokens, vocabulary / t], as each framework writes it: what it keeps, copies and sums.
// Leaves out the output layer that makes the logits (head.cpp).
#include "strategies/layer/blocks.h"

namespace rehearse::strategies {

using model::KernelKind;

namespace {

class Loss {
 public:
  Loss(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, TensorId logits, std::int64_t columns)
      : c_(c), op_(op), tape_(tape), hidden_(hidden), logits_(logits), columns_(columns), narrow_(c.tokens * columns * c.element()), wide_(c.tokens * columns * 4), row_(c.tokens * 4), rows_(tape.tensor("loss per token", row_, false)) {}

  void add() {
    switch (c_.profile.loss) {
      case LossKind::upcast:
      case LossKind::upcast_compiled:
      case LossKind::upcast_fused: return upcast();
      case LossKind::native: return native();
      case LossKind::chunked: return chunked();
      case LossKind::chunked_output: return c_.profile.compiled ? compiled_pieces() : pieces();
      case LossKind::vocab_parallel: return vocabulary_parallel();
      case LossKind::vocab_parallel_copied: return vocabulary_parallel_copied();
      case LossKind::vocab_parallel_compiled: return vocabulary_parallel_compiled();
      case LossKind::sharded: return sharded();
      case LossKind::sequence_parallel: return sequence_parallel();
      case LossKind::fused: return fused();
      case LossKind::compiled: return in_parallel() ? parallel_compiled(logits_, narrow_) : compiled(logits_, narrow_);
      case LossKind::compiled_with_head: return in_parallel() ? parallel_compiled(logits_, narrow_) : compiled(logits_, narrow_, true);
      case LossKind::chunked_linear: return !c_.profile.compiled ? upcast() : in_parallel() ? parallel_compiled(logits_, narrow_) : compiled(logits_, narrow_);   // who wants all logits
      case LossKind::tiled:          // with the output layer (tiled.cpp, linear_loss.cpp)
      case LossKind::fused_linear: break;
    }
  }

 private:
  static constexpr KernelKind kCrossEntropy = KernelKind::cross_entropy;
  /// torchtune modules/loss/ce_chunked_output_loss.py, num_output_chunks.
  static constexpr std::int64_t kPieces = 8;

  /// logits.float().
  TensorId cast(const char* name) {
    const TensorId y = tape_.tensor(name, wide_);
    tape_.nodes.push_back({.name = "logits float", .inputs = {logits_}, .outputs = {y}, .forward = {op_.convert("cast", narrow_, wide_)}, .backward = {op_.convert("cast", wide_, narrow_)}});
    return y;
  }

  /// Maximum, target logit, sum of exponentials over the tensor group.
  void sum_statistics(Node& n, int reductions) {
    if (c_.tensor == 1) return;
    for (int i = 0; i < reductions; ++i) n.forward.push_back(op_.collective(CollectiveKind::all_reduce, "loss statistics", row_, plan::kAfterCompute | plan::kComputeWaits));
  }

  /// Cross-entropy over DTensors whose vocabulary is sharded, operator by operator. Source: torch/distributed/tensor/parallel/loss.py, _log_softmax,
  /// _nll_loss_forward, _nll_loss_and_log_softmax_backward. The exponentials' tensor is gone before the result's comes: one here.
  void parallel(TensorId logits, std::int64_t bytes, std::vector<TensorId> held) {
    const TensorId log_softmax = tape_.tensor("log softmax", bytes);
    Node n{.name = "parallel loss", .inputs = {logits}, .saved = {log_softmax, rows_}, .intermediates = {log_softmax, rows_}, .holds = std::move(held)};
    n.forward = {op_.kernel("max", bytes, row_, KernelKind::reduction), Operators::alloc(0, bytes), op_.kernel("subtract maximum", bytes, bytes), op_.kernel("exp", bytes, bytes),
                 op_.kernel("sum", bytes, row_, KernelKind::reduction), op_.kernel("subtract logarithm", bytes, bytes), Operators::free(0), op_.kernel("nll loss", row_, row_)};
    sum_statistics(n, 3);
    n.backward = {Operators::alloc(0, bytes), op_.kernel("zero fill", 0, bytes, KernelKind::memset), op_.kernel("subtract one-hot", row_, row_), Operators::alloc(1, bytes), op_.kernel("exp", bytes, bytes),
                  op_.kernel("add", 2 * bytes, bytes), op_.kernel("scale gradient", bytes, bytes), Operators::free(1), Operators::free(0)};
    tape_.nodes.push_back(std::move(n));
  }

  /// The same, compiled: forward makes the gradient but for its scale, in fp32, and keeps it. Held against AOTAutograd's graphs of it
  /// (tests/oracles/torch_loss_parallel.py).
  void parallel_compiled(TensorId logits, std::int64_t bytes) {
    const TensorId unscaled = tape_.tensor("softmax less one-hot fp32", wide_);
    Node n{.name = "compiled parallel loss", .inputs = {logits}, .saved = {unscaled, rows_}, .intermediates = {unscaled, rows_}};
    n.forward = {op_.kernel("max", bytes, row_, KernelKind::reduction), op_.kernel("exp and sum", bytes, row_, kCrossEntropy), op_.kernel("zero fill", 0, wide_, KernelKind::memset),
                 op_.kernel("add softmax", bytes + wide_, wide_)};
    sum_statistics(n, 3);
    n.backward = {op_.kernel("scale gradient and cast", wide_, bytes)};
    tape_.nodes.push_back(std::move(n));
  }

  /// Do ranks of the tensor group keep their shards of the vocabulary in the loss, as PyTorch's loss_parallel has it?
  bool in_parallel() const { return c_.profile.loss_parallel && c_.tensor > 1; }

  /// torch.nn.functional.cross_entropy, eager. `bytes`: of the logits; `held`: variables of the loss function, and of its caller; `output`: the logits
  /// that the model hands out.
  void log_softmax_and_nll(TensorId logits, std::int64_t bytes, std::vector<TensorId> held, TensorId output) {
    const TensorId log_softmax = tape_.tensor("log softmax", bytes);
    tape_.nodes.push_back({.name = "log softmax", .inputs = {logits}, .outputs = {log_softmax}, .saved = {log_softmax},
                           .forward = {op_.log_softmax(bytes)}, .backward = {op_.log_softmax_backward(bytes)}});
    tape_.nodes.push_back({.name = "nll loss", .inputs = {log_softmax}, .saved = {log_softmax, rows_}, .intermediates = {rows_}, .holds = std::move(held),
                           .forward = {op_.kernel("nll loss", row_, row_)}, .backward = {op_.kernel("zero fill", 0, bytes, KernelKind::memset), op_.kernel("nll loss backward", row_, row_)}});
    if (c_.profile.holds_output) tape_.nodes.back().attributes = {output};
  }

  /// All positions but each sample's last, bytes of `whole`: a view of one sample's logits, a copy of several samples'.
  TensorId shift(TensorId logits, std::int64_t bytes, std::int64_t whole, const char* copy) {
    const bool copies = c_.batch > 1;
    Node node{.name = "shift logits", .inputs = {logits}, .backward = {op_.kernel("zero fill", 0, whole, KernelKind::memset), op_.kernel("slice backward", bytes, bytes)}};
    node.outputs = {copies ? tape_.tensor("shifted logits", bytes) : tape_.part("shifted logits", logits, bytes)};
    if (copies) node.forward = {op_.kernel(copy, bytes, bytes)};
    const TensorId out = node.outputs.front();
    tape_.nodes.push_back(std::move(node));
    return out;
  }

  void native() {
    TensorId in = logits_;
    std::int64_t bytes = narrow_;
    std::vector<TensorId> held{logits_};
    if (c_.profile.autocast && c_.element() != 4) {   // cross_entropy_loss is of autocast's fp32 list
      in = cast("logits fp32");
      bytes = wide_;
      held.push_back(in);
    }
    if (c_.profile.copies_shifted_logits) {
      bytes -= c_.batch * columns_ * c_.element();
      in = shift(logits_, bytes, narrow_, "reshape");
      if (c_.batch > 1) held.push_back(in);
    }
    log_softmax_and_nll(in, bytes, std::move(held), logits_);
  }

  void upcast() {
    TensorId in = logits_;
    std::int64_t bytes = wide_;
    std::vector<TensorId> held;
    if (c_.element() != 4) {
      in = cast("logits fp32");
      if (c_.profile.keeps_logits) held = {hidden_, logits_};
    }
    held.push_back(in);
    const TensorId held_output = in;
    if (c_.profile.copies_shifted_logits) {
      // logits[..., :-1, :].contiguous(): transformers before 4.49, loss/loss_utils.py, ForCausalLMLoss.
      bytes -= c_.batch * columns_ * 4;
      in = shift(in, bytes, wide_, "contiguous");
      if (c_.batch > 1) held.push_back(in);
    }
    // Who does not keep logits in 16 bits hands out the fp32 copy: transformers until 4.45 (since then its loss function makes it, loss/loss_utils.py),
    // torchtitan until October 2024 (models/llama/model.py, output.float()), prime-rl (cast_float_and_contiguous).
    const TensorId output = c_.profile.copies_shifted_logits || !c_.profile.keeps_logits ? held_output : logits_;
    const bool eager = c_.profile.loss == LossKind::upcast || c_.profile.loss == LossKind::chunked_linear;
    if (eager && in_parallel()) return parallel(in, bytes, std::move(held));
    if (eager) return log_softmax_and_nll(in, bytes, std::move(held), output);
    if (c_.profile.loss == LossKind::upcast_compiled) return compiled(in, bytes);
    tape_.nodes.push_back({.name = "fused loss", .inputs = {in}, .saved = {in, rows_}, .intermediates = {rows_}, .holds = std::move(held), .forward = {op_.kernel("cross entropy", bytes, row_, kCrossEntropy)},
                           .backward = {op_.kernel("cross entropy backward", bytes, bytes, kCrossEntropy)}, .gradient_in_place = true});
  }

  /// lit_gpt/utils.py, chunked_cross_entropy, on outputs that Fabric has converted to fp32 and the training loop keeps.
  void chunked() {
    const TensorId wide_logits = cast("logits fp32"), log_softmax = tape_.tensor("log softmax", wide_);
    tape_.nodes.push_back({.name = "chunked loss", .inputs = {wide_logits}, .saved = {wide_logits, log_softmax, rows_}, .intermediates = {log_softmax, rows_},
                           .forward = {op_.log_softmax(wide_), op_.kernel("nll loss", row_, row_)},
                           .backward = {op_.kernel("nll loss backward", row_, wide_), op_.log_softmax_backward(wide_)}, .gradient_in_place = true});
  }

  /// The cast's input is not kept, the log-softmax is.
  void pieces() {
    const std::int64_t narrow = narrow_ / kPieces, wide = wide_ / kPieces, row = row_ / kPieces;
    const TensorId log_softmax = tape_.tensor("log softmax", wide_);
    Node n{.name = "loss in pieces", .inputs = {logits_}, .saved = {log_softmax, rows_}, .intermediates = {log_softmax, rows_}};
    for (std::int64_t i = 0; i < kPieces; ++i) {
      n.forward.insert(n.forward.end(), {Operators::alloc(0, wide), op_.convert("cast", narrow, wide), op_.log_softmax(wide), op_.kernel("nll loss", row, row), Operators::free(0)});
      n.backward.insert(n.backward.end(), {Operators::alloc(0, wide), op_.kernel("zero fill", 0, wide, KernelKind::memset), op_.kernel("nll loss backward", row, row), Operators::alloc(1, wide),
                                           op_.log_softmax_backward(wide), Operators::free(0), op_.convert("cast", wide, narrow), Operators::free(1)});
    }
    sum_statistics(n, 3);
    tape_.nodes.push_back(std::move(n));
  }

  /// Cast and loss of a piece are one graph; a piece's logits go when its gradient is there.
  void compiled_pieces() {
    const std::int64_t narrow = narrow_ / kPieces;
    Node n{.name = "compiled loss in pieces", .inputs = {logits_}, .saved = {logits_, rows_}, .intermediates = {rows_}, .gradient_in_place = true};
    for (std::int64_t i = 0; i < kPieces; ++i) {
      n.forward.push_back(op_.kernel("cross entropy", 2 * narrow_ / kPieces, row_ / kPieces, kCrossEntropy));
      n.backward.insert(n.backward.end(), {Operators::alloc(0, narrow), op_.kernel("cross entropy backward", narrow, narrow, kCrossEntropy), Operators::free(0)});
    }
    sum_statistics(n, 3);
    tape_.nodes.push_back(std::move(n));
  }

  /// fp32 copy, maximum subtracted in place, exponentials written over it, softmax kept; the gradient is made in place.
  void vocabulary_parallel() {
    const TensorId softmax = cast("softmax fp32");
    Node n{.name = "vocabulary-parallel loss", .inputs = {softmax}, .saved = {softmax, rows_}, .intermediates = {rows_}, .gradient_in_place = true};
    n.forward = {op_.kernel("max", wide_, row_, KernelKind::reduction), op_.kernel("subtract", wide_, wide_), op_.kernel("exp", wide_, wide_), op_.kernel("sum", wide_, row_, KernelKind::reduction),
                 op_.kernel("divide", wide_, wide_)};
    sum_statistics(n, 3);
    n.backward = {op_.kernel("subtract one-hot", row_, row_), op_.kernel("scale gradient", wide_, wide_)};
    tape_.nodes.push_back(std::move(n));
  }

  /// The caller's fp32 logits, a clone less the maximum and its exponentials are there at once; the softmax and the gradient are made in the last.
  /// Source: DeepSpeedExamples a79272cc8 Megatron-LM/mpu/cross_entropy.py, _VocabParallelCrossEntropy; in place since NVIDIA/Megatron-LM
  /// 57064fd6f2 (2020-03-10).
  void vocabulary_parallel_copied() {
    const TensorId wide_logits = cast("logits fp32"), softmax = tape_.tensor("softmax fp32", wide_);
    tape_.nodes.push_back({.name = "exponentials of logits", .inputs = {wide_logits}, .outputs = {softmax},
                           .forward = {Operators::alloc(0, wide_), op_.kernel("clone", wide_, wide_), op_.kernel("max", wide_, row_, KernelKind::reduction), op_.kernel("subtract", wide_, wide_), op_.kernel("exp", wide_, wide_), Operators::free(0)},
                           .passed_inputs = 1});
    Node n{.name = "vocabulary-parallel loss", .inputs = {softmax}, .saved = {softmax, rows_}, .intermediates = {rows_}, .holds = {wide_logits}, .gradient_in_place = true};
    n.forward = {op_.kernel("sum", wide_, row_, KernelKind::reduction), op_.kernel("divide", wide_, wide_)};
    sum_statistics(n, 3);
    n.backward = {op_.kernel("subtract one-hot", row_, row_), op_.kernel("scale gradient", wide_, wide_)};
    tape_.nodes.push_back(std::move(n));
  }

  /// fused_vocab_parallel_cross_entropy: each step is a graph of its own, and graphs do not write over what they read.
  void vocabulary_parallel_compiled() {
    const TensorId softmax = tape_.tensor("softmax fp32", wide_);
    Node n{.name = "compiled vocabulary-parallel loss", .inputs = {logits_}, .saved = {softmax, rows_}, .intermediates = {softmax, rows_}};
    n.forward = {Operators::alloc(0, wide_), op_.kernel("cast and max", narrow_, wide_), op_.kernel("subtract, exp and sum", wide_, wide_), op_.kernel("divide", wide_, wide_), Operators::free(0)};
    sum_statistics(n, 2);
    n.backward = {op_.kernel("subtract one-hot, scale and cast", wide_, narrow_)};
    tape_.nodes.push_back(std::move(n));
  }

  /// logits.float(), then the maximum taken off into a second fp32 tensor, whose exponentials are written over it (torch.exp(out=)) and divided in
  /// place; the gradient is made there too. Source: nanotron parallel/tensor_parallel/functional.py, _ShardedCrossEntropy.
  void sharded() {
    const TensorId wide_logits = cast("logits fp32"), softmax = tape_.tensor("softmax fp32", wide_);
    const auto by_row = [&](const char* name) { return op_.strided(name, wide_, wide_, 4); };   // the other operand is one number per token
    tape_.nodes.push_back({.name = "logits less maximum", .inputs = {wide_logits}, .outputs = {softmax}, .forward = {op_.kernel("max", wide_, row_, KernelKind::reduction), by_row("subtract")}, .passed_inputs = 1});
    Node n{.name = "sharded loss", .inputs = {softmax}, .saved = {softmax, rows_}, .intermediates = {rows_}, .holds = {wide_logits}, .gradient_in_place = true};
    n.forward = {op_.kernel("exp", wide_, wide_), op_.kernel("sum", wide_, row_, KernelKind::reduction), by_row("divide")};
    sum_statistics(n, 3);
    n.backward = {op_.kernel("subtract one-hot", row_, row_), by_row("scale gradient")};
    tape_.nodes.push_back(std::move(n));
  }

  /// logits.float(), softmax, softmax.log() for the negative log-likelihood; the caller holds the logits meanwhile, and all ranks get all tokens'
  /// losses. Source: deepspeedai/Megatron-DeepSpeed megatron/core/sequence_parallel/cross_entropy.py, gpt_model.py, post_language_model_processing.
  void sequence_parallel() {
    const TensorId wide_logits = cast("logits fp32"), softmax = tape_.tensor("softmax fp32", wide_);
    tape_.nodes.push_back({.name = "softmax of logits", .inputs = {wide_logits}, .outputs = {softmax}, .forward = {op_.kernel("softmax", wide_, wide_, KernelKind::softmax)}, .passed_inputs = 1});
    Node n{.name = "sequence-parallel loss", .inputs = {softmax}, .saved = {softmax, rows_}, .intermediates = {rows_}, .holds = {logits_, wide_logits}, .gradient_in_place = true};
    n.forward = {Operators::alloc(0, wide_), op_.kernel("logarithm", wide_, wide_), op_.kernel("nll loss", row_, row_), Operators::free(0)};
    n.backward = {op_.kernel("subtract one-hot", row_, row_), op_.kernel("scale gradient", wide_, wide_)};
    tape_.nodes.push_back(std::move(n));
  }

  /// One kernel, which leaves the gradient where the logits were.
  void fused() {
    Node n{.name = "fused loss", .inputs = {logits_}, .saved = {logits_, rows_}, .intermediates = {rows_}, .gradient_in_place = true};
    n.forward = {op_.kernel("cross entropy", 2 * narrow_, narrow_, kCrossEntropy)};
    sum_statistics(n, 2);
    n.backward = {op_.kernel("scale gradient", narrow_, narrow_)};
    tape_.nodes.push_back(std::move(n));
  }

  /// Over logits of this size: it keeps them and a statistic per token. TorchInductor's kernels are a reduction in forward and element by
  /// element in backward (tests/oracles/torch_compiled_layer.py, cross_entropy); forward reads for the maximum and again for the sum of
  /// exponentials. `in_place`: the logits are an intermediate of the graph, which backward may write over (torch/_functorch/config.py,
  /// donated_buffer, from 2.6 on); whose PyTorch does that finds both in one pass (torch/_inductor/config.py, online_softmax, from 2.7 on).
  void compiled(TensorId logits, std::int64_t bytes, bool in_place = false) {
    Node n{.name = "compiled loss", .inputs = {logits}, .saved = {logits, rows_}, .intermediates = {rows_}, .gradient_in_place = in_place};
    n.forward = {op_.kernel("cross entropy", in_place ? bytes : 2 * bytes, row_, KernelKind::reduction)};
    sum_statistics(n, 3);
    n.backward = {op_.kernel("cross entropy backward", bytes, bytes)};
    if (c_.profile.holds_output && !in_place) n.attributes = {logits_};
    tape_.nodes.push_back(std::move(n));
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  TensorId hidden_, logits_;
  std::int64_t columns_;               // of the vocabulary, this rank's
  std::int64_t narrow_, wide_, row_;   // bytes of the logits as they come and in fp32, of an fp32 number per token
  TensorId rows_;                      // the loss of each token
};

}  // namespace

void add_loss(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, TensorId logits, std::int64_t columns) { Loss(c, op, tape, hidden, logits, columns).add(); }

}  // namespace rehearse::strategies
