// The one place that says which combinations cannot be, why, and what is near. What is about memory: memory/rules.cpp.
#include <algorithm>
#include <numeric>

#include "strategies/data/problems.h"
#include "strategies/memory/device_map.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/plan_writer.h"
#include "strategies/rules.h"
#include "strategies/stage_layers.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {
namespace {

constexpr std::int64_t kMaxMicroBatches = 1 << 16;

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

bool is_capturable(const std::string& module) {
  for (const char* known : {"attn", "mamba", "mlp", "moe_router", "moe_preprocess", "moe"})
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
  const int stages = s.parallelism.degrees.pipeline, rounds = s.pipeline.accumulation_steps;
  rules.forbid(s.micro_batches() % rounds != 0, "pipeline.accumulation_steps", text(s.micro_batches()) + " micro-batches per step do not divide into " + text(rounds) + " runs of the schedule",
               use_divisor(s.micro_batches(), s.micro_batches()));
  if (s.micro_batches() % rounds != 0) return std::nullopt;
  const int micro_batches = static_cast<int>(s.micro_batches()) / rounds;
  if (s.pipeline.schedule == "table") {
    PipelineProgram program = schedule_of(s);  // the scenario's reader has parsed it before
    rules.forbid(program.stages() != stages, "parallelism.pipeline", text(stages) + " stages, but the schedule's table has rows for " + text(program.stages()), "Use " + text(program.stages()));
    const std::int64_t in_table = program.micro_batches / rounds;
    rules.forbid(in_table != micro_batches, "training.global_batch_size",
                 text(micro_batches) + " micro-batches per step, but the schedule's table has " + text(in_table),
                 "Use " + text(in_table * rounds * s.training.micro_batch_size * s.parallelism.degrees.data));
    if (program.stages() != stages || in_table != micro_batches) return std::nullopt;
    return program;
  }
  const PipelineSchedule* schedule = kPipelineSchedules.find(s.pipeline.schedule);
  rules.forbid(schedule == nullptr, "pipeline.schedule", "there is no pipeline schedule '" + s.pipeline.schedule + "'", "");
  if (schedule == nullptr) return std::nullopt;
  const bool other_chunks = schedule->fixed_chunks > 0 && s.pipeline.virtual_stages > 1 && s.pipeline.virtual_stages != schedule->fixed_chunks;
  rules.forbid(other_chunks, "pipeline.virtual_stages", "'" + s.pipeline.schedule + "' has " + text(schedule->fixed_chunks) + (schedule->fixed_chunks == 1 ? " model chunk" : " model chunks") + " per rank",
               "Leave the key out, or use an interleaved schedule");
  const PipelineShape shape = pipeline_shape(s);
  rules.forbid(shape.overlap_warmup_flush && !shape.overlap_messages, "pipeline.overlap_warmup_flush", "messages of the warm-up and the flush travel under the passes only where the others do", "Set pipeline.overlap_messages: true");
  const std::vector<std::string> problems = schedule->problems(shape);
  for (const std::string& p : problems) rules.forbid(true, "pipeline.schedule", p, "");
  if (other_chunks || !problems.empty()) return std::nullopt;
  return in_rounds(schedule->make(shape), rounds);
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
    const std::int64_t shared = profile.repeat_kv && (profile.transformer_engine || profile.exchanges_repeated_kv) ? heads : std::max<std::int64_t>(1, model.kv_heads / d.tensor);
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

/// Learned factors beside the norms'.
void learned_scale_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const char* key = "model.learned_scales";
  rules.forbid(model.scales.embedding && s.parallelism.degrees.pipeline > 1, key, "the embedding's output is not sent to later pipeline stages", "Set parallelism.pipeline: 1, or leave embedding out");
  rules.forbid(model.scales.queries && profile.repacks_qkv, key, "the profile '" + profile.name + "' rotates queries and keys in place", "Leave queries out, or choose another framework");
}

/// Several documents in one sample.
void document_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Training& t = s.training;
  if (t.attended_length() == t.sequence_length) return;
  rules.forbid(scores_in_memory(t, profile), "training.document_length", "attention with its scores in memory computes the whole square whatever the mask", "Set training.attention: flash, or leave the key out");
  const ContextKind kind = context_kind(s, profile);
  const bool whole = kind == ContextKind::ulysses || (kind != ContextKind::all_gather && profile.transformer_engine);
  rules.forbid(s.parallelism.degrees.context > 1 && !whole, "training.document_length", "documents are dealt out to the ranks of Transformer Engine's ring only; elsewhere blocks of the whole causal mask are computed",
               "Use parallelism.context_kind: ulysses, or ring with Megatron, or leave the key out");
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
  rules.forbid(profile.retains_graph, key, "under torch.distributed.pipelining a half of backward keeps the whole graph, the layers' outputs too, which gradients at the end of all passes would hold",
               "Use a framework of Megatron's, or leave the key out");
  rules.forbid(!s.pipeline.schedule.starts_with("1f1b") && !s.pipeline.schedule.starts_with("interleaved-1f1b") && s.pipeline.schedule != "gpipe", key, "'" + s.pipeline.schedule + "' decides itself when weight gradients are made",
               "Use 1f1b or interleaved-1f1b, or leave the key out");
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

/// Whose layers mix tokens by a state-space scan.
void state_space_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (!model.state_space.present()) return;
  const model::StateSpace& mixer = model.state_space;
  const Degrees& d = s.parallelism.degrees;
  const Training& t = s.training;
  rules.forbid(mixer.heads % d.tensor != 0 || mixer.groups % d.tensor != 0, "parallelism.tensor",
               text(d.tensor) + " does not divide the " + text(mixer.heads) + " heads and " + text(mixer.groups) + " groups of the state-space mixers", use_divisor(std::gcd(mixer.heads, mixer.groups), 64));
  if (d.context > 1) {
    const std::int64_t heads = mixer.heads / d.tensor, groups = std::max<std::int64_t>(1, mixer.groups / d.tensor);
    rules.forbid(!profile.transformer_engine, "parallelism.context", "only Megatron's state-space mixers over a context group are simulated", "Use parallelism.context: 1, or a framework of Megatron's");
    rules.forbid(heads % d.context != 0 || (groups % d.context != 0 && d.context % groups != 0), "parallelism.context",
                 text(d.context) + " does not divide the " + text(heads) + " heads of a tensor rank's state-space mixers, or neither divides the other of their " + text(groups) + " groups", use_divisor(heads, 64));
  }
  rules.forbid(t.sequence_length % mixer.chunk != 0, "training.sequence_length", "the scan's chunks of " + text(mixer.chunk) + " tokens do not fill a sample of " + text(t.sequence_length), "Use a multiple of " + text(mixer.chunk));
  rules.forbid(t.precision == Precision::fp32 || t.precision == Precision::tf32, "training.precision", "state-space scans in fp32 are not simulated", "Use bf16");
  rules.forbid(s.memory.sequence_chunk > 0, "memory.sequence_chunk", "state-space mixers in chunks of the sequence are not simulated", "Leave the key out");
}

