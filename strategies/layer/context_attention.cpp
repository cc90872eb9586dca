// Context parallelism. Tokens are dealt "zigzag": of 2n chunks of the sequence, rank i has chunks i and 2n-1-i, so that all
// ranks have the same number of causal scores. What differs between the ranks of a ring is which half of a block they skip;
// the last rank stands for all, whose blocks give whole outputs: no rank has more memory or longer corrections.
//
// Legend: n ranks, L tokens of one rank.
// Sources: Transformer Engine, attention/dot_product_attention/context_parallel.py (AttnFuncWithCPAndKVP2P,
// AttnFuncWithCPAndKVAllGather, AttnFuncWithCPAndQKVOA2A); PyTorch, distributed/tensor/experimental/_attention.py
// (_templated_ring_attention and its backward); DeepSpeed, runtime/sequence_parallel/ulysses_sp.py (UlyssesSPAttentionHF).
#include "strategies/layer/context_attention.h"

#include <algorithm>

namespace rehearse::strategies {
namespace {

using model::KernelKind;
using plan::GroupAxis;
using plan::Stream;

constexpr int kBothWait = plan::kAfterCompute | plan::kComputeWaits;

// Temporaries of a node; those of a step are numbered from the last ones on.
constexpr int kAccumulator = 0, kSums = 1, kFirst = 2, kSecond = 3, kThird = 4, kFourth = 5;
constexpr int kTravelling = 10'000, kJoined = 20'000, kOutput = 30'000, kStatistics = 40'000, kMerged = 50'000;

class ContextAttention {
 public:
  ContextAttention(const LowerContext& c, Operators& op, Tape& tape, AttentionShape shape) : c_(c), op_(op), tape_(tape), s_(shape), tokens_(shape.batch * shape.length), kind_(context_kind(c.strategy, c.profile)) {}

  TensorId run(AttentionInputs in) {
    if (c_.profile.transformer_engine)
      for (const auto& [t, bytes] : {std::pair{&in.query, query()}, {&in.key, key()}, {&in.value, value()}}) *t = contiguous(*t, bytes);
    const int all = c_.strategy.parallelism.degrees.context, inside = c_.strategy.parallelism.degrees.context_ulysses;
    switch (kind_) {
      case ContextKind::ring: return around(in, all, GroupAxis::context, false);
      case ContextKind::all_gather: return c_.profile.transformer_engine ? gathered(in, all) : around(in, all, GroupAxis::context, true);
      case ContextKind::ulysses: return exchanged(in, all, GroupAxis::context, 1);
      case ContextKind::ulysses_ring: return exchanged(in, inside, GroupAxis::context_ulysses, all / inside);
    }
    return kNoTensor;
  }

 private:
  // Bytes of this rank's tensors.
  std::int64_t query() const { return tokens_ * s_.heads * s_.head_dim * c_.element(); }
  std::int64_t key() const { return tokens_ * s_.kv_heads * s_.head_dim * c_.element(); }
  std::int64_t value() const { return tokens_ * s_.kv_heads * s_.value_dim * c_.element(); }
  std::int64_t pair() const { return key() + value(); }
  std::int64_t output() const { return tokens_ * s_.heads * s_.value_dim * c_.element(); }
  std::int64_t statistics() const { return tokens_ * s_.heads * 4; }
  /// The same elements in fp32.
  std::int64_t wide(std::int64_t bytes) const { return bytes / c_.element() * 4; }

  static void append(std::vector<Item>& out, std::initializer_list<Item> items) { out.insert(out.end(), items); }
  Item travel(CollectiveKind kind, const std::string& name, std::int64_t bytes, int sync, GroupAxis axis) const { return op_.collective(kind, name, bytes, sync, axis, Stream::context); }

