#include "sim/model/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "sim/config/document.h"
#include "sim/config/text_file.h"
#include "sim/core/contract.h"
#include "sim/core/remembered.h"
#include "sim/core/resources.h"
#include "sim/core/suggestion.h"
#include "sim/model/describe.h"
#include "sim/model/model_fields.h"
#include "sim/model/model_file.h"

namespace rehearse::model {

namespace {

constexpr const char* kFolder = "sim/model/data";
constexpr std::size_t kLargestFile = 1 << 20;   // bytes

struct Library {
  std::map<std::string, config::Value> models;     // by name, file defaults merged in
  std::map<std::string, std::string> by_spelling;  // normalised name or alias -> name
};

/// Lower case, brackets and organisation dropped, only letters, digits and dots kept.
std::string normalised(std::string_view name) {
  std::string out;
  int depth = 0;
  for (const char c : name) {
    if (c == '(' || c == '[')
      ++depth;
    else if (c == ')' || c == ']')
      depth = std::max(0, depth - 1);
    else if (depth > 0)
      continue;
    else if (c == '/')
      out.clear();
    else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.')
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

/// Own keys over the file's `defaults`; both are one level deep, so a nested map replaces a nested map.
config::Value with_defaults(const config::Value& model, const config::Value* defaults) {
  std::vector<config::Value::Entry> entries = model.entries();
  if (defaults != nullptr)
    for (const config::Value::Entry& entry : defaults->entries())
      if (model.find(entry.key) == nullptr) entries.push_back(entry);
  return config::Value::map(std::move(entries), model.place(), model.path());
}

void add_spelling(Library& library, const std::string& spelling, const std::string& name) {
  const auto [it, added] = library.by_spelling.emplace(normalised(spelling), name);
  EXPECTS(added || it->second == name,
          fmt::format("presets {} and {} share the name {}", name, it->second, spelling));
}

void add_file(Library& library, const std::string& stem) {
  const config::Document document = config::load_document(resource_root() / kFolder / (stem + ".yaml"));
  const config::Value* models = document.root.find("models");
  EXPECTS(models != nullptr, document.file + " has no models");
  for (const config::Value::Entry& entry : models->entries()) {
    EXPECTS(library.models.count(entry.key) == 0, "preset " + entry.key + " is there twice");
    library.models[entry.key] = with_defaults(entry.value, document.root.find("defaults"));
    add_spelling(library, entry.key, entry.key);
    if (const config::Value* aliases = entry.value.find("aliases"))
      for (const config::Value& alias : aliases->items()) add_spelling(library, alias.text(), entry.key);
  }
}

/// The preset of exactly this name, read from its own file: most commands ask for one model, and parsing all files takes longer
/// than many a simulation. Presets stand two spaces deep. Nothing when there is none.
const config::Value* preset_alone(const std::string& name) {
  static const std::map<std::string, std::string> texts = [] {   // by stem
    std::map<std::string, std::string> read;
    for (const std::string& stem : resource_names(kFolder, ".yaml")) read[stem] = config::read_text_file(resource_root() / kFolder / (stem + ".yaml"), kLargestFile);
    return read;
  }();
  static Remembered<std::string, Library> files;   // by stem
  for (const auto& [stem, text] : texts) {
    if (text.find("\n  " + name + ":") == std::string::npos) continue;
    const Library& file = files.get(stem, [&] {
      Library read;
      add_file(read, stem);
      return read;
    });
    if (const auto it = file.models.find(name); it != file.models.end()) return &it->second;
  }
  return nullptr;
}

/// Read once: the files are constant, and a table of a thousand rows asks for every row.
const Library& library() {
  static const Library all = [] {
    Library read;
    for (const std::string& stem : resource_names(kFolder, ".yaml")) add_file(read, stem);
    return read;
  }();
  return all;
}

/// The presets of a family that is all that was named: "Known: qwen3-0.6b, ... ". Empty when none or very many are.
std::string family_of(const std::string& name) {
  const auto letters = [](const std::string& text) {
    std::string out;
    for (const char c : text)
      if (std::isalnum(static_cast<unsigned char>(c)) != 0) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
  };
  constexpr std::size_t kLeast = 3, kMost = 16;   // letters; names
  const std::string start = letters(name);
  std::vector<std::string> family;
  for (const std::string& preset : preset_names())
    if (start.size() >= kLeast && letters(preset).starts_with(start)) family.push_back(preset);
  if (family.empty() || family.size() > kMost) return {};
  std::string text = "Known:";
  for (const std::string& member : family) text += (text.ends_with(':') ? " " : ", ") + member;
  return text + ". ";
}

/// `top` over `base`, placed where `top` is.
config::Value changed(const config::Value& base, const config::Value& top) {
  if (!base.is_map() || !top.is_map()) return top;
  std::vector<config::Value::Entry> entries;
  for (const config::Value::Entry& entry : base.entries())
    if (top.find(entry.key) == nullptr) entries.push_back(entry);
  for (const config::Value::Entry& entry : top.entries()) {
    const config::Value* below = base.find(entry.key);
    if (below != nullptr && entry.value.is_null()) continue;
    entries.push_back(below == nullptr ? entry : config::Value::Entry{entry.key, entry.key_place, changed(*below, entry.value)});
  }
  return config::Value::map(std::move(entries), top.place(), top.path());
}

/// "llama-3-8b with layers 8, hidden 2048", or no more than their number where they are many.
std::string changed_name(const std::string& preset, const config::Value& changes) {
  constexpr std::size_t kMost = 3;
  std::string said;
  std::size_t count = 0;
  for (const config::Value::Entry& entry : changes.entries()) {
    if (!entry.value.is_scalar()) said += fmt::format("{}{}", said.empty() ? "" : ", ", entry.key);
    else said += fmt::format("{}{} {}", said.empty() ? "" : ", ", entry.key, entry.value.text());
    ++count;
  }
  if (count == 0) return preset;
  return count > kMost ? fmt::format("{} with {} keys changed", preset, count) : preset + " with " + said;
}

const config::Value& model_named(const std::string& name) {
  if (const config::Value* exact = preset_alone(name)) return *exact;
  const std::optional<std::string> meant = preset_for(name);
  if (meant) return library().models.at(*meant);
  throw ConfigError(Diagnostic{
      {},
      "model",
      fmt::format("there is no preset \"{}\"", name),
      did_you_mean(name, preset_names(), family_of(name) + "`model list` shows all"),
      ""});
}

}  // namespace

ModelDescription load_preset(const std::string& name) {
  static Remembered<std::string, ModelDescription> presets;
  return presets.get(name, [&] {
    const config::Value& map = model_named(name);
    const std::size_t dot = map.path().find('.');  // "models.llama-3-8b"
    return read_model(map, map.path().substr(dot == std::string::npos ? 0 : dot + 1));
  });
}

ModelDescription load_preset(const std::string& name, const config::Value& changes) {
  const config::Value& preset = model_named(name);
  try {
    return read_model(changed(preset, changes), changed_name(preset_for(name).value_or(name), changes));
  } catch (const ConfigError& error) {
    // A size that the preset states is not the mistake: what was changed beside it is.
    std::vector<Diagnostic> there;
    for (const Diagnostic& d : error.diagnostics()) there.push_back(d.at.file == preset.at().file ? changes.diagnostic(d.problem, d.fix) : d);
    throw ConfigError(std::move(there));
  }
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : library().models) names.push_back(name);
  return names;
}

std::optional<std::string> preset_for(std::string_view model_name) {
  if (const std::string name(model_name); preset_alone(name) != nullptr) return name;
  std::string spelling = normalised(model_name);
  constexpr std::string_view suffixes[] = {"hf", "base", "instruct", "chat", "it"};
  while (true) {
    const auto it = library().by_spelling.find(spelling);
    if (it != library().by_spelling.end()) return it->second;
    const auto suffix = std::find_if(std::begin(suffixes), std::end(suffixes), [&](std::string_view s) {
      return spelling.size() > s.size() && spelling.ends_with(s);
    });
    if (suffix == std::end(suffixes)) return std::nullopt;
    spelling.resize(spelling.size() - suffix->size());
  }
}

PresetFacts preset_facts(const std::string& name) {
  const config::Value& map = model_named(name);
  PresetFacts facts;
  facts.name = load_preset(name).name;
  if (const config::Value* source = map.find("source")) facts.source = source->text();
  if (const config::Value* aliases = map.find("aliases"))
    for (const config::Value& alias : aliases->items()) facts.aliases.push_back(alias.text());
  if (const config::Value* parameters = map.find("parameters"))
    facts.parameters = whole_number(parameters->text());
  if (const config::Value* published = map.find("published")) {
    if (const config::Value* total = published->find("total"))
      facts.published_billions = real_number(total->text());
    if (const config::Value* active = published->find("active"))
      facts.published_active_billions = real_number(active->text());
  }
  return facts;
}

std::string describe_difference(const ModelDescription& a, const ModelDescription& b) {
  std::vector<std::string> list;
  const auto compare = [&](const char* what, const auto& ours, const auto& theirs) {
    if (ours != theirs) list.push_back(fmt::format("{} {} / {}", what, ours, theirs));
  };
  compare("family", a.family, b.family);
  compare("hidden", a.hidden, b.hidden);
  compare("heads", a.heads, b.heads);
  compare("kv_heads", a.kv_heads, b.kv_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("ffn_hidden", a.ffn_hidden, b.ffn_hidden);
  compare("vocab", a.vocab, b.vocab);
  compare("max_positions", a.max_positions, b.max_positions);
  compare("embedding_width", a.embedding_width, b.embedding_width);
  compare("gated_mlp", a.gated_mlp, b.gated_mlp);
  compare("activation", name_of(a.activation), name_of(b.activation));
  compare("norm", name_of(a.norm), name_of(b.norm));
  compare("norm_bias", a.norm_bias, b.norm_bias);
  compare("norm_weight", a.norm_weight, b.norm_weight);
  compare("norm_weight_in_fp32", a.norm_weight_in_fp32, b.norm_weight_in_fp32);
  compare("norms_per_layer", a.norms_per_layer, b.norms_per_layer);
  compare("norms_after", a.norms_after, b.norms_after);
  compare("embedding_norm", a.embedding_norm, b.embedding_norm);
  compare("final_norm", a.final_norm, b.final_norm);
  compare("qk_norm", a.qk_norm, b.qk_norm);
  compare("qk_norm_weight", a.qk_norm_weight, b.qk_norm_weight);
  compare("joint_qk_norm", a.joint_qk_norm, b.joint_qk_norm);
  compare("parallel_residual", a.parallel_residual, b.parallel_residual);
  compare("position", name_of(a.position), name_of(b.position));
  compare("rotary_dim", a.rotary_dim, b.rotary_dim);
  compare("qkv_bias", a.qkv_bias, b.qkv_bias);
  compare("attention_output_bias", a.attention_output_bias, b.attention_output_bias);
  compare("mlp_bias", a.mlp_bias, b.mlp_bias);
  compare("head_bias", a.head_bias, b.head_bias);
  compare("tied_embeddings", a.tied_embeddings, b.tied_embeddings);
  compare("fused_qkv", a.fused_qkv, b.fused_qkv);
  compare("attention_gate", a.attention_gate, b.attention_gate);
  compare("attention_sinks", a.attention_sinks, b.attention_sinks);
  compare("clamped_activation", a.clamped_activation, b.clamped_activation);
  compare("softcapped_logits", a.softcapped_logits, b.softcapped_logits);
  compare("learned_scales.branches", a.scales.branches, b.scales.branches);
  compare("learned_scales.embedding", a.scales.embedding, b.scales.embedding);
  compare("learned_scales.queries", a.scales.queries, b.scales.queries);
  compare("scaled_embedding", a.scaled_embedding, b.scaled_embedding);
  compare("dropout", a.dropout, b.dropout);
  compare("attention_dropout", a.attention_dropout, b.attention_dropout);
  compare("mtp_layers", a.mtp_layers, b.mtp_layers);
  compare("mtp_repeated", a.mtp_repeated, b.mtp_repeated);
  compare("layers", a.layer_count(), b.layer_count());
  compare("pattern", describe_layers(a), describe_layers(b));
  if (!(a.latent == b.latent)) list.emplace_back("latent attention");
  if (!(a.experts == b.experts)) list.emplace_back("experts");
  if (!(a.state_space == b.state_space)) list.emplace_back("state space");
  if (!(a.delta_net == b.delta_net)) list.emplace_back("delta rule");
  // A field that this list forgets must not look like agreement.
  ModelDescription same_name = b;
  same_name.name = a.name;
  if (list.empty() && !(a == same_name)) list.emplace_back("a field that describe_difference does not name");
  return fmt::format("{}", fmt::join(list, "; "));
}

}  // namespace rehearse::model