/// Whose layers mix tokens by a gated delta rule, or whose attention has a gate.
void delta_net_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  rules.forbid(model.attention_gate && profile.repacks_qkv, "training.framework", "gates of attention's output are not in nanotron's attention", "Use another framework");
  rules.forbid(model.attention_gate && s.memory.sequence_chunk > 0, "memory.sequence_chunk", "gated attention in chunks of the sequence is not simulated", "Leave the key out");
  if (!model.delta_net.present()) return;
  const model::DeltaNet& mixer = model.delta_net;
  const Degrees& d = s.parallelism.degrees;
  rules.forbid(mixer.key_heads % d.tensor != 0 || mixer.value_heads % d.tensor != 0, "parallelism.tensor", text(d.tensor) + " does not divide the " + text(mixer.key_heads) + " key heads of the delta-rule mixers", use_divisor(mixer.key_heads, 64));
  if (d.context > 1) {
    const std::int64_t keys = mixer.key_heads / d.tensor;
    rules.forbid(!profile.transformer_engine, "parallelism.context", "only Megatron's delta-rule mixers over a context group are simulated", "Use parallelism.context: 1, or a framework of Megatron's");
    rules.forbid(keys % d.context != 0, "parallelism.context", text(d.context) + " does not divide the " + text(keys) + " key heads of a tensor rank's delta-rule mixers", use_divisor(keys, 64));
  }
  rules.forbid(s.training.precision == Precision::fp32 || s.training.precision == Precision::tf32, "training.precision", "delta rules in fp32 are not simulated", "Use bf16");
  rules.forbid(s.memory.sequence_chunk > 0, "memory.sequence_chunk", "delta-rule mixers in chunks of the sequence are not simulated", "Leave the key out");
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
    rules.forbid(!is_capturable(m), "training.cuda_graph_modules", "'" + m + "' is no part of a layer that graphs are made of", "Use attn, mamba, mlp, moe_router, moe_preprocess or moe");
  rules.forbid(t.launch_blocking && (t.cuda_graph.value_or(false) || !t.cuda_graph_modules.empty()), "training.launch_blocking", "kernels of a CUDA graph are not launched one by one", "Leave out launch_blocking or the graphs");
  rules.forbid(t.cuda_graph.value_or(false) && !t.cuda_graph_modules.empty(), "training.cuda_graph_modules", "the whole step is one graph already", "Leave out one of the two keys");
}

