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
/// On tensor units.
constexpr std::array<Tile, 8> kGemmTiles{
    {{256, 128}, {128, 256}, {128, 128}, {64, 256}, {256, 64}, {128, 64}, {64, 128}, {64, 64}}};
/// Of fp32 on CUDA cores: cuBLAS's ampere_sgemm_128x128, _128x64, _64x64, _128x32, _32x128, _64x32_sliced1x4, _32x32_sliced1x4 (names
/// in profiles of A100; volta_sgemm_* before), and CUTLASS's simt_sgemm of the same sizes.
constexpr std::array<Tile, 8> kSimtTiles{
    {{128, 128}, {128, 64}, {64, 128}, {64, 64}, {128, 32}, {32, 128}, {64, 32}, {32, 32}}};

/// What a set of tiles costs on this GPU.
template <std::size_t N>
struct TileRates {
  std::array<double, N> flops{};      // of one step of K, slow operand fetch counted as more
  std::array<double, N> wave_rows{};  // rows of tiles in a square wave over all SMs
};

constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::boolean) + 1;

struct DeviceRates {
  KernelParameters p;
  double sms = 1;
  double boost_clock = 0;                  // Hz, of the datasheet's peaks
  double hbm = 0;                          // datasheet bytes/s
  double strided = 0;                      // elements/s that pointwise kernels load one by one, memory aside; 0: no limit
  double adding = 0;                       // elements a second that scatter_add_ adds
  double updating = 0;                     // parameters a second of a fused Adam
  double converting = 0;                   // the same of operands and results that are converted one by one
  double scan_flops = 0, scan_decays = 0;  // of state-space scans, per second; 0: no limit
  double delta_flops = 0;                  // of delta rules, per second; 0: no limit
  double delta_chunk = 0, delta_backward_chunk = 0;  // seconds from one chunk's state to the next
  double convolved = 0, convolved_backward = 0;  // elements/s of causal convolutions; 0: no limit
  double l2_bytes = 0;                     // the share of the L2 that data survives in
  double highest_clock = 1;                // of the burst clock: less than 1 where clocks are locked
  double gemm_clock = 1;                   // of the burst clock, with 16-bit matrix products running
  double attention_clock = 1;              // what attention would have if it kept tensor units as busy as those products
  std::array<double, kDTypes> peak{};      // datasheet FLOP/s by operand type, where one exists or can stand in
  std::array<double, kDTypes> gemm_rate{}; // FLOP/s of the reference tile on all SMs at this clock
  TileRates<kGemmTiles.size()> tiles;      // on tensor units
  TileRates<kSimtTiles.size()> simt_tiles; // on CUDA cores
  std::array<bool, kDTypes> on_cores{};    // this type's products run on CUDA cores
  double core_wait = 1, tensor_wait = 1;   // what waiting for operands counts there, in FLOPs, of what it counts on the tensor units that it was fitted on
  std::array<bool, kDTypes> stand_in{};    // this type has no units here: a wider one does its work
};

/// How far a GPU's speed lies below the mean of its type, in standard deviations (`speed_spread`).
struct Pace {
  double deviations = 0;
  bool operator==(const Pace&) const = default;
};

/// The clock, of the burst clock, while tensor units draw `power` of what 16-bit products at `clock` draw. At the power limit the clock
/// falls until the draw is within it: by the 0.266th power. SimuMax on B200: long products run at 0.74 of the burst clock, long attention,
/// 0.65 as busy, at 0.83. No clock is above `highest`. Azure's and others' products in 8 bits: hwmodels/data/kernel/README.md, "Clocks".
double clock_at_power(double clock, double power, double highest = 1);

/// MHz to which the power limit brings long 16-bit matrix products; a clock locked above it holds them back no further.
double power_limited_clock_mhz(const Gpu& gpu);

/// Types without units of their own run on the next wider ones: mxfp8 -> fp8 -> bf16, nvfp4 -> mxfp8,
/// bf16 <-> fp16 -> fp32, tf32 -> fp32.
/// `pace`: of what the clock decides (matrix products, attention); memory bandwidth is the same for all GPUs.
DeviceRates rates_of(const Gpu& gpu, ClockState clock, Pace pace = {});

/// The mean of the largest of n standard normal numbers, n >= 1 (Blom 1958: the quantile of (n - 3/8) / (n + 1/4)).
double expected_largest(int n);

/// No two GPUs have the same speed: where `gpus` of them work in step, the slowest sets the pace.
Pace pace_of_slowest(int gpus);

/// Fills tiles, simt_tiles and the waits from sms, p.tile_fetch and the peaks. CUDA cores, and tensor units of parts that have fewer of them
/// to an SM (GeForce with fp32 sums, H20, GA102 beside GA100), take so much longer over a FLOP that the same operands keep them waiting for fewer:
/// tile_fetch and k_ramp_bytes, fitted on bf16 where an SM does p.fitted_flops_per_clock, shrink with the operand bytes per second at the peak.
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
