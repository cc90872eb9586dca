// Context parallelism in its kinds: bytes on the wire against closed forms, operations and kept bytes conserved, rules.
// Legend: s tokens of a micro-batch's samples, p context-parallel ranks, e bytes of an element.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sim/model/shapes.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/plan_writer.h"
#include "tests/support/byte_ledger.h"

namespace rehearse::strategies::context_parallel_test {
namespace {

constexpr std::int64_t kSequence = 1024, kBatch = 2, kHidden = 512, kHeads = 16, kHeadDim = 32, kLayers = 2, kMicroBatches = 3;

model::ModelDescription small_model(std::int64_t kv_heads = kHeads) {
  model::Shapes s{.name = "small", .layers = kLayers, .hidden = kHidden, .heads = kHeads, .vocab = 1024};
  s.kv_heads = kv_heads;
  return model::make_from_shapes(s);
}

Strategy job(int context, ContextKind kind, int inside = 1) {
  Strategy s;
  s.training.sequence_length = kSequence;
  s.training.micro_batch_size = kBatch;
  s.training.global_batch_size = kBatch * kMicroBatches;
  s.training.clip_gradients = false;
  s.parallelism.degrees.context = context;
  s.parallelism.degrees.context_ulysses = inside;
  s.parallelism.context_kind = kind;
  s.data_parallel.kind = DataParallelKind::ddp;
  return s;
}

/// Bytes that one rank's attention moves per layer and micro-batch, by kind of collective and group.
std::map<std::pair<CollectiveKind, plan::GroupAxis>, std::int64_t> moved(const plan::Plan& plan) {
  std::map<std::pair<CollectiveKind, plan::GroupAxis>, std::int64_t> out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::collective && i.stream == plan::Stream::context) {
        const plan::CollectiveSpec& spec = plan.collectives[i.index];
        out[{spec.kind, spec.axis}] += spec.bytes.value;
      }
  for (auto& [key, bytes] : out) {
    EXPECT_EQ(bytes % (kLayers * kMicroBatches), 0);
    bytes /= kLayers * kMicroBatches;
  }
  return out;
}

/// Keys and values of one rank's tokens.
std::int64_t pair_bytes(int ranks, std::int64_t kv_heads = kHeads) { return kBatch * kSequence / ranks * 2 * kv_heads * kHeadDim * 2; }
std::int64_t query_bytes(int ranks) { return kBatch * kSequence / ranks * kHidden * 2; }

const FrameworkProfile& megatron() {
  static const FrameworkProfile p = load_profile("megatron-core");
  return p;
}

// (p - 1) steps of keys and values forward; backward again, and as many of their gradients.
TEST(ContextParallel, RingMovesKeysAndValuesToEveryOtherRank) {
  for (const int p : {2, 4, 8})
    for (const std::int64_t kv : {std::int64_t{4}, kHeads}) {
      const auto bytes = moved(write_plan(small_model(kv), job(p, ContextKind::ring), megatron(), 8));
      ASSERT_EQ(bytes.size(), 1U);
      EXPECT_EQ(bytes.at({CollectiveKind::send_recv, plan::GroupAxis::context}), 3 * (p - 1) * pair_bytes(p, kv)) << p;
    }
}

// All keys and values, forward and again backward; their gradients are scattered. (nccl-tests' size: of all ranks.)
TEST(ContextParallel, AllGatherMovesTheWholeSequence) {
  for (const int p : {2, 8}) {
    const auto bytes = moved(write_plan(small_model(4), job(p, ContextKind::all_gather), megatron(), 8));
    EXPECT_EQ(bytes.at({CollectiveKind::all_gather, plan::GroupAxis::context}), 2 * pair_bytes(1, 4));
    EXPECT_EQ(bytes.at({CollectiveKind::reduce_scatter, plan::GroupAxis::context}), pair_bytes(1, 4));
  }
}

// Four all-to-alls forward (q, k, v, output) and four backward. With as many key heads as query heads each is s h e / p.
// Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.2.
TEST(ContextParallel, UlyssesMovesFourTensorsEachWay) {
  for (const char* framework : {"megatron-core", "deepspeed"})
    for (const int p : {2, 4, 16}) {
      const FrameworkProfile profile = load_profile(framework);
      const auto all = moved(write_plan(small_model(), job(p, ContextKind::ulysses), profile, 8));
      ASSERT_EQ(all.size(), 1U);
      EXPECT_EQ(all.at({CollectiveKind::all_to_all, plan::GroupAxis::context}), 8 * kBatch * kSequence * kHidden * 2 / p);
    }
  // Grouped: two of them are smaller. Fewer key heads than ranks: copied to as many as there are ranks (DeepSpeed).
  EXPECT_EQ(moved(write_plan(small_model(4), job(4, ContextKind::ulysses), megatron(), 8)).at({CollectiveKind::all_to_all, plan::GroupAxis::context}), 2 * (2 * query_bytes(4) + pair_bytes(4, 4)));
  EXPECT_EQ(moved(write_plan(small_model(4), job(8, ContextKind::ulysses), load_profile("deepspeed"), 8)).at({CollectiveKind::all_to_all, plan::GroupAxis::context}),
            2 * (2 * query_bytes(8) + pair_bytes(8, 8)));
}

// Four key heads of kHeads: copied to all query heads before they are sent, queries, keys, values and the output are of one size, there and
// back: 8 tensors of queries. Copied where they arrive, keys and values of four heads travel.
TEST(ContextParallel, CopiesOfKeysMayTravel) {
  FrameworkProfile profile = load_profile("deepspeed");
  ASSERT_TRUE(profile.repeat_kv);
  const auto sent = [&] { return moved(write_plan(small_model(4), job(4, ContextKind::ulysses), profile, 8)).at({CollectiveKind::all_to_all, plan::GroupAxis::context}); };
  EXPECT_EQ(sent(), 2 * (2 * query_bytes(4) + pair_bytes(4, 4)));
  profile.exchanges_repeated_kv = true;
  EXPECT_EQ(sent(), 8 * query_bytes(4));
}

// p = inside x outside: Ulysses among `inside` ranks, then a ring of `outside`, each with the tokens and 1 / inside of the heads.
TEST(ContextParallel, HybridMovesHeadsInsideAndKeysOutside) {
  for (const auto& [p, inside] : {std::pair{4, 2}, {8, 2}, {8, 4}}) {
    const auto bytes = moved(write_plan(small_model(8), job(p, ContextKind::ulysses_ring, inside), megatron(), 8));
    EXPECT_EQ(bytes.at({CollectiveKind::all_to_all, plan::GroupAxis::context_ulysses}), 2 * (2 * query_bytes(p) + pair_bytes(p, 8)));
    EXPECT_EQ(bytes.at({CollectiveKind::send_recv, plan::GroupAxis::context_ring}), 3 * (p / inside - 1) * pair_bytes(p, 8));
  }
  // At its ends it is one of the two.
  EXPECT_EQ(moved(write_plan(small_model(), job(4, ContextKind::ulysses_ring, 4), megatron(), 8)).at({CollectiveKind::all_to_all, plan::GroupAxis::context_ulysses}), 8 * query_bytes(4));
}

// PyTorch: fp32 gradients go the whole round, p steps; keys and values p - 1 steps, or gathered once each way.
TEST(ContextParallel, PyTorchRotatesGradientsInFp32) {
  const FrameworkProfile profile = load_profile("torchtitan");
  for (const int p : {2, 4}) {
    const auto ring = moved(write_plan(small_model(), job(p, ContextKind::ring), profile, 8)), gather = moved(write_plan(small_model(), job(p, ContextKind::all_gather), profile, 8));
    EXPECT_EQ(ring.at({CollectiveKind::send_recv, plan::GroupAxis::context}), 2 * (p - 1) * pair_bytes(p) + p * 2 * pair_bytes(p));
    EXPECT_EQ(gather.at({CollectiveKind::send_recv, plan::GroupAxis::context}), p * 2 * pair_bytes(p));
    EXPECT_EQ(gather.at({CollectiveKind::all_gather, plan::GroupAxis::context}), 2 * pair_bytes(1));
  }
  Strategy s = job(4, ContextKind::ring);
  s.parallelism.context_kind.reset();
  EXPECT_TRUE(moved(write_plan(small_model(), s, profile, 8)).contains({CollectiveKind::all_gather, plan::GroupAxis::context}));  // its habit
}

double operations(const plan::Plan& plan) {
  double sum = 0;
  for (const plan::RankClass& c : plan.classes)
    for (const plan::Call& call : c.program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel) {
          const model::KernelSpec& k = plan.kernels[i.index];
          const bool products = k.kind == model::KernelKind::gemm || k.kind == model::KernelKind::attention_forward || k.kind == model::KernelKind::attention_backward;
          if (products) sum += model::flops_of(k).value * c.ranks;
        }
  return sum;
}

struct Choice {
  ContextKind kind;
  int inside;
};
constexpr Choice kChoices[] = {{ContextKind::ring, 1}, {ContextKind::all_gather, 1}, {ContextKind::ulysses, 1}, {ContextKind::ulysses_ring, 2}};

// The causal triangle is cut into blocks, rows or heads; the pairs of queries and keys are the same ones.
TEST(ContextParallel, OperationsAreConserved) {
  for (const char* framework : {"megatron-core", "torchtitan", "huggingface"}) {
    const FrameworkProfile profile = load_profile(framework);
    const double whole = operations(write_plan(small_model(), job(1, ContextKind::ring), profile, 8));
    for (const Choice& c : kChoices)
      for (const int p : {4, 8}) EXPECT_EQ(operations(write_plan(small_model(), job(p, c.kind, c.inside), profile, 8)), whole) << framework << " " << static_cast<int>(c.kind) << " x " << p;
  }
}

/// Bytes that backward of one layer keeps.
std::int64_t kept(const Strategy& s, const FrameworkProfile& profile, const model::ModelDescription& m = small_model()) {
  plan::PlanBuilder builder;
  LowerContext c = make_context(m, s, profile, builder);
  c.layer = 0;
  const Tape tape = layer_tape(c, m.layers[0]);
  std::vector<TensorId> roots;
  for (const Node& n : tape.nodes)
    for (const TensorId t : n.saved) roots.push_back(tape.root(t));
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  std::int64_t bytes = 0;
  for (const TensorId t : roots) bytes += tape.tensors[static_cast<std::size_t>(t)].bytes;
  return bytes;
}

// 1 / p of everything. Where heads are exchanged, the output is kept twice: as attention made it and as the projection reads it.
TEST(ContextParallel, KeptActivationsAreDividedByTheRanks) {
  for (const char* framework : {"megatron-core", "torchtitan"}) {
    const FrameworkProfile profile = load_profile(framework);
    const bool transposes = profile.transformer_engine && profile.attention == model::AttentionKernel::flash2;   // a copy for the projection in any case
    const std::int64_t whole = kept(job(1, ContextKind::ring), profile);
    for (const int p : {4, 8})
      for (const Choice& c : kChoices) {
        const bool exchanged = c.kind == ContextKind::ulysses || c.kind == ContextKind::ulysses_ring;
        const std::int64_t twice = exchanged && !transposes && !profile.repeat_kv ? query_bytes(p) : 0;
        EXPECT_EQ(kept(job(p, c.kind, c.inside), profile), whole / p + twice) << framework << " " << static_cast<int>(c.kind) << " x " << p;
      }
  }
}

// Without rotation queries, keys and values are parts of one product; under context parallelism they are copied out of it, and it
// goes: what the copies and the ring keep is as large as the product was.
TEST(ContextParallel, PartsOfAProductDoNotKeepTheWhole) {
  model::Shapes s{.name = "gpt", .layers = kLayers, .hidden = kHidden, .heads = kHeads, .vocab = 1024};
  s.gated = false;
  s.max_positions = kSequence;
  const model::ModelDescription gpt = model::make_from_shapes(s);
  const std::int64_t whole = kept(job(1, ContextKind::ring), megatron(), gpt);
  for (const ContextKind kind : {ContextKind::ring, ContextKind::all_gather}) EXPECT_EQ(kept(job(4, kind), megatron(), gpt), whole / 4);
}

/// Most bytes that a list of items holds at once besides the tensors of its node.
std::int64_t borrowed(const std::vector<Item>& items) {
  std::map<int, std::int64_t> live;
  std::int64_t now = 0, peak = 0;
  for (const Item& i : items) {
    if (i.kind == Item::Kind::alloc) {
      EXPECT_TRUE(live.emplace(i.temporary, i.bytes).second) << i.temporary;
      now += i.bytes;
    } else if (i.kind == Item::Kind::free) {
      EXPECT_TRUE(live.contains(i.temporary)) << i.temporary;
      now -= live[i.temporary];
      live.erase(i.temporary);
    }
    peak = std::max(peak, now);
  }
  EXPECT_TRUE(live.empty());
  return peak;
}

struct Borrowed {
  std::int64_t forward = 0, backward = 0;
};
Borrowed borrowed_by_attention(const Strategy& s, const FrameworkProfile& profile) {
  plan::PlanBuilder builder;
  const model::ModelDescription m = small_model();
  LowerContext c = make_context(m, s, profile, builder);
  c.layer = 0;
  for (const Node& n : layer_tape(c, m.layers[0]).nodes)
    if (n.name == "attention") return {borrowed(n.forward), borrowed(n.backward)};
  return {};
}

// Transformer Engine's ring keeps every rank's keys and values (the last are saved) and every step's output until it is closed.
// Backward: two buffers of keys, values and gradients less the gradients that are handed on, and one step's own gradients.
// Gathered: all keys and values as they came and in order, one of the two at a time. Legend: o output, l statistics.
TEST(ContextParallel, WorkingMemoryIsThatOfTheAlgorithm) {
  for (const int p : {2, 4, 8}) {
    const std::int64_t pair = pair_bytes(p), o = query_bytes(p), l = kBatch * kSequence / p * kHeads * 4, wide = 2 * o;
    const Borrowed ring = borrowed_by_attention(job(p, ContextKind::ring), megatron()), gathered = borrowed_by_attention(job(p, ContextKind::all_gather), megatron());
    EXPECT_EQ(ring.forward, (p - 1) * pair + p * (o + l));
    EXPECT_EQ(ring.backward, 3 * pair + o + pair + wide + l);
    EXPECT_EQ(gathered.forward, std::max(p * pair * 3 / 2, p * pair + o));
    EXPECT_EQ(gathered.backward, std::max({p * pair * 5 / 2, 2 * p * pair + o + p * pair + pair / 2 + (wide + l) / 2}));
    // PyTorch: one block's output, and four times as much in fp32 while it is merged; between the ends keys and values that
    // leave and that come.
    const Borrowed rotated = borrowed_by_attention(job(p, ContextKind::ring), load_profile("torchtitan"));
    EXPECT_EQ(rotated.forward, (p > 2 ? 2 * pair : 0) + o + l + 4 * wide);
    const Borrowed at_once = borrowed_by_attention(job(p, ContextKind::all_gather), load_profile("torchtitan"));
    EXPECT_EQ(at_once.forward, (p > 2 ? pair + p * pair : 0) + o + l + 4 * wide);
  }
}

TEST(ContextParallel, GroupsOfAHybridNest) {
  Degrees d;
  d.tensor = 2, d.context = 8, d.context_ulysses = 4, d.data = 2;
  const Layout layout(d);
  EXPECT_EQ(layout.group_of(Axis::context_ulysses, 9), (std::vector<Rank>{9, 11, 13, 15}));
  EXPECT_EQ(layout.group_of(Axis::context_ring, 9), (std::vector<Rank>{1, 9}));
  for (Rank r = 0; r < layout.world_size(); ++r) {
    // Each pair of the context group meets in exactly one way: all of `ulysses` x all of `ring`.
    std::vector<Rank> product;
    for (const Rank a : layout.group_of(Axis::context_ulysses, r))
      for (const Rank b : layout.group_of(Axis::context_ring, a)) product.push_back(b);
    std::sort(product.begin(), product.end());
    EXPECT_EQ(product, layout.group_of(Axis::context, r));
  }
  d.context_ulysses = 3;
  const auto problems = problems_of(d, d.world());
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].key, "parallelism.context_ulysses");
}

