#include "strategies/stage_passes.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "sim/core/contract.h"
#include "strategies/block_segments.h"

namespace rehearse::strategies {

using plan::Frame;
using plan::Phase;

namespace {

using Steps = std::vector<std::function<void()>>;

void append(Steps& to, Steps what) { to.insert(to.end(), std::make_move_iterator(what.begin()), std::make_move_iterator(what.end())); }

/// Runs both in turn, `first` first, and in proportion where one has more steps.
void in_turn(const Steps& first, const Steps& second) {
  for (std::size_t a = 0, b = 0; a < first.size() || b < second.size();)
    if (b == second.size() || (a < first.size() && a * second.size() <= b * first.size())) first[a++]();
    else second[b++]();
}

Phase phase_of(Pass pass) { return pass == Pass::forward ? Phase::forward : pass == Pass::weight_gradients ? Phase::weight_gradient : Phase::backward; }

}  // namespace

StagePasses::StagePasses(Stage& stage, const StageChunks& chunks, DataParallelWriter& data, StageFrames& frames, StageMessages& messages, std::int64_t input_bytes)
    : stage_(stage), chunks_(chunks), data_(data), frames_(frames), messages_(messages), blocks_(stage, data), graphs_(stage, chunks, blocks_, frames), inputs_(stage), saved_(stage), modules_(stage), weights_on_host_(stage), input_bytes_(input_bytes), done_(chunks.chunks.size()), slots_(stage.units.size()) {
  weights_on_host_.place();
}

void StagePasses::begin_step() {
  done_.assign(done_.size(), {});
  if (data_.hooks_above() >= 0 && !std::exchange(followed_, true)) data_.follow(module_uses());
}

/// The modules of one micro-batch, forward and backward, in the order of their hooks.
std::vector<ModuleUse> StagePasses::module_uses() {
  std::vector<ModuleUse> uses;
  const auto add = [&](std::size_t u, Pass pass) {
    for (const HookPoint& point : blocks_.hooks(u, pass, 0))
      if (point.begins) uses.push_back({u, point.weights});
  };
  for (std::size_t u = 0; u < stage_.units.size(); ++u) add(u, Pass::forward);
  if (!stage_.evaluates())
    for (std::size_t u = stage_.units.size(); u-- > 0;) add(u, Pass::backward);
  return uses;
}

void StagePasses::backward(int chunk, int micro_batch) {
  if (done(chunk).input_gradients > 0 && done(chunk).weight_gradients == 0) {
    // The step's first weight gradients come after its first input gradients: two blocks with a rule each.
    run(chunk, micro_batch, Pass::input_gradients);
    run(chunk, micro_batch, Pass::weight_gradients);
    return;
  }
  run(chunk, micro_batch, Pass::backward);
}

void StagePasses::backward_input(int chunk, int micro_batch) {
  if (!splits_nothing(chunk)) run(chunk, micro_batch, Pass::input_gradients);
}

void StagePasses::backward_weight(int chunk, int micro_batch) { run(chunk, micro_batch, splits_nothing(chunk) ? Pass::backward : Pass::weight_gradients); }

/// torch.distributed.pipelining leaves the first stage, whose input needs no gradient, wholly to backward_weight
/// (stage.py, backward_one_chunk).
bool StagePasses::splits_nothing(int chunk) const { return blocks_.split() == SplitBackward::retained_graph && chunks_[chunk].neighbours.begins(); }

void StagePasses::run(int chunk, int micro_batch, Pass pass) {
  const StageChunk& c = chunks_[chunk];
  if (pass == Pass::forward) {
    messages_.wait_for_input(chunk, micro_batch);
    for (std::size_t u = c.first; u < c.last; ++u) run_unit(u, chunk, micro_batch, pass);
    if (saved_.active()) saved_.end_of_forward(layers_of(chunk).size(), [&](std::size_t l) { return saved_layer(l, chunk, micro_batch, pass); });
    return;
  }
  if (pass != Pass::weight_gradients) messages_.wait_for_gradient(chunk, micro_batch);
  inputs_.settle();
  std::size_t fetched = c.last;   // units from here on have their inputs on the way
  for (std::size_t u = c.last; u-- > c.first;) {
    // One layer ahead of its use, where copies run beside compute.
    const std::size_t until = inputs_.ahead() && u > c.first ? u - 1 : u;
    for (; fetched > until; --fetched)
      if (const auto input = stored_input(fetched - 1, chunk, micro_batch, pass)) inputs_.fetch(*input);
    if (const auto input = stored_input(u, chunk, micro_batch, pass)) inputs_.use(*input);
    if (stage_.units[u].ends_span()) make_again(u, chunk, micro_batch);
    if (saved_.active()) offload_saved(u, chunk, micro_batch, pass);
    run_unit(u, chunk, micro_batch, pass);
  }
  count(chunk, pass);
}

/// All units of a checkpoint, the last of which is `last`, run forward once more.
void StagePasses::make_again(std::size_t last, int chunk, int micro_batch) {
  free_sent(last, chunk, micro_batch);
  for (std::size_t u = last + 1 - static_cast<std::size_t>(stage_.units[last].span); u <= last; ++u) {
    plan::Call call = unit_call(u, chunk, micro_batch, Pass::backward);
    call.block = blocks_.again(u, micro_batch);
    stage_.append(call);
  }
}

void StagePasses::run_unit(std::size_t u, int chunk, int micro_batch, Pass pass) {
  if (defers(u, chunk, pass)) {
    deferred_.push_back({u, chunk, micro_batch});
    pass = Pass::input_gradients;
  }
  begin_unit(u, micro_batch, pass);
  plan::Call call = unit_call(u, chunk, micro_batch, pass);
  if (data_.hooks_above() >= 0) {
    run_hooked(call, u, micro_batch, pass);
  } else if (modules_.active() && !blocks_.offloaded(u, micro_batch).empty()) {
    run_in_groups(call, u, chunk, micro_batch, pass);
  } else {
    call.block = block_of(u, chunk, micro_batch, pass);
    stage_.append(call);
  }
  if (pass == Pass::forward)
    if (const auto input = stored_input(u, chunk, micro_batch, pass)) inputs_.store(*input);
  if (pass == Pass::forward && saved_.active()) offload_saved(u, chunk, micro_batch, pass);
  end_unit(u, chunk, micro_batch, pass);
}

/// A unit's pass, with what the data-parallel strategy does before and after its modules.
void StagePasses::run_hooked(plan::Call call, std::size_t u, int micro_batch, Pass pass) {
  EXPECTS(pass == Pass::forward || pass == Pass::backward, "a backward in two halves has no hooks on modules");
  const std::vector<HookPoint>& points = blocks_.hooks(u, pass, micro_batch);
  const std::vector<std::uint32_t>& parts = blocks_.hooked_parts(u, pass, micro_batch);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    call.block = parts[i];
    if (call.block != plan::kNoFrame) stage_.append(call);
    if (i == points.size()) break;
    const HookPoint& point = points[i];
    if (point.begins) {
      data_.begin_module();
      continue;
    }
    if (!point.gradients.empty()) data_.gradients_made(u, point.gradients, micro_batch);
    if (!point.weights.empty()) data_.end_module({u, point.weights}, point.recorded, point.releases);
  }
}

