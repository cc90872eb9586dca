// Mixture of experts: router, dispatch, expert MLPs, combine, shared experts.
//
// Every rank routes the tokens of its own residual stream. A slot is one token at one of its experts. Balanced, a rank
// receives as many slots as it sends; `imbalance` makes it more for all of them, `routing` more for some and less for others.
// Sources: Megatron-Core transformer/moe (router.py, token_dispatcher.py, experts.py); Hugging Face modelling code for
// the loop over experts.
#include <algorithm>
#include <cmath>

#include "sim/core/communication.h"
#include "strategies/layer/blocks.h"
#include "strategies/layer/routing.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {
namespace {

using model::GemmRole;
using model::KernelKind;
using plan::GroupAxis;
using plan::Stream;

constexpr int kBoth = plan::kAfterCompute | plan::kComputeWaits;

class ExpertLayer {
 public:
  ExpertLayer(const LowerContext& c, Operators& op, Tape& tape) : c_(c), op_(op), tape_(tape), moe_(c.model.experts) {
    const Degrees& d = c.strategy.parallelism.degrees;
    const ExpertRouting& routing = c.strategy.experts;
    ranks_ = d.expert;
    tensor_ = d.expert_tensor;
    local_ = moe_.experts / ranks_;
    hidden_ = c.model.hidden;
    rows_ = c.stream_tokens();
    sent_ = rows_ * moe_.top_k;
    if (routing.capacity_factor > 0) {
      const double mean = static_cast<double>(sent_) / static_cast<double>(moe_.experts);
      const std::int64_t slots = moe_.experts * static_cast<std::int64_t>(std::ceil(mean * routing.capacity_factor));
      sent_ = routing.pad_to_capacity ? slots : std::min(sent_, slots);
    }
    const auto arriving = static_cast<std::int64_t>(std::llround(static_cast<double>(sent_) * (routing.capacity_factor > 0 ? 1.0 : routing.imbalance)));
    received_ = arriving * tensor_;
    if (c.strategy.uneven_experts()) hold_own_share(c, routing);
    dispatcher_ = routing.dispatcher.value_or(c.profile.dispatcher);
    dropless_ = routing.capacity_factor == 0;
    fused_ = !loops() && routing.fused_mlp.value_or(c.profile.fused_expert_mlp);
    by_expert_ = !loops() && !fused_ && c.profile.expert_launches;
    low_ = bits(c.gemm) <= 8;
    own_group_ = !(ranks_ == 1 && tensor_ == c.tensor);
  }

  TensorId run(TensorId x) {
    const TensorId weights = route(x);
    const bool shared = moe_.shared_ffn_hidden > 0;
    const bool overlap = shared && exchanges() && c_.strategy.experts.overlap_shared.value_or(c_.profile.overlap_shared_experts);
    TensorId own = kNoTensor;
    auto beside = [&] {
      if (!overlap) return;
      own = shared_experts(x);
      joins_at_ = tape_.nodes.size();
    };
    TensorId out;
    if (exchanges() && dispatcher_ != Dispatcher::all_to_all) {
      // Tokens travel as they are; copies for each expert are made where they arrive.
      Slots tokens = exchange({x, weights, rows_}, arriving_tokens(), overlap);
      beside();
      Slots slots = permute(tokens, received_);
      slots.tokens = experts(slots);
      out = home(unpermute(slots.tokens, weights, tokens.rows), rows_);
    } else {
      Slots slots = permute({x, weights, rows_}, exchanges() ? sent_ : received_);
      if (exchanges()) {
        slots = exchange(slots, received_, overlap);
        beside();
        if (local_ > 1) slots = sort(slots, true);
      }
      slots.tokens = experts(slots);
      if (exchanges() && local_ > 1) slots = sort(slots, false);
      out = exchanges() ? home(slots.tokens, sent_) : slots.tokens;
      out = unpermute(out, weights, rows_);
    }
    if (overlap) {
      std::vector<Item>& first = tape_.nodes[joins_at_].forward;
      first.insert(first.begin(), Operators::wait(Stream::expert));
    }
    if (!shared) return out;
    if (own == kNoTensor) own = shared_experts(x);
    const TensorId y = tape_.tensor("experts and shared experts", bytes(rows_));
    tape_.nodes.push_back({.name = "shared experts add", .inputs = {out, own}, .outputs = {y}, .forward = {op_.kernel("shared experts add", 2 * bytes(rows_), bytes(rows_))}, .passed_inputs = 2});
    return y;
  }

