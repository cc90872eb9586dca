#include "sim/executor/memory_operations.h"

#include <algorithm>
#include <unordered_map>

namespace rehearse::executor {
namespace {

using plan::Opcode;
using Prepared = hwmodels::CachingAllocator::Prepared;

constexpr std::size_t kNowhere = SIZE_MAX;
constexpr std::int64_t kGranule = 512;   // of the allocator: every block is a multiple

/// Where what an instruction allocates is freed, and where what it frees was allocated; kNowhere in this block.
std::vector<std::size_t> partners_of(const std::vector<plan::Instruction>& list) {
  std::vector<std::size_t> out(list.size(), kNowhere);
  std::unordered_map<std::uint64_t, std::size_t> allocated;   // by slot
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::uint64_t slot = std::uint64_t{list[i].index} << 8 | static_cast<std::uint64_t>(list[i].frame);
    if (list[i].op == Opcode::alloc) {
      allocated[slot] = i;
    } else if (const auto found = allocated.find(slot); list[i].op == Opcode::free && found != allocated.end()) {
      out[i] = found->second;
      out[found->second] = i;
      allocated.erase(found);
    }
  }
  return out;
}

class Passages {
 public:
  Passages(const plan::Block& block, std::vector<MemoryOperation>& operations) : list_(block.memory), operations_(operations), partners_(partners_of(block.memory)), ends_(list_.size(), kNowhere) {
    // From behind, so that a search can step over the passages within.
    for (std::size_t i = list_.size(); i-- > 0;) ends_[i] = end_of_shortest(i);
  }

  void add_to(std::vector<Passage>& out) {
    for (std::size_t i = list_.size(); i-- > 0;) {
      if (ends_[i] == kNowhere) continue;
      Passage passage{.operations = static_cast<std::uint32_t>(ends_[i] - i), .rise = rise_within(i), .rooms = {}, .once = {}};
      for (std::size_t o = i; o < ends_[i]; ++o)
        if (list_[o].op == Opcode::alloc_once) passage.once.push_back(list_[o].index);
      collect_rooms(i, {}, passage.rooms);
      // What follows finds memory as this one did.
      if (ends_[i] < list_.size() && operations_[ends_[i]].passage != kNoPassage) join(passage, out[operations_[ends_[i]].passage]);
      operations_[i].passage = static_cast<std::uint32_t>(out.size());
      out.push_back(std::move(passage));
    }
  }

 private:
  static void join(Passage& first, const Passage& second) {
    first.operations += second.operations;
    first.rise = std::max(first.rise, second.rise);
    first.once.insert(first.once.end(), second.once.begin(), second.once.end());
    for (const Passage::Room& r : second.rooms) {
      Passage::Room& room = room_of(first.rooms, r.request);
      room.bytes = std::max(room.bytes, r.bytes);
    }
  }

  /// Behind the shortest passage that begins here, kNowhere if there is none.
  std::size_t end_of_shortest(std::size_t first) const {
    if (list_[first].op != Opcode::alloc || list_[first].value == 0 || partners_[first] == kNowhere) return kNowhere;
    std::size_t end = partners_[first] + 1;
    for (std::size_t i = first + 1; i < end;) {
      if (ends_[i] != kNowhere && ends_[i] <= end) {
        i = ends_[i];
        continue;
      }
      const plan::Instruction& in = list_[i];
      if (in.op == Opcode::alloc_once) {
        ++i;
        continue;
      }
      const bool belongs = (in.op == Opcode::alloc && in.value > 0) || in.op == Opcode::free;
      if (!belongs || partners_[i] == kNowhere || partners_[i] < first) return kNowhere;
      end = std::max(end, partners_[i] + 1);
      ++i;
    }
    return end;
  }

  /// How far allocated bytes can rise in the passage that begins here.
  std::int64_t rise_within(std::size_t first) const {
    std::int64_t live = 0, highest = 0;
    for (std::size_t i = first; i < ends_[first]; ++i) {
      if (list_[i].op == Opcode::alloc_once) continue;
      const bool is_free = list_[i].op == Opcode::free;
      const Prepared& r = operations_[is_free ? partners_[i] : i].request;
      const std::int64_t at_most = r.size + (r.least_rest - 1) / kGranule * kGranule;   // a smaller rest is not split off
      live += is_free ? -at_most : at_most;
      highest = std::max(highest, live);
    }
    return highest;
  }

  /// What one free block of each pool has to give at the worst: all that is taken. Passages within give back what they
  /// took, so that only the largest of them adds to it. `before`: taken before, in a passage around this one.
  void collect_rooms(std::size_t first, std::vector<Passage::Room> before, std::vector<Passage::Room>& most) const {
    for (std::size_t i = first; i < ends_[first];) {
      if (i != first && ends_[i] != kNowhere && ends_[i] <= ends_[first]) {
        collect_rooms(i, before, most);
        i = ends_[i];
        continue;
      }
      if (list_[i].op == Opcode::alloc) {
        const Prepared& r = operations_[i].request;
        const std::int64_t bytes = room_of(before, r).bytes += r.size;
        Passage::Room& room = room_of(most, r);
        room.bytes = std::max(room.bytes, bytes);
      }
      ++i;
    }
  }
  static Passage::Room& room_of(std::vector<Passage::Room>& rooms, const Prepared& request) {
    for (Passage::Room& r : rooms)
      if (r.request.pool == request.pool) return r;
    return rooms.emplace_back(Passage::Room{.request = request, .bytes = 0});
  }

  const std::vector<plan::Instruction>& list_;
  std::vector<MemoryOperation>& operations_;
  std::vector<std::size_t> partners_, ends_;
};

}  // namespace

MemoryOperations::MemoryOperations(const plan::Block& block, hwmodels::CachingAllocator& allocator) {
  all.reserve(block.memory.size());
  for (const plan::Instruction& i : block.memory) {
    MemoryOperation& o = all.emplace_back(MemoryOperation{.instruction = &i, .request = {}});
    if (i.op == Opcode::alloc || i.op == Opcode::alloc_once) o.request = allocator.prepare(Bytes{i.value}, {static_cast<std::uint8_t>(i.stream)});
  }
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    const plan::Instruction &a = block.memory[i], &b = block.memory[i + 1];
    all[i].freed_at_once = a.op == Opcode::alloc && b.op == Opcode::free && b.index == a.index && b.frame == a.frame;
  }
  Passages(block, all).add_to(passages);
}

}  // namespace rehearse::executor
