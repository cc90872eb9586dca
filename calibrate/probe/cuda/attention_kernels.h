// The attention kernels themselves, so that the tests can run them on the CPU too (tests/unit/calibrate/cuda_on_host.h).
// Leaves out launching them (attention.cu).
// mma.sync m16n8k16 throughout. With g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"):
//   A (16 x 16): a0 = row g, columns 2t and 2t+1; a1 = row g+8; a2, a3 = the same rows, columns + 8
//   B (16 x 8):  b0 = rows 2t and 2t+1, column g; b1 = rows + 8
//   C (16 x 8):  c0, c1 = row g, columns 2t and 2t+1; c2, c3 = row g+8
// so two neighbouring C tiles, rounded to bf16, are an A tile: scores become the left operand without leaving registers.
#pragma once

#include <cstdint>

#include "calibrate/probe/cuda/device_language.h"

namespace rehearse::calibrate {
namespace {

constexpr int kTile = 64;     // queries and keys of a tile
constexpr int kWarps = 4;     // each holds 16 rows
constexpr int kPad = 8;       // elements; rows then start in different banks

struct AttentionArguments {
  const bf16 *q, *k, *v, *dout;
  bf16 *out, *dq, *dk, *dv;
  float *lse, *delta;
  int heads, kv_heads, queries, keys;
  bool causal;
  float scale;
};

template <int D>
using Tile = bf16[kTile][D + kPad];

template <int D>
__device__ void load_tile(Tile<D>& tile, const bf16* from) {
  constexpr int kPerRow = D / 8;
  for (int i = threadIdx.x; i < kTile * kPerRow; i += blockDim.x)
    *reinterpret_cast<uint4*>(&tile[i / kPerRow][i % kPerRow * 8]) = *reinterpret_cast<const uint4*>(from + std::int64_t{i / kPerRow} * D + i % kPerRow * 8);
}

/// The 16 x 16 tile at (row, column) as left operand.
template <int D>
__device__ void load_a(unsigned (&a)[4], const Tile<D>& tile, int row, int column) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  a[0] = *reinterpret_cast<const unsigned*>(&tile[row + g][column + 2 * t]);
  a[1] = *reinterpret_cast<const unsigned*>(&tile[row + g + 8][column + 2 * t]);
  a[2] = *reinterpret_cast<const unsigned*>(&tile[row + g][column + 2 * t + 8]);
  a[3] = *reinterpret_cast<const unsigned*>(&tile[row + g + 8][column + 2 * t + 8]);
}

/// c[16 x 64] = a-operand rows [row, row + 16) of `left` times the transpose of `right` (64 rows).
template <int D>
__device__ void times_transposed(float (&c)[8][4], const Tile<D>& left, int row, const Tile<D>& right) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
REHEARSE_UNROLL
  for (auto& tile : c) tile[0] = tile[1] = tile[2] = tile[3] = 0;
REHEARSE_UNROLL
  for (int d = 0; d < D; d += 16) {
    unsigned a[4];
    load_a<D>(a, left, row, d);
REHEARSE_UNROLL
    for (int n = 0; n < 8; ++n) {
      const bf16* b = &right[8 * n + g][d + 2 * t];
      mma(c[n], a, *reinterpret_cast<const unsigned*>(b), *reinterpret_cast<const unsigned*>(b + 8));
    }
  }
}

/// out[16 x D] += p[16 x 64] times `right` (64 x D).
template <int D>
__device__ void accumulate(float (&out)[D / 8][4], const float (&p)[8][4], const Tile<D>& right) {
  const int lane = threadIdx.x % 32;
REHEARSE_UNROLL
  for (int k = 0; k < 4; ++k) {
    const unsigned a[4] = {packed(p[2 * k][0], p[2 * k][1]), packed(p[2 * k][2], p[2 * k][3]), packed(p[2 * k + 1][0], p[2 * k + 1][1]),
                           packed(p[2 * k + 1][2], p[2 * k + 1][3])};
REHEARSE_UNROLL
    for (int n = 0; n < D / 8; ++n) {
      unsigned b0, b1;
      load_transposed(b0, b1, &right[16 * k + lane % 16][8 * n]);
      mma(out[n], a, b0, b1);
    }
  }
}

