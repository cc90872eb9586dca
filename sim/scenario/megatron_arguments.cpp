#include "sim/scenario/megatron_arguments.h"

#include <cstdlib>

#include "sim/config/document.h"
#include "strategies/pipeline/partition.h"

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

void apply_model(const Arguments& a, Scenario& s) {
  s.model.dropout = a.number("hidden-dropout", 0.1);
  s.model.attention_dropout = a.number("attention-dropout", 0.1);
  if (a.flag("swiglu")) s.model.gated_mlp = true;
  if (a.flag("untie-embeddings-and-output-weights")) s.model.tied_embeddings = false;
  if (a.word("position-embedding-type") == "rope") {
    s.model.position = model::Position::rotary;
    s.model.max_positions = 0;
  }
  if (a.word("normalization") == "RMSNorm") s.model.norm = model::Norm::rms_norm;
  if (a.flag("qk-layernorm")) s.model.qk_norm = true;
  if (a.flag("disable-bias-linear")) s.model.qkv_bias = s.model.attention_output_bias = s.model.mlp_bias = false;
}

void apply_kernels(const Arguments& a, Scenario& s) {
  const bool local = a.word("transformer-impl") == "local";
  // Megatron's own core attention keeps its scores in memory, as does Transformer Engine's when told so.
  if (local || a.word("attention-backend") == "unfused") s.strategy.training.attention = "unfused";
  if (local) s.profile.transformer_engine = s.profile.dummy_weight_gradients = false;
  // "native" is Megatron's own loss through torch.compile, "te" is Transformer Engine's kernel.
  if (a.flag("cross-entropy-loss-fusion")) s.profile.loss = a.word("cross-entropy-fusion-impl") == "te" ? st::LossKind::fused : st::LossKind::vocab_parallel_compiled;
  else s.profile.loss = st::LossKind::vocab_parallel;
  if (a.flag("no-gradient-accumulation-fusion")) s.profile.fused_gradient_accumulation = s.profile.dummy_weight_gradients = false;
}

}  // namespace

std::optional<std::string> apply_megatron_arguments(const std::string& arguments, const std::string& environment, Scenario& s) {
  const Arguments a(arguments, "model_args_json"), e(environment, "env_vars_json");
  if (!a.word("export-kd-cfg").empty()) return "distillation from a teacher model is not simulated";
  if (a.flag("defer-embedding-wgrad-compute")) return "deferred weight gradients of the embedding are not simulated";
  apply_model(a, s);
  apply_kernels(a, s);
  s.strategy.data_parallel.overlap_gradient_reduce = a.flag("overlap-grad-reduce");
  s.strategy.data_parallel.overlap_parameter_gather = a.flag("overlap-param-gather");
  if (s.profile.transformer_engine && a.word("attention-backend") == "flash") s.profile.attention = model::AttentionKernel::flash2;
  const Bytes workspace = cublas_workspace_of(e.word("CUBLAS_WORKSPACE_CONFIG"));
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
  const bool first = !a.word("decoder-first-pipeline-num-layers").empty(), last = !a.word("decoder-last-pipeline-num-layers").empty();
  if (!first && !last) return;
  st::PartitionRequest request{.layers = static_cast<int>(s.model.layer_count()), .stages = d.pipeline, .chunks = s.strategy.pipeline.virtual_stages};
  if (first) request.first_rank_layers = static_cast<int>(a.number("decoder-first-pipeline-num-layers", 0));
  if (last) request.last_rank_layers = static_cast<int>(a.number("decoder-last-pipeline-num-layers", 0));
  if (!st::problems_of(request).empty()) return;  // problems_of(Scenario) says what is wrong with the split
  for (const st::StageLayers& stage : st::partition(request)) s.strategy.pipeline.layers_per_stage.push_back(stage.count);
}

Bytes cublas_workspace_of(const std::string& config) {
  std::int64_t kib = 0;
  const char* at = config.c_str();
  while (*at == ':') {
    char* end = nullptr;
    const std::int64_t size = std::strtoll(at + 1, &end, 10);
    if (*end != ':') break;
    const std::int64_t count = std::strtoll(end + 1, &end, 10);
    kib += size * count;
    at = end;
  }
  return Bytes{kib * 1024};
}

}  // namespace rehearse::scenario
