#include "sim/report/effective_model.h"

#include <initializer_list>
#include <utility>

#include "sim/config/units.h"
#include "sim/model/describe.h"
#include "sim/model/shapes.h"

namespace rehearse::report {
namespace {

using config::Value;

class Map {
 public:
  void add(const char* key, std::string text) { put(key, Value::scalar(std::move(text), false, {}, "")); }
  void add(const char* key, std::string_view text) { add(key, std::string(text)); }
  void add(const char* key, const char* text) { add(key, std::string(text)); }
  void add(const char* key, std::int64_t n) { add(key, std::to_string(n)); }
  void add(const char* key, int n) { add(key, std::to_string(n)); }
  void add(const char* key, bool flag) { add(key, flag ? "true" : "false"); }
  void add(const char* key, double x) { add(key, config::number_text(x)); }
  void put(const char* key, Value value) { entries_.push_back({key, {}, std::move(value)}); }
  bool empty() const { return entries_.empty(); }
  Value take() { return Value::map(std::move(entries_), {}, ""); }

 private:
  std::vector<Value::Entry> entries_;
};

/// The names of what is there.
Value names(std::initializer_list<std::pair<bool, const char*>> parts) {
  std::vector<Value> list;
  for (const auto& [present, name] : parts)
    if (present) list.push_back(Value::scalar(name, false, {}, ""));
  return Value::list(std::move(list), {}, "");
}

Value biases(const model::ModelDescription& m) {
  return names({{m.qkv_bias, "qkv"}, {m.attention_output_bias, "attention_output"}, {m.mlp_bias, "mlp"}, {m.head_bias, "head"}});
}

Value learned_scales(const model::LearnedScales& scales) { return names({{scales.branches, "branches"}, {scales.embedding, "embedding"}, {scales.queries, "queries"}}); }

/// The shortest text that, repeated, is this one.
std::string shortest_repeated(const std::string& text) {
  for (std::size_t n = 1; n < text.size(); ++n) {
    bool repeats = true;
    for (std::size_t i = n; i < text.size() && repeats; ++i) repeats = text[i] == text[i - n];
    if (repeats) return text.substr(0, n);
  }
  return text;
}

Value state_space(const model::StateSpace& s) {
  Map out;
  if (!s.present()) return out.take();
  out.add("heads", s.heads);
  out.add("head_dim", s.head_dim);
  out.add("groups", s.groups);
  out.add("state", s.state);
  out.add("convolution", s.convolution);
  out.add("chunk", s.chunk);
  out.add("convolution_bias", s.convolution_bias);
  out.add("norm", s.norm);
  return out.take();
}

Value delta_net(const model::DeltaNet& d) {
  Map out;
  if (!d.present()) return out.take();
  out.add("key_heads", d.key_heads);
  out.add("value_heads", d.value_heads);
  out.add("key_dim", d.key_dim);
  out.add("value_dim", d.value_dim);
  out.add("convolution", d.convolution);
  return out.take();
}

Value windows(const model::ModelDescription& m) {
  Map out;
  std::string pattern;
  std::int64_t size = 0;
  bool chunked = false;
  for (const model::Layer& layer : m.layers) {
    pattern += layer.window > 0 ? 'L' : layer.rotary ? 'G' : 'N';
    size = std::max(size, layer.window);
    chunked = chunked || layer.chunked;
  }
  if (pattern.find_first_not_of('G') == std::string::npos) return out.take();
  pattern = shortest_repeated(pattern);
  if (size > 0) out.add("size", size);
  out.add("pattern", pattern);
  if (size > 0) out.add("chunked", chunked);
  return out.take();
}

Value experts(const model::ModelDescription& m) {
  const model::Experts& e = m.experts;
  Map out;
  if (e.experts == 0) return out.take();
  std::int64_t first = -1, second = -1;
  for (std::int64_t i = 0; i < m.layer_count(); ++i)
    if (m.layers[static_cast<std::size_t>(i)].moe && !m.layers[static_cast<std::size_t>(i)].one_part()) (first < 0 ? first : second < 0 ? second : i) = i;
  const std::int64_t every = second > first && first >= 0 ? second - first : 1;
  out.add("count", e.experts);
  out.add("top_k", e.top_k);
  out.add("ffn_hidden", e.ffn_hidden);
  out.add("shared_ffn_hidden", e.shared_ffn_hidden);
  out.add("latent", e.latent);
  out.add("shared_gate", e.shared_gate);
  out.add("router_bias", e.router_bias);
  out.add("groups", e.groups);
  out.add("groups_per_token", e.groups_per_token);
  out.add("dense_first", every == 1 ? std::max<std::int64_t>(0, first) : std::int64_t{0});
  out.add("every", every);
  return out.take();
}

Value latent(const model::LatentAttention& a) {
  Map out;
  if (!a.present()) return out.take();
  out.add("q_lora_rank", a.q_lora_rank);
  out.add("kv_lora_rank", a.kv_lora_rank);
  out.add("qk_nope_head_dim", a.qk_nope_head_dim);
  out.add("qk_rope_head_dim", a.qk_rope_head_dim);
  out.add("v_head_dim", a.v_head_dim);
  return out.take();
}

}  // namespace

Value effective_model(const model::ModelDescription& m) {
  Map out;
  if (!m.name.empty()) out.add("name", m.name);
  // The style only decides what is left out, and nothing is; but it is gpt that has rows of positions.
  out.add("style", m.position == model::Position::learned ? "gpt" : "llama");
  out.add("family", m.family);
  out.add("layers", m.layer_count());
  out.add("hidden", m.hidden);
  out.add("heads", m.heads);
  out.add("kv_heads", m.kv_heads);
  if (!m.latent.present()) out.add("head_dim", m.head_dim);
  out.add("ffn_hidden", m.ffn_hidden);
  out.add("vocab", m.vocab);
  if (m.max_positions > 0) out.add("max_positions", m.max_positions);
  out.add("tied_embeddings", m.tied_embeddings);
  out.add("gated_mlp", m.gated_mlp);
  out.add("activation", name_of(m.activation));
  out.add("norm", name_of(m.norm));
  out.add("norm_bias", m.norm_bias);
  out.add("norm_weight", m.norm_weight);
  out.add("norm_weight_in_fp32", m.norm_weight_in_fp32);
  out.add("norms_per_layer", m.norms_per_layer);
  out.add("norms_after", m.norms_after);
  out.add("embedding_norm", m.embedding_norm);
  out.add("final_norm", m.final_norm);
  out.add("qk_norm", m.qk_norm);
  out.add("qk_norm_weight", m.qk_norm_weight);
  out.add("joint_qk_norm", m.joint_qk_norm);
  out.add("parallel_residual", m.parallel_residual);
  out.add("position", name_of(m.position));
  if (m.position == model::Position::rotary && !m.latent.present()) out.add("rotary_dim", m.rotary_dim);
  out.put("biases", biases(m));
  out.add("fused_qkv", m.fused_qkv);
  out.add("attention_gate", m.attention_gate);
  out.add("attention_sinks", m.attention_sinks);
  out.add("clamped_activation", m.clamped_activation);
  out.add("softcapped_logits", m.softcapped_logits);
  if (m.scales.any()) out.put("learned_scales", learned_scales(m.scales));
  out.add("scaled_embedding", m.scaled_embedding);
  out.add("embedding_width", m.embedding_width);
  out.add("mtp_layers", m.mtp_layers);
  if (m.mtp_repeated) out.add("mtp_repeated", true);
  out.add("dropout", m.dropout);
  out.add("attention_dropout", m.attention_dropout);
  const auto put_if_any = [&](const char* key, Value value) {
    if (!value.entries().empty()) out.put(key, std::move(value));
  };
  put_if_any("latent_attention", latent(m.latent));
  put_if_any("windows", windows(m));
  put_if_any("experts", experts(m));
  put_if_any("state_space", state_space(m.state_space));
  put_if_any("delta_net", delta_net(m.delta_net));
  if (const std::string pattern = shortest_repeated(model::layer_pattern_of(m)); pattern != "T") out.add("hybrid_pattern", pattern);
  return out.take();
}

}  // namespace rehearse::report