TEST(ContextParallel, RefusalsSayWhatIsNear) {
  const auto refused = [](const model::ModelDescription& m, const Strategy& s, const std::string& framework, const std::string& key, const std::string& words) {
    for (const Diagnostic& d : problems_of(m, s, load_profile(framework), 8))
      if (d.key == key && d.problem.find(words) != std::string::npos && !d.fix.empty()) return true;
    return false;
  };
  const auto allowed = [](const model::ModelDescription& m, const Strategy& s, const std::string& framework) { return problems_of(m, s, load_profile(framework), 8).empty(); };
  // Whole heads: 16 of queries, 4 of keys.
  EXPECT_TRUE(refused(small_model(), job(32, ContextKind::ulysses), "megatron-core", "parallelism.context", "32 does not divide the 16 attention heads"));
  EXPECT_TRUE(refused(small_model(4), job(8, ContextKind::ulysses), "megatron-core", "parallelism.context", "8 does not divide the 4 key/value heads"));
  EXPECT_TRUE(allowed(small_model(4), job(8, ContextKind::ulysses), "deepspeed"));   // makes copies
  EXPECT_TRUE(allowed(small_model(4), job(8, ContextKind::ulysses_ring, 4), "megatron-core"));
  EXPECT_TRUE(refused(small_model(4), job(8, ContextKind::ulysses_ring, 8), "megatron-core", "parallelism.context_ulysses", "key/value heads"));
  Strategy halves = job(8, ContextKind::ulysses);
  halves.parallelism.degrees.tensor = 4;
  EXPECT_TRUE(refused(small_model(), halves, "megatron-core", "parallelism.context", "8 does not divide the 4 attention heads of a tensor rank"));
  // The inner degree belongs to the hybrid.
  EXPECT_TRUE(refused(small_model(), job(8, ContextKind::ulysses_ring), "megatron-core", "parallelism.context_ulysses", "needs the number"));
  EXPECT_TRUE(refused(small_model(), job(8, ContextKind::ring, 2), "megatron-core", "parallelism.context_ulysses", "only ulysses-ring"));
  // Balanced chunks.
  Strategy odd = job(4, ContextKind::ring);
  odd.training.sequence_length = 1020;
  EXPECT_TRUE(refused(small_model(), odd, "megatron-core", "parallelism.context", "1020 tokens cannot be cut into 2 x 4"));
  odd.parallelism.context_kind = ContextKind::ulysses;
  EXPECT_TRUE(allowed(small_model(), odd, "deepspeed"));
  odd.training.sequence_length = 1022;
  EXPECT_TRUE(refused(small_model(), odd, "deepspeed", "parallelism.context", "into 4 equal"));
  // Windows and sinks.
  model::ModelDescription windows = small_model();
  windows.layers[1].window = 128;
  EXPECT_TRUE(refused(windows, job(4, ContextKind::ring), "megatron-core", "parallelism.context_kind", "sliding windows"));
  EXPECT_TRUE(refused(windows, job(4, ContextKind::all_gather), "torchtitan", "parallelism.context_kind", "sliding windows"));
  EXPECT_TRUE(allowed(windows, job(4, ContextKind::all_gather), "megatron-core"));
  EXPECT_TRUE(allowed(windows, job(4, ContextKind::ulysses), "megatron-core"));
  model::ModelDescription sinks = small_model();
  sinks.attention_sinks = true;
  EXPECT_TRUE(refused(sinks, job(4, ContextKind::all_gather), "megatron-core", "parallelism.context_kind", "sinks"));
  EXPECT_TRUE(allowed(sinks, job(4, ContextKind::ulysses), "megatron-core"));
  Strategy unfused = job(4, ContextKind::ulysses);
  unfused.training.attention = "unfused";
  EXPECT_TRUE(refused(small_model(), unfused, "megatron-core", "parallelism.context", "fused attention"));
}

}  // namespace
}  // namespace rehearse::strategies::context_parallel_test
