#include "sim/executor/timing.h"

#include <algorithm>

#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::Opcode;
using plan::Stream;

namespace {

Cause cause_of(const model::KernelSpec& k) {
  switch (k.kind) {
    case model::KernelKind::gemm:
    case model::KernelKind::grouped_gemm:
    case model::KernelKind::native_grouped_gemm: return Cause::gemm;
    case model::KernelKind::attention_forward:
    case model::KernelKind::attention_backward: return Cause::attention;
    case model::KernelKind::scan:
    case model::KernelKind::delta_rule: return Cause::scan;
    case model::KernelKind::optimizer: return Cause::optimizer;
    default: return Cause::memory_bound;
  }
}

}  // namespace

TimingRun::TimingRun(const plan::Plan& plan, const CostTable& costs, const TimingOptions& options)
    : plan_(plan), costs_(costs), options_(options), ranks_(plan.classes.size() + 1), next_(plan.classes.size(), kNever), earliest_(plan.classes.size() / kBlock + 1, kNever),
      meetings_of_(plan.classes.size()), replay_of_(plan.blocks.size(), kUnmeasured), standstills_(plan.blocks.size()), since_(plan.classes.size()) {
  for (std::size_t r = 0; r < plan.classes.size(); ++r) ranks_[r].rank_class = r;
  replays_allowed_ = options.shortcuts && !options.trace && messages_have_their_streams(plan);
  for (auto& of_axis : meetings_of_) of_axis.fill(UINT32_MAX);
  std::uint32_t used = 1;   // the compute stream
  for (const plan::Block& b : plan.blocks)
    for (const plan::Instruction& i : b.timing) used |= 1u << static_cast<unsigned>(i.stream);
  for (int k = 0; k < plan::kStreams; ++k)
    if (used >> k & 1u) used_.push_back(k);
  for (const model::KernelSpec& k : plan.kernels) kernel_cause_.push_back(cause_of(k));
}

TimingResult TimingRun::run() {
  if (options_.shortcuts && !options_.trace && !options_.progress && classes() > 0) expect_rhythm();
  standstills_allowed_ = options_.shortcuts && !options_.trace && !options_.progress && !rhythm_;
  for (std::size_t r = 0; r < classes(); ++r) {
    ranks_[r].slot_event.assign(plan_.classes[r].program.slots, UINT32_MAX);
    if (options_.steps == 1) ranks_[r].measured_from = 0;
    ranks_[r].result.call_host.assign(plan_.classes[r].program.step.size(), 0);
    if (options_.progress) ranks_[r].result.call_device.assign(plan_.classes[r].program.step.size(), 0);
    issue(r);
    for (const int k : used_) poll(r, k);
    settle(r);
  }
  for (std::size_t r = 0; r < classes(); ++r) set_next(r, next(r));
  // Global order of time: the rank whose next happening is earliest goes on.
  for (;;) {
    const auto block = static_cast<std::size_t>(std::min_element(earliest_.begin(), earliest_.end()) - earliest_.begin());
    if (earliest_[block] == kNever) break;
    const auto first = next_.begin() + static_cast<std::ptrdiff_t>(block * kBlock);
    const auto who = static_cast<std::size_t>(std::find(first, next_.end(), earliest_[block]) - next_.begin());
    const std::int64_t now = next_[who];
    happen(who, now);
    set_next(who, next(who));
    if (rhythm_ && who == 0) look_for_rhythm(now);
  }
  return finish();
}

TimingResult TimingRun::finish() {
  TimingResult result;
  std::int64_t last = 0, before = 0;
  ranks_.pop_back();   // the spare one
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankState& rank = ranks_[r];
    if (rank.step_end.size() < static_cast<std::size_t>(options_.steps)) {
      result.deadlock += describe(r);
      continue;
    }
    last = std::max(last, rank.step_end.back());
    if (options_.steps > 1) before = std::max(before, rank.step_end[rank.step_end.size() - 2]);
  }
  result.step = last - before;
  for (RankState& rank : ranks_) {
    // Every class's account covers one step; what it waits at the end for slower classes is idle.
    std::int64_t sum = 0;
    for (std::int64_t t : rank.result.time) sum += t;
    // One that came to the second step before the others, and no longer at its end, has a longer step of its own.
    rank.result.step = std::max(result.step, sum);
    rank.result.time[static_cast<std::size_t>(Cause::idle)] += rank.result.step - sum;
    std::erase_if(rank.result.host_works, [&](const HostSlice& work) { return work.end <= before; });
    for (HostSlice& work : rank.result.host_works) {
      work.start -= before;
      work.end -= before;
    }
    for (auto& done : rank.result.done) done.erase(done.begin(), done.end() - static_cast<std::ptrdiff_t>(done.size() / static_cast<std::size_t>(options_.steps)));
    result.classes.push_back(std::move(rank.result));
  }
  result.trace = std::move(trace_);
  for (Slice& slice : result.trace) {
    slice.start -= before;
    slice.end -= before;
  }
  result.instructions = instructions_;
  result.replayed = replayed_;
  result.again = again_;
  return result;
}

std::string TimingRun::describe(std::size_t r) const {
  const RankState& rank = ranks_[r];
  std::string text = plan_.classes[r].name + " stands still";
  for (int k = 0; k < plan::kStreams; ++k) {
    const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
    if (s.empty()) continue;
    const Item& item = s.front();
    text += "; stream '" + std::string(name_of(static_cast<Stream>(k))) + "' ";
    if (item.whole) text += "waits for the compute stream";
    else if (item.op == Opcode::wait) text += "waits for an event that is never recorded";
    else if (item.op == Opcode::send || item.op == Opcode::recv)
      text += std::string(item.op == Opcode::send ? "sends to " : "receives from ") + plan_.classes[plan_.messages[item.index].peer].name + ", which never answers";
    else if (item.op == Opcode::collective) text += "waits for the others in " + plan_.collectives[item.index].name;
    else text += "never starts";
  }
  return text + "\n";
}

TimingResult run_timing(const plan::Plan& plan, const CostTable& costs, const TimingOptions& options) { return TimingRun(plan, costs, options).run(); }

}  // namespace rehearse::executor
