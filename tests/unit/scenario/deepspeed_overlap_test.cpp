// What DeepSpeed's overlap_comm does by its releases, and what graphs of grouped products keep under ZeRO-3.
#include <gtest/gtest.h>

#include <string>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::deepspeed_overlap_test {
namespace {

Result run(const std::string& model, const std::string& keys, const std::string& node = "dgx-a100") {
  const std::string text = "model: " + model + "\ncluster: {node: " + node + "}\ntraining: {sequence_length: 1024, global_batch_size: 16, micro_batch_size: 1, framework: deepspeed}\n" + keys;
  return simulate(read_scenario(config::parse_document(text, "job.yaml").root, "job.yaml"));
}

constexpr const char* kDense = "{preset: llama-3-8b, layers: 8}";

double zero2(const std::string& overlap, const std::string& profile) {
  return run(kDense, "data_parallel: {kind: zero2, bucket: 200 MB, overlap_gradient_reduce: " + overlap + "}\nprofile: {" + profile + "}\n").step_time;
}

// Each of these waits for more than the one before: nothing, the buckets before, the bucket itself; the last has nothing under backward.
TEST(DeepSpeedOverlap, BucketsWaitForWhatTheirReleaseSays) {
  const double none = zero2("true", "bucket_wait: none"), earlier = zero2("true", "bucket_wait: earlier"), own = zero2("true", "bucket_wait: own"), without = zero2("false", "bucket_wait: none");
  EXPECT_LE(none, earlier);
  EXPECT_LT(earlier, own);
  EXPECT_NEAR(own / without, 1, 0.01);
  EXPECT_GT(zero2("true", "bucket_wait: none, synchronises_buckets: true"), none);
}

// Without overlap_comm ZeRO-3 fetches and reduces on compute's stream: what comes from the host holds compute up.
TEST(DeepSpeedOverlap, ZeroThreeWithoutItFetchesOnComputesStream) {
  const auto job = [](const char* overlap, const char* offload) { return run(kDense, std::string("data_parallel: {kind: zero3, overlap_gradient_reduce: ") + overlap + "}\nmemory: {recompute: full" + offload + "}\n"); };
  EXPECT_GT(job("false", "").step_time, job("true", "").step_time);
  const double apart = job("true", ", offload: {parameters: cpu, optimizer: cpu}").step_time, together = job("false", ", offload: {parameters: cpu, optimizer: cpu}").step_time;
  EXPECT_GT(together, 1.02 * apart);
}

// What is not stated is DeepSpeed's default, which for stage 3 is true (runtime/zero/config.py, overlap_comm_valid).
TEST(DeepSpeedOverlap, ZeroThreeOverlapsUnlessToldOtherwise) {
  EXPECT_EQ(run(kDense, "data_parallel: {kind: zero3}\n").step_time, run(kDense, "data_parallel: {kind: zero3, overlap_gradient_reduce: true}\n").step_time);
}

// transformers' grouped products of experts save views of their weights: under ZeRO-3 the gathered values stay until backward, layer upon layer, which
// DeepSpeed's own linear layers avoid. A recomputed layer's go with it.
TEST(DeepSpeedOverlap, GraphsOfGroupedProductsKeepGatheredExperts) {
  constexpr std::int64_t kExperts = std::int64_t{16} * 3 * 1024 * 2048 * 2;   // bytes of a layer's
  const auto peak = [](int layers, const char* recompute, const char* keys) {
    const std::string model = "{style: llama, layers: " + std::to_string(layers) + ", hidden: 1024, heads: 8, ffn_hidden: 2048, vocab: 32000, experts: {count: 16, top_k: 2, ffn_hidden: 2048}}";
    return run(model, std::string("data_parallel: {kind: zero3, bucket: 20 MB, prefetch_bucket: 0, max_live_parameters: 0, max_reuse_distance: 0") + keys + "}\nmemory: {recompute: " + recompute + "}\n").classes.front().memory.peak_allocated.value;
  };
  const std::int64_t shards = (peak(6, "full", "") - peak(4, "full", "")) / 2, kept = (peak(6, "none", "") - peak(4, "none", "")) / 2;
  EXPECT_LT(shards, 12 * kExperts / 10);   // 16 bytes a parameter over eight ranks
  EXPECT_GT(kept, shards + kExperts);
  EXPECT_LT(kept, shards + 14 * kExperts / 10);         // and activations
  EXPECT_GT(peak(4, "none", ", memory_efficient_linear: false"), peak(4, "none", ""));   // attention's linear layers as well
}

}  // namespace
}  // namespace rehearse::scenario::deepspeed_overlap_test
