// PyTorch's CUDA caching allocator for one device, simulated exactly: which block each request gets, and what
// is reserved. Leaves out CUDA-graph private pools (they would be more pools of the same kind), sharing
// between processes, and time.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "hwmodels/memory/allocator_types.h"
#include "hwmodels/memory/free_list.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels {

/// Behaviour: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.x; the tests state each rule and compare a
/// recorded run of the real library (tests/unit/hwmodels/memory).
///
/// Addresses are simulated: each segment lies above all earlier ones and none is reused, as if the driver's
/// address space were handed out in ascending order. They decide only among free blocks of equal size (lowest
/// first), so a driver with another order changes which of two equal blocks is taken, never a size rule. A
/// value type: copies are independent.
class CachingAllocator {
 public:
  /// Precondition: memory below 1 TiB, split and segment sizes as AllocatorSettings says, divisions 0 or
  /// powers of two.
  explicit CachingAllocator(const AllocatorSettings& settings, StatisticsKept statistics = StatisticsKept::all);

  /// A block of at least `bytes` for use on `stream`, from the cache or the device. 0 bytes need no block.
  /// Fails with the reason when the device refuses even after the cache was given back; nothing is then
  /// allocated.
  Allocation allocate(Bytes bytes, StreamId stream);

  /// The caller is done with the block. It is reusable at once (host order) unless record_stream named other
  /// streams: then an event is recorded on each of them and the token names these events. Precondition: the
  /// block is live.
  /// give_back() says the same without an optional, for who frees millions: the default token when it is reusable at once.
  /// (GCC 12 writes an optional to the stack in parts and reads it back whole, which stalls every free.)
  EventToken give_back(BlockId block);
  std::optional<EventToken> free(BlockId block) {
    const EventToken token = give_back(block);
    return token == EventToken{} ? std::nullopt : std::optional(token);
  }

  /// A request that will be made again and again, with all that is known of it beforehand.
  struct Prepared {
    std::int64_t bytes = 0, size = 0;   // asked for, rounded
    std::int64_t least_rest = 0;        // of a block, to be split off
    StreamId stream;
    std::uint16_t pool = 0;
    FreeList::SizeHint asked = FreeList::kNone, rest = FreeList::kNone;  // of the size, of what was left last time
  };
  Prepared prepare(Bytes bytes, StreamId stream);

  // caching_allocator_quick.h: what allocate() and give_back() do where a cached block serves, nobody observes and only
  // bytes are counted. Nothing has happened where they say no: then those have to be called.
  /// A block at an address; the empty block says no. Precondition: more than 0 bytes.
  struct Taken {
    BlockId block;
    std::uint64_t address = 0;
  };
  Taken take(Prepared& request);
  bool put_back(BlockId block);
  /// take() and put_back() at once: nothing is left of them but the peak of allocated_bytes. The block that would have
  /// been lent; of size 0: no.
  struct Loan {
    std::uint64_t address = 0;
    std::int64_t size = 0;
  };
  Loan lend(Prepared& request);
  /// Is what comes and goes, `bytes` of one pool in all, served from the cache for certain, whatever is taken and returned
  /// when? The largest free block is large enough to cut all off it, with enough left each time for the next.
  bool has_room(const Prepared& any_of_its_pool, std::int64_t bytes) const;

  /// The block is also used by work queued on `stream`. The block's own stream needs no mark and gets none.
  void record_stream(BlockId block, StreamId stream);

  /// The device has passed the events that frees with tokens up to `up_to` recorded on `stream`. Their blocks
  /// return to the free lists at the next allocate(), where PyTorch looks.
  void complete_events(StreamId stream, EventToken up_to);

  /// torch.cuda.empty_cache(): waits for all events, then gives every unsplit free segment and free page
  /// back.
  void empty_cache();

  /// What the process may hold from now on; NCCL and libraries take theirs while training runs.
  void set_limit(Bytes limit) { settings_.limit = limit; }

  const AllocatorSettings& settings() const { return settings_; }
  const AllocatorStatistics& statistics() const { return statistics_; }
  /// torch.cuda.reset_peak_memory_stats(): every peak becomes the current value.
  void reset_peak();
  /// Size of a live block (what it adds to allocated_bytes) and its simulated address.
  Bytes size_of(BlockId block) const { return Bytes{checked(block).size}; }
  std::uint64_t address_of(BlockId block) const { return checked(block).address; }
  Bytes largest_free_block() const;
  /// What decides all that the allocator will do, ready to be compared with another moment of the same allocator.
  AllocatorCondition condition() const;
  /// Every segment in address order.
  std::vector<SegmentSnapshot> snapshot() const;
  /// Sees every event from now on; nullptr to stop. Not owned; changes no number.
  void set_observer(AllocatorObserver* observer) {
    observer_ = observer;
    quick_ = quick_ && observer == nullptr;
  }

  /// The block size a request gets before any unsplit tail: 512 B multiples or power-of-two divisions.
  Bytes round_size(Bytes bytes) const;
  /// What is asked of cudaMalloc for a rounded size.
  Bytes segment_size(Bytes rounded) const;

 private:
  enum class State : std::uint8_t { unused, unmapped, free, allocated, pending };

  /// Blocks of one segment form a list in address order. Index 0 is nobody: its state matches no real
  /// neighbour's, so merging needs no extra test at a segment's ends.
  struct alignas(64) Block {
    std::uint64_t address = 0;
    std::int64_t size = 0;
    std::int64_t requested = 0;
    std::uint64_t other_streams = 0;  // bit per stream from record_stream
    std::int64_t gc_base = 0;         // searches of the pool when it became free
    std::uint32_t previous = 0;
    std::uint32_t next = 0;  // of an unused block: the next unused one
    std::uint32_t generation = 0;
    std::uint32_t range = 0;  // 1 + index of the expandable segment; 0 = cudaMalloc'ed
    std::uint16_t pool = 0;
    std::uint8_t events = 0;  // not yet seen as done
    State state = State::unused;
    FreeList::SizeHint size_hint = 0;