 private:
  /// The load of this rank's own experts instead of the mean.
  void hold_own_share(const LowerContext& c, const ExpertRouting& routing) {
    const int layer = c.layer >= 0 ? c.layer : static_cast<int>(c.model.layers.size());   // -1: multi-token prediction
    const std::vector<std::int64_t> slots = expert_slots(routing.routing, moe_, layer, rows_, routing.capacity_factor);
    const RankLoads loads = rank_loads(slots, static_cast<int>(ranks_));
    const auto rank = static_cast<std::size_t>(c.expert_rank);
    sent_ = loads.sent;
    received_ = loads.received[rank] * tensor_;
    fullest_ = std::max(loads.fullest(), sent_);
    double all = 0;
    for (const std::int64_t received : loads.received) all += tokens_arriving(static_cast<double>(received) / static_cast<double>(ranks_ * sent_));
    share_ = static_cast<double>(loads.received[rank]) / static_cast<double>(ranks_ * sent_);
    visits_over_mean_ = tokens_arriving(static_cast<double>(loads.fullest()) / static_cast<double>(ranks_ * sent_)) * static_cast<double>(ranks_) / all;
    for (std::int64_t i = 0; i < local_; ++i) rows_of_.push_back(slots[rank * static_cast<std::size_t>(local_) + static_cast<std::size_t>(i)] * ranks_ * tensor_);
  }

  /// Of one token's choices, the chance that some lie on a rank with this share of all slots: as if the rank held as many
  /// equally popular experts as the share says (exact when it does).
  double tokens_arriving(double share) const {
    const double part = share * static_cast<double>(moe_.experts);
    double missed = 1;
    for (std::int64_t i = 0; i < moe_.top_k; ++i) missed *= std::max(0.0, static_cast<double>(moe_.experts - i) - part) / static_cast<double>(moe_.experts - i);
    return 1 - missed;
  }
  bool uneven() const { return !rows_of_.empty(); }

  /// Tokens on their way, with the weight of each.
  struct Slots {
    TensorId tokens, weights;
    std::int64_t rows = 0;
  };

  std::int64_t e() const { return c_.element(); }
  std::int64_t bytes(std::int64_t rows) const { return rows * hidden_ * e(); }
  bool exchanges() const { return ranks_ > 1 || tensor_ > 1; }
  bool loops() const { return !c_.profile.grouped_experts; }

  Item exchange_item(CollectiveKind kind, const std::string& name, std::int64_t size, int sync, GroupAxis axis = GroupAxis::expert) const {
    return op_.collective(kind, name, size, sync, axis, Stream::expert);
  }

  TensorId route(TensorId x) {
    LowerContext wide = c_;   // never in 8 bit
    wide.gemm = c_.activation;
    const TensorId logits = Operators(wide, tape_).linear(x, "router", hidden_, moe_.experts, moe_.router_bias, Operators::Split::none);
    const std::int64_t scores = rows_ * moe_.experts * 4, chosen = rows_ * moe_.top_k;
    const TensorId all = tape_.tensor("router scores", scores, false), map = tape_.tensor("routing map", rows_ * moe_.experts, false);
    const TensorId weights = tape_.tensor("router weights", loops() ? chosen * 4 : scores);
    Node node{.name = "router scores", .inputs = {logits}, .outputs = {weights}, .saved = {all, map}, .intermediates = {all, map}};
    node.forward = {op_.kernel("router softmax", scores, scores, KernelKind::softmax), op_.kernel("router top-k", scores, chosen * 12, KernelKind::reduction)};
    if (moe_.groups > 1) node.forward.insert(node.forward.end(), {op_.kernel("group scores", scores, chosen * 4, KernelKind::reduction), op_.kernel("group mask", scores, scores)});
    // Weights and map in dense form; tokens per expert and the balancing loss.
    for (const char* step : {"zeros", "scatter", "routing map", "tokens per expert", "balancing loss", "balancing loss sum"}) node.forward.push_back(op_.kernel(step, scores, scores));
    // Half of the host's work is routing, half is after the tokens have arrived.
    node.forward_host = c_.profile.expert_host / 2;
    node.backward_host = c_.profile.expert_backward_host / 2;
    node.backward = {op_.kernel("balancing loss backward", scores, scores), op_.kernel("scatter backward", scores, scores), op_.kernel("router softmax backward", 2 * scores, scores, KernelKind::softmax)};
    tape_.nodes.push_back(std::move(node));
    return weights;
  }

