// The memory instructions of a block, worked out for one allocator so that they can be run many times, and the passages
// among them that come and go. Leaves out running them (memory.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/plan/plan.h"

namespace rehearse::executor {

/// A stretch of instructions that frees all that it allocates and nothing else. Free memory is what lies between the live
/// tensors, so it is afterwards as it was before; only a peak could tell that they have been run, and a new segment.
struct Passage {
  struct Room {
    hwmodels::CachingAllocator::Prepared request;   // one of its pool
    std::int64_t bytes = 0;                         // that are cut off one free block, if all are cut off the same
  };
  std::uint32_t operations = 0;
  std::int64_t rise = 0;      // of allocated bytes, at most: a block that is lent whole is larger than was asked for
  std::vector<Room> rooms;    // by pool
  std::vector<std::uint32_t> once;   // slots of the program that have to be live
};

constexpr std::uint32_t kNoPassage = UINT32_MAX;

/// An instruction, with what is known of it beforehand.
struct MemoryOperation {
  plan::Instruction instruction;
  bool freed_at_once = false;               // by the next one
  std::uint32_t passage = kNoPassage;       // that begins here
  hwmodels::CachingAllocator::Prepared request;  // of an alloc
};

struct MemoryOperations {
  MemoryOperations(const plan::Block& block, hwmodels::CachingAllocator& allocator);

  std::vector<MemoryOperation> all;   // as the block's
  std::vector<Passage> passages;
};

}  // namespace rehearse::executor
