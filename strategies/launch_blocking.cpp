#include "strategies/launch_blocking.h"

#include <utility>

namespace rehearse::strategies {

using plan::Instruction;
using plan::Opcode;
using plan::Stream;

namespace {

constexpr std::uint32_t bit(Stream s) { return 1u << static_cast<unsigned>(s); }

constexpr std::uint32_t kMessages = bit(Stream::send_forward) | bit(Stream::recv_forward) | bit(Stream::send_backward) | bit(Stream::recv_backward);

Instruction wait_for(std::uint32_t streams) { return {.op = Opcode::host_sync, .index = streams}; }

/// Does the host thread take time for this, so that a group of messages before it has been launched?
bool takes_time(const Instruction& i) {
  switch (i.op) {
    case Opcode::kernel:
    case Opcode::collective:
    case Opcode::copy:
    case Opcode::host_work: return true;
    case Opcode::host: return i.value > 0;
    default: return false;
  }
}

}  // namespace

void block_launches(plan::Plan& plan) {
  for (plan::Block& block : plan.blocks) {
    std::vector<Instruction> out;
    bool after_messages = !plan.messages.empty();   // of a block before, perhaps
    for (const Instruction& i : block.timing) {
      if (takes_time(i) && std::exchange(after_messages, false)) out.push_back(wait_for(kMessages));
      out.push_back(i);
      if (i.op == Opcode::kernel || i.op == Opcode::collective) out.push_back(wait_for(bit(i.stream)));
      if (i.op == Opcode::send || i.op == Opcode::recv) after_messages = true;
    }
    block.timing = std::move(out);
    block.cuts.clear();   // their places have moved; nobody looks at them any more
  }
}

}  // namespace rehearse::strategies
