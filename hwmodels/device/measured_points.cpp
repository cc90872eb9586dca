#include "hwmodels/device/measured_points.h"

#include <fmt/format.h>

#include <cmath>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

using model::KernelKind;
using model::KernelSpec;

constexpr double kNoCorrection = 0.02;  // weight of "as the parameters say": 1 % at half the reach of a single point

bool product(KernelKind k) { return model::is_product(k); }
bool attention(KernelKind k) { return k == KernelKind::attention_forward || k == KernelKind::attention_backward; }

std::string class_of(const KernelSpec& s) {
  const std::string name(name_of(s.kind));
  if (product(s.kind))
    return fmt::format("{} {} {} {} {}", name, static_cast<int>(s.role), static_cast<int>(s.dtype), static_cast<int>(s.output_dtype), s.accumulate);
  if (attention(s.kind))
    return fmt::format("{} {} {} {} {} {} {} {}", name, static_cast<int>(s.attention), static_cast<int>(s.dtype), s.causal, s.head_dim, s.value_head_dim, s.window,
                       s.kv_heads > 0 ? static_cast<double>(s.heads) / static_cast<double>(s.kv_heads) : 1);
  return fmt::format("{} {}", name, s.role != model::GemmRole::forward);
}

double octaves(double x) { return std::log2(std::max(x, 1e-9)); }

std::array<double, 4> size_of(const KernelSpec& s) {
  const auto d = [](std::int64_t v) { return octaves(static_cast<double>(v)); };
  if (product(s.kind)) return {d(s.m), d(s.n), d(s.k), d(s.batch)};
  if (attention(s.kind)) return {d(s.query_length), d(s.key_length), d(s.batch * s.heads), 0};
  const auto moved = static_cast<double>(s.bytes_read + s.bytes_written);
  // Writing costs more than reading: a copy and a sum of the same bytes are an octave or so apart.
  return {octaves(moved), moved > 0 ? 4 * static_cast<double>(s.bytes_written) / moved : 0, 0, 0};
}

double distance(const std::array<double, 4>& a, const std::array<double, 4>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

}  // namespace

void MeasuredPoints::add(const MeasuredKernel& p, const Reach& reach, double parametric) {
  EXPECTS(p.seconds > 0 && parametric > 0, "a measured kernel takes time");
  Class& c = classes_[class_of(p.kernel)];
  c.reach = product(p.kernel.kind) ? reach.gemm : attention(p.kernel.kind) ? reach.attention : reach.memory;
  const std::array<double, 4> size = size_of(p.kernel);
  const double ratio = std::log(p.seconds / parametric);
  for (Point& known : c.points)
    if (known.size == size) {
      known.log_ratio += (ratio - known.log_ratio) / ++known.repeats;
      return;
    }
  c.points.push_back({size, ratio, 1});
}

MeasuredPoints::Correction MeasuredPoints::at(const KernelSpec& kernel) const {
  if (classes_.empty()) return {};
  const auto found = classes_.find(class_of(kernel));
  if (found == classes_.end()) return {};
  const Class& c = found->second;
  const std::array<double, 4> size = size_of(kernel);
  double weights = 0, sum = 0;
  for (const Point& p : c.points) {
    const double d = distance(p.size, size);
    if (d < 1e-9) return {std::exp(p.log_ratio), 1};
    const double t = d / std::max(c.reach, 1e-6);
    if (t >= 1) continue;
    const double w = (1 - t) / t * (1 - t) / t;
    weights += w, sum += w * p.log_ratio;
  }
  if (weights <= 0) return {};
  return {std::exp(sum / (weights + kNoCorrection)), weights / (weights + kNoCorrection)};
}

}  // namespace rehearse::hwmodels
