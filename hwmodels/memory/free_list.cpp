#include "hwmodels/memory/free_list.h"

#include <algorithm>
#include <cstring>

namespace rehearse::hwmodels {
namespace {

// Plain binary searches. A training step repeats, so their branches are learned; searches made of conditional
// moves instead wait for each load and measured 30 % slower on steps, and no faster on random sizes.
std::uint32_t first_not_below(const FreeEntry* entries, std::uint32_t n, const FreeEntry& key) {
  std::uint32_t first = 0;
  while (n > 0) {
    const std::uint32_t half = n / 2;
    if (entries[first + half] < key) {
      first += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return first;
}

std::uint32_t first_not_smaller(const FreeEntry* entries, std::uint32_t n, std::uint64_t high) {
  std::uint32_t first = 0;
  while (n > 0) {
    const std::uint32_t half = n / 2;
    if (entries[first + half].high < high) {
      first += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return first;
}

void move_entries(FreeEntry* to, const FreeEntry* from, std::uint32_t n) {
  if (n != 0) std::memmove(static_cast<void*>(to), from, n * sizeof(FreeEntry));
}

}  // namespace

std::size_t FreeList::size() const {
  std::size_t n = 0;
  for (std::uint32_t c : order_) n += chunks_[c].count;
  return n;
}

FreeList::Place FreeList::first_fit(std::int64_t size) const {
  const std::uint64_t high = static_cast<std::uint64_t>(size) >> FreeEntry::kGranuleBits << 32;
  const auto n = static_cast<std::uint32_t>(order_.size());
  const std::uint32_t position = n == 0 ? 0 : first_not_smaller(last_.data(), n, high);
  if (position == n) return end();
  const Chunk& c = chunk(position);
  return {position, first_not_smaller(c.entries.data(), c.count, high)};
}

std::uint32_t FreeList::chunk_for(const FreeEntry& entry) const {
  const auto n = static_cast<std::uint32_t>(order_.size());
  const std::uint32_t position = first_not_below(last_.data(), n, entry);
  return position == n ? n - 1 : position;
}

FreeList::Place FreeList::find(const FreeEntry& entry) const {
  const std::uint32_t position = chunk_for(entry);
  const Chunk& c = chunk(position);
  const std::uint32_t slot = first_not_below(c.entries.data(), c.count, entry);
  EXPECTS(slot < c.count && c.entries[slot] == entry, "free block is not in its list");
  return {position, slot};
}

void FreeList::refresh_last(std::uint32_t position) {
  const Chunk& c = chunk(position);
  last_[position] = c.entries[c.count - 1];
}

void FreeList::insert(const FreeEntry& entry) {
  if (order_.empty()) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<std::uint32_t>(chunks_.size()));
      chunks_.emplace_back();
    }
    order_.push_back(unused_.back());
    unused_.pop_back();
    chunk(0).count = 1;
    chunk(0).entries[0] = entry;
    last_.push_back(entry);
    return;
  }
  std::uint32_t position = chunk_for(entry);
  if (chunk(position).count == kCapacity) {
    split(position);
    if (last_[position] < entry) ++position;
  }
  Chunk& c = chunk(position);
  const std::uint32_t slot = first_not_below(c.entries.data(), c.count, entry);
  move_entries(&c.entries[slot] + 1, &c.entries[slot], c.count - slot);
  c.entries[slot] = entry;
  ++c.count;
  refresh_last(position);
}

void FreeList::split(std::uint32_t position) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(chunks_.size()));
    chunks_.emplace_back();
  }
  const std::uint32_t upper = unused_.back();
  unused_.pop_back();
  Chunk& from = chunk(position);
  Chunk& to = chunks_[upper];
  from.count = kCapacity / 2;
  to.count = kCapacity - from.count;
  move_entries(to.entries.data(), &from.entries[from.count], to.count);
  order_.insert(order_.begin() + position + 1, upper);
  last_.insert(last_.begin() + position + 1, last_[position]);
  refresh_last(position);
}

void FreeList::erase(Place p) {
  Chunk& c = chunk(p.chunk);
  --c.count;
  move_entries(&c.entries[p.slot], &c.entries[p.slot] + 1, c.count - p.slot);
  join_or_drop(p.chunk);
}

void FreeList::join_or_drop(std::uint32_t position) {
  Chunk& c = chunk(position);
  const auto drop = [this](std::uint32_t victim) {
    unused_.push_back(order_[victim]);
    order_.erase(order_.begin() + victim);
    last_.erase(last_.begin() + victim);
  };
  if (c.count == 0) return drop(position);
  refresh_last(position);
  if (c.count > kJoin / 2) return;
  if (position + 1 < order_.size() && c.count + chunk(position + 1).count <= kJoin) {
    const Chunk& upper = chunk(position + 1);
    move_entries(&c.entries[c.count], upper.entries.data(), upper.count);
    c.count += upper.count;
    drop(position + 1);
    refresh_last(position);
  } else if (position > 0 && c.count + chunk(position - 1).count <= kJoin) {
    Chunk& lower = chunk(position - 1);
    move_entries(&lower.entries[lower.count], c.entries.data(), c.count);
    lower.count += c.count;
    drop(position);
    refresh_last(position - 1);
  }
}

void FreeList::replace(Place p, const FreeEntry& entry) {
  Chunk& c = chunk(p.chunk);
  FreeEntry* e = c.entries.data();
  if (e[p.slot] < entry) {
    std::uint32_t slot = p.slot + 1 + first_not_below(e + p.slot + 1, c.count - p.slot - 1, entry);
    if (slot < c.count || p.chunk + 1 == order_.size()) {  // stays inside this chunk
      --slot;
      move_entries(e + p.slot, e + p.slot + 1, slot - p.slot);
      e[slot] = entry;
      last_[p.chunk] = e[c.count - 1];
      return;
    }
  } else {
    const std::uint32_t slot = first_not_below(e, p.slot, entry);
    if (slot > 0 || p.chunk == 0) {
      move_entries(e + slot + 1, e + slot, p.slot - slot);
      e[slot] = entry;
      last_[p.chunk] = e[c.count - 1];
      return;
    }
  }
  erase(p);
  insert(entry);
}

}  // namespace rehearse::hwmodels