/// A micro-batch's exchange of tokens under another's compute.
void exchange_overlap_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  if (!s.experts.overlap_exchange) return;
  const Degrees& d = s.parallelism.degrees;
  const char* key = "experts.overlap_exchange";
  rules.forbid(!has_experts(model) || d.expert == 1, key, "no tokens travel", "Leave the key out");
  const bool merges = s.pipeline.schedule == "1f1b" || s.pipeline.schedule == "interleaved-1f1b", dual = s.pipeline.schedule == "dualpipe" || s.pipeline.schedule == "dualpipev";
  rules.forbid(dual, key, "'" + s.pipeline.schedule + "' merges a forward and a backward itself", "Leave the key out");
  rules.forbid(!merges && !dual, key, "only Megatron's 1F1B schedules merge a forward and a backward", d.pipeline > 1 ? "Use interleaved-1f1b with pipeline.virtual_stages 2 or more" : "Use 1f1b");
  rules.forbid(merges && d.pipeline > 1 && s.pipeline.virtual_stages == 1, key, "Megatron merges a forward and a backward of several stages under the interleaved schedule only", "Set pipeline.virtual_stages to 2 or more");
  rules.forbid(s.memory.offload.activations != MemoryTier::device, key, "layers of two micro-batches in turn have no place to offload their activations", "Leave out one of the two");
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
  rules.forbid(d.expert * d.expert_tensor == 1 && stages_are_between(d, s.parallelism.order), "parallelism.order", "experts that every rank of a stage holds whole need those ranks side by side", "Put pp last");
  if (dispatcher == Dispatcher::hierarchical && d.expert > 1 && problems_of(d, d.world(), s.parallelism.order).empty()) {
    const GroupShape group = Layout(d, s.parallelism.order).shape_of(Axis::expert, 0, gpus_per_node);
    rules.forbid(group.ranks_per_node * group.nodes != group.ranks, "experts.dispatcher", "the " + text(d.expert) + " ranks of an expert group lie unevenly on " + text(group.nodes) + " nodes, and a hierarchical exchange needs the same places on each",
                 "Use all-to-all, or parallelism.expert " + text(gpus_per_node));
  }
  rules.forbid(s.experts.capacity_factor > 0 && s.experts.imbalance > 1, "experts.imbalance", "a capacity limits what the fullest expert gets", "Leave out experts.imbalance or experts.capacity_factor");
  rules.forbid(!s.experts.routing.even() && s.experts.imbalance > 1, "experts.imbalance", "experts.routing says how full each rank is", "Leave out one of the two");
  rules.forbid(s.experts.mask_products.value_or(profile.mask_products) && d.expert * d.expert_tensor > 1 && dispatcher != Dispatcher::all_to_all && dispatcher != Dispatcher::hierarchical, "experts.mask_products", "masks put tokens into slots before they travel, and this dispatcher sends tokens", "Set experts.dispatcher: all-to-all, or experts.mask_products: false");
  rules.forbid(s.experts.pad_to_capacity && s.experts.capacity_factor == 0, "experts.pad_to_capacity", "there is no capacity to pad to", "Set experts.capacity_factor");
  rules.forbid(s.experts.paged_stash && !s.experts.fused_mlp.value_or(profile.fused_expert_mlp), "experts.paged_stash", "only what fused experts keep goes into pages", "Set experts.fused_mlp, or leave the key out");
  rules.forbid(s.experts.rank_capacity_factor > 0 && !s.experts.fused_mlp.value_or(profile.fused_expert_mlp), "experts.rank_capacity_factor", "only Transformer Engine's operations take buffers that are not full", "Set experts.fused_mlp, or leave the key out");
  rules.forbid(d.expert == 1 && s.experts.imbalance > 1, "experts.imbalance", "every rank has all experts, so that none is fuller than another", "Leave the key out, or set parallelism.expert to 2 or more");
  rules.forbid(d.expert > 1 && s.experts.imbalance > static_cast<double>(d.expert), "experts.imbalance", "with " + text(d.expert) + " expert ranks the fullest can hold at most " + text(d.expert) + " times the mean", "Use a number from 1 to " + text(d.expert));
}

