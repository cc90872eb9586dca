// Device memory that NCCL takes for one communicator, outside PyTorch's caching allocator.
// Leaves out the CUDA context and user buffers (hwmodels/memory).
#pragma once

#include <vector>

#include "hwmodels/collective/group.h"
#include "hwmodels/network/network.h"

namespace rehearse::hwmodels {

/// Connections are made at first use, so only the algorithms that `kinds` lead to are counted; before NCCL 2.22 rings, trees and
/// NVLS were connected when the communicator was made, whatever it ran (options.connects_at_once), pairs at first use as ever.
/// Sources: NVIDIA/nccl 2.30 src/transport/{p2p,net,nvls}.cc; allocation sizes observed in NVIDIA/nccl #1685; NCCL's release notes
/// 2.22.3 (lazy connection establishment), 2.21 src/init.cc (initTransportsRank).
Bytes nccl_memory(const Group& group, const std::vector<CollectiveKind>& kinds,
                  const CommunicationOptions& options);

/// Buffers of DeepEP's normal kernels on each rank of a group of `ranks`, for tokens of `token_bytes`: what arrives over NVLink and,
/// beyond eight ranks, what leaves and arrives over RDMA. HybridEP is taken to hold as much (assumption).
/// Source: deepseek-ai/DeepEP csrc/config.hpp (size hints), deep_ep/buffer.py (20 SMs; chunk sizes by number of ranks).
Bytes dispatch_buffers(int ranks, Bytes token_bytes);

}  // namespace rehearse::hwmodels
