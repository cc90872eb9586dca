#include "strategies/serial_collectives.h"

namespace rehearse::strategies {

void serialise_collectives(plan::Plan& plan) {
  for (plan::Block& block : plan.blocks)
    for (plan::Instruction& i : block.timing)
      if (i.op == plan::Opcode::collective && i.stream != plan::Stream::compute) i.flags |= plan::kComputeWaits;
}

}  // namespace rehearse::strategies