/// A unit's pass, with copies of what its modules have saved, group by group.
void StagePasses::run_in_groups(plan::Call call, std::size_t u, int chunk, int micro_batch, Pass pass) {
  const bool first = done(chunk).weight_gradients == 0, away = pass == Pass::backward || leaves(u, chunk, micro_batch);
  const std::vector<OffloadPoint>& points = blocks_.offload_points(u, pass, micro_batch, first);
  const std::vector<std::uint32_t>& parts = blocks_.offload_parts(u, pass, micro_batch, first);
  const ModuleOffload::Place place = offload_place(u, chunk, micro_batch, pass);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    call.block = parts[i];
    if (call.block != plan::kNoFrame) stage_.append(call);
    if (i == points.size() || !away) continue;
    if (points[i].kind == OffloadPoint::Kind::leaves) modules_.leave(place, points[i].group);
    else if (points[i].kind == OffloadPoint::Kind::begins) modules_.begin(place, points[i].group);
    else modules_.end(place);
  }
}

ModuleOffload::Place StagePasses::offload_place(std::size_t u, int chunk, int micro_batch, Pass pass) {
  return {{chunk, micro_batch}, u, unit_call(u, chunk, micro_batch, pass), block_of(u, chunk, micro_batch, Pass::forward), blocks_.slots(u, chunks_[chunk]), &blocks_.offloaded(u, micro_batch)};
}

