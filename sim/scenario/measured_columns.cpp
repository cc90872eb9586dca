#include "sim/scenario/measured_columns.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/core.h>

#include "sim/model/presets.h"
#include "sim/model/shapes.h"

namespace rehearse::scenario {

namespace st = strategies;

void check_counts(const config::CsvRow& row) {
  const auto check = [&](std::string_view column, double least, double most) {
    const auto number = row.find(column) ? row.number(column) : std::nullopt;
    if (number && !(*number >= least && *number <= most)) throw NotSimulated{fmt::format("{} {} is not between {} and {}", column, cell(row, column), least, most)};
  };
  for (const char* degree : {"tp", "pp", "vpp", "cp", "ep", "etp", "dp"}) check(degree, 1, 20'000);
  for (const char* count : {"n_gpus", "gpus_per_node", "seq_len", "micro_batch", "global_batch", "grad_accum"}) check(count, 1, 1e9);
  for (const char* size : {"layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ffn_hidden", "n_experts", "top_k", "moe_ffn_hidden", "shared_expert_ffn"}) check(size, 0, 1e9);
}

bool asynchronous_tensor(const config::CsvRow& row) { return contains(cell(row, "note"), "async TP"); }

std::string release_of(const config::CsvRow& row) {
  std::string source = cell(row, "source");
  if (contains(source, "Pythia")) return "pythia";   // one set of configurations
  if (!contains(source, "NeMo Container") && !contains(source, "NeMo 2")) source = cell(row, "note");
  const std::size_t end = source.find(" NeMo Container"), named = source.find("NeMo 2");
  if (end == std::string::npos && named != std::string::npos) return source.substr(named + 5, source.find_first_not_of("0123456789.", named + 5) - named - 5);
  if (end == std::string::npos) return "";
  const std::size_t begin = source.find_last_not_of("0123456789.", end - 1);
  return source.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1));
}

model::ModelDescription model_of(const config::CsvRow& row, const std::string& profile, std::vector<std::string>& notes) {
  model::Shapes shapes;
  shapes.name = cell(row, "model");
  shapes.layers = integer(row, "layers").value_or(0);
  shapes.hidden = integer(row, "hidden").value_or(0);
  shapes.heads = integer(row, "heads").value_or(0);
  shapes.vocab = integer(row, "vocab").value_or(0);
  // FPDT's runs take GPT-2's tokenizer (deepspeedai/Megatron-DeepSpeed examples_deepspeed/sequence_parallel, --vocab-file gpt2-vocab.json): with Llama
  // 3's vocabulary the logits of 65536 tokens, their fp32 copy and its softmax alone would take 78 GiB of 80.
  if (shapes.vocab > 50257 && contains(cell(row, "source"), "ulysses-offload")) {
    shapes.vocab = 50257;
    notes.emplace_back("vocabulary taken as GPT-2's 50257, which Megatron-DeepSpeed's scripts for these runs have");
  }
  shapes.kv_heads = integer(row, "kv_heads");
  shapes.head_dim = integer(row, "head_dim");
  shapes.ffn_hidden = integer(row, "ffn_hidden");
  shapes.max_positions = integer(row, "seq_len").value_or(0);
  shapes.experts = integer(row, "n_experts").value_or(0);
  shapes.top_k = integer(row, "top_k").value_or(0);
  shapes.moe_ffn_hidden = integer(row, "moe_ffn_hidden");
  shapes.shared_ffn_hidden = integer(row, "shared_expert_ffn").value_or(0);
  const std::string gated = cell(row, "gated_mlp"), tied = cell(row, "tie_embeddings");
  shapes.gated = gated.starts_with("y");
  if (!tied.empty()) shapes.tied = tied.starts_with("y") || tied == "True" || tied == "true" || tied == "1";
  else if (const std::string said = lower(cell(row, "params")); contains(said, "tied") && !contains(said, "untied")) shapes.tied = true;  // "1.11B (tied embeddings)"
  const auto preset = model::preset_for(shapes.name);
  if (preset) {
    const model::ModelDescription named = model::load_preset(*preset);
    if (gated.empty() || named.gated_mlp == shapes.gated) return model::with_sizes(named, shapes);
  }
  if (shapes.layers == 0 || shapes.hidden == 0 || shapes.heads == 0) throw NotSimulated{"the shapes of '" + shapes.name + "' are not stated and it is no preset"};
  if (shapes.vocab == 0) {
    shapes.vocab = is_megatron(profile) ? 50257 : shapes.gated ? 32000 : 50257;
    notes.push_back(fmt::format("vocabulary not stated, taken as {}", shapes.vocab));
  }
  if (!shapes.tied && profile.starts_with("nanotron")) shapes.tied = false;
  return model::make_from_shapes(shapes);
}

