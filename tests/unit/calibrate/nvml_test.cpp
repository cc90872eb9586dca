#include "calibrate/probe/nvml.h"

#include <gtest/gtest.h>

namespace rehearse::calibrate::nvml_test {
namespace {

/// Bits as in nvml.h: nvmlClocksEventReasonSwPowerCap 4, HwSlowdown 8, SwThermalSlowdown 0x20, HwPowerBrakeSlowdown 0x80.
TEST(Nvml, ReasonsForLowClocksInWords) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(throttle_reasons(0), Words{});
  EXPECT_EQ(throttle_reasons(0x1 | 0x2 | 0x100), Words{});  // idle, and clocks that somebody set
  EXPECT_EQ(throttle_reasons(0x4), Words{"power cap"});
  EXPECT_EQ(throttle_reasons(0x8 | 0x20 | 0x80), (Words{"hardware slowdown", "thermal slowdown (software)", "power brake"}));
}

TEST(Nvml, AnAddressWithoutAGpuIsNone) { EXPECT_EQ(nvml_gpu("ffff:ff:1f.7"), nullptr); }

}  // namespace
}  // namespace rehearse::calibrate::nvml_test
