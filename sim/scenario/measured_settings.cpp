#include "sim/scenario/measured_settings.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/config/fields.h"
#include "sim/scenario/measured_row.h"
#include "sim/scenario/scenario_file.h"
#include "strategies/data/catalog.h"
#include "strategies/stage_layers.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

const config::Fields<model::ModelDescription>& model_fields() {
  using M = model::ModelDescription;
  static const config::Fields<M> table{
      config::number("dropout", &M::dropout, "of the residual branches", config::between(0, 1)),
      config::number("attention_dropout", &M::attention_dropout, "of attention's probabilities", config::between(0, 1)),
      config::boolean("embedding_norm", &M::embedding_norm, "a norm follows the embedding"),
      config::integer("max_positions", &M::max_positions, "rows of a table of positions", config::non_negative),
      config::choice("activation", &M::activation, "of the MLP", {{"gelu_tanh", model::Activation::gelu_tanh, ""}}),
      config::choice("position", &M::position, "of tokens", {{"alibi", model::Position::alibi, ""}, {"rotary", model::Position::rotary, ""}}),
      config::integer("rotary_dim", &M::rotary_dim, "of each head, how much rotates", config::non_negative),
  };
  return table;
}

/// "layers per stage 4,4,5,3": the numbers; none where one of them is not a number of up to four digits.
/// Read by hand: std::regex recurses for every repetition, and a cell may be of any length.
std::vector<std::int64_t> stage_list(const std::string& note, std::size_t from) {
  constexpr std::size_t kDigits = 4;
  std::istringstream list(note.substr(from, note.find_first_not_of("0123456789,", from) - from));
  std::vector<std::int64_t> layers;
  for (std::string number; std::getline(list, number, ',');) {
    if (number.empty() || number.size() > kDigits) return {};
    layers.push_back(std::stoi(number));
  }
  return layers;
}

/// What the note says of the stages' layers, where it has a number for every stage and they add up to the model's; a note is left where not.
void apply_stage_layers(const std::string& note, int stages, Scenario& s) {
  constexpr std::string_view kWords = "layers per stage ";
  constexpr std::string_view kLayout = "layout E";
  if (const std::size_t words = note.find(kLayout); words != std::string::npos) {
    const std::size_t from = words + kLayout.size() - 1;
    const model::PipelineLayout layout = model::read_pipeline_layout(note.substr(from, note.find_first_not_of("EtmL|()*0123456789", from) - from));
    if (layout.total() == s.model.layer_count() && st::take_layout(layout, stages, s.strategy.pipeline)) return;
    s.notes.emplace_back("the stated pipeline layout is not one of as many stages and layers, and is passed over");
  }
  static const std::regex kEnds(R"(first stage ([0-9]{1,4}) layers, last ([0-9]{1,4}))");
  std::vector<std::int64_t> layers;
  std::smatch ends;
  if (const std::size_t words = note.find(kWords); words != std::string::npos) {
    layers = stage_list(note, words + kWords.size());
  } else if (std::regex_search(note, ends, kEnds)) {
    const std::int64_t first = std::stoi(ends[1].str()), last = std::stoi(ends[2].str()), middle = s.model.layer_count() - first - last;
    if (stages > 2 && middle >= 0 && middle % (stages - 2) == 0) {
      layers.assign(static_cast<std::size_t>(stages), middle / (stages - 2));
      layers.front() = first, layers.back() = last;
    }
  } else {
    return;
  }
  const bool usable = s.strategy.pipeline.virtual_stages <= 1 && std::ssize(layers) == stages && std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) == s.model.layer_count();
  if (usable) s.strategy.pipeline.layers_per_stage = std::move(layers);
  else s.notes.emplace_back("the stated layers per stage are not those of as many stages and layers, and are passed over");
}

void apply_stages(const std::string& note, Scenario& s) {
  const int stages = s.strategy.parallelism.degrees.pipeline;
  if (stages < 2) return;
  // torch.distributed.pipelining runs the schedules of all three.
  std::string& schedule = s.strategy.pipeline.schedule;
  const bool pytorch = s.profile.name.starts_with("torchtitan") || s.profile.name.starts_with("nemo-automodel") || s.profile.name.starts_with("kempnerforge");
  if (pytorch && (schedule == "1f1b" || schedule == "interleaved-1f1b")) schedule = "pytorch-" + schedule;
  static const std::regex kLocal(R"(local batch ([0-9]{1,6}))");   // samples that one run of PyTorch's schedule takes
  std::smatch local;
  if (s.profile.name.starts_with("nemo-automodel") && std::regex_search(note, local, kLocal)) {
    const std::int64_t samples = std::stoll(local[1].str()), all = s.strategy.training.global_batch_size / s.strategy.parallelism.degrees.data;
    if (samples > 0 && all % samples == 0) s.strategy.pipeline.accumulation_steps = static_cast<int>(all / samples);
  }
  apply_stage_layers(note, stages, s);
}

std::vector<std::string> words_between_commas(const std::string& list) {
  std::vector<std::string> words(1);
  for (const char c : list) {
    if (c == ',') words.emplace_back();
    else if (c != ' ') words.back() += c;
  }
  return words;
}

