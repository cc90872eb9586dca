// Megatron-Core's letters for what the chunks of a pipeline hold.
#include "sim/model/pipeline_layout.h"

#include <gtest/gtest.h>

namespace rehearse::model {
namespace {

using Layers = std::vector<std::int64_t>;

// Counted by hand.
TEST(PipelineLayout, LettersGroupsAndRepetitions) {
  EXPECT_EQ(read_pipeline_layout("Et*3|(tt|)*29,m|L").layers.size(), 32u);
  EXPECT_EQ(read_pipeline_layout("E|(t|)*3L").layers, (Layers{0, 1, 1, 1, 0}));
  EXPECT_EQ(read_pipeline_layout("Ett|tt|t|tL").layers, (Layers{2, 2, 1, 1}));
  EXPECT_EQ(read_pipeline_layout("E((t|)*2tt|)*2tL").layers, (Layers{1, 1, 2, 1, 1, 2, 1}));
  EXPECT_EQ(read_pipeline_layout("Et*3|(tt|)*6tmL").predictions, 1);
  EXPECT_EQ(read_pipeline_layout("Et|tm*2L").predictions, 2);
}

TEST(PipelineLayout, MistakesAreNoLayout) {
  for (const char* text : {"", "(tt", "t)", "*3t", "t*0|t", "t*", "()*2", "t*-3", "t*99999999999999999999", "((((t*9999)*9999)*9999)*9999)"}) EXPECT_TRUE(read_pipeline_layout(text).layers.empty()) << text;
  std::string endless;
  for (int i = 0; i < 10'000; ++i) endless += "t*99999";
  EXPECT_TRUE(read_pipeline_layout(endless).layers.empty());
}

}  // namespace
}  // namespace rehearse::model
