// When two moments of an allocator cannot be told apart by anything that comes later.
#include <algorithm>
#include <tuple>

#include "hwmodels/memory/caching_allocator.h"

namespace rehearse::hwmodels {
namespace {

std::uint64_t mixed(std::uint64_t v) {
  v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9ULL;
  v = (v ^ (v >> 27)) * 0x94d049bb133111ebULL;
  return v ^ (v >> 31);
}

}  // namespace

AllocatorCondition CachingAllocator::condition() const {
  AllocatorCondition out;
  out.next_address = next_address_;
  out.comparable = !collects_garbage_;
  for (const EventQueue& queue : queues_) out.comparable = out.comparable && queue.head == queue.events.size();
  out.blocks.reserve(blocks_.size());
  for (const Block& b : blocks_) {
    if (b.state == State::unused) continue;
    const std::uint64_t what = b.pool | static_cast<std::uint64_t>(b.state) << 16 | static_cast<std::uint64_t>(b.range) << 24;
    out.blocks.push_back({b.address, b.size, b.requested, b.other_streams, what});
    // A sum, so that the order of the records does not matter.
    out.fingerprint += mixed(b.address ^ mixed(static_cast<std::uint64_t>(b.size) ^ mixed(what)));
  }
  return out;
}

bool AllocatorCondition::equals(AllocatorCondition& other) {
  if (!comparable || !other.comparable || next_address != other.next_address || fingerprint != other.fingerprint || blocks.size() != other.blocks.size()) return false;
  for (AllocatorCondition* c : {this, &other}) {
    if (c->sorted) continue;
    std::sort(c->blocks.begin(), c->blocks.end(), [](const Block& a, const Block& b) { return a.address < b.address; });
    c->sorted = true;
  }
  return blocks == other.blocks;
}

}  // namespace rehearse::hwmodels
