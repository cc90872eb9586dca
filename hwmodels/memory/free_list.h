// Free blocks of one pool and stream, ordered by (size, address): best fit is the first one not smaller than
// the request. Leaves out what a block is and who its neighbours are (caching_allocator.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>
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
    EXPECTS(block >> kBlockBits == 0, "more blocks than an entry can name");
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
  static constexpr std::uint32_t kNone = 0xffffffff;

  /// A place in the order; valid until the list changes.
  struct Place {
    std::uint32_t size_class = 0;
    std::uint32_t slot = 0;  // among its blocks, from the lowest address up
    friend bool operator==(const Place&, const Place&) = default;
  };

  /// Where a size probably stands. Any value will do: it is checked, and a wrong one costs a look-up.
  using SizeHint = std::uint32_t;

  bool empty() const { return blocks_ == 0; }
  std::size_t size() const { return blocks_; }
  Place begin() const { return {next_filled(0), 0}; }
  Place end() const { return {kNone, 0}; }
  Place next(Place p) const {
    return ++p.slot < classes_[p.size_class].blocks.size() ? p : Place{next_filled(classes_[p.size_class].rank + 1), 0};
  }
  /// Precondition: p is not begin().
  Place previous(Place p) const;
  FreeEntry at(Place p) const {
    const SizeClass& c = classes_[p.size_class];
    return {c.granules, *(c.blocks.end() - 1 - p.slot)};
  }
  /// Size of the largest entry in bytes, 0 if there is none.
  std::int64_t largest() const {
    for (std::size_t word = filled_.size(); word-- > 0;)
      if (const std::uint64_t bits = filled_[word]; bits != 0) return std::int64_t{sizes_[word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(bits))]} << FreeEntry::kGranuleBits;
    return 0;
  }

  /// First entry with at least `size` bytes; the lowest address among equals. end() when none is large
  /// enough. The hint becomes the one of this size, where it is known.
  Place first_fit(std::int64_t size) const {
    SizeHint hint = kNone;
    return first_fit(size, hint);
  }
  Place first_fit(std::int64_t size, SizeHint& hint) const {
    const auto granules = static_cast<std::uint32_t>(size >> FreeEntry::kGranuleBits);
    hint = class_of(granules, hint);
    if (hint == kNone) [[unlikely]] return {next_filled(rank_not_below(granules)), 0};
    const SizeClass& c = classes_[hint];
    return {c.blocks.empty() ? next_filled(c.rank + 1) : hint, 0};
  }
  /// Precondition: the entry is in the list.
  Place find(const FreeEntry& entry) const {
    const std::uint32_t id = class_of(entry.granules);
    EXPECTS(id != kNone, "free block is not in its list");
    return {id, static_cast<std::uint32_t>(classes_[id].blocks.size() - 1 - index_of(classes_[id].blocks.data(), classes_[id].blocks.size(), entry.place))};
  }

  /// Returns the hint for next time.
  SizeHint insert(const FreeEntry& entry, SizeHint hint = kNone) {
    std::uint32_t id = class_of(entry.granules, hint);
    if (id == kNone) [[unlikely]] id = new_class(entry.granules);
    SizeClass& c = classes_[id];
    const std::size_t n = c.blocks.size();
    c.blocks.push_back(entry.place);
    if (n == 0) {
      filled_[c.rank / 64] |= std::uint64_t{1} << c.rank % 64;
      ++filled_sizes_;
    } else if (c.blocks[n - 1] < entry.place) {
      insert_above(c.blocks.data(), n, entry.place);
    }
    ++blocks_;
    return id;
  }
  void erase(Place p) {
    erase_at(p.size_class, classes_[p.size_class].blocks.size() - 1 - p.slot);
  }
  /// Erases the lowest address of a size that has blocks.
  void erase_lowest(std::uint32_t size_class) {
    SizeClass& c = classes_[size_class];
    c.blocks.pop_back();
    erased_from(c);
  }
  /// Precondition: the entry is in the list.
  void erase(const FreeEntry& entry, SizeHint hint) {
    const std::uint32_t id = class_of(entry.granules, hint);
    EXPECTS(id != kNone && !classes_[id].blocks.empty(), "free block is not in its list");
    SizeClass& c = classes_[id];
    erase_place(c.blocks.data(), c.blocks.size() - 1, entry.place);
    c.blocks.pop_back();
    erased_from(c);
  }
  /// Erases the entry at p and inserts another.
  void replace(Place p, const FreeEntry& entry) {
    erase(p);
    insert(entry);
  }

 private:
  static constexpr std::size_t kMany = 128;  // sizes; from here on, those without blocks are forgotten now and then

  struct SizeClass {
    std::uint32_t granules = 0;
    std::uint32_t rank = 0;             // among the sizes, from small to large
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
  static std::size_t index_of(const std::uint64_t* places, std::size_t n, std::uint64_t place) {
    const std::size_t at = above(places, n, place);
    EXPECTS(at < n && places[at] == place, "free block is not in its list");
    return at;
  }
  static constexpr std::size_t kNear = 8;   // of the end, where most places belong: tried one by one

  /// Puts a place among the n before `places + n`, where there is room for it.
  static void insert_above(std::uint64_t* places, std::size_t n, std::uint64_t place) {
    std::size_t i = n;
    for (const std::size_t far = n - std::min(n, kNear); i > far && places[i - 1] < place; --i) places[i] = places[i - 1];
    if (i > 0 && places[i - 1] < place) {
      const std::size_t at = above(places, i, place);
      std::memmove(places + at + 1, places + at, (i - at) * sizeof place);
      i = at;
    }
    places[i] = place;
  }
  /// Takes a place out of n + 1; the first n are left.
  static void erase_place(std::uint64_t* places, std::size_t n, std::uint64_t place) {
    std::uint64_t moved = places[n];   // belongs before what has been moved already
    std::size_t i = n;
    for (const std::size_t far = n - std::min(n, kNear); moved != place && i > far;) std::swap(moved, places[--i]);
    if (moved == place) return;
    const std::size_t at = index_of(places, i, place);
    std::memmove(places + at, places + at + 1, (i - 1 - at) * sizeof place);
    places[i - 1] = moved;
  }
  void erase_at(std::uint32_t id, std::size_t at) {
    SizeClass& c = classes_[id];
    c.blocks.erase(c.blocks.begin() + static_cast<std::ptrdiff_t>(at));
    erased_from(c);
  }
  void erased_from(const SizeClass& c) {
    if (c.blocks.empty()) {
      filled_[c.rank / 64] &= ~(std::uint64_t{1} << c.rank % 64);
      --filled_sizes_;
    }
    --blocks_;
  }
  std::size_t bucket_of(std::uint32_t granules) const { return granules * std::size_t{0x9e3779b97f4a7c15} >> shift_; }
  /// kNone: no block had this size so far.
  std::uint32_t class_of(std::uint32_t granules, SizeHint hint) const {
    return hint < known_ && classes_[hint].granules == granules ? hint : class_of(granules);
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
  std::uint32_t known_ = 0;            // sizes: so many of the classes are in use
  std::vector<SizeClass> classes_;     // those in use first
  std::vector<std::uint32_t> order_;   // by rank, from small to large: index into classes_
  std::vector<std::uint32_t> sizes_;   // by rank: in granules
  std::vector<std::uint64_t> filled_;  // a bit per rank: has blocks
  std::vector<Bucket> buckets_;        // size -> class; open addressing
  int shift_ = 0;
};

}  // namespace rehearse::hwmodels
