// The probe's CUDA kernels on the CPU: each thread of a block is a fibre, barriers and warp operations are where fibres wait
// for each other. Tensor-core fragments and transposed loads are as the PTX ISA says (9.7.14.5.8, 9.7.14.5.15), restated here
// independently of the kernels. Slow, and blocks run one after another: for index arithmetic, not for races between blocks.
#pragma once

#define REHEARSE_CUDA_ON_HOST
#define __global__
#define __device__
#define __shared__ static  // one block at a time, all its fibres in one thread
#define __launch_bounds__(n)
#define REHEARSE_UNROLL

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline int min(int a, int b) { return std::min(a, b); }
inline void atomicAdd(float* at, float v) { *at += v; }

namespace rehearse::calibrate {
namespace {

struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float v) {  // to the nearest, ties to even
    const auto raw = std::bit_cast<std::uint32_t>(v);
    bits = static_cast<std::uint16_t>(std::isnan(v) ? 0x7FC0u : (raw + 0x7FFFu + (raw >> 16 & 1u)) >> 16);
  }
};
inline float to_float(float v) { return v; }
inline float to_float(bf16 v) { return std::bit_cast<float>(std::uint32_t{v.bits} << 16); }
template <typename T> T from_float(float v) { return T(v); }
inline unsigned packed(float low, float high) { return bf16(low).bits | static_cast<unsigned>(bf16(high).bits) << 16; }
inline float unpacked(unsigned both, int which) { return std::bit_cast<float>(both >> (16 * which) << 16); }

/// Runs one block: every fibre until it waits, in turn, until all have ended.
class Block {
 public:
  static Block*& now() {
    static Block* block = nullptr;
    return block;
  }
  Block(unsigned threads, std::size_t shared_bytes, std::function<void()> kernel) : kernel_(std::move(kernel)), fibres_(threads), lanes_(threads) {
    shared_.assign(shared_bytes / 16 + 1, {});
    std::memset(shared_.data(), 0xFF, shared_.size() * 16);  // NaN: what is read before it is written shows
  }
  void run() {
    now() = this;
    for (std::size_t i = 0; i < fibres_.size(); ++i) {
      Fibre& f = fibres_[i];
      f.stack.reset(new char[kStack]);
      ::getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get(), f.context.uc_stack.ss_size = kStack, f.context.uc_link = &scheduler_;
      ::makecontext(&f.context, &Block::enter, 0);
    }
    for (std::size_t ended = 0; ended < fibres_.size();) {
      bool moved = false;
      for (current_ = 0; current_ < fibres_.size(); ++current_) {
        Fibre& f = fibres_[current_];
        if (f.ended || !may_go_on(f)) continue;
        moved = true;
        threadIdx.x = static_cast<unsigned>(current_);
        ::swapcontext(&scheduler_, &f.context);
        if (f.ended) ++ended;
      }
      if (!moved) throw std::runtime_error("the threads of a block wait for each other for ever");
    }
    now() = nullptr;
  }
  void block_barrier() { wait(true); }
  void warp_barrier() { wait(false); }
  char* shared() { return reinterpret_cast<char*>(shared_.data()); }
  /// What each lane of this warp laid down: as many words as any operation needs.
  std::array<std::uint64_t, 8>& lane(unsigned l) { return lanes_[threadIdx.x / 32 * 32 + l]; }

 private:
  static constexpr std::size_t kStack = 128 * 1024;
  struct Fibre {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    std::uint64_t block_barriers = 0, warp_barriers = 0;
    bool at_block = false, at_warp = false, ended = false;
  };
  static void enter() {
    Block& b = *now();
    b.kernel_();
    b.fibres_[b.current_].ended = true;
  }
  void wait(bool block) {
    Fibre& f = fibres_[current_];
    (block ? f.at_block : f.at_warp) = true;
    ++(block ? f.block_barriers : f.warp_barriers);
    ::swapcontext(&f.context, &scheduler_);
    (block ? f.at_block : f.at_warp) = false;
  }
  /// All that share the barrier have come to it, or passed it already.
  bool may_go_on(const Fibre& f) const {
    const auto came = [&](const Fibre& o) { return f.at_block ? o.block_barriers >= f.block_barriers : o.warp_barriers >= f.warp_barriers; };
    if (f.at_block) return std::all_of(fibres_.begin(), fibres_.end(), came);
    if (!f.at_warp) return true;
    const auto first = fibres_.begin() + static_cast<std::ptrdiff_t>(current_ / 32 * 32);
    return std::all_of(first, first + 32, came);
  }

  struct alignas(16) Unit {
    char bytes[16];
  };
  std::function<void()> kernel_;
  std::vector<Fibre> fibres_;
  std::vector<std::array<std::uint64_t, 8>> lanes_;
  std::vector<Unit> shared_;
  ucontext_t scheduler_{};
  std::size_t current_ = 0;
};

inline char* dynamic_shared_memory() { return Block::now()->shared(); }

inline float __shfl_xor_sync(unsigned, float v, int step) {
  Block& b = *Block::now();
  const unsigned lane = threadIdx.x % 32;
  b.lane(lane)[0] = std::bit_cast<std::uint32_t>(v);
  b.warp_barrier();
  const auto other = static_cast<std::uint32_t>(b.lane(lane ^ static_cast<unsigned>(step))[0]);
  b.warp_barrier();
  return std::bit_cast<float>(other);
}

inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  Block& b = *Block::now();
  const unsigned lane = threadIdx.x % 32;
  b.lane(lane) = {a[0], a[1], a[2], a[3], b0, b1, 0, 0};
  b.warp_barrier();
  float left[16][16], right[16][8];
  for (unsigned l = 0; l < 32; ++l) {
    const unsigned group = l >> 2, in_group = l % 4;
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8, column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      left[row][column] = unpacked(static_cast<unsigned>(b.lane(l)[i / 2]), static_cast<int>(i & 1));
    }
    for (unsigned i = 0; i < 4; ++i) right[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = unpacked(static_cast<unsigned>(b.lane(l)[4 + i / 2]), static_cast<int>(i & 1));
  }
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 16; ++k) c[i] += left[(lane >> 2) + (i >= 2 ? 8 : 0)][k] * right[k][lane % 4 * 2 + (i & 1)];
  b.warp_barrier();
}

inline void load_transposed(unsigned& b0, unsigned& b1, const bf16* row) {
  Block& b = *Block::now();
  const unsigned lane = threadIdx.x % 32;
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) throw std::runtime_error("ldmatrix: a row is not aligned to 16 bytes");
  b.lane(lane)[0] = reinterpret_cast<std::uintptr_t>(row);
  b.warp_barrier();
  unsigned* out[2] = {&b0, &b1};
  for (unsigned matrix = 0; matrix < 2; ++matrix) {
    const auto element = [&](unsigned r) { return std::uint32_t{reinterpret_cast<const bf16*>(b.lane(8 * matrix + r)[0])[lane / 4].bits}; };
    *out[matrix] = element(2 * (lane % 4)) | element(2 * (lane % 4) + 1) << 16;
  }
  b.warp_barrier();
}

/// A launch: kernel<<<grid, threads, shared_bytes>>>(...).
inline void on_host(Index3 grid, unsigned threads, std::size_t shared_bytes, const std::function<void()>& kernel) {
  gridDim = grid, blockDim = {threads, 1, 1};
  for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) Block(threads, shared_bytes, kernel).run();
}

inline void __syncthreads() { Block::now()->block_barrier(); }

}  // namespace
}  // namespace rehearse::calibrate