  /// A part of the fused projection in memory of its own, so that the whole can go.
  /// Source: Transformer Engine, attention/dot_product_attention/backends.py (contiguous() where context_parallel).
  TensorId contiguous(TensorId t, std::int64_t bytes) {
    if (!tape_.tensors[static_cast<std::size_t>(t)].own_gradient) return t;
    const TensorId copy = tape_.tensor("contiguous " + tape_.tensors[static_cast<std::size_t>(t)].name, bytes);
    tape_.nodes.push_back({.name = "contiguous", .inputs = {t}, .outputs = {copy}, .forward = {op_.kernel("contiguous", bytes, bytes, model::KernelKind::strided)}, .passed_inputs = 1});
    return copy;
  }

  /// A kernel over `queries` and `keys`, backward with what it borrows.
  void kernel(std::vector<Item>& out, KernelKind kind, bool causal, std::int64_t queries, std::int64_t keys) const {
    const bool backward = kind == KernelKind::attention_backward;
    if (backward)
      append(out, {Operators::workspace(kAccumulator, s_.batch * queries * s_.heads * s_.head_dim * 4), Operators::workspace(kSums, s_.batch * queries * s_.heads * 4)});
    out.push_back(op_.attention_kernel(kind, s_, causal, queries, keys));
    if (backward) append(out, {Operators::free(kAccumulator), Operators::free(kSums)});
  }

  /// `kept`: what backward reads besides the query, the output and its statistics.
  TensorId finish(Node node, AttentionInputs in, std::vector<TensorId> kept) {
    node.name = "attention";
    node.inputs = {in.query, in.key, in.value};
    node.saved = {in.query};
    node.saved.insert(node.saved.end(), kept.begin(), kept.end());
    node.saved.push_back(node.outputs.front());
    node.saved.insert(node.saved.end(), node.intermediates.begin(), node.intermediates.end());
    const TensorId out = node.outputs.front();
    op_.sinks(node);
    tape_.nodes.push_back(std::move(node));
    return out;
  }
  Node node_with_output() {
    Node node;
    node.outputs = {tape_.tensor("attention output", output())};
    node.intermediates = {tape_.tensor("attention log-sum-exp", statistics(), false)};
    return node;
  }

  /// Of packed documents each is dealt out to the ranks of the ring by itself (Transformer Engine's thd format): as many short sequences.
  void deal_out_documents(int n) {
    const std::int64_t share = std::max<std::int64_t>(2, c_.strategy.training.attended_length() / n);
    if (share >= s_.length) return;
    s_.batch = (tokens_ + share - 1) / share;
    s_.length = share;
  }

  /// Blocks of scores, one per rank's keys and values. Those come round the ring, or, as PyTorch's "all-gather" rotation has
  /// it, all at once under the first block; gradients of keys and values go round in both.
  TensorId around(AttentionInputs in, int n, GroupAxis axis, bool gathers) {
    if (n == 1) return op_.attention(in.query, in.key, in.value, s_);
    deal_out_documents(n);
    Node node = node_with_output();
    if (c_.profile.transformer_engine) {
      // What came last stays: backward goes round the other way.
      node.intermediates.push_back(tape_.tensor("keys and values that came last", pair()));
      ring_forward(node.forward, n, axis);
      ring_backward(node.backward, n, axis);
      return finish(std::move(node), in, {});
    }
    torch_forward(node.forward, n, axis, gathers);
    torch_backward(node.backward, n, axis, gathers);
    return finish(std::move(node), in, {in.key, in.value});
  }

  /// The block of one step: the first is a rank's own triangle; of the others half is masked.
  void block(std::vector<Item>& out, KernelKind kind, bool own) const { kernel(out, kind, own, s_.length, own ? s_.length : s_.length / 2); }

