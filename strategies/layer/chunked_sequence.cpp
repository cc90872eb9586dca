// DeepSpeed's Fully Pipelined Distributed Transformer: projections and attention take a chunk of the sequence at a time, what
// other chunks have lies in pinned host memory; output layer and loss go in still smaller pieces. Leaves out the MLP (tiled.cpp)
// and which jobs may (strategies/rules.cpp).
//
// Legend: n chunks, L tokens of a chunk on one rank, C tokens of it on all ranks of the context group.
// Source: DeepSpeed sequence/fpdt_layer.py (_FPDTGPUOffloadingAttentionImpl_, FPDT_LogitsLoss); Megatron-DeepSpeed
// model/gpt_model.py, model/transformer.py; Yao et al. 2024 (arXiv 2408.16978).
#include <algorithm>
#include <utility>

#include "strategies/layer/blocks.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;
using plan::CopySpec;
using plan::GroupAxis;
using plan::Stream;

namespace chunked_sequence {

constexpr int kBothWait = plan::kAfterCompute | plan::kComputeWaits;

/// Temporaries: of one chunk, and from kChunks on one kind per chunk.
enum Held : int {
  kProjected, kBiased, kOrdered, kRotated, kScratch, kBlockOutput, kBlockStatistics, kBlockWide, kScaled, kOtherScaled, kAccumulator, kRowSums,
  kNarrow, kExchanged, kKeySums, kValueSums, kQueryPart, kKeyPart, kValuePart, kMade, kWeightSum, kBiasSum, kSent, kChunks = 100
};
/// Tensors that each chunk has.
enum class Of : std::uint8_t { query, key, value, input, output, statistics, result, output_gradient, query_gradient, input_gradient, merged_even, merged_odd, kinds };

class ChunkedAttention {
 public:
  ChunkedAttention(const LowerContext& c, Operators& op, Tape& tape, bool rotates)
      : c_(c), op_(op), tape_(tape), rotates_(rotates), ranks_(c.strategy.parallelism.degrees.context), n_(static_cast<int>(sequence_chunks(c))) {
    const auto& m = c.model;
    tokens_ = c.tokens / n_;
    query_width_ = m.heads * m.head_dim, key_width_ = m.kv_heads * m.head_dim;
    shape_ = {.batch = c.batch, .heads = m.heads / ranks_, .kv_heads = std::max<std::int64_t>(1, m.kv_heads / ranks_), .head_dim = m.head_dim, .value_dim = m.head_dim, .length = c.sequence / n_ * ranks_};
  }

  TensorId run(TensorId x) {
    const std::int64_t width = query_width_ + 2 * key_width_, h = c_.model.hidden;
    Weight matrix = op_.weight("qkv.weight", width * h);
    matrix.columns = h;
    matrix.replicated_over_tensor = true;
    weight_ = tape_.weight(std::move(matrix));
    if (c_.model.qkv_bias) {
      Weight vector = op_.weight("qkv.bias", width);
      vector.matrix = false;
      vector.replicated_over_tensor = true;
      bias_ = tape_.weight(std::move(vector));
    }
    const TensorId out = tape_.tensor("attention output", c_.tokens * query_width_ * c_.element());
    Node node{.name = "chunked attention", .inputs = {x}, .outputs = {out}};
    forward(node.forward);
    backward(node.backward);
    tape_.nodes.push_back(std::move(node));
    return out;
  }

 private:
  static void append(std::vector<Item>& out, std::initializer_list<Item> items) { out.insert(out.end(), items); }
  static int held(Of what, int chunk) { return kChunks + chunk * static_cast<int>(Of::kinds) + static_cast<int>(what); }

  // Bytes of a chunk on this rank; the all-to-all changes no size.
  std::int64_t input() const { return tokens_ * c_.model.hidden * c_.element(); }
  std::int64_t query() const { return tokens_ * query_width_ * c_.element(); }
  std::int64_t key() const { return tokens_ * key_width_ * c_.element(); }
  std::int64_t statistics() const { return tokens_ * c_.model.heads * 4; }
  std::int64_t wide(std::int64_t bytes) const { return bytes / c_.element() * 4; }