    bool is_split() const { return (previous | next) != 0; }
    FreeEntry entry(std::uint32_t index) const { return FreeEntry::of(size, address, index); }
  };

  /// The blocks that may serve one kind of request. Key: stream, then small or large (a private pool would be
  /// a third part).
  struct Pool {
    FreeList free;
    std::vector<std::uint32_t> unmapped;  // address ranges without pages, by address
  };
  static std::uint16_t pool_of(StreamId stream, bool small) {
    return static_cast<std::uint16_t>(stream.value * 2 + (small ? 1 : 0));
  }
  static StreamId stream_of(std::uint16_t pool) { return {static_cast<std::uint8_t>(pool / 2)}; }
  static bool is_small(std::uint16_t pool) { return pool % 2 != 0; }

  struct ExpandableRange {
    std::uint64_t address = 0;
    std::int64_t size = 0;
    std::int64_t page = 0;
  };
  struct PendingEvent {
    EventToken token;
    std::uint32_t block = 0;
  };
  struct EventQueue {
    std::vector<PendingEvent> events;
    std::size_t head = 0;
    EventToken completed;
  };

  const Block& checked(BlockId id) const {
    const Block& block = blocks_[id.index < blocks_.size() ? id.index : 0];
    EXPECTS(block.state == State::allocated && block.generation == id.generation,
            "block is not live: freed twice, or from another allocator");
    return block;
  }
  std::uint32_t new_record() {
    if (unused_ == 0) [[unlikely]] {
      blocks_.emplace_back();
      return static_cast<std::uint32_t>(blocks_.size() - 1);
    }
    const std::uint32_t index = unused_;
    unused_ = blocks_[index].next;
    return index;
  }
  void recycle(std::uint32_t index) {
    blocks_[index].state = State::unused;
    blocks_[index].next = unused_;
    unused_ = index;
  }
  bool splits(const Block& block, std::int64_t size) const;
  /// At the end of what is mapped of an expandable segment a block counts with the room behind it.
  bool can_grow(std::uint32_t index) const { return settings_.expandable_segments && blocks_[blocks_[index].next].state == State::unmapped; }
  FreeList::Place best_fit(std::uint16_t pool, std::int64_t size, FreeList::SizeHint& hint) const;
  std::uint32_t cut(std::uint32_t index, std::int64_t size);
  BlockId hand_out(std::uint32_t index, std::int64_t requested, bool was_split, std::int64_t remainder);
  void count_handed_out(const Block& block, bool was_split, std::int64_t remainder);
  void return_to_pool(std::uint32_t index);
  struct Joined {
    std::uint32_t whole = 0;
    std::int64_t bytes = 0, neighbours = 0;  // that were free and are part of it now
  };
  Joined join_neighbours(std::uint32_t index);
  void insert_free(std::uint32_t index);

  // caching_allocator_events.cpp
  void process_events();
  void synchronize_events();

  // caching_allocator_release.cpp: the slow path, when the cache has nothing that fits.
  struct Request {
    std::int64_t size;     // rounded
    std::int64_t segment;  // what cudaMalloc would be asked for
    std::uint16_t pool;
  };
  std::uint32_t obtain(const Request& request);
  std::uint32_t new_segment(const Request& request);
  bool release_oversize(const Request& request);
  void release_cached();
  void release_pools(bool small);
  void release_segment(std::uint32_t index);
  void collect_garbage();
  std::int64_t allowed() const;
  const OutOfMemory* fail(Bytes asked, const Request& request);
  std::uint64_t take_addresses(std::int64_t size);

  // caching_allocator_expandable.cpp: one virtual range per pool, pages mapped on demand.
  std::uint32_t expand(const Request& request);
  std::uint32_t expandable_candidate(const Request& request);
  std::uint32_t map(std::uint32_t index, std::int64_t size);
  void unmap(std::uint32_t index);
  void add_unmapped(std::uint32_t index);
  void remove_unmapped(std::uint32_t index);
  void merge_into_left(std::uint32_t left, std::uint32_t right);

  void tell(AllocatorAction action, std::uint64_t address, std::int64_t size, std::uint16_t pool,
            BlockId block = {}) {
    if (observer_ != nullptr) [[unlikely]] {
      observer_->on({action, address, Bytes{size}, stream_of(pool), block});
    }
  }

  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

  AllocatorSettings settings_;
  std::int64_t max_split_size_ = kUnlimited;
  bool rounds_to_divisions_ = false;
  bool collects_garbage_ = false;
  bool counts_all_ = true;   // statistics
  bool takes_best_ = false;  // the smallest block that fits is taken, whatever else there is
  bool quick_ = false;       // only bytes are counted, nobody observes, and no setting but the usual ones
  bool events_completed_ = false;  // since the last look
  AllocatorObserver* observer_ = nullptr;
  AllocatorStatistics statistics_;

  std::vector<Block> blocks_;
  std::uint32_t unused_ = 0;
  std::vector<Pool> pools_;
  std::array<std::int64_t, 2> searches_{};  // large, small: ages for garbage collection
  std::vector<ExpandableRange> ranges_;
  std::uint64_t next_address_;
  std::vector<EventQueue> queues_;
  EventToken last_token_;
  OutOfMemory out_of_memory_;
};

}  // namespace rehearse::hwmodels
