#include "strategies/memory/module_offload.h"

#include <algorithm>
#include <string>

namespace rehearse::strategies {

using plan::Category;
using plan::CopySpec;
using plan::Phase;
using plan::Stream;

namespace {

std::uint32_t gone(const ModuleOffload::Place& place, std::size_t group) { return place.extra + 2 * static_cast<std::uint32_t>(group); }
std::uint32_t back(const ModuleOffload::Place& place, std::size_t group) { return gone(place, group) + 1; }

std::int64_t bytes(const std::vector<OffloadedTensor>& tensors) {
  std::int64_t sum = 0;
  for (const OffloadedTensor& t : tensors) sum += t.bytes;
  return sum;
}

}  // namespace

template <typename Write>
void ModuleOffload::call(const Place& place, const std::string& what, std::size_t group, Phase phase, Write write) {
  plan::Call c = place.call;
  c.block = stage_.block(what + " group " + std::to_string(group) + " of block " + std::to_string(place.forward), [&](plan::BlockWriter& w) {
    w.reserve_slots(place.extra + kSlots);
    write(w);
  });
  c.phase = phase;
  stage_.append(c);
}

void ModuleOffload::leave(const Place& place, std::size_t group) {
  const OffloadedGroup& of = (*place.groups)[group];
  call(place, "offload", group, Phase::forward, [&](plan::BlockWriter& w) {
    for (const OffloadedTensor& t : of.copied) w.copy(stage_.builder.copy({CopySpec::Direction::device_to_host, pinned_, Bytes{t.bytes}}), Stream::to_host, plan::kAfterCompute, stage_.profile.kernel_host);
    w.record(Stream::to_host, gone(place, group));
    if (!pinned_) w.host_wait(gone(place, group));
    for (const OffloadedTensor& t : of.released) {
      w.record_stream(t.slot, Stream::to_host, t.frame);
      w.free(t.slot, t.frame);
    }
  });
  if (of.copied.empty()) return;   // lets go of earlier ones' tensors
  away_[place.pass].push_back({place, group, false});
  if (const auto most = stage_.strategy.memory.offload.in_flight) {
    auto& leaving = leaving_[of.module];
    for (leaving.emplace_back(place, group); static_cast<int>(leaving.size()) > *most; leaving.pop_front()) {
      const auto& [older, its_group] = leaving.front();
      call(older, "wait for offload", its_group, Phase::forward, [&](plan::BlockWriter& w) { w.wait(Stream::compute, gone(older, its_group)); });
    }
  }
  live_ += bytes(of.copied);
  if (live_ <= peak_) return;
  (pinned_ ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable) += live_ - peak_;
  peak_ = live_;
}

void ModuleOffload::begin(const Place& place, std::size_t group) {
  std::vector<Away>& away = away_[place.pass];
  const auto it = std::find_if(away.begin(), away.end(), [&](const Away& a) { return a.place.unit == place.unit && a.group == group; });
  if (it == away.end()) return;   // it never left
  if (!it->asked_for) fetch(*it, true);
  else call(place, "use", group, Phase::backward, [&](plan::BlockWriter& w) { w.wait(Stream::compute, back(place, group)); });
  away.erase(it);
}

void ModuleOffload::end(const Place& place) {
  std::vector<Away>& away = away_[place.pass];
  const auto it = std::find_if(away.rbegin(), away.rend(), [](const Away& a) { return !a.asked_for; });
  if (it == away.rend()) return;
  fetch(*it, false);
  it->asked_for = true;
}

void ModuleOffload::fetch(const Away& away, bool compute_waits) {
  const auto& [place, group, asked_for] = away;
  const OffloadedGroup& of = (*place.groups)[group];
  const int sync = plan::kAfterCompute | (compute_waits ? plan::kComputeWaits : 0);
  call(place, compute_waits ? "fetch at once" : "fetch", group, Phase::backward, [&](plan::BlockWriter& w) {
    w.wait(Stream::to_device, gone(place, group));
    for (const OffloadedTensor& t : of.fetched) w.alloc(t.slot, t.bytes, Category::activation, t.frame, Stream::to_device);
    for (const OffloadedTensor& t : of.copied) w.copy(stage_.builder.copy({CopySpec::Direction::host_to_device, pinned_, Bytes{t.bytes}}), Stream::to_device, sync, stage_.profile.kernel_host);
    w.record(Stream::to_device, back(place, group));
    if (!pinned_) w.host_wait(back(place, group));
  });
  live_ -= bytes(of.copied);
}

}  // namespace rehearse::strategies
