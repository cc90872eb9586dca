// Parameters of ZeRO-3 on their way: fetched, ahead of their use, from all ranks or from a second partition inside a node, in
// 16 bit or in 8, and let go.
#include <algorithm>
#include <cmath>
#include <set>

#include "strategies/data/zero3.h"

namespace rehearse::strategies {

using plan::Category;
using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {

/// fp32 scales of so many 8-bit elements, one for about 8000 (CUDAQuantizer.target_group_size; it takes more groups where they
/// would not be equal).
std::int64_t scale_bytes(std::int64_t elements) { return 4 * ((elements + 7999) / 8000); }

}  // namespace

std::size_t Zero3::index_of(std::size_t unit, int weight) const {
  const Weight& w = stage_.units[unit].tape->weights[static_cast<std::size_t>(weight)];
  return w.parameter_elsewhere ? index_.at({0, 0}) : index_.at({unit, weight});   // tied: the table is the first unit's
}

/// DeepSpeed's own linear layer saves the parameter itself, whose values are let go (runtime/zero/linear.py). A view of it stands in the graph of
/// PyTorch's linear layer, and of transformers' grouped products of experts (integrations/moe.py, weight.transpose(-2, -1)), and keeps the gathered values.
bool Zero3::graph_saves(const Weight& weight) const {
  const bool own_linear = stage_.strategy.data_parallel.memory_efficient_linear;
  const bool grouped = weight.experts > 1 && weight.packed_bytes < 0 && profile().grouped_experts && profile().native_grouped && second_ == 1;
  return weight.matrix && (grouped || !own_linear);
}

void Zero3::list_parameters() {
  for (std::size_t u = 0; u < stage_.units.size(); ++u) {
    const std::vector<Weight>& weights = stage_.units[u].tape->weights;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      if (weights[w].parameter_elsewhere) continue;
      Parameter p;
      p.part = weights[w].expert ? Part::experts : Part::dense;
      p.elements = weights[w].elements;
      p.tensors = tensors_standing_for(weights[w], !profile().grouped_experts);
      p.bytes = Tape::parameter_bytes(weights[w], parameter_bytes_);
      p.persistent = p.elements <= persistence_;
      p.gathers = offloads_parameters() || stage_.sizes.sharing(p.part) > 1;
      p.trainable = weights[w].trainable;
      p.state = p.persistent ? State::available : State::away;
      p.frame = stage_.frames.acquire(second_ > 1 ? kSecondMade + 1 : 1);
      p.graph_saves = graph_saves(weights[w]);
      if (p.graph_saves) p.saved_frame = stage_.frames.acquire(1);
      // Of what no step changes the second partition stays as it was made; of the rest it goes with the step.
      p.has_second = second_ > 1 && !p.persistent && (!p.trainable || evaluates());
      index_.emplace(std::pair{u, static_cast<int>(w)}, parameters_.size());
      parameters_.push_back(p);
    }
  }
}

/// A micro-batch begins: the recorded order is followed from its start. What the last one has left
/// counts on, or not (reset_step).
void Zero3::reset() {
  step_ = 0;
  if (profile().counts_live_anew) live_ = 0;
  queue_.clear();
  for (Parameter& p : parameters_) p.fetched_for = -1;
  for (std::size_t i = 0; i < uses_.size(); ++i)
    for (const std::size_t p : uses_[i]) queue_.emplace_back(p, static_cast<std::int64_t>(i));
}

/// fetch_sub_module: what the module needs, then what the next ones will.
void Zero3::begin_module() {
  const std::vector<std::size_t>& needed = uses_[step_];
  fetch(needed);
  const auto in_flight = [this](std::size_t p) { return parameters_[p].state == State::in_flight; };
  if (profile().fetch_sync && std::any_of(needed.begin(), needed.end(), in_flight)) synchronise();   // _synchronize_communication
  for (const std::size_t p : needed)
    if (in_flight(p)) arrive(parameters_[p].handle);
  compute_waits(needed);
  std::set<std::size_t> not_yet, popped;
  for (const std::size_t p : needed)
    if (parameters_[p].fetched_for < static_cast<std::int64_t>(step_)) not_yet.insert(p);
  while (!queue_.empty() && popped.size() < not_yet.size()) {
    const auto [p, used_at] = queue_.front();
    queue_.pop_front();
    parameters_[p].fetched_for = used_at;
    popped.insert(p);
  }
  prefetch();
  ++step_;
}