template <int D>
__device__ void store(const float (&c)[D / 8][4], bf16* to, int row, float upper, float lower) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
REHEARSE_UNROLL
  for (int n = 0; n < D / 8; ++n) {
    *reinterpret_cast<unsigned*>(to + std::int64_t{row + g} * D + 8 * n + 2 * t) = packed(c[n][0] * upper, c[n][1] * upper);
    *reinterpret_cast<unsigned*>(to + std::int64_t{row + g + 8} * D + 8 * n + 2 * t) = packed(c[n][2] * lower, c[n][3] * lower);
  }
}

__device__ float over_four_lanes(float v, bool maximum) {
  for (int step = 1; step < 4; step *= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, v, step);
    v = maximum ? fmaxf(v, other) : v + other;
  }
  return v;
}

/// Offsets of this block's head: query head and the key head that it shares.
struct Head {
  std::int64_t query, key, row;
  __device__ Head(const AttentionArguments& a, int d) {
    const int b = blockIdx.y / a.heads, h = blockIdx.y % a.heads;
    query = std::int64_t{blockIdx.y} * a.queries * d;
    key = (std::int64_t{b} * a.kv_heads + h / (a.heads / a.kv_heads)) * a.keys * d;
    row = std::int64_t{blockIdx.y} * a.queries;
  }
};

/// Grid: query tiles x (batch * heads).
template <int D>
__global__ void __launch_bounds__(32 * kWarps) forward_kernel(AttentionArguments a) {
  char* shared = dynamic_shared_memory();
  auto& query = *reinterpret_cast<Tile<D>*>(shared);
  auto& key = *reinterpret_cast<Tile<D>*>(shared + sizeof(Tile<D>));
  auto& value = *reinterpret_cast<Tile<D>*>(shared + 2 * sizeof(Tile<D>));
  const Head head(a, D);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;  // the long rows of a causal mask first
  const int row = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  load_tile<D>(query, a.q + head.query + std::int64_t{first} * D);
  float out[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  const int end = a.causal ? min(a.keys, first + kTile) : a.keys;
  for (int k0 = 0; k0 < end; k0 += kTile) {
    __syncthreads();
    load_tile<D>(key, a.k + head.key + std::int64_t{k0} * D);
    load_tile<D>(value, a.v + head.key + std::int64_t{k0} * D);
    __syncthreads();
    float s[8][4];
    times_transposed<D>(s, query, row, key);
    float higher[2] = {top[0], top[1]};
REHEARSE_UNROLL
    for (int n = 0; n < 8; ++n)
REHEARSE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int q = first + row + g + 8 * (j / 2), k = k0 + 8 * n + 2 * t + j % 2;
        s[n][j] = a.causal && k > q ? -INFINITY : s[n][j] * a.scale;
        higher[j / 2] = fmaxf(higher[j / 2], s[n][j]);
      }
    float rescale[2];
    for (int r = 0; r < 2; ++r) {
      higher[r] = over_four_lanes(higher[r], true);
      rescale[r] = __expf(top[r] - higher[r]);
      top[r] = higher[r];
      sum[r] *= rescale[r];
    }
REHEARSE_UNROLL
    for (int n = 0; n < 8; ++n)
REHEARSE_UNROLL
      for (int j = 0; j < 4; ++j) {
        s[n][j] = __expf(s[n][j] - top[j / 2]);
        sum[j / 2] += s[n][j];
      }
REHEARSE_UNROLL
    for (int n = 0; n < D / 8; ++n)
REHEARSE_UNROLL
      for (int j = 0; j < 4; ++j) out[n][j] *= rescale[j / 2];
    accumulate<D>(out, s, value);
  }
  for (float& v : sum) v = over_four_lanes(v, false);
  store<D>(out, a.out + head.query + std::int64_t{first} * D, row, 1 / sum[0], 1 / sum[1]);
  if (t == 0) {
    a.lse[head.row + first + row + g] = top[0] + __logf(sum[0]);
    a.lse[head.row + first + row + g + 8] = top[1] + __logf(sum[1]);
  }
}

/// delta = sum over the head of output * output gradient. One warp per row.
template <int D>
__global__ void delta_kernel(AttentionArguments a, std::int64_t rows) {
  const std::int64_t row = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32;
  if (row >= rows) return;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < D; d += 32) sum += to_float(a.out[row * D + d]) * to_float(a.dout[row * D + d]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0) a.delta[row] = sum;
}

