#include "hwmodels/memory/free_list.h"

namespace rehearse::hwmodels {

FreeList::Place FreeList::previous(Place p) const {
  if (p.slot > 0 && p != end()) return {p.size_class, p.slot - 1};
  std::size_t rank = p == end() ? order_.size() : ranks_[p.size_class];
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
  if (order_.size() >= kMany && order_.size() >= 4 * filled_sizes_) forget_unused();
  const auto id = static_cast<std::uint32_t>(order_.size());
  const std::uint32_t rank = rank_not_below(granules);
  order_.insert(order_.begin() + rank, id);
  sizes_.insert(sizes_.begin() + rank, granules);
  for (std::uint32_t& r : ranks_) r += r >= rank;
  ranks_.push_back(rank);
  if (id == classes_.size()) classes_.emplace_back();  // else a forgotten one, for the room of its blocks
  classes_[id].granules = granules;
  // Bits from `rank` on move up by one; the new one is 0.
  if (filled_.size() * 64 < order_.size()) filled_.push_back(0);
  std::uint64_t carry = 0;
  for (std::size_t word = rank / 64; word < filled_.size(); ++word) {
    const std::uint64_t low = word == rank / 64 ? (std::uint64_t{1} << rank % 64) - 1 : 0;
    const std::uint64_t stays = filled_[word] & low, moves = filled_[word] & ~low;
    filled_[word] = stays | moves << 1 | carry;
    carry = moves >> 63;
  }
  if (buckets_.size() < 2 * order_.size()) {
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
  buckets_.assign(std::bit_ceil(std::max<std::size_t>(32, 4 * order_.size())), Bucket{});
  shift_ = 64 - std::countr_zero(buckets_.size());
  for (std::uint32_t id = 0; id < order_.size(); ++id) add_bucket(id);
}

void FreeList::forget_unused() {
  const auto first = classes_.begin(), last = first + static_cast<std::ptrdiff_t>(order_.size());
  const auto used = std::partition(first, last, [](const SizeClass& c) { return !c.blocks.empty(); });
  std::sort(first, used, [](const SizeClass& a, const SizeClass& b) { return a.granules < b.granules; });
  order_.resize(static_cast<std::size_t>(used - first));
  ranks_.resize(order_.size());
  sizes_.resize(order_.size());
  filled_.assign(order_.size() / 64 + 1, 0);
  for (std::uint32_t id = 0; id < order_.size(); ++id) {
    order_[id] = ranks_[id] = id;
    sizes_[id] = classes_[id].granules;
    filled_[id / 64] |= std::uint64_t{1} << id % 64;
  }
  index_sizes();
}

}  // namespace rehearse::hwmodels
