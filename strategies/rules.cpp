// The one place that says which combinations cannot be, why, and what is near.
#include <algorithm>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "strategies/data/problems.h"
#include "strategies/memory/device_map.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/plan_writer.h"
#include "strategies/stage_layers.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {
namespace {

class Rules {
 public:
  void forbid(bool broken, const char* key, std::string problem, std::string fix) {
    if (broken) out_.push_back({{}, key, std::move(problem), std::move(fix), ""});
  }
  void add(Diagnostic problem) { out_.push_back(std::move(problem)); }
  bool empty() const { return out_.empty(); }
  std::vector<Diagnostic> take() { return std::move(out_); }

 private:
  std::vector<Diagnostic> out_;
};

constexpr std::int64_t kMaxMicroBatches = 1 << 16;

/// Parts of a layer that selective recomputation knows (strategies/layer/transformer_layer.cpp).
constexpr const char* kRecomputedModules[] = {"core_attn", "layernorm", "mlp", "mlp_act", "mla_up_proj", "moe", "moe_act", "shared_experts", "operators", "products", "weight_products", "attention_products", "attention_projections", "qkv_products"};

bool scores_in_memory(const Training& t, const FrameworkProfile& profile) { return t.attention.value_or(profile.attention_fused ? "flash" : "unfused") == "unfused"; }

/// Bytes of the largest tensor of a micro-batch, on a rank that shares it with nobody: widths beyond 64 bits show in a double.
double largest_tensor(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile) {
  const Training& t = s.training;
  const double samples = static_cast<double>(t.micro_batch_size), sequence = static_cast<double>(t.sequence_length) / s.parallelism.degrees.context;
  const double width = static_cast<double>(std::max({model.vocab, model.hidden, model.ffn_hidden, model.query_width(), model.experts.top_k * std::max(model.hidden, model.experts.ffn_hidden)}));
  return 4 * samples * sequence * std::max(width, scores_in_memory(t, profile) ? static_cast<double>(model.heads) * sequence : 0.0);
}

bool has_experts(const model::ModelDescription& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const model::Layer& l) { return l.moe; });
}

bool is_fsdp(DataParallelKind kind) { return kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2; }
bool shards_parameters(DataParallelKind kind) { return kind == DataParallelKind::zero3 || is_fsdp(kind); }
/// Replicas that PyTorch keeps whole.
bool keeps_whole_states(DataParallelKind kind) { return kind == DataParallelKind::none || kind == DataParallelKind::ddp || kind == DataParallelKind::one_process; }

bool is_capturable(const std::string& module) {
  for (const char* known : {"attn", "mlp", "moe_router", "moe_preprocess", "moe"})
    if (module == known) return true;
  return false;
}

std::string text(std::int64_t n) { return std::to_string(n); }

/// "Use 1, 2, 4 or 8": the divisors of n up to a limit.
std::string use_divisor(std::int64_t n, std::int64_t limit) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= std::min(n, limit); ++d)
    if (n % d == 0) all.push_back(d);
  std::string out = "Use ";
  for (std::size_t i = 0; i < all.size(); ++i) out += (i == 0 ? "" : i + 1 == all.size() ? " or " : ", ") + text(all[i]);
  return out;
}

/// The schedule, or nothing where it cannot run with these degrees; then `rules` says why.
std::optional<PipelineProgram> checked_schedule(const Strategy& s, Rules& rules) {
  const int stages = s.parallelism.degrees.pipeline, micro_batches = static_cast<int>(s.micro_batches());
  if (s.pipeline.schedule == "table") {
    PipelineProgram program = schedule_of(s);  // the scenario's reader has parsed it before
    rules.forbid(program.stages() != stages, "parallelism.pipeline", text(stages) + " stages, but the schedule's table has rows for " + text(program.stages()), "Use " + text(program.stages()));
    rules.forbid(program.micro_batches != micro_batches, "training.global_batch_size",
                 text(micro_batches) + " micro-batches per step, but the schedule's table has " + text(program.micro_batches),
                 "Use " + text(program.micro_batches * s.training.micro_batch_size * s.parallelism.degrees.data));
    if (program.stages() != stages || program.micro_batches != micro_batches) return std::nullopt;
    return program;
  }
  const PipelineSchedule* schedule = kPipelineSchedules.find(s.pipeline.schedule);
  rules.forbid(schedule == nullptr, "pipeline.schedule", "there is no pipeline schedule '" + s.pipeline.schedule + "'", "");
  if (schedule == nullptr) return std::nullopt;
  const bool other_chunks = schedule->fixed_chunks > 0 && s.pipeline.virtual_stages > 1 && s.pipeline.virtual_stages != schedule->fixed_chunks;
  rules.forbid(other_chunks, "pipeline.virtual_stages", "'" + s.pipeline.schedule + "' has " + text(schedule->fixed_chunks) + (schedule->fixed_chunks == 1 ? " model chunk" : " model chunks") + " per rank",
               "Leave the key out, or use an interleaved schedule");
  PipelineShape shape;
  shape.stages = stages;
  shape.micro_batches = micro_batches;
  shape.chunks = s.pipeline.virtual_stages;
  shape.overlap_messages = s.pipeline.overlap_messages.value_or(true);
  shape.overlap_expert_messages = s.experts.overlap_exchange;
  const std::vector<std::string> problems = schedule->problems(shape);
  for (const std::string& p : problems) rules.forbid(true, "pipeline.schedule", p, "");
  if (other_chunks || !problems.empty()) return std::nullopt;
  return schedule->make(shape);
}

