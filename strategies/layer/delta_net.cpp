// A gated delta rule (Gated DeltaNet) in place of attention: input products, convolution, what the rule reads, the rule over chunks of tokens in one
// operator, gated norm, output product. Of sequences over several ranks, as Megatron has them, each rank has all tokens for some of the heads between
// the two products.
// Source: transformers models/qwen3_next/modeling_qwen3_next.py, Qwen3NextGatedDeltaNet, on flash-linear-attention's kernels; NVIDIA/Megatron-LM at
// d98e8a64dd megatron/core/ssm/gated_delta_net/common.py and gdn.py, which copies queries and keys to the values' heads first.
#include "sim/model/delta_kernels.h"
#include "strategies/layer/blocks.h"

namespace rehearse::strategies {
namespace {

using model::DeltaShape;
using model::KernelKind;

/// Temporaries of the rule's two directions.
enum Temporary : int { kKeys, kValues, kStates, kNewValues, kLocal, kStateGradients, kOperandGradients, kKeyGradients, kConvolvedCopy, kPermuted, kLeaving, kArrived };

class DeltaMixer {
 public:
  DeltaMixer(const LowerContext& c, Operators& op, Tape& tape)
      : c_(c), op_(op), tape_(tape), mixer_(c.model.delta_net), megatron_(c.profile.transformer_engine), context_(c.strategy.parallelism.degrees.context),
        given_(DeltaShape::of(mixer_, c.batch, c.sequence * context_, c.tensor * context_, c.activation)), shape_(given_) {
    if (megatron_) shape_.key_heads = shape_.value_heads;   // repeat_interleave
  }

  TensorId write(TensorId x) {
    const Inputs in = projected(x);
    const TensorId convolved = convolution(in.convolved);
    const Operands rule = operands(convolved, in);
    return op_.linear(to_tokens(norm(delta_rule(rule), rule.gate)), "out_proj", mixer_.inner(), c_.model.hidden, false, Operators::Split::row);
  }

 private:
  struct Inputs {
    TensorId convolved = kNoTensor, gate = kNoTensor, steps = kNoTensor;   // of one product, or of one each
  };
  struct Operands {
    TensorId queries_and_keys = kNoTensor, values = kNoTensor, decays = kNoTensor, steps = kNoTensor, gate = kNoTensor;
  };

  std::int64_t rank_width(std::int64_t bytes) const { return bytes / c_.tokens / shape_.element(); }
  Item kernel(const model::KernelSpec& spec) const { return {.kind = Item::Kind::kernel, .spec = c_.builder.kernel(spec)}; }
  Item copied(const char* name, std::int64_t bytes) const { return op_.kernel(name, bytes, bytes, KernelKind::strided); }

  /// Megatron has one product. Qwen3-Next's class has two, whose first is cut by head, so that its parts are copied; Qwen 3.5's has four.
  Inputs projected(TensorId x) {
    const std::int64_t hidden = c_.model.hidden, gates = 2 * mixer_.value_heads;
    using Split = Operators::Split;
    if (megatron_) {
      const TensorId all = to_heads(op_.linear(x, "in_proj", hidden, mixer_.projected(), false, Split::column));
      const auto parts = op_.split(all, "split projections", {rank_width(given_.convolved()), rank_width(given_.values()), gates / c_.tensor});
      return {parts[0], parts[1], parts[2]};
    }
    if (c_.model.family.starts_with("qwen3_5"))
      return {op_.linear(x, "in_proj_qkv", hidden, mixer_.convolved(), false, Split::column), op_.linear(x, "in_proj_z", hidden, mixer_.inner(), false, Split::column),
              op_.linear(x, "in_proj_ba", hidden, gates, false, Split::column)};
    const TensorId both = op_.linear(x, "in_proj_qkvz", hidden, mixer_.convolved() + mixer_.inner(), false, Split::column), small = op_.linear(x, "in_proj_ba", hidden, gates, false, Split::column);
    const TensorId joined = tape_.tensor("joined queries, keys and values", given_.convolved()), gate = tape_.tensor("output gate", given_.values());
    const std::int64_t bytes = given_.convolved() + given_.values();
    tape_.nodes.push_back({.name = "join queries, keys and values", .inputs = {both}, .outputs = {joined, gate}, .forward = {copied("join queries, keys and values", given_.convolved()), copied("copy output gate", given_.values())},
                           .backward = {copied("join projections gradients", bytes)}});
    return {joined, gate, small};
  }

