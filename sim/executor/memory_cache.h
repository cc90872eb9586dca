// Remembers what running the allocations of a program gave, by content: points of a sweep that differ in the network, a
// kernel or a schedule of reductions have the same memory. Leaves out running them (memory.h).
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "sim/executor/memory.h"

namespace rehearse::executor {

/// May be shared by threads. Changes no number: the same program under the same allocator has one answer, and content is
/// told apart by 128 bits of hash.
class MemoryCache {
 public:
  /// Keeps at most this many answers, the first ones (about 400 B each).
  explicit MemoryCache(std::size_t most = 65536) : most_(most) {}

  /// run_memory(plan, rank_class, options), or its answer to the same content. With a timeline or an observer it is run.
  ClassMemory run(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options);

  std::size_t size() const;
  std::size_t hits() const;

 private:
  struct Key {
    std::uint64_t high = 0, low = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const { return k.low; }
  };
  static Key key_of(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options);

  std::size_t most_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, ClassMemory, Hash> known_;
  std::size_t hits_ = 0;
};

}  // namespace rehearse::executor
