// What the kernel formulas need of one GPU at one clock, computed once: rates per SM, launch times, limits.
// Leaves out the formulas (gemm_cost.h, attention_cost.h, memory_cost.h).
#pragma once

#include <array>

#include "hwmodels/device/gpu.h"
#include "hwmodels/device/kernel_parameters.h"

namespace rehearse::hwmodels {

/// CTA tiles of a GEMM's result that cuBLAS and CUTLASS build.
struct Tile {
  std::int64_t m, n;
};
constexpr std::array<Tile, 8> kGemmTiles{
    {{256, 128}, {128, 256}, {128, 128}, {64, 256}, {256, 64}, {128, 64}, {64, 128}, {64, 64}}};

constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::boolean) + 1;

struct DeviceRates {
  KernelParameters p;
  double sms = 1;
  double hbm = 0;                          // datasheet bytes/s
  double strided = 0;                      // bytes/s of pointwise kernels that load their elements one by one
  double l2_bytes = 0;                     // the share of the L2 that data survives in
  double gemm_clock = 1;                   // of the burst clock, with matrix products running
  std::array<double, kDTypes> peak{};      // datasheet FLOP/s by operand type, where one exists or can stand in
  std::array<double, kDTypes> gemm_rate{}; // FLOP/s of the reference tile on all SMs at this clock
  std::array<double, kGemmTiles.size()> tile_flops{};  // FLOPs of one step of K, slow operand fetch counted as more
  std::array<double, kGemmTiles.size()> wave_rows{};   // rows of tiles in a square wave over all SMs
  std::array<bool, kDTypes> stand_in{};    // this type has no units here: a wider one does its work
};

/// Types without units of their own run on the next wider ones: mxfp8 -> fp8 -> bf16, nvfp4 -> mxfp8,
/// bf16 <-> fp16 -> fp32, tf32 -> fp32.
/// `gpus`: how many of them work in step. No two have the same speed, so the slowest sets the pace of what the clock
/// decides (matrix products, attention); memory bandwidth is the same for all.
DeviceRates rates_of(const Gpu& gpu, ClockState clock, int gpus = 1);

/// The mean of the largest of n standard normal numbers, n >= 1 (Blom 1958: the quantile of (n - 3/8) / (n + 1/4)).
double expected_largest(int n);

/// Fills tile_flops and wave_rows from sms and p.tile_fetch.
void prepare_tiles(DeviceRates& rates);

/// Seconds a kernel needs, the work it shares with others, and whether a limit other than compute holds it.
struct CostParts {
  double seconds = 0;
  double compute_seconds = 0;
  double memory_seconds = 0;
  double hbm_bytes = 0;
  double sm_share = 1;
};

}  // namespace rehearse::hwmodels
