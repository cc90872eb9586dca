#include "strategies/optimizer/optimizer.h"

namespace rehearse::strategies {
namespace {

// bitsandbytes optim/optimizer.py: min_8bit_size 4096; blockwise states, one fp32 scale per 256 values.
constexpr std::int64_t kSmallest8Bit = 4096, kStateBlock = 256;

}  // namespace

const Catalog<Optimizer>& optimizers() {
  static const Catalog<Optimizer> all{"optimizer", {
      {"sgd", "no state", Optimizer::sgd},
      {"momentum", "one moment", Optimizer::momentum},
      {"adamw", "two moments", Optimizer::adamw},
      {"adamw-8bit", "two moments in 8 bits with a scale per 256 values (bitsandbytes)", Optimizer::adamw_8bit},
      {"lion", "one moment, the sign of its mixture with the gradient", Optimizer::lion},
      {"adafactor", "the second moment as one value per row and per column, no first", Optimizer::adafactor},
      {"muon", "matrices of layers: one moment, orthogonalised by Newton-Schulz products; the rest: Adam", Optimizer::muon},
  }};
  return all;
}

int moments_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::momentum:
    case Optimizer::lion: return 1;
    case Optimizer::adamw: return 2;
    default: return 0;
  }
}

bool states_are_elementwise(Optimizer optimizer) { return optimizer != Optimizer::adafactor && optimizer != Optimizer::muon; }

bool is_orthogonalised(const Weight& w) { return w.matrix && w.columns > 1 && !w.name.starts_with("lm_head") && w.name.find("embedding") == w.name.npos && w.name.find("output projection") == w.name.npos; }

std::int64_t state_bytes(const Weight& w, Optimizer optimizer, std::int64_t moment) {
  const std::int64_t n = w.elements;
  switch (optimizer) {
    case Optimizer::adamw_8bit: return n < kSmallest8Bit ? 8 * n : 2 * (n + (n + kStateBlock - 1) / kStateBlock * 4);
    case Optimizer::adafactor: {  // transformers optimization.py, Adafactor: exp_avg_sq_row and _col in fp32, or one vector
      const std::int64_t rows = w.columns > 1 ? n / w.columns : 1;
      return rows > 1 ? 4 * (rows + w.columns) : 4 * n;
    }
    case Optimizer::muon: return (is_orthogonalised(w) ? 1 : 2) * moment * n;
    default: return moments_of(optimizer) * moment * n;
  }
}

int state_tensors(const Weight& w, Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adamw_8bit: return 2;
    case Optimizer::adafactor: return 1;
    case Optimizer::muon: return is_orthogonalised(w) ? 1 : 2;
    default: return moments_of(optimizer);
  }
}

double foreach_passes(Optimizer optimizer) {
  switch (optimizer) {
    // One fused pass reads p, g, m, v and writes p, m, v: 7 streams. AdamW is eight operations (optim/adam.py): mul p (2), lerp m (3),
    // mul v (2), addcmul v (3), sqrt (2), div (2), add eps (2), addcdiv p (4).
    case Optimizer::adamw: return 20.0 / 7.0;
    // 5 streams, and three operations (optim/sgd.py): mul m (2), add g to m (3), add m to p (3). Without momentum: add g to p (3).
    case Optimizer::momentum: return 8.0 / 5.0;
    default: return 1;
  }
}

ExtraTraffic extra_traffic(Optimizer optimizer) {
  // Operators of transformers' Adafactor.step beyond reading the gradient and writing the parameter, fp32: gradient cast (w 4),
  // square (r 4, w 4), row and column means (r 8), factors' product (w 4), times gradient (r 8, w 4), clip (r 8, w 4), rate
  // (r 4, w 4), parameter cast (r 2, w 4), subtract (r 8, w 4), copy back (r 4). The gradient's copy and the update live together.
  if (optimizer == Optimizer::adafactor) return {.read = 46, .written = 32, .temporary = 8};
  return {};
}

}  // namespace rehearse::strategies
