#include "sim/executor/device_progress.h"

#include <algorithm>

#include "sim/core/contract.h"

namespace rehearse::executor {
namespace {

using plan::Opcode;

bool is_work(Opcode op) { return op == Opcode::kernel || op == Opcode::collective || op == Opcode::send || op == Opcode::recv || op == Opcode::copy; }

/// Does the host wait for the device?
bool waits(const plan::Block& block) {
  return std::any_of(block.timing.begin(), block.timing.end(), [](const plan::Instruction& i) { return i.op == Opcode::host_wait || i.op == Opcode::host_sync; });
}

/// Is the host held by a collective, whose steps no rank passes before the others?
bool held(const plan::Plan& plan, const plan::Block& block) {
  return std::any_of(block.timing.begin(), block.timing.end(), [&](const plan::Instruction& i) { return i.op == Opcode::collective && plan.collectives[i.index].host_waits; });
}

/// What one call of a block issues.
struct Issued {
  std::int64_t host = 0, launches = 0;   // host: picoseconds that the launches take, without the layers' Python
  std::array<std::int64_t, plan::kStreams> works{};
};

Issued issued_by(const plan::Block& block) {
  Issued out;
  for (const plan::Instruction& i : block.timing) {
    if (is_work(i.op)) out.host += i.value;
    // Records and waits are entries of the queue as well.
    if (i.op == Opcode::record || i.op == Opcode::wait) ++out.launches;
    if (!is_work(i.op)) continue;
    out.launches += 1 + 2 * ((i.flags & plan::kAfterCompute) != 0) + 2 * ((i.flags & plan::kComputeWaits) != 0);
    ++out.works[static_cast<std::size_t>(i.stream)];
  }
  return out;
}

}  // namespace

bool records_streams(const plan::Plan& plan) {
  for (const plan::Block& b : plan.blocks)
    for (const plan::Instruction& i : b.memory)
      if (i.op == Opcode::record_stream) return true;
  return false;
}

DeviceProgress::DeviceProgress(const plan::Plan& plan, const plan::Program& program, const ClassTiming& timing) : step_(timing.step), timing_(timing) {
  const std::size_t calls = program.step.size();
  EXPECTS(timing.call_host.size() == calls && timing.call_device.size() == calls, "the times were taken without progress");
  std::vector<Issued> of_block(plan.blocks.size());
  std::vector<bool> known(plan.blocks.size(), false);
  std::int64_t launches = 0, through = 0;
  std::array<std::int64_t, plan::kStreams> works{};
  for (std::size_t c = 0; c < calls; ++c) {
    const std::uint32_t b = program.step[c].block;
    if (!known[b]) of_block[b] = issued_by(plan.blocks[b]);
    known[b] = true;
    launches_.push_back(launches);
    launches += of_block[b].launches;
    for (std::size_t s = 0; s < works.size(); ++s) {
      works_[s].push_back(works[s]);
      works[s] += of_block[b].works[s];
    }
    through = std::max(through, timing.call_device[c]);
    device_.push_back(through);
  }
  launches_.push_back(launches);
  for (std::size_t s = 1; s < works.size(); ++s) EXPECTS(timing.done[s].size() == static_cast<std::size_t>(works[s]), "works of a stream without times");
  // What a layer's Python takes is as long as the slowest rank of a group takes. Any other rank issues its launches sooner, until the queue is full
  // or a collective holds it.
  std::int64_t synchronised = calls == 0 ? 0 : timing.call_host[0];
  for (std::size_t c = 0; c < calls; ++c) {
    if (c > 0 && (waits(plan.blocks[program.step[c - 1].block]) || held(plan, plan.blocks[program.step[c - 1].block]))) synchronised = timing.call_host[c];
    const std::int64_t issued = c == 0 ? synchronised : host_[c - 1] + of_block[program.step[c - 1].block].host;
    host_.push_back(std::max({synchronised, issued, device(launches_[c] - kLaunchQueue)}));
  }
  std::size_t messages = 0;
  for (std::size_t c = 0; c < calls && stalls_until_ == 0; ++c) {
    const auto& timing_of = plan.blocks[program.step[c].block].timing;
    const auto has = [&](auto is) { return std::any_of(timing_of.begin(), timing_of.end(), is); };
    if (has([](const plan::Instruction& i) { return i.op == Opcode::send && i.stream == plan::Stream::send_forward; }) && ++messages == 2) stalls_from_ = c;
    if (messages >= 2 && (waits(plan.blocks[program.step[c].block]) || launches_[c] - launches_[stalls_from_] >= kLaunchQueue)) stalls_until_ = c;
  }
  host_.push_back(calls == 0 ? step_ : std::max(host_.back() + of_block[program.step.back().block].host, host_.front() + step_));
}

/// When the device begins with a launch, counted from the step's first; negative ones are the step's before.
std::int64_t DeviceProgress::device(std::int64_t launch) const {
  const std::int64_t all = launches_.back();
  if (all == 0) return 0;
  std::int64_t steps_before = 0;
  for (; launch < 0; launch += all) ++steps_before;
  const auto c = static_cast<std::size_t>(std::upper_bound(launches_.begin(), launches_.end(), launch) - launches_.begin()) - 1;
  const std::int64_t from = c == 0 ? device_.back() - step_ : device_[c - 1], of_call = launches_[c + 1] - launches_[c];
  const double part = static_cast<double>(launch - launches_[c]) / static_cast<double>(of_call);
  return from + static_cast<std::int64_t>(part * static_cast<double>(device_[c] - from)) - steps_before * step_;
}

std::int64_t DeviceProgress::host(std::size_t call, double part) const {
  return host_[call] + static_cast<std::int64_t>(part * static_cast<double>(host_[call + 1] - host_[call]));
}

std::int64_t DeviceProgress::done(std::size_t call, plan::Stream stream, std::int64_t ordinal) const {
  const auto s = static_cast<std::size_t>(stream);
  const std::int64_t nth = works_[s][call] + ordinal;
  return nth == 0 ? timing_.done[s].empty() ? 0 : timing_.done[s].back() - step_ : timing_.done[s][static_cast<std::size_t>(nth - 1)];
}

std::int64_t DeviceProgress::done_at_first(std::size_t call, plan::Stream stream, std::int64_t ordinal) const {
  const std::int64_t at = done(call, stream, ordinal);
  return stalls_from_ < call && call < stalls_until_ ? std::max(at, host_[stalls_until_]) : at;
}

}  // namespace rehearse::executor
