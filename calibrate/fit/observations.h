// A measurements file as the fits read it: kernels, copies, collectives and launches with their times.
// Leaves out the fits themselves. Series that no fit can use are listed with the reason, never dropped silently.
#pragma once

#include <string>
#include <vector>

#include "calibrate/measurements.h"
#include "hwmodels/device/measured_kernel.h"
#include "hwmodels/network/network.h"
#include "sim/core/communication.h"

namespace rehearse::calibrate {

struct KernelObservation {
  model::KernelSpec kernel;
  double seconds = 0;
  double relative_error = 0;  // of the measurement itself; 0 = not told
  hwmodels::ClockState clock = hwmodels::ClockState::burst;  // sustained when the driver throttled for power
  std::string operation;      // "gemm bf16 forward": errors are told by it
  double size = 0;            // FLOPs or bytes: errors are told by its magnitude
};

struct CollectiveObservation {
  CollectiveKind kind = CollectiveKind::all_reduce;
  double bytes = 0;
  GroupShape shape;
  hwmodels::CommunicationOptions options;  // what the job forced
  double seconds = 0, relative_error = 0;
  std::string operation;  // "all_reduce 8 GPUs", "all_gather 16 GPUs/2": on two nodes
};

/// Copies between host and device; `operation` "host_to_device pinned".
struct CopyObservation {
  std::string operation;
  double bytes = 0, seconds = 0, relative_error = 0;
};

struct LaunchObservation {
  std::string operation;  // "kernel_launch gap", "graph_launch host"
  double nodes = 0;       // of a graph
  double seconds = 0;
};

/// The host's DRAM, its Adam, its disks.
struct HostObservation {
  enum class Kind : std::uint8_t { triad, adam, disk_read, disk_write } kind = Kind::triad;
  double bytes = 0, seconds = 0;   // adam: 30 for each parameter (four reads and three writes in fp32, one write in 16 bit)
  std::int64_t threads = 0;        // of triad and adam
  std::int64_t block_bytes = 0, depth = 0;  // of disks
};

/// One side of a pair that ran at once: which, and how long it takes alone by the same measurements.
struct OverlapSide {
  enum class Kind : std::uint8_t { gemm, collective, transfer } kind = Kind::gemm;
  model::KernelSpec kernel;
  CollectiveKind collective = CollectiveKind::all_reduce;
  GroupShape shape;
  double bytes = 0;                   // of the collective or the transfer
  bool both_directions = false;       // of the transfer
  double alone_seconds = 0;
};

/// `seconds` of the timed side while the other one ran again and again.
struct OverlapObservation {
  OverlapSide timed, beside;
  double seconds = 0, relative_error = 0;
  std::string operation;  // "gemm beside all_reduce"
};

struct Observations {
  std::vector<KernelObservation> kernels;
  std::vector<CollectiveObservation> collectives;
  std::vector<CopyObservation> copies;
  std::vector<LaunchObservation> launches;
  std::vector<OverlapObservation> overlaps;
  std::vector<HostObservation> host;
  std::vector<std::pair<std::string, std::string>> unused;  // identity of the series, why
};

Observations observe(const Measurements& measurements);

/// "2026-05-04, NVIDIA H200, driver 570.1, CUDA 12.8, cuBLASLt 12.8.4, NCCL 2.26.2": what a fit says as its source.
std::string origin_of(const Measurements& measurements, const std::string& date);

}  // namespace rehearse::calibrate
