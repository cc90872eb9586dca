#include <fmt/format.h>

#include <algorithm>

#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

// Beyond this a count is a slip or an attack: one entry is stored per layer. problems_of() names the same
// bound.
constexpr std::int64_t kMostStored = 10'001;

}  // namespace

void set_layer_count(ModelDescription& model, std::int64_t count) {
  model.layers.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kMostStored)), Layer{});
}

std::int64_t derived_head_dim(const ModelDescription& model) {
  return model.heads > 0 && model.hidden % model.heads == 0 ? model.hidden / model.heads : 0;
}

std::int64_t read_rotary_dim(ModelFields& fields, const ModelDescription& model, double fallback) {
  double factor = fields.number({"partial_rotary_factor", "rotary_pct"}, fallback);
  if (const config::Value* rope = fields.find({"rope_parameters"}))
    if (const config::Value* inside = rope->find("partial_rotary_factor"))
      factor = real_number(inside->text()).value_or(factor);
  if (!(factor > 0 && factor <= 1)) fields.complain("partial_rotary_factor", "is not above 0 and at most 1");
  return static_cast<std::int64_t>(factor * static_cast<double>(model.head_dim));
}

ModelDescription read_llama_like(ModelFields& fields, const FamilyDefaults& defaults) {
  ModelDescription model;
  model.hidden = fields.integer({"hidden_size"});
  set_layer_count(model, fields.integer({"num_hidden_layers"}));
  model.heads = fields.integer({"num_attention_heads"}, defaults.heads);
  // null means "as many as there are query heads"; an absent key means what the family's class says.
  const bool absent = !fields.is_present("num_key_value_heads");
  model.kv_heads = fields.integer({"num_key_value_heads"},
                                  absent && defaults.kv_heads > 0 ? defaults.kv_heads : model.heads);
  const std::int64_t derived = derived_head_dim(model);
  model.head_dim = fields.integer({"head_dim"}, defaults.head_dim > 0 ? defaults.head_dim : derived);
  model.rotary_dim = model.head_dim;
  model.ffn_hidden = fields.integer({"intermediate_size"}, defaults.ffn_hidden);
  model.vocab = fields.integer({"vocab_size"}, defaults.vocab);
  model.activation = fields.activation({"hidden_act", "hidden_activation"}, defaults.activation);
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, defaults.tied);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  return model;
}

void all_layers_moe(ModelDescription& model) {
  for (Layer& layer : model.layers) layer.moe = true;
}

void read_layers_without_positions(ModelFields& fields, ModelDescription& model, std::int64_t interval) {
  const std::int64_t every = std::max<std::int64_t>(1, fields.integer({"no_rope_layer_interval"}, interval));
  const std::optional<std::vector<std::int64_t>> listed = fields.integers({"no_rope_layers"});
  const bool by_list = listed && !listed->empty();
  if (by_list && static_cast<std::int64_t>(listed->size()) != model.layer_count())
    fields.complain("no_rope_layers", "has another length than there are layers");
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    model.layers[i].rotary = by_list ? i < listed->size() && (*listed)[i] != 0 : (static_cast<std::int64_t>(i) + 1) % every != 0;
}

bool read_layer_types(ModelFields& fields, ModelDescription& model, std::int64_t window) {
  const std::optional<std::vector<std::string>> types = fields.words({"layer_types"});
  if (!types) return false;
  if (types->size() != model.layers.size()) {
    fields.complain("layer_types",
                    fmt::format("has {} entries for {} layers", types->size(), model.layers.size()));
    return true;
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type == "full_attention" || type == "attention") continue;
    if (type != "sliding_attention" && type != "chunked_attention") {
      fields.complain("layer_types", fmt::format("\"{}\" is not supported", type),
                      "Supported: full_attention, sliding_attention, chunked_attention");
      return true;
    }
    if (window <= 0) {
      fields.complain("layer_types", fmt::format("layer {} is {} but the file gives no window", i, type));
      return true;
    }
    model.layers[i].window = window;
    model.layers[i].chunked = type == "chunked_attention";
  }
  return true;
}

}  // namespace rehearse::model