/// Distributions of tokens over experts, and what they need.
void routing_rules(const Strategy& s, Rules& rules) {
  const Routing& routing = s.experts.routing;
  const bool zipf = routing.distribution == RoutingKind::zipf, dirichlet = routing.distribution == RoutingKind::dirichlet;
  rules.forbid(zipf && !routing.skew, "experts.routing", "zipf needs its exponent", "Set experts.routing.skew: 0 is balanced, 1 is Zipf's law");
  rules.forbid(dirichlet && !routing.concentration, "experts.routing", "dirichlet needs its concentration", "Set experts.routing.concentration: shares vary by about 1 / sqrt(concentration)");
  rules.forbid(routing.round_robin() && routing.batch_concentration.has_value(), "experts.routing.batch_concentration", "round-robin deals to all micro-batches alike", "Leave the key out, or set experts.routing.distribution: balanced");
  rules.forbid(!zipf && routing.skew.has_value(), "experts.routing.skew", "only zipf has an exponent", "Leave the key out, or set experts.routing.distribution: zipf");
  rules.forbid(!dirichlet && routing.concentration.has_value(), "experts.routing.concentration", "only dirichlet has a concentration", "Leave the key out, or set experts.routing.distribution: dirichlet");
}

/// What only models with experts have.
void no_expert_rules(const Strategy& s, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  rules.forbid(s.experts.imbalance > 1 || s.experts.capacity_factor > 0 || s.experts.pad_to_capacity || s.experts.paged_stash || s.experts.rank_capacity_factor > 0 || !s.experts.routing.even(), "experts", "the model has no experts to route to", "Leave the section out, or use a model with experts");
  rules.forbid(d.expert > 1 || d.expert_tensor > 1, d.expert > 1 ? "parallelism.expert" : "parallelism.expert_tensor", "the model has no experts to split", "Use 1");
}

/// Layers and a schedule for several stages.
void pipeline_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Training& t = s.training;
  if (t.global_batch_size % (t.micro_batch_size * s.parallelism.degrees.data) != 0) return;   // no whole micro-batches to schedule
  const auto program = checked_schedule(s, rules);
  if (!program) return;
  const auto has = [&](ActionKind kind) {
    return std::any_of(program->ranks.begin(), program->ranks.end(), [&](const auto& rank) { return std::any_of(rank.begin(), rank.end(), [&](const Action& a) { return a.kind == kind; }); });
  };
  const bool splits = has(ActionKind::backward_input);
  // Source: pytorch issue 161904; torchtitan issue 3584.
  rules.forbid(splits && profile.compiled, "pipeline.schedule", "'" + s.pipeline.schedule + "' splits backward, which fails on layers that torch.compile has compiled", "Use interleaved-1f1b, or framework torchtitan");
  rules.forbid(splits && t.phase == StepKind::evaluation, "pipeline.schedule", "an evaluation has no backward that '" + s.pipeline.schedule + "' could split", "Use 1f1b or gpipe");
  rules.forbid(splits && (s.memory.offload.activations != MemoryTier::device || s.memory.partition_activations), "pipeline.schedule",
               "'" + s.pipeline.schedule + "' needs layer inputs twice, which stored elsewhere cannot be simulated", "Use 1f1b or an interleaved schedule");
  rules.forbid((splits || has(ActionKind::overlapped)) && s.memory.recompute == Recompute::full && s.memory.recompute_span > 1, "memory.recompute_span",
               "one checkpoint for several layers is not simulated where '" + s.pipeline.schedule + "' splits or overlaps passes", "Use 1, or 1f1b or an interleaved schedule");
  for (const std::string& p : stage_layer_problems(model, s, profile, program->virtual_stages))
    rules.forbid(true, s.pipeline.layers_per_stage.empty() ? "parallelism.pipeline" : "pipeline.layers_per_stage", p, "");
}

