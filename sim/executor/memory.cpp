#include "sim/executor/memory.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "hwmodels/memory/caching_allocator_quick.h"
#include "sim/core/contract.h"
#include "sim/executor/memory_operations.h"
#include "sim/executor/repeats.h"

namespace rehearse::executor {
namespace {

using plan::Opcode;

struct Slot {
  hwmodels::BlockId block;
  std::int64_t bytes = 0;   // 0: empty
  plan::Category category = plan::Category::temporary;
  std::uint32_t block_of_plan = 0, name = 0;
  std::uint32_t frame = 0;  // where its frame begins
};

/// A live tensor when a period begins, named by what will be done with it: by its frame's name if that is fixed, else by
/// when the frame was used last.
struct LiveSlot {
  std::uint64_t address = 0;
  std::int64_t bytes = 0;
  std::uint32_t frame = 0;         // name, or calls since the last use
  std::uint32_t offset = 0;
  std::uint8_t place = 0;          // of the last use; 4: the frame is fixed
  plan::Category category = plan::Category::temporary;
  friend bool operator==(const LiveSlot&, const LiveSlot&) = default;
};
constexpr std::uint8_t kFixed = 4;

/// All that decides what the rest of the step does with memory, when a period begins.
struct Moment {
  std::size_t call = 0;
  std::int64_t operations = 0;
  hwmodels::AllocatorCondition allocator;
  std::vector<LiveSlot> live;
  bool sorted = false;

  bool equals(Moment& other) {
    if (live.size() != other.live.size() || !allocator.equals(other.allocator)) return false;
    for (Moment* m : {this, &other}) {
      if (!m->sorted) std::sort(m->live.begin(), m->live.end(), [](const LiveSlot& a, const LiveSlot& b) { return a.address < b.address; });
      m->sorted = true;
    }
    return live == other.live;
  }
};

/// The same for a later step at the same call, where every tensor has the same slot again.
struct Checkpoint {
  std::size_t call = 0;
  std::int64_t operations = 0;     // of its step, before it
  hwmodels::AllocatorCondition allocator;
  struct Live {
    std::uint64_t address = 0;
    std::int64_t bytes = 0;
    std::uint32_t slot = 0;
    plan::Category category = plan::Category::temporary;
    friend bool operator==(const Live&, const Live&) = default;
  };
  std::vector<Live> live;          // by slot
};
constexpr std::int64_t kWorthCheckpoints = 4000;   // operations of a step

class Ledger {
 public:
  Ledger(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options)
      : plan_(plan), program_(plan.classes[rank_class].program), options_(options), allocator_(options.allocator, options.observer != nullptr || !options.shortcuts ? hwmodels::StatisticsKept::all : hwmodels::StatisticsKept::bytes), slots_(program_.slots), operations_(plan.blocks.size()) {
    attended_ = options.timeline || options.observer != nullptr || options.progress != nullptr || !options.shortcuts;
  }

  ClassMemory run() {
    allocator_.set_observer(options_.observer);
    if (options_.shortcuts && !options_.timeline && options_.observer == nullptr && options_.progress == nullptr) {
      repeats_.emplace(program_);
      if (!worth_looking(repeats_->stretch())) repeats_.reset();
    }
    if (repeats_) {
      last_use_.resize(program_.slots + 1);
      live_in_frame_.resize(program_.slots + 1);
    }
    checkpoints_wanted_ = options_.shortcuts && !options_.timeline && options_.observer == nullptr && options_.progress == nullptr && options_.steps > 1;
    if (checkpoints_wanted_)
      for (const plan::Call& c : program_.step)
        if (!c.first_step_only || options_.steps == 2) step_operations_ += static_cast<std::int64_t>(plan_.blocks[c.block].memory.size());
    checkpoints_wanted_ = checkpoints_wanted_ && step_operations_ >= kWorthCheckpoints;
    bool alive = calls(program_.setup, -1);
    for (int step = 0; alive && step < options_.steps; ++step) {
      alive = calls(program_.step, step);
      if (options_.progress == nullptr) continue;
      for (auto& queue : pending_)   // the next step's clock
        for (Pending& p : queue) p.done -= options_.progress->step();
    }
    if (options_.observer != nullptr) options_.observer->at_end(allocator_);
    const hwmodels::AllocatorStatistics& s = allocator_.statistics();
    result_.peak_allocated = s.allocated_bytes.peak;
    result_.peak_reserved = s.reserved_bytes.peak;
    if (!same_end_) result_.end_allocated = s.allocated_bytes.current;
    std::sort(result_.live_at_peak.begin(), result_.live_at_peak.end(), [](const LiveTensor& a, const LiveTensor& b) { return a.bytes > b.bytes; });
    return std::move(result_);
  }

