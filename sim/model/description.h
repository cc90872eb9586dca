// A transformer as its configuration file describes it, in one normal form for every family.
// Leaves out how it is trained and sharded (strategies) and the operators it consists of (model/graph.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/dtype.h"

namespace rehearse::model {

enum class Norm : std::uint8_t { layer_norm, rms_norm };
enum class Position : std::uint8_t { rotary, learned, alibi, none };
enum class Activation : std::uint8_t { gelu, gelu_tanh, silu, relu, squared_relu };

/// Multi-head latent attention (DeepSeek-V2/V3). All zero when absent.
struct LatentAttention {
  std::int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool present() const { return kv_lora_rank > 0; }
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

/// Mixture of experts. `experts` = 0 when the layer is dense.
struct Experts {
  std::int64_t experts = 0;  // routed experts
  std::int64_t top_k = 0;
  std::int64_t ffn_hidden = 0;         // width of one routed expert
  std::int64_t shared_ffn_hidden = 0;  // total width of the shared experts, 0 = none
  std::int64_t latent = 0;             // width that tokens are brought to before routed experts and back from after them (Nemotron 3 Super); 0: none
  bool shared_gate = false;            // a 1-wide gate on the shared expert (Qwen2-MoE)
  bool router_bias = false;
  std::int64_t groups = 0;  // group-limited routing (DeepSeek): experts lie in this many groups, and
  std::int64_t groups_per_token = 0;  // a token visits this many of them; 0 = any expert
  friend bool operator==(const Experts&, const Experts&) = default;
};

/// A state-space mixer of tokens (Mamba-2), which some layers have in place of attention. All zero when absent.
/// Source: Dao and Gu 2024 (arXiv 2405.21060), section 7; state-spaces/mamba mamba_ssm/modules/mamba2.py.
struct StateSpace {
  std::int64_t heads = 0, head_dim = 0;  // heads * head_dim is the width inside the mixer
  std::int64_t groups = 0, state = 0;    // groups of heads that share their input and output maps (B, C), of `state` values each
  std::int64_t convolution = 0;          // taps of the causal convolution before the scan
  std::int64_t chunk = 0;                // tokens that the scan computes as one block
  bool convolution_bias = true;
  bool norm = true;                      // a gated RMSNorm before the output product
  bool present() const { return heads > 0; }
  std::int64_t inner() const { return heads * head_dim; }
  std::int64_t convolved() const { return inner() + 2 * groups * state; }       // channels of the convolution: x, B, C
  std::int64_t projected() const { return inner() + convolved() + heads; }      // of the input product: gate, x, B, C, time steps
  friend bool operator==(const StateSpace&, const StateSpace&) = default;
};

/// A gated delta rule (Gated DeltaNet), which some layers have in place of attention. All zero when absent.
/// Source: Yang, Kautz and Hatamizadeh 2024 (arXiv 2412.06464); transformers models/qwen3_next/modeling_qwen3_next.py, Qwen3NextGatedDeltaNet.
struct DeltaNet {
  std::int64_t key_heads = 0, value_heads = 0;   // queries have as many heads as keys; each serves value_heads / key_heads of the values'
  std::int64_t key_dim = 0, value_dim = 0;       // width of one head
  std::int64_t convolution = 0;                  // taps of the causal convolution over queries, keys and values
  bool present() const { return value_heads > 0; }
  std::int64_t inner() const { return value_heads * value_dim; }
  std::int64_t convolved() const { return 2 * key_heads * key_dim + inner(); }   // channels of the convolution
  std::int64_t projected() const { return convolved() + inner() + 2 * value_heads; }   // of the input products: those, the output's gate, decays, step sizes
  friend bool operator==(const DeltaNet&, const DeltaNet&) = default;
};

/// What mixes the tokens of a layer.
enum class Mixer : std::uint8_t { attention, state_space, delta_net, none };

/// What differs from layer to layer.
struct Layer {
  std::int64_t window = 0;  // sliding-window or chunk width, 0 = full attention
  bool moe = false;         // uses `experts` instead of the dense MLP
  bool rotary = true;       // false: a layer without position encoding in a rotary model (Llama 4)
  bool chunked =
      false;  // `window` is a chunk (Llama 4): keys of the query's own chunk, half of a window's area
  Mixer mixer = Mixer::attention;
  bool feed_forward = true;  // false: the mixer alone, no MLP and no experts (Nemotron-H counts its parts as layers)
  bool one_part() const { return !feed_forward || mixer == Mixer::none; }
  friend bool operator==(const Layer&, const Layer&) = default;
};

/// Learned factors on the residual stream and on queries, beside the norms'. A vector has a factor for each of `hidden` channels.
struct LearnedScales {
  bool branches = false;   // attention's and the MLP's output times a vector each, before they are added (LayerScale)
  bool embedding = false;  // each layer's input is the stream times a vector and the embedding's output times another
  bool queries = false;    // rotated queries times a factor for each head
  bool any() const { return branches || embedding || queries; }
  friend bool operator==(const LearnedScales&, const LearnedScales&) = default;
};

struct ModelDescription {
  std::string name;
  std::string family;  // "llama", "gpt2", ...
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;    // of q and k; v has the same unless `latent` is present
  std::int64_t ffn_hidden = 0;  // dense MLP width
  std::int64_t vocab = 0;  // rows of the embedding as the checkpoint has them (no padding by a framework)
  std::int64_t max_positions = 0;    // rows of a learned position table, 0 when there is none
  std::int64_t embedding_width = 0;  // width of the token embedding if it is not `hidden` (OPT-350m), else 0
  bool gated_mlp = true;
  Activation activation = Activation::silu;
  Norm norm = Norm::rms_norm;
  bool norm_bias = false;       // LayerNorm with a bias
  bool norm_weight = true;      // false: norms learn nothing (OLMo 1)
  bool norm_weight_in_fp32 = false;  // norms multiply by their weight (or one plus it) before they round (Gemma, Qwen3-Next)
  int norms_per_layer = 2;      // 1 (shared, parallel residual), 2, or 4 (Gemma 2/3: before and after)
  bool norms_after = false;     // the two norms follow attention and MLP, nothing comes before them (OLMo 2)
  bool embedding_norm = false;  // LayerNorm after the embedding (BLOOM)
  bool final_norm = true;
  bool qk_norm = false;        // per-head norms of width head_dim on q and k
  bool qk_norm_weight = true;  // false: those norms only divide by the length, nothing is learned (Llama 4)
  bool joint_qk_norm = false;  // one norm over all heads of q, one over those of k (OLMo 2); a weight for each element
  bool parallel_residual = false;  // attention and MLP read the same input (GPT-NeoX, Falcon, Phi)
  Position position = Position::rotary;
  std::int64_t rotary_dim = 0;  // rotated part of head_dim
  bool qkv_bias = false, attention_output_bias = false, mlp_bias = false, head_bias = false;
  bool tied_embeddings = false;
  bool fused_qkv = false;         // the published code computes queries, keys and values by one product
  bool attention_gate = false;    // attention's output times the sigmoid of a gate as wide, which the query product makes too (Qwen3-Next)
  bool attention_sinks = false;   // one learned logit per head (GPT-OSS)
  bool clamped_activation = false;  // the operands of the experts' gated activation are clamped first (GPT-OSS)
  bool softcapped_logits = false; // logits go through a scaled tanh before the loss (Gemma 2)
  LearnedScales scales;
  bool scaled_embedding = false;  // embeddings are multiplied by a constant (Gemma): one more kernel
  double dropout = 0;             // residual/hidden dropout probability that training uses
  double attention_dropout = 0;
  LatentAttention latent;
  Experts experts;
  StateSpace state_space;
  DeltaNet delta_net;
  std::int64_t mtp_layers = 0;  // multi-token-prediction layers (DeepSeek-V3), beyond `layers`
  bool mtp_repeated = false;    // which are one layer, run again for each further token
  std::vector<Layer> layers;    // one entry per transformer layer

