// CUDA's answers as exceptions: what cannot be done here, and a device that is lost.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const std::string text = std::string(what) + ": " + cudaGetErrorString(error);
  // An error that stays after it was read has ended the context.
  cudaGetLastError();
  if (error != cudaErrorMemoryAllocation && cudaDeviceSynchronize() != cudaSuccess) throw DeviceLost(text);
  throw NotPossible(error == cudaErrorMemoryAllocation ? "the GPU has too little free memory" : text);
}

#define REHEARSE_CUDA(call) ::rehearse::calibrate::check((call), #call)

/// Memory of the GPU.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) { REHEARSE_CUDA(cudaMalloc(&data_, bytes > 0 ? bytes : 1)); }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }
  char* data() const { return static_cast<char*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { REHEARSE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream; }
};

struct Event {
  cudaEvent_t event = nullptr;
  Event() { REHEARSE_CUDA(cudaEventCreate(&event)); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  operator cudaEvent_t() const { return event; }
};

}  // namespace rehearse::calibrate