/// release_sub_module: what the next modules, up to a distance in elements, do not use again.
void Zero3::end_module(const ModuleUse& use, bool recorded, bool releases) {
  std::vector<std::size_t> going;
  for (const int w : use.weights) going.push_back(index_of(use.unit, w));
  if (!recorded)
    for (const std::size_t p : going) free_saved(parameters_[p]);
  if (!releases) return;
  std::erase_if(going, [&](std::size_t p) { return parameters_[p].persistent || parameters_[p].fetched_for > static_cast<std::int64_t>(step_); });
  std::int64_t passed = 0;
  for (std::size_t next = step_; next < uses_.size() && passed < reuse_distance_ && !going.empty(); ++next)
    for (const std::size_t p : uses_[next]) {
      std::erase(going, p);
      passed += parameters_[p].elements;
    }
  for (const std::size_t p : going) let_go(p, Phase::forward, recorded && parameters_[p].graph_saves && !parameters_[p].saved);
}

void Zero3::free_saved(Parameter& p) {
  if (!std::exchange(p.saved, false)) return;
  append("free saved weight", Phase::backward, p.saved_frame, plan::kNoFrame, [](plan::BlockWriter& w) { w.free(kGatheredValues); });
}

void Zero3::prefetch() {
  const std::int64_t most = std::min(most_live_ - live_, prefetch_);
  std::vector<std::size_t> ahead;
  std::int64_t elements = 0;
  while (!queue_.empty() && elements < most) {
    const auto [p, used_at] = queue_.front();
    queue_.pop_front();
    Parameter& parameter = parameters_[p];
    parameter.fetched_for = std::max(parameter.fetched_for, used_at);
    if (parameter.state != State::away || std::find(ahead.begin(), ahead.end(), p) != ahead.end()) continue;
    ahead.push_back(p);
    elements += parameter.elements;
  }
  fetch(ahead);
}

/// __all_gather_params: those with a second partition apart from those without, then by the ranks that share them. Until 2022
/// (partition_parameters.py, _allgather_param) each parameter came alone, and only once the device had done everything.
void Zero3::fetch(const std::vector<std::size_t>& wanted) {
  for (const bool second : {true, false})
    for (const Part part : kParts) {
      std::vector<std::size_t> away;
      for (const std::size_t p : wanted)
        if (parameters_[p].state == State::away && parameters_[p].part == part && parameters_[p].has_second == second) away.push_back(p);
      std::sort(away.begin(), away.end());
      if (!profile().fetch_sync) {
        fetch_together(away, part, second);
        continue;
      }
      for (const std::size_t p : away) {
        synchronise();
        fetch_together({p}, part, second);
      }
    }
}

void Zero3::fetch_together(std::vector<std::size_t> away, Part part, bool second) {
  if (away.empty()) return;
  Handle handle{.parameters = std::move(away), .second = second, .ranks = second ? second_ : stage_.sizes.sharing(part)};
  for (const std::size_t p : handle.parameters) {
    handle.elements += parameters_[p].elements;
    handle.bytes += parameters_[p].bytes;
    if (parameters_[p].on_disk) handle.on_disk += parameters_[p].bytes;
  }
  handle.frame = stage_.frames.acquire(handle_slots());
  submit(handle, part);
  for (const std::size_t p : handle.parameters) {
    parameters_[p].state = State::in_flight;
    parameters_[p].handle = handles_.size();
    live_ += parameters_[p].elements;
  }
  handles_.push_back(std::move(handle));
}

