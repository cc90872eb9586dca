// Operations on the GPU made ready: what is enqueued, and how its time is taken. Leaves out which operation asks for which
// (cuda_device.cu).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/nccl.h"
#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

/// Enqueues execution number i on a stream.
using Enqueue = std::function<void(cudaStream_t, std::int64_t)>;

/// Kernels: events around `count` executions that are all enqueued while the stream is held up, so that the host's speed
/// does not show, as in a training step whose host runs ahead.
std::unique_ptr<Work> kernel_work(Enqueue enqueue, std::string note);

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

}  // namespace rehearse::calibrate
