// The management library, as far as PyTorch's allocator asks it: the GPU on paper has no fabric, no links and no processes.
// The library stands in for libnvidia-ml.so.1. Source of the interface: nvml.h of CUDA 13.0; who asks: c10/cuda/driver_api.h, C10_NVML_DRIVER_API.
extern "C" {

using Status = int;
constexpr Status kSuccess = 0, kNotSupported = 3;   // NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED

Status nvmlInit_v2() { return kSuccess; }
Status nvmlShutdown() { return kSuccess; }
Status nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, kSuccess; }
Status nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int one;
  return *device = &one, kSuccess;
}
Status nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
Status nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) { return kNotSupported; }
Status nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
Status nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { return *count = 0, kSuccess; }
}
