// Programs written block by block, for tests of the executor. Leaves out what they cost (hand_costs.h) and how a test calls the blocks.
#pragma once

#include <string>
#include <utility>

#include "sim/plan/builder.h"

namespace rehearse::test_support {

struct HandPlan {
  plan::PlanBuilder builder;
  HandPlan(std::size_t classes, std::uint32_t slots_of_class, std::uint32_t slots_of_block) : slots_of_block_(slots_of_block) {
    builder.plan().classes.resize(classes);
    for (plan::RankClass& c : builder.plan().classes) c.program.slots = slots_of_class;
  }
  std::uint32_t kernel(const std::string& name) { return builder.kernel({.bytes_read = 1, .name = name}); }
  template <typename Write>
  std::uint32_t block(Write write) {
    plan::BlockWriter w("block");
    w.reserve_slots(slots_of_block_);
    write(w);
    return builder.add_block(w.take());
  }

 private:
  std::uint32_t slots_of_block_;
};

}  // namespace rehearse::test_support
