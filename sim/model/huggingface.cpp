#include "sim/model/huggingface.h"

#include <fmt/format.h>

#include "sim/config/document.h"
#include "sim/model/huggingface_families.h"

namespace rehearse::model {

const Catalog<FamilyReader> kHuggingFaceFamilies{
    "Hugging Face model family",
    {
        {"llama", "Llama 1 to 3.x and models with the same layout (TinyLlama, Yi, SmolLM, ...)", read_llama},
        {"mistral", "Mistral 7B, Nemo, Small, Large", read_mistral},
        {"ministral", "Ministral: local and global layers", read_mistral},
        {"ministral3", "Ministral 3", read_ministral3},
        {"cwm", "Code World Model: three local layers of four", read_cwm},
        {"granite", "Granite 3: Llama with constant factors", read_granite},
        {"helium", "Helium", read_helium},
        {"arcee", "Arcee AFM: squared ReLU", read_arcee},
        {"smollm3", "SmolLM3: every fourth layer without positions", read_smollm3},
        {"seed_oss", "Seed-OSS", read_seed_oss},
        {"ernie4_5", "ERNIE 4.5, dense", read_ernie4_5},
        {"internlm2", "InternLM2: fused queries, keys and values", read_internlm2},
        {"glm", "GLM-4 of 2024: half of each head is rotated", read_glm},
        {"glm4", "GLM-4 of 2025: four norms a layer", read_glm4},
        {"olmo", "OLMo 1: norms without weights", read_olmo},
        {"olmo2", "OLMo 2: norms after attention and MLP, and over all heads", read_olmo2},
        {"olmo3", "OLMo 3: OLMo 2 with three local layers of four", read_olmo3},
        {"exaone4", "EXAONE 4: norms after attention and MLP", read_exaone4},
        {"cohere", "Command R: parallel residual behind one norm", read_cohere},
        {"cohere2", "Command R7B and A: three local layers of four", read_cohere2},
        {"stablelm", "StableLM 3B, 2: LayerNorm, a quarter of each head is rotated", read_stablelm},
        {"nemotron", "Nemotron-4, Minitron: squared ReLU", read_nemotron},
        {"nemotron_h", "Nemotron-H, Nemotron Nano 2 and 3: state-space mixers, attention, MLPs and experts as layers of their own", read_nemotron_h},
        {"bamba", "Bamba: state-space mixers in place of most attention", read_bamba},
        {"granitemoehybrid", "Granite 4: the same, with experts or without", read_granitemoehybrid},
        {"starcoder2", "StarCoder2: biases everywhere", read_starcoder2},
        {"mixtral", "Mixtral: every layer a mixture of experts", read_mixtral},
        {"qwen2", "Qwen 1.5, 2 and 2.5", read_qwen2},
        {"qwen3", "Qwen 3", read_qwen3},
        {"qwen2_moe", "Qwen 1.5 and 2 mixtures: shared expert behind a gate", read_qwen2_moe},
        {"qwen3_moe", "Qwen 3 mixtures", read_qwen3_moe},
        {"qwen3_next", "Qwen3-Next: delta rules in three layers of four, gated attention, experts", read_qwen3_next},
        {"qwen3_5_text", "Qwen 3.5: the same, dense", read_qwen3_5},
        {"qwen3_5_moe_text", "Qwen 3.5 mixtures", read_qwen3_5_moe},
        {"gemma", "Gemma 1", read_gemma},
        {"gemma2", "Gemma 2: four norms a layer, every other layer local", read_gemma2},
        {"gemma3_text", "Gemma 3: five local layers, one global", read_gemma3},
        {"olmoe", "OLMoE", read_olmoe},
        {"granitemoe", "Granite 3 mixtures", read_granitemoe},
        {"granitemoeshared", "Granite mixtures with a shared expert", read_granitemoe},
        {"phimoe", "Phi 3.5 MoE", read_phimoe},
        {"minimax_m2", "MiniMax-M2: norms over all heads", read_minimax_m2},
        {"ernie4_5_moe", "ERNIE 4.5 mixtures", read_ernie4_5_moe},
        {"dots1", "dots.llm1: DeepSeek's experts under multi-head attention", read_dots1},
        {"solar_open", "Solar Open: the same experts in every layer", read_solar_open},
        {"glm4_moe", "GLM-4.5 and 4.6: DeepSeek's experts under grouped attention", read_glm4_moe},
        {"gpt2", "GPT-2, Cerebras-GPT", read_gpt2},
        {"gpt_bigcode", "StarCoder 1, Granite 20B code: multi-query", read_gpt_bigcode},
        {"gpt_neo", "GPT-Neo: every other layer local", read_gpt_neo},
        {"gptj", "GPT-J: parallel residual behind one norm", read_gptj},
        {"codegen", "CodeGen: GPT-J's layout, fused queries, keys and values", read_codegen},
        {"mpt", "MPT: ALiBi, no biases", read_mpt},
        {"persimmon", "Persimmon: squared ReLU, norms on queries and keys", read_persimmon},
        {"gpt_neox", "GPT-NeoX, Pythia, StableLM-alpha: parallel residual", read_gpt_neox},
        {"falcon", "Falcon: multi-query, grouped (40B and later) and ALiBi (RW) generations", read_falcon},
        {"opt", "OPT", read_opt},
        {"bloom", "BLOOM: ALiBi", read_bloom},
        {"phi", "Phi 1, 1.5, 2: parallel residual", read_phi},
        {"phi3", "Phi 3 and 3.5 (dense)", read_phi3},
        {"deepseek_v2", "DeepSeek-V2: latent attention", read_deepseek_v2},
        {"deepseek_v3", "DeepSeek-V3 and R1: latent attention, multi-token prediction", read_deepseek_v3},
        {"glm4_moe_lite", "GLM-4.7-Flash: DeepSeek-V3's layout", read_glm4_moe_lite},
        {"youtu", "Youtu-LLM: latent attention, dense", read_youtu},
        {"kimi_k2", "Kimi-K2: DeepSeek-V3's layout", read_deepseek_v3},
        {"gpt_oss", "GPT-OSS: attention sinks, every other layer local", read_gpt_oss},
        {"llama4_text", "Llama 4, text part: chunked attention, layers without positions", read_llama4},
    }};

namespace {

constexpr const char* kConfigFile = "config.json";

/// What a multimodal file calls itself, and what its text part is when that does not say.
std::string text_family(const std::string& model_type) {
  if (model_type == "gemma3") return "gemma3_text";
  if (model_type == "llama4") return "llama4_text";
  if (model_type == "qwen3_5" || model_type == "qwen3_5_moe") return model_type + "_text";
  if (model_type == "mistral3") return "mistral";
  if (model_type == "qwen2_vl_text" || model_type == "qwen2_5_vl_text" || model_type == "qwen2_vl" || model_type == "qwen2_5_vl") return "qwen2";
  if (model_type == "qwen3_vl_text") return "qwen3";
  if (model_type == "qwen3_vl_moe_text") return "qwen3_moe";
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
                      // The library wrote the word: a family whose name is near has another shape.
                      fmt::format("Supported: {}", fmt::join(names, ", ")));
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
  result.text_part_only = nested != nullptr;
  return result;
}

ImportedModel import_huggingface(const std::filesystem::path& path) {
  std::error_code unknown;   // reading the file says what is wrong with it
  const std::filesystem::path file = std::filesystem::is_directory(path, unknown) ? path / kConfigFile : path;
  const config::Document document = config::load_document(file);
  ImportedModel result = import_huggingface(document.root, {});
  if (!result.model.name.empty()) return result;
  // Every model's file is called config.json: its folder has the model's name.
  const std::filesystem::path folder = std::filesystem::absolute(file, unknown).lexically_normal().parent_path();
  result.model.name = file.filename() == kConfigFile && folder.has_filename() ? folder.filename().string() : file.stem().string();
  return result;
}

bool means_config_file(const std::filesystem::path& given) {
  std::error_code unknown;
  return given.extension() == ".json" || std::filesystem::is_regular_file(given / kConfigFile, unknown);
}

std::vector<HuggingFaceFamily> huggingface_families() {
  std::vector<HuggingFaceFamily> list;
  for (const auto& entry : kHuggingFaceFamilies.entries()) list.push_back({entry.name, entry.summary});
  return list;
}

}  // namespace rehearse::model