/// What only pipelines have.
void one_stage_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  rules.forbid(s.pipeline.virtual_stages > 1, "pipeline.virtual_stages", "interleaving needs pipeline stages", "Use 1, or parallelism.pipeline > 1");
  rules.forbid(s.pipeline.accumulation_steps > 1, "pipeline.accumulation_steps", "one stage has no schedule to run again", "Leave the key out: micro-batches are accumulated one after the other");
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
  if (kind == DataParallelKind::megatron_fsdp) return rules.forbid(t.precision != Precision::fp8, key, "of sharded weights only those with one scale each are simulated in 8 bits", "Set training.precision to fp8, or leave the key out");
  rules.forbid(kind != DataParallelKind::none && kind != DataParallelKind::ddp && kind != DataParallelKind::distributed_optimizer, key, "only weights that each rank has whole, or Megatron-FSDP's, are simulated in 8 bits", "Use data_parallel.kind distributed-optimizer, ddp or megatron-fsdp, or leave the key out");
}

/// Attention and output layer in 8 bits. Source: Transformer Engine 2.16 pytorch/attention/dot_product_attention/utils.py (combine_and_quantize);
/// Megatron core 0.18 extensions/transformer_engine.py (TELMHeadColumnParallelLinear).
void narrow_product_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const Training& t = s.training;
  const char* engine = "Use a profile that has, as megatron-core, or leave the key out";
  const std::string lacks = "the framework profile '" + profile.name + "' has no layers of Transformer Engine";
  if (t.fp8_attention) {
    const char* key = "training.fp8_attention";
    const std::int64_t width = model.query_width() / model.heads;
    rules.forbid(t.precision != Precision::fp8 && t.precision != Precision::mxfp8 && t.precision != Precision::nvfp4, key, "only jobs with products of 8 bits or fewer have attention's in 8",
                 "Set training.precision to fp8, mxfp8 or nvfp4, or leave the key out");
    rules.forbid(!profile.transformer_engine, key, lacks, engine);
    rules.forbid(t.attention == "unfused", key, "unfused attention multiplies in 16 bits", "Leave training.attention out, or the key");
    rules.forbid(s.parallelism.degrees.context > 1, key, "context-parallel attention is simulated in 16 bits only", "Use parallelism.context 1, or leave the key out");
    rules.forbid(s.memory.sequence_chunk > 0, key, "attention in chunks is simulated in 16 bits only", "Leave out memory.sequence_chunk, or the key");
    rules.forbid(t.precision == Precision::mxfp8 && (t.attended_length() % 128 != 0 || width % 32 != 0), key, "blocks of 32 want sequences that 128 divides and heads that 32 divides", "Change them, or leave the key out");
  }
  if (t.fp8_head) {
    const char* key = "training.fp8_head";
    rules.forbid(t.precision != Precision::mxfp8, key, "the output layer has products of 8 bits with scales per 32 only", "Set training.precision to mxfp8, or leave the key out");
    rules.forbid(!profile.transformer_engine, key, lacks, engine);
    rules.forbid(model.tied_embeddings, key, "Transformer Engine's output layer has a weight of its own, and the model's is the embedding's", "Leave the key out");
    rules.forbid(s.pipeline.deferred_head_gradients.has_value(), key, "Transformer Engine's output layer defers no gradients", "Leave out pipeline.deferred_head_gradients, or the key");
  }
}

