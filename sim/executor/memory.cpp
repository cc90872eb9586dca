#include "sim/executor/memory.h"

#include <algorithm>
#include <utility>

#include "hwmodels/memory/caching_allocator_quick.h"
#include "sim/core/contract.h"
#include "sim/executor/memory_operations.h"
#include "sim/executor/memory_periods.h"
#include "sim/executor/memory_steps.h"
#include "sim/executor/memory_streams.h"

namespace rehearse::executor {
namespace {

using plan::Opcode;

/// Somebody looks at more than peaks, or time decides when tensors come back, or all is to be run.
bool attended(const MemoryOptions& o) { return o.timeline || o.taken_again || o.observer != nullptr || o.progress != nullptr || !o.shortcuts; }

class Ledger {
 public:
  Ledger(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options)
      : plan_(plan),
        program_(plan.classes[rank_class].program),
        options_(options),
        attended_(attended(options)),
        allocator_(options.allocator, options.observer != nullptr || !options.shortcuts ? hwmodels::StatisticsKept::all
                                                                                        : hwmodels::StatisticsKept::bytes),
        slots_(program_.slots),
        operations_(plan.blocks.size()) {
    allocator_.set_observer(options.observer);
    if (attended_) return;
    periods_.emplace(plan, program_);
    if (!periods_->worth_looking()) periods_.reset();
    if (options.steps < 2) return;
    steps_.emplace(plan, program_, options.steps);
    if (!steps_->worth_looking()) steps_.reset();
  }

  ClassMemory run() {
    bool alive = calls(program_.setup, -1);
    for (int step = 0; alive && step < options_.steps; ++step) {
      alive = calls(program_.step, step);
      if (options_.progress != nullptr) streams_.next_step(options_.progress->step());
    }
    if (options_.observer != nullptr) options_.observer->at_end(allocator_);
    const hwmodels::AllocatorStatistics& s = allocator_.statistics();
    result_.peak_allocated = s.allocated_bytes.peak;
    result_.peak_reserved = s.reserved_bytes.peak;
    result_.end_allocated = end_allocated_.value_or(s.allocated_bytes.current);
    result_.end_reserved = end_reserved_.value_or(s.reserved_bytes.current);
    name_peak();
    std::sort(result_.live_at_peak.begin(), result_.live_at_peak.end(), [](const LiveTensor& a, const LiveTensor& b) { return a.bytes > b.bytes; });
    return std::move(result_);
  }

 private:
  /// Runs a list of calls; false when memory does not suffice. Step -1 is setup.
  bool calls(const std::vector<plan::Call>& list, int step) {
    const bool last = step == options_.steps - 1;
    const std::int64_t before = result_.operations;
    const Bytes at_begin = allocator_.statistics().allocated_bytes.current, reserved_at_begin = allocator_.statistics().reserved_bytes.current;
    if (periods_) periods_->begin_step();
    if (steps_) steps_->begin(step);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (steps_)
        if (const std::int64_t rest = steps_->same_rest(i, result_.operations - before, slots_, allocator_); rest > 0) {
          leave_out(rest);
          end_allocated_ = at_begin;
          end_reserved_ = reserved_at_begin;
          return true;
        }
      if (step >= 0 && periods_) {
        if (periods_->begins_at(i)) {
          const MemoryPeriods::LeftOut again = periods_->same_again(i, result_.operations, slots_, allocator_);
          leave_out(again.operations);
          i += again.calls;
          if (i == list.size()) break;
        }
        if (!periods_->use_frames(list[i], i)) periods_.reset();
      }
      if (step > 0 && list[i].first_step_only) continue;
      const std::int64_t index = step < 0 ? -1 : static_cast<std::int64_t>(i);
      const Bytes taken = allocator_.statistics().taken;
      const std::int64_t retries = allocator_.statistics().retries;
      if (!(attended_ ? block(list[i], index, step) : block_unattended(list[i], index, step))) return false;
      if (options_.taken_again && last && (allocator_.statistics().taken > taken || allocator_.statistics().retries > retries))
        result_.taken_again.push_back({static_cast<std::uint32_t>(i), allocator_.statistics().taken - taken, allocator_.statistics().retries > retries});
      if (options_.timeline && last)
        result_.timeline.push_back({static_cast<std::uint32_t>(i), high_, allocator_.statistics().reserved_bytes.current.value});
    }
    return true;
  }

  void leave_out(std::int64_t operations) {
    result_.operations += operations;
    result_.repeated += operations;
  }

