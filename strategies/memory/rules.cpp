// Rules about memory: recomputation, sequences in pieces, offloading, and the states of optimizers. Part of the rules (rules.cpp).
#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "strategies/layer/offload_groups.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/rules.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {
namespace {

/// Parts of a layer that selective recomputation knows (strategies/layer/transformer_layer.cpp).
constexpr const char* kRecomputedModules[] = {"core_attn", "layernorm", "latent_layernorm", "mlp", "mlp_act", "mla_up_proj", "moe", "moe_act", "shared_experts", "shared_experts_act", "operators", "grouped_products", "products", "weight_products", "attention_products", "attention_projections", "qkv_products"};

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
  rules.forbid(m.tiled_mlp_num_shards > s.training.sequence_length / s.parallelism.degrees.context, "memory.tiled_mlp_num_shards", "more pieces than a rank's " + std::to_string(s.training.sequence_length / s.parallelism.degrees.context) + " tokens", "Use fewer");
  const auto again = [&](const std::string& module) { return m.recompute == Recompute::selective && (module == "mlp" || module == "mlp_act"); };
  rules.forbid(m.tiled_mlp && std::any_of(m.recompute_modules.begin(), m.recompute_modules.end(), again), "memory.recompute_modules", "tiled MLPs are made again in backward already", "Leave out mlp and mlp_act");
}

/// torchtitan's ChunkedCELoss where it is asked for; where it is the profile's habit only, such jobs have a loss on all logits.
void chunked_loss_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  if (s.training.cross_entropy != LossKind::chunked_linear) return;
  const char *key = "training.cross_entropy", *off = "Leave the key out, or use another cross_entropy";
  rules.forbid(model.softcapped_logits, key, "capped logits in chunks are not simulated", off);
  rules.forbid(model.head_bias, key, "the output layer in chunks is simulated without a bias, which this model has", off);
  rules.forbid(s.training.multi_token_prediction, key, "further heads in chunks are not simulated", off);
  rules.forbid(s.training.phase == StepKind::evaluation, key, "chunks without gradients are not simulated", off);
  rules.forbid(s.memory.sequence_chunk > 0, key, "memory.sequence_chunk cuts the loss itself", off);
  rules.forbid(!adapted_parts(s.tuning, "lm_head", {"lm_head"}).empty(), key, "adapters of lm_head in chunks are not simulated", "Leave lm_head out of tuning.targets, or use another cross_entropy");
}

