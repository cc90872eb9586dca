#include "strategies/layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace rehearse::strategies::layout_test {
namespace {

using Ranks = std::vector<Rank>;

std::vector<Axis> all_axes() {
  std::vector<Axis> out;
  for (int a = 0; a < static_cast<int>(Axis::count_); ++a) out.push_back(static_cast<Axis>(a));
  return out;
}

/// Shapes counted rank by rank from the groups alone: the oracle of shape_of.
GroupShape counted(const Layout& layout, Axis axis, Rank rank, int gpus_per_node) {
  const Ranks group = layout.group_of(axis, rank);
  std::map<int, std::vector<Rank>> by_node;
  for (Rank r : group) by_node[r / gpus_per_node].push_back(r);
  GroupShape s;
  s.ranks = static_cast<int>(group.size());
  s.nodes = static_cast<int>(by_node.size());
  for (const auto& [node, members] : by_node) {
    s.ranks_per_node = std::max(s.ranks_per_node, static_cast<int>(members.size()));
    std::set<Ranks> groups;
    for (Rank r = node * gpus_per_node; r < std::min(layout.world_size(), (node + 1) * gpus_per_node); ++r)
      if (const Ranks g = layout.group_of(axis, r); !g.empty()) groups.insert(g);
    s.groups_per_node = std::max(s.groups_per_node, static_cast<int>(groups.size()));
    if (members.size() > 1 && s.stride == 1) s.stride = members[1] - members[0];
  }
  if (s.nodes > 1) s.node_stride = std::next(by_node.begin())->first - by_node.begin()->first;
  return s;
}

// 16 GPUs, tensor 2, pipeline 4: the example in Megatron's parallel_state.py (initialize_model_parallel):
// tensor groups [g0,g1] ..., data groups [g0,g2], [g1,g3], ..., pipeline groups [g0,g4,g8,g12] ...
TEST(Layout, MegatronsOwnExample) {
  const Layout layout{{.tensor = 2, .data = 2, .pipeline = 4}};
  EXPECT_EQ(layout.group_of(Axis::tensor, 0), (Ranks{0, 1}));
  EXPECT_EQ(layout.group_of(Axis::tensor, 15), (Ranks{14, 15}));
  EXPECT_EQ(layout.group_of(Axis::data, 0), (Ranks{0, 2}));
  EXPECT_EQ(layout.group_of(Axis::data, 5), (Ranks{5, 7}));
  EXPECT_EQ(layout.group_of(Axis::pipeline, 9), (Ranks{1, 5, 9, 13}));
  EXPECT_EQ(layout.group_of(Axis::model, 2), (Ranks{2, 3, 6, 7, 10, 11, 14, 15}));
  EXPECT_EQ(layout.group_of(Axis::embedding, 12), (Ranks{0, 12}));
  EXPECT_TRUE(layout.group_of(Axis::embedding, 4).empty());
  EXPECT_EQ(layout.group_of(Axis::mirror, 13), (Ranks{1, 13}));
  EXPECT_EQ(layout.group_of(Axis::mirror, 4), (Ranks{4, 8}));
  EXPECT_EQ(layout.pipeline_neighbour(1, 1), 5);
  EXPECT_EQ(layout.pipeline_neighbour(13, 1), 1);
  EXPECT_EQ(layout.pipeline_neighbour(1, -1), 13);
}

// Experts are folded into the ranks of a stage: expert neighbours come first, replicas of an expert are
// `expert` apart.
TEST(Layout, ExpertsAreFoldedIntoTheStage) {
  const Layout layout{{.tensor = 2, .data = 4, .pipeline = 2, .expert = 4, .expert_tensor = 1}};
  EXPECT_EQ(layout.group_of(Axis::expert, 1), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(layout.group_of(Axis::expert_data, 1), (Ranks{1, 5}));
  EXPECT_EQ(layout.group_of(Axis::expert, 13), (Ranks{12, 13, 14, 15}));
  EXPECT_EQ(layout.group_of(Axis::pipeline, 3), (Ranks{3, 11}));
}

TEST(Layout, HybridShardingKeepsShardsClose) {
  const Layout layout{{.tensor = 2, .context = 2, .data = 4, .data_shard = 2}, kTorchtitanOrder};
  EXPECT_EQ(layout.group_of(Axis::data_shard, 0), (Ranks{0, 4}));
  EXPECT_EQ(layout.group_of(Axis::data_shard_context, 0), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(layout.group_of(Axis::data_replicate, 0), (Ranks{0, 8}));
  EXPECT_EQ(layout.group_of(Axis::data_context, 1), (Ranks{1, 3, 5, 7, 9, 11, 13, 15}));
}

TEST(Layout, UserOrderMovesThePipelineInside) {
  const Layout layout{{.tensor = 2, .data = 4, .pipeline = 2}, "pp-tp-dp"};
  EXPECT_EQ(layout.group_of(Axis::pipeline, 0), (Ranks{0, 1}));
  EXPECT_EQ(layout.group_of(Axis::tensor, 0), (Ranks{0, 2}));
  EXPECT_EQ(layout.group_of(Axis::data, 3), (Ranks{3, 7, 11, 15}));
}

// Replicas farther apart than stages: a tensor group of 2, then the 4 stages, then the replicas. Models without experts ask for nothing more.
TEST(Layout, StagesMayLieBetweenTensorGroupsAndReplicas) {
  const Degrees d{.tensor = 2, .data = 2, .pipeline = 4};
  ASSERT_TRUE(problems_of(d, d.world(), "tp-cp-ep-pp-dp").empty());
  const Layout layout{d, "tp-cp-ep-pp-dp"};
  EXPECT_EQ(layout.group_of(Axis::pipeline, 1), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(layout.group_of(Axis::data, 1), (Ranks{1, 9}));
  EXPECT_EQ(layout.group_of(Axis::tensor, 2), (Ranks{2, 3}));
  EXPECT_TRUE(stages_are_between(d, "tp-cp-ep-pp-dp"));
  EXPECT_FALSE(stages_are_between(d, "tp-cp-ep-dp-pp"));
  EXPECT_FALSE(stages_are_between(d, "pp-tp-dp"));
}

// Every rank is in one group of each axis, coordinates invert, and the shape equals the one counted rank by
// rank, for nodes that nest with the axes and nodes that do not.
TEST(Layout, GroupsCoverTheWorldAndShapesAreCounted) {
  const std::vector<Degrees> many{
      {.tensor = 2, .data = 2, .pipeline = 4},
      {.tensor = 8, .context = 2, .data = 4, .pipeline = 2, .expert = 16, .expert_tensor = 2},
      {.tensor = 3, .data = 4, .pipeline = 2},
      {.context = 4, .data = 8, .expert = 8, .data_shard = 4},
      {.tensor = 4, .data = 6, .pipeline = 5},
      {.data = 1}};
  for (const Degrees& d : many) {
    for (const char* order : {"tp-cp-ep-dp-pp", "tp-cp-ep-dp_shard-dp_replicate-pp", "tp-cp-ep-pp-dp"}) {
      if (!problems_of(d, d.world(), order).empty()) continue;  // experts with an inner pipeline
      const Layout layout{d, order};
      for (Rank r = 0; r < layout.world_size(); ++r) {
        EXPECT_EQ(layout.rank_of(layout.coordinates_of(r)), r);
        EXPECT_EQ(layout.rank_of(layout.expert_coordinates_of(r)), r);
        EXPECT_EQ(layout.coordinates_of(r).pipeline, layout.expert_coordinates_of(r).pipeline);
        for (Axis a : all_axes()) {
          const Ranks group = layout.group_of(a, r);
          if (!layout.is_member(a, r)) continue;
          EXPECT_EQ(static_cast<int>(group.size()), layout.size_of(a)) << name_of(a);
          EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
          EXPECT_NE(std::find(group.begin(), group.end(), r), group.end());
          for (Rank other : group) EXPECT_EQ(layout.group_of(a, other), group);
          for (int g : {1, 4, 8, 72}) {
            if (group.size() == 1) continue;
            EXPECT_EQ(layout.shape_of(a, r, g), counted(layout, a, r, g))
                << name_of(a) << " rank " << r << " order " << order << " g " << g;
          }
        }
      }
    }
  }
}

// The usual layouts are regular: one shape per axis (the plan relies on it when it folds equal ranks).
TEST(Layout, RegularLayoutsHaveOneShapePerAxis) {
  const Layout layout{{.tensor = 8, .context = 16, .data = 8, .pipeline = 16}};  // Llama 3 405B, 16,384 GPUs
  for (Axis a : all_axes()) {
    if (a == Axis::mirror) continue;  // the members' distance depends on the stage
    const GroupShape first = layout.shape_of(a, 0, 8);
    for (Rank r = 0; r < layout.world_size(); r += 7)
      if (layout.is_member(a, r)) {
        EXPECT_EQ(layout.shape_of(a, r, 8), first) << name_of(a);
      }
  }
  EXPECT_EQ(layout.shape_of(Axis::tensor, 0, 8), (GroupShape{8, 1, 8, 1, 1, 1}));
  EXPECT_EQ(layout.shape_of(Axis::context, 3, 8), (GroupShape{16, 16, 1, 8, 1, 1}));
  EXPECT_EQ(layout.shape_of(Axis::data, 3, 8), (GroupShape{8, 8, 1, 8, 1, 16}));
  EXPECT_EQ(layout.shape_of(Axis::pipeline, 3, 8), (GroupShape{16, 16, 1, 8, 1, 128}));
  EXPECT_EQ(layout.shape_of(Axis::world, 3, 8), (GroupShape{16384, 2048, 8, 1, 1, 1}));
}

TEST(LayoutProblems, SayWhatDoesNotFitAndWhatWould) {
  const auto problems = problems_of({.tensor = 3, .pipeline = 2}, 8);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].problem, "tensor 3 x pipeline 2 does not divide 8 GPUs");
  EXPECT_EQ(problems[0].key, "parallelism");
  EXPECT_EQ(problems_of({.context = 3}, 8).at(0).key, "parallelism.context");  // it alone is wrong
  EXPECT_EQ(problems[0].fix, "Use tensor 2 or 4.");

  const auto larger = problems_of({.tensor = 8, .pipeline = 16}, 8, {}, 8);
  EXPECT_EQ(larger.at(0).key, "parallelism.pipeline");
  EXPECT_EQ(larger[0].problem, "tensor 8 x pipeline 16 does not divide 8 GPUs: one replica takes 128");
  EXPECT_EQ(larger[0].fix, "Use 128 GPUs on 16 nodes of 8 (cluster.nodes: 16; import: --nodes 16), or pipeline 1.");

  const auto data = problems_of({.tensor = 2, .data = 3}, 8);
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(data[0].key, "parallelism.data");
  EXPECT_EQ(data[0].problem, "tensor 2 x data 3 are 6 GPUs, not 8");
  EXPECT_EQ(data[0].fix, "Use data 4, or auto.");

  const auto expert = problems_of({.tensor = 2, .data = 4, .expert = 3}, 8);
  ASSERT_EQ(expert.size(), 1u);
  EXPECT_EQ(expert[0].fix, "Use expert 2 or 4.");

  EXPECT_EQ(problems_of({.data = 8, .data_shard = 3}, 8).size(), 1u);
  EXPECT_EQ(problems_of({.tensor = 0}, 8).size(), 1u);
  EXPECT_EQ(problems_of({.data = 8}, 8, "tp-xx-dp-dp").size(), 3u);
  EXPECT_EQ(problems_of({.data = 4, .pipeline = 2}, 8, "tp-dp").size(), 1u);
  EXPECT_EQ(problems_of({.tensor = 2, .data = 2, .pipeline = 2, .expert = 4}, 8, "tp-cp-ep-pp-dp").size(),
            1u);
  EXPECT_TRUE(problems_of({.tensor = 2, .data = 2, .pipeline = 2}, 8).empty());
  EXPECT_EQ(data_degree_to_fill({.tensor = 2, .pipeline = 2}, 16), 4);
  EXPECT_EQ(data_degree_to_fill({.tensor = 3}, 16), std::nullopt);
}

}  // namespace
}  // namespace rehearse::strategies::layout_test
