#include "strategies/stage_writer.h"

#include <algorithm>
#include <deque>
#include <tuple>

#include "sim/core/contract.h"

namespace rehearse::strategies {

using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {

/// Blocks of one tape in each variant that the program uses.
struct Variants {
  const Tape* tape = nullptr;
  bool checkpoint = false;
  bool input_gradient = true;
  std::map<WeightGradient, TapeBlocks> blocks;
};

}  // namespace

struct StageWriter::Impl {
  Impl(const model::ModelDescription& m, const Strategy& s, const FrameworkProfile& p, plan::PlanBuilder& b, plan::RankClass& c, GroupSizes sizes)
      : model(m), context(make_context(m, s, p, b)), stage(s, p, b, c, sizes) {}

  const model::ModelDescription& model;
  LowerContext context;
  Stage stage;
  std::deque<Tape> tapes;           // owns; stable addresses
  std::vector<Variants> variants;   // by unit
  struct Chunk {
    std::size_t first = 0, last = 0;   // units [first, last)
    ChunkNeighbours neighbours;
    std::int64_t bytes_in = 0, bytes_out = 0;   // of the messages to its neighbours
    std::int64_t done_backward = 0;
  };
  std::vector<Chunk> chunks;
  std::unique_ptr<DataParallelWriter> data;
  std::int64_t micro_batches = 1;
  std::map<std::pair<int, std::size_t>, std::uint32_t> frames;              // (micro-batch, unit) -> base
  std::map<std::pair<int, int>, std::uint32_t> incoming, outgoing;          // (micro-batch, chunk) -> boundary frame

  static constexpr std::uint32_t kBoundarySlots = 4;   // activation, gradient, events of either
  static constexpr std::uint32_t kForwardEvent = 2, kBackwardEvent = 3;

  const TapeBlocks& blocks(std::size_t unit, WeightGradient mode) {
    Variants& v = variants[unit];
    // Units with the same tape share their blocks.
    for (std::size_t u = 0; u <= unit; ++u) {
      Variants& other = variants[u];
      if (other.tape != v.tape || other.checkpoint != v.checkpoint || other.input_gradient != v.input_gradient) continue;
      auto it = other.blocks.find(mode);
      if (it == other.blocks.end()) {
        EmitOptions options;
        options.checkpoint = v.checkpoint;
        options.gradient = mode;
        options.input_gradient = v.input_gradient;
        options.gradient_element_bytes = data->gradient_element_bytes();
        options.main_gradient_element_bytes = data->main_gradient_element_bytes();
        if (!stage.rank_class.stage_peers_other_node.empty()) options.collective_wait = stage.profile.proxy_stall * context.tensor;
        it = other.blocks.emplace(mode, emit(*v.tape, options, stage.profile, stage.builder)).first;
      }
      return it->second;
    }
    return v.blocks.begin()->second;  // not reached: u == unit matches itself
  }

  std::uint32_t slots(std::size_t unit) { return std::max(blocks(unit, data->gradient_mode(true)).slots, blocks(unit, data->gradient_mode(false)).slots); }

  std::uint32_t boundary(std::map<std::pair<int, int>, std::uint32_t>& all, int micro_batch, int chunk) {
    auto [it, fresh] = all.try_emplace({micro_batch, chunk}, 0);
    if (fresh) it->second = stage.frames.acquire(kBoundarySlots);
    return it->second;
  }

  plan::Call unit_call(std::size_t unit, int chunk, int micro_batch) {
    plan::Call call;
    call.micro_batch = micro_batch;
    call.layer = static_cast<std::int16_t>(stage.units[unit].layer);
    const Chunk& c = chunks[static_cast<std::size_t>(chunk)];
    auto frame_of = [&](std::size_t u) {
      auto [it, fresh] = frames.try_emplace({micro_batch, u}, 0);
      if (fresh) it->second = stage.frames.acquire(slots(u));
      return it->second;
    };
    call.frames[static_cast<std::size_t>(Frame::own)] = frame_of(unit);
    if (unit > c.first) call.frames[static_cast<std::size_t>(Frame::below)] = frame_of(unit - 1);
    else if (c.neighbours.previous >= 0) call.frames[static_cast<std::size_t>(Frame::below)] = boundary(incoming, micro_batch, chunk);
    if (unit + 1 < c.last) call.frames[static_cast<std::size_t>(Frame::above)] = frame_of(unit + 1);
    else if (c.neighbours.next >= 0) call.frames[static_cast<std::size_t>(Frame::above)] = boundary(outgoing, micro_batch, chunk);
    call.frames[static_cast<std::size_t>(Frame::unit)] = stage.units[unit].frame;
    return call;
  }