  // Transformer Engine: every step's output is kept until all statistics are known. (It runs every second block on a second
  // stream, which only fills the tails of the kernels.)
  void ring_forward(std::vector<Item>& f, int n, GroupAxis axis) const {
    append(f, {Operators::alloc(kTravelling, pair()), op_.kernel("join keys and values", pair(), pair())});
    for (int i = 0; i < n; ++i) {
      if (i > 0) f.push_back(Operators::wait(Stream::context));
      if (i + 2 < n) f.push_back(Operators::alloc(kTravelling + i + 1, pair()));
      if (i + 1 < n) f.push_back(travel(CollectiveKind::send_recv, "ring of keys and values", pair(), i == 0 ? plan::kAfterCompute : 0, axis));
      append(f, {Operators::alloc(kOutput + i, output()), Operators::alloc(kStatistics + i, statistics())});
      block(f, KernelKind::attention_forward, i == 0);
      f.push_back(i == 0 ? op_.kernel("log-sum-exp copy", statistics(), statistics()) : op_.kernel("log-sum-exp correction", 2 * statistics(), statistics()));
    }
    for (int i = 0; i < n; ++i) f.push_back(op_.kernel("output correction", (i == 0 ? 1 : 2) * output() + 2 * statistics(), output()));
    for (int i = 0; i < n; ++i) {
      append(f, {Operators::free(kOutput + i), Operators::free(kStatistics + i)});
      if (i + 1 < n) f.push_back(Operators::free(kTravelling + i));
    }
  }

  // Two buffers of keys, values and their gradients take turns; the gradients handed on are half of one of them.
  void ring_backward(std::vector<Item>& b, int n, GroupAxis axis) const {
    append(b, {Operators::alloc(kFirst, 2 * pair()), Operators::alloc(kSecond, pair()), op_.kernel("copy keys and values", pair(), pair())});
    for (int i = 0; i < n; ++i) {
      const bool last = i + 1 == n;
      const std::int64_t part = last ? pair() : pair() / 2;
      // First keys and values alone, last gradients alone.
      b.push_back(travel(CollectiveKind::send_recv, "ring of keys, values and gradients", i == 0 || last ? pair() : 2 * pair(), plan::kAfterCompute, axis));
      append(b, {Operators::alloc(kThird, query()), Operators::alloc(kFourth, part)});
      block(b, KernelKind::attention_backward, last);
      append(b, {op_.kernel("query gradient sum", (i == 0 ? 1 : 2) * query(), query()), Operators::wait(Stream::context),
                 op_.kernel("key gradient sum", (i == 0 ? 1 : 2) * part / 2, part / 2), op_.kernel("value gradient sum", (i == 0 ? 1 : 2) * part / 2, part / 2),
                 Operators::free(kThird), Operators::free(kFourth)});
    }
    append(b, {Operators::free(kFirst), Operators::free(kSecond)});
  }

  /// Step i's keys and values on their way to the next rank, or to all.
  void rotate(std::vector<Item>& out, int i, int n, GroupAxis axis, bool gathers) const {
    append(out, {Operators::alloc(kJoined + i, pair()), op_.kernel("join keys and values", pair(), pair())});
    if (!gathers || i == 0) out.push_back(Operators::alloc(kTravelling + i, gathers ? n * pair() : pair()));
    if (!gathers) out.push_back(travel(CollectiveKind::send_recv, "ring of keys and values", pair(), plan::kAfterCompute, axis));
    else if (i == 0) out.push_back(travel(CollectiveKind::all_gather, "gather keys and values", n * pair(), plan::kAfterCompute, axis));
  }
  /// What step i no longer needs.
  void drop(std::vector<Item>& out, int i, int n, bool gathers) const {
    if (i == 0) return;
    out.push_back(Operators::free(kJoined + i - 1));
    if (!gathers) out.push_back(Operators::free(kTravelling + i - 1));
    else if (i + 1 == n) out.push_back(Operators::free(kTravelling));
  }