  Item to_host(std::int64_t bytes) const { return {.kind = Item::Kind::copy, .stream = Stream::to_host, .sync = plan::kAfterCompute, .spec = c_.builder.copy({CopySpec::Direction::device_to_host, true, Bytes{bytes}})}; }
  /// Under the kernels that have been issued.
  void load(std::vector<Item>& list, Of what, int chunk, std::int64_t bytes) const {
    append(list, {Operators::alloc(held(what, chunk), bytes), {.kind = Item::Kind::copy, .stream = Stream::to_device, .spec = c_.builder.copy({CopySpec::Direction::host_to_device, true, Bytes{bytes}})}});
  }
  static Item host_sync() { return {.kind = Item::Kind::host_sync}; }

  /// Heads of the chunk's tokens to where they belong: a copy in the order of receivers, then the all-to-all, or the other way round.
  void exchange(std::vector<Item>& list, const std::string& name, std::int64_t bytes, int to, bool there) const {
    const Item order = op_.kernel("order heads", bytes, bytes, KernelKind::permute);
    const Item travel = op_.collective(CollectiveKind::all_to_all, "all-to-all of " + name, bytes, kBothWait, GroupAxis::context, Stream::context);
    append(list, {Operators::alloc(kOrdered, bytes), Operators::alloc(to, bytes), there ? order : travel, there ? travel : order, Operators::free(kOrdered)});
  }
  /// apply_rotary_pos_emb, operator by operator: times cosines, halves exchanged, times sines, their sum.
  void rotate(std::vector<Item>& list, std::int64_t bytes) const {
    append(list, {op_.kernel("rope cosines", bytes, bytes), op_.kernel("rope halves", bytes, bytes), op_.kernel("rope sines", bytes, bytes), op_.kernel("rope sum", 2 * bytes, bytes)});
  }

  void project(std::vector<Item>& f, int i) const {
    const std::int64_t width = query_width_ + 2 * key_width_, bytes = tokens_ * width * c_.element();
    append(f, {Operators::alloc(kProjected, bytes), op_.gemm("qkv", GemmRole::forward, tokens_, width, c_.model.hidden, c_.activation, false)});
    if (bias_ >= 0) append(f, {Operators::alloc(kBiased, bytes), op_.kernel("qkv bias", bytes, bytes), Operators::free(kProjected)});
    f.push_back(to_host(input()));
    for (const auto& [what, size, name] : {std::tuple{Of::query, query(), "queries"}, {Of::key, key(), "keys"}, {Of::value, key(), "values"}}) {
      append(f, {Operators::alloc(kScratch, size), op_.kernel(std::string("part ") + name, size, size, KernelKind::strided)});
      exchange(f, name, size, held(what, i), true);
      f.push_back(Operators::free(kScratch));
    }
    f.push_back(host_sync());   // dist.barrier
    if (rotates_)
      for (const std::int64_t size : {query(), key()}) {
        f.push_back(Operators::alloc(kRotated, size));
        rotate(f, size);
        f.push_back(Operators::free(kRotated));
      }
    append(f, {Operators::wait(Stream::to_host), host_sync(), to_host(query()), to_host(key()), to_host(key()), Operators::free(bias_ >= 0 ? kBiased : kProjected)});
  }

  /// One block of scores and its part of the output, summed in fp32 operator by operator (_update_out_and_lse).
  void block(std::vector<Item>& f, int i, int j) const {
    const std::int64_t sum = wide(query());
    const int before = held(j % 2 == 0 ? Of::merged_odd : Of::merged_even, i), after = held(j % 2 == 0 ? Of::merged_even : Of::merged_odd, i);
    append(f, {Operators::alloc(kBlockOutput, query()), Operators::alloc(kBlockStatistics, statistics()), op_.attention_kernel(KernelKind::attention_forward, shape_, i == j, shape_.length, shape_.length)});
    append(f, {Operators::alloc(j == 0 ? after : kBlockWide, sum), op_.convert("block output cast", query(), sum)});
    if (j > 0)
      append(f, {op_.kernel("log-sum-exp merged", 2 * statistics(), statistics()), Operators::alloc(kScaled, sum), op_.kernel("output weighed", sum, sum), Operators::alloc(kOtherScaled, sum),
                 op_.kernel("block output weighed", sum, sum), Operators::alloc(after, sum), op_.kernel("output merged", 2 * sum, sum), Operators::free(kScaled), Operators::free(kOtherScaled),
                 Operators::free(kBlockWide), Operators::free(before)});
    append(f, {Operators::free(kBlockOutput), Operators::free(kBlockStatistics)});
  }

