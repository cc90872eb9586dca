// Operations on the GPU made ready, a file per kind: gemm_works.cu, kernel_works.cu, launch_works.cu, transfer_works.cu,
// collective_works.cu, overlap_works.cu. Leaves out which operation asks for which (cuda_device.cu).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/nccl.h"
#include "calibrate/probe/cuda/timing.h"
#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

std::unique_ptr<Work> memory_kernel_work(const Facts& parameters);
std::unique_ptr<Work> attention_work(const Facts& parameters, bool backward);
std::unique_ptr<Work> gemm_work(const Facts& parameters);
std::unique_ptr<Work> grouped_gemm_work(const Facts& parameters);
std::unique_ptr<Work> launch_work(const std::string& operation, const Facts& parameters);
std::unique_ptr<Work> transfer_work(const Facts& parameters, int own_gpu);
std::unique_ptr<Work> collective_work(const Facts& parameters, Nccl& nccl, const NcclGroup& group);
/// The largest of the numbers that all processes give; every process calls it equally often.
using Agree = std::function<double(double)>;
/// Makes all that may be missing (memory, an algorithm) ready, and returns what runs both operations to see how long they take.
/// That second part asks `agree` twice, whatever fails: a process that fell out of step would have the others wait for ever.
std::function<std::unique_ptr<Work>(const Agree& agree)> overlap_work(const Facts& parameters, Nccl* nccl, const NcclGroup& group);

/// Enqueues GEMMs with rotating operands; used alone and beside other operations.
Enqueue gemm_enqueue(const Facts& parameters, std::string* note);
/// Enqueues an operation that may take two streams; the first one's end is that of both.
using PairEnqueue = std::function<void(cudaStream_t, cudaStream_t)>;
PairEnqueue transfer_enqueue(const Facts& parameters);
PairEnqueue collective_enqueue(const Facts& parameters, Nccl& nccl, const NcclGroup& group);

}  // namespace rehearse::calibrate
