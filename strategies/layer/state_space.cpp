// A state-space mixer (Mamba-2): input product, convolution and scan in one operator, gated norm, output product.
// Where the sequence lies on several ranks, each scans all of it for some of the heads.
// Legend: x, B, C values and maps of the scan; z its gate.
#include "sim/model/scan_kernels.h"
#include "strategies/layer/blocks.h"

namespace rehearse::strategies {
namespace {

using model::ScanShape;

/// Temporaries of the operator's two directions.
enum Temporary : int { kConvolved, kSums, kWideStates, kStates, kProducts, kGate, kWideGradients, kGradients, kInputMap, kOutputMap, kProductsGradient, kConvolvedGradient, kLeaving, kArrived, kWhole };

class Mixer {
 public:
  Mixer(const LowerContext& c, Operators& op, Tape& tape)
      : c_(c), op_(op), tape_(tape), mixer_(c.model.state_space), context_(c.strategy.parallelism.degrees.context), own_(ScanShape::of(mixer_, c.tokens, c.tensor, c.activation)),
        shape_(ScanShape::of(mixer_, c.tokens * context_, c.tensor * context_, c.activation)), batch_second_(c.profile.transformer_engine && c.batch > 1) {}

  TensorId write(TensorId x) {
    const std::int64_t hidden = c_.model.hidden;
    const TensorId projected = op_.linear(x, "in_proj", hidden, mixer_.projected(), false, Operators::Split::column);
    const TensorId scanned = to_tokens(by_position(scan(by_sample(to_heads(projected)))));
    return op_.linear(mixer_.norm ? norm(scanned) : scanned, "out_proj", mixer_.inner(), hidden, false, Operators::Split::row);
  }

 private:
  /// Megatron's tensors are [sequence, batch], the scan's [batch, sequence]: with several samples both ends are copied.
  TensorId reordered(TensorId x, const char* name, std::int64_t bytes) {
    if (!batch_second_) return x;
    const TensorId y = tape_.tensor(name, bytes);
    const Item copy = op_.kernel(name, bytes, bytes, model::KernelKind::strided);
    tape_.nodes.push_back({.name = name, .inputs = {x}, .outputs = {y}, .forward = {copy}, .backward = {copy}});
    return y;
  }
  TensorId by_sample(TensorId x) { return reordered(x, "order by sample", projected()); }
  TensorId by_position(TensorId x) { return reordered(x, "order by position", shape_.values()); }

  std::int64_t projected() const { return shape_.tokens * shape_.projected() * shape_.element(); }
  Item copy(const std::string& name, std::int64_t bytes) const { return op_.kernel(name, bytes, bytes, model::KernelKind::permute); }
  Item exchange(const std::string& name, std::int64_t bytes) const {
    return op_.collective(CollectiveKind::all_to_all, "all-to-all of " + name, bytes, plan::kAfterCompute | plan::kComputeWaits, plan::GroupAxis::context, plan::Stream::context);
  }

