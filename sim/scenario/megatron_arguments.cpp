#include "sim/scenario/megatron_arguments.h"

#include <cstdio>
#include <cstdlib>

#include "sim/config/document.h"
#include "sim/importers/argument_text.h"
#include "sim/importers/megatron.h"
#include "sim/model/pipeline_layout.h"
#include "strategies/pipeline/partition.h"
#include "strategies/stage_layers.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// A JSON object whose members are flags, numbers and words.
class Arguments {
 public:
  Arguments(const std::string& text, const std::string& name) {
    if (!text.empty()) root_ = config::parse_document(text, name).root;
  }
  std::string word(const char* name) const {
    const config::Value* v = root_ ? root_->find(name) : nullptr;
    return v != nullptr && v->is_scalar() ? std::string(v->text()) : "";
  }
  bool flag(const char* name) const {
    const std::string text = word(name);
    return text == "true" || text == "True";
  }
  double number(const char* name, double otherwise) const {
    const std::string text = word(name);
    return text.empty() ? otherwise : std::strtod(text.c_str(), nullptr);
  }

 private:
  std::optional<config::Value> root_;
};

/// --moe-layer-freq as a list: "([0]*1+[1]*15)", 1 for a layer with experts. False if it is no list of all layers.
bool apply_expert_layers(const std::string& text, model::ModelDescription& m) {
  std::vector<bool> moe;
  int kind = 0, count = 0;
  for (const char* p = text.c_str(); *p != 0; ++p)
    if (std::sscanf(p, "[%d]*%d", &kind, &count) == 2 && count > 0 && count < 10'000) moe.insert(moe.end(), static_cast<std::size_t>(count), kind != 0);
  if (moe.size() != m.layers.size()) return false;
  for (std::size_t i = 0; i < moe.size(); ++i) m.layers[i].moe = moe[i];
  return true;
}

/// A router from scratch that nothing balances (no loss, no bias, not forced). Assumption: experts are as popular as words are, by Zipf's law; such
/// routers follow tokens by what they are, from early on (Xue et al. 2024, OpenMoE, context-independent specialization).
void apply_routing(const Arguments& a, Scenario& s) {
  if (a.word("moe-router-load-balancing-type") != "none" || a.flag("moe-router-force-load-balancing") || a.flag("moe-router-enable-expert-bias")) return;
  s.strategy.experts.routing = {.distribution = st::RoutingKind::zipf, .skew = 1};
  s.notes.emplace_back("nothing balances the router: experts taken to be as popular as words are (Zipf's law)");
}

void apply_experts(const Arguments& a, Scenario& s) {
  model::Experts& experts = s.model.experts;
  s.profile.grouped_experts = a.flag("moe-grouped-gemm");
  const std::string dispatcher = a.word("moe-token-dispatcher-type");
  const bool hybridep = a.word("moe-flex-dispatcher-backend") == "hybridep";
  s.profile.dispatcher = dispatcher.empty() || dispatcher == "allgather" ? st::Dispatcher::all_gather : dispatcher == "alltoall" ? st::Dispatcher::all_to_all : hybridep ? st::Dispatcher::hybridep : st::Dispatcher::deepep;
  s.profile.overlap_shared_experts = a.flag("moe-shared-expert-overlap");
  s.profile.fused_router = a.flag("moe-router-fusion");
  s.profile.fused_permute = a.flag("moe-permute-fusion");
  s.profile.fused_index_map = a.flag("enable-experimental");
  const double sms = a.number(hybridep ? "moe-hybridep-num-sms" : "moe-deepep-num-sms", 0);
  if (dispatcher == "flex" && sms >= 1) s.strategy.experts.dispatch_sms = static_cast<std::int64_t>(sms);
  apply_routing(a, s);
  s.strategy.experts.capacity_factor = a.number("moe-expert-capacity-factor", 0);
  s.strategy.experts.pad_to_capacity = a.flag("moe-pad-expert-input-to-capacity");
  experts.shared_ffn_hidden = static_cast<std::int64_t>(a.number("moe-shared-expert-intermediate-size", 0));
  experts.latent = static_cast<std::int64_t>(a.number("moe-latent-size", 0));
  experts.groups = static_cast<std::int64_t>(a.number("moe-router-num-groups", 0));
  experts.groups_per_token = static_cast<std::int64_t>(a.number("moe-router-group-topk", 0));
  if (const double width = a.number("moe-ffn-hidden-size", 0); width > 0) experts.ffn_hidden = static_cast<std::int64_t>(width);
}

/// Multi-head latent attention; sizes not given have Megatron's defaults (MLATransformerConfig).
void apply_latent_attention(const Arguments& a, model::ModelDescription& m) {
  if (!a.flag("multi-latent-attention")) return;
  auto size = [&](const char* name, double otherwise) { return static_cast<std::int64_t>(a.number(name, otherwise)); };
  m.latent = {.q_lora_rank = size("q-lora-rank", 512), .kv_lora_rank = size("kv-lora-rank", 512), .qk_nope_head_dim = size("qk-head-dim", 128), .qk_rope_head_dim = size("qk-pos-emb-head-dim", 64),
              .v_head_dim = size("v-head-dim", 128)};
  m.head_dim = m.latent.qk_nope_head_dim + m.latent.qk_rope_head_dim;
  m.kv_heads = m.heads;
  m.qk_norm = false;   // its norms are those of the latent vectors
}

/// Megatron-FSDP's formats of gradients; "auto" is the format of the parameters.
void apply_fsdp(const Arguments& a, Scenario& s) {
  const std::string kept = a.word("megatron-fsdp-main-grads-dtype"), sent = a.word("megatron-fsdp-grad-comm-dtype");
  st::DataParallel& d = s.strategy.data_parallel;
  d.gradient_dtype = kept == "fp32" ? DType::fp32 : DType::bf16;
  d.reduce_dtype = sent == "fp32" ? DType::fp32 : sent == "bf16" ? DType::bf16 : *d.gradient_dtype;
  s.profile = st::with_choices(s.profile, s.strategy);
}

/// --deterministic-mode, which wants NVTE_ALLOW_NONDETERMINISTIC_ALGO=0. Tokens' outputs are then summed by index_add_
/// (megatron/core/transformer/moe/moe_utils.py, unpermute), unless Transformer Engine's kernel does it.
void apply_determinism(const Arguments& a, const Arguments& environment, st::FrameworkProfile& profile) {
  const bool all = a.flag("deterministic-mode");
  profile.deterministic_attention = all || environment.word("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0";
  profile.sums_slots_by_index_add = all && !a.flag("moe-permute-fusion");
}

/// Gradients in fp32 are bf16's default alone (megatron/training/arguments.py), which --grad-reduce-in-bf16 switches off.
void apply_gradients(const Arguments& a, Scenario& s) {
  st::DataParallel& d = s.strategy.data_parallel;
  if (a.flag("fp16")) d.gradient_dtype = d.reduce_dtype = a.flag("accumulate-allreduce-grads-in-fp32") ? DType::fp32 : DType::fp16;
  if (a.flag("grad-reduce-in-bf16")) d.gradient_dtype = d.reduce_dtype = DType::bf16;
}

/// --exp-avg-dtype and --exp-avg-sq-dtype of the precision-aware optimizer; moments in different formats are taken as fp32.
void apply_moments(const Arguments& a, Scenario& s) {
  const std::string first = a.word("exp-avg-dtype"), second = a.word("exp-avg-sq-dtype");
  if (first != second || (first != "bf16" && first != "fp16")) return;
  s.strategy.training.optimizer_state_dtype = s.profile.optimizer_state = first == "bf16" ? DType::bf16 : DType::fp16;
}

/// Megatron's models from before Megatron-Core have no kernels for SwiGLU and rotary embeddings, nor for RMSNorm.
/// Source: megatron/legacy/model/transformer.py (ParallelMLP, ParallelAttention), rms_norm.py; megatron/core/models/common/embeddings of 2023.
void apply_legacy_kernels(const importers::MegatronLayer& layer, st::FrameworkProfile& profile) {
  if (!layer.legacy) return;
  profile.rope = st::Fusion::eager;
  if (layer.gated) profile.activation = st::Fusion::native;
  profile.gate_offset = false;
  if (layer.own_rms_norm) profile.norm = st::Fusion::eager;
}

void apply_layer(const importers::MegatronLayer& layer, Scenario& s) {
  using Loss = importers::MegatronLayer::Loss;
  s.model.dropout = layer.hidden_dropout;
  s.model.attention_dropout = layer.attention_dropout;
  if (layer.gated) s.model.gated_mlp = true;
  if (layer.untied) s.model.tied_embeddings = false;
  if (layer.position == "rope") {
    s.model.position = model::Position::rotary;
    s.model.max_positions = 0;
  }
  if (layer.rms_norm) s.model.norm = model::Norm::rms_norm;
  if (layer.qk_norm) s.model.qk_norm = true;
  if (!layer.linear_biases) s.model.qkv_bias = s.model.attention_output_bias = s.model.mlp_bias = false;

  st::Training& t = s.strategy.training;
  // Megatron's own core attention keeps its scores in memory, as does Transformer Engine's when told so.
  if (layer.unfused_attention) t.attention = "unfused";
  t.cross_entropy = layer.loss == Loss::own ? st::LossKind::vocab_parallel : layer.loss == Loss::own_compiled ? st::LossKind::vocab_parallel_compiled : st::LossKind::fused;
  if (layer.local) t.transformer_engine = false;
  if (layer.fp8_parameters) t.fp8_parameters = true;
  if (!layer.fused_gradient_accumulation) t.fused_gradient_accumulation = false;
  s.profile = st::with_choices(s.profile, s.strategy);
}

}  // namespace

std::optional<std::string> apply_megatron_arguments(const std::string& arguments, const std::string& environment, Scenario& s) {
  const Arguments a(arguments, "model_args_json"), e(environment, "env_vars_json");
  if (!a.word("export-kd-cfg").empty()) return "distillation from a teacher model is not simulated";
  if (a.flag("use-megatron-fsdp") && a.word("data-parallel-sharding-strategy") != "optim_grads_params") return "Megatron-FSDP with the strategy '" + a.word("data-parallel-sharding-strategy") + "' is not simulated";
  apply_gradients(a, s);
  const importers::MegatronLayer layer = importers::megatron_layer(importers::flat_arguments(config::parse_document(arguments, "model_args_json").root));
  apply_layer(layer, s);
  apply_legacy_kernels(layer, s.profile);
  apply_moments(a, s);
  apply_latent_attention(a, s.model);
  s.model.mtp_layers = static_cast<std::int64_t>(a.number("mtp-num-layers", 0));
  s.strategy.training.multi_token_prediction = s.model.mtp_layers > 0;
  s.strategy.memory.recompute_modules = importers::module_names(a.word("recompute-modules"));
  // --cuda-graph-scope, --cuda-graph-modules from core 0.17 on.
  s.strategy.training.cuda_graph_modules = importers::module_names(a.word("cuda-graph-scope") + " " + a.word("cuda-graph-modules"));
  if (a.flag("manual-gc")) s.strategy.training.collection_interval = static_cast<std::int64_t>(a.number("manual-gc-interval", 0));
  if (a.flag("no-rope-fusion")) s.profile.rope = st::Fusion::eager;
  if (a.flag("no-bias-swiglu-fusion")) s.profile.activation = st::Fusion::native;
  if (s.model.experts.experts > 0) {
    apply_experts(a, s);
    const std::string pattern = a.word("moe-layer-freq");
    if (!pattern.empty() && !apply_expert_layers(pattern, s.model)) return "moe-layer-freq '" + pattern + "' is not a list of " + std::to_string(s.model.layers.size()) + " layers";
  }
  apply_determinism(a, e, s.profile);
  if (e.word("CUDA_DEVICE_MAX_CONNECTIONS") == "1" && e.word("TORCH_NCCL_ENABLE_TIMING") == "1") s.strategy.training.serial_collectives = true;
  s.profile.softmax_in_fp32 = a.flag("no-masked-softmax-fusion") && (a.flag("attention-softmax-in-fp32") || a.flag("apply-query-key-layer-scaling"));
  s.strategy.data_parallel.overlap_gradient_reduce = a.flag("overlap-grad-reduce");
  s.strategy.data_parallel.overlap_parameter_gather = a.flag("overlap-param-gather");
  if (a.flag("use-megatron-fsdp")) apply_fsdp(a, s);
  if (a.word("attention-backend") == "flash" || layer.own_flash_attention) s.profile.cudnn_attention_from = 0;
  const Bytes workspace = importers::cublas_workspace_of(e.word("CUBLAS_WORKSPACE_CONFIG"));
  if (workspace > Bytes{0}) s.profile.cublas_workspace = workspace;
  const std::string allocator = e.word("PYTORCH_CUDA_ALLOC_CONF");
  if (allocator.find("expandable_segments:True") != std::string::npos) s.profile.expandable_segments = true;
  return std::nullopt;
}

void apply_megatron_layout(const std::string& arguments, Scenario& s) {
  const Arguments a(arguments, "model_args_json");
  st::Degrees& d = s.strategy.parallelism.degrees;
  const int instances = static_cast<int>(a.number("num-distributed-optimizer-instances", 1));
  if (instances > 1 && d.data % instances == 0) d.data_shard = d.data / instances;
  if (const auto* kind = st::context_kinds().find(a.word("cp-comm-type")); kind != nullptr) s.strategy.parallelism.context_kind = *kind;
  if (s.strategy.parallelism.context_kind == st::ContextKind::ulysses_ring) {
    const std::string sizes = a.word("hierarchical-context-parallel-sizes");   // "2 4", "[2 4]"
    const std::size_t digit = sizes.find_first_of("0123456789");
    if (digit != std::string::npos) d.context_ulysses = static_cast<int>(std::strtol(sizes.c_str() + digit, nullptr, 10));
  }
  const std::string text = a.word("pipeline-model-parallel-layout");
  if (!st::take_layout(model::read_pipeline_layout(text), d.pipeline, s.strategy.pipeline) && !text.empty() && d.pipeline > 1)
    s.notes.push_back("the pipeline layout " + text + " is not one of as many stages, and is passed over");
  // Of several stages it merges a forward and a backward under the interleaved schedule only.
  s.strategy.experts.overlap_exchange = a.flag("overlap-moe-expert-parallel-comm") && (d.pipeline == 1 || s.strategy.pipeline.virtual_stages > 1);
  if (a.flag("defer-embedding-wgrad-compute")) s.strategy.pipeline.deferred_head_gradients = static_cast<std::int64_t>(a.number("wgrad-deferral-limit", 0));
  if (!s.strategy.pipeline.layers_per_stage.empty()) return;
  const bool first = !a.word("decoder-first-pipeline-num-layers").empty(), last = !a.word("decoder-last-pipeline-num-layers").empty();
  st::PartitionRequest request{.layers = static_cast<int>(s.model.layer_count()), .stages = d.pipeline, .chunks = s.strategy.pipeline.virtual_stages};
  request.embedding_counts_as_layer = a.flag("account-for-embedding-in-pipeline-split");
  request.head_counts_as_layer = a.flag("account-for-loss-in-pipeline-split");
  if (d.pipeline < 2 || (!first && !last && !request.embedding_counts_as_layer && !request.head_counts_as_layer)) return;
  if (first) request.first_rank_layers = static_cast<int>(a.number("decoder-first-pipeline-num-layers", 0));
  if (last) request.last_rank_layers = static_cast<int>(a.number("decoder-last-pipeline-num-layers", 0));
  if (!st::problems_of(request).empty()) return;  // problems_of(Scenario) says what is wrong with the split
  for (const st::StageLayers& stage : st::partition(request)) s.strategy.pipeline.layers_per_stage.push_back(stage.count);
}

}  // namespace rehearse::scenario
