#include "hwmodels/device/memory_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {

using model::KernelKind;

double achieved_fraction(const DeviceRates& gpu, const model::KernelSpec& s) {
  const KernelParameters& p = gpu.p;
  const bool backward = s.role != model::GemmRole::forward;
  switch (s.kind) {
    case KernelKind::transposing: return p.elementwise_fraction * p.transposing_share;
    case KernelKind::native_normalization: return backward ? p.normalization_backward_fraction : p.native_normalization_fraction;
    case KernelKind::normalization: return backward ? p.normalization_backward_fraction : p.normalization_fraction;
    case KernelKind::softmax: return p.softmax_fraction;
    case KernelKind::cross_entropy: return p.cross_entropy_fraction;
    case KernelKind::embedding: return backward && !(gpu.adding > 0 && s.elements > 0) ? p.embedding_backward_fraction : p.embedding_fraction;
    case KernelKind::permute: return p.permute_fraction;
    case KernelKind::optimizer: return p.optimizer_fraction;
    case KernelKind::reduction: return p.reduction_fraction;
    case KernelKind::scan:
    case KernelKind::delta_rule: return p.elementwise_fraction * p.scan_share;
    case KernelKind::memset: return p.memset_fraction;
    default: return p.elementwise_fraction;
  }
}

namespace {

/// Products in tiles and decays of their results, by the same warps one after the other.
double scan_seconds(const DeviceRates& gpu, const model::KernelSpec& s) {
  const double products = gpu.scan_flops > 0 ? s.flops / gpu.scan_flops : 0, decays = gpu.scan_decays > 0 ? static_cast<double>(s.elements) / gpu.scan_decays : 0;
  return (products + decays) / (s.role == model::GemmRole::forward ? 1 : gpu.p.scan_backward_share);
}

/// States of chunks that are made one after the other, each by the SMs that have its head: waiting for the one before hides in part in the work of other
/// heads on the same SM.
double delta_seconds(const DeviceRates& gpu, const model::KernelSpec& s, double memory) {
  const bool forward = s.role == model::GemmRole::forward;
  const double products = gpu.delta_flops > 0 ? s.flops / (gpu.delta_flops * (forward ? 1 : gpu.p.delta_backward_share)) : 0;
  return std::hypot(std::max(memory, products), static_cast<double>(s.elements) * (forward ? gpu.delta_chunk : gpu.delta_backward_chunk));
}

double convolution_seconds(const DeviceRates& gpu, const model::KernelSpec& s) {
  const double rate = s.role == model::GemmRole::forward ? gpu.convolved : gpu.convolved_backward;
  return rate > 0 ? static_cast<double>(s.elements) / rate : 0;
}

double compute_seconds(const DeviceRates& gpu, const model::KernelSpec& s) {
  const auto at = [&](double rate) { return rate > 0 ? static_cast<double>(s.elements) / rate : 0; };
  switch (s.kind) {
    case KernelKind::scan: return scan_seconds(gpu, s);
    case KernelKind::convolution: return convolution_seconds(gpu, s);
    case KernelKind::embedding: return at(gpu.adding);
    case KernelKind::optimizer: return at(gpu.updating);
    default: return s.flops / gpu.peak[static_cast<std::size_t>(DType::fp32)];
  }
}

}  // namespace

CostParts memory_cost(const DeviceRates& gpu, const model::KernelSpec& s) {
  EXPECTS(s.bytes_read >= 0 && s.bytes_written >= 0 && s.flops >= 0, "kernel " + s.name);
  const double bytes = static_cast<double>(s.bytes_read + s.bytes_written);
  const double bandwidth = gpu.hbm * achieved_fraction(gpu, s);
  const double from_hbm = bytes / bandwidth, from_l2 = from_hbm / gpu.p.l2_bandwidth_ratio;
  // 0 while the tensors fit, 1 from twice that size on: both ends and the slope between grow with the size.
  const double outside = gpu.l2_bytes > 0 ? std::clamp(bytes / gpu.l2_bytes - 1, 0.0, 1.0) : 1.0;
  CostParts c;
  c.hbm_bytes = bytes * outside;
  c.memory_seconds = from_l2 + (from_hbm - from_l2) * outside;
  // Elements loaded one by one keep the SMs busy whatever their width; waiting for memory and that hide in one another in part.
  const double one_by_one = s.kind == KernelKind::strided ? gpu.strided : s.kind == KernelKind::converting ? gpu.converting : 0;
  if (one_by_one > 0) c.memory_seconds = std::hypot(c.memory_seconds, static_cast<double>(s.elements) / one_by_one);
  c.compute_seconds = s.kind == KernelKind::delta_rule ? delta_seconds(gpu, s, c.memory_seconds) : compute_seconds(gpu, s);
  const bool by_triton = s.kind == KernelKind::scan || s.kind == KernelKind::delta_rule;
  c.seconds = (by_triton ? std::max(gpu.p.scan_launch_us, gpu.p.memory_launch_us) : gpu.p.memory_launch_us) * 1e-6 + std::max(c.memory_seconds, c.compute_seconds);
  c.sm_share = c.compute_seconds > c.memory_seconds ? 1 : gpu.p.memory_sm_share;
  return c;
}

}  // namespace rehearse::hwmodels