  // PyTorch: each step's output is merged at once, in fp32 and one operator at a time.
  void torch_forward(std::vector<Item>& f, int n, GroupAxis axis, bool gathers) const {
    const std::int64_t sum = wide(output());
    for (int i = 0; i < n; ++i) {
      if (i > 0) f.push_back(Operators::wait(Stream::context));
      if (i + 1 < n) rotate(f, i, n, axis, gathers);
      append(f, {Operators::alloc(kOutput, output()), Operators::alloc(kStatistics, statistics())});
      block(f, KernelKind::attention_forward, i == 0);
      drop(f, i, n, gathers);
      const int before = kMerged + (i + 1) % 2, after = kMerged + i % 2;
      append(f, {Operators::alloc(i == 0 ? after : kFirst, sum), op_.convert("block output cast", output(), sum)});
      if (i > 0) {
        append(f, {op_.kernel("log-sum-exp difference", 2 * statistics(), statistics()), op_.kernel("log-sum-exp sigmoid", statistics(), statistics()),
                   Operators::alloc(kSecond, sum), op_.kernel("block output difference", 2 * sum, sum), Operators::alloc(kThird, sum), op_.kernel("block output weighed", sum, sum),
                   Operators::free(kSecond), Operators::alloc(after, sum), op_.kernel("output merged", 2 * sum, sum), Operators::free(kThird), Operators::free(kFirst), Operators::free(before),
                   op_.kernel("log-sum-exp difference", 2 * statistics(), statistics()), op_.kernel("log-sum-exp logsigmoid", statistics(), statistics()),
                   op_.kernel("log-sum-exp merged", 2 * statistics(), statistics())});
      }
      append(f, {Operators::free(kOutput), Operators::free(kStatistics)});
    }
    append(f, {op_.convert("output cast", sum, output()), Operators::free(kMerged + (n + 1) % 2)});
  }

  // Gradients are summed and travel in fp32; those of keys and values take one step more than there are neighbours.
  void torch_backward(std::vector<Item>& b, int n, GroupAxis axis, bool gathers) const {
    const std::int64_t pairs = wide(pair()), queries = wide(query());
    append(b, {Operators::alloc(kFirst, queries), op_.kernel("zeros", 0, queries, KernelKind::memset), Operators::alloc(kMerged, pairs),
               op_.kernel("zeros", 0, wide(key()), KernelKind::memset), op_.kernel("zeros", 0, wide(value()), KernelKind::memset)});
    for (int i = 0; i < n; ++i) {
      const std::int64_t part = i == 0 ? pair() : pair() / 2;
      if (i + 1 < n) rotate(b, i, n, axis, gathers);
      append(b, {Operators::alloc(kSecond, query()), Operators::alloc(kThird, part)});
      block(b, KernelKind::attention_backward, i == 0);
      // Gradients from the rank before, and the next step's keys and values, which are on the same stream.
      b.push_back(Operators::wait(Stream::context));
      drop(b, i, n, gathers);
      if (i > 0) b.push_back(Operators::free(kOutput + (i + 1) % 2));
      const int now = i == 0 ? kMerged : kStatistics + (i + 1) % 2;
      for (const char* name : {"key gradient sum", "value gradient sum"}) {
        b.push_back(op_.kernel(name, part / 2 + wide(part) / 2, wide(part) / 2));
        if (i > 0) b.push_back(op_.kernel("join chunks", pairs / 2, pairs / 2));
      }
      append(b, {Operators::alloc(kOutput + i % 2, pairs), op_.kernel("join gradients", pairs, pairs), Operators::free(now), Operators::alloc(kStatistics + i % 2, pairs),
                 travel(CollectiveKind::send_recv, "ring of gradients", pairs, plan::kAfterCompute, axis), op_.kernel("query gradient sum", query() + queries, queries),
                 Operators::free(kSecond), Operators::free(kThird)});
    }
    append(b, {op_.convert("query gradient cast", queries, query()), Operators::wait(Stream::context), op_.convert("key and value gradient cast", pairs, pair()), Operators::free(kFirst),
               Operators::free(kOutput + (n + 1) % 2), Operators::free(kStatistics + (n + 1) % 2)});
  }