/// The last layer's groups stay where its backward comes next: on the model's last stage, unless prediction layers come behind it there, and elsewhere
/// of the micro-batch whose backward is the step's first. Source: fine_grained_activation_offload.py, should_bulk_offload, post_warmup_callback.
bool StagePasses::leaves(std::size_t u, int chunk, int micro_batch) {
  const StageChunk& c = chunks_[chunk];
  for (std::size_t later = u + 1; later < c.last; ++later)
    if (!blocks_.offloaded(later, micro_batch).empty()) return true;
  const bool last_stage = c.neighbours.next < 0 && c.neighbours.next_chunk < 0;
  if (last_stage) return stage_.strategy.training.multi_token_prediction;
  return micro_batch > 0 || chunk + 1 < static_cast<int>(chunks_.chunks.size());
}

void StagePasses::begin_unit(std::size_t u, int micro_batch, Pass pass) {
  if (pass == Pass::forward) graphs_.forward_begins(u, micro_batch);
  else if (pass != Pass::weight_gradients) graphs_.backward_of_unit_begins(u, micro_batch);
  if (pass == Pass::forward) data_.before_forward(u, micro_batch);
  else if (pass != Pass::weight_gradients) data_.before_backward(u, micro_batch);
  if (pass == Pass::backward || pass == Pass::weight_gradients) data_.before_weight_gradients(u);
  if (weights_on_host_.holds(u) && (pass == Pass::forward || (stage_.runs_backward(u) && !keeps_fetched(u)))) weights_on_host_.fetch(u, phase_of(pass), micro_batch);
}

void StagePasses::end_unit(std::size_t u, int chunk, int micro_batch, Pass pass) {
  if (weights_on_host_.holds(u) && (pass == Pass::forward ? !keeps_fetched(u) : pass == Pass::backward && stage_.runs_backward(u))) weights_on_host_.drop(u, phase_of(pass), micro_batch);
  if (pass == Pass::forward) data_.after_forward(u, micro_batch);
  if (pass == Pass::forward && u + 1 == chunks_[chunk].last) graphs_.loss_is_there(micro_batch);
  if (pass == Pass::input_gradients) data_.after_input_gradients(u, micro_batch);
  if (pass != Pass::backward && pass != Pass::weight_gradients) return;
  const bool checkpoint = stage_.units[u].checkpoint;
  if (inputs_.active() && checkpoint) inputs_.done();
  if (stage_.units[u].ends_span()) free_output(u, chunk, micro_batch);   // as it was made again
  else free_sent(u, chunk, micro_batch);
  release(u, chunk, micro_batch);
  graphs_.backward_of_unit_is_over(u, micro_batch);
  if (u == chunks_[chunk].first) graphs_.backward_is_over(chunk, micro_batch);
  const bool more_to_come = blocks_.may_defer(u, chunks_[chunk]) && !deferred_.empty();
  const std::int64_t made = done(chunk).weight_gradients;
  data_.after_backward(u, micro_batch, made == 0, made + 1 == chunks_[chunk].contents.micro_batches && !more_to_come);
}

/// A backward pass has gone through the chunk.
void StagePasses::count(int chunk, Pass pass) {
  const StageChunk& c = chunks_[chunk];
  if (pass != Pass::weight_gradients) ++done(chunk).input_gradients;
  if (pass == Pass::input_gradients) return;
  if (++done(chunk).weight_gradients == c.contents.micro_batches && !c.contents.reduces) data_.end_chunk(c.first, c.last);
}

/// The first so many micro-batches of a step leave the output layer's weight gradients for the end.
bool StagePasses::defers(std::size_t u, int chunk, Pass pass) const {
  if (pass != Pass::backward || !blocks_.may_defer(u, chunks_[chunk])) return false;
  const std::int64_t limit = stage_.strategy.pipeline.deferred_head_gradients.value_or(0);
  return limit == 0 || static_cast<std::int64_t>(deferred_.size()) < limit;
}

