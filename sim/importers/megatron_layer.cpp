#include "sim/importers/importer.h"
#include "sim/importers/megatron.h"

#include <utility>

#include "sim/config/units.h"

namespace rehearse::importers {

std::vector<std::string> module_names(const std::string& text) {
  std::vector<std::string> names;
  std::string name;
  bool capital = false;
  for (const char c : text + " ") {
    const bool large = c >= 'A' && c <= 'Z';
    if (large || (c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9' && !name.empty())) {
      name += c;
      capital |= large;
    } else if (!name.empty()) {
      if (!std::exchange(capital, false)) names.push_back(name);
      name.clear();
    }
  }
  return names;
}

MegatronLayer megatron_layer(const config::Value& arguments) {
  const auto flag = [&](const char* name, bool otherwise = false) {
    const config::Value* v = arguments.find(name);
    return v == nullptr ? otherwise : parse_flag(v->text()).value_or(otherwise);
  };
  const auto number = [&](const char* name, double otherwise) {
    const config::Value* v = arguments.find(name);
    return v == nullptr ? otherwise : config::parse_number(v->text()).value.value_or(otherwise);
  };
  const auto word = [&](const char* name) {
    const config::Value* v = arguments.find(name);
    return v == nullptr ? std::string() : v->text();
  };
  MegatronLayer layer;
  layer.hidden_dropout = number("hidden_dropout", layer.hidden_dropout);
  layer.attention_dropout = number("attention_dropout", layer.attention_dropout);
  // "native" is Megatron's own loss through torch.compile, "te" is Transformer Engine's kernel.
  if (flag("cross_entropy_loss_fusion")) layer.loss = word("cross_entropy_fusion_impl") == "te" ? MegatronLayer::Loss::transformer_engine : MegatronLayer::Loss::own_compiled;
  layer.fused_gradient_accumulation = !flag("no_gradient_accumulation_fusion") && flag("gradient_accumulation_fusion", true);
  layer.fp8_parameters = (flag("fp8_param_gather") || flag("fp8_param")) && !(word("fp8_format").empty() && word("fp8").empty());
  layer.gated = flag("swiglu") || flag("gated_linear_unit");
  layer.local = word("transformer_impl") == "local";
  const std::string backend = word("attention_backend");
  // megatron/legacy/model/transformer.py, ParallelAttention (megatron/model before 2024): the models from before Megatron-Core have a
  // FlashAttention of their own; Megatron-Core's local layers never read the flag.
  layer.legacy = flag("use_legacy_models") || !flag("use_mcore_models", true);
  layer.own_flash_attention = layer.legacy && flag("use_flash_attn");
  layer.unfused_attention = (layer.local && !layer.own_flash_attention) || backend.ends_with("unfused") || backend.ends_with("local");
  const bool named_rms = word("normalization") == "RMSNorm" || word("normalization") == "rmsnorm";   // Megatron-DeepSpeed's spelling
  layer.rms_norm = named_rms || flag("apply_layernorm_rms");   // FlagScale's flag of 2023, for Apex's kernel (megatron/model/fused_layer_norm.py)
  layer.own_rms_norm = layer.legacy && named_rms;
  layer.qk_norm = flag("qk_layernorm");
  layer.linear_biases = flag("add_bias_linear", true) && !flag("disable_bias_linear");
  layer.untied = flag("untie_embeddings_and_output_weights");
  if (const config::Value* v = arguments.find("position_embedding_type")) layer.position = v->text();
  if (flag("use_rotary_position_embeddings")) layer.position = "rope";
  return layer;
}

}  // namespace rehearse::importers
