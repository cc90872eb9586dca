#include "strategies/stage_writer.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "sim/core/contract.h"
#include "strategies/block_segments.h"
#include "strategies/memory/activation_offload.h"
#include "strategies/memory/device_map.h"
#include "strategies/stage_frames.h"

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
  bool in_parallel = false;   // launched by threads that take turns (torch.nn.DataParallel)
  bool retains = false, above_retains = false;   // its ends, or those of the layer above, stay until backward is over
  std::optional<bool> outlives;                   // its blocks leave something behind that goes with the graph
  std::map<std::pair<WeightGradient, SplitBackward>, TapeBlocks> blocks;
};

/// What a call of a unit's blocks makes.
enum class Pass : std::uint8_t { forward, backward, input_gradients, weight_gradients };

}  // namespace

struct StageWriter::Impl {
  Impl(const model::ModelDescription& m, const Strategy& s, const FrameworkProfile& p, plan::PlanBuilder& b, plan::RankClass& c, GroupSizes sizes)
      : model(m), context(make_context(m, s, p, b)), stage(s, p, b, c, sizes, m.layer_count()), taking_turns(p), inputs(stage), weights_on_host(stage), frames(stage.frames), incoming(stage.frames), outgoing(stage.frames) {
    // Threads of one process hold Python's lock in turn; backward is launched by autograd's threads, which need no lock.
    taking_turns.kernel_host *= sizes.data;
    taking_turns.layer_host *= sizes.data;
  }

  const model::ModelDescription& model;
  LowerContext context;
  Stage stage;
  FrameworkProfile taking_turns;    // launches of one of several threads
  ActivationOffload inputs;
  DeviceMapWriter weights_on_host;
  std::deque<Tape> tapes;           // owns; stable addresses
  std::vector<Variants> variants;   // by unit
  struct Chunk {
    std::size_t first = 0, last = 0;   // units [first, last)
    ChunkNeighbours neighbours;
    std::int64_t bytes_in = 0, bytes_out = 0;   // of the messages to its neighbours
    std::int64_t micro_batches = 1;
    bool splits = false, overlaps = false, reduces = false;
    bool has_head = false;
    std::int64_t input_gradients = 0, weight_gradients = 0;   // backward passes so far, of either half
  };
  std::vector<Chunk> chunks;
  std::unique_ptr<DataParallelWriter> data;
  bool tied_here = false;
  SharedFrames frames;                 // of units
  /// A micro-batch whose weight gradients of the output layer are still to come.
  struct Deferred {
    std::size_t unit = 0;
    int chunk = 0, micro_batch = 0;
  };
  std::vector<Deferred> deferred;
  int held_graph = -1;                 // micro-batch whose graph a variable of the training loop holds; -1: of the step before, or none
  std::vector<std::uint32_t> last_graph;   // frames of the step before's, by unit
  SharedFrames incoming, outgoing;     // of the chunks' boundaries
  std::map<std::tuple<ActionKind, int, Stream, std::int64_t>, std::uint32_t> message_blocks;   // kind, peer, stream, bytes
  std::optional<std::uint32_t> waits_for_activation, waits_for_gradient;                        // blocks
  std::map<std::uint32_t, std::vector<std::uint32_t>> segments;   // of blocks that overlap

  static constexpr std::uint32_t kBoundarySlots = 4;   // activation, gradient, events of either
  static constexpr std::uint32_t kForwardEvent = 2, kBackwardEvent = 3;

  /// The first GPU of one process has the loss of all replicas' samples.
  LowerContext whole_batch() const {
    LowerContext whole = context;
    whole.batch *= stage.sizes.data;
    whole.tokens *= stage.sizes.data;
    return whole;
  }
  Chunk& chunk(int c) { return chunks[static_cast<std::size_t>(c)]; }
  /// Who takes the gradients away after each micro-batch cannot take some of them early: only autograd's own split will do.
  SplitBackward split() const {
    const bool taken_each_time = data->gradient_mode(false) == WeightGradient::first;
    return stage.profile.retains_graph || taken_each_time ? SplitBackward::retained_graph : SplitBackward::stored_operands;
  }
  /// torch.distributed.pipelining leaves the first stage, whose input needs no gradient, wholly to backward_weight
  /// (stage.py, backward_one_chunk).
  bool splits_nothing(int of_chunk) const { return split() == SplitBackward::retained_graph && chunks[static_cast<std::size_t>(of_chunk)].neighbours.begins(); }