/// One after the other (Megatron utils.py, drain_embedding_wgrad_compute).
void StagePasses::make_deferred_gradients() {
  for (std::size_t i = 0; i < deferred_.size(); ++i) {
    const auto [unit, chunk, micro_batch] = deferred_[i];
    plan::Call call{.block = block_of(unit, chunk, micro_batch, Pass::weight_gradients), .phase = Phase::weight_gradient, .micro_batch = micro_batch};
    // What it reads lies in the unit's own frame; the layer below is through with its backward.
    call.frames[static_cast<std::size_t>(Frame::own)] = frame_of(unit, chunk, micro_batch);
    call.frames[static_cast<std::size_t>(Frame::unit)] = stage_.units[unit].frame;
    stage_.append(call);
    release(unit, chunk, micro_batch);
    const bool all = chunks_[chunk].contents.micro_batches == static_cast<std::int64_t>(deferred_.size());
    data_.after_backward(unit, micro_batch, i == 0 && all, i + 1 == deferred_.size());
  }
  deferred_.clear();
}

void StagePasses::overlapped(int chunk, int micro_batch, int under_chunk, int under_micro_batch) {
  messages_.wait_for_input(chunk, micro_batch);
  messages_.wait_for_gradient(under_chunk, under_micro_batch);
  if (exchanges_tokens(chunk, micro_batch) || exchanges_tokens(under_chunk, under_micro_batch)) {
    overlap_layers(chunk, micro_batch, under_chunk, under_micro_batch);
  } else {
    Steps forward, backward;
    for (std::size_t u : units_of(chunk, Pass::forward)) append(forward, steps(u, chunk, micro_batch, Pass::forward));
    for (std::size_t u : units_of(under_chunk, Pass::backward)) append(backward, steps(u, under_chunk, under_micro_batch, Pass::backward));
    in_turn(forward, backward);
  }
  count(under_chunk, Pass::backward);
}

/// What comes before the layers, the layers in pairs, those of the longer pass that are left, what comes after.
/// Sources: Megatron-Core models/common/model_chunk_schedule_plan.py, run: with a forward's dispatch and combine, and a backward's combine
/// back and dispatch back, compute is: attention | MLP backward | MLP | attention backward, and beside it travels: combine back | dispatch |
/// dispatch back | combine. DeepSeek-V3's report (arXiv 2412.19437, figure 4) has the same neighbours.
void StagePasses::overlap_layers(int chunk, int micro_batch, int under_chunk, int under_micro_batch) {
  const std::vector<std::size_t> forward = units_of(chunk, Pass::forward), backward = units_of(under_chunk, Pass::backward);
  const auto is_layer = [&](std::size_t u) { return stage_.units[u].layer >= 0; };
  const auto layers = [&](const std::vector<std::size_t>& units) {
    const auto first = std::find_if(units.begin(), units.end(), is_layer);
    return std::pair{first, std::find_if(units.rbegin(), std::make_reverse_iterator(first), is_layer).base()};
  };
  const auto ahead = [&](std::size_t u) { return steps(u, chunk, micro_batch, Pass::forward); };
  const auto back = [&](std::size_t u) { return steps(u, under_chunk, under_micro_batch, Pass::backward); };
  auto [f, f_end] = layers(forward);
  auto [b, b_end] = layers(backward);
  for (auto u = forward.begin(); u != f; ++u) in_turn({}, ahead(*u));
  for (auto u = backward.begin(); u != b; ++u) in_turn({}, back(*u));
  for (; f != f_end && b != b_end; ++f, ++b) in_turn(back(*b), ahead(*f));
  for (; b < b_end; ++b) in_turn({}, back(*b));
  for (; f != forward.end(); ++f) in_turn({}, ahead(*f));
  for (; b != backward.end(); ++b) in_turn({}, back(*b));
}

bool StagePasses::exchanges_tokens(int chunk, int micro_batch) {
  const StageChunk& c = chunks_[chunk];
  for (std::size_t u = c.first; u < c.last; ++u)
    if (strategies::exchanges_tokens(stage_.builder.block(block_of(u, chunk, micro_batch, Pass::forward)))) return true;
  return false;
}

/// A chunk's units in the order of a pass.
std::vector<std::size_t> StagePasses::units_of(int chunk, Pass pass) const {
  const StageChunk& c = chunks_[chunk];
  std::vector<std::size_t> out(c.last - c.first);
  std::iota(out.begin(), out.end(), c.first);
  if (pass != Pass::forward) std::reverse(out.begin(), out.end());
  return out;
}

