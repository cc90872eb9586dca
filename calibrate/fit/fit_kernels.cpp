#include "calibrate/fit/fit_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "hwmodels/device/attention_cost.h"
#include "hwmodels/device/gemm_cost.h"
#include "hwmodels/device/measured_points.h"
#include "hwmodels/device/memory_cost.h"

namespace rehearse::calibrate {
namespace {

using Eigen::VectorXd;
using hwmodels::ClockState;
using hwmodels::DeviceRates;
using hwmodels::Gpu;
using model::KernelKind;
using model::KernelSpec;
using KernelRows = std::vector<const KernelObservation*>;

bool product(const KernelSpec& s) { return s.kind == KernelKind::gemm || s.kind == KernelKind::grouped_gemm; }
bool attention(const KernelSpec& s) { return s.kind == KernelKind::attention_forward || s.kind == KernelKind::attention_backward; }

/// The program's own formulas, at both clocks.
struct Rates {
  DeviceRates burst, sustained;
  explicit Rates(const Gpu& gpu) : burst(rates_of(gpu, ClockState::burst)), sustained(rates_of(gpu, ClockState::sustained)) {}
  double seconds(const KernelSpec& s, ClockState clock) const {
    const DeviceRates& r = clock == ClockState::burst ? burst : sustained;
    if (product(s)) return gemm_cost(r, s).seconds;
    if (attention(s)) return attention_cost(r, s).seconds;
    return memory_cost(r, s).seconds;
  }
};

Gpu with_parameters(Gpu gpu, const std::vector<Parameter>& parameters, const VectorXd& x) {
  for (std::size_t i = 0; i < parameters.size(); ++i) gpu.kernel_parameters[parameters[i].name] = x[static_cast<Eigen::Index>(i)];
  return gpu;
}

/// A parameter's bounds and whether it is a scale; what a fit starts from is the base's value, moved inside the bounds.
class ParameterList {
 public:
  explicit ParameterList(const Gpu& base) : base_(base) {}
  void scale(const std::string& name, double least, double most, double otherwise) { add(name, least, most, otherwise, true); }
  void linear(const std::string& name, double least, double most, double otherwise) { add(name, least, most, otherwise, false); }
  std::vector<Parameter> take() { return std::move(list_); }

