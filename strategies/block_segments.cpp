#include "strategies/block_segments.h"

namespace rehearse::strategies {

using plan::Opcode;

std::uint32_t slots_with_cuts(const plan::Block& block) { return block.slots + static_cast<std::uint32_t>(block.cuts.size()); }

std::vector<std::uint32_t> segments_of(plan::PlanBuilder& builder, std::uint32_t id) {
  const plan::Block whole = builder.block(id);  // a copy: adding blocks moves the original
  std::vector<std::uint32_t> out;
  plan::Cut from;
  plan::Instruction opening{};  // what the next part begins with
  bool opens = false;
  for (std::size_t c = 0; c <= whole.cuts.size(); ++c) {
    const plan::Cut to = c < whole.cuts.size() ? whole.cuts[c] : plan::Cut{static_cast<std::uint32_t>(whole.timing.size()), static_cast<std::uint32_t>(whole.memory.size())};
    plan::Block part;
    part.name = whole.name;
    part.slot_names = whole.slot_names;
    part.slots = slots_with_cuts(whole);
    if (opens) part.timing.push_back(opening);
    opens = false;
    part.timing.insert(part.timing.end(), whole.timing.begin() + from.timing, whole.timing.begin() + to.timing);
    part.memory.assign(whole.memory.begin() + from.memory, whole.memory.begin() + to.memory);
    if (c < whole.cuts.size() && !part.timing.empty()) {
      plan::Instruction& last = part.timing.back();
      if (last.op == Opcode::collective && (last.flags & plan::kComputeWaits) != 0) {
        last.flags = static_cast<std::uint8_t>(last.flags & ~plan::kComputeWaits);
        const auto event = static_cast<std::uint32_t>(whole.slots + c);
        part.timing.push_back({Opcode::record, last.stream, plan::Frame::own, 0, event, 0});
        opening = {Opcode::wait, plan::Stream::compute, plan::Frame::own, 0, event, 0};
        opens = true;
      }
    }
    from = to;
    if (!part.timing.empty() || !part.memory.empty()) out.push_back(builder.add_block(std::move(part)));
  }
  if (out.empty()) out.push_back(id);
  return out;
}

}  // namespace rehearse::strategies
