// One mixture-of-experts layer of one rank while it is written to its tape: what its parts share (experts.cpp: the whole,
// expert_router.cpp: scores and maps, expert_dispatch.cpp: tokens on their way, expert_mlp.cpp and expert_products.cpp: what experts compute).
// Leaves out how many tokens come (expert_load.h).
#pragma once

#include <string>
#include <vector>

#include "strategies/layer/blocks.h"
#include "strategies/layer/expert_load.h"

namespace rehearse::strategies {

/// Are the experts' two products, activation and quantisation one fused kernel each way in this precision? Others run as the operations they are.
/// Source: NVIDIA/TransformerEngine v2.16 pytorch/ops/_common.py, fuse_grouped_mlp_ops (MXFP8), v2.17 pytorch/ops/fused/grouped_mlp.py (and NVFP4).
constexpr bool fuses_experts(DType product) { return product == DType::mxfp8 || product == DType::nvfp4; }

class ExpertLayer {
 public:
  ExpertLayer(const LowerContext& context, Operators& op, Tape& tape);
  TensorId run(TensorId x);

 private:
  /// Tokens on their way, with the weight of each.
  struct Slots {
    TensorId tokens, weights;
    std::int64_t rows = 0;
  };

  std::int64_t e() const { return c_.element(); }
  std::int64_t bytes(std::int64_t rows) const { return rows * hidden_ * e(); }
  /// Of this rank's tokens in the residual stream, which is wider than what experts read where they work on a latent.
  std::int64_t stream_bytes() const { return load_.rows * c_.model.hidden * e(); }
  /// Slots travel, a copy of a token for each of its experts; else tokens do.
  bool sends_slots() const { return dispatcher_ == Dispatcher::all_to_all || dispatcher_ == Dispatcher::hierarchical; }
  /// First inside nodes, then between them.
  bool in_two_steps() const { return dispatcher_ == Dispatcher::hierarchical && c_.expert_inside > 1 && c_.expert_inside < load_.ranks; }
  /// HybridEP delivers tokens in the order of experts itself.
  bool permutes_by_operators() const { return c_.profile.routes_by_map && !fused_permute_ && dispatcher_ != Dispatcher::hybridep; }
  /// Transformer Engine's fused permutations are Triton's kernels (2.1 on); HybridEP has its own.
  bool permutes_by_triton() const { return c_.profile.transformer_engine && c_.profile.routes_by_map && fused_permute_ && dispatcher_ != Dispatcher::hybridep && !loops(); }
  bool exchanges() const { return load_.ranks > 1 || load_.tensor > 1; }
  /// A product per expert, in a loop of the host, instead of grouped ones.
  bool loops() const { return !c_.profile.grouped_experts; }
  /// The router's weights multiply what experts return (Hugging Face, DeepSpeed, masks), not what their second product reads.
  bool weighs_outputs() const { return by_masks_ || c_.profile.weighs_expert_outputs; }
  /// By PyTorch's operators, around its own grouped products.
  bool weighs_eagerly() const { return weighs_outputs() && !by_masks_ && c_.profile.native_grouped && c_.profile.grouped_experts && !c_.profile.compiled && !permutes_by_operators() && !permutes_by_triton() && !loops(); }
  /// silu(gate), times up, an operator each, of grouped experts.
  bool gates_natively() const { return !fused_ && !loops() && c_.model.gated_mlp && is_native(c_.activation_fusion()); }
  /// Activation and weights are operators of their own: Megatron's fused kernels are of gated activations, and of the squared relu where it is asked for.
  bool weighs_apart() const {
    if (weighs_outputs() || fused_ || by_operations_) return false;
    if (c_.model.gated_mlp) return c_.profile.gate_offset && gates_natively();
    return !c_.profile.weighted_squared_relu || c_.model.activation != model::Activation::squared_relu;
  }

  TensorId shared_experts(TensorId x);

  // Scores, weights and maps (expert_router.cpp)
  TensorId route(TensorId x);
  void score(Node& node) const;
  void score_by_operators(Node& node) const;
  void score_fused(Node& node) const;
  void limit_to_capacity(Node& node) const;
  void exchange_counts(Node& node) const;
  /// Where a mask is set, which the host waits for: PyTorch's nonzero.
  void valid_places(std::vector<Item>& list, std::int64_t mask, std::int64_t chosen) const;