  /// From some tokens of all heads to all tokens of some heads: gate, values, maps and time steps one after the other, then joined, and brought from
  /// the order that balances attention into the sequence's own. Maps of fewer groups than ranks are repeated.
  /// Source: NVIDIA/Megatron-LM at d98e8a64dd megatron/core/ssm/mamba_context_parallel.py (pre_conv_ssm), tensor_parallel/mappings.py (all_to_all_sp2hp).
  TensorId to_heads(TensorId x) {
    if (context_ == 1) return x;
    const std::int64_t e = shape_.element(), steps = shape_.tokens * shape_.heads * e;
    const bool repeats = own_.groups < context_;
    struct Part {
      const char* name;
      std::int64_t bytes;
      bool repeated = false;
    };
    const Part parts[] = {{"gate", shape_.values()}, {"values", shape_.values()}, {"input map", shape_.maps(), repeats}, {"output map", shape_.maps(), repeats}, {"time steps", steps}};
    const TensorId y = tape_.tensor("all tokens of some heads", projected());
    Node node{.name = "to heads", .inputs = {x}, .outputs = {y}, .forward_host = c_.profile.scan_exchange_host, .backward_host = c_.profile.scan_exchange_backward_host};
    std::vector<Item>&f = node.forward, &b = node.backward;
    f.push_back(Operators::alloc(kArrived, projected()));
    b = {Operators::alloc(kWhole, projected()), copy("order for attention", projected()), {.kind = Item::Kind::release_output_gradients}, Operators::alloc(kArrived, projected())};
    for (const auto& [name, bytes, repeated] : parts) {
      if (repeated) f.push_back(op_.kernel("repeat maps", own_.maps(), bytes));
      const std::vector<Item> there = {Operators::alloc(kLeaving, bytes), copy("order heads", bytes), exchange(name, bytes), Operators::free(kLeaving)};
      f.insert(f.end(), there.begin(), there.end());
      b.insert(b.end(), {Operators::alloc(kLeaving, bytes), copy("order heads", bytes), exchange(std::string(name) + " back", bytes), copy("order tokens", bytes), Operators::free(kLeaving)});
      if (repeated) b.push_back(op_.kernel("repeat maps backward", bytes, own_.maps(), model::KernelKind::reduction));
    }
    f.insert(f.end(), {Operators::alloc(kWhole, projected()), copy("join heads", projected()), copy("order for scans", projected()), Operators::free(kWhole), Operators::free(kArrived)});
    b.insert(b.end(), {copy("join tokens", projected()), Operators::free(kArrived), Operators::free(kWhole)});
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  /// And back (post_conv_ssm, all_to_all_hp2sp). The host's time for both is with the way there.
  TensorId to_tokens(TensorId x) {
    if (context_ == 1) return x;
    const std::int64_t bytes = shape_.values();
    const TensorId y = tape_.tensor("some tokens of all heads", bytes);
    const auto way = [&](const char* first, const char* name, const char* second) -> std::vector<Item> {
      return {Operators::alloc(kWhole, bytes), copy(first, bytes), Operators::alloc(kArrived, bytes), exchange(name, bytes), copy(second, bytes), Operators::free(kArrived), Operators::free(kWhole)};
    };
    tape_.nodes.push_back({.name = "to tokens", .inputs = {x}, .outputs = {y}, .forward = way("order for attention", "outputs", "order heads"), .backward = way("order heads", "outputs back", "order for scans")});
    return y;
  }

  /// Parameters of own heads: those of the convolution are joined of their parts, gradients of parts are written into zeros.
  /// Source: the same file, _slice_conv_param and _slice_vector_param.
  void slice_parameters(Node& node) const {
    if (context_ == 1) return;
    constexpr int kForward = 2, kBackward = 20;
    const std::int64_t bytes = shape_.channels() * mixer_.convolution * shape_.element();
    const Item item = op_.kernel("parameters of own heads", bytes, bytes);
    node.forward.insert(node.forward.begin(), kForward, item);
    node.backward.insert(node.backward.end(), kBackward, item);
  }

  Item kernel(const model::KernelSpec& spec) const { return {.kind = Item::Kind::kernel, .spec = c_.builder.kernel(spec)}; }

  /// Keeps its input and its output before the gate; backward makes the rest again.
  /// Source: mamba_split_conv1d_scan_combined, as Megatron's and transformers' mixers call it in training.
  TensorId scan(TensorId x) {
    Weight taps = op_.weight("conv1d.weight", own_.channels() * (mixer_.convolution + (mixer_.convolution_bias ? 1 : 0)));
    Weight per_head = op_.weight("mixer.A_log", 3 * own_.heads);   // A, D and the bias of the time steps
    taps.matrix = per_head.matrix = false;
    const bool trained = taps.trainable;
    const int convolution = tape_.weight(std::move(taps));
    tape_.weight(std::move(per_head));
    const TensorId y = tape_.tensor("scan output", shape_.values()), ungated = tape_.tensor("scan output without gate", shape_.values(), false);
    Node node{.name = "scan", .inputs = {x}, .outputs = {y}, .saved = {x, ungated}, .intermediates = {ungated}};
    node.forward = forward();
    node.backward = backward(trained ? convolution : -1);
    slice_parameters(node);
    node.forward_host = c_.profile.scan_host * kForwardKernels;
    node.backward_host = c_.profile.scan_host * kBackwardKernels;
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  static constexpr int kForwardKernels = 5, kBackwardKernels = 15;   // by Triton, convolutions aside

  std::vector<Item> forward() const {
    const model::ScanForward k = scan_forward(shape_, true);
    std::vector<Item> f = begun(k);
    f.insert(f.end(), {Operators::alloc(kStates, shape_.states()), kernel(k.pass), Operators::free(kWideStates), Operators::alloc(kProducts, shape_.products()), kernel(k.products), kernel(k.output)});
    for (const int t : {kProducts, kStates, kSums, kConvolved}) f.push_back(Operators::free(t));
    return f;
  }

  /// What both directions begin with.
  std::vector<Item> begun(const model::ScanForward& k) const {
    return {Operators::alloc(kConvolved, shape_.convolved()), kernel(k.convolution), Operators::alloc(kSums, 2 * shape_.steps()), kernel(k.sums), Operators::alloc(kWideStates, shape_.wide_states()), kernel(k.state)};
  }

  std::vector<Item> backward(int convolution) const {
    const model::ScanForward again = scan_forward(shape_, true);
    const model::ScanBackward k = scan_backward(shape_);
    model::KernelSpec pass_again = again.pass;
    pass_again.bytes_written = shape_.wide_states();   // they stay in fp32 here
    std::vector<Item> b = begun(again);
    b.insert(b.end(), {Operators::alloc(kConvolvedGradient, shape_.convolved()), Operators::alloc(kProducts, shape_.products()), kernel(again.products),
                       Operators::alloc(kStates, shape_.wide_states()), kernel(pass_again), Operators::free(kWideStates),
                       Operators::alloc(kGate, shape_.values()), kernel(k.gate), {.kind = Item::Kind::release_output_gradients},
                       Operators::alloc(kWideGradients, shape_.wide_states()), kernel(k.states),
                       Operators::alloc(kGradients, 2 * shape_.states()), kernel(k.pass), Operators::free(kStates), Operators::free(kWideGradients), kernel(k.values),
                       Operators::alloc(kInputMap, shape_.wide_maps()), kernel(k.input_map), Operators::alloc(kOutputMap, shape_.wide_maps()), kernel(k.output_map),
                       Operators::alloc(kProductsGradient, shape_.products()), kernel(k.products), kernel(k.products_input), kernel(k.products_output), kernel(k.decays), kernel(k.sums)});
    for (const int t : {kProductsGradient, kOutputMap, kInputMap, kGradients, kGate, kProducts, kSums}) b.push_back(Operators::free(t));
    const Item last = kernel(k.convolution);
    b.push_back(convolution >= 0 ? op_.weight_gradient(convolution, last) : last);
    b.insert(b.end(), {Operators::free(kConvolvedGradient), Operators::free(kConvolved)});
    return b;
  }

  /// An RMSNorm over each group of heads. transformers' mixer has it inside the scan's operator, which makes its output again in backward.
  TensorId norm(TensorId x) {
    const std::int64_t bytes = own_.values();
    const TensorId y = tape_.tensor("mixer rms", bytes), statistics = tape_.tensor("mixer rms statistics", c_.tokens * own_.groups * 4, false);
    Weight scale = op_.weight("mixer.norm.weight", own_.inner());
    scale.matrix = false;
    const bool trained = scale.trainable;
    const int w = tape_.weight(std::move(scale));
    Node node{.name = "mixer rms", .inputs = {x}, .outputs = {y}, .saved = {x, statistics}, .intermediates = {statistics},
              .forward = {op_.kernel("mixer rms", bytes, bytes, model::KernelKind::normalization)},
              .backward = {op_.kernel("mixer rms backward", 2 * bytes, bytes, model::KernelKind::normalization, model::GemmRole::data_gradient)},
              .discard_output = !c_.profile.transformer_engine};
    constexpr std::int64_t kBlocks = 128;   // about one per SM, whose sums are added up
    if (trained) node.backward.push_back(op_.weight_gradient(w, op_.kernel("mixer rms weight gradient", kBlocks * own_.inner() * 4, own_.inner() * 4, model::KernelKind::reduction)));
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  const model::StateSpace& mixer_;
  const std::int64_t context_;    // ranks of the sequence
  const ScanShape own_, shape_;   // of this rank's tokens and its tensor rank's heads; of all tokens and the heads that it scans
  const bool batch_second_;
};

}  // namespace

TensorId state_space_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x) { return Mixer(c, op, tape).write(x); }

}  // namespace rehearse::strategies
