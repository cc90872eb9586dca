#include "strategies/unused_keys.h"

#include <algorithm>

namespace rehearse::strategies {

std::vector<UnusedKey> unused_keys(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& given, int gpus_per_node) {
  std::vector<UnusedKey> out;
  const auto unused = [&](bool is, const char* key, const char* why) {
    if (is) out.push_back({key, why});
  };
  using Kind = DataParallelKind;
  const Degrees& d = s.parallelism.degrees;
  const DataParallel& dp = s.data_parallel;
  const bool sharded = dp.kind == Kind::zero3 || dp.kind == Kind::fsdp1 || dp.kind == Kind::fsdp2 || dp.kind == Kind::megatron_fsdp;
  const bool bucketed = (!sharded || dp.kind == Kind::zero3) && dp.kind != Kind::none && dp.kind != Kind::one_process;
  const bool states_sharded = dp.kind == Kind::zero1 || dp.kind == Kind::zero2 || dp.kind == Kind::distributed_optimizer;
  unused(dp.bucket && !bucketed && dp.kind != Kind::one_process, "data_parallel.bucket", sharded ? "parameters that are sharded are reduced layer by layer" : "nothing is reduced");
  // What is so anyway is no wish that goes unheard.
  unused(dp.overlap_gradient_reduce && dp.kind == Kind::none, "data_parallel.overlap_gradient_reduce", "nothing is reduced");
  unused(dp.overlap_gradient_reduce == false && sharded && dp.kind != Kind::zero3, "data_parallel.overlap_gradient_reduce", "parameters that are sharded are reduced under backward");
  unused(dp.overlap_parameter_gather == true && !states_sharded && !sharded, "data_parallel.overlap_parameter_gather", "no parameters are gathered after the update");
  unused(dp.overlap_parameter_gather == false && sharded, "data_parallel.overlap_parameter_gather", "parameters that are sharded are gathered layer by layer");
  unused(dp.reshard_after_forward && !sharded, "data_parallel.reshard_after_forward", "parameters are not sharded");
  unused(dp.parameter_dtype && !sharded, "data_parallel.parameter_dtype", "no parameters are gathered before their use");
  unused(dp.gather_under_update && d.data * d.context == 1, "data_parallel.gather_under_update", "there is one data-parallel rank");
  unused(dp.double_buffer && dp.kind != Kind::megatron_fsdp, "data_parallel.double_buffer", "only megatron-fsdp has double buffers");
  unused(dp.registered_buffers && dp.kind != Kind::megatron_fsdp && dp.kind != Kind::distributed_optimizer, "data_parallel.registered_buffers", "only distributed-optimizer and megatron-fsdp gather from and scatter into registered buffers");
  unused(dp.gradient_dtype && sharded && dp.kind != Kind::megatron_fsdp, "data_parallel.gradient_dtype", "shards of gradients have the format of the parameters' shards");
  unused(dp.reduce_dtype && (dp.kind == Kind::none || dp.kind == Kind::one_process), "data_parallel.reduce_dtype", "nothing is reduced between processes");

  unused(s.parallelism.context_kind && d.context == 1, "parallelism.context_kind", "parallelism.context is 1");
  unused(s.parallelism.sequence_parallel && d.tensor == 1, "parallelism.sequence_parallel", "parallelism.tensor is 1");

  unused(dp.quantized_gradients && d.data * d.context <= gpus_per_node, "data_parallel.quantized_gradients", "inside one node DeepSpeed reduces gradients as ever");
  unused(dp.secondary_partition.value_or(1) >= d.data * d.context && dp.secondary_partition.value_or(1) > 1, "data_parallel.secondary_partition", "the second copy is shared by the same ranks as the first: it only costs");

  const Pipeline& p = s.pipeline;
  unused(d.pipeline == 1 && p.schedule != "1f1b", p.schedule == "table" ? "pipeline.table" : "pipeline.schedule", "there is one stage");
  unused(p.virtual_stages > 1 && p.schedule == "table", "pipeline.virtual_stages", "the table says which stages a rank has");
  unused(p.post_validation && d.pipeline == 1, "pipeline.post_validation", "there is one stage");
  const bool interleaves = d.pipeline > 1 && p.schedule == "interleaved-1f1b";
  for (const auto& [is, key] : {std::pair{p.overlap_warmup_flush, "pipeline.overlap_warmup_flush"}, {p.group_size > 0, "pipeline.group_size"}})
    unused(is && !interleaves, key, d.pipeline == 1 ? "there is one stage" : "only the schedule interleaved-1f1b has a choice");
  unused(p.overlap_messages && (d.pipeline == 1 || p.schedule != "interleaved-1f1b"), "pipeline.overlap_messages", d.pipeline == 1 ? "there is one stage" : "only the schedule interleaved-1f1b has a choice");

  const bool experts = std::any_of(model.layers.begin(), model.layers.end(), [](const model::Layer& l) { return l.moe; });
  for (const auto& [is, key] : {std::pair{s.experts.dispatcher.has_value(), "experts.dispatcher"}, {s.experts.overlap_shared.has_value(), "experts.overlap_shared"}, {s.experts.fused_mlp.has_value(), "experts.fused_mlp"}, {s.experts.fused_router.has_value(), "experts.fused_router"}, {s.experts.fused_permute.has_value(), "experts.fused_permute"}, {s.experts.fused_index_map.has_value(), "experts.fused_index_map"}, {s.experts.mask_products.has_value(), "experts.mask_products"}})
    unused(is && !experts, key, "the model has no experts");
  for (const auto& [is, key] : {std::pair{s.experts.fused_router.has_value(), "experts.fused_router"}, {s.experts.fused_permute.has_value(), "experts.fused_permute"}})
    unused(is && experts && !given.routes_by_map, key, "the framework is not Megatron, whose operators it chooses");
  const bool travels = d.expert > 1 || d.expert_tensor > 1;
  const Dispatcher dispatcher = s.experts.dispatcher.value_or(given.dispatcher);
  unused(experts && (!travels || (d.expert == 1 && s.experts.dispatcher == Dispatcher::hierarchical)) && s.experts.dispatcher.has_value(), "experts.dispatcher", "every rank has all experts");
  unused(experts && !travels && s.experts.overlap_shared == true && model.experts.shared_ffn_hidden > 0, "experts.overlap_shared", "every rank has all experts: no tokens travel");
  unused(s.experts.dispatch_sms.has_value() && (!experts || d.expert == 1 || (dispatcher != Dispatcher::deepep && dispatcher != Dispatcher::hybridep)), "experts.dispatch_sms", "no tokens travel by DeepEP or HybridEP");
  unused(experts && s.experts.fused_index_map == true && (d.expert == 1 || dispatcher != Dispatcher::deepep), "experts.fused_index_map", "only DeepEP's dispatch delivers lists of experts");
  unused(experts && d.expert > 1 && s.experts.dispatcher == Dispatcher::hierarchical && d.expert * d.expert_tensor <= gpus_per_node, "experts.dispatcher", "an expert group that lies in one node exchanges in one step");
  unused(experts && s.experts.overlap_shared && model.experts.shared_ffn_hidden == 0, "experts.overlap_shared", "the model has no shared experts");

  const Routing& routing = s.experts.routing;
  unused(routing.batch_draws != Routing{}.batch_draws && !routing.batch_concentration, "experts.routing.batch_draws", "experts.routing.batch_concentration is not set: micro-batches are alike");

  const Memory& m = s.memory;
  const Offload& o = m.offload;
  unused(m.recompute_every > 1 && m.recompute != Recompute::full, "memory.recompute_every", "memory.recompute is not full");
  unused(m.recompute_span > 1 && m.recompute != Recompute::full, "memory.recompute_span", "memory.recompute is not full");
  unused(m.recompute_layers > 0 && m.recompute != Recompute::full, "memory.recompute_layers", "memory.recompute is not full");
  unused(m.recompute_layers >= model.layer_count() && m.recompute == Recompute::full, "memory.recompute_layers", "the model has no more layers: all of them are made again");
  unused(m.tiled_mlp_num_shards > 0 && !m.tiled_mlp, "memory.tiled_mlp_num_shards", "memory.tiled_mlp is off");
  unused(!m.recompute_modules.empty() && m.recompute != Recompute::selective, "memory.recompute_modules", "memory.recompute is not selective");
  const bool away = o.optimizer != MemoryTier::device || o.parameters != MemoryTier::device || o.activations != MemoryTier::device;
  unused(o.in_flight && o.modules.empty(), "memory.offload.in_flight", "memory.offload.modules names none");
  unused(o.least_elements != Offload{}.least_elements && o.modules.empty(), "memory.offload.least_elements", "memory.offload.modules names none");
  unused(o.activation_layers > 0 && o.activations == MemoryTier::device, "memory.offload.activation_layers", "memory.offload.activations is none");
  unused(o.activation_layers > 0 && o.activations != MemoryTier::device && m.recompute == Recompute::full, "memory.offload.activation_layers", "memory.recompute is full: every recomputed layer's input goes");
  unused(!o.pinned && !away, "memory.offload.pinned", "nothing is offloaded");
  unused(o.threads.has_value() && o.optimizer == MemoryTier::device, "memory.offload.threads", "memory.offload.optimizer is none");
  unused(o.pipelined && o.optimizer != MemoryTier::nvme, "memory.offload.pipelined", "memory.offload.optimizer is not nvme");
  unused(o.buffers && o.optimizer != MemoryTier::nvme, "memory.offload.buffers", "memory.offload.optimizer is not nvme");
  unused(o.max_in_cpu != Offload{}.max_in_cpu && o.parameters != MemoryTier::nvme, "memory.offload.max_in_cpu", "memory.offload.parameters is not nvme");
  unused(m.partition_activations && d.tensor == 1 && !m.contiguous_checkpoints, "memory.partition_activations", "parallelism.tensor is 1: there are no ranks with the same inputs");

  const Training& t = s.training;
  unused(t.collection_interval > 0 && given.collection_host == Duration{}, "training.collection_interval", "the framework profile has no time for a collection");
  unused(t.documents_per_sample && t.attended_length() == t.sequence_length, "training.documents_per_sample", "training.document_length names no packed documents");
  unused(t.document_length >= t.sequence_length, "training.document_length", "no sample is longer");
  unused(t.loss_chunks != Training{}.loss_chunks && t.cross_entropy.value_or(given.loss) != LossKind::chunked_linear, "training.loss_chunks", "the loss reads all logits at once");
  unused(t.fused_rope == false && given.rope == Fusion::eager, "training.fused_rope", "the framework has no kernel for it");
  unused(t.transformer_engine == true && !given.transformer_engine, "training.transformer_engine", "the framework profile has no layers of Transformer Engine");
  unused(t.transformer_engine == false && !given.transformer_engine, "training.transformer_engine", "the framework's layers are its own");
  unused(t.optimizer_state_dtype && t.optimizer == Optimizer::sgd, "training.optimizer_state_dtype", "sgd keeps no states");
  unused(t.optimizer_state_dtype && t.optimizer != Optimizer::sgd && o.optimizer != MemoryTier::device && o.ratio == 1, "training.optimizer_state_dtype", "the CPU's optimizer keeps its states in fp32");
  const bool wide_adapters = (s.tuning.low_rank() || s.tuning.prompts()) && s.tuning.trainable.empty() && given.adapter == DType::fp32;
  unused(t.optimizer_state_dtype && wide_adapters, "training.optimizer_state_dtype", "the framework's adapters are fp32, and so are their states");
  unused(dp.reduce_dtype && wide_adapters, "data_parallel.reduce_dtype", "the framework's adapters are fp32, and so are their gradients");
  unused(s.tuning.format != FourBit::nf4 && !s.tuning.four_bit(), "tuning.format", "no weights are stored in 4 bits");
  unused(!s.tuning.double_quantization && !s.tuning.four_bit(), "tuning.double_quantization", "no weights are stored in 4 bits");
  return out;
}

}  // namespace rehearse::strategies