  /// Runs the memory instructions of a call; false when memory does not suffice.
  bool block(const plan::Call& call, std::int64_t index, int step) {
    const plan::Block& b = plan_.blocks[call.block];
    high_ = allocator_.statistics().allocated_bytes.current.value;
    const plan::Instruction* const first = b.memory.data();
    for (const plan::Instruction& i : b.memory) {
      ++result_.operations;
      const std::uint32_t frame = frame_of(call, i);
      MemorySlot& slot = slots_[frame + i.index];
      switch (i.op) {
        case Opcode::alloc_once:
          if (slot.bytes != 0) break;
          [[fallthrough]];
        case Opcode::alloc: {
          if (i.value == 0) break;
          EXPECTS(slot.bytes == 0, b.name + ": a live tensor's slot is allocated again: " + name_of_slot(b, i));
          if (streams_.any_waiting() && index >= 0) {
            const double reached = static_cast<double>(&i - first + 1) / static_cast<double>(b.memory.size());
            streams_.see(options_.progress->host(static_cast<std::size_t>(index), reached), allocator_);
          }
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
      const plan::Instruction& i = o->instruction;
      const std::uint32_t frame = frame_of(call, i);
      MemorySlot& slot = slots_[frame + i.index];
      switch (i.op) {
        case Opcode::alloc_once:
          if (slot.bytes != 0) break;
          [[fallthrough]];
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
          if (periods_) periods_->allocated(frame, address);
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
      MemorySlot& from = slots_[frame + static_cast<std::uint32_t>(i.value)];
      MemorySlot& to = slots_[own + i.index];
      if (&from == &to) return;
      EXPECTS(to.bytes == 0, plan_.blocks[call.block].name + ": moved onto a live tensor");
      if (periods_ && from.bytes > 0) periods_->moved(from.frame, own);
      streams_.move(frame + static_cast<std::uint32_t>(i.value), own + i.index);
      to = from;
      to.frame = own;
      from = MemorySlot{};
      return;
    }
    EXPECTS(i.op == Opcode::record_stream, "a timing instruction among memory instructions");
    const MemorySlot& slot = slots_[frame + i.index];
    if (slot.bytes == 0) return;
    allocator_.record_stream(slot.block, {static_cast<std::uint8_t>(i.stream)});
    streams_.use(frame + i.index, i.stream, done(i, index, step));
  }

  /// When the stream of a record_stream is through with the tensor.
  std::int64_t done(const plan::Instruction& i, std::int64_t index, int step) const {
    if (options_.progress == nullptr || index < 0) return StreamUses::kAtOnce;
    const auto call = static_cast<std::size_t>(index);
    return step == 0 ? options_.progress->done_at_first(call, i.stream, i.value) : options_.progress->done(call, i.stream, i.value);
  }

  void fail(const hwmodels::OutOfMemory& reason, std::int64_t call, int step) {
    result_.out_of_memory = reason;
    result_.failed_call = call;
    result_.failed_step = step;
  }

  static std::uint32_t frame_of(const plan::Call& call, const plan::Instruction& i) { return i.op == Opcode::alloc_once ? 0 : call.frames[static_cast<std::size_t>(i.frame)]; }

  /// Would running this passage change nothing, not even a peak?
  bool leaves_nothing(const Passage& p) const {
    for (const std::uint32_t slot : p.once)
      if (slots_[slot].bytes == 0) return false;
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

  /// A tensor that comes and goes, where nothing but a peak is left of it; false: it has to be allocated in full.
  bool lent(MemoryOperation& o, std::int64_t call, int step) {
    const hwmodels::CachingAllocator::Loan loan = allocator_.lend(o.request);
    if (loan.size == 0) return false;
    if (periods_) periods_->lies_at(loan.address);
    const std::int64_t now = allocator_.statistics().allocated_bytes.current.value + loan.size;
    if (now > peak_) {
      live_[o.instruction.flags] += o.instruction.value;
      new_peak(now, call, step);
      live_[o.instruction.flags] -= o.instruction.value;
    }
    return true;
  }

  void forget(MemorySlot& slot) {
    live_[static_cast<std::size_t>(slot.category)] -= slot.bytes;
    if (periods_) periods_->freed(slot.frame);
    slot.bytes = 0;
  }

  void release(MemorySlot& slot, std::uint32_t name) {
    const hwmodels::EventToken token = allocator_.give_back(slot.block);
    forget(slot);
    if (token != hwmodels::EventToken{}) streams_.free(name, token, allocator_);
  }

  static std::string name_of_slot(const plan::Block& b, const plan::Instruction& i) {
    if (i.op == Opcode::alloc_once) return "made once";
    return i.frame == plan::Frame::own && i.index < b.slot_names.size() ? b.slot_names[i.index] : "slot " + std::to_string(i.index);
  }

  void remember_peak() {
    at_peak_.clear();
    for (const MemorySlot& s : slots_)
      if (s.bytes >= std::int64_t{1} << 20) at_peak_.push_back(s);
  }

  /// Once, at the end: peaks are many.
  void name_peak() {
    for (const MemorySlot& s : at_peak_) {
      const plan::Block& b = plan_.blocks[s.block_of_plan];
      std::string name(plan::title_of(b));
      if (s.name < b.slot_names.size() && !b.slot_names[s.name].empty()) name += ": " + b.slot_names[s.name];
      result_.live_at_peak.push_back({std::move(name), s.category, s.bytes});
    }
  }

  const plan::Plan& plan_;
  const plan::Program& program_;
  const MemoryOptions& options_;
  const bool attended_;
  hwmodels::CachingAllocator allocator_;
  std::vector<MemorySlot> slots_, at_peak_;
  std::vector<std::optional<MemoryOperations>> operations_;  // of the plan's blocks, once they are called unattended
  std::array<std::int64_t, plan::kCategories> live_{};
  std::int64_t peak_ = -1, high_ = 0;
  StreamUses streams_;
  std::optional<MemoryPeriods> periods_;  // while they may be left out
  std::optional<MemorySteps> steps_;
  std::optional<Bytes> end_allocated_, end_reserved_;    // where the end of the last step was left out
  ClassMemory result_;
};

}  // namespace

ClassMemory run_memory(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options) { return Ledger(plan, rank_class, options).run(); }

}  // namespace rehearse::executor