/// Which attention over several ranks can be: whole heads or balanced chunks, and the masks that its kernels know.
void context_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const Training& t = s.training;
  const ContextKind kind = context_kind(s, profile);
  rules.forbid(d.context_ulysses > 1 && kind != ContextKind::ulysses_ring, "parallelism.context_ulysses", "only ulysses-ring divides a context group in two ways",
               "Leave the key out, or set parallelism.context_kind: ulysses-ring");
  if (d.context == 1) return;
  rules.forbid(scores_in_memory(t, profile), "parallelism.context", "context parallelism needs a fused attention kernel", "Set training.attention: flash");
  rules.forbid(kind == ContextKind::ulysses_ring && d.context_ulysses == 1, "parallelism.context_ulysses", "ulysses-ring needs the number of neighbours that exchange heads",
               "Set it to a divisor of " + text(d.context) + ", say the GPUs of a node");
  // Transformer Engine deals chunks to ranks before it knows how they will compute.
  const std::int64_t chunks = kind == ContextKind::ulysses && !profile.transformer_engine ? d.context : 2LL * d.context;
  rules.forbid(t.sequence_length % chunks != 0, "parallelism.context", "the sequence of " + text(t.sequence_length) + " tokens cannot be cut into " + (chunks == d.context ? text(chunks) : "2 x " + text(d.context)) + " equal chunks",
               "Use a sequence length that " + text(chunks) + " divides");
  const bool exchanges = kind == ContextKind::ulysses || kind == ContextKind::ulysses_ring, rings = kind == ContextKind::ring || kind == ContextKind::ulysses_ring;
  if (exchanges && model.heads % d.tensor == 0) {
    const std::int64_t ranks = kind == ContextKind::ulysses ? d.context : d.context_ulysses, heads = model.heads / d.tensor;
    const char* key = kind == ContextKind::ulysses ? "parallelism.context" : "parallelism.context_ulysses";
    const std::int64_t shared = profile.repeat_kv && profile.transformer_engine ? heads : std::max<std::int64_t>(1, model.kv_heads / d.tensor);
    rules.forbid(heads % ranks != 0, key, text(ranks) + " does not divide the " + text(heads) + " attention heads of a tensor rank (ulysses gives each rank whole heads)", use_divisor(std::gcd(heads, shared), 64));
    rules.forbid(heads % ranks == 0 && shared % ranks != 0 && (profile.transformer_engine || ranks % shared != 0), key,
                 text(ranks) + " does not divide the " + text(shared) + " key/value heads of a tensor rank" + (profile.transformer_engine ? ", and Transformer Engine makes no copies" : ""),
                 use_divisor(shared, 64) + ", or parallelism.context_kind: ring");
  }
  const bool windows = std::any_of(model.layers.begin(), model.layers.end(), [&](const model::Layer& l) { return l.window > 0 && l.window < t.sequence_length; });
  const bool blockwise = rings || (kind == ContextKind::all_gather && !profile.transformer_engine);
  rules.forbid(windows && blockwise, "parallelism.context_kind", "a ring computes blocks of the whole causal mask, and the model has sliding windows", "Use ulysses, or all-gather with Megatron");
  rules.forbid(model.attention_sinks && kind != ContextKind::ulysses, "parallelism.context_kind", "learned attention sinks are in no block's sum", "Use ulysses");
}

/// Several documents in one sample.
void document_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Training& t = s.training;
  if (t.attended_length() == t.sequence_length) return;
  rules.forbid(scores_in_memory(t, profile), "training.document_length", "attention with its scores in memory computes the whole square whatever the mask", "Set training.attention: flash, or leave the key out");
  rules.forbid(s.parallelism.degrees.context > 1, "training.document_length", "documents cut by context parallelism are not simulated", "Use parallelism.context: 1, or leave the key out");
}

/// DeepSpeed's ways to keep checkpoints, and paged optimizer states.
void checkpoint_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  const Memory& m = s.memory;
  const std::int64_t recomputed = (model.layer_count() + m.recompute_every - 1) / m.recompute_every;
  rules.forbid(m.contiguous_checkpoints && m.recompute != Recompute::full, "memory.contiguous_checkpoints", "only inputs of recomputed layers are kept in buffers", "Set memory.recompute: full");
  rules.forbid(m.contiguous_checkpoints && !m.partition_activations, "memory.contiguous_checkpoints", "DeepSpeed keeps only partitioned activations in buffers", "Set memory.partition_activations: true");
  rules.forbid(m.contiguous_checkpoints && s.parallelism.degrees.pipeline > 1, "memory.contiguous_checkpoints", "the buffers are those of one micro-batch; pipeline stages have several under way", "Leave the key out");
  rules.forbid(m.recompute_layers > 0 && m.recompute_every > 1, "memory.recompute_layers", "memory.recompute_every chooses among all layers, recompute_layers takes each chunk's first", "Give one of the two");
  rules.forbid(m.contiguous_checkpoints && m.recompute_layers > 0, "memory.contiguous_checkpoints", "DeepSpeed's buffers are for layers spread evenly, Megatron's block method takes each chunk's first", "Leave out memory.recompute_layers");
  rules.forbid(m.number_checkpoints > 0 && !m.contiguous_checkpoints, "memory.number_checkpoints", "there are no buffers to count", "Set memory.contiguous_checkpoints: true, or leave the key out");
  rules.forbid(m.number_checkpoints > 0 && m.number_checkpoints < recomputed, "memory.number_checkpoints", text(m.number_checkpoints) + " buffers for " + text(recomputed) + " recomputed layers", "Use " + text(recomputed));
  rules.forbid(m.synchronize_checkpoints && m.recompute != Recompute::full, "memory.synchronize_checkpoints", "there are no recomputed layers to wait for", "Set memory.recompute: full");
  const DataParallelKind kind = s.data_parallel.kind;
  const bool pages = kind == DataParallelKind::none || kind == DataParallelKind::ddp || is_fsdp(kind);
  rules.forbid(m.paged_optimizer && !pages, "memory.paged_optimizer", "only the states that one optimizer object has are paged: of replicas, or of FSDP's shards", "Use data_parallel.kind ddp or fsdp2, or memory.offload.optimizer: cpu");
  rules.forbid(m.paged_optimizer && s.training.optimizer != Optimizer::adamw && s.training.optimizer != Optimizer::adamw_8bit && s.training.optimizer != Optimizer::lion, "memory.paged_optimizer",
               "bitsandbytes pages the states of Adam and Lion only", "Use adamw, adamw-8bit or lion");
  rules.forbid(m.paged_optimizer && m.offload.optimizer != MemoryTier::device, "memory.paged_optimizer", "the states are in host memory already", "Leave out memory.offload.optimizer");
}

