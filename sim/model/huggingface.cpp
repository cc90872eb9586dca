#include "sim/model/huggingface.h"

#include <fmt/format.h>

#include "sim/config/document.h"
#include "sim/core/suggestion.h"
#include "sim/model/huggingface_families.h"

namespace rehearse::model {

const Catalog<FamilyReader> kHuggingFaceFamilies{
    "Hugging Face model family",
    {
        {"llama", "Llama 1 to 3.x and models with the same layout (TinyLlama, Yi, SmolLM, ...)", read_llama},
        {"mistral", "Mistral 7B, Nemo, Small, Large", read_mistral},
        {"mixtral", "Mixtral: every layer a mixture of experts", read_mixtral},
        {"qwen2", "Qwen 1.5, 2 and 2.5", read_qwen2},
        {"qwen3", "Qwen 3", read_qwen3},
        {"qwen2_moe", "Qwen 1.5 and 2 mixtures: shared expert behind a gate", read_qwen2_moe},
        {"qwen3_moe", "Qwen 3 mixtures", read_qwen3_moe},
        {"gemma", "Gemma 1", read_gemma},
        {"gemma2", "Gemma 2: four norms a layer, every other layer local", read_gemma2},
        {"gemma3_text", "Gemma 3: five local layers, one global", read_gemma3},
        {"gpt2", "GPT-2", read_gpt2},
        {"gpt_neox", "GPT-NeoX, Pythia, StableLM-alpha: parallel residual", read_gpt_neox},
        {"falcon", "Falcon: multi-query, grouped (40B and later) and ALiBi (RW) generations", read_falcon},
        {"opt", "OPT", read_opt},
        {"bloom", "BLOOM: ALiBi", read_bloom},
        {"phi", "Phi 1, 1.5, 2: parallel residual", read_phi},
        {"phi3", "Phi 3 and 3.5 (dense)", read_phi3},
        {"deepseek_v2", "DeepSeek-V2: latent attention", read_deepseek_v2},
        {"deepseek_v3", "DeepSeek-V3 and R1: latent attention, multi-token prediction", read_deepseek_v3},
        {"kimi_k2", "Kimi-K2: DeepSeek-V3's layout", read_deepseek_v3},
        {"gpt_oss", "GPT-OSS: attention sinks, every other layer local", read_gpt_oss},
        {"llama4_text", "Llama 4, text part: chunked attention, layers without positions", read_llama4},
    }};

namespace {

/// What a multimodal file calls itself, and what its text part is when that does not say.
std::string text_family(const std::string& model_type) {
  if (model_type == "gemma3") return "gemma3_text";
  if (model_type == "llama4") return "llama4_text";
  if (model_type == "mistral3") return "mistral";
  return model_type;
}

bool has_layer_count(const config::Value& object) {
  return object.find("num_hidden_layers") != nullptr || object.find("n_layer") != nullptr;
}

std::string text_of(const config::Value& object, const char* key) {
  const config::Value* value = object.find(key);
  return value != nullptr && value->is_scalar() ? value->text() : std::string();
}

/// What is said of the fields around a nested text_config.
void report_wrapper(const config::Value& top, ImportReport& report) {
  for (const config::Value::Entry& entry : top.entries()) {
    const ImportNote note{entry.value.at(), entry.value.path(), ""};
    if (entry.key == "text_config")
      report.used.push_back(
          {note.at, note.key, "the language model; everything else in the file is around it"});
    else if (entry.key == "vision_config" || entry.key == "audio_config")
      report.ignored.push_back({note.at, note.key, "only the language model is simulated"});
    else if (entry.key == "tie_word_embeddings" && top.find("text_config")->find(entry.key) == nullptr)
      report.used.push_back({note.at, note.key, entry.value.text()});
    else
      report.ignored.push_back({note.at, note.key, "belongs to the multimodal wrapper"});
  }
}

Diagnostic unknown_family(const config::Value& object, const std::string& model_type) {
  const config::Value* value = object.find("model_type");
  const std::vector<std::string> names = kHuggingFaceFamilies.names();
  const std::string problem = model_type.empty()
                                  ? "missing (the field names mean different things in different families)"
                                  : fmt::format("\"{}\" is not a supported family", model_type);
  Diagnostic diagnostic =
      (value != nullptr ? *value : object)
          .diagnostic(problem,
                      did_you_mean(model_type, names, fmt::format("Supported: {}", fmt::join(names, ", "))));
  if (value == nullptr) diagnostic.key = config::child_path(object.path(), "model_type");
  return diagnostic;
}

}  // namespace

ImportedModel import_huggingface(const config::Value& config, const std::string& name) {
  if (!config.is_map())
    throw ConfigError(config.diagnostic("is not a config.json (a JSON object was expected)"));
  const config::Value* nested = has_layer_count(config) ? nullptr : config.find("text_config");
  if (nested != nullptr && !nested->is_map()) nested = nullptr;
  const config::Value& object = nested != nullptr ? *nested : config;

  std::string model_type = text_of(object, "model_type");
  if (model_type.empty()) model_type = text_of(config, "model_type");
  const FamilyReader* reader = kHuggingFaceFamilies.find(text_family(model_type));
  if (reader == nullptr) throw ConfigError(unknown_family(object, model_type));

  ModelFields fields(object);
  ImportedModel result;
  result.model = (*reader)(fields);
  fields.refuse_if_set("per_layer_config",
                       "per-layer overrides are not supported (layers would differ in shape)");
  fields.refuse_if_set("is_encoder_decoder", "encoder-decoder models are not supported");
  // A wrapper may hold the tying for the part inside; the class of the text part would otherwise decide.
  if (nested != nullptr && object.find("tie_word_embeddings") == nullptr) {
    const std::string tied = text_of(config, "tie_word_embeddings");
    if (!tied.empty()) result.model.tied_embeddings = tied == "true";
  }
  result.model.name = !name.empty() ? name : text_of(config, "_name_or_path");

  std::vector<Diagnostic> mistakes = fields.take_mistakes();
  if (mistakes.empty())
    for (const std::string& problem : problems_of(result.model))
      mistakes.push_back(object.diagnostic(problem));
  if (!mistakes.empty()) throw ConfigError(std::move(mistakes));
  result.report = fields.take_report(reason_to_ignore);
  if (nested != nullptr) report_wrapper(config, result.report);
  return result;
}

ImportedModel import_huggingface(const std::filesystem::path& path) {
  const config::Document document = config::load_document(path);
  ImportedModel result = import_huggingface(document.root, {});
  if (result.model.name.empty()) result.model.name = path.stem().string();
  return result;
}

std::vector<HuggingFaceFamily> huggingface_families() {
  std::vector<HuggingFaceFamily> list;
  for (const auto& entry : kHuggingFaceFamilies.entries()) list.push_back({entry.name, entry.summary});
  return list;
}

}  // namespace rehearse::model
