#include "calibrate/probe/cuda/self_test.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <tuple>

#include "calibrate/probe/cuda/attention.h"
#include "calibrate/probe/cuda/blas.h"
#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/kernels.h"

namespace rehearse::calibrate {
namespace {

using bf16 = __nv_bfloat16;
using Numbers = std::vector<double>;

template <typename T>
Numbers numbers_of(const DeviceBuffer& memory, std::int64_t n) {
  std::vector<T> raw(static_cast<std::size_t>(n));
  REHEARSE_CUDA(cudaDeviceSynchronize());
  REHEARSE_CUDA(cudaMemcpy(raw.data(), memory.data(), raw.size() * sizeof(T), cudaMemcpyDeviceToHost));
  Numbers out;
  for (T v : raw) out.push_back(static_cast<double>(static_cast<float>(v)));
  return out;
}

/// Random numbers on the device, and the same on the host.
struct Tensor {
  DeviceBuffer memory;
  std::int64_t size;
  ElementType type;
  explicit Tensor(std::int64_t n, std::uint64_t seed = 0, float deviation = 1, ElementType t = ElementType::bf16) : memory(static_cast<std::size_t>(n) * element_bytes(t)), size(n), type(t) {
    // NaN where nothing is drawn: what a kernel forgets to write is found.
    if (seed == 0) REHEARSE_CUDA(cudaMemset(memory.data(), 0xFF, memory.bytes()));
    else fill_normal(memory.data(), n, t, deviation, seed << 32, nullptr);
  }
  Numbers host() const {
    switch (type) {
      case ElementType::fp32: return numbers_of<float>(memory, size);
      case ElementType::fp16: return numbers_of<__half>(memory, size);
      case ElementType::fp8: return numbers_of<__nv_fp8_e4m3>(memory, size);
      case ElementType::fp64: return numbers_of<double>(memory, size);
      case ElementType::bf16: break;
    }
    return numbers_of<bf16>(memory, size);
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

/// Each combination that the plan asks for: layouts of the roles, formats, a batch, adding to what is there.
void check_gemm(const GemmShape& s, std::vector<std::string>& out) {
  const std::int64_t m = s.m, n = s.n, k = s.k;
  const ElementType type = element_type(s.dtype), result = element_type(s.output_dtype.empty() ? s.dtype : s.output_dtype);
  const Tensor a(s.batch * m * k, 1, 1, type), b(s.batch * k * n, 2, 0.1f, type), c(s.batch * m * n, s.accumulate ? 3 : 0, 1, result);
  const Numbers x = a.host(), y = b.host(), before = c.host();
  prepare_gemm(s)->enqueue(a.memory.data(), b.memory.data(), c.memory.data(), nullptr);
  Numbers z(before.size());
  const bool fp8 = s.dtype == "fp8", forward = s.role == "forward" || fp8, weights = s.role == "weight_gradient" && !fp8;
  for (std::int64_t e = 0; e < s.batch; ++e)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = s.accumulate ? before[(e * m + i) * n + j] : 0;
        for (std::int64_t l = 0; l < k; ++l) sum += x[e * m * k + (weights ? l * m + i : i * k + l)] * y[e * k * n + (forward ? j * k + l : l * n + j)];
        z[(e * m + i) * n + j] = sum;
      }
  std::string name = "gemm " + s.dtype + " " + s.role;
  if (s.batch > 1) name += " batched";
  if (s.accumulate) name += " accumulated in " + s.output_dtype;
  out.push_back(verdict(name, c.host(), z));
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

/// cast, adam, memset and reduction have operands of their own: laid out as kernels.cu says.
void check_others(std::vector<std::string>& out) {
  const std::int64_t n = 4096 + 64;
  const auto operands = [&](const char* kernel) {
    const MemoryKernel k{kernel, n, 0, ElementType::bf16};
    Tensor t(static_cast<std::int64_t>(operand_bytes(k)) / 2, 7);  // pairs of bf16 are fp32 numbers
    const Numbers wide = numbers_of<float>(t.memory, t.size / 2), narrow = t.host();
    launch_memory_kernel(k, t.memory.data(), nullptr);
    return std::tuple(std::move(t), wide, narrow);
  };
  {
    const auto [t, wide, narrow] = operands("cast");
    const Numbers after = t.host();
    out.push_back(verdict("cast", Numbers(after.begin() + 2 * n, after.begin() + 3 * n), Numbers(wide.begin(), wide.begin() + n)));
  }
  {
    const auto [t, wide, narrow] = operands("adam");  // p, m, v in fp32; gradient and copy in bf16
    const Numbers after = numbers_of<float>(t.memory, t.size / 2), copy = t.host();
    Numbers wanted(n);
    for (std::int64_t i = 0; i < n; ++i) {
      const double g = narrow[6 * n + i], m = 0.9 * wide[n + i] + 0.1 * g, v = 0.95 * wide[2 * n + i] + 0.05 * g * g;
      wanted[i] = wide[i] - 1e-4 * (m / (std::sqrt(std::abs(v)) + 1e-8) + 0.1 * wide[i]);
    }
    out.push_back(verdict("adam parameters", Numbers(after.begin(), after.begin() + n), wanted, 1e-4));
    out.push_back(verdict("adam copy", Numbers(copy.begin() + 7 * n, copy.begin() + 8 * n), wanted));
  }
  {
    const auto [t, wide, narrow] = operands("reduction");
    double squares = wide[n / 2];  // added to what was there
    for (std::int64_t i = 0; i < n; ++i) squares += narrow[i] * narrow[i];
    out.push_back(verdict("reduction", {numbers_of<float>(t.memory, t.size / 2)[n / 2]}, {squares}, 1e-3));
  }
  {
    const auto [t, wide, narrow] = operands("memset");
    const Numbers after = t.host();
    out.push_back(verdict("memset", Numbers(after.begin(), after.begin() + n), Numbers(n, static_cast<double>(__bfloat162float(bf16(__nv_bfloat16_raw{0x0101})))), 0));  // every byte 1
  }
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
  const auto gemm = [&](const char* dtype, const char* role, std::int64_t batch = 1, const char* output = "", bool accumulate = false) {
    attempt(std::string("gemm ") + dtype + " " + role, [&] { check_gemm({96, 160, 224, batch, dtype, output, role, accumulate}, out); });
  };
  for (const char* dtype : {"bf16", "fp16", "tf32", "fp32"})
    for (const char* role : {"forward", "data_gradient", "weight_gradient"}) gemm(dtype, role);
  for (const char* role : {"forward", "data_gradient", "weight_gradient"}) gemm("fp8", role, 1, "bf16");
  gemm("bf16", "forward", 3), gemm("bf16", "data_gradient", 3), gemm("bf16", "weight_gradient", 1, "fp32", true);
  for (const std::int64_t d : {64, 128})
    for (const bool causal : {true, false}) attempt("attention", [&] { check_attention(d, causal, out); });
  for (const char* kernel : {"copy", "add", "rms_norm", "layer_norm", "softmax", "cross_entropy"}) attempt(kernel, [&] { check_rows(kernel, out); });
  attempt("cast, adam, reduction, memset", [&] { check_others(out); });
  return out;
}

}  // namespace rehearse::calibrate