 private:
  bool calls(const std::vector<plan::Call>& list, int step) {
    const bool last = step == options_.steps - 1;
    candidate_.reset();
    periods_.clear();
    step_began_ = result_.operations;
    at_last_step_ = allocator_.statistics().allocated_bytes.current;
    std::int64_t next_checkpoint = step_operations_ / 64;
    auto checkpoint = checkpoints_.begin();   // the next to compare with
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (checkpoints_wanted_ && step == options_.steps - 2 && result_.operations - step_began_ >= next_checkpoint) {
        next_checkpoint = 2 * (result_.operations - step_began_);
        if (next_checkpoint < 2 * step_operations_) checkpoints_.push_back(checkpoint_at(i));
      }
      if (last && checkpoint != checkpoints_.end() && i >= checkpoint->call) {
        if (i == checkpoint->call && as_before(*checkpoint)) return true;
        ++checkpoint;
      }
      if (step >= 0 && repeats_) {
        const Repeat& r = repeats_->stretch();
        if (r.any() && i + r.period >= r.first && i < r.end && (i + r.period - r.first) % r.period == 0) i += same_again(i);
        if (i == list.size()) break;
        use_frames(list[i], i);
      }
      if (step > 0 && list[i].first_step_only) continue;
      const std::int64_t index = step < 0 ? -1 : static_cast<std::int64_t>(i);
      if (!(attended_ ? block(list[i], index, step) : block_unattended(list[i], index, step))) return false;
      if (options_.timeline && last)
        result_.timeline.push_back({static_cast<std::uint32_t>(i), high_, allocator_.statistics().reserved_bytes.current.value});
    }
    return true;
  }

  // Repeats -----------------------------------------------------------------------------------------------------------

  /// Comparing two moments costs about as much as a hundred operations.
  bool worth_looking(const Repeat& r) const {
    std::size_t operations = 0;
    for (std::size_t i = r.first; i < r.first + r.period; ++i) operations += plan_.blocks[program_.step[i].block].memory.size();
    return operations >= 100;
  }

  void use_frames(const plan::Call& call, std::size_t i) {
    for (std::size_t p = call.frames.size(); p-- > 0;) {
      const std::uint32_t frame = call.frames[p];
      if (frame == plan::kNoFrame) continue;
      // A frame that still holds something is no fresh one: then names mean more than we know.
      if ((repeats_->fresh(i) >> p & 1u) && live_in_frame_[frame] != 0) {
        repeats_.reset();
        return;
      }
      last_use_[frame] = {static_cast<std::uint32_t>(i), static_cast<std::uint8_t>(p)};
    }
  }

  // Whole steps -------------------------------------------------------------------------------------------------------

  Checkpoint checkpoint_at(std::size_t i) const {
    Checkpoint c{.call = i, .operations = result_.operations - step_began_, .allocator = allocator_.condition(), .live = {}};
    for (std::uint32_t s = 0; s < slots_.size(); ++s)
      if (slots_[s].bytes > 0) c.live.push_back({allocator_.address_of(slots_[s].block), slots_[s].bytes, s, slots_[s].category});
    return c;
  }