 private:
  void add(const std::string& name, double least, double most, double otherwise, bool logarithmic) {
    const auto at = base_.kernel_parameters.find(name);
    const double start = at == base_.kernel_parameters.end() || (logarithmic && at->second <= 0) ? otherwise : at->second;
    list_.push_back({name, std::clamp(start, least, most), least, most, logarithmic});
  }
  const Gpu& base_;
  std::vector<Parameter> list_;
};

template <typename Test>
bool any(const KernelRows& rows, Test test) {
  return std::any_of(rows.begin(), rows.end(), [&](const KernelObservation* o) { return test(o->kernel); });
}

std::vector<Parameter> product_parameters(const Gpu& base, const KernelRows& rows) {
  ParameterList p(base);
  p.scale("gemm_peak_fraction", 0.2, 1, 0.85);
  p.linear("tile_fetch", 0, 1, 0.15), p.linear("wave_quantisation", 0, 1, 0.5), p.linear("k_ramp_bytes", 0, 3000, 300), p.linear("overlap_leak", 0, 1, 0.15);
  p.scale("gemm_hbm_fraction", 0.3, 1, 0.85), p.scale("gemm_launch_us", 0.2, 30, 4);
  const auto role = [&](model::GemmRole r) { return any(rows, [&](const KernelSpec& s) { return s.role == r; }); };
  if (role(model::GemmRole::data_gradient)) p.scale("gemm_data_gradient_fraction", 0.5, 1, 0.98);
  if (role(model::GemmRole::weight_gradient)) p.scale("gemm_weight_gradient_fraction", 0.5, 1, 0.95);
  if (any(rows, [](const KernelSpec& s) { return bits(s.dtype) == 8; })) p.scale("gemm_fp8_fraction", 0.3, 1, 0.95);
  if (any(rows, [](const KernelSpec& s) { return bits(s.dtype) >= 32; })) p.scale("gemm_fp32_fraction", 0.3, 1, 0.85);
  if (any(rows, [](const KernelSpec& s) { return (s.k * bits(s.dtype)) % 128 != 0 || (s.n * bits(s.dtype)) % 128 != 0; })) p.scale("gemm_unaligned_fraction", 0.1, 1, 0.5);
  if (any(rows, [](const KernelSpec& s) { return s.kind == KernelKind::grouped_gemm; })) p.scale("grouped_fraction", 0.3, 1, 0.95), p.linear("grouped_group_us", 0, 50, 1);
  const auto hot = [](const KernelObservation* o) { return o->clock == ClockState::sustained; };
  const bool both = std::any_of(rows.begin(), rows.end(), hot) && !std::all_of(rows.begin(), rows.end(), hot);
  if (both) p.scale("sustained_clock", 0.3, 1, 0.85);
  return p.take();
}

std::vector<Parameter> attention_parameters(const Gpu& base, const KernelRows& rows, const std::string& name) {
  ParameterList p(base);
  const bool forward = any(rows, [](const KernelSpec& s) { return s.kind == KernelKind::attention_forward; });
  const bool backward = any(rows, [](const KernelSpec& s) { return s.kind == KernelKind::attention_backward; });
  if (name == "sdpa_math") {
    if (forward) p.linear("math_passes_forward", 0, 40, 5);
    if (forward && any(rows, [](const KernelSpec& s) { return s.causal; })) p.linear("math_passes_mask", 0, 40, 4);
    if (backward) p.linear("math_passes_backward", 0, 60, 10);
    return p.take();
  }
  if (forward) p.scale(name + "_forward_fraction", 0.05, 1, 0.6);
  if (backward) p.scale(name + "_backward_fraction", 0.05, 1, 0.5);
  p.linear(name + "_softmax_flops", 0, 1000, 100), p.linear(name + "_key_ramp", 0, 1000, 100), p.linear(name + "_causal_waste", 0, 300, 100), p.linear(name + "_wave_quantisation", 0, 1, 0.5);
  if (any(rows, [](const KernelSpec& s) { return s.kind == KernelKind::attention_backward && s.head_dim > 128; })) p.scale("wide_head_backward_fraction", 0.3, 1, 0.8);
  return p.take();
}

std::vector<Parameter> memory_parameters(const Gpu& base, const KernelRows& rows) {
  static const std::map<KernelKind, const char*> names{{KernelKind::elementwise, "elementwise_fraction"},     {KernelKind::normalization, "normalization_fraction"},
                                                       {KernelKind::softmax, "softmax_fraction"},             {KernelKind::cross_entropy, "cross_entropy_fraction"},
                                                       {KernelKind::embedding, "embedding_fraction"},         {KernelKind::permute, "permute_fraction"},
                                                       {KernelKind::optimizer, "optimizer_fraction"},         {KernelKind::reduction, "reduction_fraction"},
                                                       {KernelKind::memset, "memset_fraction"}};
  ParameterList p(base);
  p.scale("memory_launch_us", 0.2, 50, 4), p.scale("l2_bandwidth_ratio", 1, 20, 2);
  for (const auto& [kind, name] : names) {
    if (any(rows, [&k = kind](const KernelSpec& s) { return s.kind == k && s.role == model::GemmRole::forward; })) p.scale(name, 0.02, 1, 0.8);
    const bool has_backward = kind == KernelKind::normalization || kind == KernelKind::embedding;
    if (has_backward && any(rows, [&k = kind](const KernelSpec& s) { return s.kind == k && s.role != model::GemmRole::forward; }))
      p.scale(kind == KernelKind::normalization ? "normalization_backward_fraction" : "embedding_backward_fraction", 0.02, 1, 0.5);
  }
  return p.take();
}

TimeModel model_of(const Gpu& base, const KernelRows& rows, std::vector<Parameter> parameters) {
  TimeModel m;
  const auto n = static_cast<Eigen::Index>(rows.size());
  m.log_measured.resize(n), m.noise.resize(n);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    m.log_measured[static_cast<Eigen::Index>(i)] = std::log(rows[i]->seconds);
    m.noise[static_cast<Eigen::Index>(i)] = rows[i]->relative_error;
    m.size.push_back(rows[i]->size);
  }
  m.parameters = parameters;
  m.log_seconds = [base, rows, parameters = std::move(parameters)](const VectorXd& x) {
    const Rates rates(with_parameters(base, parameters, x));
    VectorXd out(static_cast<Eigen::Index>(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i) out[static_cast<Eigen::Index>(i)] = std::log(rates.seconds(rows[i]->kernel, rows[i]->clock));
    return out;
  };
  return m;
}

hwmodels::MeasuredKernel point_of(const KernelObservation& o) { return {o.kernel, o.seconds, o.clock}; }

/// Errors of the points' interpolation at each row from all others, over parameters that have not seen the row either.
VectorXd interpolated(const Gpu& base, const KernelRows& rows, const std::vector<Parameter>& parameters, const TimeFit& fit, double reach) {
  VectorXd out(static_cast<Eigen::Index>(rows.size()));
  const hwmodels::Reach r{reach, reach, reach};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto k = static_cast<Eigen::Index>(i);
    const Rates rates(with_parameters(base, parameters, fit.without.col(k)));
    std::vector<hwmodels::MeasuredKernel> others;
    for (std::size_t j = 0; j < rows.size(); ++j)
      if (j != i && !(rows[j]->kernel == rows[i]->kernel)) others.push_back(point_of(*rows[j]));
    const hwmodels::MeasuredPoints points(others, r, [&](const KernelSpec& s, ClockState clock) { return rates.seconds(s, clock); });
    out[k] = std::log(points.at(rows[i]->kernel).factor) + fit.leave_one_out[k];
  }
  return out;
}

/// The reach with the least error, and the errors with it. A point that only speaks for itself (0) wins ties.
std::pair<double, VectorXd> best_reach(const Gpu& base, const KernelRows& rows, const std::vector<Parameter>& parameters, const TimeFit& fit) {
  std::pair<double, VectorXd> best{0, fit.leave_one_out};
  for (const double reach : {0.5, 1.0, 2.0, 3.0}) {
    VectorXd errors = interpolated(base, rows, parameters, fit, reach);
    if (errors.cwiseAbs().mean() < 0.999 * best.second.cwiseAbs().mean()) best = {reach, std::move(errors)};
  }
  return best;
}

std::string shape_text(const KernelSpec& s) {
  if (product(s)) return fmt::format("{} x {} x {} x {}", s.batch, s.m, s.n, s.k);
  if (attention(s)) return fmt::format("batch {}, {} heads, {} tokens, head {}{}", s.batch, s.heads, s.query_length, s.head_dim, s.causal ? ", causal" : "");
  return fmt::format("{} bytes", s.bytes_read + s.bytes_written);
}

void set_range(Gpu& gpu, const char* family, const KernelRows& rows, double least, double most) {
  gpu.kernel_parameters[fmt::format("fitted_{}_rows", family)] = static_cast<double>(rows.size());
  gpu.kernel_parameters[fmt::format("fitted_{}_minimum", family)] = least;
  gpu.kernel_parameters[fmt::format("fitted_{}_maximum", family)] = most;
}

/// Fits one family and puts its parameters into `gpu`; returns the reach of its points.
double fit_family(const std::string& name, const KernelRows& rows, std::vector<Parameter> parameters, const std::string& unit, bool held_out, KernelFit& out) {
  const TimeModel m = model_of(out.gpu, rows, parameters);
  const TimeFit fit = fit_times(m, held_out);
  const auto [reach, with_points] = held_out ? best_reach(out.gpu, rows, parameters, fit) : std::pair(0.0, fit.leave_one_out);
  FamilyFit family;
  family.name = name, family.rows = static_cast<int>(rows.size());
  family.parameters = fitted_parameters(fit, parameters);
  family.scale = fit.fit.scale, family.condition = fit.fit.condition, family.converged = fit.fit.converged;
  std::vector<std::string> operations;
  for (const KernelObservation* o : rows) operations.push_back(o->operation);
  family.errors = errors_by_operation(fit, with_points, operations, m.size, unit);
  family.outliers = outliers_of(fit, [&](std::size_t i) { return rows[i]->operation + " " + shape_text(rows[i]->kernel); });
  for (const FittedParameter& p : family.parameters)
    if (p.standing != Standing::not_determined) out.gpu.kernel_parameters[p.name] = p.value;
  out.families.push_back(std::move(family));
  return reach;
}

/// A machine has one cuDNN: what was measured of it holds for profiles that name an earlier or a later one.
void copy_library(const std::map<std::string, KernelRows>& measured, Gpu& gpu) {
  const std::string earlier = "cudnn", later = "cudnn_9_13";
  if (measured.contains(earlier) == measured.contains(later)) return;
  const auto& [from, to] = measured.contains(earlier) ? std::pair(earlier, later) : std::pair(later, earlier);
  for (const char* field : {"_forward_fraction", "_backward_fraction", "_softmax_flops", "_key_ramp", "_causal_waste", "_wave_quantisation"})
    if (const auto at = gpu.kernel_parameters.find(from + field); at != gpu.kernel_parameters.end()) gpu.kernel_parameters[to + field] = at->second;
}

}  // namespace

