// Rules that read rows of measured runs: what a condition means, and that the files hold what the program knows.
#include "sim/scenario/row_rules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hwmodels/device/gpu.h"
#include "hwmodels/topology/cluster.h"
#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/scenario_file.h"
#include "strategies/framework/profile.h"

namespace rehearse::scenario {
namespace {

std::vector<RowRule> rules_of(const std::string& yaml) { return read_row_rules(config::parse_document("title: t\nrules:\n" + yaml, "rules.yaml").root); }

const config::CsvTable& table() {
  static const config::CsvTable csv = config::parse_csv(
      "row_id,framework,gpu,n_gpus,source,note\n"
      "r-1,Megatron_LM,a100-80gb-sxm,,huggingface/peft 0.11.2,capacity factor 1.25; DeepSpeed ZeRO with DeepSpeed v0.14\n", "rows.csv");
  return csv;
}

bool holds(const std::string& when) {
  std::vector<std::string> groups;
  return rules_of("  - {when: " + when + ", use: x}\n").front().holds(RowFacts(table().row(0)).with("profile", "huggingface"), groups);
}

TEST(RowRules, ATextIsOneOfTheseByLettersAndDigits) {
  EXPECT_TRUE(holds("{framework: megatron-lm}"));
  EXPECT_TRUE(holds("{framework: [nemo, Megatron LM]}"));
  EXPECT_FALSE(holds("{framework: megatron}"));
  EXPECT_TRUE(holds("{n_gpus: [\"\", \"1\"]}"));
  EXPECT_TRUE(holds("{interconnect: \"\"}"));   // a table without the column
  EXPECT_FALSE(holds("{row_id: \"\"}"));
}

TEST(RowRules, AllOfATestMustHoldAndOneOfTheAlternatives) {
  EXPECT_TRUE(holds("{gpu: {starts: A100, has: [40gb, 80GB], also: sxm, lacks: pcie}}"));
  EXPECT_FALSE(holds("{gpu: {has: 80gb, also: pcie}}"));
  EXPECT_FALSE(holds("{gpu: {has: 80gb, lacks: [h100, sxm]}}"));
  EXPECT_FALSE(holds("{gpu: {starts: [80gb, sxm]}}"));
  EXPECT_TRUE(holds("{about: {has: peft, also: capacity}, profile: huggingface}"));   // source and note
  EXPECT_FALSE(holds("{about: {has: peft}, profile: deepspeed}"));
  EXPECT_TRUE(holds("{row_id: {lacks: s}, note: {has: capacity}}"));
  EXPECT_TRUE(holds("[{profile: deepspeed}, {note: {matches: 'Factor [0-9.]+;'}}]"));
}

TEST(RowRules, ReleasesAreBounded) {
  EXPECT_TRUE(holds("{source: {release: 'peft ', from: '0.7', before: 0.12}}"));
  EXPECT_TRUE(holds("{source: {release: 'peft ', from: 0.11.2}}"));
  EXPECT_FALSE(holds("{source: {release: 'peft ', before: 0.11.2}}"));
  EXPECT_FALSE(holds("{note: {release: 'peft ', from: '0.1'}}"));   // none stated
  EXPECT_TRUE(holds("{note: {release: 'DeepSpeed ', from: 0.14.0, before: 0.14.1}}"));   // not the first "DeepSpeed", and with a v
  EXPECT_EQ(release_after("25.04.01", ""), (Release{25, 4, 1}));
  EXPECT_EQ(release_after("x 25.04", ""), std::nullopt);
}

// The table's row is of no date; a month is its first day, the first date of a text counts.
TEST(RowRules, DatesAreBounded) {
  EXPECT_EQ(first_date("pull request 165 (2024-03-26; 2025-01)"), (Release{2024, 3, 26}));
  EXPECT_EQ(first_date("llama3_h100_202412_torchtitan.md (run at 9dec370, 2024-12)"), (Release{2024, 12, 1}));
  EXPECT_EQ(first_date("arXiv 2024-130, 12024-03"), std::nullopt);
  EXPECT_FALSE(holds("{source: {earlier: 2030-01}}"));
  TextTest test;
  test.earlier = "2024-06-12";
  std::vector<std::string> groups;
  EXPECT_TRUE(test.holds("a table (2024-06-11), read on 2025-01-01", groups));
  EXPECT_FALSE(test.holds("a table (2024-06-12)", groups));
  EXPECT_TRUE(test.holds("a table of 2024-06", groups));
}

TEST(RowRules, GroupsAreFilledIntoKeys) {
  std::vector<std::string> groups;
  const std::vector<RowRule> rules = rules_of("  - when: {note: {matches: 'factor ([0-9]+)\\.([0-9]+)'}}\n    profile: {vocab_multiple: \"{2}{1}\"}\n");
  ASSERT_TRUE(rules.front().holds(RowFacts(table().row(0)), groups));
  EXPECT_EQ(groups, (std::vector<std::string>{"1", "25"}));
}

TEST(RowRules, MistakesHaveTheirPlace) {
  const auto message = [](const std::string& yaml) {
    try {
      rules_of(yaml);
    } catch (const ConfigError& wrong) {
      return std::string(wrong.what());
    }
    return std::string();
  };
  EXPECT_NE(message("  - {when: {fremework: nemo}, use: x}\n").find("rules.yaml:3"), std::string::npos);
  EXPECT_NE(message("  - {when: {fremework: nemo}, use: x}\n").find("Did you mean framework"), std::string::npos);
  EXPECT_NE(message("  - {when: {note: {matches: '(['}}, use: x}\n").find("no regular expression"), std::string::npos);
  EXPECT_NE(message("  - {when: {note: {before: soon}}, use: x}\n").find("'soon' is no release"), std::string::npos);
  EXPECT_NE(message("  - {when: {source: {earlier: June 2024}}, use: x}\n").find("'June 2024' is no date"), std::string::npos);
  EXPECT_NE(message("  - {use: x}\n").find("when"), std::string::npos);
}

TEST(RowRules, FilesNameWhatThereIs) {
  const auto check = [](const char* file, const std::vector<std::string>& names) {
    for (const RowRule& rule : row_rules(file)) EXPECT_NE(std::find(names.begin(), names.end(), rule.use), names.end()) << file << ": " << rule.use;
  };
  check("gpus", hwmodels::gpu_names());
  check("nodes", hwmodels::node_names());
  check("frameworks", strategies::profile_names());
}

/// A rule's keys, with a number for each group.
config::Value with_numbers(const config::Value& keys) {
  std::string text = config::to_yaml(keys);
  for (std::size_t at; (at = text.find("{1}")) != std::string::npos;) text.replace(at, 3, "64");
  std::erase(text, '"');
  return config::parse_document(text, "rule").root;
}

/// Every key of every rule is one of the profile's or the scenario's, and of the right kind.
TEST(RowRules, KeysAreThoseOfProfilesAndScenarios) {
  const strategies::FrameworkProfile profile = strategies::load_profile("huggingface");
  std::size_t profiles = 0, scenarios = 0;
  for (const char* file : {"wording", "settings"})
    for (const RowRule& rule : row_rules(file)) {
      strategies::Strategy strategy;
      if (!rule.keys.profile.is_null()) {
        EXPECT_NO_THROW(strategies::with_keys(profile, with_numbers(rule.keys.profile))) << config::to_yaml(rule.keys.profile);
        ++profiles;
      }
      if (!rule.keys.scenario.is_null()) {
        EXPECT_NO_THROW(amend_strategy(strategy, with_numbers(rule.keys.scenario))) << config::to_yaml(rule.keys.scenario);
        ++scenarios;
      }
    }
  EXPECT_GT(profiles, 40U);
  EXPECT_GT(scenarios, 15U);
}

TEST(RowRules, NumbersAreCompared) {
  EXPECT_FALSE(holds("{n_gpus: {above: 1}}"));   // not stated
  const config::CsvTable csv = config::parse_csv("row_id,pp\nr-1,4\n", "rows.csv");
  std::vector<std::string> groups;
  EXPECT_TRUE(rules_of("  - {when: {pp: {above: 1}}, use: x}\n").front().holds(RowFacts(csv.row(0)), groups));
  EXPECT_FALSE(rules_of("  - {when: {pp: {above: 4}}, use: x}\n").front().holds(RowFacts(csv.row(0)), groups));
}

TEST(RowRules, AnAmendedStrategyKeepsTheRest) {
  strategies::Strategy strategy;
  strategy.training.sequence_length = 4096;
  strategy.memory.recompute = strategies::Recompute::full;
  amend_strategy(strategy, config::parse_document("{training: {clip_gradients: false}, memory: {offload: {threads: 3}}}", "keys").root);
  EXPECT_FALSE(strategy.training.clip_gradients);
  EXPECT_EQ(strategy.memory.offload.threads, 3);
  EXPECT_EQ(strategy.training.sequence_length, 4096);
  EXPECT_EQ(strategy.memory.recompute, strategies::Recompute::full);
  EXPECT_THROW(amend_strategy(strategy, config::parse_document("{memory: {offlaod: {}}}", "keys").root), ConfigError);
}

TEST(RowRules, KeysTakeThePlaceOfTheProfilesOwn) {
  const strategies::FrameworkProfile profile = strategies::load_profile("huggingface");
  const auto keys = [](const char* yaml) { return config::parse_document(yaml, "keys").root; };
  const strategies::FrameworkProfile amended = strategies::with_keys(profile, keys("{norm: fused, vocab_multiple: 64}"));
  EXPECT_EQ(amended.norm, strategies::Fusion::fused);
  EXPECT_EQ(amended.vocab_multiple, 64);
  EXPECT_EQ(amended.title, profile.title);
  EXPECT_EQ(amended.reads_loss, profile.reads_loss);
  EXPECT_THROW(strategies::with_keys(profile, keys("{nrom: fused}")), ConfigError);
  EXPECT_THROW(strategies::with_keys(profile, keys("{norm: quick}")), ConfigError);
}

}  // namespace
}  // namespace rehearse::scenario