  void forward(std::vector<Item>& f) const {
    for (int i = 0; i < n_; ++i) {
      project(f, i);
      for (int j = 0; j <= i; ++j) {
        block(f, i, j);
        // The next keys and values come while these are read; the newest are there. After the last block comes the first again.
        const int next = j < i ? j + 1 : 0;
        const bool done = i + 1 == n_ && j == i;
        if (!done && next != j && next != i)
          for (const Of what : {Of::key, Of::value}) load(f, what, next, key());
        append(f, {Operators::wait(Stream::to_device), Operators::wait(Stream::to_host), host_sync()});
        if (next != j || done) append(f, {Operators::free(held(Of::key, j)), Operators::free(held(Of::value, j))});
      }
      const int merged = held(i % 2 == 0 ? Of::merged_even : Of::merged_odd, i);
      append(f, {Operators::free(held(Of::query, i)), Operators::alloc(kNarrow, query()), op_.convert("output cast", wide(query()), query())});
      exchange(f, "outputs", query(), held(Of::result, i), false);
      append(f, {to_host(query()), to_host(statistics()), Operators::free(kNarrow), Operators::free(merged)});
    }
    append(f, {Operators::wait(Stream::to_host), host_sync(), {.kind = Item::Kind::produce_outputs}, op_.kernel("join chunks", n_ * query(), n_ * query())});
    for (int i = 0; i < n_; ++i) f.push_back(Operators::free(held(Of::result, i)));
  }

  /// Everything that a chunk of queries needs for its gradients.
  void load_queries(std::vector<Item>& b, int q, bool first_pass) const {
    load(b, Of::query_gradient, q, wide(query()));
    load(b, Of::query, q, query());
    load(b, Of::output, q, query());
    load(b, Of::statistics, q, statistics());
    if (!first_pass) return load(b, Of::output_gradient, q, query());
    exchange(b, "output gradients", query(), held(Of::output_gradient, q), true);
    append(b, {host_sync(), to_host(query())});
  }
  void drop_queries(std::vector<Item>& b, int q) const {
    for (const Of what : {Of::query, Of::output, Of::statistics, Of::output_gradient}) b.push_back(Operators::free(held(what, q)));
  }

  void pair_gradients(std::vector<Item>& b, int i, int q) const {
    for (const auto& [part, bytes] : {std::pair{kQueryPart, query()}, {kKeyPart, key()}, {kValuePart, key()}}) append(b, {Operators::alloc(part, bytes), op_.kernel("zeros", 0, bytes, KernelKind::memset)});
    append(b, {Operators::workspace(kAccumulator, wide(query())), Operators::workspace(kRowSums, statistics()), op_.attention_kernel(KernelKind::attention_backward, shape_, i == q, shape_.length, shape_.length),
               Operators::free(kAccumulator), Operators::free(kRowSums)});
  }
  void sum_gradients(std::vector<Item>& b) const {
    append(b, {Operators::wait(Stream::to_device), Operators::wait(Stream::to_host), host_sync()});
    for (const auto& [part, bytes] : {std::pair{kQueryPart, query()}, {kKeyPart, key()}, {kValuePart, key()}}) append(b, {op_.kernel("gradient sum", bytes + wide(bytes), wide(bytes)), Operators::free(part)});
    b.push_back(to_host(wide(query())));
  }

  /// Gradients of a chunk's queries, keys and values are complete: back to their tokens, then through the projection.
  void project_back(std::vector<Item>& b, int i) const {
    const std::int64_t h = c_.model.hidden;
    for (const auto& [sum, size, rotated, name] : {std::tuple{held(Of::query_gradient, i), query(), rotates_, "query gradients"}, {static_cast<int>(kKeySums), key(), rotates_, "key gradients"}, {static_cast<int>(kValueSums), key(), false, "value gradients"}}) {
      append(b, {Operators::alloc(kNarrow, size), op_.convert("gradient cast", wide(size), size)});
      if (rotated) rotate(b, size);
      exchange(b, name, size, kExchanged, false);
      append(b, {host_sync(), Operators::free(kNarrow), Operators::free(sum)});
      const std::int64_t out = size / c_.element() / tokens_, weight = out * h * c_.element();
      append(b, {Operators::alloc(kMade, weight), op_.gemm("qkv weight gradient", GemmRole::weight_gradient, out, h, tokens_, c_.activation, false), op_.kernel("weight gradient sum", weight + wide(weight), wide(weight)), Operators::free(kMade)});
      if (bias_ >= 0) b.push_back(op_.kernel("qkv bias gradient", size, out * 4, KernelKind::reduction));
      append(b, {Operators::alloc(kMade, input()), op_.gemm("qkv data gradient", GemmRole::data_gradient, tokens_, h, out, c_.activation, false), op_.kernel("input gradient sum", 2 * input(), input()), Operators::free(kMade), Operators::free(kExchanged)});
    }
  }

