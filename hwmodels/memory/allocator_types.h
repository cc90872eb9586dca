// What the simulated CUDA caching allocator is told and what it tells: settings, handles, statistics,
// observer, snapshot. Leaves out how it decides (caching_allocator.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/units.h"

namespace rehearse::hwmodels {

/// PYTORCH_CUDA_ALLOC_CONF and what surrounds it; defaults as PyTorch's. Source: c10/core/AllocatorConfig.h
/// (PyTorch 2.13).
struct AllocatorSettings {
  /// What cudaMalloc or cuMemCreate can hand to this process: device memory less context, NCCL and other
  /// users' bytes.
  Bytes limit;
  /// The device's total, which scales memory_fraction and an expandable segment's address range; absent:
  /// `limit`.
  std::optional<Bytes> device_total{};
  bool expandable_segments = false;
  /// max_split_size_mb: blocks of at least this size are never split. Whole MiB, at least 20. Absent:
  /// unlimited.
  std::optional<Bytes> max_split_size{};
  /// max_non_split_rounding_mb: how much larger than the request a reused unsplittable block may be.
  Bytes max_non_split_rounding = 20_MiB;
  /// large_segment_size_mb: segment of requests from 1 to 10 MiB, and page of the large pool's expandable
  /// segments.
  Bytes large_segment_size = 20_MiB;
  /// set_per_process_memory_fraction; absent: never called.
  std::optional<double> memory_fraction{};
  /// garbage_collection_threshold, a fraction of memory_fraction's bytes; 0 = off, and off without
  /// memory_fraction.
  double garbage_collection_threshold = 0;
  /// roundup_power2_divisions for requests below 2 MiB, below 4 MiB, ... , from 32 GiB; 0 or 1 = off, else a
  /// power of 2.
  std::array<std::int32_t, 16> roundup_power2_divisions{};
};

/// A CUDA stream of this device; 0 is the default stream. Free lists are visited in this order.
struct StreamId {
  std::uint8_t value = 0;
  friend constexpr auto operator<=>(StreamId, StreamId) = default;
};
inline constexpr int kMaxStreams = 64;

/// A live allocation. The default value is the empty tensor's: no block, free() ignores it.
struct BlockId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend constexpr bool operator==(BlockId, BlockId) = default;
};

/// Names the events of one delayed free; later frees have larger tokens.
struct EventToken {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(EventToken, EventToken) = default;
};

/// Why an allocation failed after every retry: torch.OutOfMemoryError's numbers.
struct OutOfMemory {
  Bytes asked;               // by the caller
  Bytes segment;             // that cudaMalloc refused: "Tried to allocate"
  Bytes allocated;           // live blocks
  Bytes reserved;            // segments that could not be given back, free pieces included
  Bytes limit;               // min(settings.limit, memory_fraction x total)
  Bytes largest_free_block;  // over all pools and streams: large means fragmentation, not shortage
  StreamId stream;
};

/// A success holds a block; a failure holds the reason, valid until the next failure.
struct Allocation {
  BlockId block;
  const OutOfMemory* out_of_memory = nullptr;
  explicit operator bool() const { return out_of_memory == nullptr; }
};

/// A quantity now and at its highest since the start or the last reset.
template <typename T>
struct Gauge {
  T current{};
  T peak{};
  void add(T amount) {
    current += amount;
    peak = std::max(peak, current);
  }
  void subtract(T amount) { current -= amount; }
};

/// torch.cuda.memory_stats(), the "all" pool. Bytes are of blocks (rounded) except requested_bytes.
struct AllocatorStatistics {
  Gauge<Bytes> allocated_bytes;  // live blocks: memory_allocated()
  Gauge<Bytes> active_bytes;     // plus blocks freed but waiting for another stream
  Gauge<Bytes> reserved_bytes;   // segments and mapped pages: memory_reserved()
  Gauge<Bytes>
      inactive_split_bytes;  // free pieces of partly used segments; 0 for expandable segments, as in PyTorch
  Gauge<Bytes> requested_bytes;  // what callers asked for, of active blocks
  Gauge<std::int64_t> allocations, active_blocks, inactive_splits;
  Gauge<std::int64_t> segments;    // cudaMalloc'ed ones; expandable segments are not counted, as in PyTorch
  std::int64_t device_allocs = 0;  // cudaMalloc calls and page mappings that succeeded
  std::int64_t device_frees = 0;   // cudaFree calls and unmappings
  Bytes taken{};                   // from the device, by device_allocs
  std::int64_t retries = 0;        // device allocations repeated after giving the cache back
  std::int64_t ooms = 0;
  std::int64_t synchronizations = 0;  // waits for every delayed free's events
};

/// Which statistics are kept. Counting all of them costs as much as finding a block.
enum class StatisticsKept : std::uint8_t {
  all,
  bytes,  // allocated_bytes, reserved_bytes, segments and the counts of rare events; the other gauges stay 0
};

/// A moment of an allocator. Two moments of one allocator that are equal lead to the same answers for the same requests
/// from then on, and to the same statistics but for counters of what has happened so far.
struct AllocatorCondition {
  struct Block {
    std::uint64_t address = 0;
    std::int64_t size = 0, requested = 0;
    std::uint64_t other_streams = 0, what = 0;  // pool, state, expandable segment
    friend bool operator==(const Block&, const Block&) = default;
  };
  std::vector<Block> blocks;
  std::uint64_t next_address = 0, fingerprint = 0;
  bool comparable = true;  // false: depends on more than this, such as events that have not completed
  bool sorted = false;
  /// Compares to the last byte; sorts both sides the first time.
  bool equals(AllocatorCondition& other);
};

enum class AllocatorAction : std::uint8_t {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  oom
};

/// One entry of PyTorch's memory trace, in order of happening.
struct AllocatorEvent {
  AllocatorAction action;
  std::uint64_t address = 0;  // of the block, segment or page range; for oom the device's free bytes
  Bytes size;  // asked for by the caller (alloc, free_*), of the segment or range, or refused (oom)
  StreamId stream;
  BlockId block;  // of alloc and free_*
};

class AllocatorObserver {
 public:
  virtual ~AllocatorObserver() = default;
  virtual void on(const AllocatorEvent& event) = 0;
};

enum class BlockState : std::uint8_t { inactive, active_allocated, active_pending_free };

struct BlockSnapshot {
  std::uint64_t address = 0;
  Bytes size;
  Bytes requested;  // 0 when inactive
  BlockState state = BlockState::inactive;
};

/// A cudaMalloc'ed segment, or one contiguous mapped range of an expandable one. Its blocks tile it.
struct SegmentSnapshot {
  std::uint64_t address = 0;
  Bytes total, allocated, active, requested;
  StreamId stream;
  bool small_pool = false;
  bool expandable = false;
  std::vector<BlockSnapshot> blocks;
};

}  // namespace rehearse::hwmodels