  /// The last step has come to where the one before it was, and finds all as it was then. The rest of it does what the
  /// rest of that one did: it reaches no new peak and ends where it began.
  bool as_before(Checkpoint& before) {
    Checkpoint now = checkpoint_at(before.call);
    if (now.live != before.live || !now.allocator.equals(before.allocator)) return false;
    const std::int64_t rest = step_operations_ - before.operations;
    result_.operations += rest;
    result_.repeated += rest;
    result_.end_allocated = at_last_step_;
    same_end_ = true;
    return true;
  }

  /// A period begins. If one before it began in the same way, all from there to here would only come again: returns how
  /// many calls to leave out, a whole number of times that stretch, and gives the live tensors the names of their time.
  /// Only where tensors came to lie as in an earlier period is all compared, that many periods later.
  std::size_t same_again(std::size_t i) {
    const std::uint64_t places = std::exchange(places_, 0);
    if (candidate_ && i >= candidate_due_) {
      Moment now = moment(i);
      if (i == candidate_due_ && candidate_->equals(now)) {
        const std::size_t stretch = i - candidate_->call, times = (repeats_->stretch().end - i) / stretch;
        const auto again = static_cast<std::int64_t>(times) * (now.operations - candidate_->operations);
        result_.operations += again;
        result_.repeated += again;
        if (times > 0) rename(i, i + times * stretch);
        candidate_.reset();
        periods_.clear();
        return times * stretch;
      }
      candidate_.reset();
    }
    const auto [earlier, fresh] = periods_.try_emplace(places, i);
    if (!fresh) {
      const std::size_t stretch = i - std::exchange(earlier->second, i);
      if (!candidate_ && i + 2 * stretch <= repeats_->stretch().end) {
        candidate_ = moment(i);
        candidate_due_ = i + stretch;
      }
    }
    return 0;
  }

  Moment moment(std::size_t i) const {
    Moment now{.call = i, .operations = result_.operations, .allocator = allocator_.condition(), .live = {}};
    for (std::uint32_t s = 0; s < slots_.size(); ++s) {
      const Slot& slot = slots_[s];
      if (slot.bytes == 0) continue;
      const FrameUse use = last_use_[slot.frame];
      const bool fixed = repeats_->fixed(slot.frame);
      now.live.push_back({allocator_.address_of(slot.block), slot.bytes, fixed ? slot.frame : static_cast<std::uint32_t>(i) - use.call, s - slot.frame,
                          fixed ? kFixed : use.place, slot.category});
    }
    return now;
  }

  /// What lives before call `from` lives on under the names that it has before call `to`, which does the same.
  void rename(std::size_t from, std::size_t to) {
    std::vector<std::pair<std::uint32_t, Slot>> moved;
    std::vector<std::pair<std::uint32_t, FrameUse>> uses;
    for (std::uint32_t s = 0; s < slots_.size(); ++s) {
      Slot& slot = slots_[s];
      if (slot.bytes == 0 || repeats_->fixed(slot.frame)) continue;
      const std::uint32_t old = slot.frame;
      const FrameUse use{static_cast<std::uint32_t>(to - (from - last_use_[old].call)), last_use_[old].place};
      const std::uint32_t frame = program_.step[use.call].frames[use.place];
      uses.emplace_back(frame, use);
      --live_in_frame_[old];
      moved.emplace_back(frame + (s - old), slot);
      moved.back().second.frame = frame;
      slot = Slot{};
    }
    for (const auto& [s, slot] : moved) {
      slots_[s] = slot;
      ++live_in_frame_[slot.frame];
    }
    for (const auto& [frame, use] : uses) last_use_[frame] = use;
  }

  // -------------------------------------------------------------------------------------------------------------------

