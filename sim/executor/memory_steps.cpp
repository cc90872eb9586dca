#include "sim/executor/memory_steps.h"

#include <algorithm>

namespace rehearse::executor {

MemorySteps::MemorySteps(const plan::Plan& plan, const plan::Program& program, int steps) : steps_(steps) {
  const auto allocates = [](const plan::Instruction& i) { return (i.op == plan::Opcode::alloc || i.op == plan::Opcode::alloc_once) && i.value > 0; };
  std::int64_t kept_from = 0;   // operations before tensors are made that stay
  for (const plan::Call& c : program.step) {
    const std::vector<plan::Instruction>& memory = plan.blocks[c.block].memory;
    if (c.first_step_only && steps == 2 && std::any_of(memory.begin(), memory.end(), allocates)) kept_from = operations_;
    if (!c.first_step_only || steps == 2) operations_ += static_cast<std::int64_t>(memory.size());
  }
  first_differs_ = 2 * kept_from > operations_;
}

void MemorySteps::begin(int step) {
  last_but_one_ = step == steps_ - 2;
  last_ = step == steps_ - 1;
  next_ = operations_ / 64;  // then at twice as many, each time
  next_to_compare_ = 0;
}

std::int64_t MemorySteps::same_rest(std::size_t call, std::int64_t done, const std::vector<MemorySlot>& slots,
                                    const hwmodels::CachingAllocator& allocator) {
  if (last_but_one_ && done >= next_) {
    next_ = 2 * done;
    if (next_ < 2 * operations_) checkpoints_.push_back(checkpoint(call, done, slots, allocator));
  }
  if (!last_ || next_to_compare_ == checkpoints_.size() || call < checkpoints_[next_to_compare_].call) return 0;
  Checkpoint& before = checkpoints_[next_to_compare_++];
  if (call != before.call) return 0;
  Checkpoint now = checkpoint(call, done, slots, allocator);
  return now.live == before.live && now.allocator.equals(before.allocator) ? operations_ - before.done : 0;
}

MemorySteps::Checkpoint MemorySteps::checkpoint(std::size_t call, std::int64_t done, const std::vector<MemorySlot>& slots,
                                                const hwmodels::CachingAllocator& allocator) {
  Checkpoint c{.call = call, .done = done, .allocator = allocator.condition(), .live = {}};
  for (std::uint32_t s = 0; s < slots.size(); ++s)
    if (const MemorySlot& slot = slots[s]; slot.bytes > 0)
      c.live.push_back({allocator.address_of(slot.block), slot.bytes, s, slot.category});
  return c;
}

}  // namespace rehearse::executor
