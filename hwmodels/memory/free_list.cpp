#include "hwmodels/memory/free_list.h"

namespace rehearse::hwmodels {

FreeList::Place FreeList::previous(Place p) const {
  if (p.slot > 0 && p != end()) return {p.size_class, p.slot - 1};
  std::size_t rank = p == end() ? known_ : classes_[p.size_class].rank;
  while (classes_[order_[--rank]].blocks.empty()) {
  }
  return {order_[rank], static_cast<std::uint32_t>(classes_[order_[rank]].blocks.size() - 1)};
}

std::uint32_t FreeList::rank_not_below(std::uint32_t granules) const {
  const std::uint32_t* first = sizes_.data();   // without branches to guess
  std::size_t n = sizes_.size();
  while (n > 1) {
    const std::size_t half = n / 2;
    first += first[half - 1] < granules ? half : 0;
    n -= half;
  }
  return static_cast<std::uint32_t>(first - sizes_.data()) + (n == 1 && *first < granules);
}

std::uint32_t FreeList::new_class(std::uint32_t granules) {
  if (known_ >= kMany && known_ >= 4 * filled_sizes_) forget_unused();
  const std::uint32_t id = known_++;
  const std::uint32_t rank = rank_not_below(granules);
  for (std::uint32_t r = rank; r < id; ++r) ++classes_[order_[r]].rank;
  order_.insert(order_.begin() + rank, id);
  sizes_.insert(sizes_.begin() + rank, granules);
  if (id == classes_.size()) classes_.emplace_back();  // else a forgotten one, for the room of its blocks
  classes_[id].granules = granules;
  classes_[id].rank = rank;
  // Bits from `rank` on move up by one; the new one is 0.
  if (filled_.size() * 64 < known_) filled_.push_back(0);
  std::uint64_t carry = 0;
  for (std::size_t word = rank / 64; word < filled_.size(); ++word) {
    const std::uint64_t low = word == rank / 64 ? (std::uint64_t{1} << rank % 64) - 1 : 0;
    const std::uint64_t stays = filled_[word] & low, moves = filled_[word] & ~low;
    filled_[word] = stays | moves << 1 | carry;
    carry = moves >> 63;
  }
  if (buckets_.size() < 2 * std::size_t{known_}) {
    index_sizes();
  } else {
    add_bucket(id);
  }
  return id;
}

void FreeList::add_bucket(std::uint32_t id) {
  std::size_t b = bucket_of(classes_[id].granules);
  while (buckets_[b].id != kNone) b = (b + 1) & (buckets_.size() - 1);
  buckets_[b] = {classes_[id].granules, id};
}

void FreeList::index_sizes() {
  buckets_.assign(std::bit_ceil(std::max<std::size_t>(32, 4 * std::size_t{known_})), Bucket{});
  shift_ = 64 - std::countr_zero(buckets_.size());
  for (std::uint32_t id = 0; id < known_; ++id) add_bucket(id);
}

void FreeList::forget_unused() {
  const auto first = classes_.begin(), last = first + known_;
  const auto used = std::partition(first, last, [](const SizeClass& c) { return !c.blocks.empty(); });
  std::sort(first, used, [](const SizeClass& a, const SizeClass& b) { return a.granules < b.granules; });
  known_ = static_cast<std::uint32_t>(used - first);
  order_.resize(known_);
  sizes_.resize(known_);
  filled_.assign(known_ / 64 + 1, 0);
  for (std::uint32_t id = 0; id < known_; ++id) {
    order_[id] = classes_[id].rank = id;
    sizes_[id] = classes_[id].granules;
    filled_[id / 64] |= std::uint64_t{1} << id % 64;
  }
  index_sizes();
}

}  // namespace rehearse::hwmodels
