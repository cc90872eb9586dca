// Measurements of a GPU that never was: the kernel model with known parameters, known noise, known outliers.
#pragma once

#include <cmath>
#include <random>
#include <string>

#include "calibrate/measurements.h"
#include "hwmodels/device/kernel_model.h"

namespace rehearse::calibrate::test {

using hwmodels::ClockState;
using hwmodels::Gpu;
using hwmodels::KernelModel;

/// H100 with parameters that differ from the file's by as much as GPUs differ.
inline Gpu true_gpu() {
  Gpu gpu = hwmodels::load_gpu("h100-sxm");
  auto& p = gpu.kernel_parameters;
  p["gemm_peak_fraction"] = 0.80, p["wave_quantisation"] = 0.5, p["k_ramp_bytes"] = 700, p["gemm_launch_us"] = 5, p["overlap_leak"] = 0.3, p["tile_fetch"] = 0.25;
  p["gemm_hbm_fraction"] = 0.8, p["gemm_weight_gradient_fraction"] = 0.9, p["gemm_data_gradient_fraction"] = 0.95, p["gemm_fp8_fraction"] = 0.85;
  p["elementwise_fraction"] = 0.8, p["normalization_fraction"] = 0.7, p["memory_launch_us"] = 2.5, p["optimizer_fraction"] = 0.6;
  p["flash2_forward_fraction"] = 0.5, p["flash2_backward_fraction"] = 0.4, p["flash2_softmax_flops"] = 80, p["flash2_key_ramp"] = 60;
  return gpu;
}

class Laboratory {
 public:
  Laboratory(const Gpu& gpu, double noise, double outliers, unsigned seed) : model_(gpu, ClockState::burst), noise_(noise), outliers_(outliers), draw_(seed) {
    out_.source = "synthetic";
    out_.machine["gpu"] = std::string("NVIDIA H100 80GB HBM3");
  }

  void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const char* dtype, const char* role) {
    model::KernelSpec s;
    s.kind = model::KernelKind::gemm;
    s.m = m, s.n = n, s.k = k;
    s.dtype = *dtype_named(dtype);
    s.output_dtype = bits(s.dtype) < 16 ? DType::bf16 : s.dtype;
    s.role = std::string(role) == "forward" ? model::GemmRole::forward : std::string(role) == "data_gradient" ? model::GemmRole::data_gradient : model::GemmRole::weight_gradient;
    add("gemm", {{"m", m}, {"n", n}, {"k", k}, {"dtype", std::string(dtype)}, {"role", std::string(role)}}, s);
  }
  void attention(bool backward, std::int64_t batch, std::int64_t tokens, std::int64_t head_dim, bool causal) {
    model::KernelSpec s;
    s.kind = backward ? model::KernelKind::attention_backward : model::KernelKind::attention_forward;
    s.batch = batch, s.heads = s.kv_heads = 16, s.query_length = s.key_length = tokens, s.head_dim = s.value_head_dim = head_dim, s.causal = causal;
    add(backward ? "attention_backward" : "attention_forward",
        {{"batch", batch}, {"heads", std::int64_t{16}}, {"kv_heads", std::int64_t{16}}, {"query_length", tokens}, {"key_length", tokens}, {"head_dim", head_dim}, {"causal", causal},
         {"dtype", std::string("bf16")}, {"implementation", std::string("flash2")}}, s);
  }
  void stream(const char* kernel, model::KernelKind kind, std::int64_t elements, std::int64_t read, std::int64_t written) {
    model::KernelSpec s;
    s.kind = kind;
    s.bytes_read = read * elements, s.bytes_written = written * elements;
    add("memory_kernel", {{"kernel", std::string(kernel)}, {"elements", elements}, {"bytes_read", s.bytes_read}, {"bytes_written", s.bytes_written}}, s);
  }
  Measurements take() { return std::move(out_); }

 private:
  void add(const char* operation, Facts parameters, const model::KernelSpec& spec) {
    Series s;
    s.operation = operation, s.parameters = std::move(parameters);
    s.samples = 10;
    const double outlier = uniform_(draw_) < outliers_ ? 1.3 + 0.5 * uniform_(draw_) : 1;
    s.median_s = to_seconds(model_.cost(spec).duration) * std::exp(noise_ * gauss_(draw_)) * outlier;
    out_.series.push_back(std::move(s));
  }

  KernelModel model_;
  double noise_, outliers_;
  std::mt19937_64 draw_;
  std::normal_distribution<double> gauss_{0, 1};
  std::uniform_real_distribution<double> uniform_{0, 1};
  Measurements out_;
};

/// About 130 products, 60 streams and 40 attentions: what the probe's default mode is planned to measure.
inline Measurements measured(double noise, double outliers, unsigned seed, const Gpu& gpu = true_gpu()) {
  Laboratory lab(gpu, noise, outliers, seed);
  for (const std::int64_t m : {256, 1024, 4096, 16384})
    for (const std::int64_t n : {512, 2048, 8192})
      for (const std::int64_t k : {128, 1024, 8192})
        for (const char* role : {"forward", "data_gradient", "weight_gradient"}) lab.gemm(m, n, k, "bf16", role);
  for (const std::int64_t n : {1024, 2560, 4096, 6144, 8192, 12288}) lab.gemm(n, n, n, "fp8", "forward"), lab.gemm(n, n, 2 * n, "fp8", "forward");
  for (std::int64_t elements = 1 << 14; elements <= 1 << 29; elements *= 2) {
    lab.stream("copy", model::KernelKind::elementwise, elements, 2, 2);
    lab.stream("rms_norm", model::KernelKind::normalization, elements, 2, 2);
    if (elements <= 1 << 27) lab.stream("adam", model::KernelKind::optimizer, elements, 14, 14);
  }
  for (const std::int64_t tokens : {512, 1024, 2048, 4096, 8192})
    for (const std::int64_t head_dim : {64, 128})
      for (const bool causal : {false, true})
        for (const bool backward : {false, true}) lab.attention(backward, 16384 / tokens, tokens, head_dim, causal);
  return lab.take();
}

}  // namespace rehearse::calibrate::test