  void backward(std::vector<Item>& b) const {
    const std::int64_t width = query_width_ + 2 * key_width_, weight = width * c_.model.hidden * c_.element();
    for (int i = 0; i < n_; ++i) append(b, {Operators::alloc(held(Of::input_gradient, i), input()), op_.kernel("zeros", 0, input(), KernelKind::memset)});
    load(b, Of::input, 0, input());
    append(b, {Operators::alloc(kWeightSum, wide(weight)), op_.kernel("zeros", 0, wide(weight), KernelKind::memset)});
    for (const Of what : {Of::key, Of::value}) load(b, what, 0, key());
    load_queries(b, 0, true);
    int current = 0, last = 0;
    for (int i = 0; i < n_; ++i) {
      for (const int sums : {kKeySums, kValueSums}) append(b, {Operators::alloc(sums, wide(key())), op_.kernel("zeros", 0, wide(key()), KernelKind::memset)});
      for (int q = i; q < n_; ++q) {
        pair_gradients(b, i, q);
        const int next = i + 1 == n_ ? q : q + 1 < n_ ? q + 1 : i + 1;
        if (next != current) {
          if ((i > 0 || q > 0) && last != i) b.push_back(Operators::free(held(Of::query_gradient, last)));   // that of chunk i goes on to its tokens
          load_queries(b, next, i == 0 && q + 1 < n_);
        }
        sum_gradients(b);
        if (next != current) drop_queries(b, current);
        last = std::exchange(current, next);
      }
      append(b, {Operators::wait(Stream::to_host), host_sync()});
      project_back(b, i);
      append(b, {Operators::free(held(Of::input, i)), Operators::free(held(Of::key, i)), Operators::free(held(Of::value, i))});
      if (i + 1 == n_) continue;
      for (const Of what : {Of::key, Of::value}) load(b, what, i + 1, key());
      load(b, Of::input, i + 1, input());
      append(b, {Operators::wait(Stream::to_device), host_sync()});
    }
    drop_queries(b, current);
    append(b, {{.kind = Item::Kind::release_output_gradients}, {.kind = Item::Kind::produce_input_gradients}, op_.kernel("join input gradients", n_ * input(), n_ * input())});
    for (int i = 0; i < n_; ++i) b.push_back(Operators::free(held(Of::input_gradient, i)));
    b.push_back(op_.weight_gradient(weight_, op_.convert("weight gradient cast", wide(weight), weight)));
    if (bias_ >= 0) b.push_back(op_.weight_gradient(bias_, op_.convert("bias gradient cast", width * 4, width * c_.element())));
    b.push_back(Operators::free(kWeightSum));
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  bool rotates_;
  std::int64_t ranks_, tokens_ = 0, query_width_ = 0, key_width_ = 0;
  AttentionShape shape_;
  int n_, weight_ = -1, bias_ = -1;
};

}  // namespace chunked_sequence

std::int64_t sequence_chunks(const LowerContext& c) {
  const std::int64_t chunk = c.strategy.memory.sequence_chunk;
  return chunk > 0 ? std::max<std::int64_t>(1, c.strategy.training.sequence_length / chunk) : 1;   // (asked of jobs that rules refuse, too)
}

/// Inputs, queries, keys, values, outputs and their statistics of each layer whose backward is to come; of the one at hand also
/// gradients of outputs and, in fp32, of queries.
std::int64_t chunked_host_bytes(const LowerContext& c, std::int64_t layers) {
  const auto& m = c.model;
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, kept = c.strategy.memory.recompute == Recompute::full ? 1 : layers;
  return c.tokens * ((m.hidden + 2 * q + 2 * kv) * c.element() + m.heads * 4) * kept + c.tokens * q * (c.element() + 4);
}

TensorId chunked_attention_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x, bool rotates) {
  const TensorId out = chunked_sequence::ChunkedAttention(c, op, tape, rotates).run(x);
  return op.linear(out, "o_proj", c.model.heads * c.model.head_dim, c.model.hidden, c.model.attention_output_bias, Operators::Split::row);
}

