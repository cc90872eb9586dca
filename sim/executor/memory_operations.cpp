#include "sim/executor/memory_operations.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace rehearse::executor {
namespace {

using plan::Opcode;
using Prepared = hwmodels::CachingAllocator::Prepared;

constexpr std::size_t kNowhere = SIZE_MAX;
constexpr std::size_t kLongest = 1024;   // instructions and passages within a passage: a longer one takes long to find
constexpr std::int64_t kGranule = 512;   // of the allocator: every block is a multiple

/// Where what an instruction allocates is freed, and where what it frees was allocated; kNowhere in this block.
std::vector<std::size_t> partners_of(const std::vector<plan::Instruction>& list) {
  std::vector<std::size_t> out(list.size(), kNowhere);
  std::vector<std::pair<std::uint64_t, std::size_t>> uses;   // slot, instruction
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].op == Opcode::alloc || list[i].op == Opcode::free) uses.emplace_back(std::uint64_t{list[i].index} << 8 | static_cast<std::uint64_t>(list[i].frame), i);
  std::sort(uses.begin(), uses.end());
  for (std::size_t u = 1; u < uses.size(); ++u) {
    const auto [slot, first] = uses[u - 1];
    const auto [same, second] = uses[u];
    if (slot != same || list[first].op != Opcode::alloc || list[second].op != Opcode::free) continue;
    out[first] = second;
    out[second] = first;
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
    std::vector<std::optional<Passage>> alone(list_.size());   // by first instruction, without what is joined to them
    for (std::size_t i = list_.size(); i-- > 0;) {
      if (ends_[i] == kNowhere) continue;
      Passage passage = *(alone[i] = content(i, alone));
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
    std::size_t end = partners_[first] + 1, steps = 0;
    for (std::size_t i = first + 1; i < end;) {
      if (++steps > kLongest) return kNowhere;
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

  /// The passage that begins here, those within it being known. Rise: how far allocated bytes can go. Rooms: what one free block
  /// of each pool has to give at the worst, all that is taken. Those within give back what they took, so that only the
  /// largest of them adds to either.
  Passage content(std::size_t first, const std::vector<std::optional<Passage>>& within) const {
    Passage out{.operations = static_cast<std::uint32_t>(ends_[first] - first)};
    std::int64_t live = 0;
    std::vector<Passage::Room> taken;
    const auto take = [&](const Prepared& request, std::int64_t bytes) {
      Passage::Room& room = room_of(out.rooms, request);
      room.bytes = std::max(room.bytes, room_of(taken, request).bytes + bytes);
    };
    for (std::size_t i = first; i < ends_[first];) {
      if (i != first && ends_[i] != kNowhere && ends_[i] <= ends_[first]) {
        out.rise = std::max(out.rise, live + within[i]->rise);
        out.once.insert(out.once.end(), within[i]->once.begin(), within[i]->once.end());
        for (const Passage::Room& r : within[i]->rooms) take(r.request, r.bytes);
        i = ends_[i];
        continue;
      }
      if (list_[i].op == Opcode::alloc_once) {
        out.once.push_back(list_[i].index);
      } else {
        const bool is_free = list_[i].op == Opcode::free;
        const Prepared& r = operations_[is_free ? partners_[i] : i].request;
        const std::int64_t at_most = r.size + (r.least_rest - 1) / kGranule * kGranule;   // a smaller rest is not split off
        live += is_free ? -at_most : at_most;
        out.rise = std::max(out.rise, live);
        if (!is_free) {
          take(r, r.size);
          room_of(taken, r).bytes += r.size;
        }
      }
      ++i;
    }
    return out;
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
    MemoryOperation& o = all.emplace_back(MemoryOperation{.instruction = i, .request = {}});
    if (i.op == Opcode::alloc || i.op == Opcode::alloc_once) o.request = allocator.prepare(Bytes{i.value}, {static_cast<std::uint8_t>(i.stream)});
  }
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    const plan::Instruction &a = block.memory[i], &b = block.memory[i + 1];
    all[i].freed_at_once = a.op == Opcode::alloc && b.op == Opcode::free && b.index == a.index && b.frame == a.frame;
  }
  Passages(block, all).add_to(passages);
}

}  // namespace rehearse::executor