  // Dispatch and combine (expert_dispatch.cpp)
  Slots permute(const Slots& in, std::int64_t slots);
  void pick_backward(std::vector<Item>& list, std::int64_t picked, int indices, std::int64_t whole, std::int64_t part) const;
  void permute_by_masks(Node& node, std::int64_t rows, std::int64_t slots) const;
  void unpermute_by_masks(Node& node, std::int64_t rows, std::int64_t slots) const;
  Item mask_product(const std::string& name, model::GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k) const;
  /// Masks of this many groups of tokens: a token's own group has all of its slots.
  std::int64_t masks() const { return c_.profile.masks_by_sample ? c_.batch : 1; }
  std::int64_t mask_bytes(std::int64_t rows, std::int64_t slots) const { return rows * (slots / masks()) * e(); }
  void launch_by_triton(Node& node, int forward, int backward) const;
  void permute_by_operators(Node& node, std::int64_t rows, std::int64_t slots, std::int64_t map) const;
  void unpermute_by_operators(Node& node, std::int64_t rows, std::int64_t slots) const;
  void weigh_and_add(Node& node, std::int64_t rows, std::int64_t slots) const;
  Item add_by_atomics(const std::string& name, std::int64_t elements, bool by_index_add) const;
  TensorId unpermute(TensorId x, TensorId weights, std::int64_t rows);
  Slots exchange(const Slots& in, std::int64_t arriving, bool overlap);
  TensorId home(TensorId x, std::int64_t arriving);
  void take_exchange_host(Node& node) const;
  bool exchanges_slots_by_all_to_all() const;
  Slots index_map(const Slots& in);
  Slots sort(Slots in, bool there);
  std::int64_t arriving_tokens() const;
  /// Of tokens on their way to the experts, there included.
  std::int64_t travelling(std::int64_t rows) const { return narrow_ ? Operators::block_scaled(rows * hidden_) : bytes(rows); }
  TensorId travelling_tensor(const char* name, std::int64_t rows);
  std::int64_t arriving_bytes() const;
  std::vector<Item> outward(const std::string& name, int sync, bool weights) const;
  std::vector<Item> homeward(const std::string& name, bool weights) const;
  Item over_ranks(const std::string& name, bool there, int sync, bool weights) const;
  void prepare_bulk(std::vector<Item>& list) const;
  void send_slots(std::vector<Item>& out, const std::string& name, bool there, std::int64_t size, int sync) const;
  void send_slots_in_two_steps(std::vector<Item>& out, const std::string& name, bool there, std::int64_t size, int sync) const;
  Item exchange_item(CollectiveKind kind, const std::string& name, std::int64_t size, int sync, plan::GroupAxis axis = plan::GroupAxis::expert) const;

  // The experts' MLPs (expert_mlp.cpp)
  TensorId experts(const Slots& in);
  TensorId activation(TensorId x, TensorId weights, std::int64_t width);
  TensorId clamp(TensorId x, std::int64_t size);
  void clamped_activation(Node& node, std::int64_t size);
  TensorId activation_by_operations(TensorId x, TensorId weights, std::int64_t width);
  TensorId first_bias(TensorId x, std::int64_t width);
  TensorId output_bias(TensorId x, TensorId weights);
  TensorId copy(TensorId x, const char* name);
  void stash(std::size_t first_node, std::int64_t width);
  bool separate_clamp() const { return !loops() && !fused_ && !by_operations_ && c_.profile.separate_clamp && c_.model.clamped_activation; }
  bool separate_bias() const { return !loops() && !fused_ && !by_operations_ && c_.profile.separate_expert_bias; }
  bool pads() const { return low_ && by_expert_ && dropless_ && dispatcher_ != Dispatcher::hybridep; }

  // Their linear layers (expert_products.cpp)
  /// Which of the experts' two products a layer is: in fused kernels the first also makes the second's operand.
  enum class Place : std::uint8_t { first, second };
  /// The weights of one linear layer of all experts of the rank.
  struct Matrices {
    int weight = -1;            // of the tape
    std::int64_t own = 0;       // experts that they are of: fewer than the rank has where only some are trained
    bool quantised = false;     // kept in 4 bits
    bool trains = false;
  };
  TensorId product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, Place place);
  TensorId plain_product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, const Operators& op, bool adapter, Place place);
  Matrices matrices(const std::string& name, std::int64_t elements, const Operators& op, bool adapter);
  void keep_input(Node& node, TensorId x, std::int64_t in, const Matrices& matrices, bool low, bool came_narrow);
  void weight_gradients(Node& node, std::int64_t in, std::int64_t out, const Matrices& matrices);
  void product_bias(Node& node, std::int64_t out);
  void products(std::vector<Item>& out, const std::string& name, model::GemmRole role, std::int64_t n, std::int64_t k, DType result, bool accumulate, bool quantised = false) const;
  void quantise(std::vector<Item>& list, const std::string& name, std::int64_t elements) const;
  void per_expert(std::vector<Item>& list, const std::string& name, std::int64_t read, std::int64_t written, model::KernelKind kind = model::KernelKind::elementwise) const;

  const LowerContext& c_;
  Operators& op_;
  Tape& tape_;
  const model::Experts& moe_;
  ExpertLoad load_;
  std::int64_t hidden_ = 0;
  Dispatcher dispatcher_ = Dispatcher::all_to_all;
  bool dropless_ = true;
  bool fused_router_ = false;   // Megatron's scores, map and loss in Transformer Engine's kernels
  bool fused_permute_ = true;   // and its copies of tokens
  bool by_masks_ = false;       // tokens reach their slots by products with one-hot masks
  bool fused_map_ = true;       // DeepEP: lists of experts become a map in one kernel
  bool fused_ = false;          // both products, activation, biases and quantisation in fused kernels
  bool by_operations_ = false;  // Transformer Engine's operations for them, which no kernel fuses in this precision
  bool by_expert_ = false;      // each expert's product is a launch
  bool low_ = false;            // 8- or 4-bit products
  bool narrow_ = false;         // tokens travel there in 8 bits
  bool own_group_ = false;      // expert weights are summed over another group than dense ones
  TensorId order_ = kNoTensor;  // of the permuted slots; by_masks_: the masks
};

}  // namespace rehearse::strategies