/// Sequences in pieces (strategies/layer/tiled.cpp).
void tiling_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Memory& m = s.memory;
  const bool tiled_loss = s.training.cross_entropy.value_or(profile.loss) == LossKind::tiled;
  const bool narrow = s.training.precision != Precision::bf16 && s.training.precision != Precision::fp16 && s.training.precision != Precision::fp32 && s.training.precision != Precision::tf32;
  for (const auto& [on, key] : {std::pair{m.tiled_mlp, "memory.tiled_mlp"}, {tiled_loss, "training.cross_entropy"}}) {
    const bool mlp = std::string_view(key) == "memory.tiled_mlp";
    const std::string what = mlp ? "DeepSpeed's TiledMLP" : "DeepSpeed's TiledFusedLogitsLoss", off = mlp ? "Leave the key out" : "Use another cross_entropy";
    rules.forbid(on && s.parallelism.degrees.tensor > 1, key, what + " knows no tensor-parallel layers", "Set parallelism.tensor: 1 and use parallelism.context, or: " + off);
    rules.forbid(on && narrow && mlp, key, "8- and 4-bit products are not cut into pieces", "Set training.precision: bf16");
    rules.forbid(on && profile.autocast, key, "pieces under autocast are not simulated", "Use a framework that keeps 16-bit parameters");
    rules.forbid(on && s.tuning.kind != TuningKind::full && s.tuning.kind != TuningKind::frozen, key, "adapters in pieces are not simulated", off);
    rules.forbid(on && s.training.phase == StepKind::evaluation && !mlp, key, what + " makes gradients in its forward pass", off);
  }
  rules.forbid(tiled_loss && s.parallelism.degrees.pipeline > 1, "training.cross_entropy", "output layer and loss are one, and pipeline stages may part them", "Use another cross_entropy");
  rules.forbid(tiled_loss && s.training.multi_token_prediction, "training.cross_entropy", "further heads in pieces are not simulated", "Use another cross_entropy");
  rules.forbid(m.tiled_mlp && std::all_of(model.layers.begin(), model.layers.end(), [](const model::Layer& l) { return l.moe; }), "memory.tiled_mlp", "the model has experts in every layer, and they are not cut into pieces", "Leave the key out");
  rules.forbid(m.tiled_mlp_num_shards > s.training.sequence_length / s.parallelism.degrees.context, "memory.tiled_mlp_num_shards", "more pieces than a rank's " + text(s.training.sequence_length / s.parallelism.degrees.context) + " tokens", "Use fewer");
  const auto again = [&](const std::string& module) { return m.recompute == Recompute::selective && (module == "mlp" || module == "mlp_act"); };
  rules.forbid(m.tiled_mlp && std::any_of(m.recompute_modules.begin(), m.recompute_modules.end(), again), "memory.recompute_modules", "tiled MLPs are made again in backward already", "Leave out mlp and mlp_act");
}

/// Chunks of the sequence with the rest in host memory (strategies/layer/chunked_sequence.cpp).
void sequence_chunk_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Memory& m = s.memory;
  const Training& t = s.training;
  const Degrees& d = s.parallelism.degrees;
  const char* key = "memory.sequence_chunk";
  if (m.sequence_chunk == 0) return;
  const char* off = "Leave the key out";
  rules.forbid(d.context == 1 || context_kind(s, profile) != ContextKind::ulysses, key, "DeepSpeed's FPDT exchanges the heads of each chunk over a context group", "Set parallelism.context and context_kind: ulysses");
  rules.forbid(d.tensor > 1, key, "FPDT knows no tensor-parallel layers", "Set parallelism.tensor: 1 and use parallelism.context");
  rules.forbid(d.pipeline > 1, key, "output layer and loss are one, and pipeline stages may part them", "Set parallelism.pipeline: 1");
  rules.forbid(t.sequence_length % m.sequence_chunk != 0 || t.sequence_length / m.sequence_chunk < 2, key, "a sequence of " + text(t.sequence_length) + " tokens is not two or more chunks of " + text(m.sequence_chunk), "Use a divisor of the sequence");
  constexpr std::int64_t kMostChunks = 1024;   // every chunk attends to all before it
  rules.forbid(t.sequence_length / m.sequence_chunk > kMostChunks, key, "more than " + text(kMostChunks) + " chunks are not simulated", "Use a larger chunk");
  rules.forbid(m.sequence_chunk % (64LL * d.context) != 0, key, "each of " + text(d.context) + " ranks cuts its part of a chunk of " + text(m.sequence_chunk) + " tokens into 32 pieces for the loss, 2 for the MLP", "Use a multiple of " + text(64LL * d.context));
  rules.forbid(scores_in_memory(t, profile), key, "blocks of scores are merged by their log-sum-exp, which fused kernels give", "Set training.attention: flash");
  const bool plain = std::all_of(model.layers.begin(), model.layers.end(), [](const model::Layer& l) { return !l.moe && l.window == 0; });
  rules.forbid(!plain || model.latent.present() || model.qk_norm || model.attention_sinks, key, "experts, windows, latent attention, normalised heads and sinks in chunks are not simulated", off);
  rules.forbid(model.dropout > 0 && profile.dropout, key, "FPDT has no dropout (Megatron-DeepSpeed transformer.py)", "Set model.dropout: 0");
  rules.forbid(t.precision != Precision::bf16 && t.precision != Precision::fp16, key, "chunks of other formats than 16 bit are not simulated", "Set training.precision: bf16");
  rules.forbid(profile.autocast || profile.transformer_engine, key, "chunks under autocast or Transformer Engine are not simulated", "Use framework megatron-deepspeed");
  rules.forbid(s.tuning.kind != TuningKind::full, key, "chunks with frozen weights or adapters are not simulated", off);
  rules.forbid(t.multi_token_prediction || t.document_length > 0, key, "further heads and packed documents in chunks are not simulated", off);
  rules.forbid(m.recompute == Recompute::selective, key, "parts of chunked layers are made again in backward already", "Use memory.recompute: full or none");
  rules.forbid(m.tiled_mlp || t.cross_entropy == LossKind::tiled, m.tiled_mlp ? "memory.tiled_mlp" : "training.cross_entropy", "memory.sequence_chunk cuts MLP and loss itself", off);
}