/// Liger's fused linear cross-entropy (strategies/layer/linear_loss.cpp).
void linear_loss_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (s.training.cross_entropy.value_or(profile.loss) != LossKind::fused_linear) return;
  const char *key = "training.cross_entropy", *off = "Use another cross_entropy (fused: the loss alone)", *what = "Liger's fused linear cross-entropy";
  rules.forbid(s.parallelism.degrees.tensor > 1, key, std::string(what) + " knows no tensor-parallel output layer", off);
  rules.forbid(s.parallelism.degrees.pipeline > 1, key, "output layer and loss are one, and pipeline stages may part them", off);
  rules.forbid(s.training.multi_token_prediction, key, std::string("further heads of ") + what + " are not simulated", off);
  rules.forbid(s.training.phase == StepKind::evaluation, key, std::string(what) + " without gradients is not simulated", off);
  rules.forbid(s.memory.sequence_chunk > 0, key, "memory.sequence_chunk cuts the loss itself", off);
  rules.forbid(!adapted_parts(s.tuning, "lm_head", {"lm_head"}).empty(), key, std::string(what) + " multiplies with lm_head's own weight and passes its adapters by", "Leave lm_head out of tuning.targets, or use another cross_entropy (fused: the loss alone)");
  rules.forbid(s.tuning.four_bit() && profile.quantises_head, key, std::string(what) + " knows no output layer in 4 bits", off);
  rules.forbid(model.head_bias, key, std::string(what) + " is simulated without a bias of the output layer, which this model has", off);
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
  rules.forbid(t.sequence_length % m.sequence_chunk != 0 || t.sequence_length / m.sequence_chunk < 2, key, "a sequence of " + std::to_string(t.sequence_length) + " tokens is not two or more chunks of " + std::to_string(m.sequence_chunk), "Use a divisor of the sequence");
  constexpr std::int64_t kMostChunks = 1024;   // every chunk attends to all before it
  rules.forbid(t.sequence_length / m.sequence_chunk > kMostChunks, key, "more than " + std::to_string(kMostChunks) + " chunks are not simulated", "Use a larger chunk");
  rules.forbid(m.sequence_chunk % (64LL * d.context) != 0, key, "each of " + std::to_string(d.context) + " ranks cuts its part of a chunk of " + std::to_string(m.sequence_chunk) + " tokens into 32 pieces for the loss, 2 for the MLP", "Use a multiple of " + std::to_string(64LL * d.context));
  rules.forbid(scores_in_memory(t, profile), key, "blocks of scores are merged by their log-sum-exp, which fused kernels give", "Set training.attention: flash");
  const bool plain = std::all_of(model.layers.begin(), model.layers.end(), [](const model::Layer& l) { return !l.moe && l.window == 0; });
  rules.forbid(!plain || model.latent.present() || model.qk_norm || model.attention_sinks || model.scales.any(), key, "experts, windows, latent attention, normalised or scaled heads and sinks in chunks are not simulated", off);
  rules.forbid(model.dropout > 0 && profile.dropout, key, "FPDT has no dropout (Megatron-DeepSpeed transformer.py)", "Set model.dropout: 0");
  rules.forbid(t.precision != Precision::bf16 && t.precision != Precision::fp16, key, "chunks of other formats than 16 bit are not simulated", "Set training.precision: bf16");
  rules.forbid(profile.autocast || profile.transformer_engine, key, "chunks under autocast or Transformer Engine are not simulated", "Use framework megatron-deepspeed");
  rules.forbid(s.tuning.kind != TuningKind::full, key, "chunks with frozen weights or adapters are not simulated", off);
  rules.forbid(t.multi_token_prediction || t.document_length > 0, key, "further heads and packed documents in chunks are not simulated", off);
  rules.forbid(m.recompute == Recompute::selective, key, "parts of chunked layers are made again in backward already", "Use memory.recompute: full or none");
  rules.forbid(m.tiled_mlp || t.cross_entropy == LossKind::tiled, m.tiled_mlp ? "memory.tiled_mlp" : "training.cross_entropy", "memory.sequence_chunk cuts MLP and loss itself", off);
}

/// Names of what is recomputed.
void recomputed_module_rules(const Strategy& s, Rules& rules) {
  const std::vector<std::string>& modules = s.memory.recompute_modules;
  const auto named = [&](const char* name) { return std::find(modules.begin(), modules.end(), name) != modules.end(); };
  rules.forbid(named("grouped_products") && !named("operators"), "memory.recompute_modules", "'grouped_products' is what 'operators' keeps besides, and does nothing alone", "Use [operators, grouped_products]");
  for (const std::string& m : modules) {
    const bool known = std::any_of(std::begin(kRecomputedModules), std::end(kRecomputedModules), [&](const char* name) { return m == name; });
    rules.forbid(!known, "memory.recompute_modules", "'" + m + "' is no part of a layer that is recomputed", fmt::format("Use {}", fmt::join(kRecomputedModules, ", ")));
  }
}

