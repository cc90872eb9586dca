// A driver's management library as NVML 13 declares it, without the names that it calls deprecated. For nvml_test.cpp; one
// GPU at 0000:1b:00.0 that two other processes use. Source: nvml.h of the wheel nvidia-nvml-dev 13.5.
#include <cstring>

namespace {
int gpu;
constexpr int kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7;
}  // namespace

extern "C" {
int nvmlInit_v2() { return kSuccess; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** handle) {
  if (std::strcmp(address, "0000:1b:00.0") != 0) return kNotFound;
  return *handle = &gpu, kSuccess;
}
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* mhz) { return *mhz = type == 1 ? 1980 : 3201, kSuccess; }
int nvmlDeviceGetMaxClockInfo(void*, unsigned type, unsigned* mhz) { return nvmlDeviceGetClockInfo(nullptr, type, mhz); }
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* mask) { return *mask = 0x20 | 0x1, kSuccess; }
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {  // total, free, used
  memory[0] = 143771ull << 20, memory[2] = 8192ull << 20, memory[1] = memory[0] - memory[2];
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, void*) {
  const bool fits = *count >= 2;
  return *count = 2, fits ? kSuccess : kInsufficientSize;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) { return *milliwatts = 600'000, kSuccess; }
int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* milliwatts) { return *milliwatts = 700'000, kSuccess; }
int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* active) { return link < 36 ? (*active = link < 20, kSuccess) : kInvalidArgument; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return std::strncpy(text, "580.159.03", size), kSuccess; }
}