StagePasses::Steps StagePasses::steps(std::size_t u, int chunk, int micro_batch, Pass pass) {
  Steps out;
  const std::vector<std::uint32_t>& parts = blocks_.segments_of(block_of(u, chunk, micro_batch, pass));
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const std::uint32_t id = parts[k];
    const bool opens = k == 0, closes = k + 1 == parts.size();
    out.emplace_back([this, chunk, micro_batch, pass, u, id, opens, closes] {
      // Passes in turn offload by layers: their parts end at exchanges of tokens, not at modules.
      const std::size_t groups = modules_.active() && (opens || closes) ? blocks_.offloaded(u, micro_batch).size() : 0;
      if (opens) begin_unit(u, micro_batch, pass);
      for (std::size_t g = groups; opens && pass == Pass::backward && g-- > 0;) modules_.begin(offload_place(u, chunk, micro_batch, pass), g);
      plan::Call call = unit_call(u, chunk, micro_batch, pass);
      call.block = id;
      stage_.append(call);
      for (std::size_t g = 0; closes && g < groups; ++g)
        if (pass == Pass::backward) modules_.end(offload_place(u, chunk, micro_batch, pass));
        else if (leaves(u, chunk, micro_batch)) modules_.leave(offload_place(u, chunk, micro_batch, pass), g);
      if (closes) end_unit(u, chunk, micro_batch, pass);
    });
  }
  return out;
}

Duration StagePasses::launch_time(int chunk) {
  Duration sum{};
  for (std::size_t u = chunks_[chunk].first; u < chunks_[chunk].last; ++u)
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && stage_.evaluates()) continue;
      for (const plan::Instruction& i : stage_.builder.block(block_of(u, chunk, 0, pass)).timing)
        if (i.op == plan::Opcode::kernel || i.op == plan::Opcode::host || i.op == plan::Opcode::collective) sum += Duration{i.value};
    }
  return sum;
}

// Calls and frames -----------------------------------------------------------------------------------------------------

std::uint32_t StagePasses::block_of(std::size_t u, int chunk, int micro_batch, Pass pass) {
  const Done& so_far = done(chunk);
  return blocks_.block_of(u, pass, micro_batch, (pass == Pass::input_gradients ? so_far.input_gradients : so_far.weight_gradients) == 0);
}

plan::Call StagePasses::unit_call(std::size_t u, int chunk, int micro_batch, Pass pass) {
  const StageChunk& c = chunks_[chunk];
  const ChunkNeighbours& n = c.neighbours;
  plan::Call call{.phase = phase_of(pass), .micro_batch = micro_batch};
  call.layer = static_cast<std::int16_t>(stage_.units[u].layer);
  auto frame = [&](Frame f) -> std::uint32_t& { return call.frames[static_cast<std::size_t>(f)]; };
  frame(Frame::own) = frame_of(u, chunk, micro_batch);
  if (u > c.first) frame(Frame::below) = frame_of(u - 1, chunk, micro_batch);
  else if (n.previous_chunk >= 0) frame(Frame::below) = frame_of(chunks_[n.previous_chunk].last - 1, n.previous_chunk, micro_batch);
  else if (n.previous >= 0) frame(Frame::below) = frames_.lower_boundary(chunk, micro_batch);
  if (u + 1 < c.last) frame(Frame::above) = frame_of(u + 1, chunk, micro_batch);
  else if (n.next_chunk >= 0) frame(Frame::above) = frame_of(chunks_[n.next_chunk].first, n.next_chunk, micro_batch);
  else if (n.next >= 0) frame(Frame::above) = frames_.upper_boundary(chunk, micro_batch);
  frame(Frame::unit) = stage_.units[u].frame;
  return call;
}

/// A unit's frame is needed by its own backward and by whoever takes its input gradient.
std::uint32_t StagePasses::frame_of(std::size_t u, int chunk, int micro_batch) {
  const StageChunk& c = chunks_[chunk];
  const auto slots = [&] {
    std::uint32_t& known = slots_[u];
    if (known == 0) known = blocks_.slots(u, c) + (inputs_.active() ? ActivationOffload::kOffloadSlots : saved_.active() ? SavedOffload::kSlots : modules_.active() ? ModuleOffload::kSlots : 0);
    return known;
  };
  return frames_.units.of(micro_batch, u, slots, [&] { return (u > c.first || !c.neighbours.begins() ? 2 : 1) + graphs_.users(u); });
}

