#include "sim/scenario/measured_sharding.h"

#include <algorithm>
#include <cctype>

#include "sim/scenario/measured_row.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// The number behind `word` and at most a few signs: "zero1=8", "Zero1: 8", "zero1 size 8".
int size_after(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  if (at == std::string::npos) return 0;
  std::size_t i = at + word.size();
  for (const char* filler : {" ", "size", "group", "of", "=", ":", " "})
    while (text.compare(i, std::string(filler).size(), filler) == 0) i += std::string(filler).size();
  int n = 0;
  for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0 && n < 1'000'000; ++i) n = n * 10 + (text[i] - '0');
  return n;
}

}  // namespace

int shard_group(const config::CsvRow& row, int data) {
  const std::string note = lower(cell(row, "note"));
  int group = size_after(note, "shard group");
  if (lower(cell(row, "sharding")) == "zero1" && lower(cell(row, "framework")).starts_with("intern")) group = std::max(group, size_after(note, "zero1"));
  if (const int replicas = size_after(note, "dcn_data_parallelism"); replicas > 0 && data % replicas == 0) group = data / replicas;
  return group > 0 && group < data && data % group == 0 ? group : 0;
}

void apply_rematerialisation(const config::CsvRow& row, st::Memory& memory) {
  const std::string note = lower(cell(row, "note"));
  if (!contains(note, "remat_policy")) return;
  if (contains(note, "remat_policy=full")) memory.recompute = st::Recompute::full;
  else if (contains(note, "remat_policy=none")) memory.recompute = st::Recompute::none;
  else memory.recompute = st::Recompute::selective;
  if (memory.recompute != st::Recompute::selective) return;
  if (contains(note, "except_mlp")) memory.recompute_modules = {contains(note, "with_context") ? "attention_products" : "attention_projections"};
  if (contains(note, "save_qkv_proj")) memory.recompute_modules = {"qkv_products"};
  // Paxml's names of JAX's policies (praxis/layers/checkpoint_policy.py); a fused attention kernel is no product to them.
  if (contains(note, "save_dot_with_no_batch_dim") || contains(note, "save_dot_only")) memory.recompute_modules = {"weight_products"};
  if (contains(note, "save_qkv_out_proj")) memory.recompute_modules = {"attention_projections"};
}

}  // namespace rehearse::scenario