std::string_view fitted_attention(model::AttentionKernel kernel) {
  using A = model::AttentionKernel;
  switch (kernel) {
    case A::flash1:
    case A::flash2:
    case A::flash3:
    case A::cudnn:
    case A::cudnn_9_13:
    case A::sdpa_math: return name_of(kernel);
    case A::mem_efficient: return name_of(A::flash1);   // as the kernel model has it
    case A::triton:
    case A::cudnn_fp8:
    case A::cudnn_mxfp8:
    case A::aotriton:
    case A::aotriton_assembly:
    case A::composable:
    case A::flex: break;
  }
  return "";
}

KernelFit fit_kernels(const Observations& observations, const Gpu& base, bool held_out) {
  KernelFit out;
  out.gpu = base;
  out.gpu.measured_kernels.clear();
  KernelRows products, streams;
  std::map<std::string, KernelRows> attentions;
  for (const KernelObservation& o : observations.kernels) {
    if (product(o.kernel)) products.push_back(&o);
    else if (attention(o.kernel)) attentions[std::string(fitted_attention(o.kernel.attention))].push_back(&o);
    else streams.push_back(&o);
    out.gpu.measured_kernels.push_back(point_of(o));
  }
  const auto range = [](const KernelRows& rows, auto value) {
    double least = 1e300, most = 0;
    for (const KernelObservation* o : rows) {
      const auto [low, high] = value(o->kernel);
      least = std::min(least, static_cast<double>(low)), most = std::max(most, static_cast<double>(high));
    }
    return std::pair(least, most);
  };
  if (!products.empty()) {
    out.gpu.reach.gemm = fit_family("matrix products", products, product_parameters(base, products), "FLOP", held_out, out);
    const auto [least, most] = range(products, [](const KernelSpec& s) { return std::pair(std::min({s.m, s.n, s.k}), std::max({s.m, s.n, s.k})); });
    set_range(out.gpu, "gemm", products, least, most);
  }
  KernelRows all_attention;
  double reach = 0;
  for (const auto& [name, rows] : attentions) {
    const bool forward = any(rows, [](const KernelSpec& s) { return s.kind == KernelKind::attention_forward; });
    const auto known = base.kernel_parameters.find(name + "_forward_fraction");
    if (name != "sdpa_math" && !forward && (known == base.kernel_parameters.end() || known->second <= 0)) {
      out.notes.push_back("attention " + name + ": backward alone was measured, and nothing is known of its forward on this architecture: left out");
      continue;
    }
    reach = std::max(reach, fit_family("attention " + name, rows, attention_parameters(out.gpu, rows, name), "FLOP", held_out, out));
    all_attention.insert(all_attention.end(), rows.begin(), rows.end());
  }
  copy_library(attentions, out.gpu);
  if (!all_attention.empty()) {
    out.gpu.reach.attention = reach;
    const auto [least, most] = range(all_attention, [](const KernelSpec& s) { const auto l = std::max(s.query_length, s.key_length); return std::pair(l, l); });
    set_range(out.gpu, "attention", all_attention, least, most);
  }
  if (!streams.empty()) {
    out.gpu.reach.memory = fit_family("kernels bound by memory", streams, memory_parameters(out.gpu, streams), "B", held_out, out);
    const auto [least, most] = range(streams, [](const KernelSpec& s) { return std::pair(s.bytes_read + s.bytes_written, s.bytes_read + s.bytes_written); });
    set_range(out.gpu, "memory", streams, least, most);
  }
  return out;
}

}  // namespace rehearse::calibrate
