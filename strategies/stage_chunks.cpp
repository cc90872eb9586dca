#include "strategies/stage_chunks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "strategies/layer/transformer_layer.h"

namespace rehearse::strategies {
namespace {

class ChunkBuilder {
 public:
  ChunkBuilder(const LowerContext& context, Stage& stage, StageChunks& out) : context_(context), stage_(stage), out_(out) {
    // The framework may ask for gradients below the first trained weight.
    asked_ = stage.profile.input_require_gradients && stage.strategy.memory.recompute != Recompute::none;
  }

  void add(const ChunkContents& held, const ChunkNeighbours& neighbours) {
    StageChunk chunk{.contents = held, .neighbours = neighbours, .first = stage_.units.size()};
    wanted_below_ = !neighbours.begins();  // received activations require gradients
    const bool whole_loss = neighbours.gathered && !out_.chunks.empty();
    in_parallel_ = stage_.strategy.data_parallel.kind == DataParallelKind::one_process && !whole_loss;
    if (held.embedding) add_end(embedding_tape(of_layer(-1), out_.tied));
    layers_of_chunk_ = static_cast<int>(held.layers.size());
    for (std::size_t i = 0; i < held.layers.size(); ++i) add_layer(held.layers[i], i);
    if (held.head) add_end(held.loss ? head_tape(of_layer(-1), out_.tied) : output_tape(of_layer(-1), out_.tied));
    else if (held.loss) add_end(loss_tape(neighbours.gathered ? whole_batch() : of_layer(-1)));
    chunk.last = stage_.units.size();

    const std::int64_t stream = context_.stream_tokens() * context_.model.hidden * context_.stream_element();
    chunk.bytes_in = held.loss && !held.head ? logits_bytes(neighbours.gathered ? whole_batch() : context_) : stream;
    chunk.bytes_out = held.head && !held.loss ? logits_bytes(context_) : stream;
    out_.chunks.push_back(std::move(chunk));
  }

 private:
  const LowerContext& of_layer(int layer) {
    context_.layer = layer;
    return context_;
  }
  /// The first GPU of one process has the loss of all replicas' samples.
  LowerContext whole_batch() {
    LowerContext whole = of_layer(-1);
    whole.batch *= stage_.sizes.data;
    whole.tokens *= stage_.sizes.data;
    return whole;
  }

  /// An embedding, head or loss.
  void add_end(Tape tape) {
    out_.tapes.push_back(std::move(tape));
    add_unit(&out_.tapes.back(), -1, false);
  }

  void add_layer(int layer, std::size_t of_chunk) {
    const Memory& memory = stage_.strategy.memory;
    const bool among_first = memory.recompute_layers == 0 || of_chunk < static_cast<std::size_t>(memory.recompute_layers);
    const bool checkpoint = memory.recompute == Recompute::full && layer % memory.recompute_every == 0 && among_first;
    const int begins = static_cast<int>(of_chunk) / memory.recompute_span * memory.recompute_span, span = std::min(memory.recompute_span, layers_of_chunk_ - begins);
    add_unit(tape_of(layer), layer, checkpoint && span == 1);
    if (!checkpoint || span == 1) return;
    stage_.units.back().span = span;
    stage_.units.back().of_span = static_cast<int>(of_chunk) - begins;
  }

  /// Layers of one kind have one tape.
  const Tape* tape_of(int layer) {
    std::pair kind(context_.model.layers[static_cast<std::size_t>(layer)], tuning_signature(stage_.strategy.tuning, layer));
    if (kind.first.moe && stage_.strategy.uneven_experts()) kind.second += " layer " + std::to_string(layer);   // popular experts of its own
    const bool wide = stage_.strategy.training.in_16bit(layer, static_cast<int>(context_.model.layer_count()));
    if (wide) kind.second += " 16 bit";
    for (const auto& [known, tape] : kinds_)
      if (known == kind) return tape;
    LowerContext lowered = of_layer(layer);
    if (wide) lowered.gemm = lowered.activation;
    std::vector<const Tape*> drawn;
    const int draws = kind.first.moe ? static_cast<int>(stage_.strategy.routing_draws()) : 1;
    for (lowered.routing_draw = 0; lowered.routing_draw < draws; ++lowered.routing_draw) {
      out_.tapes.push_back(layer_tape(lowered, kind.first));
      drawn.push_back(&out_.tapes.back());
    }
    kinds_.emplace_back(kind, drawn.front());
    if (draws > 1) out_.draws.push_back(std::move(drawn));
    return kinds_.back().second;
  }

