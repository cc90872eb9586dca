// A step that comes to a call and finds memory as the step before found it there: the rest of it does what the rest of
// that one did, reaches no new peak and ends where it began. Leaves out running steps (memory.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/executor/memory_slot.h"

namespace rehearse::executor {

class MemorySteps {
 public:
  /// Of a program that is run `steps` times, at least twice.
  MemorySteps(const plan::Plan& plan, const plan::Program& program, int steps);

  /// Looking costs about as much as some thousand operations. Where the first of two steps makes tensors that stay towards its end
  /// (optimizer states), the second one finds other memory than it did.
  bool worth_looking() const { return operations_ >= 4000 && !first_differs_; }

  /// A step begins. Only the last but one is remembered, and only the last one compared.
  void begin(int step);

  /// The step has come to this call, `done` operations after it began. How many operations are left, if they would do
  /// what those of the step before did; 0: they have to be run.
  std::int64_t same_rest(std::size_t call, std::int64_t done, const std::vector<MemorySlot>& slots,
                         const hwmodels::CachingAllocator& allocator);

 private:
  /// All that decides what the rest of a step does with memory. Every tensor has the same slot in every step.
  struct Checkpoint {
    std::size_t call = 0;
    std::int64_t done = 0;  // operations of its step, before it
    hwmodels::AllocatorCondition allocator;
    struct Live {
      std::uint64_t address = 0;
      std::int64_t bytes = 0;
      std::uint32_t slot = 0;
      plan::Category category = plan::Category::temporary;
      friend bool operator==(const Live&, const Live&) = default;
    };
    std::vector<Live> live;  // by slot
  };
  static Checkpoint checkpoint(std::size_t call, std::int64_t done, const std::vector<MemorySlot>& slots,
                               const hwmodels::CachingAllocator& allocator);

  int steps_;
  std::int64_t operations_ = 0;  // of a step
  bool first_differs_ = false;   // of two steps, until near its end
  bool last_but_one_ = false, last_ = false;
  std::int64_t next_ = 0;  // operations of the step, before the next checkpoint
  std::vector<Checkpoint> checkpoints_;
  std::size_t next_to_compare_ = 0;
};

}  // namespace rehearse::executor
