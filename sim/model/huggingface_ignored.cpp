#include <algorithm>
#include <array>
#include <string_view>

#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

struct Ignored {
  std::string_view key;
  const char* reason;
};

constexpr const char* kGeneration = "used when generating text, not when training";
constexpr const char* kInitialisation = "initial values, not their number";
constexpr const char* kScale = "a constant inside a kernel that runs anyway";
constexpr const char* kPositions = "rotary positions are computed; their base and scaling change no size";
constexpr const char* kTask = "for other heads than the language model's";
constexpr const char* kDtype = "number format of the checkpoint; the scenario states the training precision";
constexpr const char* kName = "a label";
constexpr const char* kLoss = "a scalar of the router's auxiliary loss";
constexpr const char* kRouting = "how router scores become weights, not how many experts run";
constexpr const char* kImplementation = "the scenario's framework profile states the implementation";

// Sorted by reason. Fields that matter are read by their family before this table is asked.
constexpr auto kIgnored = std::to_array<Ignored>({
    {"architectures", kName},
    {"_name_or_path", kName},
    {"model_type", kName},
    {"transformers_version", kName},
    {"transformers.js_config", kName},
    {"auto_map", "remote code is never run"},
    {"torch_dtype", kDtype},
    {"dtype", kDtype},
    {"quantization_config", "describes the checkpoint, not the training precision"},
    {"compression_config", "describes the checkpoint, not the training precision"},
    {"bos_token_id", kGeneration},
    {"eos_token_id", kGeneration},
    {"pad_token_id", kGeneration},
    {"unk_token_id", kGeneration},
    {"sep_token_id", kGeneration},
    {"decoder_start_token_id", kGeneration},
    {"use_cache", kGeneration},
    {"num_logits_to_keep", kGeneration},
    {"mamba_ssm_cache_dtype", kGeneration},
    {"cache_implementation", kGeneration},
    {"prefix", kGeneration},
    {"initializer_range", kInitialisation},
    {"embedding_initializer_range", kInitialisation},
    {"rescale_prenorm_residual", kInitialisation},
    {"time_step_min", kInitialisation},
    {"time_step_max", kInitialisation},
    {"time_step_floor", kInitialisation},
    {"time_step_limit", kScale},
    {"use_mamba_kernels", kImplementation},
    {"moe_shared_expert_overlap", kImplementation},
    {"z_loss_coefficient", "a scalar of the loss"},
    {"initializer_factor", kInitialisation},
    {"init_std", kInitialisation},
    {"rms_norm_eps", kScale},
    {"layer_norm_eps", kScale},
    {"layer_norm_epsilon", kScale},
    {"norm_eps", kScale},
    {"norm_epsilon", kScale},
    {"logit_scale", kScale},
    {"embedding_multiplier", kScale},
    {"residual_multiplier", kScale},
    {"attention_multiplier", kScale},
    {"logits_scaling", kScale},
    {"query_pre_attn_scalar", kScale},
    {"attn_logit_softcapping", kScale},
    {"attn_scale", kScale},
    {"floor_scale", kScale},
    {"attn_temperature_tuning", kScale},
    {"swiglu_limit", kScale},
    {"swiglu_alpha", kScale},
    {"scale_attn_weights", kScale},
    {"scale_attn_by_inverse_layer_idx", kScale},
    {"rope_theta", kPositions},
    {"rope_scaling", kPositions},
    {"rope_parameters", kPositions},
    {"rope_local_base_freq", kPositions},
    {"rope_interleave", kPositions},
    {"rope_interleaved", kPositions},
    {"rotary_emb_base", kPositions},
    {"max_position_embeddings", kPositions},
    {"original_max_position_embeddings", kPositions},
    {"initial_context_length", kPositions},
    {"seq_length", kPositions},
    {"max_sequence_length", kPositions},
    {"n_ctx", "an old duplicate of n_positions"},
    {"router_aux_loss_coef", kLoss},
    {"aux_loss_alpha", kLoss},
    {"seq_aux", kLoss},
    {"output_router_logits", kLoss},
    {"router_jitter_noise", kLoss},
    {"input_jitter_noise", "off but in pretraining of a few models; one small kernel"},
    {"clip_qkv", "clamps queries, keys and values in place: three small kernels that are left out"},
    {"moe_norm_min", kRouting},
    {"norm_topk_prob", kRouting},
    {"scoring_func", kRouting},
    {"topk_method", kRouting},
    {"routed_scaling_factor", kRouting},
    {"moe_renormalize", kRouting},
    {"experts_per_token", "an old duplicate of num_experts_per_tok"},
    {"qk_head_dim", "the sum of qk_nope_head_dim and qk_rope_head_dim"},
    {"ep_size", kImplementation},
    {"pretraining_tp", kImplementation},
    {"chunk_size_feed_forward", "of encoders; no model here runs its MLP in pieces"},
    {"slow_but_exact", kImplementation},
    {"reorder_and_upcast_attn", kImplementation},
    {"flash_attn", kImplementation},
    {"_attn_implementation", kImplementation},
    {"_attn_implementation_autoset", kImplementation},
    {"_experts_implementation", kImplementation},
    {"attention_softmax_in_fp32", kImplementation},
    {"bias_dropout_fusion", kImplementation},
    {"masked_softmax_fusion", kImplementation},
    {"skip_bias_add", kImplementation},
    {"skip_bias_add_qkv", kImplementation},
    {"for_device_map", kImplementation},
    {"apply_residual_connection_post_layernorm", "which copy is added, not how many"},
    {"scale_attention_softmax_in_fp32", kImplementation},
    {"init_device", kImplementation},
    {"norm_type", kImplementation},
    {"attn_implementation", kImplementation},
    {"embedding_fraction", kInitialisation},
    {"embedding_dropout", "one small kernel per step on the embedding's output"},
    {"embed_dropout", "one small kernel per step on the embedding's output"},
    {"emb_pdrop", "one small kernel per step on the embedding's output"},
    {"embd_pdrop", "one small kernel per step on the embedding's output"},
    {"layerdrop", "random layer skipping is off in language-model pretraining"},
    {"offset_alibi", "an old name for a variant of the ALiBi bias"},
    {"rotary", "an old duplicate of alibi"},
    {"unk_token", kGeneration},
    {"_remove_final_layer_norm", "read together with do_layer_norm_before"},
    {"id2label", kTask},
    {"label2id", kTask},
    {"num_labels", kTask},
    {"problem_type", kTask},
    {"task_specific_params", kTask},
    {"classifier_dropout", kTask},
    {"summary_activation", kTask},
    {"summary_first_dropout", kTask},
    {"summary_proj_to_labels", kTask},
    {"summary_type", kTask},
    {"summary_use_proj", kTask},
    {"vision_config", "only the language model is simulated"},
    {"image_token_id", "of the vision part"},
    {"video_token_id", "of the vision part"},
    {"vision_start_token_id", "of the vision part"},
    {"vision_end_token_id", "of the vision part"},
    {"vision_token_id", "of the vision part"},
    {"is_decoder", kTask},
    {"output_attentions", kTask},
    {"output_hidden_states", kTask},
    {"return_dict", kTask},
});

}  // namespace

const char* reason_to_ignore(const std::string& key) {
  const auto it =
      std::find_if(kIgnored.begin(), kIgnored.end(), [&](const Ignored& i) { return i.key == key; });
  return it == kIgnored.end() ? nullptr : it->reason;
}

}  // namespace rehearse::model