  /// Runs the memory instructions of a call; false when memory does not suffice.
  bool block(const plan::Call& call, std::int64_t index, int step) {
    const plan::Block& b = plan_.blocks[call.block];
    high_ = allocator_.statistics().allocated_bytes.current.value;
    const plan::Instruction* const first = b.memory.data();
    for (const plan::Instruction& i : b.memory) {
      ++result_.operations;
      const std::uint32_t frame = call.frames[static_cast<std::size_t>(i.frame)];
      Slot& slot = slots_[frame + i.index];
      switch (i.op) {
        case Opcode::alloc: {
          if (i.value == 0) break;
          EXPECTS(slot.bytes == 0, b.name + ": a live tensor's slot is allocated again: " + name_of_slot(b, i));
          if (any_pending_ && index >= 0) see_events(options_.progress->host(static_cast<std::size_t>(index), static_cast<double>(&i - first + 1) / static_cast<double>(b.memory.size())));
          if (options_.observer != nullptr) options_.observer->on_tensor(step, call, name_of_slot(b, i), static_cast<plan::Category>(i.flags));
          const hwmodels::Allocation got = allocator_.allocate(Bytes{i.value}, {static_cast<std::uint8_t>(i.stream)});
          if (!got) {
            fail(*got.out_of_memory, index, step);
            return false;
          }
          slot = {got.block, i.value, static_cast<plan::Category>(i.flags), call.block, i.index, frame};
          live_[i.flags] += i.value;
          const std::int64_t now = allocator_.statistics().allocated_bytes.current.value;
          high_ = std::max(high_, now);
          if (now > peak_) {
            new_peak(now, index, step);
            if (options_.timeline) remember_peak();
          }
          break;
        }
        case Opcode::free:
          if (slot.bytes == 0) break;  // an empty slot: nothing was allocated (0 bytes) or it went elsewhere
          release(slot, frame + i.index);
          break;
        default:
          hand_over(call, i, index, step);
      }
    }
    return true;
  }

  /// The same where nobody asks for more than peaks.
  bool block_unattended(const plan::Call& call, std::int64_t index, int step) {
    std::optional<MemoryOperations>& of_block = operations_[call.block];
    if (!of_block) of_block.emplace(plan_.blocks[call.block], allocator_);
    const std::int64_t before = result_.operations;
    MemoryOperation* const first = of_block->all.data();
    const MemoryOperation* const end = first + of_block->all.size();
    result_.operations += end - first;
    for (MemoryOperation* o = first; o < end; ++o) {
      if (o->passage != kNoPassage)
        if (const Passage& p = of_block->passages[o->passage]; leaves_nothing(p)) {
          o += p.operations - 1;
          continue;
        }
      const plan::Instruction& i = *o->instruction;
      const std::uint32_t frame = call.frames[static_cast<std::size_t>(i.frame)];
      Slot& slot = slots_[frame + i.index];
      switch (i.op) {
        case Opcode::alloc: {
          if (i.value == 0) break;
          EXPECTS(slot.bytes == 0, plan_.blocks[call.block].name + ": a live tensor's slot is allocated again: " + name_of_slot(plan_.blocks[call.block], i));
          if (o->freed_at_once && lent(*o, index, step)) {
            ++o;
            break;
          }
          auto [block, address] = allocator_.take(o->request);
          if (block == hwmodels::BlockId{}) [[unlikely]] {
            const hwmodels::Allocation got = allocator_.allocate(Bytes{i.value}, o->request.stream);
            if (!got) {
              result_.operations = before + (o - first + 1);
              fail(*got.out_of_memory, index, step);
              return false;
            }
            block = got.block;
            address = allocator_.address_of(block);
          }
          slot = {block, i.value, static_cast<plan::Category>(i.flags), call.block, i.index, frame};
          if (repeats_) {
            ++live_in_frame_[frame];
            places_ = (places_ ^ address) * 0x9e3779b97f4a7c15ULL;
          }
          live_[i.flags] += i.value;
          if (const std::int64_t now = allocator_.statistics().allocated_bytes.current.value; now > peak_) new_peak(now, index, step);
          break;
        }
        case Opcode::free:
          if (slot.bytes == 0) break;
          if (allocator_.put_back(slot.block)) [[likely]] {
            forget(slot);
          } else {
            release(slot, frame + i.index);
          }
          break;
        default:
          hand_over(call, i, index, step);
      }
    }
    return true;
  }

