// Device memory that the caching allocator does not see, and the library workspaces that it does.
// Leaves out NCCL's buffers (hwmodels/network) and the allocator itself (caching_allocator.h).
#pragma once

#include "hwmodels/device/gpu.h"
#include "sim/core/units.h"

namespace rehearse::hwmodels {

/// Bytes of one training process besides its tensors. The numbers and their sources: hwmodels/data/memory/context.yaml, read once. Throws ConfigError if that is broken.
struct DeviceOverheads {
  Bytes context;  // CUDA context with the loaded kernels, outside the allocator
  Bytes misc;     // cuDNN, cuBLAS and CUPTI handles, IPC mappings, outside the allocator
  Bytes
      cublas_workspace;  // inside the allocator: one block per (handle, stream) that ran a GEMM, never freed
  BytesPerSecond taken_again;  // at which memory that was given back to the driver can be had again; 0: not known
};

/// `lazy_modules`: kernels are loaded when they are first used (CUDA_MODULE_LOADING=LAZY, since CUDA 11.7); else all of a
/// library with it. AMD's have the same size either way.
DeviceOverheads device_overheads(const Gpu& gpu, bool lazy_modules = true);

/// PyTorch's default cuBLAS workspace for an NVIDIA compute capability (80, 90, ...): ":4096:2:16:8", or 32
/// MiB from Hopper on. Precondition: compute_capability > 0. Source: aten/src/ATen/cuda/CublasHandlePool.cpp;
/// CUBLAS_WORKSPACE_CONFIG overrides it.
Bytes cublas_workspace(int compute_capability);

/// What Transformer Engine keeps per device (several of them when tensor-parallel communication overlaps GEMMs): 32 MiB
/// from Hopper on, 4 MiB before, 512 MiB in AMD's. Source: transformer_engine/pytorch/module/base.py, get_cublas_workspace_size_bytes.
Bytes transformer_engine_workspace(const Gpu& gpu);

}  // namespace rehearse::hwmodels