  // Transformer Engine: keys and values of all, put in order; then one kernel for each of the rank's two chunks of queries.
  // The first rank stands for all: it has the shortest and the longest row of scores.
  TensorId gathered(AttentionInputs in, int n) {
    Node node = node_with_output();
    const std::int64_t chunk = s_.length / 2, whole = 2 * n * chunk;
    const auto gather = [&](std::vector<Item>& out) {
      for (const auto& [raw, ordered, bytes, name] : {std::tuple{kTravelling, kFirst, key(), "keys"}, {kTravelling + 1, kSecond, value(), "values"}})
        append(out, {Operators::alloc(raw, n * bytes), travel(CollectiveKind::all_gather, std::string("gather ") + name, n * bytes, kBothWait, GroupAxis::context)});
      for (const auto& [raw, ordered, bytes, name] : {std::tuple{kTravelling, kFirst, key(), "keys"}, {kTravelling + 1, kSecond, value(), "values"}})
        append(out, {Operators::alloc(ordered, n * bytes), op_.kernel(std::string("order ") + name, n * bytes, n * bytes), Operators::free(raw)});
    };
    gather(node.forward);
    for (int i = 0; i < 2; ++i) {
      node.forward.push_back(Operators::alloc(kOutput + i, output() / 2));
      kernel(node.forward, KernelKind::attention_forward, true, chunk, i == 0 ? chunk : whole);
      node.forward.push_back(op_.kernel("output copy", output() / 2, output() / 2));
    }
    append(node.forward, {Operators::free(kOutput), Operators::free(kOutput + 1), Operators::free(kFirst), Operators::free(kSecond)});

    const std::int64_t all = n * pair(), shortest = all / (2 * n);
    append(node.backward, {Operators::alloc(kThird, all), op_.kernel("zeros", 0, n * key(), KernelKind::memset), op_.kernel("zeros", 0, n * value(), KernelKind::memset)});
    gather(node.backward);
    for (int i = 0; i < 2; ++i) {
      const std::int64_t seen = i == 0 ? shortest : all;
      append(node.backward, {Operators::alloc(kOutput + i, query() / 2), Operators::alloc(kJoined + i, seen)});
      kernel(node.backward, KernelKind::attention_backward, true, chunk, i == 0 ? chunk : whole);
      append(node.backward, {op_.kernel("query gradient copy", query() / 2, query() / 2), op_.kernel("key gradient sum", seen, seen / 2), op_.kernel("value gradient sum", seen, seen / 2)});
    }
    for (int t : {kOutput, kOutput + 1, kJoined, kJoined + 1, kFirst, kSecond}) node.backward.push_back(Operators::free(t));
    append(node.backward, {Operators::alloc(kFourth, all), op_.kernel("order key gradients", n * key(), n * key()), op_.kernel("order value gradients", n * value(), n * value()), Operators::free(kThird),
                           travel(CollectiveKind::reduce_scatter, "scatter key gradients", n * key(), kBothWait, GroupAxis::context),
                           travel(CollectiveKind::reduce_scatter, "scatter value gradients", n * value(), kBothWait, GroupAxis::context), Operators::free(kFourth)});
    return finish(std::move(node), in, {in.key, in.value});
  }

  // Ulysses ----------------------------------------------------------------------------------------------------------

  struct Part {
    TensorId tensor;
    std::int64_t bytes;
    std::string name;
  };

  /// All tokens of the group for 1/n of the heads; around the group, `outside` such groups form a ring.
  TensorId exchanged(AttentionInputs in, int n, GroupAxis axis, int outside) {
    if (n == 1) return around(in, outside, GroupAxis::context_ring, false);
    if (s_.kv_heads < n) {
      // Too few to divide: as many copies as there are ranks (UlyssesSPAttentionHF; Transformer Engine refuses).
      in.key = op_.repeat(in.key, "repeat keys", s_.kv_heads * s_.head_dim, n * s_.head_dim);
      in.value = op_.repeat(in.value, "repeat values", s_.kv_heads * s_.value_dim, n * s_.value_dim);
      s_.kv_heads = n;
    }
    const std::vector<TensorId> there = exchange({{in.query, query(), "queries"}, {in.key, key(), "keys"}, {in.value, value(), "values"}}, axis, true);
    if (c_.profile.repeat_kv && !c_.profile.transformer_engine && s_.kv_heads < s_.heads) {
      in.key = op_.repeat(there[1], "repeat keys", s_.kv_heads * s_.head_dim, s_.heads * s_.head_dim);
      in.value = op_.repeat(there[2], "repeat values", s_.kv_heads * s_.value_dim, s_.heads * s_.value_dim);
      s_.kv_heads = s_.heads;
    } else {
      in.key = there[1], in.value = there[2];
    }
    const std::int64_t bytes = output();
    s_.length *= n;
    tokens_ *= n;
    s_.heads /= n;
    s_.kv_heads /= n;
    const TensorId out = around({there[0], in.key, in.value}, outside, GroupAxis::context_ring, false);
    return exchange({{out, bytes, "attention output"}}, axis, false).front();
  }