/// Gradient of the queries: rows are queries. Grid as forward.
template <int D>
__global__ void __launch_bounds__(32 * kWarps) query_gradient_kernel(AttentionArguments a) {
  char* shared = dynamic_shared_memory();
  auto& query = *reinterpret_cast<Tile<D>*>(shared);
  auto& gradient = *reinterpret_cast<Tile<D>*>(shared + sizeof(Tile<D>));
  auto& key = *reinterpret_cast<Tile<D>*>(shared + 2 * sizeof(Tile<D>));
  auto& value = *reinterpret_cast<Tile<D>*>(shared + 3 * sizeof(Tile<D>));
  const Head head(a, D);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int row = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  load_tile<D>(query, a.q + head.query + std::int64_t{first} * D);
  load_tile<D>(gradient, a.dout + head.query + std::int64_t{first} * D);
  const std::int64_t at = head.row + first + row + g;
  const float lse[2] = {a.lse[at], a.lse[at + 8]}, delta[2] = {a.delta[at], a.delta[at + 8]};
  float dq[D / 8][4] = {};
  const int end = a.causal ? min(a.keys, first + kTile) : a.keys;
  for (int k0 = 0; k0 < end; k0 += kTile) {
    __syncthreads();
    load_tile<D>(key, a.k + head.key + std::int64_t{k0} * D);
    load_tile<D>(value, a.v + head.key + std::int64_t{k0} * D);
    __syncthreads();
    float s[8][4], dp[8][4];
    times_transposed<D>(s, query, row, key);
    times_transposed<D>(dp, gradient, row, value);
REHEARSE_UNROLL
    for (int n = 0; n < 8; ++n)
REHEARSE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int q = first + row + g + 8 * (j / 2), k = k0 + 8 * n + 2 * t + j % 2;
        const float p = a.causal && k > q ? 0.0f : __expf(s[n][j] * a.scale - lse[j / 2]);
        s[n][j] = p * (dp[n][j] - delta[j / 2]) * a.scale;
      }
    accumulate<D>(dq, s, key);
  }
  store<D>(dq, a.dq + head.query + std::int64_t{first} * D, row, 1, 1);
}

/// Gradients of keys and values: rows are keys, so that the transposed scores are left operands. Grid: key tiles x heads.
template <int D>
__global__ void __launch_bounds__(32 * kWarps) key_value_gradient_kernel(AttentionArguments a) {
  char* shared = dynamic_shared_memory();
  auto& query = *reinterpret_cast<Tile<D>*>(shared);
  auto& gradient = *reinterpret_cast<Tile<D>*>(shared + sizeof(Tile<D>));
  auto& key = *reinterpret_cast<Tile<D>*>(shared + 2 * sizeof(Tile<D>));
  auto& value = *reinterpret_cast<Tile<D>*>(shared + 3 * sizeof(Tile<D>));
  const Head head(a, D);
  const int first = static_cast<int>(blockIdx.x) * kTile;
  const int row = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  load_tile<D>(key, a.k + head.key + std::int64_t{first} * D);
  load_tile<D>(value, a.v + head.key + std::int64_t{first} * D);
  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  for (int q0 = a.causal ? first : 0; q0 < a.queries; q0 += kTile) {
    __syncthreads();
    load_tile<D>(query, a.q + head.query + std::int64_t{q0} * D);
    load_tile<D>(gradient, a.dout + head.query + std::int64_t{q0} * D);
    __syncthreads();
    float p[8][4], ds[8][4];
    times_transposed<D>(p, key, row, query);
    times_transposed<D>(ds, value, row, gradient);
REHEARSE_UNROLL
    for (int n = 0; n < 8; ++n)
REHEARSE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int k = first + row + g + 8 * (j / 2), q = q0 + 8 * n + 2 * t + j % 2;
        p[n][j] = a.causal && k > q ? 0.0f : __expf(p[n][j] * a.scale - a.lse[head.row + q]);
        ds[n][j] = p[n][j] * (ds[n][j] - a.delta[head.row + q]) * a.scale;
      }
    accumulate<D>(dv, p, gradient);
    accumulate<D>(dk, ds, query);
  }
  // One tile per query head.
  const std::int64_t mine = (std::int64_t{blockIdx.y} * a.keys + first) * D;
  store<D>(dk, a.dk + mine, row, 1, 1);
  store<D>(dv, a.dv + mine, row, 1, 1);
}

}  // namespace
}  // namespace rehearse::calibrate