  static bool sends(ActionKind k) { return k == ActionKind::send_forward || k == ActionKind::send_backward; }
  static bool activation(ActionKind k) { return k == ActionKind::send_forward || k == ActionKind::recv_forward; }
  /// Activations enter below a chunk and leave above it, gradients the other way round.
  static bool enters(ActionKind k) { return sends(k) != activation(k); }

  std::uint32_t boundary_of(const Action& a) { return boundary(enters(a.kind) ? incoming : outgoing, a.micro_batch, a.chunk); }

  void issue(const Action& a) {
    const Chunk& c = chunks[static_cast<std::size_t>(a.chunk)];
    const int peer = enters(a.kind) ? c.neighbours.previous : c.neighbours.next;
    if (peer < 0) return;
    const bool forward = activation(a.kind), sending = sends(a.kind);
    const Stream stream = forward ? (sending ? Stream::send_forward : Stream::recv_forward) : (sending ? Stream::send_backward : Stream::recv_backward);
    const std::int64_t bytes = enters(a.kind) ? c.bytes_in : c.bytes_out;
    const std::string key = std::string(name_of(a.kind)) + " " + std::to_string(peer) + " " + std::to_string(bytes);
    auto it = message_blocks.find(key);
    if (it == message_blocks.end()) {
      plan::BlockWriter w(key);
      const std::uint32_t spec = stage.builder.message({static_cast<std::uint16_t>(peer), static_cast<std::uint8_t>(forward ? 0 : 1), Bytes{bytes}});
      const std::uint32_t slot = forward ? kOutputSlot : kInputGradientSlot;
      if (sending) {
        w.send(spec, stream, plan::kAfterCompute, stage.profile.collective_host);
        w.free(slot, Frame::below);  // what was sent is let go: the output's storage, or the input's gradient
      } else {
        w.alloc(slot, bytes, plan::Category::activation);
        w.recv(spec, stream, plan::kAfterCompute, stage.profile.collective_host);
      }
      w.record(stream, forward ? kForwardEvent : kBackwardEvent);
      it = message_blocks.emplace(key, stage.builder.add_block(w.take())).first;
    }
    plan::Call call{.block = it->second, .phase = Phase::communication, .micro_batch = a.micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = boundary_of(a);
    if (sending) call.frames[static_cast<std::size_t>(Frame::below)] = frames.at({a.micro_batch, forward ? c.last - 1 : c.first});
    stage.append(call);
    if (a.kind == ActionKind::send_backward) {  // the micro-batch is through this chunk
      release_frame(a.micro_batch, c.first);
      release_boundary(incoming, a.micro_batch, a.chunk);
    }
  }

  void wait(ActionKind kind, std::uint32_t frame, int micro_batch) {
    const std::string key = activation(kind) ? "wait for activation message" : "wait for gradient message";
    auto it = message_blocks.find(key);
    if (it == message_blocks.end()) {
      plan::BlockWriter w(key);
      w.wait(Stream::compute, activation(kind) ? kForwardEvent : kBackwardEvent);
      it = message_blocks.emplace(key, stage.builder.add_block(w.take())).first;
    }
    plan::Call call{.block = it->second, .phase = Phase::communication, .micro_batch = micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = frame;
    stage.append(call);
  }

  void release_frame(int micro_batch, std::size_t unit) {
    const auto it = frames.find({micro_batch, unit});
    if (it == frames.end()) return;
    stage.frames.release(it->second, slots(unit));
    frames.erase(it);
  }
  void release_boundary(std::map<std::pair<int, int>, std::uint32_t>& all, int micro_batch, int chunk) {
    const auto it = all.find({micro_batch, chunk});
    if (it == all.end()) return;
    stage.frames.release(it->second, kBoundarySlots);
    all.erase(it);
  }

  std::map<std::string, std::uint32_t> message_blocks;
};

StageWriter::StageWriter(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, plan::RankClass& rank_class,
                         GroupSizes sizes, std::vector<ChunkContents> chunks, std::vector<ChunkNeighbours> neighbours)
    : impl_(std::make_unique<Impl>(model, strategy, profile, builder, rank_class, sizes)) {
  Impl& s = *impl_;
  s.micro_batches = strategy.micro_batches();
  const bool has_embedding = std::any_of(chunks.begin(), chunks.end(), [](const ChunkContents& c) { return c.embedding; });
  const bool has_head = std::any_of(chunks.begin(), chunks.end(), [](const ChunkContents& c) { return c.head; });
  const bool tied_here = model.tied_embeddings && has_embedding && has_head;
  s.stage.persistent = s.stage.frames.acquire(Stage::kPersistentSlots);

  std::vector<std::pair<std::pair<model::Layer, std::string>, const Tape*>> layer_kinds;
  // Gradients flow down to the first trained weight; further only where a stage below, or the framework, asks for them.
  const bool asked = profile.input_require_gradients && strategy.memory.recompute != Recompute::none;
  bool wanted_below = false;
  auto add_unit = [&](const Tape* tape, int layer, bool checkpoint) {
    Unit unit{.tape = tape, .layer = layer};
    unit.frame = s.stage.frames.acquire(static_cast<std::uint32_t>(tape->weights.size()) + kUnitExtraSlots);
    s.stage.units.push_back(unit);
    s.variants.push_back({.tape = tape, .checkpoint = checkpoint, .input_gradient = wanted_below});
    wanted_below = wanted_below || unit.trainable() || asked;
  };
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Impl::Chunk chunk{.first = s.stage.units.size(), .neighbours = neighbours[c]};
    wanted_below = neighbours[c].previous >= 0;  // received activations require gradients
    if (chunks[c].embedding) {
      s.context.layer = -1;
      s.tapes.push_back(embedding_tape(s.context, tied_here));
      add_unit(&s.tapes.back(), -1, false);
    }
    for (int layer : chunks[c].layers) {
      const std::pair kind(model.layers[static_cast<std::size_t>(layer)], tuning_signature(strategy.tuning, layer));
      auto it = std::find_if(layer_kinds.begin(), layer_kinds.end(), [&](const auto& k) { return k.first == kind; });
      if (it == layer_kinds.end()) {
        s.context.layer = layer;
        s.tapes.push_back(layer_tape(s.context, kind.first));
        layer_kinds.emplace_back(kind, &s.tapes.back());
        it = std::prev(layer_kinds.end());
      }
      const bool checkpoint = strategy.memory.recompute == Recompute::full && layer % strategy.memory.recompute_every == 0;
      add_unit(it->second, layer, checkpoint);
    }
    if (chunks[c].head) {
      s.context.layer = -1;
      s.tapes.push_back(chunks[c].loss ? head_tape(s.context, tied_here) : output_tape(s.context, tied_here));
      add_unit(&s.tapes.back(), -1, false);
    } else if (chunks[c].loss) {
      s.context.layer = -1;
      s.tapes.push_back(loss_tape(s.context));
      add_unit(&s.tapes.back(), -1, false);
    }
    const std::int64_t stream = s.context.stream_tokens() * model.hidden * s.context.element();
    chunk.bytes_in = chunks[c].loss && !chunks[c].head ? logits_bytes(s.context) : stream;
    chunk.bytes_out = chunks[c].head && !chunks[c].loss ? logits_bytes(s.context) : stream;
    chunk.last = s.stage.units.size();
    s.chunks.push_back(chunk);
  }
  s.data = make_data_parallel(s.stage);
}

StageWriter::~StageWriter() = default;

void StageWriter::setup() {
  Stage& stage = impl_->stage;
  stage.in_setup = true;
  impl_->data->setup();
  // Made at the first matrix product and never freed (PyTorch, CublasHandlePool).
  stage.call("allocate workspaces", Phase::setup, nullptr, [&](plan::BlockWriter& w) {
    for (Bytes workspace : stage.profile.workspaces) w.alloc(stage.persistent_slot(), workspace.value, plan::Category::workspace);
  });
  stage.in_setup = false;
}

void StageWriter::begin_step() {
  Impl& s = *impl_;
  s.stage.call("step begins", Phase::input, nullptr, [&](plan::BlockWriter& w) {
    w.host(s.stage.profile.step_host);
    const std::int64_t ids = s.context.tokens * 8 * 2;
    w.kernel(s.stage.builder.kernel({.kind = model::KernelKind::elementwise, .bytes_read = ids, .bytes_written = ids, .name = "input copy"}), s.stage.profile.kernel_host);
  });
  for (auto& chunk : s.chunks) chunk.done_backward = 0;
  s.data->begin_step();
}

void StageWriter::forward(int chunk, int micro_batch) {
  Impl& s = *impl_;
  const Impl::Chunk& c = s.chunks[static_cast<std::size_t>(chunk)];
  if (c.neighbours.previous >= 0) s.wait(ActionKind::recv_forward, s.boundary(s.incoming, micro_batch, chunk), micro_batch);
  for (std::size_t u = c.first; u < c.last; ++u) {
    s.data->before_forward(u, micro_batch);
    plan::Call call = s.unit_call(u, chunk, micro_batch);
    call.block = s.blocks(u, s.data->gradient_mode(true)).forward;
    call.phase = Phase::forward;
    s.stage.append(call);
    s.data->after_forward(u, micro_batch);
  }
}

void StageWriter::backward(int chunk, int micro_batch) {
  Impl& s = *impl_;
  Impl::Chunk& c = s.chunks[static_cast<std::size_t>(chunk)];
  if (c.neighbours.next >= 0) s.wait(ActionKind::recv_backward, s.boundary(s.outgoing, micro_batch, chunk), micro_batch);
  const bool first = c.done_backward == 0, last = c.done_backward + 1 == s.micro_batches;
  for (std::size_t u = c.last; u-- > c.first;) {
    s.data->before_backward(u, micro_batch);
    plan::Call call = s.unit_call(u, chunk, micro_batch);
    call.block = s.blocks(u, s.data->gradient_mode(first)).backward;
    call.phase = Phase::backward;
    s.stage.append(call);
    // The unit above handed over its input gradient; nothing of it is left.
    if (u + 1 < c.last) s.release_frame(micro_batch, u + 1);
    else s.release_boundary(s.outgoing, micro_batch, chunk);
    s.data->after_backward(u, micro_batch, first, last);
  }
  if (c.neighbours.previous < 0) s.release_frame(micro_batch, c.first);
  ++c.done_backward;
}

void StageWriter::message(const Action& action) { impl_->issue(action); }

void StageWriter::wait_for(const Action& action) {
  const Impl::Chunk& c = impl_->chunks[static_cast<std::size_t>(action.chunk)];
  if ((Impl::enters(action.kind) ? c.neighbours.previous : c.neighbours.next) < 0) return;
  auto& map = Impl::enters(action.kind) ? impl_->incoming : impl_->outgoing;
  const auto it = map.find({action.micro_batch, action.chunk});
  // A gradient that was sent has taken its frame with it; the stream's order keeps later messages behind it.
  if (it != map.end()) impl_->wait(action.kind, it->second, action.micro_batch);
}

void StageWriter::synchronise() {
  impl_->stage.call("synchronise after messages", Phase::communication, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}

void StageWriter::end_step() {
  Impl& s = *impl_;
  const Degrees& d = s.stage.strategy.parallelism.degrees;
  // Gradients of weights that every tensor rank holds (norms, routers, latent projections) are partial sums over the tensor group (Megatron finalize_model_grads).
  if (s.context.sequence_parallel) {
    std::int64_t elements = 0;
    for (const Unit& u : s.stage.units)
      for (const Weight& w : u.tape->weights)
        if (w.replicated_over_tensor && w.trainable) elements += w.elements;
    if (elements > 0) s.stage.call("sum norm gradients over the tensor group", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
      w.collective(s.stage.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{elements * s.data->main_gradient_element_bytes()}, "norm gradients"}), Stream::tensor,
                   plan::kAfterCompute | plan::kComputeWaits, s.stage.profile.collective_host);
    });
  }
  // Tied embeddings on different stages: both copies sum their gradients.
  if (s.model.tied_embeddings && d.pipeline > 1 && s.stage.sizes.data >= 1) {
    // Where the head has a stage before the last, the last takes its part: groups are laid out over first and last stages.
    const bool outer = std::any_of(s.chunks.begin(), s.chunks.end(), [](const Impl::Chunk& c) { return c.neighbours.previous < 0 || c.neighbours.next < 0; });
    const bool frozen = std::any_of(s.stage.units.begin(), s.stage.units.end(), [](const Unit& u) {
      return std::any_of(u.tape->weights.begin(), u.tape->weights.end(), [](const Weight& w) { return !w.trainable && (w.name == "word_embeddings.weight" || w.name == "lm_head.weight"); });
    });
    const bool ends = outer && !frozen;
    if (ends) {
      const std::int64_t elements = padded_vocabulary(s.context) / d.tensor * s.model.hidden;
      s.stage.call("sum tied embedding gradients", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
        w.collective(s.stage.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::embedding, Bytes{elements * s.data->main_gradient_element_bytes()}, "tied embedding gradients"}),
                     Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits, s.stage.profile.collective_host);
      });
    }
  }
  s.data->end_step();
}

void StageWriter::finish() {
  EXPECTS(impl_->frames.empty(), "a micro-batch has not gone through its backward");
  impl_->stage.rank_class.program.slots = impl_->stage.frames.total();
}

}  // namespace rehearse::strategies
