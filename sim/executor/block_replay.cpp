#include "sim/executor/block_replay.h"

#include <algorithm>

namespace rehearse::executor {
namespace {

using plan::Opcode;
using plan::Stream;

constexpr float Load::* kShared[] = {&Load::hbm, &Load::nvlink, &Load::nic, &Load::pcie};

bool is_message_stream(Stream s) { return s == Stream::send_forward || s == Stream::recv_forward || s == Stream::send_backward || s == Stream::recv_backward; }
constexpr int kMessageStreams = 4;

}  // namespace

bool may_replay(const plan::Plan& plan, const plan::RankClass& rank_class, const plan::Block& block, BlockReplay& replay) {
  bool works = false;
  for (const plan::Instruction& i : block.timing) {
    switch (i.op) {
      case Opcode::kernel:
        if (i.stream != Stream::compute) return false;
        works = true;
        break;
      case Opcode::collective:
        if (i.stream == Stream::compute || is_message_stream(i.stream) || !rank_class.partners[static_cast<std::size_t>(plan.collectives[i.index].axis)].empty()) return false;
        break;
      case Opcode::copy:
        if (i.stream == Stream::compute || is_message_stream(i.stream)) return false;
        break;
      case Opcode::record:
        if (is_message_stream(i.stream)) return false;
        replay.records.push_back({.stream = i.stream, .frame = i.frame, .slot = i.index});
        break;
      case Opcode::wait: {
        const auto own = std::find_if(replay.records.rbegin(), replay.records.rend(), [&](const ReplayedRecord& r) { return r.frame == i.frame && r.slot == i.index; });
        if (own == replay.records.rend() || is_message_stream(i.stream)) return false;
        replay.waits.push_back(static_cast<std::uint32_t>(replay.records.rend() - own - 1));
        break;
      }
      case Opcode::host: break;
      default: return false;
    }
  }
  return works;
}

bool messages_have_their_streams(const plan::Plan& plan) {
  for (const plan::Block& b : plan.blocks)
    for (const plan::Instruction& i : b.timing)
      if (is_message_stream(i.stream) && (i.op == Opcode::kernel || i.op == Opcode::collective || i.op == Opcode::copy)) return false;
  return true;
}

Load most_of_messages(const std::vector<Priced>& messages) {
  Load most;
  for (const Priced& m : messages) {
    most.sm = std::max(most.sm, m.load.sm);
    for (const auto part : kShared) most.*part = std::max(most.*part, m.load.*part);
  }
  most.sm *= kMessageStreams;
  for (const auto part : kShared) most.*part *= kMessageStreams;
  return most;
}

bool fits_beside(const CostTable& costs, std::size_t rank_class, const plan::Block& block, const Load& messages) {
  if (messages.sm > 0) return false;
  std::array<Load, plan::kStreams> most{};   // a stream runs one thing at a time
  for (const plan::Instruction& i : block.timing) {
    const Priced* work = i.op == Opcode::kernel       ? &costs.kernel(rank_class, i.index)
                         : i.op == Opcode::collective ? &costs.collectives[rank_class][i.index]
                         : i.op == Opcode::copy       ? &costs.copies[i.index]
                                                      : nullptr;
    if (work == nullptr) continue;
    Load& mine = most[static_cast<std::size_t>(i.stream)];
    for (const auto part : kShared) mine.*part = std::max(mine.*part, work->load.*part);
  }
  for (const auto part : kShared) {
    if (messages.*part == 0) continue;
    double sum = static_cast<double>(messages.*part);
    for (const Load& l : most) sum += static_cast<double>(l.*part);
    if (sum > 1) return false;
  }
  return true;
}

bool stays_blocked(const RankState& rank, const Item& item, const EventRange& own) {
  if (item.whole) return true;
  // The compute stream records events only once it is through; another stream is asked for itself. Messages end any time.
  if (item.op != Opcode::wait) return false;
  const Event& e = rank.events[item.index];
  return e.time == kUnset && !is_message_stream(e.recorder) && !own.holds(item.index);
}

bool stays_quiet(const RankState& rank, int k, std::int64_t until, bool beside_messages, const EventRange& own) {
  const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
  if (s.empty()) return true;
  if (beside_messages && is_message_stream(static_cast<Stream>(k))) return true;
  if (s.running || s.arrived || s.met) return false;
  if (s.start != kNever) return s.start >= until;
  return stays_blocked(rank, s.front(), own);
}

}  // namespace rehearse::executor
