#include "sim/scenario/megatron_command.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "sim/config/document.h"
#include "sim/config/reader.h"
#include "sim/importers/argument_text.h"
#include "sim/importers/readers.h"
#include "sim/scenario/import_section.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// A command that grows by what it does not state.
class Command {
 public:
  explicit Command(const config::Value& stated) : stated_(stated), all_(stated.entries()) {}

  bool states(std::initializer_list<const char*> names) const {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return stated_.find(name) != nullptr; });
  }
  void add(const char* name, std::string value) {
    if (!states({name})) all_.push_back({name, {}, config::Value::scalar(std::move(value), false, stated_.place(), name)});
  }
  void add(const char* name, std::int64_t value) { add(name, std::to_string(value)); }
  void add_flag(const char* name, bool on) {
    if (on) add(name, "true");
  }
  config::Value take() { return config::Value::map(std::move(all_), stated_.place(), stated_.path()); }

 private:
  const config::Value& stated_;
  std::vector<config::Value::Entry> all_;
};

void add_experts(const model::ModelDescription& m, Command& c) {
  if (m.experts.experts == 0) return;
  c.add("num_experts", m.experts.experts);
  c.add("moe_router_topk", m.experts.top_k);
  c.add("moe_ffn_hidden_size", m.experts.ffn_hidden);
  if (c.states({"moe_layer_freq"})) return;
  std::vector<int> kinds;
  for (const model::Layer& layer : m.layers) kinds.push_back(layer.moe ? 1 : 0);
  c.add("moe_layer_freq", fmt::format("[{}]", fmt::join(kinds, ",")));
}

/// Windows of one width, on some layers or on all.
void add_windows(const model::ModelDescription& m, Command& c) {
  std::int64_t width = 0;
  std::vector<int> kinds;
  for (const model::Layer& layer : m.layers) {
    width = std::max(width, layer.window);
    kinds.push_back(layer.window > 0 ? 1 : 0);
  }
  if (width == 0 || c.states({"window_size"})) return;
  c.add("window_size", fmt::format("{},0", width - 1));
  c.add("window_attn_skip_freq", fmt::format("[{}]", fmt::join(kinds, ",")));
}

void add_model(const model::ModelDescription& m, Command& c) {
  c.add("num_layers", m.layer_count());
  c.add("hidden_size", m.hidden);
  c.add("num_attention_heads", m.heads);
  c.add("ffn_hidden_size", m.ffn_hidden);
  c.add("vocab_size", m.vocab);
  if (!c.states({"multi_latent_attention"})) {
    c.add("kv_channels", m.head_dim);
    c.add_flag("group_query_attention", m.kv_heads < m.heads);
    if (m.kv_heads < m.heads) c.add("num_query_groups", m.kv_heads);
  }
  if (!c.states({"swiglu", "gated_linear_unit", "squared_relu"})) {
    c.add_flag("swiglu", m.gated_mlp);
    c.add_flag("squared_relu", !m.gated_mlp && m.activation == model::Activation::squared_relu);
  }
  if (!c.states({"apply_layernorm_rms"})) c.add("normalization", m.norm == model::Norm::rms_norm ? "RMSNorm" : "LayerNorm");
  if (!c.states({"position_embedding_type", "use_rotary_position_embeddings"})) c.add("position_embedding_type", m.position == model::Position::rotary ? "rope" : m.position == model::Position::learned ? "learned_absolute" : "none");
  if (m.position == model::Position::learned) c.add("max_position_embeddings", m.max_positions);
  if (!c.states({"add_bias_linear"})) c.add_flag("disable_bias_linear", !m.mlp_bias);
  c.add_flag("add_qkv_bias", m.qkv_bias);
  c.add_flag("qk_layernorm", m.qk_norm);
  c.add_flag("untie_embeddings_and_output_weights", !m.tied_embeddings);
  if (m.attention_sinks) c.add("softmax_type", "learnable");
  if (m.clamped_activation) c.add("activation_func_clamp_value", 7);
  add_windows(m, c);
  add_experts(m, c);
}