  /// Null where every micro-batch has the same tape.
  const std::vector<const Tape*>* draws_of(const Tape* tape) const {
    const auto it = std::find_if(out_.draws.begin(), out_.draws.end(), [&](const std::vector<const Tape*>& d) { return d.front() == tape; });
    return it == out_.draws.end() ? nullptr : &*it;
  }

  /// Gradients flow down to the first trained weight; further only where a stage below, or the framework, asks for them.
  void add_unit(const Tape* tape, int layer, bool checkpoint) {
    Unit unit{.tape = tape, .draws = draws_of(tape), .layer = layer, .chunk = static_cast<int>(out_.chunks.size()), .checkpoint = checkpoint, .input_gradient = wanted_below_, .in_parallel = in_parallel_};
    unit.frame = stage_.frames.acquire(static_cast<std::uint32_t>(tape->weights.size()) + kUnitExtraSlots);
    stage_.units.push_back(unit);
    wanted_below_ = wanted_below_ || unit.trainable() || asked_;
  }

  LowerContext context_;
  Stage& stage_;
  StageChunks& out_;
  std::vector<std::pair<std::pair<model::Layer, std::string>, const Tape*>> kinds_;
  bool asked_ = false, wanted_below_ = false, in_parallel_ = false;
  int layers_of_chunk_ = 0;
};

/// PyTorch's FSDP1 watches the inputs of units that train nothing, to know when their backward is over. Where a checkpoint enters
/// such a unit anew within backward, its hook holds the leaf that the input becomes there, and with it the input and its
/// gradient, until all of backward is over. A checkpoint inside a unit enters its modules anew, not the unit.
/// Source: torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook (torch 2.1 to 2.13); torch.autograd.graph,
/// register_multi_grad_hook: the hook's closure holds the leaf's gradient accumulator. Seen: tests/oracles/torch_fsdp_frozen.py.
void mark_retained(Stage& stage) {
  const TuningKind tuning = stage.strategy.tuning.kind;
  const bool wrapped = stage.profile.wraps_adapters && (tuning == TuningKind::lora || tuning == TuningKind::qlora);
  if (!stage.profile.reentrant_checkpoint || stage.profile.checkpoints_in_units || stage.strategy.data_parallel.kind != DataParallelKind::fsdp1 || stage.sizes.shard <= 1 || stage.evaluates()) return;
  for (std::size_t u = 1; u < stage.units.size(); ++u) {
    Unit &unit = stage.units[u], &below = stage.units[u - 1];
    const bool trains = std::any_of(unit.tape->weights.begin(), unit.tape->weights.end(), [&](const Weight& w) { return w.trainable && !(w.adapter && wrapped); });
    unit.retains = below.above_retains = unit.checkpoint && unit.input_gradient && !trains && below.chunk == unit.chunk;
  }
}

}  // namespace

StageChunks stage_chunks(const LowerContext& context, Stage& stage, const std::vector<ChunkContents>& contents, const std::vector<ChunkNeighbours>& neighbours) {
  StageChunks out;
  const bool has_embedding = std::any_of(contents.begin(), contents.end(), [](const ChunkContents& c) { return c.embedding; });
  const bool has_head = std::any_of(contents.begin(), contents.end(), [](const ChunkContents& c) { return c.head; });
  out.tied = context.model.tied_embeddings && has_embedding && has_head;
  ChunkBuilder builder(context, stage, out);
  for (std::size_t c = 0; c < contents.size(); ++c) builder.add(contents[c], neighbours[c]);
  mark_retained(stage);
  return out;
}

}  // namespace rehearse::strategies
