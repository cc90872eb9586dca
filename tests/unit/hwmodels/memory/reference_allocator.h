// A slow caching allocator written straight from the documented rules, to judge the fast one: ordered maps,
// no shortcuts. Leaves out handles and observers; blocks are named by their address.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "hwmodels/memory/allocator_types.h"

namespace rehearse::hwmodels::test {

class ReferenceAllocator {
 public:
  explicit ReferenceAllocator(const AllocatorSettings& settings) : settings_(settings) {}

  std::optional<std::uint64_t> allocate(std::int64_t bytes, int stream);  // none: out of memory
  std::uint64_t free(std::uint64_t address);                              // token, or 0 when free at once
  void record_stream(std::uint64_t address, int stream);
  void complete_events(int stream, std::uint64_t token);
  void empty_cache();
  void reset_peak();
  void set_limit(Bytes limit) { settings_.limit = limit; }

  AllocatorStatistics statistics;

  enum class State { unmapped, free, allocated, pending };
  struct Block {
    std::int64_t size = 0, requested = 0;
    int segment = 0;
    State state = State::free;
    std::set<int> streams{};
    int events = 0;
    std::int64_t born = 0;  // pool searches when it became free
  };
  using Blocks = std::map<std::uint64_t, Block>;
  const Blocks& blocks() const { return blocks_; }

 private:
  struct PoolKey {
    int stream;
    bool small;
    friend auto operator<=>(const PoolKey&, const PoolKey&) = default;
  };
  struct Segment {
    PoolKey pool;
    bool expandable;
    std::uint64_t base;
    std::int64_t page;
  };
  using FreeKey = std::tuple<PoolKey, std::int64_t, std::uint64_t>;  // pool, size, address

  static constexpr std::int64_t kMi = 1 << 20;
  static std::int64_t up(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
  std::int64_t round(std::int64_t bytes) const;
  std::int64_t max_split() const { return settings_.max_split_size.value_or(Bytes{INT64_MAX}).value; }
  std::int64_t total() const { return settings_.device_total.value_or(settings_.limit).value; }
  bool first_of_segment(Blocks::iterator b) const;
  bool last_of_segment(Blocks::iterator b) const;
  bool alone(Blocks::iterator b) const { return first_of_segment(b) && last_of_segment(b); }
  FreeKey key(Blocks::iterator b) const {
    return {segments_.at(b->second.segment).pool, b->second.size, b->first};
  }
  void make_free(Blocks::iterator b);
  Blocks::iterator merge(Blocks::iterator b);
  Blocks::iterator split(Blocks::iterator b, std::int64_t size);
  void account_segment(int segment, int sign);
  void finish_free(std::uint64_t address);
  Blocks::iterator find_fit(PoolKey pool, std::int64_t size);
  Blocks::iterator new_block(PoolKey pool, std::int64_t size, std::int64_t segment_bytes);
  Blocks::iterator expand(PoolKey pool, std::int64_t size);
  Blocks::iterator map(Blocks::iterator b, std::int64_t size);
  void unmap(std::uint64_t address);
  bool release_oversize(PoolKey pool, std::int64_t size);
  void release(Blocks::iterator b);
  void garbage_collect();
  std::int64_t age(Blocks::iterator b);

  AllocatorSettings settings_;
  Blocks blocks_;
  std::map<int, Segment> segments_;
  std::set<FreeKey> free_;
  std::map<bool, std::int64_t> searches_;
  std::map<int, std::vector<std::pair<std::uint64_t, std::uint64_t>>> events_;  // stream -> (token, address)
  std::map<int, std::uint64_t> completed_;
  std::uint64_t token_ = 0;
  int next_segment_ = 0;
  std::uint64_t next_address_ = 0x7f0000000000;
  std::int64_t pending_split_bytes_ = 0, pending_splits_ = 0;
};

}  // namespace rehearse::hwmodels::test
