#include "calibrate/probe/cuda/self_test.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "calibrate/probe/cuda/attention.h"
#include "calibrate/probe/cuda/blas.h"
#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/kernels.h"

namespace rehearse::calibrate {
namespace {

using bf16 = __nv_bfloat16;
using Numbers = std::vector<double>;

/// Random bf16 on the device, and the same on the host.
struct Tensor {
  DeviceBuffer memory;
  std::int64_t size;
  explicit Tensor(std::int64_t n, std::uint64_t seed = 0, float deviation = 1) : memory(static_cast<std::size_t>(n) * 2), size(n) {
    // NaN where nothing is drawn: what a kernel forgets to write is found.
    if (seed == 0) REHEARSE_CUDA(cudaMemset(memory.data(), 0xFF, memory.bytes()));
    else fill_normal(memory.data(), n, ElementType::bf16, deviation, seed << 32, nullptr);
  }
  Numbers host() const {
    std::vector<bf16> raw(static_cast<std::size_t>(size));
    REHEARSE_CUDA(cudaDeviceSynchronize());
    REHEARSE_CUDA(cudaMemcpy(raw.data(), memory.data(), memory.bytes(), cudaMemcpyDeviceToHost));
    Numbers out;
    for (bf16 v : raw) out.push_back(static_cast<double>(__bfloat162float(v)));
    return out;
  }
};

/// |a - b| / |b|; NaN counts as wrong.
std::string verdict(const std::string& name, const Numbers& got, const Numbers& wanted, double most = 1e-2) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) difference += (got[i] - wanted[i]) * (got[i] - wanted[i]), size += wanted[i] * wanted[i];
  const double error = std::sqrt(difference / size);
  char text[200];
  std::snprintf(text, sizeof text, "%s %s: relative error %.2e", error <= most ? "ok" : "WRONG", name.c_str(), error);
  return text;
}

void check_gemm(const std::string& role, std::vector<std::string>& out) {
  const std::int64_t m = 96, n = 160, k = 224;
  const Tensor a(m * k, 1), b(k * n, 2, 0.1f), c(m * n);
  GemmShape s{m, n, k};
  s.role = role;
  prepare_gemm(s)->enqueue(a.memory.data(), b.memory.data(), c.memory.data(), nullptr);
  const Numbers x = a.host(), y = b.host();
  Numbers z(static_cast<std::size_t>(m * n));
  const bool forward = role == "forward", weights = role == "weight_gradient";
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l) z[i * n + j] += x[weights ? l * m + i : i * k + l] * y[forward ? j * k + l : l * n + j];
  out.push_back(verdict("gemm " + role, c.host(), z));
}

void check_attention(std::int64_t d, bool causal, std::vector<std::string>& out) {
  const std::int64_t heads = 2, length = 192, n = heads * length * d;
  const AttentionShape shape{1, heads, 1, length, length, d, causal};
  const Tensor q(n, 3), k(length * d, 4), v(length * d, 5), y(n), dy(n, 6), dq(n), dk(n), dv(n);
  DeviceBuffer lse(4 * static_cast<std::size_t>(heads * length)), delta(lse.bytes());
  const AttentionTensors t{q.memory.data(), k.memory.data(), v.memory.data(), y.memory.data(), reinterpret_cast<float*>(lse.data()), dy.memory.data(),
                           reinterpret_cast<float*>(delta.data()), dq.memory.data(), dk.memory.data(), dv.memory.data()};
  attention_forward(shape, t, nullptr);
  attention_backward(shape, t, nullptr);
  const Numbers Q = q.host(), K = k.host(), V = v.host(), D = dy.host();
  Numbers Y(Q.size()), DQ(Q.size()), DK(Q.size()), DV(Q.size());
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t row = (h * length + i) * d, end = causal ? i + 1 : length;
      Numbers p(static_cast<std::size_t>(end)), dp(p.size());
      double total = 0, mean = 0;
      for (std::int64_t j = 0; j < end; ++j) {
        double s = 0;
        for (std::int64_t e = 0; e < d; ++e) s += Q[row + e] * K[j * d + e], dp[j] += D[row + e] * V[j * d + e];
        total += p[j] = std::exp(s * scale);
      }
      for (std::int64_t j = 0; j < end; ++j) p[j] /= total, mean += p[j] * dp[j];
      for (std::int64_t j = 0; j < end; ++j)
        for (std::int64_t e = 0; e < d; ++e) {
          const double ds = p[j] * (dp[j] - mean) * scale;
          Y[row + e] += p[j] * V[j * d + e];
          DQ[row + e] += ds * K[j * d + e];
          DK[(h * length + j) * d + e] += ds * Q[row + e];
          DV[(h * length + j) * d + e] += p[j] * D[row + e];
        }
    }
  const std::string name = "attention head " + std::to_string(d) + (causal ? " causal " : " full ");
  out.push_back(verdict(name + "output", y.host(), Y));
  out.push_back(verdict(name + "query gradient", dq.host(), DQ, 2e-2));
  out.push_back(verdict(name + "key gradient", dk.host(), DK, 2e-2));
  out.push_back(verdict(name + "value gradient", dv.host(), DV, 2e-2));
}