/// What Megatron-FSDP does not do, or is not simulated doing.
void megatron_fsdp_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (s.data_parallel.kind != DataParallelKind::megatron_fsdp) return;
  const Offload& o = s.memory.offload;
  rules.forbid(bits(profile.stored_parameter) != 16 || !profile.master_parameters, "data_parallel.kind", "megatron-fsdp keeps 16-bit parameters and fp32 copies of their shards; the framework profile '" + profile.name + "' does not",
               "Use framework megatron-core or megatron-bridge, or data_parallel.kind fsdp2");
  rules.forbid(s.parallelism.degrees.pipeline > 1, "data_parallel.kind", "megatron-fsdp under pipeline stages is not simulated", "Use parallelism.pipeline 1, or distributed-optimizer");
  rules.forbid(o.optimizer != MemoryTier::device || o.parameters != MemoryTier::device, "memory.offload", "megatron-fsdp with parameters or states in host memory is not simulated", "Use distributed-optimizer, or leave the keys out");
}

/// The weight gradient of the output layer, left for the end (Megatron model_parallel_config.py checks the same).
void deferred_head_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const char* key = "pipeline.deferred_head_gradients";
  if (!s.pipeline.deferred_head_gradients) return;
  rules.forbid(s.parallelism.degrees.pipeline == 1, key, "without pipeline stages there is no wait that the gradients could fill", "Leave the key out");
  rules.forbid(!model.final_norm, key, "a model without a last norm has an output layer that reads what the stage before it lets go", "Leave the key out");
  rules.forbid(!profile.fused_gradient_accumulation, key, "the gradients are made in the kept ones, which this job does not", "Set training.fused_gradient_accumulation: true, or leave the key out");
  rules.forbid(!s.pipeline.schedule.starts_with("1f1b") && !s.pipeline.schedule.starts_with("interleaved-1f1b") && s.pipeline.schedule != "gpipe", key, "'" + s.pipeline.schedule + "' decides itself when weight gradients are made",
               "Use 1f1b or interleaved-1f1b, or leave the key out");
}

/// Weights that are updated as soon as their gradients are there.
void optimizer_in_backward_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (!s.memory.optimizer_in_backward) return;
  const char* key = "memory.optimizer_in_backward";
  rules.forbid(s.data_parallel.kind != DataParallelKind::none, key, "gradients of several ranks are reduced first, and this is simulated for one rank only", "Use data_parallel.kind none");
  rules.forbid(s.parallelism.degrees.pipeline > 1 || s.micro_batches() > 1, key, "a gradient that more micro-batches add to cannot be used yet", "Use one stage and one micro-batch per step");
  rules.forbid(s.training.clip_gradients, key, "the gradient norm is known at the end of backward", "Set training.clip_gradients: false");
  rules.forbid(s.memory.offload.optimizer != MemoryTier::device, key, "offloaded optimizers update at the end of backward", "Leave out memory.offload.optimizer");
  rules.forbid(s.training.optimizer == Optimizer::muon, key, "muon's update is simulated at the end of backward", "Use another optimizer");
  rules.forbid(bits(profile.gradient) != bits(profile.stored_parameter) || profile.fused_gradient_accumulation, key, "the framework profile '" + profile.name + "' keeps gradients in a buffer of its own, which stays", "Use framework torchtune, plain, huggingface or litgpt");
}

/// torch.nn.DataParallel: a thread and a whole model for each GPU that one process sees.
void one_process_rules(const Strategy& s, const FrameworkProfile& profile, int gpus_per_node, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const char* key = "data_parallel.kind";
  rules.forbid(d.tensor * d.context * d.pipeline * d.expert * d.expert_tensor > 1, key, "data-parallel holds the whole model on each GPU", "Use 1 for the degrees of tensor, context, pipeline and expert parallelism, or data_parallel.kind ddp");
  rules.forbid(d.data > gpus_per_node, key, "one process drives the GPUs of one node: " + text(d.data) + " GPUs, " + text(gpus_per_node) + " to a node", "Use ddp, or one node");
  rules.forbid(d.data == 1, key, "with one GPU there is nothing to be parallel with", "Use none");
  rules.forbid(d.shard() != d.data, "parallelism.data_shard", "data-parallel shards nothing", "Leave the key out");
  rules.forbid(bits(profile.gradient) != bits(profile.stored_parameter) || profile.fused_gradient_accumulation, key, "the framework profile '" + profile.name + "' keeps gradients in a buffer of its own, which no replica of a module has",
               "Use framework plain, huggingface or litgpt");
  rules.forbid(s.data_parallel.overlap_gradient_reduce.value_or(false), "data_parallel.overlap_gradient_reduce", "data-parallel sums gradients when all of them are there", "Use ddp");
  rules.forbid(s.data_parallel.bucket.has_value(), "data_parallel.bucket", "data-parallel has buffers of 10 MiB", "Leave the key out");
  rules.forbid(s.tuning.four_bit(), "tuning.kind", "4-bit weights cannot be replicated in each step", "Use lora, or data_parallel.kind ddp");
  rules.forbid(s.training.multi_token_prediction && s.data_parallel.gather == Gathered::logits, "training.multi_token_prediction", "the first GPU gathers one set of logits", "Set data_parallel.gather: loss");
}