  std::int64_t layer_count() const { return static_cast<std::int64_t>(layers.size()); }
  std::int64_t query_width() const {
    return heads * (latent.present() ? latent.qk_nope_head_dim + latent.qk_rope_head_dim : head_dim);
  }
  /// Of the product that makes queries: with the gate of attention's output, if there is one.
  std::int64_t query_product_width() const { return query_width() * (attention_gate ? 2 : 1); }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  friend bool operator==(const ModelDescription&, const ModelDescription&) = default;
};

/// Parameters by part. Every count is of the whole, unsharded model.
struct ParameterCount {
  std::int64_t embedding = 0;  // token table (and its up-projection where there is one)
  std::int64_t position = 0;
  std::int64_t attention = 0;  // all layers
  std::int64_t state_space = 0;  // state-space mixers with their norms, all layers
  std::int64_t delta_net = 0;  // delta-rule mixers with their norms, all layers
  std::int64_t mlp = 0;        // dense MLPs, all layers
  std::int64_t experts = 0;    // routed experts, all layers
  std::int64_t shared_experts = 0;
  std::int64_t router = 0;     // with the shared experts' gate and the products into and out of the experts' latent
  std::int64_t norms = 0;
  std::int64_t head = 0;    // 0 when tied (but for the down-projection of OPT-350m)
  std::int64_t total = 0;   // sum of the above
  std::int64_t active = 0;  // touched by one token: total - experts * (1 - top_k / experts)
  std::int64_t mtp = 0;  // multi-token-prediction layers; not in `total`, as published totals leave them out
  friend bool operator==(const ParameterCount&, const ParameterCount&) = default;
};

/// Exact count of every learned value; buffers (rotary tables, ALiBi slopes, DeepSeek's routing bias) do not
/// count. `model` must be free of problems_of(). Throws nothing.
ParameterCount count_parameters(const ModelDescription& model);

/// Learned values of one layer's attention with its biases, sinks and latent norms; qk norms are counted as
/// norms.
std::int64_t attention_parameters(const ModelDescription& model);
/// Of which in matrices: multiply-adds of one token's projections.
std::int64_t attention_matrix_parameters(const ModelDescription& model);
/// Learned values of one state-space mixer, its own norm included.
std::int64_t state_space_parameters(const ModelDescription& model);
/// Learned values of one delta-rule mixer, its own norm included.
std::int64_t delta_net_parameters(const ModelDescription& model);
/// Learned values of one MLP of width `ffn_hidden` (three matrices when gated, else two) with its biases.
std::int64_t mlp_parameters(const ModelDescription& model, std::int64_t ffn_hidden);

/// The layer that a multi-token-prediction head goes through: as the model's last, or attention and MLP or experts where that is a part alone.
Layer prediction_layer(const ModelDescription& model);

/// Problems that make the description unusable, in the user's words ("hidden 100 is not a multiple of heads
/// 3"). Empty when there is none.
std::vector<std::string> problems_of(const ModelDescription& model);

}  // namespace rehearse::model