/// Row kernels, cast and add: operands lie one after another as kernels.cu says.
void check_rows(const std::string& kernel, std::vector<std::string>& out) {
  const std::int64_t row = 768, rows = 8, n = row * rows;
  const MemoryKernel k{kernel, n, kernel == "add" || kernel == "copy" ? 0 : row, ElementType::bf16};
  const std::int64_t all = static_cast<std::int64_t>(operand_bytes(k)) / 2;
  const Tensor t(all, 7);
  const Numbers in = t.host();
  launch_memory_kernel(k, t.memory.data(), nullptr);
  const Numbers after = t.host();
  Numbers wanted(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* x = &in[r * row];
    double sum = 0, squares = 0, exponentials = 0;
    for (std::int64_t i = 0; i < row; ++i) sum += x[i], squares += x[i] * x[i], exponentials += std::exp(x[i]);
    const double mean = kernel == "layer_norm" ? sum / row : 0, norm = 1 / std::sqrt(squares / row - mean * mean + 1e-5);
    for (std::int64_t i = 0; i < row; ++i) {
      double& w = wanted[r * row + i];
      if (kernel == "copy") w = x[i];
      else if (kernel == "add") w = x[i] + in[n + r * row + i];
      else if (kernel == "rms_norm" || kernel == "layer_norm") w = (x[i] - mean) * norm;
      else w = std::exp(x[i]) / exponentials;
    }
  }
  const std::int64_t first = kernel == "add" ? 2 * n : kernel == "cross_entropy" ? 0 : n;
  Numbers got(after.begin() + first, after.begin() + first + n);
  if (kernel == "cross_entropy")  // its target is drawn in the kernel: there the gradient is 1 lower
    for (std::int64_t r = 0; r < rows; ++r) {
      auto least = std::min_element(got.begin() + r * row, got.begin() + (r + 1) * row);
      *least += 1;
    }
  out.push_back(verdict(kernel, got, wanted));
}

}  // namespace

std::vector<std::string> self_test() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) throw NotPossible("CUDA sees no GPU");
  std::vector<std::string> out;
  const auto attempt = [&](const std::string& name, const std::function<void()>& act) {
    try {
      act();
    } catch (const NotPossible& e) {
      out.push_back("not possible " + name + ": " + e.what());
    }
  };
  for (const char* role : {"forward", "data_gradient", "weight_gradient"}) attempt(role, [&] { check_gemm(role, out); });
  for (const std::int64_t d : {64, 128})
    for (const bool causal : {true, false}) attempt("attention", [&] { check_attention(d, causal, out); });
  for (const char* kernel : {"copy", "add", "rms_norm", "layer_norm", "softmax", "cross_entropy"}) attempt(kernel, [&] { check_rows(kernel, out); });
  return out;
}

}  // namespace rehearse::calibrate
