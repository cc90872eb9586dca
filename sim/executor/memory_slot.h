// A slot of a program and the live tensor in it. Leaves out who fills and empties it (memory.cpp).
#pragma once

#include "hwmodels/memory/allocator_types.h"
#include "sim/plan/plan.h"

namespace rehearse::executor {

struct MemorySlot {
  hwmodels::BlockId block;
  std::int64_t bytes = 0;  // 0: empty
  plan::Category category = plan::Category::temporary;
  std::uint32_t block_of_plan = 0, name = 0;
  std::uint32_t frame = 0;  // where its frame begins
};

}  // namespace rehearse::executor