/// What a tensor rank holds must be whole.
void tensor_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const Training& t = s.training;
  rules.forbid(model.heads % d.tensor != 0, "parallelism.tensor", text(d.tensor) + " does not divide " + text(model.heads) + " attention heads (each rank owns whole heads)", use_divisor(model.heads, 64));
  rules.forbid(model.heads % d.tensor == 0 && model.kv_heads % d.tensor != 0 && d.tensor % std::max<std::int64_t>(1, model.kv_heads) != 0, "parallelism.tensor",
               text(d.tensor) + " and " + text(model.kv_heads) + " key/value heads do not divide each other", use_divisor(model.kv_heads, 64));
  rules.forbid(!model.experts.experts && model.ffn_hidden % d.tensor != 0, "parallelism.tensor", text(d.tensor) + " does not divide the MLP width " + text(model.ffn_hidden), use_divisor(model.ffn_hidden, 64));
  rules.forbid(s.parallelism.sequence_parallel && t.sequence_length / d.context % d.tensor != 0, "parallelism.sequence_parallel",
               "the sequence of " + text(t.sequence_length / d.context) + " tokens cannot be split over " + text(d.tensor) + " tensor ranks", "Use a sequence length that " + text(d.tensor) + " divides");
  rules.forbid(s.parallelism.overlap_tensor.value_or(false) && (d.tensor == 1 || !s.parallelism.sequence_parallel), "parallelism.overlap_tensor",
               d.tensor == 1 ? "there is no tensor parallelism whose collectives could overlap" : "without sequence parallelism the collectives are all-reduces, which do not overlap with their products",
               d.tensor == 1 ? "Leave it out" : "Set parallelism.sequence_parallel: true");
}

/// Formats of the first and last layers.
void format_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  const Training& t = s.training;
  const int sixteen = t.first_layers_16bit + t.last_layers_16bit;
  const bool narrow = t.precision == Precision::fp8 || t.precision == Precision::fp8_rowwise || t.precision == Precision::mxfp8 || t.precision == Precision::nvfp4;
  const char* end = t.first_layers_16bit > 0 ? "training.first_layers_16bit" : "training.last_layers_16bit";
  rules.forbid(sixteen > 0 && !narrow, end, "no layer's products have fewer than 16 bits", "Leave it out, or set training.precision to fp8, mxfp8 or nvfp4");
  rules.forbid(sixteen > model.layer_count(), end, text(sixteen) + " layers at both ends, but the model has " + text(model.layer_count()), "Use at most " + text(model.layer_count()) + " in all");
}

/// What cannot be counted or simulated at all. False: nothing else is to be asked of it.
bool within_limits(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const Training& t = s.training;
  // Tensors are counted in 64 bits of bytes. A layer has fewer than 64 of the largest's size.
  if (largest_tensor(model, s, profile) * 64 * static_cast<double>(model.layer_count() + 2) > 4e18) {
    rules.forbid(true, t.micro_batch_size > 1 ? "training.micro_batch_size" : "training.sequence_length",
                 "a micro-batch of " + text(t.micro_batch_size) + " x " + text(t.sequence_length) + " tokens has tensors that cannot be counted in 64 bits", "Use a smaller micro_batch_size or a shorter sequence");
    return false;
  }
  const std::int64_t per_step = t.micro_batch_size * d.data;
  // Every micro-batch is simulated: a number beyond what any run has would fill the memory instead of saying so.
  if (t.global_batch_size / per_step > kMaxMicroBatches) {
    rules.forbid(true, "training.global_batch_size", text(t.global_batch_size / per_step) + " micro-batches per step are more than any run has (the limit is " + text(kMaxMicroBatches) + ")",
                 "Use a smaller batch, a larger micro_batch_size or more data-parallel ranks");
    return false;
  }
  return true;
}

/// Micro-batches of equal size.
void batch_rules(const Strategy& s, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const Training& t = s.training;
  const std::int64_t per_step = t.micro_batch_size * d.data;
  rules.forbid(t.global_batch_size % per_step != 0, "training.global_batch_size",
               text(t.global_batch_size) + " is not a multiple of micro-batch " + text(t.micro_batch_size) + " x data-parallel degree " + text(d.data),
               (t.global_batch_size > per_step ? "Use " + text(t.global_batch_size / per_step * per_step) + " or " : std::string("Use ")) + text((t.global_batch_size / per_step + 1) * per_step));
}

/// Which parts of a step CUDA graphs can replay.
void graph_rules(const Strategy& s, Rules& rules) {
  const Training& t = s.training;
  for (const std::string& m : t.cuda_graph_modules)
    rules.forbid(!is_capturable(m), "training.cuda_graph_modules", "'" + m + "' is no part of a layer that graphs are made of", "Use attn, mlp, moe_router, moe_preprocess or moe");
  rules.forbid(t.cuda_graph.value_or(false) && !t.cuda_graph_modules.empty(), "training.cuda_graph_modules", "the whole step is one graph already", "Leave out one of the two keys");
}

