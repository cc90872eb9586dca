#include <fmt/format.h>

#include <algorithm>

#include "sim/model/description.h"

namespace rehearse::model {

namespace {

// Far above every model ever described, far below what overflows int64 when three of them are multiplied.
constexpr std::int64_t kLargestWidth = 1'000'000;
constexpr std::int64_t kLargestVocabulary = 10'000'000;
constexpr std::int64_t kMostLayers = 10'000;

class Complaints {
 public:
  /// True when the size is usable.
  bool size(const char* name, std::int64_t value, std::int64_t largest = kLargestWidth) {
    if (value <= 0) say("{} is {} (it must be at least 1)", name, value);
    if (value > largest) say("{} is {} (more than {}: no transformer is this large)", name, value, largest);
    return value > 0 && value <= largest;
  }
  void not_negative(const char* name, std::int64_t value, std::int64_t largest = kLargestWidth) {
    if (value < 0) say("{} is {} (it must not be negative)", name, value);
    if (value > largest) say("{} is {} (more than {}: no transformer is this large)", name, value, largest);
  }
  void probability(const char* name, double value) {
    if (!(value >= 0 && value < 1)) say("{} is {} (a probability from 0 to below 1)", name, value);
  }
  template <typename... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    list_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

void check_attention(const ModelDescription& model, Complaints& complaints) {
  const bool heads = complaints.size("heads", model.heads);
  if (model.latent.present()) {
    complaints.not_negative("q_lora_rank", model.latent.q_lora_rank);
    complaints.size("kv_lora_rank", model.latent.kv_lora_rank);
    complaints.size("qk_nope_head_dim", model.latent.qk_nope_head_dim);
    complaints.not_negative("qk_rope_head_dim", model.latent.qk_rope_head_dim);
    complaints.size("v_head_dim", model.latent.v_head_dim);
    return;
  }
  if (complaints.size("kv_heads", model.kv_heads) && heads && model.heads % model.kv_heads != 0)
    complaints.say(
        "kv_heads {} does not divide heads {} (each key/value head serves the same number of queries)",
        model.kv_heads, model.heads);
  // A builder leaves head_dim at 0 when hidden / heads is not whole, so the two sizes that clash are named.
  if (model.head_dim == 0 && heads && model.hidden % model.heads != 0)
    complaints.say("hidden {} is not a multiple of heads {} and no head_dim is given", model.hidden,
                   model.heads);
  else
    complaints.size("head_dim", model.head_dim);
  if (model.rotary_dim < 0 || model.rotary_dim > model.head_dim)
    complaints.say("rotary_dim {} is not between 0 and head_dim {}", model.rotary_dim, model.head_dim);
}

void check_state_space(const ModelDescription& model, Complaints& complaints) {
  const auto mixes = [](const Layer& layer) { return layer.mixer == Mixer::state_space; };
  const bool used = std::any_of(model.layers.begin(), model.layers.end(), mixes);
  const StateSpace& mixer = model.state_space;
  if (!used) {
    if (mixer.present()) complaints.say("state_space is given but no layer uses it");
    return;
  }
  if (!mixer.present()) return complaints.say("hybrid_pattern has state-space mixers, but state_space does not say how large they are: give at least state_space.heads");
  const bool heads = complaints.size("state_space.heads", mixer.heads);
  complaints.size("state_space.head_dim", mixer.head_dim);
  complaints.size("state_space.state", mixer.state);
  complaints.size("state_space.convolution", mixer.convolution);
  complaints.size("state_space.chunk", mixer.chunk);
  if (complaints.size("state_space.groups", mixer.groups) && heads && mixer.heads % mixer.groups != 0)
    complaints.say("state_space.groups {} does not divide state_space.heads {}", mixer.groups, mixer.heads);
  if (model.parallel_residual || model.norms_after || model.norms_per_layer == 4 || model.scales.any())
    complaints.say("state-space mixers go with one norm before each part of a layer: no parallel_residual, norms_after or learned_scales");
}

void check_delta_net(const ModelDescription& model, Complaints& complaints) {
  const bool used = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) { return layer.mixer == Mixer::delta_net; });
  const DeltaNet& mixer = model.delta_net;
  if (!used) {
    if (mixer.present()) complaints.say("delta_net is given but no layer uses it");
    return;
  }
  if (!mixer.present()) return complaints.say("hybrid_pattern has delta-rule mixers, but delta_net does not say how large they are: give at least delta_net.value_heads");
  const bool values = complaints.size("delta_net.value_heads", mixer.value_heads);
  complaints.size("delta_net.key_dim", mixer.key_dim);
  complaints.size("delta_net.value_dim", mixer.value_dim);
  complaints.size("delta_net.convolution", mixer.convolution);
  if (complaints.size("delta_net.key_heads", mixer.key_heads) && values && mixer.value_heads % mixer.key_heads != 0)
    complaints.say("delta_net.key_heads {} does not divide delta_net.value_heads {} (each serves as many)", mixer.key_heads, mixer.value_heads);
  if (model.parallel_residual || model.norms_after || model.norms_per_layer == 4 || model.scales.any())
    complaints.say("delta-rule mixers go with one norm before each part of a layer: no parallel_residual, norms_after or learned_scales");
}

void check_mlp(const ModelDescription& model, Complaints& complaints) {
  std::int64_t moe_layers = 0, dense_layers = 0;
  for (const Layer& layer : model.layers) (layer.moe ? moe_layers : dense_layers) += layer.feed_forward ? 1 : 0;
  if (dense_layers > 0) complaints.size("ffn_hidden", model.ffn_hidden);
  const Experts& moe = model.experts;
  if (moe_layers == 0) {
    if (moe.experts > 0) complaints.say("{} experts are given but no layer uses them", moe.experts);
    return;
  }
  if (complaints.size("experts", moe.experts) && complaints.size("top_k", moe.top_k) &&
      moe.top_k > moe.experts)
    complaints.say("top_k {} is more than the {} experts there are", moe.top_k, moe.experts);
  complaints.not_negative("groups", moe.groups);
  complaints.not_negative("groups_per_token", moe.groups_per_token);
  if (moe.groups > 0 && moe.experts % moe.groups != 0)
    complaints.say("{} groups do not divide the {} experts (each has as many)", moe.groups, moe.experts);
  else if (moe.groups_per_token > std::max<std::int64_t>(1, moe.groups))
    complaints.say("groups_per_token {} is more than the {} groups there are", moe.groups_per_token, moe.groups);
  else if (moe.groups > 0 && moe.groups_per_token > 0 && moe.top_k > moe.experts / moe.groups * moe.groups_per_token)
    complaints.say("top_k {} is more than the {} experts of {} groups", moe.top_k,
                   moe.experts / moe.groups * moe.groups_per_token, moe.groups_per_token);
  complaints.size("moe_ffn_hidden", moe.ffn_hidden);
  complaints.not_negative("shared_ffn_hidden", moe.shared_ffn_hidden);
  complaints.not_negative("experts.latent", moe.latent);
  if (moe.shared_gate && moe.shared_ffn_hidden == 0)
    complaints.say("there is a gate on the shared expert but no shared expert");
}

/// Plausible sizes can still multiply to more than int64 holds; checked in floating point, which cannot
/// overflow.
void check_total(const ModelDescription& model, Complaints& complaints) {
  constexpr double kMostParameters = 1e17;
  const double widest = static_cast<double>(std::max(model.ffn_hidden, model.experts.ffn_hidden));
  const double mlp = 3.0 * static_cast<double>(model.hidden) * widest *
                     static_cast<double>(std::max<std::int64_t>(1, model.experts.experts));
  const double attention =
      4.0 * static_cast<double>(model.hidden) * static_cast<double>(model.heads) *
      static_cast<double>(model.latent.present() ? model.latent.v_head_dim : model.head_dim);
  const double total = (mlp + attention) * static_cast<double>(model.layer_count());
  if (total > kMostParameters)
    complaints.say("these sizes make about {:.1e} parameters (more than {:.0e}: no machine holds them)",
                   total, kMostParameters);
}

}  // namespace

