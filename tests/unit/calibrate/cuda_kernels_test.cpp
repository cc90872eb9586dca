// The probe's CUDA kernels, run on the CPU: results against plain loops, and nothing written outside or forgotten.
#include "tests/unit/calibrate/cuda_on_host.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include "calibrate/probe/cuda/attention_kernels.h"
#include "calibrate/probe/cuda/memory_kernels.h"
#pragma GCC diagnostic pop

#include <gtest/gtest.h>

#include <random>

namespace rehearse::calibrate::cuda_kernels_test {
namespace {

using Numbers = std::vector<double>;
constexpr std::size_t kGuard = 64;  // elements before and after a tensor that nobody may touch

/// bf16 in memory with guards; NaN where nothing was drawn.
struct Tensor {
  struct alignas(16) Unit {
    char bytes[16];
  };
  std::vector<Unit> memory;
  std::size_t size;
  explicit Tensor(std::size_t n, unsigned seed = 0, double deviation = 1) : memory((n + 2 * kGuard) / 8), size(n) {
    std::memset(memory.data(), 0xFF, memory.size() * 16);
    std::mt19937 draw(seed);
    std::normal_distribution<double> gauss(0, deviation);
    if (seed != 0)
      for (std::size_t i = 0; i < n; ++i) data()[i] = bf16(static_cast<float>(gauss(draw)));
  }
  bf16* data() { return reinterpret_cast<bf16*>(memory.data()) + kGuard; }
  Numbers numbers() {
    for (std::size_t i = 0; i < kGuard; ++i) EXPECT_TRUE(data()[size + i].bits == 0xFFFF && (data() - kGuard)[i].bits == 0xFFFF) << "written outside";
    Numbers out;
    for (std::size_t i = 0; i < size; ++i) out.push_back(to_float(data()[i]));
    return out;
  }
};

/// |a - b| / |b|; NaN where anything was forgotten.
double difference(const Numbers& got, const Numbers& wanted) {
  double d = 0, size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) d += (got[i] - wanted[i]) * (got[i] - wanted[i]), size += wanted[i] * wanted[i];
  return std::sqrt(d / size);
}

struct AttentionCase {
  int head_dim, batch, heads, kv_heads, queries, keys;
  bool causal;
};

class AttentionKernels : public testing::TestWithParam<AttentionCase> {};

template <int D>
void attention(const AttentionCase& c) {
  const std::size_t batch = static_cast<std::size_t>(c.batch), H = static_cast<std::size_t>(c.heads), Q = static_cast<std::size_t>(c.queries), K = static_cast<std::size_t>(c.keys), d = D;
  const std::size_t kv = static_cast<std::size_t>(c.kv_heads), share = H / kv;
  Tensor q(batch * H * Q * d, 1), k(batch * kv * K * d, 2), v(batch * kv * K * d, 3), y(batch * H * Q * d), dy(batch * H * Q * d, 4), dq(batch * H * Q * d);
  Tensor dk(batch * H * K * d), dv(batch * H * K * d);
  std::vector<float> lse(batch * H * Q, NAN), delta(batch * H * Q, NAN);
  const float scale = 1 / std::sqrt(static_cast<float>(D));
  const AttentionArguments a{q.data(), k.data(), v.data(), dy.data(), y.data(), dq.data(), dk.data(), dv.data(), lse.data(), delta.data(), c.heads, c.kv_heads, c.queries, c.keys, c.causal, scale};
  const auto heads = static_cast<unsigned>(batch * H), query_tiles = static_cast<unsigned>(c.queries / kTile), key_tiles = static_cast<unsigned>(c.keys / kTile);
  const std::size_t tile = sizeof(Tile<D>);
  on_host({query_tiles, heads, 1}, 32 * kWarps, 3 * tile, [&] { forward_kernel<D>(a); });
  const auto rows = static_cast<std::int64_t>(batch * H * Q);
  on_host({static_cast<unsigned>((rows + 7) / 8), 1, 1}, 256, 0, [&] { delta_kernel<D>(a, rows); });
  on_host({key_tiles, heads, 1}, 32 * kWarps, 4 * tile, [&] { key_value_gradient_kernel<D>(a); });
  on_host({query_tiles, heads, 1}, 32 * kWarps, 4 * tile, [&] { query_gradient_kernel<D>(a); });

  const Numbers qn = q.numbers(), kn = k.numbers(), vn = v.numbers(), gn = dy.numbers();
  Numbers Y(qn.size()), DQ(qn.size()), DK(batch * H * K * d), DV(DK.size());
  for (std::size_t h = 0; h < batch * H; ++h)
    for (std::size_t i = 0; i < Q; ++i) {
      const std::size_t row = (h * Q + i) * d, end = c.causal ? i + 1 : K, shared = (h / H * kv + h % H / share) * K * d;
      Numbers p(end), dp(end);
      double total = 0, mean = 0;
      for (std::size_t j = 0; j < end; ++j) {
        double s = 0;
        for (std::size_t e = 0; e < d; ++e) s += qn[row + e] * kn[shared + j * d + e], dp[j] += gn[row + e] * vn[shared + j * d + e];
        total += p[j] = std::exp(s * static_cast<double>(scale));
      }
      for (std::size_t j = 0; j < end; ++j) p[j] /= total, mean += p[j] * dp[j];
      for (std::size_t j = 0; j < end; ++j)
        for (std::size_t e = 0; e < d; ++e) {
          const double ds = p[j] * (dp[j] - mean) * static_cast<double>(scale);
          Y[row + e] += p[j] * vn[shared + j * d + e];
          DQ[row + e] += ds * kn[shared + j * d + e];
          DK[(h * K + j) * d + e] += ds * qn[row + e];
          DV[(h * K + j) * d + e] += p[j] * gn[row + e];
        }
    }
  EXPECT_LT(difference(y.numbers(), Y), 0.01);
  EXPECT_LT(difference(dq.numbers(), DQ), 0.02);
  EXPECT_LT(difference(dk.numbers(), DK), 0.02);
  EXPECT_LT(difference(dv.numbers(), DV), 0.02);
}

TEST_P(AttentionKernels, AreTheFormulas) { GetParam().head_dim == 64 ? attention<64>(GetParam()) : attention<128>(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionKernels,
                         testing::Values(AttentionCase{64, 2, 2, 1, 128, 128, true}, AttentionCase{128, 1, 1, 1, 128, 128, true}, AttentionCase{64, 1, 4, 2, 64, 128, false},
                                         AttentionCase{128, 1, 1, 1, 128, 64, false}));

TEST(MemoryKernels, RowKernelsAreTheirFormulas) {
  const int row = 776;  // no multiple of the block, a multiple of the packs
  const std::size_t n = 3 * static_cast<std::size_t>(row);
  Tensor in(n, 7), out(n);
  const Numbers x = in.numbers();
  for (const RowKernel kind : {RowKernel::rms_norm, RowKernel::layer_norm, RowKernel::softmax}) {
    const auto *from = reinterpret_cast<const Pack<bf16>*>(in.data());
    auto* to = reinterpret_cast<Pack<bf16>*>(out.data());
    on_host({3, 1, 1}, 256, static_cast<std::size_t>(row) * 2, [&] {
      kind == RowKernel::rms_norm ? row_kernel<bf16, RowKernel::rms_norm>(from, to, row)
      : kind == RowKernel::layer_norm ? row_kernel<bf16, RowKernel::layer_norm>(from, to, row) : row_kernel<bf16, RowKernel::softmax>(from, to, row);
    });
    Numbers wanted(n);
    for (std::size_t r = 0; r < 3; ++r) {
      double sum = 0, squares = 0, exponentials = 0;
      for (std::size_t i = r * 776; i < (r + 1) * 776; ++i) sum += x[i], squares += x[i] * x[i], exponentials += std::exp(x[i]);
      const double mean = kind == RowKernel::layer_norm ? sum / row : 0, norm = 1 / std::sqrt(squares / row - mean * mean + 1e-5);
      for (std::size_t i = r * 776; i < (r + 1) * 776; ++i) wanted[i] = kind == RowKernel::softmax ? std::exp(x[i]) / exponentials : (x[i] - mean) * norm;
    }
    EXPECT_LT(difference(out.numbers(), wanted), 0.005) << static_cast<int>(kind);
  }
}

TEST(MemoryKernels, CrossEntropyIsLossAndGradient) {
  const int row = 1000;
  Tensor logits(2 * 1000, 9, 2);
  const Numbers x = logits.numbers();
  std::vector<float> losses(2, NAN);
  on_host({2, 1, 1}, 1024, 0, [&] { cross_entropy_kernel<bf16>(reinterpret_cast<Pack<bf16>*>(logits.data()), losses.data(), row); });
  const Numbers got = logits.numbers();
  for (std::size_t r = 0; r < 2; ++r) {
    double total = 0;
    for (std::size_t i = 0; i < 1000; ++i) total += std::exp(x[r * 1000 + i]);
    Numbers wanted(1000), mine(got.begin() + static_cast<std::ptrdiff_t>(r * 1000), got.begin() + static_cast<std::ptrdiff_t>((r + 1) * 1000));
    for (std::size_t i = 0; i < 1000; ++i) wanted[i] = std::exp(x[r * 1000 + i]) / total;
    const auto target = static_cast<std::size_t>(std::min_element(mine.begin(), mine.end()) - mine.begin());  // drawn in the kernel
    EXPECT_NEAR(static_cast<double>(losses[r]), std::log(total) - x[r * 1000 + target], 1e-3);
    wanted[target] -= 1;
    EXPECT_LT(difference(mine, wanted), 0.005);
  }
}

// Several blocks stride over the elements: every one is met once.
TEST(MemoryKernels, CopyAddCastAdamAndSquares) {
  const std::size_t n = 5000 / 8 * 8;
  const auto count = static_cast<std::int64_t>(n);
  Tensor a(n, 1), b(n, 2), out(n);
  const Numbers x = a.numbers(), y = b.numbers();
  const auto pack = [](Tensor& t) { return reinterpret_cast<Pack<bf16>*>(t.data()); };
  on_host({2, 1, 1}, 64, 0, [&] { copy_kernel<bf16>(pack(a), pack(out), count); });
  EXPECT_EQ(difference(out.numbers(), x), 0);
  on_host({2, 1, 1}, 64, 0, [&] { add_kernel<bf16>(pack(a), pack(b), pack(out), count); });
  Numbers sum(n);
  for (std::size_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
  EXPECT_LT(difference(out.numbers(), sum), 0.003);

  std::vector<float4> wide(n / 4), first(n / 4, float4{0.1f, 0.1f, 0.1f, 0.1f}), second(n / 4, float4{0.04f, 0.04f, 0.04f, 0.04f});
  auto* flat = reinterpret_cast<float*>(wide.data());
  for (std::size_t i = 0; i < n; ++i) flat[i] = static_cast<float>(x[i]);
  on_host({3, 1, 1}, 64, 0, [&] { cast_kernel<bf16>(wide.data(), out.data(), count); });
  EXPECT_EQ(difference(out.numbers(), x), 0);
  on_host({3, 1, 1}, 64, 0, [&] { adam_kernel<bf16>(wide.data(), first.data(), second.data(), b.data(), out.data(), count); });
  Numbers stepped(n), got(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double m = 0.9 * 0.1 + 0.1 * y[i], v = 0.95 * 0.04 + 0.05 * y[i] * y[i];
    stepped[i] = x[i] - 1e-4 * (m / (std::sqrt(v) + 1e-8) + 0.1 * x[i]);
    got[i] = static_cast<double>(flat[i]);
  }
  EXPECT_LT(difference(got, stepped), 1e-6);
  EXPECT_LT(difference(out.numbers(), stepped), 0.003);

  float squares = 0;
  double wanted = 0;
  for (double v : x) wanted += v * v;
  on_host({2, 1, 1}, 64, 0, [&] { squares_kernel<bf16>(pack(a), &squares, count); });
  EXPECT_NEAR(static_cast<double>(squares), wanted, 1e-4 * wanted);
}

// Box and Muller: mean 0, the deviation asked for, and different numbers for different seeds.
TEST(MemoryKernels, FilledNumbersAreNormal) {
  std::vector<float> a(40000, NAN), b(40000, NAN);
  on_host({7, 1, 1}, 64, 0, [&] { fill_kernel(a.data(), 40000, 0.5f, 1u); });
  on_host({7, 1, 1}, 64, 0, [&] { fill_kernel(b.data(), 40000, 0.5f, 1ull << 40); });
  double sum = 0, squares = 0, fourth = 0, both = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double v = static_cast<double>(a[i]);
    sum += v, squares += v * v, fourth += v * v * v * v, both += v * static_cast<double>(b[i]);
  }
  const double n = 40000;
  EXPECT_NEAR(sum / n, 0, 4 * 0.5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 0.25, 4 * 0.25 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3 * 0.0625, 0.02);
  EXPECT_NEAR(both / n, 0, 4 * 0.25 / std::sqrt(n));
}

}  // namespace
}  // namespace rehearse::calibrate::cuda_kernels_test