void add_degrees(const st::Strategy& s, Command& c) {
  const st::Degrees& d = s.parallelism.degrees;
  c.add("tensor_model_parallel_size", d.tensor);
  c.add("pipeline_model_parallel_size", d.pipeline);
  c.add("context_parallel_size", d.context);
  c.add("expert_model_parallel_size", d.expert);
  if (d.expert > 1) c.add("expert_tensor_parallel_size", d.expert_tensor);
  c.add_flag("sequence_parallel", s.parallelism.sequence_parallel);
  const bool counted = c.states({"num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"});
  if (s.pipeline.virtual_stages > 1 && !counted) c.add("num_virtual_stages_per_pipeline_rank", s.pipeline.virtual_stages);
  if (s.data_parallel.kind == st::DataParallelKind::distributed_optimizer) c.add_flag("use_distributed_optimizer", true);
  if (s.data_parallel.kind == st::DataParallelKind::megatron_fsdp) {
    c.add_flag("use_megatron_fsdp", true);
    c.add("data_parallel_sharding_strategy", "optim_grads_params");
  }
}

void add_precision(st::Precision precision, Command& c) {
  if (precision == st::Precision::fp16) return c.add_flag("fp16", true);
  c.add_flag("bf16", precision != st::Precision::fp32 && precision != st::Precision::tf32);
  if (precision == st::Precision::nvfp4) c.add("fp4_format", "e2m1");
  if (precision == st::Precision::fp8 || precision == st::Precision::mxfp8) c.add("fp8_format", "hybrid");
  if (precision == st::Precision::mxfp8) c.add("fp8_recipe", "mxfp8");
}

void add_recomputation(const st::Memory& memory, Command& c) {
  if (memory.recompute == st::Recompute::none || c.states({"recompute_granularity", "recompute_activations"})) return;
  const bool full = memory.recompute == st::Recompute::full;
  c.add("recompute_granularity", full ? "full" : "selective");
  if (full) c.add("recompute_method", memory.recompute_layers > 0 ? "block" : "uniform");
  if (full) c.add("recompute_num_layers", std::max(1, memory.recompute_layers));
}

}  // namespace

config::Value command_of(const std::string& arguments) {
  if (arguments.empty()) return config::Value::map({}, {}, "");
  return importers::flat_arguments(config::parse_document(arguments, "model_args_json").root);
}

bool is_whole_command(const config::Value& command) {
  const auto states = [&](const char* name) { return command.find(name) != nullptr; };
  return (states("num_layers") || states("hybrid_layer_pattern") || states("hybrid_override_pattern")) && states("hidden_size") && states("seq_length") && states("micro_batch_size") && states("global_batch_size");
}

config::Value completed_command(const config::Value& command, const Scenario& columns) {
  Command c(command);
  add_model(columns.model, c);
  add_degrees(columns.strategy, c);
  const st::Training& t = columns.strategy.training;
  c.add("seq_length", t.sequence_length);
  c.add("micro_batch_size", t.micro_batch_size);
  c.add("global_batch_size", t.global_batch_size);
  add_precision(t.precision, c);
  add_recomputation(columns.strategy.memory, c);
  if (t.optimizer == st::Optimizer::muon) c.add("optimizer", "muon");
  if (t.attention == "unfused") c.add("attention_backend", "unfused");
  return c.take();
}

config::Value with_vocabulary(const config::Value& command, std::int64_t words) {
  Command c(command);
  if (!c.states({"padded_vocab_size", "tokenizer_type", "tokenizer_model", "merge_file"})) c.add("vocab_size", words);
  return c.take();
}

std::int64_t steps_of_command(const std::string& arguments) {
  constexpr std::string_view kKey = "\"train-iters\":";
  const std::size_t at = arguments.find(kKey);
  return at == std::string::npos ? 0 : std::strtoll(arguments.c_str() + at + kKey.size(), nullptr, 10);
}

Scenario scenario_of_command(const config::Value& command, const std::string& environment, const config::Value& around) {
  std::vector<config::Value::Entry> all = command.entries();
  const config::Value variables = environment.empty() ? config::Value() : config::parse_document(environment, "env_vars_json").root;
  for (const config::Value::Entry& e : variables.entries())
    if (command.find(e.key) == nullptr && std::find(importers::kEnvironment.begin(), importers::kEnvironment.end(), e.key) != importers::kEnvironment.end()) all.push_back(e);
  const importers::Imported imported = importers::read_megatron(config::Value::map(std::move(all), command.place(), command.path()), import_context(around, "model_args_json"));
  config::throw_if_any(importers::refusals(imported, false));
  Scenario s = read_scenario(merged_import(imported, around), "model_args_json");
  for (const model::ImportNote& n : imported.report.not_understood) s.notes.push_back(n.key + " was left out: " + n.note);
  return s;
}

}  // namespace rehearse::scenario
