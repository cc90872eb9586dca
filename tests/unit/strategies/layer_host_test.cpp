// What tensor parallelism through DTensor and checkpoints that decide operator by operator cost the host per layer (calibrate/ground_truth/torchtitan_host.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sim/config/document.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"
#include "tests/support/source_dir.h"

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

// What a step graph saves and a slower CPU stretches is all that the table of keys calls the time of a call, but for waits that no CPU makes longer.
TEST(LayerHost, EveryTimeOfACallIsIssueTime) {
  std::ifstream file(source_dir() / "strategies/framework/profile.cpp");
  const std::regex of_call("config::duration\\(\"(\\w+)\", .*, kOfCall\\)");
  const std::set<std::string> waits{"message_poll", "proxy_stall", "ring_step_wait"};
  int keys = 0;
  for (std::string line; std::getline(file, line);) {
    std::smatch found;
    if (!std::regex_search(line, found, of_call) || waits.contains(found[1])) continue;
    FrameworkProfile p = with_keys({}, config::parse_document(found[1].str() + ": 123 ms", "keys.yaml").root);
    const std::vector<Duration*> times = issue_times(p);
    EXPECT_EQ(std::count_if(times.begin(), times.end(), [](const Duration* d) { return *d == 123ms; }), 1) << found[1];
    ++keys;
  }
  EXPECT_GT(keys, 40);
}

}  // namespace
}  // namespace rehearse::strategies::layer_host_test
