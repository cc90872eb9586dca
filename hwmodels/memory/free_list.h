// Free blocks of one pool and stream, ordered by (size, address): best fit is the first one not smaller than
// the request. Leaves out what a block is and who its neighbours are (caching_allocator.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {

/// One free block. Sizes and addresses are multiples of 512 B, the allocator's granule. Sorts like (size, address);
/// the block's index never decides, for addresses differ.
struct FreeEntry {
  std::uint32_t granules = 0;  // size; below 2 TiB
  std::uint64_t place = 0;     // address in granules, then the block's index

  static constexpr int kGranuleBits = 9;
  static constexpr int kBlockBits = 24;

  static FreeEntry of(std::int64_t size, std::uint64_t address, std::uint32_t block) {
    return {static_cast<std::uint32_t>(size >> kGranuleBits), address >> kGranuleBits << kBlockBits | block};
  }
  std::uint32_t block() const { return static_cast<std::uint32_t>(place & ((1U << kBlockBits) - 1)); }
  std::int64_t size() const { return std::int64_t{granules} << kGranuleBits; }
  friend bool operator<(const FreeEntry& a, const FreeEntry& b) {
    return a.granules < b.granules || (a.granules == b.granules && a.place < b.place);
  }
  friend bool operator==(const FreeEntry&, const FreeEntry&) = default;
};

/// Blocks of equal size stand together, highest address first, so that the one to be taken is the last. A training
/// step asks for few distinct sizes again and again, so each size keeps its place, found by hashing, even while it has
/// no blocks; a bit says whether it has any. An exact fit, the usual case, is one look-up, and the next larger size is
/// the next bit. Cost: constant, but for the first block of a new size, the search among blocks of the same size and the
/// shifting of 8 bytes for each of them at lower addresses. Who remembers where a size was (SizeHint) saves the look-up.
class FreeList {
 public:
  /// A place in the order; valid until the list changes.
  struct Place {
    std::uint32_t size_class = 0;
    std::uint32_t slot = 0;  // among its blocks, from the lowest address up
    friend bool operator==(const Place&, const Place&) = default;
  };

  /// Where a size probably stands. Any value will do: it is checked, and a wrong one costs a look-up.
  using SizeHint = std::uint32_t;
  struct Fit {
    Place place;
    SizeHint asked = 0;  // of the size asked for, where it is known
  };

  bool empty() const { return blocks_ == 0; }
  std::size_t size() const { return blocks_; }
  Place begin() const { return {next_filled(0), 0}; }
  Place end() const { return {kNone, 0}; }
  Place next(Place p) const {
    return ++p.slot < classes_[p.size_class].blocks.size() ? p : Place{next_filled(ranks_[p.size_class] + 1), 0};
  }
  /// Precondition: p is not begin().
  Place previous(Place p) const;
  FreeEntry at(Place p) const {
    const SizeClass& c = classes_[p.size_class];
    return {c.granules, *(c.blocks.end() - 1 - p.slot)};
  }

  /// First entry with at least `size` bytes; the lowest address among equals. end() when none is large
  /// enough.
  Place first_fit(std::int64_t size) const { return fit(size).place; }
  Fit fit(std::int64_t size) const {
    const auto granules = static_cast<std::uint32_t>(size >> FreeEntry::kGranuleBits);
    const std::uint32_t id = class_of(granules);
    if (id == kNone) [[unlikely]] return {{next_filled(rank_not_below(granules)), 0}, id};
    return {{classes_[id].blocks.empty() ? next_filled(ranks_[id] + 1) : id, 0}, id};
  }
  /// Precondition: the entry is in the list.
  Place find(const FreeEntry& entry) const {
    const std::uint32_t id = class_of(entry.granules);
    EXPECTS(id != kNone, "free block is not in its list");
    return {id, static_cast<std::uint32_t>(classes_[id].blocks.size() - 1 - index_of(classes_[id], entry.place))};
  }