/// A unit's gradients are all made: its frame, and what it took from above, may go.
void StagePasses::release(std::size_t u, int chunk, int micro_batch) {
  const StageChunk& c = chunks_[chunk];
  frames_.units.drop(micro_batch, u);
  if (u + 1 < c.last) frames_.units.drop(micro_batch, u + 1);
  else if (c.neighbours.next_chunk >= 0) frames_.units.drop(micro_batch, chunks_[c.neighbours.next_chunk].first);
  else if (c.neighbours.next >= 0) frames_.above.drop(micro_batch, static_cast<std::size_t>(chunk));
  if (u == c.first && c.neighbours.previous >= 0) frames_.below.drop(micro_batch, static_cast<std::size_t>(chunk));
}

/// Lets go of what a chunk's last unit sent on, once its backward is over.
void StagePasses::free_sent(std::size_t u, int chunk, int micro_batch) {
  const StageChunk& c = chunks_[chunk];
  if (!stage_.keeps_sent() || u + 1 != c.last || c.neighbours.next_chunk >= 0 || c.neighbours.next < 0) return;
  free_output(u, chunk, micro_batch);
}

void StagePasses::free_output(std::size_t u, int chunk, int micro_batch) {
  plan::Call call{.block = stage_.block("free output", [](plan::BlockWriter& w) { w.free(kOutputSlot); }), .phase = Phase::backward, .micro_batch = micro_batch};
  call.frames[static_cast<std::size_t>(Frame::own)] = frame_of(u, chunk, micro_batch);
  stage_.append(call);
}

/// A recomputed layer's input, if it waits for backward somewhere else.
std::optional<StoredInput> StagePasses::stored_input(std::size_t u, int chunk, int micro_batch, Pass pass) {
  const Unit& unit = stage_.units[u];
  if (!inputs_.active() || stage_.evaluates() || !unit.checkpoint || unit.tape->input == kNoTensor || (!unit.input_gradient && !unit.trainable())) return std::nullopt;
  return StoredInput{unit_call(u, chunk, micro_batch, pass), blocks_.slots(u, chunks_[chunk]), input_bytes_};
}

const std::vector<std::size_t>& StagePasses::layers_of(int chunk) {
  if (layers_.empty()) {
    for (const StageChunk& c : chunks_.chunks) {
      std::vector<std::size_t>& units = layers_.emplace_back();
      for (std::size_t u = c.first; u < c.last; ++u)
        if (stage_.units[u].layer >= 0 && stage_.runs_backward(u)) units.push_back(u);
    }
  }
  return layers_[static_cast<std::size_t>(chunk)];
}

SavedOffload::Layer StagePasses::saved_layer(std::size_t layer, int chunk, int micro_batch, Pass pass) {
  const std::size_t u = layers_of(chunk)[layer];
  return {unit_call(u, chunk, micro_batch, pass), block_of(u, chunk, micro_batch, Pass::forward), blocks_.slots(u, chunks_[chunk]), stage_.units[u].tape->input == kNoTensor ? 0 : input_bytes_, &blocks_.whole(u, micro_batch).staying};
}

void StagePasses::offload_saved(std::size_t u, int chunk, int micro_batch, Pass pass) {
  const std::vector<std::size_t>& layers = layers_of(chunk);
  const auto found = std::find(layers.begin(), layers.end(), u);
  if (found == layers.end()) return;
  const auto layer = static_cast<std::size_t>(found - layers.begin());
  const auto of = [&](std::size_t l) { return saved_layer(l, chunk, micro_batch, pass); };
  if (pass == Pass::forward) saved_.after_forward(layer, layers.size(), of);
  else saved_.before_backward(layer, layers.size(), of);
}

/// Autograd holds on to weights that backward reads, unless it runs the layer again.
bool StagePasses::keeps_fetched(std::size_t u) const { return !stage_.units[u].checkpoint && stage_.runs_backward(u); }

}  // namespace rehearse::strategies
