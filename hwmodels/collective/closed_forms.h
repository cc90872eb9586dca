// Textbook times of collectives on idle, equal links: the oracles that tests hold the detailed models to.
// Leaves out protocols, ramps and everything measured (algorithm.h).
//   payload    bytes held by each rank before a reduction or after a gathering (nccl-tests' size)
//   n          ranks, n >= 1; one rank costs nothing
//   alpha      latency of one step;  bandwidth: per rank, one direction
#pragma once

#include "sim/core/units.h"

namespace rehearse::hwmodels {

/// 2(n-1) (alpha + payload / (n bandwidth)).  Source: Patarasuk & Yuan 2009.
Duration ring_all_reduce_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth);
/// (n-1) (alpha + payload / (n bandwidth)); reduce-scatter is the same.
Duration ring_all_gather_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth);
/// 2 log2(n) alpha + 2 payload / bandwidth: two trees, each carrying half, pipelined.  Source: Sanders,
/// Speck, Traff 2009.
Duration double_binary_tree_all_reduce_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth);
/// 2 alpha + payload (n+1)/n / bandwidth: each rank pulls its reduced shard's n inputs and pushes one result.
Duration switch_all_reduce_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth);
/// (n-1) (alpha + payload / (n bandwidth)): n-1 rounds of pairs; `payload` is what one rank sends in all.
Duration pairwise_all_to_all_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth);
/// Broadcast along a chain with the message in many slices: (n-1) alpha + payload / bandwidth.
Duration pipelined_broadcast_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth);

/// busbw = algbw x this. Source: NVIDIA/nccl-tests doc/PERFORMANCE.md.
double all_reduce_bus_factor(int n);  // 2(n-1)/n
double shard_bus_factor(int n);       // (n-1)/n: all-gather, reduce-scatter, all-to-all

}  // namespace rehearse::hwmodels
