#include "calibrate/probe/nvml.h"

#include <dlfcn.h>

#include <utility>

namespace rehearse::calibrate {
namespace {

// The parts of nvml.h (a stable binary interface) that are used here. Source: NVIDIA NVML API Reference.
using Handle = void*;
struct Memory { unsigned long long total, free, used; };
struct Process { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; };
constexpr unsigned kClockSm = 1, kClockMemory = 2, kEnabled = 1, kUncorrected = 1, kVolatile = 0, kMostLinks = 36;

struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*by_address)(const char*, Handle*) = nullptr;
  int (*clock)(Handle, unsigned, unsigned*) = nullptr;
  int (*max_clock)(Handle, unsigned, unsigned*) = nullptr;
  int (*reasons)(Handle, unsigned long long*) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  int (*processes)(Handle, unsigned*, Process*) = nullptr;
  int (*ecc)(Handle, unsigned*, unsigned*) = nullptr;
  int (*ecc_errors)(Handle, unsigned, unsigned, unsigned long long*) = nullptr;
  int (*power_limit)(Handle, unsigned*) = nullptr;
  int (*default_power_limit)(Handle, unsigned*) = nullptr;
  int (*pcie_generation)(Handle, unsigned*) = nullptr;
  int (*pcie_width)(Handle, unsigned*) = nullptr;
  int (*mig)(Handle, unsigned*, unsigned*) = nullptr;
  int (*nvlink)(Handle, unsigned, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  Nvml() {
    library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) { function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name)); };
    find(init, "nvmlInit_v2");
    find(by_address, "nvmlDeviceGetHandleByPciBusId_v2");
    find(clock, "nvmlDeviceGetClockInfo");
    find(max_clock, "nvmlDeviceGetMaxClockInfo");
    find(reasons, "nvmlDeviceGetCurrentClocksEventReasons");  // of drivers since 535
    if (reasons == nullptr) find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    find(ecc, "nvmlDeviceGetEccMode");
    find(ecc_errors, "nvmlDeviceGetTotalEccErrors");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(default_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit");
    find(pcie_generation, "nvmlDeviceGetCurrPcieLinkGeneration");
    find(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth");
    find(mig, "nvmlDeviceGetMigMode");
    find(nvlink, "nvmlDeviceGetNvLinkState");
    find(driver, "nvmlSystemGetDriverVersion");
    if (init == nullptr || init() != 0) library = nullptr;
  }
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

/// Calls a function that may be missing in old drivers; true when it answered.
template <typename... Formal, typename... Actual>
bool ask(int (*function)(Formal...), Actual... arguments) {
  return function != nullptr && function(arguments...) == 0;
}

class RealGpu final : public NvmlGpu {
 public:
  explicit RealGpu(Handle handle) : gpu_(handle) {}

  ClockState clocks() override {
    ClockState out;
    unsigned mhz = 0;
    unsigned long long mask = 0;
    if (ask(nvml().clock, gpu_, kClockSm, &mhz)) out.sm_clock_mhz = mhz;
    if (ask(nvml().reasons, gpu_, &mask)) out.throttle = throttle_reasons(mask);
    return out;
  }

  Facts facts() override {
    Facts out;
    unsigned a = 0, b = 0;
    const auto put = [&](const char* key, unsigned value) { out[key] = std::int64_t{value}; };
    if (ask(nvml().max_clock, gpu_, kClockSm, &a)) put("sm_clock_max_mhz", a);
    if (ask(nvml().max_clock, gpu_, kClockMemory, &a)) put("memory_clock_max_mhz", a);
    if (ask(nvml().power_limit, gpu_, &a)) put("power_limit_w", a / 1000);
    if (ask(nvml().pcie_generation, gpu_, &a)) put("pcie_generation", a);
    if (ask(nvml().pcie_width, gpu_, &a)) put("pcie_width", a);
    if (ask(nvml().ecc, gpu_, &a, &b)) out["ecc"] = a == kEnabled;
    if (ask(nvml().mig, gpu_, &a, &b)) out["mig"] = a == kEnabled;
    std::int64_t links = 0;
    for (unsigned link = 0; link < kMostLinks; ++link) links += ask(nvml().nvlink, gpu_, link, &a) && a == kEnabled;
    out["nvlinks"] = links;
    char driver[96] = {};
    if (ask(nvml().driver, driver, unsigned{sizeof driver})) out["driver"] = std::string(driver);
    return out;
  }

  std::vector<std::string> warnings(const std::string& name) override {
    std::vector<std::string> out;
    unsigned a = 0, b = 0;
    unsigned long long errors = 0;
    Memory memory{};
    unsigned processes = 0;
    // With room for none it answers "insufficient size" (7) and the number.
    if (nvml().processes != nullptr && nvml().processes(gpu_, &processes, nullptr) <= 7 && processes > 0)
      out.push_back(name + ": " + std::to_string(processes) + " other process(es) use it; times are of a shared GPU");
    if (ask(nvml().memory, gpu_, &memory) && memory.used > memory.total / 20)
      out.push_back(name + ": " + std::to_string(memory.used >> 20) + " MiB are in use before the probe began");
    if (ask(nvml().ecc_errors, gpu_, kUncorrected, kVolatile, &errors) && errors > 0)
      out.push_back(name + ": " + std::to_string(errors) + " uncorrected memory errors since the driver was loaded");
    if (ask(nvml().power_limit, gpu_, &a) && ask(nvml().default_power_limit, gpu_, &b) && a < b)
      out.push_back(name + ": its power limit is " + std::to_string(a / 1000) + " W, by default " + std::to_string(b / 1000) + " W");
    if (ask(nvml().mig, gpu_, &a, &b) && a == kEnabled) out.push_back(name + ": it is divided (MIG); times are of a part");
    for (const std::string& reason : clocks().throttle)
      if (reason != "power cap") out.push_back(name + ": its clocks are held down before anything runs (" + reason + ")");
    return out;
  }

 private:
  Handle gpu_;
};

}  // namespace

std::vector<std::string> throttle_reasons(std::uint64_t mask) {
  // Bits of nvmlClocksThrottleReasons. 0x1 idle, 0x2 application clocks and 0x100 display clocks are somebody's setting.
  constexpr std::pair<std::uint64_t, const char*> kReasons[] = {
      {0x4, "power cap"}, {0x8, "hardware slowdown"}, {0x10, "sync boost"}, {0x20, "thermal slowdown (software)"},
      {0x40, "thermal slowdown (hardware)"}, {0x80, "power brake"}};
  std::vector<std::string> out;
  for (const auto& [bit, name] : kReasons)
    if ((mask & bit) != 0) out.emplace_back(name);
  return out;
}

std::unique_ptr<NvmlGpu> nvml_gpu(const std::string& pci_address) {
  Handle handle = nullptr;
  if (nvml().library == nullptr || !ask(nvml().by_address, pci_address.c_str(), &handle)) return nullptr;
  return std::make_unique<RealGpu>(handle);
}

}  // namespace rehearse::calibrate
