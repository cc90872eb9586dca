// Follows the events of a rank class's program as CUDA would: a wait on an event that nobody has recorded waits for nothing.
#pragma once

#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace rehearse::test_support {

/// The waits of a second step whose event was recorded neither in that step before them nor in the step before: "block / stream".
inline std::vector<std::string> waits_for_nothing(const plan::Plan& plan, std::size_t rank_class) {
  const plan::Program& program = plan.classes[rank_class].program;
  std::vector<bool> recorded(program.slots);
  std::vector<std::string> out;
  for (int step = 0; step < 2; ++step)
    for (const plan::Call& call : program.step) {
      const plan::Block& block = plan.blocks[call.block];
      for (const plan::Instruction& i : block.timing) {
        if (i.op != plan::Opcode::record && i.op != plan::Opcode::wait) continue;
        const std::uint32_t event = call.frames[static_cast<std::size_t>(i.frame)] + i.index;
        if (i.op == plan::Opcode::record) recorded[event] = true;
        else if (step == 1 && !recorded[event]) out.push_back(block.name + ", layer " + std::to_string(call.layer));
      }
    }
  return out;
}

}  // namespace rehearse::test_support