  /// A tensor moves to another slot or is given to another stream.
  void hand_over(const plan::Call& call, const plan::Instruction& i, std::int64_t index, int step) {
    const std::uint32_t frame = call.frames[static_cast<std::size_t>(i.frame)];
    if (i.op == Opcode::move) {
      const std::uint32_t own = call.frames[static_cast<std::size_t>(plan::Frame::own)];
      Slot& from = slots_[frame + static_cast<std::uint32_t>(i.value)];
      Slot& to = slots_[own + i.index];
      if (&from == &to) return;
      EXPECTS(to.bytes == 0, plan_.blocks[call.block].name + ": moved onto a live tensor");
      if (repeats_ && from.bytes > 0) {
        --live_in_frame_[from.frame];
        ++live_in_frame_[own];
      }
      if (const auto node = recorded_.extract(frame + static_cast<std::uint32_t>(i.value)); !node.empty()) recorded_[own + i.index] = node.mapped();
      to = from;
      to.frame = own;
      from = Slot{};
      return;
    }
    EXPECTS(i.op == Opcode::record_stream, "a timing instruction among memory instructions");
    const Slot& slot = slots_[frame + i.index];
    if (slot.bytes == 0) return;
    allocator_.record_stream(slot.block, {static_cast<std::uint8_t>(i.stream)});
    record(recorded_[frame + i.index], i.stream, options_.progress != nullptr && index >= 0 ? done(static_cast<std::size_t>(index), i, step) : kAtOnce);
  }

  void fail(const hwmodels::OutOfMemory& reason, std::int64_t call, int step) {
    result_.out_of_memory = reason;
    result_.failed_call = call;
    result_.failed_step = step;
  }

  /// Would running this passage change nothing, not even a peak?
  bool leaves_nothing(const Passage& p) const {
    if (allocator_.statistics().allocated_bytes.current.value + p.rise > peak_) return false;
    for (const Passage::Room& r : p.rooms)
      if (!allocator_.has_room(r.request, r.bytes)) return false;
    return true;
  }

  void new_peak(std::int64_t allocated, std::int64_t call, int step) {
    peak_ = allocated;
    result_.at_peak = live_;
    result_.peak_step = step;
    result_.peak_call = call;
  }

  /// A stream that uses a tensor again is done with it the later time.
  static void record(std::vector<std::pair<plan::Stream, std::int64_t>>& uses, plan::Stream stream, std::int64_t done) {
    for (auto& [known, when] : uses)
      if (known == stream) {
        when = std::max(when, done);
        return;
      }
    uses.emplace_back(stream, done);
  }

  /// A tensor that comes and goes, where nothing but a peak is left of it; false: it has to be allocated in full.
  bool lent(MemoryOperation& o, std::int64_t call, int step) {
    const hwmodels::CachingAllocator::Loan loan = allocator_.lend(o.request);
    if (loan.size == 0) return false;
    if (repeats_) places_ = (places_ ^ loan.address) * 0x9e3779b97f4a7c15ULL;
    const std::int64_t now = allocator_.statistics().allocated_bytes.current.value + loan.size;
    if (now > peak_) {
      live_[o.instruction->flags] += o.instruction->value;
      new_peak(now, call, step);
      live_[o.instruction->flags] -= o.instruction->value;
    }
    return true;
  }

  std::int64_t done(std::size_t call, const plan::Instruction& i, int step) const {
    return step == 0 ? options_.progress->done_at_first(call, i.stream, i.value) : options_.progress->done(call, i.stream, i.value);
  }

  void forget(Slot& slot) {
    live_[static_cast<std::size_t>(slot.category)] -= slot.bytes;
    if (repeats_) --live_in_frame_[slot.frame];
    slot.bytes = 0;
  }

