#include "sim/executor/memory.h"

#include <algorithm>

#include "sim/core/contract.h"

namespace rehearse::executor {
namespace {

using plan::Opcode;

struct Slot {
  hwmodels::BlockId block;
  std::int64_t bytes = 0;   // 0: empty
  plan::Category category = plan::Category::temporary;
  std::uint32_t block_of_plan = 0, name = 0;
};

class Ledger {
 public:
  Ledger(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options)
      : plan_(plan), program_(plan.classes[rank_class].program), options_(options), allocator_(options.allocator), slots_(program_.slots) {}

  ClassMemory run() {
    allocator_.set_observer(options_.observer);
    bool alive = calls(program_.setup, -1);
    for (int step = 0; alive && step < options_.steps; ++step) alive = calls(program_.step, step);
    if (options_.observer != nullptr) options_.observer->at_end(allocator_);
    const hwmodels::AllocatorStatistics& s = allocator_.statistics();
    result_.peak_allocated = s.allocated_bytes.peak;
    result_.peak_reserved = s.reserved_bytes.peak;
    result_.end_allocated = s.allocated_bytes.current;
    std::sort(result_.live_at_peak.begin(), result_.live_at_peak.end(), [](const LiveTensor& a, const LiveTensor& b) { return a.bytes > b.bytes; });
    return std::move(result_);
  }

 private:
  bool calls(const std::vector<plan::Call>& list, int step) {
    const bool last = step == options_.steps - 1;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!block(list[i], step < 0 ? -1 : static_cast<std::int64_t>(i), step)) return false;
      if (options_.timeline && last)
        result_.timeline.push_back({static_cast<std::uint32_t>(i), high_, allocator_.statistics().reserved_bytes.current.value});
    }
    return true;
  }

  bool block(const plan::Call& call, std::int64_t index, int step) {
    const plan::Block& b = plan_.blocks[call.block];
    high_ = allocator_.statistics().allocated_bytes.current.value;
    for (const plan::Instruction& i : b.memory) {
      Slot& slot = slots_[call.frames[static_cast<std::size_t>(i.frame)] + i.index];
      ++result_.operations;
      switch (i.op) {
        case Opcode::alloc: {
          if (i.value == 0) break;
          EXPECTS(slot.bytes == 0, b.name + ": a live tensor's slot is allocated again: " + name_of_slot(b, i));
          if (options_.observer != nullptr) options_.observer->on_tensor(step, call, name_of_slot(b, i), static_cast<plan::Category>(i.flags));
          const hwmodels::Allocation got = allocator_.allocate(Bytes{i.value}, {static_cast<std::uint8_t>(i.stream)});
          if (!got) {
            result_.out_of_memory = *got.out_of_memory;
            result_.failed_call = index;
            result_.failed_step = step;
            return false;
          }
          slot = {got.block, i.value, static_cast<plan::Category>(i.flags), call.block, i.index};
          live_[i.flags] += i.value;
          const std::int64_t now = allocator_.statistics().allocated_bytes.current.value;
          high_ = std::max(high_, now);
          if (now > peak_) {
            peak_ = now;
            result_.at_peak = live_;
            result_.peak_step = step;
            result_.peak_call = index;
            if (options_.timeline) remember_peak();
          }
          break;
        }
        case Opcode::free:
          if (slot.bytes == 0) break;  // an empty slot: nothing was allocated (0 bytes) or it went elsewhere
          release(slot);
          break;
        case Opcode::move: {
          Slot& from = slots_[call.frames[static_cast<std::size_t>(i.frame)] + static_cast<std::uint32_t>(i.value)];
          Slot& to = slots_[call.frames[static_cast<std::size_t>(plan::Frame::own)] + i.index];
          if (&from == &to) break;
          EXPECTS(to.bytes == 0, b.name + ": moved onto a live tensor");
          to = from;
          from = Slot{};
          break;
        }
        case Opcode::record_stream:
          if (slot.bytes > 0) allocator_.record_stream(slot.block, {static_cast<std::uint8_t>(i.stream)});
          break;
        default:
          EXPECTS(false, "a timing instruction among memory instructions");
      }
    }
    return true;
  }

  void release(Slot& slot) {
    live_[static_cast<std::size_t>(slot.category)] -= slot.bytes;
    allocator_.free(slot.block);
    slot = Slot{};
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
  std::array<std::int64_t, plan::kCategories> live_{};
  std::int64_t peak_ = -1, high_ = 0;
  ClassMemory result_;
};

}  // namespace

ClassMemory run_memory(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options) { return Ledger(plan, rank_class, options).run(); }

}  // namespace rehearse::executor
