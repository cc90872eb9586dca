#include "sim/scenario/measured_memory.h"

#include <algorithm>
#include <regex>

#include "strategies/rules.h"

namespace rehearse::scenario {

namespace st = strategies;

bool apply_recompute(const config::CsvRow& row, Scenario& s) {
  const std::string stated = cell(row, "recompute");
  st::Memory& memory = s.strategy.memory;
  memory.recompute = stated.empty() ? s.profile.default_recompute : stated == "full" ? st::Recompute::full : stated == "selective" ? st::Recompute::selective : st::Recompute::none;
  // "21 of 80 layers are recomputed": Megatron's block method.
  static const std::regex kLayers(R"(\b([0-9]{1,4}) of [0-9]{1,4} layers are recomputed)");
  const std::string note = cell(row, "note");
  std::smatch layers;
  if (std::regex_search(note, layers, kLayers)) {
    memory.recompute = st::Recompute::full;
    memory.recompute_layers = std::stoi(layers[1]);
    return false;
  }
  // fms-fsdp checkpoints a share of whole blocks, evenly spread (fms_fsdp/policies/ac_handler.py).
  if (memory.recompute == st::Recompute::selective && s.profile.name.starts_with("fms-fsdp")) {
    memory.recompute = st::Recompute::full;
    memory.recompute_every = 4;
    s.notes.emplace_back("selective recomputation of whole blocks, as few as fit");
    return true;
  }
  return false;
}

void apply_zero_scripts(const config::CsvRow& row, Scenario& s) {
  const std::string note = cell(row, "note");
  // QwenLM/Qwen finetune/ds_config_zero3.json and Juniper's ds_lora_config.json (MLPerf) have these three as "auto": transformers fills them in
  // (integrations/deepspeed.py, trainer_config_finalize).
  const bool automatic = contains(cell(row, "source"), "QwenLM/Qwen@") || contains(cell(row, "source"), "JuniperNetworks");
  if (automatic && s.strategy.data_parallel.kind == st::DataParallelKind::zero3) {
    const std::int64_t square = s.model.hidden * s.model.hidden;
    s.strategy.data_parallel.bucket = Bytes{square * 2};
    s.strategy.data_parallel.prefetch_bucket = square * 9 / 10;
    s.strategy.data_parallel.persistence_threshold = 10 * s.model.hidden;
  }
  if (!contains(cell(row, "source"), "Megatron + Deepspeed ZeRO") || s.strategy.memory.recompute != st::Recompute::full) return;
  st::Memory& memory = s.strategy.memory;
  memory.partition_activations = true;
  // Trials 1 to 11 do without the buffers and the waiting; 12 and 13 without host memory, and so does what says so.
  const bool trials = contains(note, "ID=");
  const bool on_device = contains(note, "ID=12;") || contains(note, "ID=13;") || contains(note, "PA_CPU=N");
  memory.contiguous_checkpoints = memory.synchronize_checkpoints = !trials;
  if (!on_device) memory.offload.activations = st::MemoryTier::cpu;
  // reduce_bucket_size=$(($NHIDDEN*$NHIDDEN)), stage3_prefetch_bucket_size nine tenths of it.
  const std::int64_t bucket = s.model.hidden * s.model.hidden;
  s.strategy.data_parallel.bucket = Bytes{bucket * 2};
  s.strategy.data_parallel.prefetch_bucket = bucket * 9 / 10;
}

void apply_offload(const config::CsvRow& row, Scenario& s) {
  const std::string word = cell(row, "offload"), source = cell(row, "source") + " " + cell(row, "note");
  if (word.empty() || word == "none") return;
  st::Offload& o = s.strategy.memory.offload;
  if (word == "activation") {
    o.activations = st::MemoryTier::cpu;
    if (const auto layers = number_after(source, {"cpu_offloading_num_layers="})) o.activation_layers = static_cast<int>(*layers);
    return;
  }
  if (word != "optimizer" && word != "optimizer+param") throw NotSimulated{"offload '" + word + "' is not simulated"};
  o.optimizer = contains(source, "NVMe") ? st::MemoryTier::nvme : st::MemoryTier::cpu;
  if (word == "optimizer+param" || contains(source, "parameters+optimizer CPU") || contains(source, "sharding: ZeRO-3 Offload")) o.parameters = st::MemoryTier::cpu;
  // train.py: torch.set_num_threads(os.cpu_count() // GPUs).
  if (contains(source, "fsdp_qlora")) o.threads = std::max(1, s.cluster.node.cpu.cores / std::max(1, s.cluster.gpus_per_node));
}

void apply_optimizer(const config::CsvRow& row, Scenario& s) {
  const std::string word = lower(cell(row, "optimizer"));
  st::Training& t = s.strategy.training;
  const bool adam = contains(word, "adam");
  if (adam && (contains(word, "8bit") || contains(word, "8-bit"))) t.optimizer = st::Optimizer::adamw_8bit;
  else if (word == "sgd") t.optimizer = st::Optimizer::sgd;
  else if (contains(word, "lion")) t.optimizer = st::Optimizer::lion;
  else if (contains(word, "adafactor")) t.optimizer = st::Optimizer::adafactor;
  const st::DataParallelKind kind = s.strategy.data_parallel.kind;
  if (contains(word, "muon") && st::keeps_whole_states(kind)) {
    t.optimizer = st::Optimizer::muon;
    s.profile.muon_owners = s.profile.muon_owners && contains(word, "distributed");
  } else if (contains(word, "muon")) {
    s.notes.emplace_back("Muon on sharded states taken as AdamW");
  }
  if (contains(word, "paged")) {
    // bitsandbytes keeps moments in fp32 whatever the weights are (optim/optimizer.py, get_state_buffer).
    if (t.optimizer == st::Optimizer::adamw) t.optimizer_state_dtype = s.profile.optimizer_state = DType::fp32;
    using K = st::DataParallelKind;
    s.strategy.memory.paged_optimizer = kind == K::none || kind == K::ddp || kind == K::fsdp1 || kind == K::fsdp2;
    if (!s.strategy.memory.paged_optimizer) s.notes.emplace_back("paged optimizer states of shards taken as not paged");
  }
}

}  // namespace rehearse::scenario