/// A micro-batch's exchange of tokens under another's compute.
void exchange_overlap_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  if (!s.experts.overlap_exchange) return;
  const Degrees& d = s.parallelism.degrees;
  const char* key = "experts.overlap_exchange";
  rules.forbid(!has_experts(model) || d.expert == 1, key, "no tokens travel", "Leave the key out");
  rules.forbid(s.pipeline.schedule != "1f1b" && s.pipeline.schedule != "interleaved-1f1b", key, "only Megatron's 1F1B schedules merge a forward and a backward", "Use 1f1b (one stage) or interleaved-1f1b");
  rules.forbid(d.pipeline > 1 && s.pipeline.virtual_stages == 1, key, "Megatron merges a forward and a backward of several stages under the interleaved schedule only", "Set pipeline.virtual_stages to 2 or more");
  rules.forbid(s.memory.recompute == Recompute::full, key, "full recomputation leaves nothing to overlap (Megatron refuses it)", "Use memory.recompute: selective or none");
}

/// How the experts of a layer lie on ranks, and how tokens get there.
void expert_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, int gpus_per_node, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const model::Experts& moe = model.experts;
  const Dispatcher dispatcher = s.experts.dispatcher.value_or(profile.dispatcher);
  rules.forbid(moe.experts % d.expert != 0, "parallelism.expert", text(d.expert) + " does not divide " + text(moe.experts) + " experts", use_divisor(moe.experts, 4096));
  rules.forbid(moe.ffn_hidden % d.expert_tensor != 0, "parallelism.expert_tensor", text(d.expert_tensor) + " does not divide the experts' width " + text(moe.ffn_hidden), use_divisor(moe.ffn_hidden, 64));
  rules.forbid(d.tensor > 1 && !s.parallelism.sequence_parallel, "parallelism.sequence_parallel", "experts under tensor parallelism need it: each tensor rank routes its own tokens", "Set parallelism.sequence_parallel: true");
  rules.forbid((dispatcher == Dispatcher::deepep || dispatcher == Dispatcher::hybridep) && d.expert_tensor > 1, "parallelism.expert_tensor", "DeepEP's dispatch knows no expert tensor parallelism", "Use 1, or experts.dispatcher: all-to-all");
  if (dispatcher == Dispatcher::hierarchical && d.expert > 1 && problems_of(d, d.world(), s.parallelism.order).empty()) {
    const GroupShape group = Layout(d, s.parallelism.order).shape_of(Axis::expert, 0, gpus_per_node);
    rules.forbid(group.ranks_per_node * group.nodes != group.ranks, "experts.dispatcher", "the " + text(d.expert) + " ranks of an expert group lie unevenly on " + text(group.nodes) + " nodes, and a hierarchical exchange needs the same places on each",
                 "Use all-to-all, or parallelism.expert " + text(gpus_per_node));
  }
  rules.forbid(s.experts.capacity_factor > 0 && s.experts.imbalance > 1, "experts.imbalance", "a capacity limits what the fullest expert gets", "Leave out experts.imbalance or experts.capacity_factor");
  rules.forbid(!s.experts.routing.even() && s.experts.imbalance > 1, "experts.imbalance", "experts.routing says how full each rank is", "Leave out one of the two");
  rules.forbid(s.experts.pad_to_capacity && s.experts.capacity_factor == 0, "experts.pad_to_capacity", "there is no capacity to pad to", "Set experts.capacity_factor");
  rules.forbid(s.experts.imbalance > static_cast<double>(d.expert), "experts.imbalance", "with " + text(d.expert) + " expert ranks the fullest can hold at most " + text(d.expert) + " times the mean", "Use a number from 1 to " + text(d.expert));
}

/// Distributions of tokens over experts, and what they need.
void routing_rules(const Strategy& s, Rules& rules) {
  const Routing& routing = s.experts.routing;
  const bool zipf = routing.distribution == RoutingKind::zipf, dirichlet = routing.distribution == RoutingKind::dirichlet;
  rules.forbid(zipf && !routing.skew, "experts.routing", "zipf needs its exponent", "Set experts.routing.skew: 0 is balanced, 1 is Zipf's law");
  rules.forbid(dirichlet && !routing.concentration, "experts.routing", "dirichlet needs its concentration", "Set experts.routing.concentration: shares vary by about 1 / sqrt(concentration)");
  rules.forbid(!zipf && routing.skew.has_value(), "experts.routing.skew", "only zipf has an exponent", "Leave the key out, or set experts.routing.distribution: zipf");
  rules.forbid(!dirichlet && routing.concentration.has_value(), "experts.routing.concentration", "only dirichlet has a concentration", "Leave the key out, or set experts.routing.distribution: dirichlet");
}

/// What only models with experts have.
void no_expert_rules(const Strategy& s, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  rules.forbid(s.experts.imbalance > 1 || s.experts.capacity_factor > 0 || s.experts.pad_to_capacity || !s.experts.routing.even(), "experts", "the model has no experts to route to", "Leave the section out, or use a model with experts");
  rules.forbid(d.expert > 1 || d.expert_tensor > 1, d.expert > 1 ? "parallelism.expert" : "parallelism.expert_tensor", "the model has no experts to split", "Use 1");
}