/// Logits of a piece at a time, made again in backward; what they are made from waits in pageable host memory.
void add_chunked_output(const LowerContext& c, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns) {
  constexpr int both = plan::kAfterCompute | plan::kComputeWaits;
  constexpr std::int64_t kPieces = 32;   // of a chunk (gpt_model.py, num_chunks_ce)
  const std::int64_t count = std::min(sequence_chunks(c) * kPieces, c.tokens), rows = c.tokens / count, e = c.element();
  const std::int64_t narrow = rows * columns * e, wide = rows * columns * 4, row = rows * 4, piece = rows * width * e, bytes = c.tokens * width * e, weight = width * columns;
  Weight matrix = op.weight("lm_head.weight", weight);
  matrix.replicated_over_tensor = true;
  matrix.columns = width;
  const int w = tape.weight(std::move(matrix));
  enum : int { kLogits, kWide, kSoftmax, kLog, kGradient, kHidden, kMadeWeight, kSum, kPieceGradient };
  Node n{.name = "chunked loss", .inputs = {hidden}};
  for (std::int64_t i = 0; i < count; ++i)
    n.forward.insert(n.forward.end(), {Operators::alloc(kLogits, narrow), op.gemm("lm_head", GemmRole::forward, rows, columns, width, c.activation, false), Operators::alloc(kWide, wide), op.convert("cast", narrow, wide),
                                       Operators::free(kLogits), Operators::alloc(kSoftmax, wide), op.kernel("softmax", wide, wide, KernelKind::softmax), Operators::alloc(kLog, wide), op.kernel("log", wide, wide),
                                       op.kernel("nll loss", row, row), Operators::free(kLog), Operators::free(kSoftmax), Operators::free(kWide)});
  n.forward.insert(n.forward.end(), {{.kind = Item::Kind::copy, .stream = Stream::to_host, .sync = both, .spec = c.builder.copy({CopySpec::Direction::device_to_host, false, Bytes{bytes}})}, {.kind = Item::Kind::host_sync},
                                     op.collective(CollectiveKind::all_gather, "gather losses", c.tokens * 4 * c.strategy.parallelism.degrees.context, both, GroupAxis::context, Stream::context)});
  auto& b = n.backward;
  b.insert(b.end(), {Operators::alloc(kSum, weight * 4), op.kernel("zeros", 0, weight * 4, KernelKind::memset)});
  for (std::int64_t i = 0; i < count; ++i) {
    const int made = kPieceGradient + static_cast<int>(i);
    b.insert(b.end(), {Operators::alloc(kHidden, piece), {.kind = Item::Kind::copy, .stream = Stream::to_device, .sync = both, .spec = c.builder.copy({CopySpec::Direction::host_to_device, false, Bytes{piece}})},
                       Operators::alloc(kLogits, narrow), op.gemm("lm_head", GemmRole::forward, rows, columns, width, c.activation, false), Operators::alloc(kWide, wide), op.convert("cast", narrow, wide), Operators::free(kLogits),
                       Operators::alloc(kSoftmax, wide), op.kernel("softmax", wide, wide, KernelKind::softmax), op.kernel("less one at the target", row, row), op.kernel("times the loss's gradient", wide, wide),
                       Operators::alloc(kGradient, narrow), op.convert("cast", wide, narrow), Operators::alloc(made, piece), op.gemm("lm_head data gradient", GemmRole::data_gradient, rows, width, columns, c.activation, false),
                       Operators::alloc(kMadeWeight, weight * e), op.gemm("lm_head weight gradient", GemmRole::weight_gradient, columns, width, rows, c.activation, false),
                       op.kernel("weight gradient sum", weight * (e + 4), weight * 4), Operators::free(kMadeWeight), Operators::free(kGradient), Operators::free(kSoftmax), Operators::free(kWide), Operators::free(kHidden)});
  }
  b.insert(b.end(), {{.kind = Item::Kind::produce_input_gradients}, op.kernel("join pieces", bytes, bytes)});
  for (std::int64_t i = 0; i < count; ++i) b.push_back(Operators::free(kPieceGradient + static_cast<int>(i)));
  b.insert(b.end(), {op.weight_gradient(w, op.convert("weight gradient cast", weight * 4, weight * e)), Operators::free(kSum)});
  tape.nodes.push_back(std::move(n));
}

}  // namespace rehearse::strategies