  void release(Slot& slot, std::uint32_t name) {
    const hwmodels::EventToken token = allocator_.give_back(slot.block);
    forget(slot);
    if (token == hwmodels::EventToken{}) return;
    const auto node = recorded_.extract(name);
    for (const auto& [stream, done] : node.mapped()) {
      if (done == kAtOnce) {
        allocator_.complete_events({static_cast<std::uint8_t>(stream)}, token);
        continue;
      }
      // The event comes after all that the stream was given before it.
      auto& queue = pending_[static_cast<std::size_t>(stream)];
      queue.push_back({queue.empty() ? done : std::max(done, queue.back().done), token});
      any_pending_ = true;
    }
  }

  /// The allocator looks at the events of other streams; `now`: the host's clock.
  void see_events(std::int64_t now) {
    any_pending_ = false;
    for (std::size_t s = 0; s < pending_.size(); ++s) {
      auto& queue = pending_[s];
      for (; !queue.empty() && queue.front().done <= now; queue.pop_front()) allocator_.complete_events({static_cast<std::uint8_t>(s)}, queue.front().token);
      any_pending_ = any_pending_ || !queue.empty();
    }
  }

  static std::string name_of_slot(const plan::Block& b, const plan::Instruction& i) {
    return i.frame == plan::Frame::own && i.index < b.slot_names.size() ? b.slot_names[i.index] : "slot " + std::to_string(i.index);
  }

  void remember_peak() {
    result_.live_at_peak.clear();
    for (const Slot& s : slots_) {
      if (s.bytes < (std::int64_t{1} << 20)) continue;
      const plan::Block& b = plan_.blocks[s.block_of_plan];
      result_.live_at_peak.push_back({b.name + ": " + (s.name < b.slot_names.size() ? b.slot_names[s.name] : ""), s.category, s.bytes});
    }
  }

  const plan::Plan& plan_;
  const plan::Program& program_;
  const MemoryOptions& options_;
  hwmodels::CachingAllocator allocator_;
  std::vector<Slot> slots_;
  std::vector<std::optional<MemoryOperations>> operations_;   // of the plan's blocks, once they are called unattended
  std::array<std::int64_t, plan::kCategories> live_{};
  std::int64_t peak_ = -1, high_ = 0;
  ClassMemory result_;
  std::optional<Repeats> repeats_;               // if shortcuts are allowed
  std::vector<FrameUse> last_use_;               // by beginning of the frame
  std::vector<std::int32_t> live_in_frame_;
  std::uint64_t places_ = 0;                     // where this period's tensors came to lie, hashed
  std::unordered_map<std::uint64_t, std::size_t> periods_;  // of this step: places -> the call after it
  std::optional<Moment> candidate_;              // to be compared with the beginning of the period
  std::size_t candidate_due_ = 0;                // that begins with this call
  bool attended_ = false;                        // somebody looks at more than peaks, or time decides when tensors come back, or all is to be run
  bool checkpoints_wanted_ = false;
  std::int64_t step_operations_ = 0, step_began_ = 0;
  Bytes at_last_step_;                           // allocated when the latest step began
  bool same_end_ = false;                        // and so it is when that step ends
  std::vector<Checkpoint> checkpoints_;          // of the last step but one
  static constexpr std::int64_t kAtOnce = INT64_MIN;
  struct Pending {
    std::int64_t done = 0;
    hwmodels::EventToken token;
  };
  std::map<std::uint32_t, std::vector<std::pair<plan::Stream, std::int64_t>>> recorded_;   // by slot: streams that use it too, and when they are done
  std::array<std::deque<Pending>, plan::kStreams> pending_;                                // frees that wait for them
  bool any_pending_ = false;
};

}  // namespace

ClassMemory run_memory(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options) { return Ledger(plan, rank_class, options).run(); }

}  // namespace rehearse::executor