/// Weights that are gathered in 8 bits.
void narrow_gather_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (s.data_parallel.fp8_gather == NarrowGather::none) return;
  const char* key = "data_parallel.fp8_gather";
  rules.forbid(s.data_parallel.kind != DataParallelKind::fsdp2, key, "only FSDP2 lets a weight say what is gathered of it", "Use data_parallel.kind fsdp2, or leave the key out");
  rules.forbid(s.training.precision != Precision::fp8, key, "only weights with one scale each are gathered in 8 bits", "Set training.precision to fp8, or leave the key out");
  rules.forbid(profile.transformer_engine, key, "the framework profile '" + profile.name + "' has Transformer Engine's layers, which cast what was gathered", "Use torchtitan, or leave the key out");
  rules.forbid(s.memory.offload.parameters != MemoryTier::device, key, "shards that wait on the host come up in 16 bits", "Leave out memory.offload.parameters, or the key");
}

/// Which replicas and shards can be.
void data_parallel_rules(const Strategy& s, const FrameworkProfile& profile, int gpus_per_node, Rules& rules) {
  const Degrees& d = s.parallelism.degrees;
  const DataParallelKind kind = s.data_parallel.kind;
  rules.forbid(kind == DataParallelKind::none && d.data > 1, "data_parallel.kind", "none cannot keep " + text(d.data) + " replicas equal", "Use ddp, or parallelism.data 1");
  rules.forbid(shards_parameters(kind) && profile.fused_gradient_accumulation, "data_parallel.kind", "the framework profile '" + profile.name + "' accumulates into whole gradients, which sharded parameters do not have",
               "Use distributed-optimizer or megatron-fsdp, or another framework");
  if (s.data_parallel.gather_under_update) {
    // Source: megatron/training/arguments.py, overlap_param_gather_with_optimizer_step.
    const char* key = "data_parallel.gather_under_update";
    rules.forbid(kind != DataParallelKind::distributed_optimizer, key, "only the distributed optimizer gathers a chunk's parameters after its update", "Use data_parallel.kind distributed-optimizer, or leave the key out");
    rules.forbid(d.pipeline == 1 || s.pipeline.virtual_stages == 1, key, "each rank holds one model chunk, so none is updated under the gather of another", "Use an interleaved schedule (pipeline.virtual_stages), or leave the key out");
    rules.forbid(!s.data_parallel.overlap_parameter_gather.value_or(profile.overlap_parameter_gather), key, "parameters are gathered after the update", "Set data_parallel.overlap_parameter_gather: true, or leave the key out");
    rules.forbid(s.memory.offload.optimizer != MemoryTier::device || s.memory.paged_optimizer, key, "states that are not on the GPU are updated together", "Leave the key out");
  }
  for (Diagnostic& problem : zero_problems(s, gpus_per_node)) rules.add(std::move(problem));
  megatron_fsdp_rules(s, profile, rules);
  narrow_gather_rules(s, profile, rules);
  if (kind == DataParallelKind::one_process) one_process_rules(s, profile, gpus_per_node, rules);
  rules.forbid(kind != DataParallelKind::one_process && s.data_parallel.gather != Gathered::logits, "data_parallel.gather", "only one process gathers from its GPUs", "Leave the key out, or use data_parallel.kind data-parallel");
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
  state_space_rules(model, s, profile, rules);
  delta_net_rules(model, s, profile, rules);
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
  narrow_product_rules(model, s, profile, rules);
  rules.forbid(t.precision == Precision::fp8_rowwise && profile.transformer_engine, "training.precision", "Transformer Engine's fp8 has no scales per row", "Use fp8 or mxfp8, or framework torchtitan or torchtitan-compile");
  data_parallel_rules(s, profile, gpus_per_node, rules);
  for (Diagnostic& problem : tuning_problems(model, s, profile, rules.empty())) rules.add(std::move(problem));
  if (s.memory.device_map.active() && rules.empty())
    for (Diagnostic& problem : device_map_problems(model, s, profile)) rules.add(std::move(problem));
  rules.forbid(s.backend != Backend::nccl && d.pipeline > 1, "cluster.backend", "Gloo and MPI send host tensors only (torch.distributed, table of backends): stages on GPUs cannot exchange activations", "Use nccl");
  checkpoint_rules(model, s, rules);
  document_rules(s, profile, rules);
  learned_scale_rules(model, s, profile, rules);
  memory_rules(model, s, profile, rules);
  rules.forbid(d.shard() > 0 && d.data % d.shard() != 0, "parallelism.data_shard", text(d.shard()) + " does not divide the data-parallel degree " + text(d.data), use_divisor(d.data, 1 << 16));
  return rules.take();
}

}  // namespace rehearse::strategies
