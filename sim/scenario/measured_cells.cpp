#include "sim/scenario/measured_cells.h"

#include <algorithm>
#include <map>
#include <regex>

#include <fmt/core.h>

#include "sim/core/error.h"
#include "sim/scenario/measured_row.h"
#include "sim/scenario/row_rules.h"

namespace rehearse::scenario {
namespace {

/// "Step Time (s)" is step_time_s, where the table has no column of that name.
void name_columns(config::CsvTable& table) {
  for (std::size_t i = 0; i < table.columns().size(); ++i)
    for (const std::string& ours : run_columns())
      if (plain_name(table.columns()[i]) == plain_name(ours) && !table.has(ours)) table.rename(i, ours);
}

/// "NeMo 25.02" is framework nemo and, in the note, its release.
void split_release(config::CsvTable& table, std::size_t row) {
  static const std::regex kRelease(R"(^([A-Za-z][A-Za-z_. -]{0,60}?)[ @=/-]+v?[0-9]{1,4}(\.[0-9]{1,4}){1,3}$)");
  const std::string framework = cell(table.row(row), "framework");
  std::smatch found;
  if (!std::regex_match(framework, found, kRelease)) return;
  const std::string name = found[1].str(), note = cell(table.row(row), "note");
  table.set(row, "framework", name);
  table.set(row, "note", note.empty() ? framework : note + "; " + framework);
}

/// Cells as the rules of readings/cells.yaml have them; a rule's `note` is added to the row's.
void apply_rules(config::CsvTable& table, std::size_t row, std::vector<std::string>& notes) {
  for (const RowRule& rule : row_rules("cells")) {
    std::vector<std::string> groups;
    if (!rule.holds(RowFacts(table.row(row)), groups)) continue;
    for (const config::Value::Entry& key : rule.keys.cells.entries()) {
      const std::string stated = cell(table.row(row), key.key), text = key.value.text();
      if (stated == text) continue;
      if (!rule.because.empty()) notes.push_back(fmt::format("{} {}, not {}: {}", key.key, text.empty() ? "taken as not stated" : text, stated.empty() ? "empty" : "'" + stated + "'", rule.because));
      table.set(row, key.key, key.key == "note" && !stated.empty() ? stated + "; " + text : text);
    }
  }
}

/// Words that a column may hold; texts of others are prose, names or numbers.
struct Vocabulary {
  const char* column;
  std::vector<std::string> starts;   // with one of these
  const char* otherwise;             // what an unknown word is taken as; "": the row is not simulated
};

const std::vector<Vocabulary>& vocabularies() {
  static const std::vector<Vocabulary> all{
      {"sp", {"y", "n"}, "not stated"},
      {"gated_mlp", {"y", "n"}, "not stated"},
      {"tie_embeddings", {"y", "n"}, "not stated"},
      {"torch_compile", {"y", "n"}, "not stated"},
      {"cuda_graph", {"y", "n"}, "not stated"},
      {"after_pp_fix", {"y", "n"}, "not stated"},
      {"recompute", {"none", "selective", "full"}, "not stated"},
      {"attention", {"flash", "unfused", "cudnn", "mem-efficient"}, "not stated"},
      {"peak_mem_kind", {"allocated", "reserved", "device", "unstated"}, "unstated"},
  };
  return all;
}

void pass_over_unknown_words(config::CsvTable& table, std::size_t row, std::vector<std::string>& notes) {
  for (const Vocabulary& words : vocabularies()) {
    const std::string stated = cell(table.row(row), words.column);
    if (stated.empty() || std::any_of(words.starts.begin(), words.starts.end(), [&](const std::string& word) { return stated.starts_with(word); })) continue;
    notes.push_back(fmt::format("{} '{}' is no word that is known here, taken as {}", words.column, stated, words.otherwise));
    table.set(row, words.column, std::string(words.otherwise) == "unstated" ? "unstated" : "");
  }
  const std::string optimizer = lower(cell(table.row(row), "optimizer"));
  const bool known = optimizer.empty() || optimizer == "sgd" || contains(optimizer, "adam") || contains(optimizer, "lion") || contains(optimizer, "adafactor") || contains(optimizer, "muon");
  if (!known) notes.push_back(fmt::format("optimizer '{}' is none that is known here, taken as AdamW", optimizer));
}

}  // namespace

const std::vector<std::string>& run_columns() {
  static const std::vector<std::string> columns{
      "row_id", "task", "framework", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "gated_mlp", "n_experts", "top_k", "moe_ffn_hidden", "shared_expert_ffn", "head_dim",
      "tie_embeddings", "seq_len", "params", "gpu", "n_gpus", "gpus_per_node", "interconnect", "tp", "sp", "pp", "vpp", "pp_schedule", "dp", "cp", "ep", "etp", "sharding", "micro_batch", "global_batch",
      "grad_accum", "precision", "recompute", "attention", "optimizer", "offload", "lora_rank", "lora_targets", "torch_compile", "cuda_graph", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu",
      "mfu_pct", "hfu_pct", "peak_mem_gib", "peak_mem_kind", "outcome", "derived", "source", "note", "mem_rank", "model_args_json", "env_vars_json", "deterministic", "max_mem_allocated_bytes",
      "final_mem_allocated_gib", "net_class", "ar_gbps_world", "ag_gbps_world", "rs_gbps_world", "ar_gbps_node", "ag_gbps_node", "rs_gbps_node", "optimizer_phase_alloc_gib", "after_pp_fix", "local_params"};
  return columns;
}

RunTable read_run_table(const std::string& path) {
  RunTable out{config::read_csv(path), {}};
  name_columns(out.cells);
  out.cells.require({"row_id", "framework", "gpu", "n_gpus", "seq_len"});
  if (out.cells.size() == 0) throw ConfigError(Diagnostic{{path, 1, 1}, "", "has columns, but no rows", "Write one line per run", ""});
  out.cells.trim();
  out.notes.resize(out.cells.size());
  for (std::size_t row = 0; row < out.cells.size(); ++row) {
    split_release(out.cells, row);
    apply_rules(out.cells, row, out.notes[row]);
    pass_over_unknown_words(out.cells, row, out.notes[row]);
  }
  return out;
}

}  // namespace rehearse::scenario
