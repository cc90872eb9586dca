#include "strategies/host_backend.h"

#include <algorithm>
#include <utility>

namespace rehearse::strategies {

using plan::Instruction;
using plan::Opcode;
using plan::Stream;

namespace {

bool carries_collectives(Stream s) { return s != Stream::compute && s != Stream::to_device && s != Stream::to_host; }

/// Does the host wait after this instruction? `recorded`: events of this block that stand behind a collective.
bool waits_after(const Instruction& i, const std::vector<std::pair<plan::Frame, std::uint32_t>>& recorded) {
  if (i.op == Opcode::collective) return (i.flags & plan::kComputeWaits) != 0;
  return i.op == Opcode::wait && i.stream == Stream::compute && std::find(recorded.begin(), recorded.end(), std::pair{i.frame, i.index}) != recorded.end();
}

std::vector<Instruction> with_waits(const std::vector<Instruction>& timing, Backend backend) {
  std::vector<Instruction> out;
  std::vector<std::pair<plan::Frame, std::uint32_t>> recorded;
  for (std::size_t k = 0; k < timing.size(); ++k) {
    Instruction i = timing[k];
    if (i.op == Opcode::collective && backend == Backend::mpi) i.flags |= plan::kAfterCompute | plan::kComputeWaits;
    if (i.op == Opcode::record && carries_collectives(i.stream)) recorded.emplace_back(i.frame, i.index);
    out.push_back(i);
    // Several waits in a row are one for the host.
    const bool goes_on = k + 1 < timing.size() && (timing[k + 1].op == Opcode::record || timing[k + 1].op == Opcode::wait);
    if (waits_after(i, recorded) && (i.op == Opcode::collective || !goes_on)) out.push_back({.op = Opcode::host_sync});
  }
  return out;
}

}  // namespace

void carry_through_host(plan::Plan& plan, Backend backend) {
  if (backend == Backend::nccl) return;
  for (plan::Block& block : plan.blocks) {
    block.timing = with_waits(block.timing, backend);
    block.cuts.clear();   // their places have moved; nobody looks at them any more
  }
  for (plan::RankClass& c : plan.classes) {
    std::int64_t largest = 0;
    for (const plan::Call& call : c.program.step)
      for (const Instruction& i : plan.blocks[call.block].timing)
        if (i.op == Opcode::collective && c.groups[static_cast<std::size_t>(plan.collectives[i.index].axis)].ranks > 1) largest = std::max(largest, plan.collectives[i.index].bytes.value);
    (backend == Backend::gloo ? c.host.pinned : c.host.pageable) += largest;
  }
}

}  // namespace rehearse::strategies