st::Precision precision_of(const std::string& word) {
  static const std::map<std::string, st::Precision> known{{"fp32", st::Precision::fp32}, {"tf32", st::Precision::tf32}, {"fp16", st::Precision::fp16}, {"bf16", st::Precision::bf16},
                                                          {"fp8", st::Precision::fp8}, {"fp8-rowwise", st::Precision::fp8_rowwise}, {"mxfp8", st::Precision::mxfp8}, {"nvfp4", st::Precision::nvfp4}};
  if (const auto it = known.find(word); it != known.end()) return it->second;
  // "BF16 mixed", "bf16-true", "float16"
  const std::string text = lower(word);
  if (contains(text, "bf16") || contains(text, "bfloat16")) return st::Precision::bf16;
  if (contains(text, "fp16") || contains(text, "float16")) return st::Precision::fp16;
  throw NotSimulated{"precision '" + word + "' is not simulated yet"};
}

st::DataParallelKind kind_of(const std::string& word, const st::FrameworkProfile& with, int data) {
  using K = st::DataParallelKind;
  const std::string& profile = with.name;
  const bool megatron = is_megatron(profile) || profile.starts_with("nanotron");
  if (word == "none" || word.empty()) return data > 1 ? (word.empty() && is_nvidia_recipe(profile) ? K::distributed_optimizer : K::ddp) : K::none;
  if (word == "zero1") return megatron && profile != "megatron-deepspeed" ? K::distributed_optimizer : K::zero1;
  if (word == "zero2") return K::zero2;
  if (word == "zero3") return K::zero3;
  if (word == "fsdp" && (profile == "megatron-core" || is_nvidia_recipe(profile))) return K::megatron_fsdp;
  if (word == "fsdp" || word == "hsdp") return with.fsdp2 ? K::fsdp2 : K::fsdp1;
  if (word == "megatron-fsdp") return K::megatron_fsdp;
  throw NotSimulated{"sharding '" + word + "' is not simulated yet"};
}

st::Pipeline pipeline_of(const config::CsvRow& row, int stages, std::int64_t layers, std::vector<std::string>& notes) {
  std::string name = cell(row, "pp_schedule");
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static const std::pair<const char*, const char*> kNames[] = {
      {"zb-1p", "zb-1p"}, {"zb1p", "zb-1p"}, {"zb-h1", "zb-h1"}, {"zb-2p", "zb-2p"}, {"zb2p", "zb-2p"}, {"zb-h2", "zb-h2"}, {"zb-v", "zb-v"}, {"zbv", "zb-v"},
      {"dualpipev", "dualpipev"}, {"dualpipe", "dualpipe"}, {"gpipe", "gpipe"}};
  st::Pipeline pipeline;
  pipeline.virtual_stages = static_cast<int>(integer(row, "vpp").value_or(1));
  pipeline.schedule = pipeline.virtual_stages > 1 ? "interleaved-1f1b" : "1f1b";
  bool known = name.empty() || name.starts_with("1f1b") || name.starts_with("interleaved");
  for (const auto& [theirs, ours] : kNames)
    if (name.starts_with(theirs)) {
      known = true;
      pipeline.schedule = ours;
      pipeline.virtual_stages = 1;
      // The paper's own implementation lets every stage go on by itself, unless the row says that it synchronises.
      pipeline.post_validation = name.starts_with("zb") && !contains(name, "synchronised");
      break;
    }
  if (!known) notes.push_back(fmt::format("pipeline schedule '{}' is none that is known here, taken as {}", name, pipeline.schedule));
  else if (contains(name, "interleaved") && integer(row, "vpp") == 1) notes.emplace_back("interleaved schedule of one chunk per rank, taken as 1f1b");
  if (contains(cell(row, "note"), "first and last stage hold one layer fewer") && pipeline.virtual_stages == 1 && (layers + 2) % stages == 0) {
    pipeline.layers_per_stage.assign(static_cast<std::size_t>(stages), (layers + 2) / stages);
    --pipeline.layers_per_stage.front();
    --pipeline.layers_per_stage.back();
  }
  return pipeline;
}

std::optional<std::int64_t> ranks_of_test(const config::CsvRow& row, std::int64_t ranks) {
  const auto micro = integer(row, "micro_batch"), global = integer(row, "global_batch");
  if (!is_megatron_test(row) || !micro || !global || *global >= *micro * ranks || *global % *micro != 0) return std::nullopt;
  return *global / *micro;
}

}  // namespace rehearse::scenario
