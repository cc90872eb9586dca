// Times that schedules are searched with are of the kernels that the step is simulated with.
#include <gtest/gtest.h>

#include <string>

#include "sim/scenario/pass_times.h"
#include "tests/unit/report/small_scenario.h"

namespace rehearse::scenario::pass_times_test {
namespace {

double forward_of(const std::string& kernel) {
  const Scenario s = report::small_scenario({"training.framework=megatron-core", "data_parallel.kind=ddp", "parallelism.pipeline=4", "pipeline.schedule=zb-1p", "training.sequence_length=8192",
                                             "training.attention_kernel=" + kernel});
  EXPECT_TRUE(wants_pass_times(s));
  return with_pass_times(s).strategy.pipeline.times.forward.at(1);
}

TEST(PassTimes, AreOfTheAttentionThatRuns) { EXPECT_GT(forward_of("flash2"), 1.02 * forward_of("flash3")); }

}  // namespace
}  // namespace rehearse::scenario::pass_times_test
