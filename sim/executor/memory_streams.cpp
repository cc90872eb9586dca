#include "sim/executor/memory_streams.h"

#include <algorithm>

namespace rehearse::executor {

void StreamUses::use(std::uint32_t slot, plan::Stream stream, std::int64_t done) {
  std::vector<std::pair<plan::Stream, std::int64_t>>& uses = uses_[slot];
  for (auto& [known, when] : uses)
    if (known == stream) {
      when = std::max(when, done);  // a stream that uses a tensor again is done with it the later time
      return;
    }
  uses.emplace_back(stream, done);
}

void StreamUses::move(std::uint32_t from, std::uint32_t to) {
  if (const auto node = uses_.extract(from); !node.empty()) uses_[to] = node.mapped();
}

void StreamUses::free(std::uint32_t slot, hwmodels::EventToken token, hwmodels::CachingAllocator& allocator) {
  const auto node = uses_.extract(slot);
  for (const auto& [stream, done] : node.mapped()) {
    if (done == kAtOnce) {
      allocator.complete_events({static_cast<std::uint8_t>(stream)}, token);
      continue;
    }
    // The event comes after all that the stream was given before it.
    auto& queue = waiting_[static_cast<std::size_t>(stream)];
    queue.push_back({queue.empty() ? done : std::max(done, queue.back().done), token});
    any_waiting_ = true;
  }
}

void StreamUses::see(std::int64_t now, hwmodels::CachingAllocator& allocator) {
  any_waiting_ = false;
  for (std::size_t s = 0; s < waiting_.size(); ++s) {
    auto& queue = waiting_[s];
    for (; !queue.empty() && queue.front().done <= now; queue.pop_front())
      allocator.complete_events({static_cast<std::uint8_t>(s)}, queue.front().token);
    any_waiting_ = any_waiting_ || !queue.empty();
  }
}

void StreamUses::next_step(std::int64_t step) {
  for (auto& queue : waiting_)
    for (Waiting& w : queue) w.done -= step;
}

}  // namespace rehearse::executor