std::vector<std::string> problems_of(const ModelDescription& model) {
  Complaints complaints;
  complaints.size("hidden", model.hidden);
  complaints.size("vocab", model.vocab, kLargestVocabulary);
  complaints.size("layers", model.layer_count(), kMostLayers);
  check_attention(model, complaints);
  check_state_space(model, complaints);
  check_delta_net(model, complaints);
  if (model.attention_gate && model.latent.present()) complaints.say("attention_gate does not go with latent_attention");
  check_mlp(model, complaints);
  if (model.norms_per_layer != 1 && model.norms_per_layer != 2 && model.norms_per_layer != 4)
    complaints.say("norms_per_layer is {} (1, 2 or 4 are known)", model.norms_per_layer);
  if (model.norms_per_layer == 1 && !model.parallel_residual)
    complaints.say("norms_per_layer is 1, which only works with parallel_residual");
  if (model.norms_after && (model.norms_per_layer != 2 || model.parallel_residual))
    complaints.say("norms_after means two norms per layer, without parallel_residual");
  if (model.scales.branches && model.parallel_residual) complaints.say("learned_scales of branches do not go with parallel_residual");
  if (model.scales.queries && model.latent.present()) complaints.say("learned_scales of queries do not go with latent_attention");
  if (model.joint_qk_norm && !model.qk_norm) complaints.say("joint_qk_norm without qk_norm");
  if (model.position == Position::learned)
    complaints.size("max_positions", model.max_positions, 100 * kLargestWidth);
  complaints.not_negative("embedding_width", model.embedding_width);
  complaints.not_negative("mtp_layers", model.mtp_layers, 100);
  if (model.mtp_repeated && model.mtp_layers == 0) complaints.say("mtp_repeated without mtp_layers");
  for (const Layer& layer : model.layers)
    if (layer.window < 0) {
      complaints.say("a layer's window is {} (0 = full attention, else at least 1 token)", layer.window);
      break;
    }
  complaints.probability("dropout", model.dropout);
  complaints.probability("attention_dropout", model.attention_dropout);
  check_total(model, complaints);
  return complaints.take();
}

}  // namespace rehearse::model