/// Layers and a schedule for several stages.
void pipeline_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Training& t = s.training;
  if (t.global_batch_size % (t.micro_batch_size * s.parallelism.degrees.data) != 0) return;   // no whole micro-batches to schedule
  const auto program = checked_schedule(s, rules);
  if (!program) return;
  const bool splits = std::any_of(program->ranks.begin(), program->ranks.end(), [](const auto& rank) {
    return std::any_of(rank.begin(), rank.end(), [](const Action& a) { return a.kind == ActionKind::backward_input; });
  });
  // Source: pytorch issue 161904; torchtitan issue 3584.
  rules.forbid(splits && profile.compiled, "pipeline.schedule", "'" + s.pipeline.schedule + "' splits backward, which fails on layers that torch.compile has compiled", "Use interleaved-1f1b, or framework torchtitan");
  rules.forbid(splits && t.phase == StepKind::evaluation, "pipeline.schedule", "an evaluation has no backward that '" + s.pipeline.schedule + "' could split", "Use 1f1b or gpipe");
  rules.forbid(splits && (s.memory.offload.activations != MemoryTier::device || s.memory.partition_activations), "pipeline.schedule",
               "'" + s.pipeline.schedule + "' needs layer inputs twice, which stored elsewhere cannot be simulated", "Use 1f1b or an interleaved schedule");
  for (const std::string& p : stage_layer_problems(model, s, profile, program->virtual_stages))
    rules.forbid(true, s.pipeline.layers_per_stage.empty() ? "parallelism.pipeline" : "pipeline.layers_per_stage", p, "");
}

/// What only pipelines have.
void one_stage_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  rules.forbid(s.pipeline.virtual_stages > 1, "pipeline.virtual_stages", "interleaving needs pipeline stages", "Use 1, or parallelism.pipeline > 1");
  const std::vector<std::int64_t>& per_stage = s.pipeline.layers_per_stage;
  rules.forbid(!per_stage.empty() && per_stage != std::vector<std::int64_t>{model.layer_count()}, "pipeline.layers_per_stage", "there is one stage, and it holds all " + text(model.layer_count()) + " layers",
               "Leave the key out, or set parallelism.pipeline");
}

/// Weights that are kept in 8 bits.
void narrow_parameter_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (!s.training.fp8_parameters.value_or(false)) return;
  const Training& t = s.training;
  const char* key = "training.fp8_parameters";
  rules.forbid(t.precision != Precision::fp8 && t.precision != Precision::mxfp8, key, "no weights have products of 8 bits", "Set training.precision to fp8 or mxfp8, or leave the key out");
  rules.forbid(!profile.transformer_engine, key, "the framework profile '" + profile.name + "' has no layers of Transformer Engine", "Use a profile that has, as megatron-core, or leave the key out");
  const DataParallelKind kind = s.data_parallel.kind;
  rules.forbid(kind != DataParallelKind::none && kind != DataParallelKind::ddp && kind != DataParallelKind::distributed_optimizer, key, "only weights that each rank has whole are simulated in 8 bits", "Use data_parallel.kind distributed-optimizer or ddp, or leave the key out");
}

/// Which replicas and shards can be.
void data_parallel_rules(const Strategy& s, const FrameworkProfile& profile, int gpus_per_node, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const DataParallelKind kind = s.data_parallel.kind;
  rules.forbid(kind == DataParallelKind::none && d.data > 1, "data_parallel.kind", "none cannot keep " + text(d.data) + " replicas equal", "Use ddp, or parallelism.data 1");
  rules.forbid(shards_parameters(kind) && profile.fused_gradient_accumulation, "data_parallel.kind", "the framework profile '" + profile.name + "' accumulates into whole gradients, which sharded parameters do not have",
               "Use distributed-optimizer or megatron-fsdp, or another framework");
  for (Diagnostic& problem : zero_problems(s, gpus_per_node)) rules.add(std::move(problem));
  megatron_fsdp_rules(s, profile, rules);
  if (kind == DataParallelKind::one_process) one_process_rules(s, profile, gpus_per_node, rules);
  rules.forbid(kind != DataParallelKind::one_process && s.data_parallel.gather != Gathered::logits, "data_parallel.gather", "only one process gathers from its GPUs", "Leave the key out, or use data_parallel.kind data-parallel");
}

/// Names of what is recomputed.
void recomputed_module_rules(const Strategy& s, Rules& rules) {
  for (const std::string& m : s.memory.recompute_modules) {
    const bool known = std::any_of(std::begin(kRecomputedModules), std::end(kRecomputedModules), [&](const char* name) { return m == name; });
    rules.forbid(!known, "memory.recompute_modules", "'" + m + "' is no part of a layer that is recomputed", fmt::format("Use {}", fmt::join(kRecomputedModules, ", ")));
  }
}

/// Optimizer states and parameters in other memory.
void offload_rules(const Strategy& s, Rules& rules) {
  const DataParallelKind kind = s.data_parallel.kind;
  const Offload& o = s.memory.offload;
  const bool states_away = o.optimizer != MemoryTier::device, parameters_away = o.parameters != MemoryTier::device;
  const bool fsdp = is_fsdp(kind);
  rules.forbid((states_away || parameters_away) && keeps_whole_states(kind), "memory.offload.optimizer", "replicas that PyTorch keeps whole update themselves on the GPU",
               "Use data_parallel.kind zero1, zero2, zero3, fsdp1, fsdp2 or distributed-optimizer");
  rules.forbid(parameters_away && !shards_parameters(kind) && !keeps_whole_states(kind), "memory.offload.parameters", "only sharded parameters can wait elsewhere", "Use data_parallel.kind zero3, fsdp1 or fsdp2");
  rules.forbid(fsdp && states_away != parameters_away, states_away ? "memory.offload.parameters" : "memory.offload.optimizer", "FSDP offloads parameters, gradients and optimizer together (CPUOffload, CPUOffloadPolicy)",
               "Set both to cpu");
  rules.forbid(parameters_away && !states_away && !fsdp, "memory.offload.optimizer", "parameters that wait elsewhere are updated there", "Set it to cpu or nvme as well");
  rules.forbid((fsdp || kind == DataParallelKind::distributed_optimizer) && (o.optimizer == MemoryTier::nvme || o.parameters == MemoryTier::nvme), "memory.offload.optimizer", "only DeepSpeed's ZeRO keeps state on NVMe", "Use cpu, or data_parallel.kind zero3");
  rules.forbid((kind == DataParallelKind::zero1 || kind == DataParallelKind::zero2) && o.optimizer == MemoryTier::nvme, "memory.offload.optimizer", "ZeRO-1 and ZeRO-2 offload to the CPU only", "Use cpu, or data_parallel.kind zero3");
  rules.forbid(o.ratio < 1 && !(states_away && (kind == DataParallelKind::zero3 || kind == DataParallelKind::distributed_optimizer)), "memory.offload.ratio", "only a ZeRO-3 or Megatron optimizer on the CPU can be offloaded in part",
               "Leave the key out");
}

