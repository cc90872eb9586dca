#include <gtest/gtest.h>

#include "hwmodels/device/kernel_model.h"

namespace rehearse::hwmodels::speed_spread_test {
namespace {

// Mean of the largest of n standard normal numbers: 0, 0.564 (1 / sqrt pi), 1.029, 1.424, 2.508 (tables of order statistics).
TEST(ExpectedLargest, MeetsTheTables) {
  EXPECT_EQ(expected_largest(1), 0);
  EXPECT_NEAR(expected_largest(2), 0.564, 0.03);
  EXPECT_NEAR(expected_largest(4), 1.029, 0.03);
  EXPECT_NEAR(expected_largest(8), 1.424, 0.03);
  EXPECT_NEAR(expected_largest(100), 2.508, 0.03);
}

TEST(SpeedSpread, SlowsWhatTheClockDecides) {
  const KernelModel one(load_gpu("h100-sxm")), many(load_gpu("h100-sxm"), ClockState::sustained, pace_of_slowest(1024));
  model::KernelSpec product{.kind = model::KernelKind::gemm, .m = 8192, .n = 8192, .k = 8192};
  model::KernelSpec copy{.kind = model::KernelKind::elementwise, .bytes_read = 1 << 30, .bytes_written = 1 << 30};
  const double slower = to_seconds(many.cost(product).duration) / to_seconds(one.cost(product).duration);
  EXPECT_NEAR(slower, 1 / (1 - 0.015 * expected_largest(1024)), 0.01);
  EXPECT_EQ(many.cost(copy).duration, one.cost(copy).duration);
}

}  // namespace
}  // namespace rehearse::hwmodels::speed_spread_test
