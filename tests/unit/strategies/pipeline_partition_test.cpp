#include <gtest/gtest.h>

#include "strategies/pipeline/partition.h"

namespace rehearse::strategies::pipeline_partition_test {
namespace {

std::vector<int> counts(const PartitionRequest& request) {
  EXPECT_EQ(problems_of(request), std::vector<std::string>{});
  std::vector<int> out;
  for (const StageLayers& s : partition(request)) out.push_back(s.count);
  return out;
}
using Counts = std::vector<int>;

TEST(PipelinePartition, EmbeddingFirstHeadLast) {
  EXPECT_EQ(partition({.layers = 8, .stages = 2, .chunks = 2}),
            (std::vector<StageLayers>{
                {0, 2, true, false}, {2, 2, false, false}, {4, 2, false, false}, {6, 2, false, true, true}}));
  EXPECT_EQ(partition({.layers = 3, .stages = 1}), (std::vector<StageLayers>{{0, 3, true, true, true}}));
}

TEST(PipelinePartition, Uneven) {
  EXPECT_EQ(counts({.layers = 10, .stages = 4, .layers_per_stage = {2, 3, 3, 2}}), (Counts{2, 3, 3, 2}));
  EXPECT_EQ(counts({.layers = 20, .stages = 4, .first_rank_layers = 4, .last_rank_layers = 2}),
            (Counts{4, 7, 7, 2}));
  EXPECT_EQ(counts({.layers = 22, .stages = 4, .chunks = 2, .first_rank_layers = 4}),
            (Counts{2, 3, 3, 3, 2, 3, 3, 3}));
  // Llama 3 405B: 126 layers and 16 stages with embedding and head standing for a layer each, 128 / 16 = 8.
  const auto llama =
      counts({.layers = 126, .stages = 16, .embedding_counts_as_layer = true, .head_counts_as_layer = true});
  EXPECT_EQ(llama.front(), 7);
  EXPECT_EQ(llama[1], 8);
  EXPECT_EQ(llama.back(), 7);
  // torchtitan: 32 layers, input and output weigh one each: 34 over 4 stages is 9, 9, 8, 8 minus one at both
  // ends.
  EXPECT_EQ(counts({.layers = 32,
                    .stages = 4,
                    .embedding_counts_as_layer = true,
                    .head_counts_as_layer = true,
                    .remainder = Remainder::first_stages}),
            (Counts{8, 9, 8, 7}));
}

TEST(PipelinePartition, ProblemsSayWhatWouldWork) {
  const auto problem = [](const PartitionRequest& q) {
    return problems_of(q).empty() ? std::string{} : problems_of(q).front();
  };
  EXPECT_EQ(problem({.layers = 30, .stages = 4}),
            "30 layers do not divide over 4 stages. Use 28 or 32 layers, other degrees, or layers_per_stage");
  EXPECT_EQ(problem({.layers = 3, .stages = 4}),
            "3 layers do not divide over 4 stages. Use 4 layers, other degrees, or layers_per_stage");
  EXPECT_EQ(problem({.layers = 30, .stages = 4, .chunks = 2, .embedding_counts_as_layer = true}),
            "30 layers and 1 for embedding and loss do not divide over 4 stages x 2 chunks. Use 23 or 31 "
            "layers, other degrees, or layers_per_stage");
  EXPECT_EQ(problem({.layers = 10, .stages = 4, .layers_per_stage = {2, 3, 3, 3}}),
            "layers_per_stage [2, 3, 3, 3] adds up to 11 layers, the model has 10. Take away 1");
  EXPECT_EQ(problem({.layers = 10, .stages = 4, .layers_per_stage = {5, 5}}),
            "layers_per_stage has 2 entries for 4 stages. Write 4 numbers in model order");
  EXPECT_EQ(
      problem({.layers = 20, .stages = 4, .first_rank_layers = 3}),
      "17 layers between first and last rank do not divide over 3 ranks x 1 chunks. Make them 15 or 18");
  EXPECT_FALSE(problem({.layers = 20, .stages = 4, .chunks = 2, .first_rank_layers = 5}).empty());
  EXPECT_FALSE(problem({.layers = 20, .stages = 1, .first_rank_layers = 5, .last_rank_layers = 15}).empty());
  EXPECT_FALSE(problem({.layers = 0}).empty());
}

}  // namespace
}  // namespace rehearse::strategies::pipeline_partition_test
