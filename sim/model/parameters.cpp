// Legend: h hidden, d head_dim, a heads, k kv_heads, f MLP width, v vocabulary.
#include <algorithm>

#include "sim/model/description.h"

namespace rehearse::model {

namespace {

std::int64_t norm_parameters(const ModelDescription& model, std::int64_t width) {
  return !model.norm_weight ? 0 : model.norm_bias ? 2 * width : width;
}

std::int64_t latent_attention_parameters(const ModelDescription& model) {
  const LatentAttention& mla = model.latent;
  const std::int64_t h = model.hidden, a = model.heads;
  const std::int64_t query = a * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
  // Without a query rank (V2-Lite) q is one full matrix; with one it is down, norm, up.
  std::int64_t count = mla.q_lora_rank > 0 ? h * mla.q_lora_rank + mla.q_lora_rank * query : h * query;
  count += h * (mla.kv_lora_rank + mla.qk_rope_head_dim);
  count += mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim);
  count += a * mla.v_head_dim * h;
  // HF puts a bias on the three projections that read or write the hidden state, none on the two that go up.
  if (model.qkv_bias) count += mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim;
  if (model.attention_output_bias) count += h;
  return count;
}

/// Norms inside one layer: those on the residual stream, those on q and k, those on the two latent vectors; and its learned scales.
std::int64_t layer_norm_parameters(const ModelDescription& model, const Layer& layer) {
  const std::int64_t each = norm_parameters(model, model.hidden);
  std::int64_t count = (layer.one_part() ? std::max(1, model.norms_per_layer / 2) : model.norms_per_layer) * each;
  if (layer.mixer != Mixer::attention) return count;
  if (model.qk_norm && model.qk_norm_weight)
    count += model.joint_qk_norm ? norm_parameters(model, model.query_width()) + norm_parameters(model, model.kv_width())
                                 : 2 * norm_parameters(model, model.head_dim);
  count += (model.scales.branches ? 2 * model.hidden : 0) + (model.scales.embedding ? 2 * model.hidden : 0) + (model.scales.queries ? model.heads : 0);
  if (model.latent.present())
    count +=
        norm_parameters(model, model.latent.q_lora_rank) + norm_parameters(model, model.latent.kv_lora_rank);
  return count;
}

struct MoeParameters {
  std::int64_t routed = 0, shared = 0, router = 0;
};

MoeParameters moe_parameters(const ModelDescription& model) {
  const Experts& moe = model.experts;
  MoeParameters count;
  ModelDescription inside = model;
  if (moe.latent > 0) inside.hidden = moe.latent;
  count.routed = moe.experts * mlp_parameters(inside, moe.ffn_hidden);
  if (moe.shared_ffn_hidden > 0) count.shared = mlp_parameters(model, moe.shared_ffn_hidden);
  count.router = model.hidden * moe.experts + (moe.router_bias ? moe.experts : 0);
  if (moe.shared_gate) count.router += model.hidden;
  count.router += 2 * model.hidden * moe.latent;
  return count;
}

}  // namespace

std::int64_t attention_matrix_parameters(const ModelDescription& model) {
  ModelDescription bare = model;
  bare.qkv_bias = bare.attention_output_bias = bare.attention_sinks = false;
  return attention_parameters(bare);
}

std::int64_t attention_parameters(const ModelDescription& model) {
  if (model.latent.present()) return latent_attention_parameters(model);
  const std::int64_t q = model.query_width(), kv = model.kv_width();
  std::int64_t count = model.hidden * (model.query_product_width() + 2 * kv) + q * model.hidden;
  if (model.qkv_bias) count += model.query_product_width() + 2 * kv;
  if (model.attention_output_bias) count += model.hidden;
  if (model.attention_sinks) count += model.heads;
  return count;
}

