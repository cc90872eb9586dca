// Megatron arguments that would change the answer and cannot be simulated yet.
#include "sim/importers/megatron_parts.h"

namespace rehearse::importers {

namespace {

constexpr const char* kNone = "None|none|False|false|[]|0";

constexpr Unsimulated kMegatronUnsimulated[] = {
    {"decoder_num_layers", kNone, "an encoder with a decoder"},
    {"decoder_seq_length", kNone, "an encoder with a decoder"},
    {"encoder_tensor_model_parallel_size", kNone, "ranks of an encoder's own"},
    {"encoder_pipeline_model_parallel_size", kNone, "ranks of an encoder's own"},
    {"language_model_type", kNone, "a language model behind an encoder of pictures"},
    {"perform_rl_step", kNone, "reinforcement learning, whose steps generate text too"},
    {"export_kd_cfg", kNone, "learning from another model"},
    {"export_kd_teacher_load", kNone, "learning from another model"},
    {"hybrid_attention_ratio", "0|0.0", "hybrid models whose layers are dealt out by ratios"},
    {"hybrid_mlp_ratio", "0|0.0", "hybrid models whose layers are dealt out by ratios"},
    {"experimental_attention_variant", "None|none|False|false|gdn|gated_delta_net", "attention variants"},
    {"heterogeneous_*", kNone, "layers of different shapes"},
    {"relative_attention_num_buckets", "None|32", "relative position biases"},
    {"fp32_residual_connection", kNone, "an fp32 residual stream"},
    {"apply_residual_connection_post_layernorm", kNone, "residuals after the norm"},
    {"enable_mhc_connections", kNone, "hyper-connections"},
    {"mtp_standalone", kNone, "multi-token prediction on a stage of its own"},
    {"hybrid_context_parallel", kNone, "hybrid context parallelism"},
    {"no_scatter_gather_tensors_in_pipeline", kNone, "messages between stages that every tensor-parallel rank sends whole"},
    {"remote_device", "none|None", "parameters that are made elsewhere than on the GPU"},
    {"megatron_fsdp_main_params_dtype", "fp32|torch.float32", "16-bit master parameters"},
    {"use_layer_wise_distributed_optimizer", kNone, "the layer-wise optimizer"},
    {"use_transformer_engine_op_fuser", kNone, "Transformer Engine's fused operators"},
    {"overlap_dispatch_backward_with_experts_wgrad", kNone, "overlapped expert communication"},
    {"optimizer_cuda_graph", kNone, "CUDA graphs of the update"},
    {"moe_paged_stash", kNone, "paged activations without Transformer Engine's operations for experts"},
    {"moe_expert_rank_capacity_factor", kNone, "buffers of experts without Transformer Engine's operations for them"},
    {"fp4_param_gather", kNone, "parameters kept and gathered in 4 bits"},
    {"fp4_param", kNone, "parameters kept and gathered in 4 bits"},
    {"fp8_multi_head_attention", kNone, "attention in 8 bits"},
    {"use_sharp", kNone, "SHARP between nodes"},
    {"fp16_lm_cross_entropy", kNone, "cross-entropy in fp16"},
    {"freeze_all_layers", kNone, "frozen layers"},
    {"ddp_reduce_scatter_with_fp32_accumulation", kNone, "reduce-scatter as all-to-all with fp32 sums"},
    {"moe_latent_size", kNone, "latent experts"},
    {"moe_layer_recompute", kNone, "recomputed expert layers"},
    {"moe_router_enable_expert_bias", "None|False|false|True|true", "a bias of the router"},
    {"moe_extended_tp", kNone, "an old layout of experts"},
    {"gtp_*", kNone, "weights sharded and gathered by tensor-parallel ranks"},
    {"tensor_parallel_num_weight_shards", kNone, "weights sharded and gathered by tensor-parallel ranks"},
};

}  // namespace

std::span<const Unsimulated> megatron_unsimulated() { return kMegatronUnsimulated; }

}  // namespace rehearse::importers