/// torch.cuda.synchronize at a fetch.
void Zero3::synchronise() {
  stage_.call("synchronise at fetch", Phase::parameter_gather, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}

/// all_gather_coalesced: one parameter arrives where it will lie, several in a flat buffer first. Without overlap_comm all of it is put on compute's stream
/// (parameter_offload.py, default_stream): gathers, which NCCL does on its own, begin behind what compute has been given; copies from the host hold compute up.
void Zero3::submit(const Handle& handle, Part part) {
  const bool one = handle.parameters.size() == 1, gathers = parameters_[handle.parameters.front()].gathers;
  const std::int64_t bytes = handle.bytes, shard = handle.second ? (bytes + second_ - 1) / second_ : divided(bytes, part);
  std::int64_t tensors = 0;
  for (const std::size_t p : handle.parameters) tensors += parameters_[p].tensors;
  const std::string name = std::string(one ? "fetch parameter " : "fetch parameters ") + (handle.second ? "from second partition " : "") + (part == Part::experts ? "of experts " : "") + std::to_string(bytes) + (tensors > 1 ? " in " + std::to_string(tensors) : "") + (handle.on_disk > 0 ? " disk " + std::to_string(handle.on_disk) : "");
  append(name, Phase::parameter_gather, one && !quantises(handle) ? parameters_[handle.parameters.front()].frame : handle.frame, handle.frame, [&](plan::BlockWriter& w) {
    w.host((one ? tensors : 1) * profile().gather_host + tensors * profile().gathered_parameter_host);
    if (!overlaps_) {
      w.record(Stream::compute, kFetchedEvent, Frame::unit);
      w.wait(Stream::data_gather, kFetchedEvent, Frame::unit);
    }
    if (gathers && !quantises(handle)) w.alloc(0, bytes, one ? Category::parameter : Category::communication, Frame::own, pool_of(Stream::data_gather));
    if (offloads_parameters()) {  // the shard comes up first
      const std::int64_t size = shard / parameter_bytes_ * stored_bytes();
      const std::int64_t disk = handle.on_disk == bytes ? size : std::llround(static_cast<double>(size) * static_cast<double>(handle.on_disk) / static_cast<double>(bytes));
      w.alloc(kFetched, size, Category::communication, Frame::unit, pool_of(Stream::data_gather));
      w.record(Stream::data_gather, kFetchedEvent, Frame::unit);  // its bytes were the last gather's
      w.wait(Stream::to_device, kFetchedEvent, Frame::unit);
      for (const auto& [part_of_it, from_disk] : {std::pair{size - disk, false}, {disk, true}})
        if (part_of_it > 0) w.copy(builder().copy({plan::CopySpec::Direction::host_to_device, true, Bytes{part_of_it}, from_disk}), Stream::to_device, 0, host());
      w.record(Stream::to_device, kFetchedEvent, Frame::unit);
      w.wait(Stream::data_gather, kFetchedEvent, Frame::unit);
      if (!overlaps_) w.wait(Stream::compute, kFetchedEvent, Frame::unit);
      w.free(kFetched, Frame::unit);
    }
    if (quantises(handle)) {
      gather_quantised(w, handle, part, shard);
    } else {
      if (!one && gathers) elementwise(w, "gather copy-in", shard, shard, Stream::data_gather);
      if (gathers) gather_over(w, handle, part, bytes, "parameter gather");
      if (!one && gathers) elementwise(w, "gather copy-out", bytes, bytes, Stream::data_gather);
    }
    w.record(Stream::data_gather, kArrived, Frame::unit);
  });
}

void Zero3::gather_over(plan::BlockWriter& w, const Handle& handle, Part part, std::int64_t bytes, const char* name) {
  const std::int64_t tensors = handle.parameters.size() == 1 ? parameters_[handle.parameters.front()].tensors : 1;
  for (std::int64_t i = 0; i < tensors; ++i) gather_tensor(w, handle, part, bytes / tensors, name);
  copy_lists(w, bytes, part, 1, Stream::data_gather);
}

void Zero3::gather_tensor(plan::BlockWriter& w, const Handle& handle, Part part, std::int64_t bytes, const char* name) {
  if (handle.second) w.collective(builder().collective({CollectiveKind::all_gather, plan::GroupAxis::data_secondary, Bytes{bytes}, name}), Stream::data_gather, 0, profile().collective_host);
  else over_groups(w, CollectiveKind::all_gather, part == Part::experts ? std::array<std::int64_t, 2>{0, bytes} : std::array<std::int64_t, 2>{bytes, 0}, name, Stream::data_gather, 0);
}

/// Collectives of lists of tensors: PyTorch copies from or to one buffer, rank by rank (ProcessGroupNCCL::allgather, reduce_scatter:
/// flatten_for_scatter_gather), and DeepSpeed has made the lists in Python. `lists` of them have `bytes` together.
void Zero3::copy_lists(plan::BlockWriter& w, std::int64_t bytes, Part part, int lists, Stream stream) {
  if (profile().list_part_host == Duration{}) return;
  const std::int64_t copies = std::int64_t{lists} * stage_.sizes.sharing(part);
  w.kernel(builder().kernel({.kind = model::KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "copy list of tensors"}), copies * (host() + profile().list_part_host), stream);
}

/// qwZ: the shard is quantised to 8 bits, elements and scales are gathered, and all of it comes back in fp16. `shard`: bytes
/// of this rank, not quantised.
void Zero3::gather_quantised(plan::BlockWriter& w, const Handle& handle, Part part, std::int64_t shard) {
  const bool one = handle.parameters.size() == 1, casts = stage_.strategy.training.precision != Precision::fp16;
  const std::int64_t own = std::max<std::int64_t>(1, handle.elements * shard / std::max<std::int64_t>(1, handle.bytes)), ranks = std::max<std::int64_t>(1, (handle.elements + own - 1) / own);
  const std::int64_t scales = scale_bytes(own) * ranks;
  w.alloc(kFlat, handle.elements, Category::communication, Frame::unit, pool_of(Stream::data_gather));
  w.alloc(kScales, scales, Category::communication, Frame::unit, pool_of(Stream::data_gather));
  w.alloc(kQuantisedShard, own + scale_bytes(own), Category::communication, Frame::unit, pool_of(Stream::data_gather));
  if (!one) elementwise(w, "gather copy-in", shard, shard, Stream::data_gather);
  if (casts) elementwise(w, "cast to fp16", shard, 2 * own, Stream::data_gather);
  elementwise(w, "quantise weights", 2 * own, own + scale_bytes(own), Stream::data_gather);
  gather_over(w, handle, part, handle.elements, "quantised parameter gather");
  gather_over(w, handle, part, scales, "scales of parameters");
  w.free(kQuantisedShard, Frame::unit);
  elementwise(w, "dequantise weights", handle.elements + scales, 2 * handle.elements, Stream::data_gather);
  if (!one) elementwise(w, "gather copy-out", 2 * handle.elements, 2 * handle.elements, Stream::data_gather);
  if (casts) elementwise(w, "cast from fp16", 2 * handle.elements, handle.bytes, Stream::data_gather);
}

/// AllGatherCoalescedHandle.wait: what came in one buffer is put into tensors of their own. The host goes no further ahead
/// than a few arrivals.
void Zero3::arrive(std::size_t index) {
  const Handle& handle = handles_[index];
  const bool one = handle.parameters.size() == 1, quantised = quantises(handle);
  // What was quantised is fp16 first: for several parameters in one buffer, or where the parameter has another format.
  const bool wide = quantised && (!one || stage_.strategy.training.precision != Precision::fp16);
  if (wide) append("dequantised parameters " + std::to_string(handle.elements), Phase::parameter_gather, handle.frame, plan::kNoFrame, [&](plan::BlockWriter& w) { w.alloc(kWideFlat, 2 * handle.elements, Category::communication, Frame::own, pool_of(Stream::data_gather)); });
  for (const std::size_t i : handle.parameters) {
    Parameter& p = parameters_[i];
    p.state = State::available;
    if ((one && !quantised) || !p.gathers) continue;
    const Duration parts = one ? Duration{} : profile().gathered_part_host * (handle.ranks * p.tensors);
    append("gathered parameter " + std::to_string(p.bytes) + (parts > Duration{} ? " of " + std::to_string(handle.ranks * p.tensors) + " parts" : ""), Phase::parameter_gather, p.frame, plan::kNoFrame, [&](plan::BlockWriter& w) {
      w.host(parts);
      w.alloc(kGatheredValues, p.bytes, Category::parameter, Frame::own, pool_of(Stream::data_gather));
    });
  }
  if (!one || quantised)
    append(wide ? "free flat and dequantised parameters" : "free flat parameters", Phase::parameter_gather, handle.frame, plan::kNoFrame, [&](plan::BlockWriter& w) {
      w.free(kFlat);
      if (quantised) w.free(kScales);
      if (wide) w.free(kWideFlat);
    });
  ongoing_.push_back(index);
  if (ongoing_.size() <= kMostOngoing) return;
  const std::uint32_t oldest = handles_[ongoing_.front()].frame;
  append("wait for a fetch", Phase::parameter_gather, oldest, plan::kNoFrame, [&](plan::BlockWriter& w) { w.host_wait(kArrived); });
  stage_.frames.release(oldest, handle_slots());
  ongoing_.pop_front();
}

/// What the host has waited for is there.
void Zero3::compute_waits(const std::vector<std::size_t>& needed) {
  for (const std::size_t handle : ongoing_) {
    const auto came_in_it = [&](std::size_t p) { return !parameters_[p].persistent && parameters_[p].handle == handle; };
    if (std::none_of(needed.begin(), needed.end(), came_in_it)) continue;
    append("use gathered", Phase::parameter_gather, handles_[handle].frame, plan::kNoFrame, [&](plan::BlockWriter& w) { w.wait(Stream::compute, kArrived); });
  }
}

/// param.partition(). DeepSpeed's block is free again once compute has got there (record_stream), and where memory is short
/// the allocator waits for that; here it is free at once. PyTorch's linear layer saves weight.t(), a view of what was gathered, which
/// stays when the parameter gets an empty tensor, until backward has run; that gathers it once more (runtime/zero/linear.py says so
/// of DeepSpeed's own, which saves no view).
void Zero3::let_go(std::size_t index, Phase phase, bool to_autograd) {
  Parameter& p = parameters_[index];
  if (p.state != State::available) return;
  p.state = State::away;
  live_ -= p.elements;
  if (!p.gathers) return;
  if (to_autograd) {
    std::swap(p.frame, p.saved_frame);
    p.saved = true;
    return;
  }
  if (second_ > 1 && !p.has_second) make_second(p, phase);
  append("let go of parameter", phase, p.frame, plan::kNoFrame, [&](plan::BlockWriter& w) {
    w.free(kGatheredValues);
  });
}

/// hpZ: on its first way out after a step each rank of a group of neighbours keeps its part of the parameter, and the host
/// waits until it has been copied (_partition_param_sec).
void Zero3::make_second(Parameter& p, Phase phase) {
  p.has_second = true;
  const std::int64_t bytes = second_bytes(p);
  append("keep second shard " + std::to_string(bytes), phase, p.frame, plan::kNoFrame, [&](plan::BlockWriter& w) {
    w.alloc(kSecond, bytes, Category::parameter);
    elementwise(w, "zero second shard", 0, bytes, Stream::compute);
    elementwise(w, "copy to second shard", bytes, bytes, Stream::compute);
    w.record(Stream::compute, kSecondMade);
    w.host_wait(kSecondMade);
  });
}

/// invalidate_secondary_tensor: the step has changed what was copied.
void Zero3::drop_seconds() {
  for (Parameter& p : parameters_) {
    if (!p.has_second || !p.trainable) continue;
    p.has_second = false;
    append("drop second shard", Phase::optimizer, p.frame, plan::kNoFrame, [](plan::BlockWriter& w) { w.free(kSecond); });
  }
}

void Zero3::gather_persistent() {
  std::array<std::int64_t, 2> bytes{};
  for (const Parameter& p : parameters_) bytes[p.part == Part::experts] += p.persistent && p.gathers ? p.bytes : 0;
  if (bytes[0] + bytes[1] == 0) return;
  append("gather persistent parameters", Phase::parameter_gather, stage_.persistent, plan::kNoFrame,
         [&](plan::BlockWriter& w) { over_groups(w, CollectiveKind::all_gather, bytes, "parameter gather", Stream::data_gather, plan::kAfterCompute | plan::kComputeWaits); });
}

}  // namespace rehearse::strategies