  /// Megatron's --defer-embedding-wgrad-compute: the first so many micro-batches of a step.
  bool may_defer(std::size_t unit, const Chunk& c) const { return c.has_head && unit + 1 == c.last && stage.strategy.pipeline.deferred_head_gradients.has_value() && !evaluates(); }
  bool defers(std::size_t unit, const Chunk& c, Pass part) const {
    if (part != Pass::backward || !may_defer(unit, c)) return false;
    const std::int64_t limit = stage.strategy.pipeline.deferred_head_gradients.value_or(0);
    return limit == 0 || static_cast<std::int64_t>(deferred.size()) < limit;
  }
  /// Makes them, one after the other (Megatron utils.py, drain_embedding_wgrad_compute).
  void drain() {
    for (std::size_t i = 0; i < deferred.size(); ++i) {
      const auto [unit, of_chunk, micro_batch] = deferred[i];
      plan::Call call{.block = block_of(unit, chunk(of_chunk), Pass::weight_gradients), .phase = Phase::weight_gradient, .micro_batch = micro_batch};
      // What it reads lies in the unit's own frame; the layer below is through with its backward.
      call.frames[static_cast<std::size_t>(Frame::own)] = frame_of(unit, of_chunk, micro_batch);
      call.frames[static_cast<std::size_t>(Frame::unit)] = stage.units[unit].frame;
      stage.append(call);
      release(unit, of_chunk, micro_batch);
      data->after_backward(unit, micro_batch, i == 0 && chunk(of_chunk).micro_batches == static_cast<std::int64_t>(deferred.size()), i + 1 == deferred.size());
    }
    deferred.clear();
  }

  const TapeBlocks& blocks(std::size_t unit, WeightGradient mode, SplitBackward how = SplitBackward::none) {
    Variants& v = variants[unit];
    // Units with the same tape share their blocks.
    for (std::size_t u = 0; u <= unit; ++u) {
      Variants& other = variants[u];
      if (other.tape != v.tape || other.checkpoint != v.checkpoint || other.input_gradient != v.input_gradient || other.in_parallel != v.in_parallel ||
          other.retains != v.retains || other.above_retains != v.above_retains)
        continue;
      auto it = other.blocks.find({mode, how});
      if (it == other.blocks.end()) {
        EmitOptions options;
        options.checkpoint = v.checkpoint;
        options.recorded = !evaluates();
        options.gradient = mode;
        options.input_gradient = v.input_gradient;
        options.gradient_element_bytes = data->gradient_element_bytes();
        options.main_gradient_element_bytes = data->main_gradient_element_bytes();
        if (!stage.rank_class.stage_peers_other_node.empty()) options.collective_wait = stage.profile.proxy_stall * context.tensor;
        options.split = how;
        options.retains_ends = v.retains;
        options.above_retains = v.above_retains;
        if (stage.strategy.data_parallel.kind == DataParallelKind::zero3) options.hooked_submodules = v.tape->modules();
        it = other.blocks.emplace(std::pair{mode, how}, emit(*v.tape, options, v.in_parallel ? taking_turns : stage.profile, stage.builder)).first;
      }
      return it->second;
    }
    return v.blocks.begin()->second;  // not reached: u == unit matches itself
  }

  bool keeps_sent() const { return stage.profile.keeps_sent_output && !evaluates(); }
  bool evaluates() const { return stage.strategy.training.phase == StepKind::evaluation; }
  std::uint32_t slots(std::size_t unit, const Chunk& c) { return tape_slots(unit, c) + (inputs.active() ? ActivationOffload::kOffloadSlots : 0); }
  std::uint32_t tape_slots(std::size_t unit, const Chunk& c) {
    std::uint32_t most = 0;
    for (const bool first : {true, false})
      for (const bool in_two : {false, true}) {
        if (in_two && !c.splits && !may_defer(unit, c)) continue;
        const TapeBlocks& b = blocks(unit, data->gradient_mode(first), in_two ? split() : SplitBackward::none);
        most = std::max(most, b.slots);
        if (c.overlaps && !in_two)
          for (std::uint32_t id : {b.forward, b.backward}) most = std::max(most, slots_with_cuts(stage.builder.block(id)));
      }
    return most;
  }

  /// A unit's frame is needed by its own backward and by whoever takes its input gradient.
  std::uint32_t frame_of(std::size_t unit, int of_chunk, int micro_batch) {
    const Chunk& c = chunk(of_chunk);
    return frames.of(micro_batch, unit, [&] { return slots(unit, c); }, (unit > c.first || !c.neighbours.begins() ? 2 : 1) + (outlives(unit) ? 1 : 0) + (variants[unit].above_retains ? 1 : 0));
  }
  /// The lower boundary is needed by backward and by the gradient's message, the upper one by backward.
  std::uint32_t lower_boundary(int of_chunk, int micro_batch) { return incoming.of(micro_batch, static_cast<std::size_t>(of_chunk), [] { return kBoundarySlots; }, 2); }
  std::uint32_t upper_boundary(int of_chunk, int micro_batch) { return outgoing.of(micro_batch, static_cast<std::size_t>(of_chunk), [] { return kBoundarySlots; }, 1); }