  /// A copy of each token for each of its experts, in the order of experts.
  Slots permute(const Slots& in, std::int64_t slots) {
    Slots out{tape_.tensor("permuted tokens", bytes(slots)), tape_.tensor("slot weights", slots * 4), slots};
    order_ = tape_.tensor("slot order", slots * 8, false);
    Node node{.name = "permute", .inputs = {in.tokens, in.weights}, .outputs = {out.tokens, out.weights}, .saved = {order_}, .intermediates = {order_}};
    const std::int64_t map = in.rows * moe_.experts;
    if (loops()) {
      // torch.where for each expert tells the host how many tokens there are.
      const std::int64_t part = bytes(slots) / moe_.experts;
      for (std::int64_t i = 0; i < moe_.experts; ++i) {
        node.forward.insert(node.forward.end(), {op_.kernel("where", in.rows * 8, slots * 8 / moe_.experts), {.kind = Item::Kind::host_sync}, op_.kernel("select tokens", part, part, KernelKind::permute)});
        node.backward.push_back(op_.kernel("select tokens backward", 2 * part, part, KernelKind::permute));
      }
    } else {
      node.forward = {op_.kernel("slot order", map * 4, slots * 8, KernelKind::reduction),
                      // Each token is read once and written to each of its slots.
                      op_.kernel("permute", bytes(std::min(in.rows, slots)), bytes(slots), KernelKind::permute),
                      op_.kernel("permute weights", slots * 4, slots * 4)};
      node.backward = {op_.kernel("permute backward", bytes(slots), bytes(in.rows), KernelKind::permute), op_.kernel("permute weights backward", slots * 4, map * 4)};
    }
    tape_.nodes.push_back(std::move(node));
    return out;
  }

  /// Tokens after an exchange that copies none for the experts of one rank.
  std::int64_t arriving_tokens() const {
    if (dispatcher_ == Dispatcher::all_gather) return rows_ * ranks_ * tensor_;
    if (uneven()) return std::llround(static_cast<double>(rows_ * ranks_) * tokens_arriving(share_));
    return static_cast<std::int64_t>(std::llround(static_cast<double>(rows_) * places_visited(moe_.experts, moe_.top_k, ranks_)));
  }

  /// To the ranks of the experts. Dropless, the host must know the sizes before it can issue.
  Slots exchange(const Slots& in, std::int64_t arriving, bool overlap) {
    const Slots out{tape_.tensor("received tokens", bytes(arriving)), tape_.tensor("received weights", arriving * 4), arriving};
    Node node{.name = "dispatch", .inputs = {in.tokens, in.weights}, .outputs = {out.tokens, out.weights}, .cached = true};
    if (dropless_ && dispatcher_ != Dispatcher::all_gather) node.forward.push_back({.kind = Item::Kind::host_sync});
    node.forward = joined(std::move(node.forward), outward("dispatch", overlap ? plan::kAfterCompute : kBoth, true));
    node.backward = homeward("dispatch back", true);
    tape_.nodes.push_back(std::move(node));
    return out;
  }

  /// Outputs return to their tokens' owners; the weights have been used where the experts are.
  TensorId home(TensorId x, std::int64_t arriving) {
    const TensorId y = tape_.tensor("returned outputs", bytes(arriving));
    tape_.nodes.push_back({.name = "combine", .inputs = {x}, .outputs = {y}, .forward = homeward("combine", false), .backward = outward("combine back", kBoth, false), .cached = true});
    return y;
  }

