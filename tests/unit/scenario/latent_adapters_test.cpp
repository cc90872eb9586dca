// Adapters on single projections of multi-head latent attention: where a path of the first layer trains nothing, no gradient is
// made for it, and what is made is freed.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::latent_adapters_test {
namespace {

Result adapted(const std::string& target, const std::string& framework, const std::string& recompute) {
  const std::string text =
      "model: deepseek-v2-lite\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 512, global_batch_size: 8, framework: " + framework +
      "}\ndata_parallel: {kind: ddp}\nmemory: {recompute: " + recompute + "}\ntuning: {kind: lora, targets: [" + target + "]}\n";
  return simulate(read_scenario(config::parse_document(text, "latent.yaml").root, "latent.yaml"));
}

TEST(LatentAdapters, AnyProjectionMayBeTheOnlyOneThatTrains) {
  for (const char* framework : {"huggingface", "megatron-core"})   // concatenated heads, and a fused rotation
    for (const char* recompute : {"none", "full"})
      for (const char* target : {"q_proj", "kv_down", "kv_up", "o_proj"}) EXPECT_GT(adapted(target, framework, recompute).step_time, 0) << framework << " " << recompute << " " << target;
}

}  // namespace
}  // namespace rehearse::scenario::latent_adapters_test