  plan::Call unit_call(std::size_t unit, int of_chunk, int micro_batch, Pass part) {
    plan::Call call;
    call.micro_batch = micro_batch;
    call.layer = static_cast<std::int16_t>(stage.units[unit].layer);
    call.phase = phase_of(part);
    const Chunk& c = chunk(of_chunk);
    auto frame = [&](Frame f) -> std::uint32_t& { return call.frames[static_cast<std::size_t>(f)]; };
    frame(Frame::own) = frame_of(unit, of_chunk, micro_batch);
    if (unit > c.first) frame(Frame::below) = frame_of(unit - 1, of_chunk, micro_batch);
    else if (c.neighbours.previous_chunk >= 0) frame(Frame::below) = frame_of(chunk(c.neighbours.previous_chunk).last - 1, c.neighbours.previous_chunk, micro_batch);
    else if (c.neighbours.previous >= 0) frame(Frame::below) = lower_boundary(of_chunk, micro_batch);
    if (unit + 1 < c.last) frame(Frame::above) = frame_of(unit + 1, of_chunk, micro_batch);
    else if (c.neighbours.next_chunk >= 0) frame(Frame::above) = frame_of(chunk(c.neighbours.next_chunk).first, c.neighbours.next_chunk, micro_batch);
    else if (c.neighbours.next >= 0) frame(Frame::above) = upper_boundary(of_chunk, micro_batch);
    frame(Frame::unit) = stage.units[unit].frame;
    return call;
  }

  /// A recomputed layer's input, if it waits for backward somewhere else.
  std::optional<StoredInput> stored_input(std::size_t unit, int of_chunk, int micro_batch, Pass part) {
    const Variants& v = variants[unit];
    if (!inputs.active() || evaluates() || !v.checkpoint || v.tape->input == kNoTensor || (!v.input_gradient && !stage.units[unit].trainable())) return std::nullopt;
    return StoredInput{unit_call(unit, of_chunk, micro_batch, part), tape_slots(unit, chunk(of_chunk)), context.stream_tokens() * model.hidden * context.element()};
  }

  /// A unit's gradients are all made: its frame, and what it took from above, may go.
  void release(std::size_t unit, int of_chunk, int micro_batch) {
    const Chunk& c = chunk(of_chunk);
    frames.drop(micro_batch, unit);
    if (unit + 1 < c.last) frames.drop(micro_batch, unit + 1);
    else if (c.neighbours.next_chunk >= 0) frames.drop(micro_batch, chunk(c.neighbours.next_chunk).first);
    else if (c.neighbours.next >= 0) outgoing.drop(micro_batch, static_cast<std::size_t>(of_chunk));
    if (unit == c.first && c.neighbours.previous >= 0) incoming.drop(micro_batch, static_cast<std::size_t>(of_chunk));
  }

  // What outlives backward --------------------------------------------------------------------------------------------

