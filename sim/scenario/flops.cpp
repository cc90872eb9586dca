#include "sim/scenario/flops.h"

#include <algorithm>

#include "sim/model/kernel.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// Multiply-adds of one token's forward pass.
struct TokenCount {
  double products = 0;
  double full = 0, causal = 0;   // of attention, with all or half of the score square
};

class Counter {
 public:
  explicit Counter(const Scenario& s)
      : m_(s.model), sequence_(static_cast<double>(s.strategy.training.sequence_length)), attended_(s.strategy.training.attended_length()), hidden_(static_cast<double>(m_.hidden)),
        matrices_(m_.gated_mlp ? 3 : 2) {}

  TokenCount model(bool predicts_further) {
    const auto vocabulary = static_cast<double>(m_.vocab);
    const double width = m_.embedding_width > 0 ? static_cast<double>(m_.embedding_width) : hidden_;
    count_.products += width * vocabulary + (m_.embedding_width > 0 && m_.embedding_width != m_.hidden ? 2 * width * hidden_ : 0);   // and between that width and the model's
    for (const model::Layer& layer : m_.layers) add(layer);
    for (std::int64_t i = 0; predicts_further && i < m_.mtp_layers; ++i) {
      count_.products += 2 * hidden_ * hidden_ + hidden_ * vocabulary;
      add(model::prediction_layer(m_));
    }
    return count_;
  }

 private:
  void add(const model::Layer& layer) {
    add_mixer(layer);
    if (layer.feed_forward) count_.products += layer.moe ? experts() : hidden_ * static_cast<double>(m_.ffn_hidden) * matrices_;
  }

  void add_mixer(const model::Layer& layer) {
    switch (layer.mixer) {
      case model::Mixer::attention: {
        const std::int64_t value_dim = m_.latent.present() ? m_.latent.v_head_dim : m_.head_dim;
        const auto scores = static_cast<double>(m_.query_width() + m_.heads * value_dim);   // q k^T and its product with v
        count_.products += static_cast<double>(model::attention_matrix_parameters(m_));
        count_.full += scores * sequence_;
        count_.causal += scores * model::attention_area(attended_, attended_, true, layer.window) / static_cast<double>(attended_);
        return;
      }
      // A state-space scan is counted as Megatron counts it: seven operations per channel and value of state (megatron/training/training.py,
      // num_floating_point_operations, mamba_layer_flops).
      case model::Mixer::state_space:
        count_.products += hidden_ * static_cast<double>(m_.state_space.projected() + m_.state_space.inner()) + 3.5 * static_cast<double>(m_.state_space.inner() * m_.state_space.state);
        return;
      // A delta rule as well: four products of a key's and a value's width per head (the same file, linear_self_attn_term), without the convolution.
      case model::Mixer::delta_net:
        count_.products += hidden_ * static_cast<double>(m_.delta_net.projected() + m_.delta_net.inner()) + 4 * static_cast<double>(m_.delta_net.inner() * m_.delta_net.key_dim);
        return;
      default: return;
    }
  }

  double experts() const {
    const auto& e = m_.experts;
    const auto latent = static_cast<double>(e.latent);
    return hidden_ * (static_cast<double>(e.experts) + static_cast<double>(e.shared_ffn_hidden) * matrices_ + 2 * latent) + (latent > 0 ? latent : hidden_) * static_cast<double>(e.top_k * e.ffn_hidden) * matrices_;
  }

  const model::ModelDescription& m_;
  const double sequence_;
  const std::int64_t attended_;
  const double hidden_, matrices_;
  TokenCount count_;
};

bool is_counted(model::KernelKind k) {
  using model::KernelKind;
  return model::is_product(k) || k == KernelKind::attention_forward || k == KernelKind::attention_backward || k == KernelKind::scan || k == KernelKind::delta_rule;
}

}  // namespace

FlopCount count_flops(const Scenario& s, const plan::Plan& plan) {
  const st::Training& t = s.strategy.training;
  const double gpus = static_cast<double>(s.gpus()), passes = t.phase == st::StepKind::evaluation ? 1 : 3;
  const double tokens = static_cast<double>(t.global_batch_size) * static_cast<double>(t.sequence_length) / gpus;
  const TokenCount token = Counter(s).model(t.multi_token_prediction);
  FlopCount count{.model_causal = passes * 2 * (token.products + token.causal) * tokens, .model_full = passes * 2 * (token.products + token.full) * tokens};

  const auto& peaks = s.cluster.gpu.peak;
  const auto peak = peaks.find(product_format(t.precision));
  const auto part = [&](DType format) {
    const auto own = peaks.find(format);
    return own == peaks.end() || peak == peaks.end() || own->second.value <= 0 ? 1.0 : std::min(1.0, peak->second.value / own->second.value);
  };
  std::vector<std::pair<double, double>> by_block;
  for (const plan::Block& b : plan.blocks) {
    auto& [all, at_peak] = by_block.emplace_back();
    for (const plan::Instruction& i : b.timing) {
      if (i.op != plan::Opcode::kernel) continue;
      const model::KernelSpec& k = plan.kernels[i.index];
      if (!is_counted(k.kind)) continue;
      all += model::flops_of(k).value;
      at_peak += model::flops_of(k).value * part(k.dtype);
    }
  }
  for (const plan::RankClass& c : plan.classes)
    for (const plan::Call& call : c.program.step) {
      count.hardware += by_block[call.block].first * c.ranks / gpus;
      count.hardware_at_peak += by_block[call.block].second * c.ranks / gpus;
    }
  return count;
}

}  // namespace rehearse::scenario
