#include "calibrate/probe/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace rehearse::calibrate::nvml_test {
namespace {

/// The loader hands out a library that is there already for the same name: the made-up driver of tests/fakes/nvml.cpp.
const bool made_up = ::dlopen(REHEARSE_FAKE_NVML, RTLD_NOW) != nullptr;

/// Bits as in nvml.h: nvmlClocksEventReasonSwPowerCap 4, HwSlowdown 8, SwThermalSlowdown 0x20, HwPowerBrakeSlowdown 0x80.
TEST(Nvml, ReasonsForLowClocksInWords) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(throttle_reasons(0), Words{});
  EXPECT_EQ(throttle_reasons(0x1 | 0x2 | 0x100), Words{});  // idle, and clocks that somebody set
  EXPECT_EQ(throttle_reasons(0x4), Words{"power cap"});
  EXPECT_EQ(throttle_reasons(0x8 | 0x20 | 0x80), (Words{"hardware slowdown", "thermal slowdown (software)", "power brake"}));
}

TEST(Nvml, AnAddressWithoutAGpuIsNone) { EXPECT_EQ(nvml_gpu("ffff:ff:1f.7"), nullptr); }

// tests/fakes/nvml.cpp is a driver that no longer has the names that NVML 13 calls deprecated.
TEST(Nvml, WhatADriverSaysOfAGpu) {
  ASSERT_TRUE(made_up) << ::dlerror();
  const auto gpu = nvml_gpu("0000:1b:00.0");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->clocks().sm_clock_mhz, 1980);
  EXPECT_EQ(gpu->clocks().throttle, std::vector<std::string>{"thermal slowdown (software)"});
  const Facts f = gpu->facts();
  EXPECT_EQ(f.at("nvlinks"), Fact(std::int64_t{20}));
  EXPECT_EQ(f.at("sm_clock_max_mhz"), Fact(std::int64_t{1980}));
  EXPECT_EQ(f.at("memory_clock_max_mhz"), Fact(std::int64_t{3201}));
  EXPECT_EQ(f.at("power_limit_w"), Fact(std::int64_t{600}));
  EXPECT_EQ(f.at("driver"), Fact(std::string("580.159.03")));
  EXPECT_FALSE(f.contains("mig"));  // that driver does not say
  const std::vector<std::string> wanted = {"GPU 0: 2 other process(es) use it; times are of a shared GPU", "GPU 0: 8192 MiB are in use before the probe began",
                                           "GPU 0: its power limit is 600 W, by default 700 W",
                                           "GPU 0: its clocks are held down before anything runs (thermal slowdown (software))"};
  EXPECT_EQ(gpu->warnings("GPU 0"), wanted);
}

}  // namespace
}  // namespace rehearse::calibrate::nvml_test