/// What an optimizer needs of the states that it has.
void optimizer_rules(const Strategy& s, Rules& rules) {
  const Training& t = s.training;
  rules.forbid(!states_are_elementwise(t.optimizer) && !keeps_whole_states(s.data_parallel.kind), "training.optimizer", t.optimizer == Optimizer::muon ? "muon orthogonalises whole matrices, which sharded optimizer states do not have" : "flattened shards have no rows and columns for adafactor",
               "Use data_parallel.kind ddp, or another optimizer");
  rules.forbid(s.memory.offload.optimizer != MemoryTier::device && (t.optimizer == Optimizer::adamw_8bit || !states_are_elementwise(t.optimizer)), "training.optimizer", "there is no CPU form of this optimizer", "Use adamw, lion, momentum or sgd");
  rules.forbid(t.optimizer_state_dtype.has_value() && (t.optimizer == Optimizer::adamw_8bit || t.optimizer == Optimizer::adafactor), "training.optimizer_state_dtype", "this optimizer's states have a format of their own", "Leave the key out");
}

/// Inputs of recomputed layers, elsewhere or in parts.
void kept_input_rules(const Strategy& s, Rules& rules) {
  rules.forbid(s.memory.offload.activations != MemoryTier::device && s.memory.recompute != Recompute::full, "memory.offload.activations", "only inputs of recomputed layers are offloaded", "Set memory.recompute: full");
  rules.forbid(s.memory.partition_activations && s.memory.recompute != Recompute::full, "memory.partition_activations", "only inputs of recomputed layers are partitioned", "Set memory.recompute: full");
  rules.forbid(s.memory.partition_activations && s.parallelism.sequence_parallel && s.parallelism.degrees.tensor > 1, "memory.partition_activations", "sequence parallelism has partitioned them already", "Leave one of the two out");
}

}  // namespace

std::vector<Diagnostic> problems_of(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, int gpus_per_node) {
  Rules rules;
  const Degrees& d = s.parallelism.degrees;
  const Training& t = s.training;
  tensor_rules(model, s, rules);
  rules.forbid(model.position == model::Position::learned && t.sequence_length > model.max_positions, "training.sequence_length",
               text(t.sequence_length) + " tokens, but the model has " + text(model.max_positions) + " learned positions", "Use at most " + text(model.max_positions));
  format_rules(model, s, rules);
  context_rules(model, s, profile, rules);
  if (!within_limits(model, s, profile, rules)) return rules.take();
  batch_rules(s, rules);
  graph_rules(s, rules);
  exchange_overlap_rules(model, s, rules);
  rules.forbid(t.compile.has_value() && *t.compile != profile.compiled, "training.compile",
               "the framework profile '" + profile.name + (profile.compiled ? "' is compiled" : "' has no compiled form"), "Leave the key out, or choose torchtitan or torchtitan-compile");
  if (has_experts(model)) expert_rules(model, s, profile, gpus_per_node, rules);
  routing_rules(s, rules);
  rules.forbid(t.multi_token_prediction && model.mtp_layers == 0, "training.multi_token_prediction", "the model has no multi-token-prediction layers", "Leave the key out, or set model.mtp_layers");
  if (!has_experts(model)) no_expert_rules(s, rules);
  if (d.pipeline > 1) pipeline_rules(model, s, profile, rules);
  else one_stage_rules(model, s, rules);
  deferred_head_rules(model, s, profile, rules);
  narrow_parameter_rules(s, profile, rules);
  rules.forbid(t.precision == Precision::fp8_rowwise && profile.transformer_engine, "training.precision", "Transformer Engine's fp8 has no scales per row", "Use fp8 or mxfp8, or framework torchtitan or torchtitan-compile");
  data_parallel_rules(s, profile, gpus_per_node, rules);
  for (Diagnostic& problem : tuning_problems(model, s, profile)) rules.add(std::move(problem));
  if (s.memory.device_map.active() && rules.empty())
    for (Diagnostic& problem : device_map_problems(model, s, profile)) rules.add(std::move(problem));
  rules.forbid(s.backend != Backend::nccl && d.pipeline > 1, "cluster.backend", "Gloo and MPI send host tensors only (torch.distributed, table of backends): stages on GPUs cannot exchange activations", "Use nccl");
  checkpoint_rules(model, s, rules);
  document_rules(s, profile, rules);
  tiling_rules(model, s, profile, rules);
  sequence_chunk_rules(model, s, profile, rules);
  recomputed_module_rules(s, rules);
  optimizer_in_backward_rules(s, profile, rules);
  offload_rules(s, rules);
  optimizer_rules(s, rules);
  kept_input_rules(s, rules);
  rules.forbid(d.shard() > 0 && d.data % d.shard() != 0, "parallelism.data_shard", text(d.shard()) + " does not divide the data-parallel degree " + text(d.data), use_divisor(d.data, 1 << 16));
  return rules.take();
}

}  // namespace rehearse::strategies