/// Modules whose saved tensors wait in host memory. Source: megatron/core/transformer/transformer_config.py, __post_init__ (fine_grained_activation_offloading).
void offloaded_module_rules(const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  const std::vector<std::string>& modules = s.memory.offload.modules;
  if (modules.empty()) return;
  const char *key = "memory.offload.modules", *off = "Leave the key out";
  const auto named = [&](const std::vector<std::string>& list, const char* name) { return std::find(list.begin(), list.end(), name) != list.end(); };
  for (const std::string& m : modules) rules.forbid(!named(offload_module_names(), m.c_str()), key, "'" + m + "' is no module whose saved tensors are offloaded", fmt::format("Use {}", fmt::join(offload_module_names(), ", ")));
  rules.forbid(!profile.transformer_engine, key, "only Megatron offloads by modules", "Use a framework that has Transformer Engine's layers, as megatron-core, or memory.offload.activations");
  rules.forbid(named(modules, "attn_proj") && !named(modules, "core_attn"), key, "attn_proj's input is what core_attn keeps", "Add core_attn");
  rules.forbid(named(modules, "fused_group_mlp") && (named(modules, "expert_fc1") || named(modules, "moe_act")), key, "fused_group_mlp is expert_fc1, moe_act and more", "Leave these out");
  rules.forbid(named(modules, "fused_group_mlp") && !s.experts.fused_mlp.value_or(profile.fused_expert_mlp), key, "the experts' MLPs are not one operation", "Set experts.fused_mlp: true, or use expert_fc1 and moe_act");
  rules.forbid(s.memory.offload.activations != MemoryTier::device, key, "all activations are offloaded already", "Leave out memory.offload.activations");
  rules.forbid(s.memory.recompute == Recompute::full, key, "layers that are made again keep their input alone", "Use memory.recompute: selective, or leave the key out");
  const bool inside = named(modules, "expert_fc1") || named(modules, "moe_act") || named(modules, "fused_group_mlp");
  rules.forbid(s.memory.recompute == Recompute::selective && named(s.memory.recompute_modules, "moe") && inside, key, "the whole expert layer is made again", "Leave moe out of memory.recompute_modules");
  rules.forbid(s.experts.paged_stash && inside, key, "experts.paged_stash takes the same tensors", off);
  rules.forbid(s.training.cuda_graph.value_or(false), key, "copies inside one graph of the whole step are not simulated", off);
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
  // pipelined_optimizer_swapper.py: "ran out of swap buffers, try increasing 'buffer_count'".
  const std::int64_t states = moments_of(s.training.optimizer) + 2, buffers = (o.pipelined ? 3 : 1) * states;
  rules.forbid(o.optimizer == MemoryTier::nvme && o.buffers.value_or(buffers) < buffers, "memory.offload.buffers",
               fmt::format("{} buffers, but a piece has {} (parameters, gradients, moments){}", o.buffers.value_or(0), states, o.pipelined ? ", and pipelined one is read and one written beside the one that is updated" : ""),
               fmt::format("Use {}, or leave the key out", buffers));
  rules.forbid(o.ratio < 1 && !(states_away && (kind == DataParallelKind::zero3 || kind == DataParallelKind::distributed_optimizer)), "memory.offload.ratio", "only a ZeRO-3 or Megatron optimizer on the CPU can be offloaded in part",
               "Leave the key out");
}

/// What an optimizer needs of the states that it has.
void optimizer_rules(const Strategy& s, Rules& rules) {
  const Training& t = s.training;
  const DataParallelKind kind = s.data_parallel.kind;
  const char* why = t.optimizer == Optimizer::muon             ? "muon orthogonalises whole matrices, which sharded optimizer states do not have"
                    : kind == DataParallelKind::fsdp2 ? "adafactor's means over rows are sums over all ranks where these are sharded, which are not simulated"
                                                      : "flattened shards have no rows and columns for adafactor";
  rules.forbid(!states_are_elementwise(t.optimizer) && !keeps_whole_states(kind), "training.optimizer", why, "Use data_parallel.kind ddp, or another optimizer");
  rules.forbid(s.memory.offload.optimizer != MemoryTier::device && (t.optimizer == Optimizer::adamw_8bit || !states_are_elementwise(t.optimizer)), "training.optimizer", "there is no CPU form of this optimizer", "Use adamw, lion, momentum or sgd");
  rules.forbid(t.optimizer_state_dtype.has_value() && (t.optimizer == Optimizer::adamw_8bit || t.optimizer == Optimizer::adafactor), "training.optimizer_state_dtype", "this optimizer's states have a format of their own", "Leave the key out");
}

/// Inputs of recomputed layers, elsewhere or in parts.
void kept_input_rules(const Strategy& s, Rules& rules) {
  rules.forbid(s.memory.partition_activations && s.memory.recompute != Recompute::full, "memory.partition_activations", "only inputs of recomputed layers are partitioned", "Set memory.recompute: full");
  rules.forbid(s.memory.partition_activations && s.parallelism.sequence_parallel && s.parallelism.degrees.tensor > 1, "memory.partition_activations", "sequence parallelism has partitioned them already", "Leave one of the two out");
}

}  // namespace