std::int64_t state_space_parameters(const ModelDescription& model) {
  const StateSpace& mixer = model.state_space;
  const std::int64_t products = model.hidden * (mixer.projected() + mixer.inner());
  const std::int64_t convolution = mixer.convolved() * (mixer.convolution + (mixer.convolution_bias ? 1 : 0));
  constexpr std::int64_t kPerHead = 3;  // A, D and the bias of the time steps
  return products + convolution + kPerHead * mixer.heads + (mixer.norm ? mixer.inner() : 0);
}

std::int64_t delta_net_parameters(const ModelDescription& model) {
  const DeltaNet& mixer = model.delta_net;
  constexpr std::int64_t kPerHead = 2;  // A and the bias of the decays
  return model.hidden * (mixer.projected() + mixer.inner()) + mixer.convolved() * mixer.convolution + kPerHead * mixer.value_heads + mixer.value_dim;
}

std::int64_t mlp_parameters(const ModelDescription& model, std::int64_t ffn_hidden) {
  const std::int64_t up_matrices = model.gated_mlp ? 2 : 1;
  std::int64_t count = (up_matrices + 1) * model.hidden * ffn_hidden;
  if (model.mlp_bias) count += up_matrices * ffn_hidden + model.hidden;
  return count;
}

Layer prediction_layer(const ModelDescription& model) {
  const Layer last = model.layers.back();
  if (!last.one_part()) return last;
  Layer whole;
  whole.moe = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) { return layer.moe; });
  return whole;
}

ParameterCount count_parameters(const ModelDescription& model) {
  const std::int64_t h = model.hidden;
  const bool narrow = model.embedding_width > 0 && model.embedding_width != h;
  const std::int64_t width = narrow ? model.embedding_width : h;
  const MoeParameters moe = moe_parameters(model);
  ParameterCount count;

  count.embedding = model.vocab * width + (narrow ? width * h : 0);
  if (model.position == Position::learned) count.position = model.max_positions * h;
  count.head = (model.tied_embeddings ? 0 : model.vocab * width) + (narrow ? width * h : 0);
  if (model.head_bias) count.head += model.vocab;
  if (model.embedding_norm) count.norms += norm_parameters(model, h);
  if (model.final_norm) count.norms += norm_parameters(model, h);

  for (const Layer& layer : model.layers) {
    if (layer.mixer == Mixer::attention) count.attention += attention_parameters(model);
    if (layer.mixer == Mixer::state_space) count.state_space += state_space_parameters(model);
    if (layer.mixer == Mixer::delta_net) count.delta_net += delta_net_parameters(model);
    count.norms += layer_norm_parameters(model, layer);
    if (!layer.feed_forward) continue;
    if (layer.moe) {
      count.experts += moe.routed;
      count.shared_experts += moe.shared;
      count.router += moe.router;
    } else {
      count.mlp += mlp_parameters(model, model.ffn_hidden);
    }
  }

  count.total = count.embedding + count.position + count.attention + count.state_space + count.delta_net + count.mlp + count.experts +
                count.shared_experts + count.router + count.norms + count.head;
  const std::int64_t active_experts =
      count.experts == 0 ? 0 : count.experts / model.experts.experts * model.experts.top_k;
  count.active = count.total - count.experts + active_experts;

  if (model.mtp_layers > 0 && !model.layers.empty()) {
    // One more layer like the last, fed by a 2h -> h projection of (hidden state, next embedding) with a norm
    // on each, and a norm of its own before the shared head. Source: DeepSeek-V3 report, section 2.2.
    const std::int64_t mlp = prediction_layer(model).moe ? moe.routed + moe.shared + moe.router
                                                     : mlp_parameters(model, model.ffn_hidden);
    count.mtp = (model.mtp_repeated ? 1 : model.mtp_layers) * (attention_parameters(model) + layer_norm_parameters(model, prediction_layer(model)) + mlp +
                                    2 * h * h + 3 * norm_parameters(model, h));
  }
  return count;
}

}  // namespace rehearse::model