void apply_recomputed_modules(const std::string& note, st::Memory& memory) {
  static const std::regex kModules(R"(recompute_modules ([a-z_]{1,40}(?:,[a-z_]{1,40}){0,15}))");
  std::smatch found;
  if (memory.recompute != st::Recompute::selective || !std::regex_search(note, found, kModules) || found[1] == "default") return;
  memory.recompute_modules = words_between_commas(found[1].str());
}

/// Megatron's fine-grained offloading: `offload_modules [expert_fc1, moe_act]`.
void apply_offloaded_modules(const std::string& note, st::Memory& memory) {
  static const std::regex kModules(R"(offload_modules \[([a-z0-9_]{1,40}(?:, ?[a-z0-9_]{1,40}){0,7})\])");
  std::smatch found;
  if (memory.offload.activations != st::MemoryTier::cpu || !std::regex_search(note, found, kModules)) return;
  memory.offload.activations = st::Offload{}.activations;   // of whole layers
  memory.offload.modules = words_between_commas(found[1].str());
}

/// Further tokens that the job learns to predict, of models whose published form has no layers for them.
void apply_predictions(const std::string& note, Scenario& s) {
  static const std::regex kLayers(R"(mtp[-_]num[-_]layers[ =]([0-9]{1,2})\b)");
  std::smatch found;
  if (!std::regex_search(note, found, kLayers)) return;
  s.model.mtp_layers = std::stoll(found[1].str());
  s.strategy.training.multi_token_prediction = s.model.mtp_layers > 0;
}

/// NeMo 24.x with Megatron-Core's optimizer in place of Apex's: its buckets (megatron/core/distributed: max(40 M, 1 M x data-parallel
/// size) parameters) and fp32 copies of the parameters (core 0.9 to 0.10, optimizer/distrib_optimizer.py; no store_param_remainders).
void apply_megatron_optimizer(st::FrameworkProfile& profile) {
  const st::FrameworkProfile megatron = st::load_profile("megatron-bridge");
  profile.bucket_by_layer = megatron.bucket_by_layer;
  profile.bucket_elements = megatron.bucket_elements;
  profile.bucket_elements_per_rank = megatron.bucket_elements_per_rank;
  profile.parameter_remainders = megatron.parameter_remainders;
}

/// NVLink SHARP, as the note has it. NVIDIA's recipes switch it off "to save memory": NeMo-Framework-Launcher launcher_scripts/conf/config.yaml,
/// NVIDIA/NeMo at v2.0.0 to v2.3.0 (examples/llm/pretrain/default_executor.py, scripts/performance/utils.py), 415 of 431 of Megatron-Bridge's
/// src/megatron/bridge/perf_recipes; the others are GPT-OSS on Blackwell, and Megatron-FSDP with user buffers. MLPerf's scripts have it both ways.
void apply_nvls(const config::CsvRow& row, const std::string& note, Scenario& s) {
  const std::string framework = cell(row, "framework");
  const bool recipe = (framework == "nemo" || framework == "megatron-bridge") && !contains(cell(row, "source"), "training_results");
  const bool kept = contains(note, "NCCL_NVLS_ENABLE=1") || s.model.family == "gpt_oss" || s.strategy.data_parallel.kind == st::DataParallelKind::megatron_fsdp;
  if (contains(note, "NCCL_NVLS_ENABLE=0") || (recipe && !kept)) s.communication.nvls = false;
}

std::string word_of(st::DataParallelKind kind) {
  const auto& all = st::data_parallel_kinds().entries();
  const auto it = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.value == kind; });
  return it == all.end() ? "" : it->name;
}

}  // namespace

void apply_readings(const std::string& name, const RowFacts& facts, Scenario& s) {
  each_rule(name, facts, [&](const RowRule& rule, const RowKeys& keys) {
    if (!keys.profile.is_null()) s.profile = st::with_keys(std::move(s.profile), keys.profile);
    if (!keys.scenario.is_null()) amend_strategy(s.strategy, keys.scenario);
    config::Diagnostics problems;
    if (!keys.model.is_null()) config::amend(s.model, keys.model, model_fields(), problems);
    config::throw_if_any(std::move(problems));
    if (!rule.note.empty()) s.notes.push_back(rule.note);
  });
}

void apply_stated_settings(const config::CsvRow& row, Scenario& s) {
  const std::string note = cell(row, "note");
  const st::Recompute recompute = s.strategy.memory.recompute;
  apply_readings("settings",
                 RowFacts(row)
                     .with("profile", s.profile.name)
                     .with("experts", s.model.experts.experts > 0 ? "y" : "n")
                     .with("sharded", word_of(s.strategy.data_parallel.kind))
                     .with("recompute", recompute == st::Recompute::full ? "full" : recompute == st::Recompute::selective ? "selective" : "none"),
                 s);
  apply_stages(note, s);
  apply_recomputed_modules(note, s.strategy.memory);
  apply_offloaded_modules(note, s.strategy.memory);
  apply_predictions(note, s);
  apply_nvls(row, note, s);
  if (contains(note, "mcore_distributed_optim") && s.profile.name == "nemo-2024") apply_megatron_optimizer(s.profile);
}

}  // namespace rehearse::scenario
