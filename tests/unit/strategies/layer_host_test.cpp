// What tensor parallelism through DTensor and checkpoints that decide operator by operator cost the host per layer (calibrate/ground_truth/torchtitan_host.py).
#include <gtest/gtest.h>

#include <chrono>

#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::strategies::layer_host_test {
namespace {

using namespace std::chrono_literals;

TEST(LayerHost, TensorParallelismAddsItsDispatch) {
  FrameworkProfile plain;
  plain.layer_host = 100us, plain.layer_backward_host = 200us, plain.recompute_host = 300us;
  plain.tensor_host = 1ms, plain.tensor_backward_host = 2ms, plain.tensor_recompute_host = 3ms;
  Strategy s;
  EXPECT_EQ(with_layer_host(plain, s).layer_host, plain.layer_host);
  s.parallelism.degrees.tensor = 2;
  const FrameworkProfile under = with_layer_host(plain, s);
  EXPECT_EQ(under.layer_host, plain.layer_host + plain.tensor_host);
  EXPECT_EQ(under.layer_backward_host, plain.layer_backward_host + plain.tensor_backward_host);
  EXPECT_EQ(under.recompute_host, plain.recompute_host + plain.tensor_recompute_host);
}

// A recomputed region is a forward and what recomputing takes beyond it, whatever the first forward paid for the checkpoint.
TEST(LayerHost, CheckpointsByOperatorCostTwice) {
  FrameworkProfile p;
  p.layer_host = 100us, p.recompute_host = 300us, p.operator_checkpoint_host = 2ms, p.operator_recompute_host = 1ms, p.selective_modules = {"operators"};
  Strategy s;
  s.memory.recompute = Recompute::selective;
  EXPECT_EQ(with_layer_host(p, s).layer_host, p.layer_host + p.operator_checkpoint_host);
  EXPECT_EQ(with_layer_host(p, s).region_host, p.layer_host + p.recompute_host + p.operator_recompute_host);
  s.memory.recompute_modules = {"core_attn"};
  EXPECT_EQ(with_layer_host(p, s).layer_host, p.layer_host);
  s.memory = {};
  EXPECT_EQ(with_layer_host(p, s).layer_host, p.layer_host);
}

}  // namespace
}  // namespace rehearse::strategies::layer_host_test
