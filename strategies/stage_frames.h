// Frames of one rank's program that several actions need: each is given back when the last of them is written.
// Leaves out what lies in a frame (layer/tape_emitter.h).
#pragma once

#include <cstdint>
#include <map>

#include "sim/core/contract.h"
#include "sim/plan/builder.h"

namespace rehearse::strategies {

template <typename Key>
class SharedFrames {
 public:
  explicit SharedFrames(plan::FrameAllocator& frames) : frames_(frames) {}

  /// The frame of `key`; a new one of `slots` with this many users, if there is none.
  std::uint32_t of(const Key& key, std::uint32_t slots, int users) {
    const auto [it, fresh] = all_.try_emplace(key);
    if (fresh) it->second = {frames_.acquire(slots), slots, users};
    return it->second.base;
  }
  bool has(const Key& key) const { return all_.contains(key); }
  std::uint32_t at(const Key& key) const { return all_.at(key).base; }
  /// One of its users is done with it.
  void drop(const Key& key) {
    const auto it = all_.find(key);
    EXPECTS(it != all_.end(), "a frame is given back twice");
    if (--it->second.users > 0) return;
    frames_.release(it->second.base, it->second.slots);
    all_.erase(it);
  }
  bool empty() const { return all_.empty(); }

 private:
  struct Use {
    std::uint32_t base = 0, slots = 0;
    int users = 0;
  };
  plan::FrameAllocator& frames_;
  std::map<Key, Use> all_;
};

}  // namespace rehearse::strategies