  /// Transformer Engine exchanges q, k and v together, so that copies run under all-to-alls; others each by itself.
  std::vector<TensorId> exchange(const std::vector<Part>& parts, GroupAxis axis, bool there) {
    std::vector<TensorId> out;
    const auto add = [&](const std::vector<Part>& together) {
      Node node{.name = there ? "heads exchange" : "heads exchange back"};
      for (const Part& p : together) {
        node.inputs.push_back(p.tensor);
        node.outputs.push_back(tape_.tensor(p.name + (there ? " of some heads" : " of all heads"), p.bytes));
        out.push_back(node.outputs.back());
      }
      node.forward = c_.profile.transformer_engine ? pipelined(together, axis, "") : plain(together.front(), axis, there, "");
      node.backward = c_.profile.transformer_engine ? pipelined(together, axis, " gradient") : plain(together.front(), axis, !there, " gradient");
      tape_.nodes.push_back(std::move(node));
    };
    if (c_.profile.transformer_engine) add(parts);
    else
      for (const Part& p : parts) add({p});
    return out;
  }

  /// A copy in the order of receivers, the all-to-all, a copy in the order of tokens; of several tensors one after the other.
  std::vector<Item> pipelined(const std::vector<Part>& parts, GroupAxis axis, const std::string& what) const {
    std::vector<Item> out;
    const int m = static_cast<int>(parts.size());
    const auto part = [&](int i) -> const Part& { return parts[static_cast<std::size_t>(i)]; };
    for (int i = 0; i < m + 2; ++i) {
      if (i >= 2) out.push_back(Operators::wait(Stream::context));
      if (i >= 1 && i <= m)
        append(out, {Operators::alloc(kTravelling + i - 1, part(i - 1).bytes), travel(CollectiveKind::all_to_all, "all-to-all of " + part(i - 1).name + what, part(i - 1).bytes, plan::kAfterCompute, axis)});
      if (i >= 2) append(out, {op_.kernel("order tokens", part(i - 2).bytes, part(i - 2).bytes, KernelKind::permute), Operators::free(kTravelling + i - 2)});
      if (i < m) append(out, {Operators::alloc(kJoined + i, part(i).bytes), op_.kernel("order heads", part(i).bytes, part(i).bytes, KernelKind::permute)});
    }
    for (int i = 0; i < m; ++i) out.push_back(Operators::free(kJoined + i));
    return out;
  }

  /// DeepSpeed: compute waits; the copy is before the all-to-all on the way to whole sequences, after it on the way back.
  std::vector<Item> plain(const Part& part, GroupAxis axis, bool there, const std::string& what) const {
    const Item copy = op_.kernel("order heads", part.bytes, part.bytes, KernelKind::permute);
    const Item exchange = travel(CollectiveKind::all_to_all, "all-to-all of " + part.name + what, part.bytes, kBothWait, axis);
    std::vector<Item> out{Operators::alloc(kTravelling, part.bytes)};
    append(out, {there ? copy : exchange, there ? exchange : copy, Operators::free(kTravelling)});
    return out;
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  AttentionShape s_;
  std::int64_t tokens_;   // of this rank
  ContextKind kind_;
};

}  // namespace

TensorId context_attention(const LowerContext& c, Operators& op, Tape& tape, AttentionInputs in, AttentionShape shape) { return ContextAttention(c, op, tape, shape).run(in); }

}  // namespace rehearse::strategies
