// DeepSpeed's ZeRO-3: parameters gathered module by module, ahead of their use as far as a bucket and a limit allow, kept
// where they are used again soon; gradients reduced from a bucket. What is fetched and let go when is decided here as
// DeepSpeed decides it at run time, from the order of modules that it has recorded.
// Leaves out: modules that the traced order does not have, quantised gathers and second partitions (ZeRO++).
// Sources: DeepSpeed 0.14.4, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module),
// partition_parameters.py (all_gather_coalesced, free_param), stage3.py, runtime/comm/coalesced_collectives.py.
#include <algorithm>
#include <deque>
#include <set>

#include "strategies/data/families.h"
#include "strategies/data/sharded_writer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {

class Zero3 final : public ShardedWriter {
 public:
  explicit Zero3(Stage& stage) : ShardedWriter(stage, stage.profile.reduce) {
    // Defaults: runtime/zero/config.py.
    const DataParallel& dp = stage.strategy.data_parallel;
    prefetch_ = dp.prefetch_bucket.value_or(50'000'000);
    most_live_ = dp.max_live_parameters.value_or(1'000'000'000);
    reuse_distance_ = dp.max_reuse_distance.value_or(1'000'000'000);
    persistence_ = dp.persistence_threshold.value_or(100'000);
    bucket_ = dp.bucket ? dp.bucket->value / reduce_bytes_ : profile().bucket_elements;
    if (bucket_ <= 0) bucket_ = 500'000'000;
  }

  void setup() override {
    list_parameters();
    const Offload& o = stage_.strategy.memory.offload;
    if (!offloads_parameters()) persistent("parameter shards", parameter_shards(), Category::parameter);
    else (o.parameters == MemoryTier::nvme ? stage_.rank_class.host.nvme : o.pinned ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable) += parameter_shards();
    persistent("optimizer states", part_of(my_share(), false).states, Category::optimizer);
    keep_on_host(my_share());
    std::int64_t kept = 0;
    for (const Parameter& p : parameters_) kept += p.persistent && p.gathers ? p.bytes : 0;
    persistent("persistent parameters", kept, Category::parameter);
    // Whatever the model has, the bucket has its full size (stage3.py, _setup_for_real_optimizer).
    persistent("reduce bucket", bucket_ * parameter_bytes_, Category::communication);
    if (!offloads_optimizer()) persistent("gradient partition", my_share().gradients, Category::gradient);
  }

  std::int64_t hooks_above() const override { return persistence_; }
  void follow(std::vector<ModuleUse> uses) override {
    for (const ModuleUse& use : uses) {
      std::vector<std::size_t> of;
      for (const int w : use.weights) of.push_back(index_of(use.unit, w));
      std::sort(of.begin(), of.end());
      of.erase(std::unique(of.begin(), of.end()), of.end());
      uses_.push_back(std::move(of));
    }
  }

  WeightGradient gradient_mode(bool) const override { return WeightGradient::first; }
  std::int64_t gradient_element_bytes() const override { return parameter_bytes_; }

  void begin_step() override {
    ShardedWriter::begin_step();
    reset();
  }
  void before_forward(std::size_t, int) override {}
  void after_forward(std::size_t unit, int) override {
    if (evaluates() && unit + 1 == stage_.units.size()) reset();
  }

  /// fetch_sub_module: what the module needs, then what the next ones will.
  void begin_module() override {
    const std::vector<std::size_t>& needed = uses_[step_];
    fetch(needed);
    for (const std::size_t p : needed)
      if (parameters_[p].state == State::in_flight) arrive(parameters_[p].handle);
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
  void end_module() override {
    const std::size_t ended = step_ - 1;
    std::set<std::size_t> going(uses_[ended].begin(), uses_[ended].end());
    std::erase_if(going, [&](std::size_t p) { return parameters_[p].persistent || parameters_[p].fetched_for > static_cast<std::int64_t>(step_); });
    std::int64_t passed = 0;
    for (std::size_t next = step_; next < uses_.size() && passed < reuse_distance_ && !going.empty(); ++next)
      for (const std::size_t p : uses_[next]) {
        going.erase(p);
        passed += parameters_[p].elements;
      }
    for (const std::size_t p : going) let_go(p, Phase::forward);
  }

  void gradients_made(std::size_t unit, const std::vector<int>& weights, int micro_batch) override {
    micro_batch_ = micro_batch;
    for (const int w : weights) {
      const Weight& weight = stage_.units[unit].tape->weights[static_cast<std::size_t>(w)];
      if (weight.gradient_elsewhere) continue;
      if (in_bucket_ + weight.elements > bucket_ && in_bucket_ > 0) reduce();
      into_bucket(unit, w, weight);
    }
  }

  void after_backward(std::size_t unit, int, bool, bool) override {
    if (unit > 0) return;
    reduce();   // independent_gradient_partition_epilogue
    reset();
  }

  void end_step() override {
    stage_.call("wait gradients", Phase::gradient_reduction, nullptr, [](plan::BlockWriter& w) { wait_for_reductions(w); });
    end_evaluation();
    clip(my_share(), true);
    if (offloads_optimizer()) {
      step_on_device(part_of(my_share(), false));
      update_on_host(part_of(my_share(), true), offloads_parameters());
    } else {
      step_on_device(my_share());
    }
    gather_persistent();
  }
  void end_evaluation() override {
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      if (parameters_[p].state == State::available && !parameters_[p].persistent) let_go(p, evaluates() ? Phase::forward : Phase::optimizer);
    for (const std::size_t handle : ongoing_) stage_.frames.release(handles_[handle].frame, kHandleSlots);
    ongoing_.clear();
    handles_.clear();
  }

 private:
  enum class State : std::uint8_t { away, in_flight, available };
  struct Parameter {
    Part part = Part::dense;
    std::int64_t elements = 0, bytes = 0;
    std::uint32_t frame = 0;          // one slot: its gathered values
    bool persistent = false;          // small: gathered once a step
    bool gathers = true;              // false: this rank has all of it
    State state = State::away;
    std::size_t handle = 0;           // in flight
    std::int64_t fetched_for = -1;    // the last use that a fetch or prefetch was for
  };
  /// Parameters on their way in one all-gather.
  struct Handle {
    std::vector<std::size_t> parameters;
    std::uint32_t frame = 0;
  };
  enum HandleSlot : std::uint32_t { kFlat, kArrived, kFetched, kFetchedEvent, kHandleSlots };
  /// A gradient too large for the bucket: it waits where it was made.
  struct Waiting {
    std::size_t unit = 0;
    int weight = 0;
  };

  bool offloads_parameters() const { return stage_.strategy.memory.offload.parameters != MemoryTier::device; }
  Share my_share() const { return share(true, stored_bytes()); }
  std::size_t index_of(std::size_t unit, int weight) const {
    const Weight& w = stage_.units[unit].tape->weights[static_cast<std::size_t>(weight)];
    return w.parameter_elsewhere ? index_.at({0, 0}) : index_.at({unit, weight});   // tied: the table is the first unit's
  }

  void list_parameters() {
    for (std::size_t u = 0; u < stage_.units.size(); ++u) {
      const std::vector<Weight>& weights = stage_.units[u].tape->weights;
      for (std::size_t w = 0; w < weights.size(); ++w) {
        if (weights[w].parameter_elsewhere) continue;
        Parameter p;
        p.part = weights[w].expert ? Part::experts : Part::dense;
        p.elements = weights[w].elements;
        p.bytes = Tape::parameter_bytes(weights[w], parameter_bytes_);
        p.persistent = p.elements <= persistence_;
        p.gathers = offloads_parameters() || stage_.sizes.sharing(p.part) > 1;
        p.state = p.persistent ? State::available : State::away;
        p.frame = stage_.frames.acquire(1);
        index_.emplace(std::pair{u, static_cast<int>(w)}, parameters_.size());
        parameters_.push_back(p);
      }
    }
  }

  /// A micro-batch begins: the recorded order is followed from its start.
  void reset() {
    step_ = 0;
    live_ = 0;
    queue_.clear();
    for (Parameter& p : parameters_) p.fetched_for = -1;
    for (std::size_t i = 0; i < uses_.size(); ++i)
      for (const std::size_t p : uses_[i]) queue_.emplace_back(p, static_cast<std::int64_t>(i));
  }

  void prefetch() {
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

  /// all_gather_coalesced: one parameter arrives where it will lie, several in a flat buffer first.
  void fetch(const std::vector<std::size_t>& wanted) {
    for (const Part part : kParts) {
      Handle handle;
      for (const std::size_t p : wanted)
        if (parameters_[p].state == State::away && parameters_[p].part == part) handle.parameters.push_back(p);
      if (handle.parameters.empty()) continue;
      std::sort(handle.parameters.begin(), handle.parameters.end());
      handle.frame = stage_.frames.acquire(kHandleSlots);
      submit(handle, part);
      for (const std::size_t p : handle.parameters) {
        parameters_[p].state = State::in_flight;
        parameters_[p].handle = handles_.size();
        live_ += parameters_[p].elements;
      }
      handles_.push_back(std::move(handle));
    }
  }

  void submit(const Handle& handle, Part part) {
    const bool one = handle.parameters.size() == 1, gathers = parameters_[handle.parameters.front()].gathers;
    std::int64_t bytes = 0;
    for (const std::size_t p : handle.parameters) bytes += parameters_[p].bytes;
    const std::int64_t shard = divided(bytes, part);
    const std::string name = std::string(one ? "fetch parameter " : "fetch parameters ") + (part == Part::experts ? "of experts " : "") + std::to_string(bytes);
    append(name, Phase::parameter_gather, one ? parameters_[handle.parameters.front()].frame : handle.frame, handle.frame, [&](plan::BlockWriter& w) {
      if (gathers) w.alloc(0, bytes, one ? Category::parameter : Category::communication, Frame::own, Stream::data_gather);
      if (offloads_parameters()) {  // the shard comes up first
        const Offload& o = stage_.strategy.memory.offload;
        const std::int64_t size = shard / parameter_bytes_ * stored_bytes();
        w.alloc(kFetched, size, Category::communication, Frame::unit, Stream::data_gather);
        w.record(Stream::data_gather, kFetchedEvent, Frame::unit);  // its bytes were the last gather's
        w.wait(Stream::to_device, kFetchedEvent, Frame::unit);
        w.copy(builder().copy({plan::CopySpec::Direction::host_to_device, o.pinned, Bytes{size}, o.parameters == MemoryTier::nvme}), Stream::to_device, 0, host());
        w.record(Stream::to_device, kFetchedEvent, Frame::unit);
        w.wait(Stream::data_gather, kFetchedEvent, Frame::unit);
        w.free(kFetched, Frame::unit);
      }
      const auto pass = [&](std::int64_t size, const char* what) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = size, .bytes_written = size, .name = what}), host(), Stream::data_gather);
      };
      if (!one && gathers) pass(shard, "gather copy-in");
      if (gathers) over_groups(w, CollectiveKind::all_gather, part == Part::experts ? std::array<std::int64_t, 2>{0, bytes} : std::array<std::int64_t, 2>{bytes, 0}, "parameter gather", Stream::data_gather, 0);
      if (!one && gathers) pass(bytes, "gather copy-out");
      w.record(Stream::data_gather, kArrived, Frame::unit);
    });
  }

  /// AllGatherCoalescedHandle.wait: what came in one buffer is put into tensors of their own. The host goes no further ahead
  /// than a few arrivals.
  void arrive(std::size_t index) {
    const Handle& handle = handles_[index];
    const bool one = handle.parameters.size() == 1;
    for (const std::size_t i : handle.parameters) {
      Parameter& p = parameters_[i];
      p.state = State::available;
      if (one || !p.gathers) continue;
      append("gathered parameter " + std::to_string(p.bytes), Phase::parameter_gather, p.frame, plan::kNoFrame, [&](plan::BlockWriter& w) { w.alloc(0, p.bytes, Category::parameter, Frame::own, Stream::data_gather); });
    }
    if (!one) append("free flat parameters", Phase::parameter_gather, handle.frame, plan::kNoFrame, [&](plan::BlockWriter& w) { w.free(kFlat); });
    ongoing_.push_back(index);
    if (ongoing_.size() <= kMostOngoing) return;
    const std::uint32_t oldest = handles_[ongoing_.front()].frame;
    append("wait for a fetch", Phase::parameter_gather, oldest, plan::kNoFrame, [&](plan::BlockWriter& w) { w.host_wait(kArrived); });
    stage_.frames.release(oldest, kHandleSlots);
    ongoing_.pop_front();
  }

  /// What the host has waited for is there.
  void compute_waits(const std::vector<std::size_t>& needed) {
    for (const std::size_t handle : ongoing_) {
      const auto came_in_it = [&](std::size_t p) { return !parameters_[p].persistent && parameters_[p].handle == handle; };
      if (std::none_of(needed.begin(), needed.end(), came_in_it)) continue;
      append("use gathered", Phase::parameter_gather, handles_[handle].frame, plan::kNoFrame, [&](plan::BlockWriter& w) { w.wait(Stream::compute, kArrived); });
    }
  }

  /// param.partition(). DeepSpeed's block is free again once compute has got there (record_stream), and where memory is short
  /// the allocator waits for that; here it is free at once.
  void let_go(std::size_t index, Phase phase) {
    Parameter& p = parameters_[index];
    if (p.state != State::available) return;
    p.state = State::away;
    live_ -= p.elements;
    if (!p.gathers) return;
    append("let go of parameter", phase, p.frame, plan::kNoFrame, [&](plan::BlockWriter& w) {
      w.free(0);
    });
  }

  void into_bucket(std::size_t unit, int weight, const Weight& w) {
    const std::int64_t bytes = w.elements * (w.wide_bytes > 0 ? w.wide_bytes : parameter_bytes_);
    const auto slot = static_cast<std::uint32_t>(weight);
    const bool fits = in_bucket_ + w.elements <= bucket_;
    elements_[w.expert] += w.elements;
    in_bucket_ += w.elements;
    ++gradients_;
    const Unit& u = stage_.units[unit];
    stage_.call((fits ? "gradient into bucket " : "gradient beside bucket ") + std::to_string(slot) + " " + std::to_string(bytes), Phase::gradient_reduction, &u, [&](plan::BlockWriter& b) {
      b.record(Stream::compute, kMade);
      b.wait(Stream::data_reduce, kMade);
      if (!fits) return;
      b.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "copy to bucket"}), host(), Stream::data_reduce);
      b.free(slot, Frame::unit);
    });
    if (!fits) waiting_.push_back({unit, weight});
  }

  /// __reduce_and_partition_ipg_grads, with reduce_scatter_coalesced: several gradients are interleaved by rank first.
  void reduce() {
    if (in_bucket_ == 0) return;
    const bool first = micro_batch_ == 0, last = micro_batch_ + 1 == stage_.strategy.micro_batches();
    for (const Part part : kParts) {
      const std::int64_t elements = elements_[part == Part::experts];
      if (elements == 0) continue;
      const bool one = gradients_ == 1 && elements % stage_.sizes.sharing(part) == 0 && reduce_bytes_ == parameter_bytes_;
      const std::int64_t bytes = elements * reduce_bytes_, made = elements * parameter_bytes_, shard = divided(elements, part) * stored_bytes();
      const std::string name = std::string(part == Part::experts ? "reduce experts' bucket " : "reduce bucket ") + std::to_string(elements) + (one ? " alone" : "") + (first ? " first" : "") + (last ? " last" : "");
      append(name, Phase::gradient_reduction, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) {
        const auto pass = [&](const char* what, std::int64_t read, std::int64_t written) {
          w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = read, .bytes_written = written, .name = what}), host(), Stream::data_reduce);
        };
        const bool exchanges = stage_.sizes.sharing(part) > 1;
        if (!one) {
          w.alloc(kInterleaved, bytes, Category::communication, Frame::own, Stream::data_reduce);
          pass("interleave gradients", made, bytes);
        }
        pass("average gradients", bytes, bytes);
        over_groups(w, CollectiveKind::reduce_scatter, part == Part::experts ? std::array<std::int64_t, 2>{0, bytes} : std::array<std::int64_t, 2>{bytes, 0}, "gradient reduction", Stream::data_reduce, 0);
        if (exchanges && stage_.sizes.replicate > 1 && part == Part::dense) sum_over_replicas(w, shard / stored_bytes() * reduce_bytes_);
        const Stream after = exchanges && stage_.sizes.replicate > 1 && part == Part::dense ? Stream::data_replicate : Stream::data_reduce;
        // The last micro-batch's sum goes down in fp32 (stage3.py, partition_grads: fp32_grad_tensor.copy_(grad_buffer.float())).
        if (offloads_optimizer()) copy_gradients(w, shard, last ? divided(elements, part) * 4 : shard, after, first);
        else pass("gradient partition", first ? shard : 2 * shard, shard);
        if (!one) w.free(kInterleaved);
      });
    }
    for (const Waiting& g : waiting_) {
      const auto slot = static_cast<std::uint32_t>(g.weight);
      stage_.call("free gradient " + std::to_string(slot), Phase::gradient_reduction, &stage_.units[g.unit], [&](plan::BlockWriter& w) {
        w.free(slot, Frame::unit);
      });
    }
    waiting_.clear();
    elements_ = {};
    in_bucket_ = 0;
    gradients_ = 0;
  }

  /// The gradients of a sub-group are put together and cast before it is updated (_prepare_fp32_grad_for_sub_group).
  void step_on_device(const Share& mine) {
    constexpr std::int64_t kSubGroup = 1'000'000'000;   // sub_group_size
    if (mine.elements == 0) return;
    const std::int64_t elements = std::min(mine.elements, kSubGroup);
    const bool casts = profile().master_parameters && stored_bytes() < 4;
    if (casts)
      append("gradients of a sub-group " + std::to_string(mine.elements), Phase::optimizer, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) {
        w.alloc(kTogether, elements * stored_bytes(), Category::temporary);
        w.alloc(kWide, elements * 4, Category::temporary);
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = mine.gradients, .bytes_written = mine.gradients, .name = "flatten gradients"}), host());
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = mine.gradients, .bytes_written = mine.elements * 4, .name = "cast gradients"}), host());
        w.free(kTogether);
      });
    update(mine);
    if (casts) append("free gradients of a sub-group", Phase::optimizer, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) { w.free(kWide); });
  }

  void gather_persistent() {
    std::array<std::int64_t, 2> bytes{};
    for (const Parameter& p : parameters_) bytes[p.part == Part::experts] += p.persistent && p.gathers ? p.bytes : 0;
    if (bytes[0] + bytes[1] == 0) return;
    append("gather persistent parameters", Phase::parameter_gather, stage_.persistent, plan::kNoFrame,
           [&](plan::BlockWriter& w) { over_groups(w, CollectiveKind::all_gather, bytes, "parameter gather", Stream::data_gather, plan::kAfterCompute | plan::kComputeWaits); });
  }

  /// A call whose slots lie in frames of parameters and of fetches.
  template <typename Write>
  void append(const std::string& key, Phase phase, std::uint32_t own, std::uint32_t unit, Write write) {
    const std::uint32_t id = stage_.block(key, write);
    if (id == plan::kNoFrame) return;
    plan::Call call{.block = id, .phase = phase};
    call.frames[static_cast<std::size_t>(Frame::own)] = own;
    call.frames[static_cast<std::size_t>(Frame::unit)] = unit;
    stage_.append(call);
  }

  static constexpr std::size_t kMostOngoing = 2;   // __max_ongoing_fetch_events
  static constexpr std::uint32_t kMade = Stage::kPersistentSlots - 16, kInterleaved = Stage::kPersistentSlots - 17, kTogether = Stage::kPersistentSlots - 18, kWide = Stage::kPersistentSlots - 19;

  std::int64_t prefetch_ = 0, most_live_ = 0, reuse_distance_ = 0, persistence_ = 0, bucket_ = 0;   // elements
  std::vector<Parameter> parameters_;
  std::map<std::pair<std::size_t, int>, std::size_t> index_;                  // by unit and weight
  std::vector<std::vector<std::size_t>> uses_;                                // of a micro-batch's modules
  std::deque<std::pair<std::size_t, std::int64_t>> queue_;                    // parameters still to fetch, and for which use
  std::size_t step_ = 0;                                                      // uses so far
  std::int64_t live_ = 0;                                                     // elements gathered or on their way
  std::vector<Handle> handles_;
  std::deque<std::size_t> ongoing_;                                           // handles of the latest arrivals
  std::array<std::int64_t, 2> elements_{};                                    // in the bucket: dense, experts
  std::int64_t in_bucket_ = 0;
  int gradients_ = 0;
  int micro_batch_ = 0;
  std::vector<Waiting> waiting_;
};

}  // namespace

std::unique_ptr<DataParallelWriter> make_zero3(Stage& stage) { return std::make_unique<Zero3>(stage); }

}  // namespace rehearse::strategies
