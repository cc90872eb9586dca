#include "sim/executor/memory_cache.h"

#include <bit>

namespace rehearse::executor {
namespace {

/// Two independent 64-bit hashes of a sequence of words.
struct Mixer {
  std::uint64_t high = 0x243f6a8885a308d3, low = 0x13198a2e03707344;
  void add(std::uint64_t word) {
    high = (high ^ word) * 0x9e3779b97f4a7c15;
    high ^= high >> 32;
    low = std::rotl(low + word, 25) * 0xc2b2ae3d27d4eb4f;
    low ^= low >> 29;
  }
  void add(std::uint32_t a, std::uint32_t b) { add(std::uint64_t{a} << 32 | b); }
  void add(const std::optional<Bytes>& bytes) { add(bytes ? static_cast<std::uint64_t>(bytes->value) : ~std::uint64_t{0}); }
};

void add(Mixer& mixer, const hwmodels::AllocatorSettings& s) {
  mixer.add(static_cast<std::uint64_t>(s.limit.value));
  mixer.add(s.device_total);
  mixer.add(std::uint64_t{s.expandable_segments});
  mixer.add(s.max_split_size);
  mixer.add(static_cast<std::uint64_t>(s.max_non_split_rounding.value));
  mixer.add(static_cast<std::uint64_t>(s.large_segment_size.value));
  mixer.add(std::bit_cast<std::uint64_t>(s.memory_fraction.value_or(-1)));
  mixer.add(std::bit_cast<std::uint64_t>(s.garbage_collection_threshold));
  for (const std::int32_t divisions : s.roundup_power2_divisions) mixer.add(static_cast<std::uint64_t>(divisions));
}

}  // namespace

MemoryCache::Key MemoryCache::key_of(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options) {
  Mixer all;
  add(all, options.allocator);
  all.add(static_cast<std::uint32_t>(options.steps), options.shortcuts);
  const plan::Program& program = plan.classes[rank_class].program;
  all.add(std::uint64_t{program.slots});
  std::vector<Key> blocks(plan.blocks.size());   // {0, 0}: not hashed yet
  for (const auto* calls : {&program.setup, &program.step}) {
    all.add(std::uint64_t{calls->size()});
    for (const plan::Call& call : *calls) {
      Key& block = blocks[call.block];
      if (block == Key{}) {
        Mixer one;
        for (const plan::Instruction& i : plan.blocks[call.block].memory) {
          one.add(static_cast<std::uint32_t>(i.op) << 24 | static_cast<std::uint32_t>(i.stream) << 16 | static_cast<std::uint32_t>(i.frame) << 8 | i.flags, i.index);
          one.add(static_cast<std::uint64_t>(i.value));
        }
        block = {one.high, one.low};
      }
      all.add(block.high);
      all.add(block.low);
      all.add(call.frames[0], call.frames[1]);
      all.add(call.frames[2], call.frames[3]);
      all.add(static_cast<std::uint64_t>(call.micro_batch) << 1 | static_cast<std::uint64_t>(call.first_step_only));
    }
  }
  return {all.high, all.low};
}

ClassMemory MemoryCache::run(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options) {
  if (options.timeline || options.taken_again || options.observer != nullptr || options.progress != nullptr) return run_memory(plan, rank_class, options);
  const Key key = key_of(plan, rank_class, options);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = known_.find(key); it != known_.end()) {
      ++hits_;
      return it->second;
    }
  }
  ClassMemory result = run_memory(plan, rank_class, options);   // perhaps in two threads at once: they agree
  const std::lock_guard lock(mutex_);
  if (known_.size() < most_) known_.emplace(key, result);
  return result;
}

std::size_t MemoryCache::size() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

std::size_t MemoryCache::hits() const {
  const std::lock_guard lock(mutex_);
  return hits_;
}

}  // namespace rehearse::executor