  /// PyTorch's FSDP1 watches the inputs of units that train nothing, to know when their backward is over. Where a checkpoint enters
  /// such a unit anew within backward, its hook holds the leaf that the input becomes there, and with it the input and its
  /// gradient, until all of backward is over.
  /// Source: torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook (torch 2.1 to 2.13); torch.autograd.graph,
  /// register_multi_grad_hook: the hook's closure holds the leaf's gradient accumulator. Seen: tests/oracles/torch_fsdp_frozen.py.
  bool retains(std::size_t u) const {
    const Variants& v = variants[u];
    const TuningKind tuning = stage.strategy.tuning.kind;
    const bool wrapped = stage.profile.wraps_adapters && (tuning == TuningKind::lora || tuning == TuningKind::qlora);
    const bool trains = std::any_of(v.tape->weights.begin(), v.tape->weights.end(), [&](const Weight& w) { return w.trainable && !(w.adapter && wrapped); });
    return stage.profile.reentrant_checkpoint && v.checkpoint && v.input_gradient && !trains && stage.strategy.data_parallel.kind == DataParallelKind::fsdp1 && stage.sizes.shard > 1 &&
           u > 0 && stage.units[u - 1].chunk == stage.units[u].chunk && !evaluates();
  }
  /// Whether a unit's blocks leave something behind that goes with the graph.
  bool outlives(std::size_t u) {
    Variants& v = variants[u];
    if (!v.outlives) v.outlives = runs_backward(u) && blocks(u, data->gradient_mode(true)).drop_graph != plan::kNoFrame;
    return *v.outlives;
  }
  /// The training loop's variable holds a graph until the next loss is there.
  bool holds_last_graph() const { return stage.profile.holds_last_graph && chunks.size() == 1 && stage.sizes.pipeline == 1 && !evaluates(); }
  plan::Call graph_call(std::size_t u, std::uint32_t block, Phase phase, int micro_batch, std::uint32_t own) const {
    plan::Call call{.block = block, .phase = phase, .layer = static_cast<std::int16_t>(stage.units[u].layer), .micro_batch = micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = own;
    return call;
  }
  void drop_graph(int of_chunk, int micro_batch) {
    const Chunk& c = chunk(of_chunk);
    for (std::size_t u = c.last; u-- > c.first;) {
      if (!outlives(u)) continue;
      plan::Call call = graph_call(u, blocks(u, data->gradient_mode(true)).drop_graph, Phase::backward, micro_batch, frames.at(micro_batch, u));
      if (variants[u].retains) call.frames[static_cast<std::size_t>(Frame::below)] = frames.at(micro_batch, u - 1);
      stage.append(call);
      frames.drop(micro_batch, u);
      if (variants[u].retains) frames.drop(micro_batch, u - 1);
    }
  }
  /// A step begins with the graph of the last micro-batch of the step before, which lies in frames of its own.
  void make_last_graph() {
    if (!holds_last_graph()) return;
    last_graph.assign(stage.units.size(), plan::kNoFrame);
    for (std::size_t u = 0; u < stage.units.size(); ++u) {
      if (!outlives(u)) continue;
      last_graph[u] = stage.frames.acquire(slots(u, chunks.front()));
      stage.append(graph_call(u, blocks(u, data->gradient_mode(true)).last_graph, Phase::setup, -1, last_graph[u]));
    }
  }
  /// The next loss is there.
  void drop_held_graph(int micro_batch) {
    if (held_graph >= 0) drop_graph(0, held_graph);
    else
      for (std::size_t u = stage.units.size(); u-- > 0;)
        if (outlives(u)) stage.append(graph_call(u, blocks(u, data->gradient_mode(true)).drop_graph, Phase::forward, micro_batch, last_graph[u]));
    held_graph = -1;
  }
  void keep_last_graph() {
    if (held_graph < 0) return;
    for (std::size_t u = 0; u < stage.units.size(); ++u) {
      if (!outlives(u)) continue;
      plan::Call call = graph_call(u, blocks(u, data->gradient_mode(true)).keep_graph, Phase::optimizer, -1, last_graph[u]);
      call.frames[static_cast<std::size_t>(Frame::below)] = frames.at(held_graph, u);
      stage.append(call);
      frames.drop(held_graph, u);
    }
    held_graph = -1;
  }

  // Messages ---------------------------------------------------------------------------------------------------------

  static bool sends(ActionKind k) { return k == ActionKind::send_forward || k == ActionKind::send_backward; }
  static bool activation(ActionKind k) { return k == ActionKind::send_forward || k == ActionKind::recv_forward; }
  /// Activations enter below a chunk and leave above it, gradients the other way round.
  static bool enters(ActionKind k) { return sends(k) != activation(k); }

  /// Messages to one side are a queue, and so are those from it: what would wait for a rank on the other side must not
  /// stand before them.
  static Stream stream_of(ActionKind kind, const ChunkNeighbours& n) {
    const bool straight = enters(kind) ? n.previous_is_below : n.next_is_above;
    if (sends(kind)) return activation(kind) == straight ? Stream::send_forward : Stream::send_backward;
    return activation(kind) == straight ? Stream::recv_forward : Stream::recv_backward;
  }

  void issue(const Action& a) {
    const Chunk& c = chunk(a.chunk);
    const int peer = enters(a.kind) ? c.neighbours.previous : c.neighbours.next;
    if (peer < 0) return;
    if (c.neighbours.gathered) return exchange(a);
    const bool forward = activation(a.kind), sending = sends(a.kind);
    const Stream stream = stream_of(a.kind, c.neighbours);
    const std::int64_t bytes = enters(a.kind) ? c.bytes_in : c.bytes_out;
    const std::tuple key(a.kind, peer, stream, bytes);
    auto it = message_blocks.find(key);
    if (it == message_blocks.end()) {
      plan::BlockWriter w(std::string(name_of(a.kind)) + " " + std::to_string(peer));
      const std::uint32_t spec = stage.builder.message({static_cast<std::uint16_t>(peer), static_cast<std::uint8_t>(forward ? 0 : 1), Bytes{bytes}});
      const std::uint32_t slot = forward ? kOutputSlot : kInputGradientSlot;
      if (sending) {
        w.send(spec, stream, plan::kAfterCompute, stage.profile.collective_host);
        // What was sent is let go: the input's gradient, and the output's storage where the framework knows that nobody reads it.
        if (!forward || !keeps_sent()) w.free(slot, Frame::below);
      } else {
        w.alloc(slot, bytes, plan::Category::activation);
        w.recv(spec, stream, plan::kAfterCompute, stage.profile.collective_host);
      }
      w.record(stream, forward ? kForwardEvent : kBackwardEvent);
      it = message_blocks.emplace(key, stage.builder.add_block(w.take())).first;
    }
    plan::Call call{.block = it->second, .phase = Phase::communication, .micro_batch = a.micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = enters(a.kind) ? lower_boundary(a.chunk, a.micro_batch) : upper_boundary(a.chunk, a.micro_batch);
    if (sending) call.frames[static_cast<std::size_t>(Frame::below)] = frames.at(a.micro_batch, forward ? c.last - 1 : c.first);
    stage.append(call);
    if (a.kind == ActionKind::send_backward) {  // the micro-batch is through this chunk
      frames.drop(a.micro_batch, c.first);
      incoming.drop(a.micro_batch, static_cast<std::size_t>(a.chunk));
    }
  }

  /// torch.nn.DataParallel's gather and scatter, as messages to and from the chunk that has the loss: outputs are copied side
  /// by side on the first GPU, parts of their gradient go home. Its own part stays where it is, and with it the whole tensor.
  void exchange(const Action& a) {
    const Chunk& c = chunk(a.chunk);
    const bool forward = activation(a.kind), sending = sends(a.kind), first_gpu = stage.rank_class.representative == 0;
    const std::int64_t bytes = enters(a.kind) ? c.bytes_in : c.bytes_out, all = enters(a.kind) ? bytes : bytes * stage.sizes.data;
    const std::uint32_t slot = forward ? kOutputSlot : kInputGradientSlot;
    const std::uint32_t block = stage.block(std::string(forward ? "outputs " : "output gradients ") + (sending ? "leave " : "come ") + std::to_string(all), [&](plan::BlockWriter& w) {
      if (!sending && (forward || !first_gpu)) w.alloc(slot, bytes, plan::Category::activation);
      if (forward ? sending : first_gpu == sending)
        w.collective(stage.builder.collective({forward ? CollectiveKind::gather : CollectiveKind::scatter, plan::GroupAxis::data, Bytes{all}, forward ? "outputs" : "output gradients"}), Stream::data_gather,
                     plan::kAfterCompute | plan::kComputeWaits, stage.profile.collective_host);
      if (sending && forward) w.free(slot, Frame::below);
      if (!sending && !forward && first_gpu) w.move(slot, slot, Frame::below);
    });
    plan::Call call{.block = block, .phase = Phase::communication, .micro_batch = a.micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = enters(a.kind) ? lower_boundary(a.chunk, a.micro_batch) : upper_boundary(a.chunk, a.micro_batch);
    if (sending) call.frames[static_cast<std::size_t>(Frame::below)] = frames.at(a.micro_batch, forward ? c.last - 1 : c.first);
    else if (!forward && first_gpu) call.frames[static_cast<std::size_t>(Frame::below)] = frames.at(a.micro_batch, chunk(a.chunk + 1).first);
    if (block != plan::kNoFrame) stage.append(call);
    if (a.kind == ActionKind::send_backward) {
      frames.drop(a.micro_batch, c.first);
      incoming.drop(a.micro_batch, static_cast<std::size_t>(a.chunk));
    }
  }

  void wait(ActionKind kind, std::uint32_t frame, int micro_batch) {
    std::optional<std::uint32_t>& block = activation(kind) ? waits_for_activation : waits_for_gradient;
    if (!block) {
      plan::BlockWriter w(activation(kind) ? "wait for activation message" : "wait for gradient message");
      w.wait(Stream::compute, activation(kind) ? kForwardEvent : kBackwardEvent);
      block = stage.builder.add_block(w.take());
    }
    plan::Call call{.block = *block, .phase = Phase::communication, .micro_batch = micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = frame;
    stage.append(call);
  }

  void wait_for_input(int of_chunk, int micro_batch) {
    if (chunk(of_chunk).neighbours.previous >= 0 && !chunk(of_chunk).neighbours.gathered) wait(ActionKind::recv_forward, lower_boundary(of_chunk, micro_batch), micro_batch);
  }
  void wait_for_gradient(int of_chunk, int micro_batch) {
    if (chunk(of_chunk).neighbours.next >= 0 && !chunk(of_chunk).neighbours.gathered) wait(ActionKind::recv_backward, upper_boundary(of_chunk, micro_batch), micro_batch);
  }

  // Passes -----------------------------------------------------------------------------------------------------------

  static Phase phase_of(Pass part) { return part == Pass::forward ? Phase::forward : part == Pass::weight_gradients ? Phase::weight_gradient : Phase::backward; }
  /// Autograd holds on to weights that backward reads, unless it runs the layer again.
  bool keeps_fetched(std::size_t u) const { return !variants[u].checkpoint && runs_backward(u); }
  bool runs_backward(std::size_t u) const { return !evaluates() && (variants[u].input_gradient || stage.units[u].trainable()); }

  /// Lets go of what a chunk's last unit sent on. One that runs again writes its output anew, to the same place: its first
  /// output goes before (PyTorch holds both while that unit's backward runs).
  void free_sent(std::size_t u, int of_chunk, int micro_batch) {
    const Chunk& c = chunk(of_chunk);
    if (!keeps_sent() || u + 1 != c.last || c.neighbours.next_chunk >= 0 || c.neighbours.next < 0) return;
    plan::Call call{.block = stage.block("free sent output", [](plan::BlockWriter& w) { w.free(kOutputSlot); }), .phase = Phase::backward, .micro_batch = micro_batch};
    call.frames[static_cast<std::size_t>(Frame::own)] = frame_of(u, of_chunk, micro_batch);
    stage.append(call);
  }

  void begin_unit(std::size_t u, int of_chunk, int micro_batch, Pass part) {
    if (variants[u].checkpoint && (part == Pass::backward || part == Pass::input_gradients)) free_sent(u, of_chunk, micro_batch);
    if (part == Pass::forward) data->before_forward(u, micro_batch);
    else if (part != Pass::weight_gradients) data->before_backward(u, micro_batch);
    if (weights_on_host.holds(u) && (part == Pass::forward || (runs_backward(u) && !keeps_fetched(u)))) weights_on_host.fetch(u, phase_of(part), micro_batch);
  }

  std::uint32_t block_of(std::size_t u, const Chunk& c, Pass part) {
    switch (part) {
      case Pass::forward: return blocks(u, data->gradient_mode(true)).forward;
      case Pass::backward: return blocks(u, data->gradient_mode(c.weight_gradients == 0)).backward;
      case Pass::input_gradients: return blocks(u, data->gradient_mode(c.input_gradients == 0), split()).backward;
      case Pass::weight_gradients: break;
    }
    return blocks(u, data->gradient_mode(c.weight_gradients == 0), split()).weights;
  }

  void end_unit(std::size_t u, int of_chunk, int micro_batch, Pass part) {
    const Chunk& c = chunk(of_chunk);
    if (weights_on_host.holds(u) && (part == Pass::forward ? !keeps_fetched(u) : part == Pass::backward && runs_backward(u))) weights_on_host.drop(u, phase_of(part), micro_batch);
    if (part == Pass::forward) data->after_forward(u, micro_batch);
    if (part == Pass::forward && u + 1 == c.last && holds_last_graph() && (held_graph >= 0 || micro_batch == 0)) drop_held_graph(micro_batch);
    if (part == Pass::input_gradients) data->after_input_gradients(u, micro_batch);
    if (part != Pass::backward && part != Pass::weight_gradients) return;
    if (inputs.active() && variants[u].checkpoint) inputs.done();
    if (!variants[u].checkpoint) free_sent(u, of_chunk, micro_batch);
    release(u, of_chunk, micro_batch);
    if (u == c.first) {
      if (holds_last_graph()) held_graph = micro_batch;
      else drop_graph(of_chunk, micro_batch);
    }
    const bool more_to_come = may_defer(u, c) && !deferred.empty();
    data->after_backward(u, micro_batch, c.weight_gradients == 0, c.weight_gradients + 1 == c.micro_batches && !more_to_come);
  }

  void unit(std::size_t u, int of_chunk, int micro_batch, Pass part) {
    if (defers(u, chunk(of_chunk), part)) {
      deferred.push_back({u, of_chunk, micro_batch});
      part = Pass::input_gradients;
    }
    begin_unit(u, of_chunk, micro_batch, part);
    plan::Call call = unit_call(u, of_chunk, micro_batch, part);
    call.block = block_of(u, chunk(of_chunk), part);
    stage.append(call);
    if (part == Pass::forward)
      if (const auto input = stored_input(u, of_chunk, micro_batch, part)) inputs.store(*input);
    end_unit(u, of_chunk, micro_batch, part);
  }

  void count(Chunk& c, Pass part) {
    if (part == Pass::backward || part == Pass::input_gradients) ++c.input_gradients;
    if (part == Pass::forward || part == Pass::input_gradients) return;
    if (++c.weight_gradients == c.micro_batches && !c.reduces) data->end_chunk(c.first, c.last);
  }

  void pass(int of_chunk, int micro_batch, Pass part) {
    Chunk& c = chunk(of_chunk);
    if (part == Pass::forward) wait_for_input(of_chunk, micro_batch);
    else if (part != Pass::weight_gradients) wait_for_gradient(of_chunk, micro_batch);
    if (part == Pass::forward) {
      for (std::size_t u = c.first; u < c.last; ++u) unit(u, of_chunk, micro_batch, part);
    } else {
      inputs.settle();
      std::size_t fetched = c.last;   // units from here on have their inputs on the way
      for (std::size_t u = c.last; u-- > c.first;) {
        // One layer ahead of its use, where copies run beside compute.
        const std::size_t until = inputs.ahead() && u > c.first ? u - 1 : u;
        for (; fetched > until; --fetched)
          if (const auto input = stored_input(fetched - 1, of_chunk, micro_batch, part)) inputs.fetch(*input);
        if (const auto input = stored_input(u, of_chunk, micro_batch, part)) inputs.use(*input);
        unit(u, of_chunk, micro_batch, part);
      }
    }
    count(c, part);
  }

  /// A pass as steps, each up to a place where compute would wait for communication.
  std::vector<std::function<void()>> steps(int of_chunk, int micro_batch, Pass part) {
    std::vector<std::function<void()>> out;
    const Chunk& c = chunk(of_chunk);
    const auto size = static_cast<std::ptrdiff_t>(c.last - c.first);
    for (std::ptrdiff_t i = 0; i < size; ++i) {
      const std::size_t u = part == Pass::forward ? c.first + static_cast<std::size_t>(i) : c.last - 1 - static_cast<std::size_t>(i);
      const std::uint32_t block = block_of(u, c, part);
      auto it = segments.find(block);
      if (it == segments.end()) it = segments.emplace(block, segments_of(stage.builder, block)).first;
      const std::vector<std::uint32_t>& parts = it->second;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        const std::uint32_t id = parts[k];
        const bool opens = k == 0, closes = k + 1 == parts.size();
        out.emplace_back([this, of_chunk, micro_batch, part, u, id, opens, closes] {
          if (opens) begin_unit(u, of_chunk, micro_batch, part);
          plan::Call call = unit_call(u, of_chunk, micro_batch, part);
          call.block = id;
          stage.append(call);
          if (closes) end_unit(u, of_chunk, micro_batch, part);
        });
      }
    }
    return out;
  }
};

StageWriter::StageWriter(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, plan::RankClass& rank_class,
                         GroupSizes sizes, std::vector<ChunkContents> chunks, std::vector<ChunkNeighbours> neighbours)
    : impl_(std::make_unique<Impl>(model, strategy, profile, builder, rank_class, sizes)) {
  Impl& s = *impl_;
  s.context.expert_rank = sizes.expert_rank;
  const bool has_embedding = std::any_of(chunks.begin(), chunks.end(), [](const ChunkContents& c) { return c.embedding; });
  const bool has_head = std::any_of(chunks.begin(), chunks.end(), [](const ChunkContents& c) { return c.head; });
  const bool tied_here = s.tied_here = model.tied_embeddings && has_embedding && has_head;
  s.stage.persistent = s.stage.frames.acquire(Stage::kPersistentSlots);

  std::vector<std::pair<std::pair<model::Layer, std::string>, const Tape*>> layer_kinds;
  // Gradients flow down to the first trained weight; further only where a stage below, or the framework, asks for them.
  const bool asked = profile.input_require_gradients && strategy.memory.recompute != Recompute::none;
  bool wanted_below = false;
  auto add_unit = [&](const Tape* tape, int layer, bool checkpoint) {
    Unit unit{.tape = tape, .layer = layer, .chunk = static_cast<int>(s.chunks.size())};
    unit.frame = s.stage.frames.acquire(static_cast<std::uint32_t>(tape->weights.size()) + kUnitExtraSlots);
    s.stage.units.push_back(unit);
    const bool whole_loss = s.chunks.size() < neighbours.size() && neighbours[s.chunks.size()].gathered && s.chunks.size() > 0;
    s.variants.push_back({.tape = tape, .checkpoint = checkpoint, .input_gradient = wanted_below, .in_parallel = strategy.data_parallel.kind == DataParallelKind::one_process && !whole_loss});
    wanted_below = wanted_below || unit.trainable() || asked;
  };
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Impl::Chunk chunk{.first = s.stage.units.size(), .neighbours = neighbours[c], .micro_batches = chunks[c].micro_batches, .splits = chunks[c].splits, .overlaps = chunks[c].overlaps, .reduces = chunks[c].reduces, .has_head = chunks[c].head};
    wanted_below = !neighbours[c].begins();  // received activations require gradients
    if (chunks[c].embedding) {
      s.context.layer = -1;
      s.tapes.push_back(embedding_tape(s.context, tied_here));
      add_unit(&s.tapes.back(), -1, false);
    }
    for (int layer : chunks[c].layers) {
      std::pair kind(model.layers[static_cast<std::size_t>(layer)], tuning_signature(strategy.tuning, layer));
      if (kind.first.moe && strategy.uneven_experts()) kind.second += " layer " + std::to_string(layer);   // popular experts of its own
      const bool wide = strategy.training.in_16bit(layer, static_cast<int>(model.layer_count()));
      if (wide) kind.second += " 16 bit";
      auto it = std::find_if(layer_kinds.begin(), layer_kinds.end(), [&](const auto& k) { return k.first == kind; });
      if (it == layer_kinds.end()) {
        s.context.layer = layer;
        const DType gemm = s.context.gemm;
        if (wide) s.context.gemm = s.context.activation;
        s.tapes.push_back(layer_tape(s.context, kind.first));
        s.context.gemm = gemm;
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
      s.tapes.push_back(loss_tape(neighbours[c].gathered ? s.whole_batch() : s.context));
      add_unit(&s.tapes.back(), -1, false);
    }
    const std::int64_t stream = s.context.stream_tokens() * model.hidden * s.context.element();
    chunk.bytes_in = chunks[c].loss && !chunks[c].head ? logits_bytes(neighbours[c].gathered ? s.whole_batch() : s.context) : stream;
    chunk.bytes_out = chunks[c].head && !chunks[c].loss ? logits_bytes(s.context) : stream;
    chunk.last = s.stage.units.size();
    s.chunks.push_back(chunk);
  }
  for (std::size_t u = 0; u < s.stage.units.size(); ++u) {
    s.variants[u].retains = s.retains(u);
    if (s.variants[u].retains) s.variants[u - 1].above_retains = true;
  }
  s.weights_on_host.place();
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
    if (stage.profile.gathers_into_buffers && impl_->context.sequence_parallel)
      for (int i = 0; i < 2; ++i) w.alloc(stage.persistent_slot(), impl_->context.tokens * impl_->model.hidden * impl_->context.element(), plan::Category::workspace);
  });
  impl_->make_last_graph();
  stage.in_setup = false;
}

void StageWriter::begin_step() {
  Impl& s = *impl_;
  s.stage.call("step begins", Phase::input, nullptr, [&](plan::BlockWriter& w) {
    w.host(s.stage.profile.step_host);
    const std::int64_t ids = s.context.tokens * 8 * 2;
    w.kernel(s.stage.builder.kernel({.kind = model::KernelKind::elementwise, .bytes_read = ids, .bytes_written = ids, .name = "input copy"}), s.stage.profile.kernel_host);
  });
  for (auto& chunk : s.chunks) chunk.input_gradients = chunk.weight_gradients = 0;
  s.data->begin_step();
}

void StageWriter::forward(int chunk, int micro_batch) { impl_->pass(chunk, micro_batch, Pass::forward); }

void StageWriter::backward(int chunk, int micro_batch) {
  const Impl::Chunk& c = impl_->chunk(chunk);
  if (c.input_gradients > 0 && c.weight_gradients == 0) {
    // The step's first weight gradients come after its first input gradients: two blocks with a rule each.
    impl_->pass(chunk, micro_batch, Pass::input_gradients);
    impl_->pass(chunk, micro_batch, Pass::weight_gradients);
    return;
  }
  impl_->pass(chunk, micro_batch, Pass::backward);
}

void StageWriter::backward_input(int chunk, int micro_batch) {
  if (!impl_->splits_nothing(chunk)) impl_->pass(chunk, micro_batch, Pass::input_gradients);
}

void StageWriter::backward_weight(int chunk, int micro_batch) {
  impl_->pass(chunk, micro_batch, impl_->splits_nothing(chunk) ? Pass::backward : Pass::weight_gradients);
}

void StageWriter::overlapped(int chunk, int micro_batch, int under_chunk, int under_micro_batch) {
  Impl& s = *impl_;
  s.wait_for_input(chunk, micro_batch);
  s.wait_for_gradient(under_chunk, under_micro_batch);
  const auto forward = s.steps(chunk, micro_batch, Pass::forward), backward = s.steps(under_chunk, under_micro_batch, Pass::backward);
  // In turn, and in proportion where one has more places to wait.
  for (std::size_t f = 0, b = 0; f < forward.size() || b < backward.size();)
    if (b == backward.size() || (f < forward.size() && f * backward.size() <= b * forward.size())) forward[f++]();
    else backward[b++]();
  s.count(s.chunk(under_chunk), Pass::backward);
}

void StageWriter::message(const Action& action) { impl_->issue(action); }

void StageWriter::wait_for(const Action& action) {
  Impl& s = *impl_;
  const Impl::Chunk& c = s.chunk(action.chunk);
  if ((Impl::enters(action.kind) ? c.neighbours.previous : c.neighbours.next) < 0) return;
  const auto place = static_cast<std::size_t>(action.chunk);
  const auto& boundaries = Impl::enters(action.kind) ? s.incoming : s.outgoing;
  // A gradient that was sent has taken its frame with it; the stream's order keeps later messages behind it.
  if (boundaries.has(action.micro_batch, place)) s.wait(action.kind, boundaries.at(action.micro_batch, place), action.micro_batch);
}

void StageWriter::synchronise() {
  impl_->stage.call("synchronise after messages", Phase::communication, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}
void StageWriter::unshard(int chunk) { impl_->data->unshard(impl_->chunk(chunk).first, impl_->chunk(chunk).last); }
void StageWriter::reshard(int chunk) { impl_->data->reshard(impl_->chunk(chunk).first, impl_->chunk(chunk).last); }
void StageWriter::reduce_gradient(int chunk) { impl_->data->end_chunk(impl_->chunk(chunk).first, impl_->chunk(chunk).last); }

Duration StageWriter::launch_time(int chunk) const {
  Duration sum{};
  const Impl::Chunk& c = impl_->chunk(chunk);
  for (std::size_t u = c.first; u < c.last; ++u)
    for (const Pass part : {Pass::forward, Pass::backward}) {
      if (part == Pass::backward && impl_->evaluates()) continue;
      for (const plan::Instruction& i : impl_->stage.builder.block(impl_->block_of(u, c, part)).timing)
        if (i.op == plan::Opcode::kernel || i.op == plan::Opcode::host || i.op == plan::Opcode::collective) sum += Duration{i.value};
    }
  return sum;
}

void StageWriter::wait_for_thread(Duration busy) {
  impl_->stage.call("wait for the thread with the loss", Phase::forward, nullptr, [&](plan::BlockWriter& w) { w.host(busy); });
}

void StageWriter::end_step() {
  Impl& s = *impl_;
  if (s.evaluates()) return s.data->end_evaluation();
  s.drain();
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
  if (s.model.tied_embeddings && d.pipeline > 1 && !s.tied_here) {
    // Where the head has a stage before the last, the last takes its part: groups are laid out over first and last stages.
    const bool outer = std::any_of(s.chunks.begin(), s.chunks.end(), [](const Impl::Chunk& c) { return (c.neighbours.previous < 0 && c.neighbours.previous_chunk < 0) || (c.neighbours.next < 0 && c.neighbours.next_chunk < 0); });
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
  s.keep_last_graph();
}

void StageWriter::finish() {
  EXPECTS(impl_->evaluates() || (impl_->frames.empty() && impl_->incoming.empty() && impl_->outgoing.empty()), "a micro-batch has not gone through its backward");
  impl_->stage.rank_class.program.slots = impl_->stage.frames.total();
}

}  // namespace rehearse::strategies
