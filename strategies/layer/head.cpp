// Both ends of a transformer: the embedding that makes the residual stream, the head that consumes it, and the layers that
// predict further tokens. Leaves out the loss (loss.cpp).
#include <algorithm>

#include "strategies/layer/blocks.h"
#include "strategies/layer/transformer_layer.h"

namespace rehearse::strategies {

using model::KernelKind;

std::int64_t padded_vocabulary(const LowerContext& c) {
  const std::int64_t multiple = static_cast<std::int64_t>(c.profile.vocab_multiple) * (c.profile.vocab_times_tensor ? c.tensor : 1);
  return (c.model.vocab + multiple - 1) / multiple * multiple;
}

namespace {

/// One-hot rows times the table. Source: MaxText layers/embeddings.py, use_iota_embed.
Item one_hot_product(const LowerContext& c, const char* name, model::GemmRole role, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  return {.kind = Item::Kind::kernel, .spec = c.builder.kernel({.kind = KernelKind::gemm, .role = role, .dtype = c.product(), .output_dtype = c.activation, .m = rows, .n = columns, .k = depth, .name = name})};
}

/// Each tensor rank has looked up the words of its part of the table; `bytes` of all tokens.
void reduce_embedding(const LowerContext& c, const Operators& op, Node& node, std::int64_t bytes) {
  const int both = plan::kAfterCompute | plan::kComputeWaits;
  if (c.sequence_parallel) node.forward.push_back({.kind = Item::Kind::produce_outputs});
  node.forward.push_back(op.collective(c.sequence_parallel ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce, "embedding reduce", bytes, both));
  if (c.profile.record_streams == RecordStreams::all) {
    node.forward.push_back(Operators::record_stream(0));
    if (c.sequence_parallel) node.forward.push_back(Operators::record(Item::Kind::record_outputs));
  }
  node.forward.push_back(Operators::free(0));
  if (c.sequence_parallel) node.backward.insert(node.backward.end(), {Operators::alloc(1, bytes), op.collective(CollectiveKind::all_gather, "embedding gather gradient", bytes, both)});
}

/// Words of `width`, looked up in the table that tensor ranks share.
TensorId word_embedding(const LowerContext& c, const Operators& op, Tape& tape, std::int64_t width, bool tied_here) {
  const bool splits = c.tensor > 1 && !c.profile.whole_embedding, cuts = c.profile.whole_embedding && c.sequence_parallel;
  const std::int64_t e = c.element(), whole = c.tokens * c.model.hidden * e, rows = padded_vocabulary(c) / (splits ? c.tensor : 1);
  const TensorId ids = tape.tensor("token ids", c.tokens * 8, false), x = tape.tensor("embedding", c.stream_tokens() * c.model.hidden * e);
  Weight table = op.weight("word_embeddings.weight", rows * width);
  table.matrix = false;
  table.columns = width;
  table.gradient_elsewhere = tied_here;
  table.replicated_over_tensor = c.tensor == 1;   // of a whole table all ranks make the same gradient: nothing is to be reduced
  Node node{.name = "embedding", .outputs = {x}, .intermediates = {ids}};
  if (table.trainable) node.saved = {ids};
  const int w = tape.weight(std::move(table));
  if (splits || cuts) node.forward.push_back(Operators::alloc(0, whole));
  const bool one_hot = c.profile.one_hot_embedding;
  if (one_hot) node.forward.insert(node.forward.end(), {op.kernel("one-hot", c.tokens * 8, c.tokens * rows * e), one_hot_product(c, "embedding", model::GemmRole::forward, c.tokens, width, rows)});
  else node.forward.push_back(op.kernel("embedding", whole, whole, KernelKind::embedding));
  if (splits) reduce_embedding(c, op, node, whole);
  if (cuts) {   // each rank goes on with its tokens of what all have looked up
    node.forward.insert(node.forward.end(), {op.kernel("take own tokens", whole / c.tensor, whole / c.tensor), Operators::free(0)});
    node.backward.insert(node.backward.end(), {Operators::alloc(1, whole), op.collective(CollectiveKind::all_gather, "embedding gather gradient", whole, plan::kAfterCompute | plan::kComputeWaits)});
  }
  if (!one_hot) node.backward.push_back(op.kernel("embedding gradient zeros", 0, rows * width * e, KernelKind::memset));
  node.backward.push_back(op.weight_gradient(w, one_hot ? one_hot_product(c, "embedding weight gradient", model::GemmRole::weight_gradient, rows, width, c.tokens) : op.embedding_backward(c.tokens, width)));
  if (c.tensor > 1 && c.sequence_parallel) node.backward.push_back(Operators::free(1));
  tape.nodes.push_back(std::move(node));
  return x;
}

TensorId add_positions(const LowerContext& c, const Operators& op, Tape& tape, TensorId x) {
  const auto& m = c.model;
  const std::int64_t bytes = c.stream_tokens() * m.hidden * c.element();
  Weight positions = op.weight("position_embeddings.weight", m.max_positions * m.hidden);
  positions.matrix = false;
  positions.columns = m.hidden;
  positions.replicated_over_tensor = true;
  const int w = tape.weight(std::move(positions));
  const TensorId y = tape.tensor("embedding with positions", bytes);
  tape.nodes.push_back({.name = "add positions", .inputs = {x}, .outputs = {y}, .forward = {op.kernel("add positions", 2 * bytes, bytes)},
                        .backward = {op.weight_gradient(w, op.kernel("position gradient", bytes, m.max_positions * m.hidden * c.element(), KernelKind::reduction))}, .passed_inputs = 1});
  return y;
}

/// One kernel over the residual stream in each direction.
TensorId pointwise(const LowerContext& c, const Operators& op, Tape& tape, TensorId x, const std::string& name) {
  const std::int64_t bytes = c.stream_tokens() * c.model.hidden * c.element();
  const TensorId y = tape.tensor(name, bytes);
  tape.nodes.push_back({.name = name, .inputs = {x}, .outputs = {y}, .forward = {op.kernel(name, bytes, bytes)}, .backward = {op.kernel(name + " backward", bytes, bytes)}});
  return y;
}

}  // namespace

Tape embedding_tape(const LowerContext& context, bool tied_here) {
  Tape tape;
  tape.name = "embedding";
  LowerContext c = context;
  if (c.stream_element() == 4) c.activation = DType::fp32;
  Operators op(c, tape);
  const auto& m = c.model;
  tape.makes_angles = m.position == model::Position::rotary;
  const std::int64_t width = m.embedding_width > 0 ? m.embedding_width : m.hidden;
  TensorId x = word_embedding(c, op, tape, width, tied_here);
  if (width != m.hidden) x = op.linear(x, "embedding projection", width, m.hidden, false, Operators::Split::none);
  if (m.scaled_embedding) x = pointwise(c, op, tape, x, "embedding scale");
  if (m.position == model::Position::learned) x = add_positions(c, op, tape, x);
  if (m.embedding_norm) x = op.norm(x, "embedding norm", c.stream_tokens(), m.hidden);
  if (c.profile.dropout && m.dropout > 0) {
    const TensorId mask = tape.tensor("embedding dropout mask", c.stream_tokens() * m.hidden, false);
    x = pointwise(c, op, tape, x, "embedding dropout");
    tape.nodes.back().saved = tape.nodes.back().intermediates = {mask};
  }
  tape.output = x;
  return tape;
}

namespace {

/// The newest weight of this name is another user of a table that this rank has already.
void shared_weight(Tape& tape, const std::string& name) {
  const auto w = std::find_if(tape.weights.rbegin(), tape.weights.rend(), [&](const Weight& one) { return one.name == name; });
  w->parameter_elsewhere = w->gradient_elsewhere = true;
}

/// Multi-token prediction: the stream and the embedding of the next token, each normalised, become the stream of one more
/// layer; its head and the table are those of the model, a copy where the embedding is on another stage.
/// Source: DeepSeek-V3 report, section 2.2; Megatron-Core transformer/multi_token_prediction.py.
TensorId prediction_layer(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden) {
  const auto& m = c.model;
  const std::int64_t rows = c.stream_tokens(), bytes = rows * m.hidden * c.element(), table_rows = padded_vocabulary(c) / c.tensor;
  const TensorId ids = tape.tensor("next token ids", rows * 8, false), next = tape.tensor("next token embedding", bytes);
  Weight table = op.weight("word_embeddings.weight", table_rows * m.hidden);
  table.matrix = false;
  const bool trained = table.trainable;
  const int w = tape.weight(std::move(table));
  Node lookup{.name = "next token embedding", .outputs = {next}, .saved = {ids}, .intermediates = {ids}, .forward = {op.kernel("embedding", bytes, bytes, KernelKind::embedding)}};
  if (trained) lookup.backward = {op.kernel("embedding gradient zeros", 0, table_rows * m.hidden * c.element(), KernelKind::memset), op.weight_gradient(w, op.embedding_backward(rows, m.hidden))};
  tape.nodes.push_back(std::move(lookup));
  if (c.strategy.parallelism.degrees.pipeline == 1) shared_weight(tape, "word_embeddings.weight");

  const TensorId stream = op.norm(hidden, "stream norm", rows, m.hidden), token = op.norm(next, "next token norm", rows, m.hidden);
  const TensorId both = tape.tensor("stream and next token", 2 * bytes);
  tape.nodes.push_back({.name = "concatenate", .inputs = {stream, token}, .outputs = {both}, .forward = {op.kernel("concatenate", 2 * bytes, 2 * bytes)}, .backward = {op.kernel("concatenate backward", 2 * bytes, 2 * bytes)}});
  const TensorId joined = op.linear(both, "prediction projection", 2 * m.hidden, m.hidden, false, Operators::Split::none);
  return op.norm(layer_block(c, op, tape, joined, model::prediction_layer(m)), "prediction norm", rows, m.hidden);
}

/// The output layer stays in 16 bit under 8-bit recipes that do not say otherwise.
LowerContext head_context(const LowerContext& c) {
  LowerContext head = c.narrowed();
  if (bits(head.gemm) <= 8 && !c.strategy.training.fp8_head) head.gemm = c.activation;
  return head;
}

struct Output {
  TensorId hidden, logits;
};

std::int64_t output_width(const LowerContext& c) { return c.model.embedding_width > 0 ? c.model.embedding_width : c.model.hidden; }

void tie(Tape& tape, bool tied_here) {
  if (tied_here)
    for (Weight& w : tape.weights)
      if (w.name == "lm_head.weight") w.parameter_elsewhere = true;
}

/// What the output layer multiplies.
TensorId add_final_hidden(const LowerContext& c, Tape& tape) {
  const LowerContext head = head_context(c);
  Operators op(c, tape);
  const auto& m = c.model;
  TensorId x = tape.tensor("final hidden", c.stream_tokens() * m.hidden * c.stream_element());
  tape.input = x;
  if (m.final_norm) x = op.norm(x, "final norm", c.stream_tokens(), m.hidden);
  const std::int64_t width = output_width(c);
  if (width != m.hidden) x = op.linear(x, "output projection", m.hidden, width, false, Operators::Split::none);
  if (c.mixed()) x = op.cast(x, "lm_head input", c.stream_tokens() * width, head.activation);
  return x;
}

/// Whether tensor ranks share the output layer.
bool splits_head(const LowerContext& c) { return c.tensor > 1 && (c.sequence_parallel || !c.profile.whole_head_without_sequence); }

/// Logits that a rank's loss reads: all of the vocabulary, or its shard of it.
std::int64_t loss_columns(const LowerContext& c) { return padded_vocabulary(c) / (c.profile.gathers_logits || !splits_head(c) ? 1 : c.tensor); }

/// Logits of this rank's shard of the vocabulary, or of the whole. Source of the gathering: Aleph-Alpha/scaling core/nn/linear/utils.py,
/// _AllConcat (shards are gathered, then joined; backward takes this rank's part).
TensorId add_logits(const LowerContext& head, Operators& op, Tape& tape, TensorId x) {
  const bool splits = splits_head(head);
  const TensorId shard = op.linear(x, "lm_head", output_width(head), padded_vocabulary(head), head.model.head_bias, splits || head.tensor == 1 ? Operators::Split::column : Operators::Split::none);
  if (!splits || !head.profile.gathers_logits) return shard;
  const std::int64_t whole = head.tokens * padded_vocabulary(head) * head.element(), own = whole / head.tensor;
  const TensorId logits = tape.tensor("gathered logits", whole);
  tape.nodes.push_back({.name = "gather logits", .inputs = {shard}, .outputs = {logits},
                        .forward = {Operators::alloc(0, whole), op.collective(CollectiveKind::all_gather, "gather logits", whole, plan::kAfterCompute | plan::kComputeWaits),
                                    op.kernel("concatenate", whole, whole), Operators::free(0)},
                        .backward = {op.kernel("take shard", own, own)}});
  return logits;
}

/// Logits of Gemma 2 are divided by a constant, go through tanh and are multiplied by it; autograd keeps what tanh gives. Where the loss is in
/// the same compiled graph its kernels do that as they read, and only what the product gave is kept (tests/oracles/torch_compiled_layer.py).
/// Source: transformers models/gemma2/modeling_gemma2.py, final_logit_softcapping; litgpt/model.py, do_softcapping.
TensorId softcap(const LowerContext& head, Operators& op, Tape& tape, TensorId logits, std::int64_t bytes) {
  if (head.profile.compiled) {
    const TensorId y = tape.tensor("capped logits", bytes);
    tape.nodes.push_back({.name = "cap logits", .inputs = {logits}, .outputs = {y}, .saved = {logits}, .forward = {op.kernel("cap logits", bytes, bytes)}, .backward = {op.kernel("cap logits backward", 2 * bytes, bytes)}});
    return y;
  }
  const auto step = [&](const char* name, TensorId x, bool keeps) {
    const TensorId y = tape.tensor(name, bytes);
    Node n{.name = name, .inputs = {x}, .outputs = {y}, .forward = {op.kernel(name, bytes, bytes)}, .backward = {op.kernel(std::string(name) + " backward", keeps ? 2 * bytes : bytes, bytes)}};
    if (keeps) n.saved = {y};
    tape.nodes.push_back(std::move(n));
    return y;
  };
  return step("scale capped logits", step("tanh of logits", step("divide logits", logits, false), true), false);
}

/// Final norm and output layer.
Output add_output(const LowerContext& c, Tape& tape, bool tied_here) {
  const LowerContext head = head_context(c);
  Operators head_op(head, tape);
  const TensorId x = add_final_hidden(c, tape);
  TensorId logits = add_logits(head, head_op, tape, x);
  if (c.model.softcapped_logits && c.profile.loss != LossKind::compiled_with_head) logits = softcap(head, head_op, tape, logits, logits_bytes(c));
  tie(tape, tied_here);
  return {x, logits};
}

}  // namespace

std::int64_t logits_bytes(const LowerContext& c) { return c.tokens * loss_columns(c) * head_context(c).element(); }

Tape head_tape(const LowerContext& c, bool tied_here) {
  Tape tape;
  tape.name = "head";
  const LowerContext head = head_context(c);
  Operators op(c, tape), head_op(head, tape);
  const std::int64_t columns = loss_columns(c);
  if (c.strategy.memory.sequence_chunk > 0) {
    add_chunked_output(head, head_op, tape, add_final_hidden(c, tape), output_width(c), columns);
    tie(tape, tied_here);
    return tape;
  }
  if (c.profile.loss == LossKind::tiled) {
    add_tiled_output(head, head_op, tape, add_final_hidden(c, tape), output_width(c), columns);
    tie(tape, tied_here);
    return tape;
  }
  if (chunks_output(c)) {
    add_chunked_linear(head, head_op, tape, add_final_hidden(c, tape), output_width(c), columns);
    tie(tape, tied_here);
    return tape;
  }
  if (c.profile.loss == LossKind::fused_linear) {
    add_linear_loss(head, head_op, tape, add_final_hidden(c, tape), output_width(c), columns);
    tie(tape, tied_here);
    return tape;
  }
  const Output out = add_output(c, tape, tied_here);
  add_loss(head, head_op, tape, out.hidden, out.logits, columns);
  if (!c.strategy.training.multi_token_prediction) return tape;
  TensorId x = out.hidden;
  for (std::int64_t i = 0; i < c.model.mtp_layers; ++i) {
    const std::size_t known = tape.weights.size();
    x = prediction_layer(c, op, tape, x);
    if (i > 0 && c.model.mtp_repeated)
      for (std::size_t w = known; w < tape.weights.size(); ++w) tape.weights[w].parameter_elsewhere = tape.weights[w].gradient_elsewhere = true;
    const TensorId further = add_logits(head, head_op, tape, x);
    shared_weight(tape, "lm_head.weight");
    add_loss(head, head_op, tape, x, further, columns);
  }
  return tape;
}

Tape output_tape(const LowerContext& c, bool tied_here) {
  Tape tape;
  tape.name = "output";
  tape.output = add_output(c, tape, tied_here).logits;
  return tape;
}

Tape loss_tape(const LowerContext& c) {
  Tape tape;
  tape.name = "loss";
  tape.input = tape.tensor("logits", logits_bytes(c));
  const LowerContext head = head_context(c);
  Operators op(head, tape);
  add_loss(head, op, tape, tape.input, tape.input, loss_columns(c));
  return tape;
}

}  // namespace rehearse::strategies
