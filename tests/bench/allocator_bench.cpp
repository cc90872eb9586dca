// Allocations and frees per second of the simulated caching allocator. Goal: at least 20 M operations/s for a
// training step in its steady state, where every request is served from the cache.
#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/core/random.h"

namespace {

using namespace rehearse;
using namespace rehearse::hwmodels;

/// A recorded program: bytes > 0 allocates into the slot, 0 frees the slot.
struct Operation {
  std::int64_t bytes;
  std::uint32_t slot;
};

struct Program {
  std::vector<Operation> operations;
  std::uint32_t slots = 0;
  std::uint32_t allocate(std::int64_t bytes) {
    operations.push_back({bytes, slots});
    return slots++;
  }
  void free(std::uint32_t slot) { operations.push_back({0, slot}); }
};

/// One step of a transformer without recomputation: forward keeps what backward needs, backward frees it and
/// makes gradients, the optimizer's temporaries come and go, gradients are dropped. Tokens t, width h, layers
/// n, bf16.
Program training_step(std::int64_t t, std::int64_t h, int layers) {
  Program p;
  std::vector<std::vector<std::uint32_t>> saved;
  std::uint32_t hidden = p.allocate(2 * t * h);
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<std::uint32_t> kept{hidden};
    kept.push_back(p.allocate(2 * t * h));        // norm
    kept.push_back(p.allocate(4 * t));            // its statistics
    kept.push_back(p.allocate(3 * 2 * t * h));    // qkv
    kept.push_back(p.allocate(2 * t * h));        // attention
    kept.push_back(p.allocate(4 * t * h / 128));  // log-sum-exp
    const std::uint32_t projected = p.allocate(2 * t * h);
    kept.push_back(p.allocate(2 * t * h));  // residual
    p.free(projected);
    kept.push_back(p.allocate(2 * t * h));
    kept.push_back(p.allocate(4 * t));
    kept.push_back(p.allocate(4 * 2 * t * h));  // up
    kept.push_back(p.allocate(4 * 2 * t * h));  // activation
    const std::uint32_t down = p.allocate(2 * t * h);
    hidden = p.allocate(2 * t * h);
    p.free(down);
    saved.push_back(kept);
  }
  const std::uint32_t logits = p.allocate(4 * t * 32000);
  const std::uint32_t loss = p.allocate(4);
  std::uint32_t gradient = p.allocate(2 * t * h);
  p.free(logits);
  p.free(loss);
  p.free(hidden);
  std::vector<std::uint32_t> gradients;
  for (int layer = layers - 1; layer >= 0; --layer) {
    std::vector<std::uint32_t>& kept = saved[static_cast<std::size_t>(layer)];
    for (const std::int64_t weight : {4 * h * h, 4 * h * h, h * h, 3 * h * h, h, h}) {
      const std::uint32_t input_gradient = p.allocate(2 * t * h);
      gradients.push_back(p.allocate(2 * weight));
      const std::uint32_t temporary = p.allocate(4 * h);
      p.free(gradient);
      p.free(temporary);
      gradient = input_gradient;
      for (int i = 0; i < 2 && !kept.empty(); ++i) {
        p.free(kept.back());
        kept.pop_back();
      }
    }
    for (std::uint32_t k : kept) p.free(k);
  }
  p.free(gradient);
  for (std::uint32_t g : gradients) {
    const std::uint32_t norm = p.allocate(4);
    const std::uint32_t update = p.allocate(4 * h * h);
    p.free(update);
    p.free(norm);
    p.free(g);
  }
  return p;
}

void run(const Program& program, CachingAllocator& allocator, std::vector<BlockId>& blocks) {
  for (const Operation& o : program.operations) {
    if (o.bytes > 0) {
      blocks[o.slot] = allocator.allocate(Bytes{o.bytes}, StreamId{0}).block;
    } else {
      allocator.free(blocks[o.slot]);
    }
  }
}

void replay(benchmark::State& state, const Program& program, bool expandable) {
  CachingAllocator allocator({.limit = 800_GiB, .expandable_segments = expandable});
  std::vector<BlockId> blocks(program.slots);
  for (std::uint32_t parameter = 0; parameter < 300; ++parameter) {
    allocator.allocate(Bytes{std::int64_t{1} << (10 + parameter % 16)}, StreamId{0});
  }
  for (int warm = 0; warm < 3; ++warm) run(program, allocator, blocks);
  for (auto _ : state) run(program, allocator, blocks);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(program.operations.size()));
  state.counters["reserved_gib"] = gib(allocator.statistics().reserved_bytes.current);
}

void training(benchmark::State& state) {
  replay(state, training_step(4096, 1024 * state.range(0), static_cast<int>(state.range(1))),
         state.range(2) != 0);
}
BENCHMARK(training)
    ->ArgNames({"width_ki", "layers", "expandable"})
    ->Args({4, 32, 0})
    ->Args({4, 32, 1})
    ->Args({8, 80, 0})
    ->Args({8, 80, 1})
    ->Args({1, 24, 0});

/// Live blocks of random sizes, one replaced at a time: the free lists grow to thousands of pieces.
void random_replacement(benchmark::State& state) {
  Random random{7};
  CachingAllocator allocator({.limit = 800_GiB, .expandable_segments = state.range(1) != 0});
  std::vector<BlockId> live(static_cast<std::size_t>(state.range(0)));
  std::vector<std::int64_t> sizes(4096);
  for (std::int64_t& s : sizes) s = static_cast<std::int64_t>(1 + random.below(std::uint64_t{1} << (8 + random.below(17))));
  for (BlockId& b : live) b = allocator.allocate(Bytes{sizes[random.next() % 4096]}, StreamId{0}).block;
  for (auto _ : state) {
    BlockId& b = live[random.next() % live.size()];
    allocator.free(b);
    b = allocator.allocate(Bytes{sizes[random.next() % 4096]}, StreamId{0}).block;
  }
  state.SetItemsProcessed(2 * state.iterations());
}
BENCHMARK(random_replacement)
    ->ArgNames({"live", "expandable"})
    ->Args({1000, 0})
    ->Args({10000, 0})
    ->Args({10000, 1});

/// Every second block of a run of equal ones is freed and taken again: long lists of equal sizes, ordered by
/// address only.
void comb(benchmark::State& state) {
  CachingAllocator allocator({.limit = 800_GiB});
  std::vector<BlockId> blocks(static_cast<std::size_t>(state.range(0)));
  for (BlockId& b : blocks) b = allocator.allocate(12_MiB, StreamId{0}).block;
  for (auto _ : state) {
    for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
    for (std::size_t i = 0; i < blocks.size(); i += 2)
      blocks[i] = allocator.allocate(12_MiB, StreamId{0}).block;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(comb)->Arg(64)->Arg(1024)->Arg(16384);

}  // namespace