  /// Returns the hint for next time.
  SizeHint insert(const FreeEntry& entry, SizeHint hint = kNone) {
    std::uint32_t id = class_of(entry.granules, hint);
    if (id == kNone) [[unlikely]] id = new_class(entry.granules);
    SizeClass& c = classes_[id];
    const std::size_t n = c.blocks.size();
    c.blocks.push_back(entry.place);
    if (n == 0) {
      filled_[ranks_[id] / 64] |= std::uint64_t{1} << ranks_[id] % 64;
      ++filled_sizes_;
    } else if (c.blocks[n - 1] < entry.place) {
      std::uint64_t* const at = c.blocks.data() + above(c.blocks.data(), n, entry.place);
      std::memmove(at + 1, at, static_cast<std::size_t>(c.blocks.data() + n - at) * sizeof *at);
      *at = entry.place;
    }
    ++blocks_;
    return id;
  }
  void erase(Place p) {
    erase_at(p.size_class, classes_[p.size_class].blocks.size() - 1 - p.slot);
  }
  /// Precondition: the entry is in the list.
  void erase(const FreeEntry& entry, SizeHint hint) {
    const std::uint32_t id = class_of(entry.granules, hint);
    EXPECTS(id != kNone, "free block is not in its list");
    erase_at(id, index_of(classes_[id], entry.place));
  }
  /// Erases the entry at p and inserts another.
  void replace(Place p, const FreeEntry& entry) {
    erase(p);
    insert(entry);
  }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::size_t kMany = 128;  // sizes; from here on, those without blocks are forgotten now and then

  struct SizeClass {
    std::uint32_t granules = 0;
    std::vector<std::uint64_t> blocks;  // FreeEntry::place, descending
  };
  struct Bucket {
    std::uint32_t granules = 0;
    std::uint32_t id = kNone;
  };

  /// How many of n places in descending order lie above this one. A search without branches to guess.
  static std::size_t above(const std::uint64_t* places, std::size_t n, std::uint64_t place) {
    const std::uint64_t* first = places;
    while (n > 1) {
      const std::size_t half = n / 2;
      first += first[half - 1] > place ? half : 0;
      n -= half;
    }
    return static_cast<std::size_t>(first - places) + (n == 1 && *first > place);
  }
  static std::size_t index_of(const SizeClass& c, std::uint64_t place) {
    const std::size_t n = c.blocks.size(), at = above(c.blocks.data(), n, place);
    EXPECTS(at < n && c.blocks[at] == place, "free block is not in its list");
    return at;
  }
  void erase_at(std::uint32_t id, std::size_t at) {
    SizeClass& c = classes_[id];
    const std::size_t behind = c.blocks.size() - 1 - at;
    if (behind > 0) std::memmove(c.blocks.data() + at, c.blocks.data() + at + 1, behind * sizeof(std::uint64_t));
    c.blocks.pop_back();
    if (c.blocks.empty()) {
      filled_[ranks_[id] / 64] &= ~(std::uint64_t{1} << ranks_[id] % 64);
      --filled_sizes_;
    }
    --blocks_;
  }
  std::size_t bucket_of(std::uint32_t granules) const { return granules * std::size_t{0x9e3779b97f4a7c15} >> shift_; }
  /// kNone: no block had this size so far.
  std::uint32_t class_of(std::uint32_t granules, SizeHint hint) const {
    return hint < order_.size() && classes_[hint].granules == granules ? hint : class_of(granules);
  }
  std::uint32_t class_of(std::uint32_t granules) const {
    if (buckets_.empty()) return kNone;
    for (std::size_t b = bucket_of(granules);; b = (b + 1) & (buckets_.size() - 1))
      if (buckets_[b].granules == granules || buckets_[b].id == kNone) return buckets_[b].id;
  }
  /// The first size from this rank on that has blocks, or kNone.
  std::uint32_t next_filled(std::uint32_t rank) const {
    std::size_t word = rank / 64;
    if (word >= filled_.size()) return kNone;
    std::uint64_t bits = filled_[word] & ~std::uint64_t{0} << rank % 64;
    while (bits == 0) {
      if (++word == filled_.size()) return kNone;
      bits = filled_[word];
    }
    return order_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
  }
  std::uint32_t rank_not_below(std::uint32_t granules) const;
  std::uint32_t new_class(std::uint32_t granules);
  void add_bucket(std::uint32_t id);
  void index_sizes();
  void forget_unused();

  std::size_t blocks_ = 0, filled_sizes_ = 0;
  std::vector<SizeClass> classes_;     // those in use first
  std::vector<std::uint32_t> ranks_;   // of the classes
  std::vector<std::uint32_t> order_;   // by rank, from small to large: index into classes_
  std::vector<std::uint32_t> sizes_;   // by rank: in granules
  std::vector<std::uint64_t> filled_;  // a bit per rank: has blocks
  std::vector<Bucket> buckets_;        // size -> class; open addressing
  int shift_ = 0;
};

}  // namespace rehearse::hwmodels