  static std::vector<Item> joined(std::vector<Item> a, const std::vector<Item>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  /// Slots of `size` bytes each from everybody to everybody: the fullest rank's side decides. `leaving`: of this rank.
  Item slots_item(const std::string& name, std::int64_t leaving, std::int64_t size, int sync) const {
    if (!uneven()) return exchange_item(CollectiveKind::all_to_all, name, std::max(sent_, received_ / tensor_) * size, sync);
    return {.kind = Item::Kind::collective, .stream = Stream::expert, .sync = sync,
            .spec = c_.builder.collective({.kind = CollectiveKind::all_to_all, .axis = GroupAxis::expert, .bytes = Bytes{leaving * size}, .name = name, .fullest = Bytes{fullest_ * size}})};
  }

  Item over_ranks(const std::string& name, bool there, int sync) const {
    if (dispatcher_ == Dispatcher::all_gather) return exchange_item(there ? CollectiveKind::all_gather : CollectiveKind::reduce_scatter, name, bytes(rows_) * ranks_, sync);
    if (dispatcher_ == Dispatcher::all_to_all) return slots_item(name, there ? sent_ : received_ / tensor_, bytes(1), sync);
    plan::CollectiveSpec spec{.kind = CollectiveKind::all_to_all, .axis = GroupAxis::expert, .bytes = Bytes{bytes(rows_)}, .name = name,
                              .choices = static_cast<std::uint16_t>(moe_.top_k), .places = static_cast<std::uint16_t>(moe_.experts),
                              .node_limit = static_cast<std::uint16_t>(moe_.groups_per_token)};
    if (uneven()) spec.fullest = Bytes{std::llround(static_cast<double>(bytes(rows_)) * visits_over_mean_)};
    return {.kind = Item::Kind::collective, .stream = Stream::expert, .sync = sync, .spec = c_.builder.collective(spec)};
  }

  /// From token owners to experts. With expert tensor parallelism every rank of that group computes its slice of the
  /// experts for the tokens of all.
  std::vector<Item> outward(const std::string& name, int sync, bool weights) const {
    std::vector<Item> out;
    if (ranks_ > 1 && weights && dispatcher_ == Dispatcher::all_to_all)
      out.push_back(slots_item(name + " weights", sent_, 4, sync));
    if (ranks_ > 1) out.push_back(over_ranks(name, true, sync));
    if (tensor_ > 1) out.push_back(exchange_item(CollectiveKind::all_gather, name + " over expert tensor", arriving_bytes(), sync, GroupAxis::expert_tensor));
    return out;
  }
  std::vector<Item> homeward(const std::string& name, bool weights) const {
    std::vector<Item> out;
    if (tensor_ > 1) out.push_back(exchange_item(CollectiveKind::reduce_scatter, name + " over expert tensor", arriving_bytes(), kBoth, GroupAxis::expert_tensor));
    if (ranks_ > 1) out.push_back(over_ranks(name, false, kBoth));
    if (ranks_ > 1 && weights && dispatcher_ == Dispatcher::all_to_all)
      out.push_back(slots_item(name + " weights", received_ / tensor_, 4, kBoth));
    return out;
  }
  std::int64_t arriving_bytes() const { return bytes(dispatcher_ == Dispatcher::all_to_all ? received_ : arriving_tokens()); }

  /// Slots arrive by sender; experts want them by expert (and back).
  Slots sort(Slots in, bool there) {
    Slots out{tape_.tensor(there ? "sorted tokens" : "unsorted outputs", bytes(received_)), in.weights, received_};
    const std::string name = there ? "sort by expert" : "sort by sender";
    tape_.nodes.push_back({.name = name, .inputs = {in.tokens}, .outputs = {out.tokens}, .forward = {op_.kernel(name, bytes(received_), bytes(received_), KernelKind::permute)},
                           .backward = {op_.kernel(name + " backward", bytes(received_), bytes(received_), KernelKind::permute)}});
    return out;
  }

  /// All experts of the rank: one grouped product, or one product each.
  void products(std::vector<Item>& out, const std::string& name, GemmRole role, std::int64_t n, std::int64_t k, DType result, bool accumulate, bool quantised = false) const {
    // Weight gradients sum over tokens: an n x k result with the tokens as depth.
    const bool weight = role == GemmRole::weight_gradient;
    const std::int64_t columns = weight ? k : n;
    const std::int64_t launches = loops() ? local_ : 1;
    for (std::int64_t i = 0; i < launches; ++i) {
      // A grouped product is priced by the mean of its experts, a loop expert by expert.
      const std::int64_t tokens = std::max<std::int64_t>(1, loops() && uneven() ? rows_of_[static_cast<std::size_t>(i)] : received_ / local_);
      const std::int64_t rows = weight ? n : tokens, depth = weight ? tokens : k;
      if (quantised) op_.dequantise(out, 9, local_ / launches * n * k);
      if (loops()) out.push_back(op_.gemm(name, role, rows, columns, depth, result, accumulate));
      else out.push_back({.kind = Item::Kind::kernel,
                          // Fused kernels schedule the tiles of all experts as one product; others hand over from expert to expert.
                          .spec = c_.builder.kernel({.kind = fused_ ? KernelKind::gemm : KernelKind::grouped_gemm, .role = role, .dtype = c_.gemm, .output_dtype = result, .accumulate = accumulate, .batch = local_,
                                                     .m = rows, .n = columns, .k = depth, .name = name}),
                          .launches = by_expert_ ? static_cast<int>(local_) : 1});
      if (quantised) out.push_back(Operators::free(9));
    }
  }

  /// One kernel over the slots of all experts, or one for each expert's.
  void per_expert(std::vector<Item>& list, const std::string& name, std::int64_t read, std::int64_t written, KernelKind kind = KernelKind::elementwise) const {
    const std::int64_t parts = by_expert_ ? local_ : 1;
    for (std::int64_t i = 0; i < parts; ++i) list.push_back(op_.kernel(name, read / parts, written / parts, kind));
  }

  /// Operands of 8-bit products, each expert's with scales of its own.
  void quantise(std::vector<Item>& list, const std::string& name, std::int64_t elements) const {
    if (op_.scales_from_tensor()) per_expert(list, name + " maximum", elements * e(), local_ * 4, KernelKind::reduction);
    per_expert(list, name, elements * e(), elements * op_.quantised_copies() * bits(c_.gemm) / 8);
  }

  /// Which of the experts' two products a layer is: in fused kernels the first also makes the second's operand.
  enum class Place : std::uint8_t { first, second };

  /// A linear layer of every expert, with its adapter where the job has one.
  TensorId product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, Place place) {
    const TensorId y = plain_product(x, name, in, out, op_, false, place);
    const std::vector<std::string> parts = parts_of(name);
    const auto adapted = static_cast<std::int64_t>(adapted_parts(c_.strategy.tuning, name, parts).size());
    if (adapted == 0) return y;
    LowerContext inner = c_;
    inner.adapter = true;
    Operators op(inner, tape_);
    const std::int64_t rank = c_.strategy.tuning.rank, width = out * adapted / static_cast<std::int64_t>(parts.size());
    const TensorId down = plain_product(x, name + ".lora_A", in, rank * adapted, op, true, place);
    // One rank-wide product per adapted part: as one of the same operations and bytes.
    const TensorId up = plain_product(down, name + ".lora_B", rank, width, op, true, place);
    const TensorId sum = tape_.tensor(name + " with adapter", received_ * out * e());
    const std::int64_t bytes = received_ * out * e(), branch = received_ * width * e();
    tape_.nodes.push_back({.name = name + " adapter add", .inputs = {y, up}, .outputs = {sum}, .forward = {op_.kernel("adapter scaled add", bytes + branch, bytes)},
                           .backward = {op_.kernel("adapter scale backward", bytes, branch)}, .passed_inputs = 1});
    return sum;
  }

