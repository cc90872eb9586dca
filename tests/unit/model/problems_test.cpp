#include <gtest/gtest.h>

#include <functional>

#include "sim/model/presets.h"
#include "sim/model/shapes.h"
#include "tests/unit/model/text_checks.h"

namespace rehearse::model::problems_test {
namespace {

struct Case {
  const char* what;
  std::function<void(ModelDescription&)> spoil;
  const char* said;
};

class Problems : public testing::TestWithParam<Case> {};

// One thing is wrong, so one thing is said, and it names the size as the user wrote it.
TEST_P(Problems, NamesTheOneThingThatIsWrong) {
  ModelDescription model = load_preset("mixtral-8x7b");
  ASSERT_TRUE(problems_of(model).empty());
  GetParam().spoil(model);
  const std::vector<std::string> problems = problems_of(model);
  ASSERT_EQ(problems.size(), 1u) << testing::PrintToString(problems);
  EXPECT_TRUE(says(problems[0], GetParam().said));
}

INSTANTIATE_TEST_SUITE_P(
    All, Problems,
    testing::Values(Case{"vocab", [](auto& m) { m.vocab = 0; }, "vocab is 0"},
                    Case{"hidden", [](auto& m) { m.hidden = -1; }, "hidden is -1"},
                    Case{"huge_hidden", [](auto& m) { m.hidden = 2'000'000; },
                         "no transformer is this large"},
                    Case{"kv_heads", [](auto& m) { m.kv_heads = 5; }, "kv_heads 5 does not divide heads 32"},
                    Case{"head_dim",
                         [](auto& m) {
                           m.head_dim = 0;
                           m.heads = 24;
                           m.kv_heads = 8;
                           m.rotary_dim = 0;
                         },
                         "hidden 4096 is not a multiple of heads 24"},
                    Case{"rotary_dim", [](auto& m) { m.rotary_dim = 256; }, "rotary_dim 256"},
                    Case{"top_k", [](auto& m) { m.experts.top_k = 9; }, "top_k 9 is more than the 8 experts"},
                    Case{"no_top_k", [](auto& m) { m.experts.top_k = 0; }, "top_k is 0"},
                    Case{"unused_experts",
                         [](auto& m) {
                           for (auto& l : m.layers) l.moe = false;
                         },
                         "no layer uses them"},
                    Case{"missing_experts", [](auto& m) { m.experts.experts = 0; }, "experts is 0"},
                    Case{"gate", [](auto& m) { m.experts.shared_gate = true; }, "no shared expert"},
                    Case{"layers",
                         [](auto& m) {
                           m.layers.clear();
                           m.experts = {};
                         },
                         "layers is 0"},
                    Case{"window", [](auto& m) { m.layers[3].window = -1; }, "window is -1"},
                    Case{"norms", [](auto& m) { m.norms_per_layer = 3; }, "norms_per_layer is 3"},
                    Case{"one_norm", [](auto& m) { m.norms_per_layer = 1; }, "parallel_residual"},
                    Case{"positions", [](auto& m) { m.position = Position::learned; }, "max_positions is 0"},
                    Case{"dropout", [](auto& m) { m.dropout = 1.5; }, "dropout is 1.5"},
                    // 3 * 1e6 * 1e6 * 1e6 experts * 1e4 layers would overflow int64 when counted.
                    Case{"overflow",
                         [](auto& m) {
                           m.hidden = m.experts.ffn_hidden = m.experts.experts = 1'000'000;
                           m.layers.resize(10'000, m.layers[0]);
                         },
                         "no machine holds them"}),
    [](const auto& param) { return std::string(param.param.what); });

TEST(Problems, DenseWidthMattersOnlyWhereALayerIsDense) {
  ModelDescription model = load_preset("mixtral-8x7b");
  model.ffn_hidden = 0;
  EXPECT_TRUE(problems_of(model).empty());
  model.layers[0].moe = false;
  EXPECT_EQ(problems_of(model).size(), 1u);
}

}  // namespace
}  // namespace rehearse::model::problems_test
