// Free blocks of one pool and stream, ordered by (size, address): best fit is the first one not smaller than
// the request. Leaves out what a block is and who its neighbours are (caching_allocator.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {

/// One free block in 128 bits that sort like (size, address). Sizes and addresses are multiples of 512 B, the
/// allocator's granule, so a size below 2 TiB takes 32 bits and the block's index fits beside its address.
struct FreeEntry {
  std::uint64_t high = 0;  // size in granules, then the address' upper half
  std::uint64_t low =
      0;  // the address' lower half, then the block's index (which never decides: addresses differ)

  static constexpr int kGranuleBits = 9;

  static FreeEntry of(std::int64_t size, std::uint64_t address, std::uint32_t block) {
    const std::uint64_t granule_address = address >> kGranuleBits;
    return {(static_cast<std::uint64_t>(size) >> kGranuleBits << 32) | (granule_address >> 32),
            (granule_address << 32) | block};
  }
  std::uint32_t block() const { return static_cast<std::uint32_t>(low); }
  std::int64_t size() const { return static_cast<std::int64_t>(high >> 32 << kGranuleBits); }
  friend bool operator<(const FreeEntry& a, const FreeEntry& b) {
    return a.high < b.high || (a.high == b.high && a.low < b.low);
  }
  friend bool operator==(const FreeEntry&, const FreeEntry&) = default;
};

/// A sorted sequence kept in chunks of at most 64 entries: a training step keeps tens to a few thousand free
/// blocks, where two short binary searches and a move of at most 1 KiB beat any tree of nodes, and nothing
/// touches the heap once the chunks exist. Chunks split when full and join when a neighbour has room, so cost
/// stays logarithmic plus 64.
class FreeList {
 public:
  /// A place in the order; valid until the list changes.
  struct Place {
    std::uint32_t chunk = 0;
    std::uint32_t slot = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  bool empty() const { return order_.empty(); }
  std::size_t size() const;
  Place begin() const { return {0, 0}; }
  Place end() const { return {static_cast<std::uint32_t>(order_.size()), 0}; }
  Place next(Place p) const { return ++p.slot < chunk(p.chunk).count ? p : Place{p.chunk + 1, 0}; }
  /// Precondition: p is not begin().
  Place previous(Place p) const {
    if (p.slot > 0) return {p.chunk, p.slot - 1};
    return {p.chunk - 1, chunk(p.chunk - 1).count - 1};
  }
  const FreeEntry& at(Place p) const { return chunk(p.chunk).entries[p.slot]; }

  /// First entry with at least `size` bytes; the lowest address among equals. end() when none is large
  /// enough.
  Place first_fit(std::int64_t size) const;
  /// Precondition: the entry is in the list.
  Place find(const FreeEntry& entry) const;

  void insert(const FreeEntry& entry);
  void erase(Place p);
  /// Erases the entry at p and inserts another: one short move when the two are neighbours in the order,
  /// which is what cutting a piece off a block or growing it by a merge usually means.
  void replace(Place p, const FreeEntry& entry);

 private:
  static constexpr std::uint32_t kCapacity = 64;
  static constexpr std::uint32_t kJoin = 40;  // two neighbours with at most this many together become one

  struct Chunk {
    std::uint32_t count = 0;
    std::array<FreeEntry, kCapacity> entries;
  };

  Chunk& chunk(std::uint32_t position) { return chunks_[order_[position]]; }
  const Chunk& chunk(std::uint32_t position) const { return chunks_[order_[position]]; }
  std::uint32_t chunk_for(const FreeEntry& entry) const;
  void refresh_last(std::uint32_t position);
  void split(std::uint32_t position);
  void join_or_drop(std::uint32_t position);

  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> unused_;  // chunks not in order_
  std::vector<std::uint32_t> order_;   // chunks from small to large
  std::vector<FreeEntry> last_;        // the largest entry of each chunk, in the same order
};

}  // namespace rehearse::hwmodels