void checkpoint_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules) {
  const Memory& m = s.memory;
  const std::int64_t recomputed = (model.layer_count() + m.recompute_every - 1) / m.recompute_every;
  rules.forbid(m.contiguous_checkpoints && m.recompute != Recompute::full, "memory.contiguous_checkpoints", "only inputs of recomputed layers are kept in buffers", "Set memory.recompute: full");
  rules.forbid(m.contiguous_checkpoints && !m.partition_activations, "memory.contiguous_checkpoints", "DeepSpeed keeps only partitioned activations in buffers", "Set memory.partition_activations: true");
  rules.forbid(m.contiguous_checkpoints && s.parallelism.degrees.pipeline > 1, "memory.contiguous_checkpoints", "the buffers are those of one micro-batch; pipeline stages have several under way", "Leave the key out");
  rules.forbid(m.recompute_layers > 0 && m.recompute_every > 1, "memory.recompute_layers", "memory.recompute_every chooses among all layers, recompute_layers takes each chunk's first", "Give one of the two");
  const DataParallelKind kind = s.data_parallel.kind;
  const bool spans = m.recompute == Recompute::full && m.recompute_span > 1;
  const auto of_spans = [&](bool both, const char* what) { rules.forbid(both, "memory.recompute_span", std::string("one checkpoint for several layers is not simulated ") + what, "Use 1"); };
  rules.forbid(spans && (m.recompute_every > 1 || m.recompute_layers > 0), "memory.recompute_span", "memory.recompute_every and recompute_layers choose single layers", "Give one of the three");
  of_spans(spans && (is_fsdp(kind) || kind == DataParallelKind::zero3 || kind == DataParallelKind::megatron_fsdp), "where weights are gathered layer by layer");
  of_spans(spans && (m.offload.activations != MemoryTier::device || !m.offload.modules.empty() || m.partition_activations || m.contiguous_checkpoints), "with inputs that wait elsewhere or are partitioned");
  of_spans(spans && s.tuning.kind != TuningKind::full, "beside adapters and frozen weights");
  of_spans(spans && s.experts.overlap_exchange, "under overlapped exchanges of tokens");
  rules.forbid(m.contiguous_checkpoints && m.recompute_layers > 0, "memory.contiguous_checkpoints", "DeepSpeed's buffers are for layers spread evenly, Megatron's block method takes each chunk's first", "Leave out memory.recompute_layers");
  rules.forbid(m.number_checkpoints > 0 && !m.contiguous_checkpoints, "memory.number_checkpoints", "there are no buffers to count", "Set memory.contiguous_checkpoints: true, or leave the key out");
  rules.forbid(m.number_checkpoints > 0 && m.number_checkpoints < recomputed, "memory.number_checkpoints", std::to_string(m.number_checkpoints) + " buffers for " + std::to_string(recomputed) + " recomputed layers", "Use " + std::to_string(recomputed));
  rules.forbid(m.synchronize_checkpoints && m.recompute != Recompute::full, "memory.synchronize_checkpoints", "there are no recomputed layers to wait for", "Set memory.recompute: full");
  const bool pages = kind == DataParallelKind::none || kind == DataParallelKind::ddp || is_fsdp(kind);
  rules.forbid(m.paged_optimizer && !pages, "memory.paged_optimizer", "only the states that one optimizer object has are paged: of replicas, or of FSDP's shards", "Use data_parallel.kind ddp or fsdp2, or memory.offload.optimizer: cpu");
  rules.forbid(m.paged_optimizer && s.training.optimizer != Optimizer::adamw && s.training.optimizer != Optimizer::adamw_8bit && s.training.optimizer != Optimizer::lion, "memory.paged_optimizer",
               "bitsandbytes pages the states of Adam and Lion only", "Use adamw, adamw-8bit or lion");
  rules.forbid(m.paged_optimizer && m.offload.optimizer != MemoryTier::device, "memory.paged_optimizer", "the states are in host memory already", "Leave out memory.offload.optimizer");
}

/// Source: Megatron-LM megatron/core/transformer/transformer_config.py, __post_init__: silu and gated_linear_unit only.
void activation_input_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  if (!s.memory.fp8_activation_inputs.value_or(false)) return;
  const char* key = "memory.fp8_activation_inputs";
  rules.forbid(!model.gated_mlp || model.activation != model::Activation::silu, key, "only SwiGLU's input is kept in 8 bits, and the model has another activation", "Leave the key out");
  rules.forbid(is_native(profile.activation), key, "the activation of the framework profile '" + profile.name + "' is no fused kernel", "Use megatron-core, or leave the key out");
}

void memory_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules) {
  tiling_rules(model, s, profile, rules);
  chunked_loss_rules(model, s, rules);
  linear_loss_rules(model, s, profile, rules);
  sequence_chunk_rules(model, s, profile, rules);
  recomputed_module_rules(s, rules);
  offloaded_module_rules(s, profile, rules);
  optimizer_in_backward_rules(s, profile, rules);
  offload_rules(s, rules);
  optimizer_rules(s, rules);
  kept_input_rules(s, rules);
  activation_input_rules(model, s, profile, rules);
}

}  // namespace rehearse::strategies