  TensorId plain_product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, Operators& op, bool adapter, Place place) {
    const TensorId y = tape_.tensor(name, received_ * out * e());
    // Experts that are modules of their own can be trained one by one; the others' weights are counted beside.
    const std::int64_t own = adapter ? local_ : std::min(local_, trained_experts(c_.strategy.tuning, c_.layer, moe_.experts));
    const bool some = own > 0 && own < local_;
    Weight matrix = op.weight(name + ".weight", (some ? own : local_) * in * out);
    matrix.expert = own_group_;
    matrix.one_of_several = some;
    const bool trains = matrix.trainable;
    const bool quantised = !trains && !adapter && quantises(c_.strategy.tuning, c_.profile, name);
    if (quantised) matrix.packed_bytes = quantised_bytes(local_ * in * out, c_.strategy.tuning.double_quantization), matrix.wide_bytes = 0;
    if (some) {
      Weight others = matrix;
      others.name = name + ".others";
      others.elements = (local_ - own) * in * out;
      others.trainable = others.one_of_several = false;
      tape_.weight(std::move(others));
    }
    const int w = tape_.weight(std::move(matrix));
    Node node{.name = name, .inputs = {x}, .outputs = {y}};
    const bool low = low_ && !adapter;
    if (trains && low && c_.profile.transformer_engine) {  // as linear layers (operators.cpp)
      const std::int64_t elements = received_ * in, blocks = c_.gemm == DType::fp8 ? 0 : elements / (c_.gemm == DType::nvfp4 ? 16 : 32);
      node.intermediates.push_back(tape_.tensor(name + " cast input", elements * bits(c_.gemm) / 8 + blocks, false));
      node.saved.push_back(node.intermediates.back());
    } else if (trains) {
      node.saved.push_back(x);
    } else if (quantised && c_.profile.keeps_quantised_inputs) {
      node.attributes.push_back(x);   // as linear layers
    }
    if (place == Place::first && !adapter) {
      node.forward_host = c_.profile.expert_host / 2;
      node.backward_host = c_.profile.expert_backward_host / 2;
    }
    if (low && !(fused_ && place == Place::second)) quantise(node.forward, name + " cast input", received_ * in);
    products(node.forward, name, GemmRole::forward, out, in, c_.activation, false, quantised);
    if (low && !(fused_ && place == Place::first)) quantise(node.backward, name + " cast gradient", received_ * out);
    const std::size_t input_from = node.backward.size();
    products(node.backward, name + " data gradient", GemmRole::data_gradient, in, out, c_.activation, false, quantised);
    for (std::size_t i = input_from; i < node.backward.size(); ++i) node.backward[i].for_input = true;
    if (trains) {
      const bool fused = c_.profile.fused_gradient_accumulation;
      std::vector<Item> made;
      products(made, name + " weight gradient", GemmRole::weight_gradient, out, in, fused ? c_.profile.gradient : c_.activation, fused);
      if (some && loops()) made.resize(static_cast<std::size_t>(own));   // a grouped product makes them all (and is refused: tuning/problems.cpp)
      // The gradients of all experts are one tensor; each product writes its part.
      for (std::size_t i = 0; i + 1 < made.size(); ++i) node.backward.push_back(made[i]);
      node.backward.push_back(op_.weight_gradient(w, made.back()));
    }
    if (c_.model.mlp_bias && !adapter && !(separate_bias() && place == Place::second)) {
      Weight added = op_.weight(name + ".bias", local_ * out);
      added.matrix = false;
      added.expert = own_group_;
      const bool bias_trains = added.trainable;
      const int b = tape_.weight(std::move(added));
      // In the product's epilogue, and its gradient in the weight gradient's or in the quantisation of the output's gradient.
      const bool epilogue = fused_ || separate_bias();
      if (!epilogue) node.forward.push_back(op_.kernel(name + " bias", received_ * out * e(), received_ * out * e()));
      const std::int64_t read = epilogue ? local_ * out * 4 : received_ * out * e();
      if (bias_trains) node.backward.push_back(op_.weight_gradient(b, op_.kernel(name + " bias gradient", read, local_ * out * 4, KernelKind::reduction)));
    }
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  /// Megatron multiplies by the router's weights here, so that nothing has to be kept for it later.
  TensorId activation(TensorId x, TensorId weights, std::int64_t width) {
    const std::int64_t size = received_ * width * e(), in = c_.model.gated_mlp ? 2 * size : size;
    if (c_.model.clamped_activation && separate_bias()) x = clamp(x, in);
    const TensorId y = tape_.tensor("experts activation", size);
    Node node{.name = "experts activation", .inputs = {x}, .outputs = {y}, .saved = {x}};
    // The scalar of the gate is copied to the device for each call, and such a copy waits for the stream
    // (fused_bias_geglu.py: torch.tensor(linear_offset, device=...)).
    if (c_.model.clamped_activation && separate_bias()) node.forward.push_back({.kind = Item::Kind::host_sync});
    if (weighs_in_activation()) {
      node.inputs.push_back(weights);
      node.saved.push_back(weights);
    }
    const std::int64_t parts = loops() ? local_ : 1;
    if (loops()) {
      // silu(gate), times up, an operator each: the product's operands are kept too.
      const TensorId silu = tape_.tensor("experts silu", size);
      node.intermediates = {silu};
      if (c_.model.gated_mlp) node.saved.push_back(silu);
    }
    for (std::int64_t i = 0; i < parts && !fused_; ++i) {
      node.forward.push_back(op_.kernel("experts activation", in / parts, size / parts));
      if (loops() && c_.model.gated_mlp) node.forward.push_back(op_.kernel("experts gate product", 2 * size / parts, size / parts));
      node.backward.push_back(op_.kernel("experts activation backward", (in + size) / parts, in / parts));
      // The slots' weights want a sum over the width: a second pass (weighted_swiglu_back, weighted_quick_geglu_back under torch.compile).
      if (by_expert_) node.backward.push_back(op_.kernel("experts activation weights backward", in + size, received_ * 4, KernelKind::reduction));
      if (loops() && c_.model.gated_mlp) node.backward.insert(node.backward.end(), {op_.kernel("experts gate product backward", 2 * size / parts, size / parts), op_.kernel("experts gate product backward", 2 * size / parts, size / parts)});
    }
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  bool weighs_in_activation() const { return !loops(); }
  bool separate_bias() const { return !loops() && !fused_ && c_.profile.separate_expert_bias; }

  /// Gate and up cut apart, clamped and joined again before the activation's kernel.
  /// Source: megatron/core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl.
  TensorId clamp(TensorId x, std::int64_t size) {
    const TensorId y = tape_.tensor("experts clamped", size);
    const std::int64_t half = size / 2;
    Node node{.name = "experts clamp", .inputs = {x}, .outputs = {y}, .saved = {x}};
    node.forward = {Operators::alloc(0, half), op_.kernel("clamp gate", half, half), Operators::alloc(1, half), op_.kernel("clamp up", half, half),
                    op_.kernel("join gate and up", size, size), Operators::free(0), Operators::free(1)};
    node.backward = {Operators::alloc(0, half), op_.kernel("clamp gate backward", size, half), Operators::alloc(1, half), op_.kernel("clamp up backward", size, half),
                     op_.kernel("cut gate and up backward", size, size), Operators::free(0), Operators::free(1)};
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  /// The bias after the experts, times each slot's weight: an fp32 product and an fp32 sum for each expert, joined and cast.
  /// Source: megatron/core/transformer/moe/experts.py, TEGroupedMLP._apply_bias; backward as autograd records it.
  TensorId output_bias(TensorId x, TensorId weights) {
    const std::int64_t narrow = bytes(received_), wide = received_ * hidden_ * 4, slots = received_ * 4;
    const TensorId y = tape_.tensor("experts biased output", narrow);
    Weight added = op_.weight("experts down.bias", local_ * hidden_);
    added.matrix = false;
    added.expert = own_group_;
    const bool trains = added.trainable;
    const int b = tape_.weight(std::move(added));
    Node node{.name = "experts output bias", .inputs = {x, weights}, .outputs = {y}, .saved = {weights}};
    auto& f = node.forward;
    f.push_back(Operators::alloc(0, wide));
    f.push_back(Operators::alloc(1, wide / local_));
    per_expert(f, "bias times weight", slots, wide);
    per_expert(f, "bias add", narrow + wide, wide);
    f.push_back(Operators::free(1));
    f.insert(f.end(), {Operators::alloc(2, wide), op_.kernel("join experts", wide, wide), Operators::free(0), op_.kernel("cast", wide, narrow), Operators::free(2)});
    auto& back = node.backward;
    back.insert(back.end(), {Operators::alloc(3, wide), op_.kernel("cast backward", narrow, wide)});
    per_expert(back, "bias add backward", wide, narrow);
    if (trains) {
      back.push_back(Operators::alloc(4, wide / local_));
      per_expert(back, "bias times weight backward", wide + slots, wide);
      std::vector<Item> sums;
      per_expert(sums, "experts down bias gradient", wide, local_ * hidden_ * 4, KernelKind::reduction);
      for (std::size_t i = 0; i + 1 < sums.size(); ++i) back.push_back(sums[i]);
      back.push_back(op_.weight_gradient(b, sums.back()));
      back.push_back(Operators::free(4));
    }
    back.push_back(Operators::alloc(5, wide / local_));
    per_expert(back, "slot weight backward", wide, wide);
    per_expert(back, "slot weight backward sum", wide, slots, KernelKind::reduction);
    back.push_back(Operators::free(5));
    back.insert(back.end(), {op_.kernel("join gradients", narrow, narrow), Operators::free(3)});
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  /// Experts' rows filled up to what 8-bit products want, where the dispatcher has not done it (HybridEP does): a copy.
  /// Source: Transformer Engine, Fp8Padding and Fp8Unpadding in TEGroupedMLP.
  TensorId copy(TensorId x, const char* name) {
    const TensorId y = tape_.tensor(name, bytes(received_));
    tape_.nodes.push_back({.name = std::string("experts ") + name, .inputs = {x}, .outputs = {y}, .forward = {op_.kernel(name, bytes(received_), bytes(received_))},
                           .backward = {op_.kernel(std::string(name) + " backward", bytes(received_), bytes(received_))}});
    return y;
  }
  bool pads() const { return low_ && by_expert_ && dropless_ && dispatcher_ != Dispatcher::hybridep; }

  TensorId experts(const Slots& in) {
    const std::int64_t width = moe_.ffn_hidden / tensor_;
    TensorId h;
    const TensorId x = pads() ? copy(in.tokens, "padding") : in.tokens;
    if (c_.model.gated_mlp) {
      h = product(x, "experts gate_up", hidden_, 2 * width, Place::first);
      h = activation(h, in.weights, width);
      h = product(h, "experts down", width, hidden_, Place::second);
    } else {
      h = activation(product(x, "experts fc1", hidden_, width, Place::first), in.weights, width);
      h = product(h, "experts fc2", width, hidden_, Place::second);
    }
    if (c_.model.mlp_bias && separate_bias()) h = output_bias(h, in.weights);
    return pads() ? copy(h, "unpadding") : h;
  }

  /// Sums each token's outputs, weighed here where the experts did not.
  TensorId unpermute(TensorId x, TensorId weights, std::int64_t rows) {
    const std::int64_t slots = dispatcher_ == Dispatcher::all_to_all && exchanges() ? sent_ : received_;
    const TensorId y = tape_.tensor("experts output", bytes(rows));
    Node node{.name = "unpermute", .inputs = {x}, .outputs = {y}, .saved = {order_}};
    if (loops()) {
      node.inputs.push_back(weights);
      node.saved.insert(node.saved.end(), {x, weights});
      const std::int64_t part = bytes(slots) / moe_.experts;
      for (std::int64_t i = 0; i < moe_.experts; ++i) {
        node.forward.insert(node.forward.end(), {op_.kernel("weigh outputs", part, part), op_.kernel("add to tokens", 2 * part, part, KernelKind::permute)});
        node.backward.insert(node.backward.end(), {op_.kernel("add to tokens backward", part, part, KernelKind::permute), op_.kernel("weigh outputs backward", 2 * part, part),
                                                   op_.kernel("weigh outputs backward", 2 * part, part / hidden_, KernelKind::reduction)});
      }
    } else {
      node.forward = {op_.kernel("unpermute", bytes(slots), bytes(rows), KernelKind::permute)};
      node.backward = {op_.kernel("unpermute backward", bytes(rows), bytes(slots), KernelKind::permute)};
    }
    tape_.nodes.push_back(std::move(node));
    return y;
  }

  TensorId shared_experts(TensorId x) {
    const TensorId y = mlp_block(c_, op_, x, moe_.shared_ffn_hidden, "shared experts ");
    if (!moe_.shared_gate) return y;
    const TensorId gate = op_.linear(x, "shared experts gate", hidden_, 1, false, Operators::Split::none);
    const TensorId out = tape_.tensor("gated shared experts", bytes(rows_));
    tape_.nodes.push_back({.name = "shared experts gate product", .inputs = {y, gate}, .outputs = {out}, .saved = {y, gate}, .forward = {op_.kernel("sigmoid gate", bytes(rows_), bytes(rows_))},
                           .backward = {op_.kernel("sigmoid gate backward", 2 * bytes(rows_), bytes(rows_)), op_.kernel("gate gradient", 2 * bytes(rows_), rows_ * e(), KernelKind::reduction)}});
    return out;
  }

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  const model::Experts& moe_;
  std::int64_t ranks_ = 1, tensor_ = 1, local_ = 1, hidden_ = 0;
  std::int64_t rows_ = 0;       // tokens of this rank
  std::int64_t sent_ = 0;       // slots of this rank's tokens
  std::int64_t received_ = 0;   // slots of this rank's experts
  std::int64_t fullest_ = 0;    // slots that the busiest rank of the group sends or receives
  double share_ = 0, visits_over_mean_ = 1;   // of all slots, here; tokens that visit the fullest rank over the mean
  std::vector<std::int64_t> rows_of_;         // slots of each local expert; empty: all alike
  Dispatcher dispatcher_ = Dispatcher::all_to_all;
  bool dropless_ = true;
  bool fused_ = false;          // both products, activation, biases and quantisation in fused kernels
  bool by_expert_ = false;      // each expert's product is a launch
  bool low_ = false;            // 8- or 4-bit products
  bool own_group_ = false;      // expert weights are summed over another group than dense ones
  TensorId order_ = kNoTensor;
  std::size_t joins_at_ = 0;    // the node before which compute waits for tokens that travelled beside it
};

}  // namespace

TensorId experts_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x) { return ExpertLayer(c, op, tape).run(x); }

}  // namespace rehearse::strategies