  /// From some tokens of all heads to all tokens of some heads: columns are put in the order of ranks, then exchanged; chunks of the sequence, which were
  /// dealt out to balance attention, are put in order. Source: gated_delta_net/common.py, a2a_cp_to_hp, tensor_a2a_cp2hp; tensor_parallel/mappings.py,
  /// all_to_all_sp2hp, all_to_all_hp2sp.
  TensorId to_heads(TensorId x) {
    if (context_ == 1) return x;
    const std::int64_t bytes = c_.tokens * mixer_.projected() / c_.tensor * shape_.element();
    const TensorId y = tape_.tensor("all tokens of some heads", bytes);
    Node node{.name = "to heads", .inputs = {x}, .outputs = {y}};
    node.forward = {Operators::alloc(kPermuted, bytes), permuted("order columns", bytes), Operators::alloc(kLeaving, bytes), permuted("order heads", bytes), Operators::free(kPermuted),
                    Operators::alloc(kArrived, bytes), exchange("projections", bytes), Operators::free(kLeaving), permuted("order of the sequence", bytes), Operators::free(kArrived)};
    node.backward = {Operators::alloc(kLeaving, bytes), permuted("order for attention", bytes), {.kind = Item::Kind::release_output_gradients}, Operators::alloc(kArrived, bytes), exchange("projections back", bytes),
                     Operators::free(kLeaving), Operators::alloc(kPermuted, bytes), permuted("order tokens", bytes), Operators::free(kArrived), {.kind = Item::Kind::produce_input_gradients},
                     op_.kernel("order columns zeros", 0, bytes, KernelKind::memset), permuted("order columns backward", bytes), Operators::free(kPermuted)};
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  /// And back (a2a_hp_to_cp).
  TensorId to_tokens(TensorId x) {
    if (context_ == 1) return x;
    const std::int64_t bytes = shape_.values();
    const TensorId y = tape_.tensor("some tokens of all heads", bytes);
    const auto way = [&](const char* first, const char* name, const char* second) -> std::vector<Item> {
      return {Operators::alloc(kLeaving, bytes), permuted(first, bytes), Operators::alloc(kArrived, bytes), exchange(name, bytes), Operators::free(kLeaving), permuted(second, bytes), Operators::free(kArrived)};
    };
    tape_.nodes.push_back({.name = "to tokens", .inputs = {x}, .outputs = {y}, .forward = way("order for attention", "outputs", "order heads"), .backward = way("order heads", "outputs back", "order of the sequence")});
    return y;
  }
  Item permuted(const char* name, std::int64_t bytes) const { return op_.kernel(name, bytes, bytes, KernelKind::permute); }
  Item exchange(const std::string& name, std::int64_t bytes) const {
    return op_.collective(CollectiveKind::all_to_all, "all-to-all of " + name, bytes, plan::kAfterCompute | plan::kComputeWaits, plan::GroupAxis::context, plan::Stream::context);
  }

  /// With the activation in its kernel, which makes it again in backward. A part of a wider product is copied first.
  TensorId convolution(TensorId x) {
    Weight taps = op_.weight("conv1d.weight", rank_width(given_.convolved()) * mixer_.convolution);
    taps.matrix = false;
    const bool trained = taps.trainable;
    const int w = tape_.weight(std::move(taps));
    const std::int64_t bytes = given_.convolved();
    const model::KernelSpec forward{.kind = KernelKind::convolution, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = bytes, .bytes_written = bytes, .elements = bytes / shape_.element(),
                                    .flops = 2 * static_cast<double>(bytes / shape_.element()), .name = "delta convolution"};
    model::KernelSpec backward = forward;
    backward.bytes_read = 2 * bytes;
    backward.role = model::GemmRole::data_gradient;
    backward.name = "delta convolution backward";
    const TensorId y = tape_.tensor("convolved", bytes);
    const Item last = kernel(backward);
    Node node{.name = "delta convolution", .inputs = {x}, .outputs = {y}, .saved = {x}, .forward = {kernel(forward)}, .backward = {trained ? op_.weight_gradient(w, last) : last}};
    if (megatron_) {
      const TensorId copy = tape_.tensor("queries, keys and values side by side", bytes, false);
      node.saved = {copy};
      node.intermediates = {copy};
      node.forward.insert(node.forward.begin(), copied("copy queries, keys and values", bytes));
    }
    node.forward_host = node.backward_host = c_.profile.scan_host;
    if (context_ > 1) {   // taps of own channels, of three parts (get_parameter_local_cp)
      const Item own = op_.kernel("taps of own channels", rank_width(given_.convolved()) * mixer_.convolution * shape_.element() / context_, rank_width(given_.convolved()) * mixer_.convolution * shape_.element() / context_);
      node.forward.insert(node.forward.begin(), own);
      node.backward.insert(node.backward.end(), 3, own);
    }
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  /// Queries and keys of unit length, values, decays (fp32) and step sizes, each a tensor of its own: a compiled function, or an operator each.
  Operands operands(TensorId convolved, const Inputs& in) {
    Weight per_head = op_.weight("A_log and dt_bias", 2 * shape_.value_heads * context_);
    per_head.matrix = false;
    const bool trained = per_head.trainable;
    const int w = tape_.weight(std::move(per_head));
    const std::int64_t keys = 2 * shape_.keys(), lengths = given_.tokens() * 2 * given_.key_heads * 4, given_keys = 2 * given_.keys(), small = shape_.decays() + shape_.steps();
    Operands out{tape_.tensor("queries and keys", keys), tape_.tensor("values", shape_.values()), tape_.tensor("decays", shape_.decays()), tape_.tensor("step sizes", shape_.steps()), in.gate};
    const TensorId norms = tape_.tensor("lengths of queries and keys", lengths, false);
    Node node{.name = "delta operands", .inputs = {convolved, in.steps}, .outputs = {out.queries_and_keys, out.values, out.decays, out.steps}, .saved = {in.steps, out.queries_and_keys, norms}, .intermediates = {norms}};
    std::vector<Item>&f = node.forward, &b = node.backward;
    // The norm's kernel wants its operands side by side.
    f = {Operators::alloc(kConvolvedCopy, given_keys), copied("copy queries and keys", given_keys), op_.kernel("unit lengths", given_keys, keys, KernelKind::normalization), copied("copy values", shape_.values())};
    b = {op_.kernel("unit lengths backward", 2 * keys, given_keys, KernelKind::normalization, model::GemmRole::data_gradient), copied("join operands gradients", given_.convolved())};
    const int gates = megatron_ ? 1 : 6;   // sigmoid; float, sum, softplus, exp and product
    for (int i = 0; i < gates; ++i) {
      f.push_back(op_.kernel("decays and step sizes", small, small));
      b.push_back(op_.kernel("decays and step sizes backward", small, small));
    }
    f.push_back(Operators::free(kConvolvedCopy));
    if (trained) b.push_back(op_.weight_gradient(w, op_.kernel("A_log and dt_bias gradient", shape_.decays(), 8 * shape_.value_heads, KernelKind::reduction)));
    if (megatron_) {   // _prepare_input_for_gated_delta_rule copies the gate as well
      out.gate = tape_.tensor("output gate", shape_.values());
      node.inputs.push_back(in.gate);
      node.outputs.push_back(out.gate);
      f.push_back(copied("copy output gate", shape_.values()));
    }
    node.forward_host = node.backward_host = c_.profile.scan_host * 2;
    tape_.nodes.push_back(std::move(node));
    return out;
  }

  static constexpr int kForwardKernels = 5, kBackwardKernels = 8;   // by Triton

  /// Keeps what it reads, running sums of the decays and the inverses of chunks' triangles; backward makes the rest again.
  TensorId delta_rule(const Operands& in) {
    const TensorId y = tape_.tensor("delta output", shape_.values()), sums = tape_.tensor("sums of decays", shape_.decays(), false), inverses = tape_.tensor("inverses", shape_.inverses(), false);
    Node node{.name = "delta rule", .inputs = {in.queries_and_keys, in.values, in.decays, in.steps}, .outputs = {y}, .saved = {in.queries_and_keys, in.values, in.steps, sums, inverses}, .intermediates = {sums, inverses},
              .forward_host = c_.profile.scan_host * kForwardKernels, .backward_host = c_.profile.scan_host * kBackwardKernels};
    const model::DeltaForward f = delta_forward(shape_);
    node.forward = {kernel(f.sums), Operators::alloc(kKeys, shape_.wide_keys()), Operators::alloc(kValues, shape_.values()), kernel(f.within),
                    Operators::alloc(kStates, shape_.states()), Operators::alloc(kNewValues, shape_.values()), kernel(f.states), kernel(f.output)};
    for (const int t : {kNewValues, kStates, kValues, kKeys}) node.forward.push_back(Operators::free(t));
    node.backward = backward();
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  std::vector<Item> backward() const {
    const model::DeltaBackward k = delta_backward(shape_);
    std::vector<Item> b = {Operators::alloc(kKeys, shape_.wide_keys()), Operators::alloc(kValues, shape_.values()), kernel(k.within_again),
                           Operators::alloc(kStates, shape_.states()), Operators::alloc(kNewValues, shape_.values()), kernel(k.states_again),
                           Operators::alloc(kLocal, shape_.values()), kernel(k.local), Operators::alloc(kStateGradients, shape_.states()), kernel(k.states), Operators::free(kLocal),
                           Operators::alloc(kOperandGradients, 3 * shape_.wide_keys()), kernel(k.operands),
                           Operators::alloc(kKeyGradients, shape_.wide_keys()), kernel(k.within), kernel(k.add_keys), kernel(k.add_decays), kernel(k.sums)};
    if (shape_.value_heads > shape_.key_heads) b.push_back(op_.kernel("sum over heads of values", 2 * shape_.wide_keys(), 2 * shape_.keys(), KernelKind::reduction));
    for (const int t : {kKeyGradients, kOperandGradients, kStateGradients, kNewValues, kStates, kValues, kKeys}) b.push_back(Operators::free(t));
    return b;
  }

  /// An RMSNorm over each head, times the gate's SiLU.
  TensorId norm(TensorId x, TensorId gate) {
    const std::int64_t bytes = shape_.values(), rows = shape_.tokens() * shape_.value_heads;
    const TensorId y = tape_.tensor("gated norm", bytes), statistics = tape_.tensor("gated norm statistics", rows * 4, false);
    Weight scale = op_.weight("norm.weight", mixer_.value_dim);
    scale.matrix = false;
    scale.replicated_over_tensor = true;
    const bool trained = scale.trainable;
    const int w = tape_.weight(std::move(scale));
    Node node{.name = "gated norm", .inputs = {x, gate}, .outputs = {y}, .saved = {x, gate, statistics}, .intermediates = {statistics}};
    if (c_.profile.norm == Fusion::eager) spell_norm(node, rows, trained ? w : -1);
    else {
      constexpr std::int64_t kBlocks = 128;   // about one per SM, whose sums are added up
      node.forward = {op_.kernel("gated norm", 2 * bytes, bytes, KernelKind::normalization)};
      node.backward = {op_.kernel("gated norm backward", 3 * bytes, 2 * bytes, KernelKind::normalization, model::GemmRole::data_gradient)};
      if (trained) node.backward.push_back(op_.weight_gradient(w, op_.kernel("gated norm weight gradient", kBlocks * mixer_.value_dim * 4, mixer_.value_dim * 4, KernelKind::reduction)));
    }
    tape_.nodes.push_back(std::move(node));
    if (!megatron_ || c_.batch == 1) return y;
    const TensorId ordered = tape_.tensor("gated norm by position", bytes);   // transpose(0, 1).contiguous()
    tape_.nodes.push_back({.name = "order by position", .inputs = {y}, .outputs = {ordered}, .forward = {copied("order by position", bytes)}, .backward = {copied("order by sample", bytes)}});
    return ordered;
  }

  /// An operator each: the norm in fp32 and back, times its weight, times the SiLU of the gate in fp32 (Qwen3NextRMSNormGated.forward).
  void spell_norm(Node& node, std::int64_t rows, int weight) {
    const std::int64_t narrow = shape_.values(), wide = narrow / shape_.element() * 4, row = rows * 4;
    const TensorId input = tape_.tensor("gated norm input fp32", wide, false), normalised = tape_.tensor("gated norm normalised", narrow, false), scaled = tape_.tensor("gated norm scaled", narrow, false),
                   gate = tape_.tensor("gate fp32", wide, false), open = tape_.tensor("gate silu", wide, false);
    const TensorId statistics = node.intermediates.front();
    node.saved = {input, statistics, normalised, scaled, gate, open};
    node.intermediates = {statistics, input, normalised, scaled, gate, open};
    const auto add = [&](std::vector<Item>& list, std::initializer_list<Item> items) { list.insert(list.end(), items); };
    const auto alloc = &Operators::alloc;
    const auto free = &Operators::free;
    add(node.forward, {op_.convert("cast", narrow, wide), alloc(0, wide), op_.kernel("pow", wide, wide), op_.kernel("mean", wide, row, KernelKind::reduction), free(0), op_.kernel("rsqrt", row, row),
                       alloc(1, wide), op_.strided("mul", wide, wide, 4), op_.convert("cast", wide, narrow), free(1), op_.kernel("mul weight", narrow, narrow, KernelKind::strided),
                       op_.convert("cast gate", narrow, wide), op_.kernel("silu", wide, wide), alloc(2, wide), op_.mixed("mul gate", narrow + wide, wide, wide / 4), op_.convert("cast", wide, narrow), free(2)});
    std::vector<Item>& b = node.backward;
    add(b, {alloc(0, wide), op_.convert("cast", narrow, wide), {.kind = Item::Kind::release_output_gradients}, alloc(1, wide), op_.kernel("mul gate backward", 2 * wide, wide), alloc(2, narrow), op_.convert("cast", wide, narrow), free(1),
            alloc(3, wide), op_.mixed("mul gate backward", wide + narrow, wide, wide / 4), free(0), alloc(4, wide), op_.kernel("silu backward", 2 * wide, wide), free(3),
            {.kind = Item::Kind::produce_input_gradients}, op_.convert("cast gate", wide, narrow), free(4)});
    if (weight >= 0) add(b, {alloc(5, narrow), op_.kernel("mul weight backward", 2 * narrow, narrow), op_.weight_gradient(weight, op_.kernel("sum rows", narrow, mixer_.value_dim * 4, KernelKind::reduction)), free(5)});
    add(b, {alloc(6, narrow), op_.kernel("mul weight backward", narrow, narrow, KernelKind::strided), free(2), alloc(7, wide), op_.convert("cast", narrow, wide), free(6),
            alloc(0, wide), op_.strided("mul backward", wide, wide, 4), alloc(1, wide), op_.kernel("mul backward", 2 * wide, wide), free(7), op_.kernel("sum columns", wide, row, KernelKind::reduction), free(1),
            alloc(3, wide), op_.strided("mean backward", row, wide, 4), alloc(4, wide), op_.kernel("pow backward", wide, wide), op_.kernel("pow backward", wide, wide), op_.kernel("pow backward", 2 * wide, wide), free(3),
            op_.kernel("gradient add", 2 * wide, wide), free(4), op_.convert("cast", wide, narrow), free(0)});
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  const model::DeltaNet& mixer_;
  const bool megatron_;
  const std::int64_t context_;   // ranks of the sequence
  const DeltaShape given_;   // of this rank
  DeltaShape shape_;         // as the rule has it
};

}  // namespace

TensorId delta_net_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x) { return DeltaMixer(c, op, tape).write(x); }

TensorId gated_attention(const LowerContext& c, Operators& op, Tape& tape, TensorId y, TensorId gate, std::int64_t width) {
  const std::int64_t bytes = c.tokens * width * c.element();
  const TensorId out = tape.tensor("gated attention output", bytes);
  Node node{.name = "attention gate", .inputs = {y, gate}, .outputs = {out}, .saved = {y, gate}};
  if (c.activation_fusion() == Fusion::fused || c.profile.compiled) {
    node.forward = {op.kernel("attention gate", 2 * bytes, bytes)};
    node.backward = {op.kernel("attention gate backward", 3 * bytes, 2 * bytes)};
  } else {   // sigmoid and product
    const TensorId open = tape.tensor("sigmoid of the gate", bytes, false);
    node.saved = {y, open};
    node.intermediates = {open};
    node.forward = {op.kernel("sigmoid", bytes, bytes), op.kernel("attention gate", 2 * bytes, bytes)};
    node.backward = {op.kernel("attention gate backward", 2 * bytes, bytes), op.kernel("attention gate backward", 2 * bytes, bytes), op.kernel("sigmoid backward", 2 * bytes, bytes)};
  }
  tape.nodes.push_back(std::move(node));
  return out;
}

}  // namespace rehearse::strategies
