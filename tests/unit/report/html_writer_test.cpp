// The page is well formed, needs nothing from elsewhere, and its drawings add up.
#include "sim/report/html_writer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sim/report/format.h"
#include "sim/report/json_writer.h"
#include "sim/report/text_writer.h"
#include "small_scenario.h"

namespace rehearse::report::html_writer_test {
namespace {

/// The first tag that closes what is not open, or stays open; "" when all is well.
std::string unbalanced(const std::string& page) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)([^<>]*)>");
  for (std::sregex_iterator it(page.begin(), page.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2], rest = (*it)[3];
    if (name == "meta" || name == "br" || rest.ends_with("/")) continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
    } else {
      if (open.empty() || open.back() != name) return "/" + name;
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

TEST(HtmlWriter, TagsAreBalancedAndNothingIsFetched) {
  for (scenario::Scenario s : {small_scenario(), pipelined_scenario()}) {
    s.title = "<b>\"Tags\" & more</b>";
    const std::string page = write_html(s, simulated(s));
    EXPECT_EQ(unbalanced(page), "");
    EXPECT_NE(page.find("&lt;b&gt;&quot;Tags&quot; &amp; more&lt;/b&gt;"), std::string::npos);
    for (const char* from_elsewhere : {"http:", "https:", "<script", "src=", "url("}) EXPECT_EQ(page.find(from_elsewhere), std::string::npos) << from_elsewhere;
  }
}

TEST(HtmlWriter, TheStepIsDividedWithoutAGap) {
  const scenario::Scenario s = small_scenario();
  const std::string page = write_html(s, simulated(s));
  const std::size_t from = page.find("busiest ranks"), to = page.find("mean of ranks");
  ASSERT_LT(from, to);
  const std::string bar = page.substr(from, to - from);
  const std::regex width("width=\"([0-9.]+)\"");
  double sum = 0;
  for (std::sregex_iterator it(bar.begin(), bar.end(), width), end; it != end; ++it) sum += std::stod((*it)[1]);
  EXPECT_NEAR(sum, 950, 4);  // the drawing less its labels; slivers are widened to be seen
}

TEST(HtmlWriter, EveryStageHasARowOfItsOwn) {
  const scenario::Scenario s = pipelined_scenario();
  const scenario::Result r = simulated(s);
  const std::string page = write_html(s, r);
  for (const scenario::ClassResult& c : r.classes) EXPECT_NE(page.find(">" + c.name + "</text>"), std::string::npos) << c.name;
}

/// Dense, experts, offload to the CPU, LoRA, out of memory, a pipeline: what the page has to show.
std::vector<std::pair<std::string, scenario::Scenario>> six() {
  return {{"dense", small_scenario()},
          {"experts", small_scenario({"model={layers: 4, hidden: 1024, heads: 8, ffn_hidden: 1024, vocab: 32000, experts: {count: 8, top_k: 2}}", "parallelism={expert: 4}", "training.framework=megatron-core",
                                      "data_parallel={kind: distributed-optimizer}", "experts={routing: {distribution: zipf, skew: 0.5}}"})},
          {"offload", small_scenario({"data_parallel={kind: zero2}", "training.framework=deepspeed", "memory={offload: {optimizer: cpu}}"})},
          {"lora", small_scenario({"tuning={kind: lora, rank: 16}", "training.framework=huggingface", "data_parallel={kind: ddp}"})},
          {"out of memory", huge_scenario()},
          {"pipeline", pipelined_scenario()}};
}

// Every number of the text is on the page itself, not only in the copy of the text at its end; and those of the JSON are the same.
TEST(HtmlWriter, PageTextAndJsonAgree) {
  for (const auto& [name, s] : six()) {
    SCOPED_TRACE(name);
    const scenario::Result r = simulated(s);
    const std::string whole = write_html(s, r, "a remedy"), text = write_text(s, r), page = whole.substr(0, whole.find("<details>"));
    EXPECT_EQ(unbalanced(whole), "");
    const auto json = nlohmann::json::parse(write_json(s, r));
    const auto both = [&](const std::string& what) {
      EXPECT_NE(page.find(what), std::string::npos) << what;
      EXPECT_NE(text.find(what), std::string::npos) << what;
    };
    both(seconds_text(json["step_time_s"]));
    both(number_text(json["tokens_per_s"]));
    both(number_text(json["tokens_per_s_per_gpu"]));
    both(number_text(json["samples_per_s"]));
    both(percent_text(json["mfu"]));
    both(percent_text(json["hfu"]));
    both(json["fits"] ? "FITS: " : "DOES NOT FIT: ");
    both(json["scenario_hash"].get<std::string>());
    for (const char* account : {"breakdown", "breakdown_mean"})
      for (int c = 0; c < executor::kCauses; ++c) {
        const double seconds = json[account].value(key_of(static_cast<executor::Cause>(c)), 0.0);
        if (seconds > 0 && (account == std::string("breakdown") || r.classes.size() > 1)) both(seconds_text(seconds)), both(std::string(name_of(static_cast<executor::Cause>(c))));
      }
    for (const auto& one : json["memory"])
      for (const char* peak : {"peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes"}) both(gib_text(Bytes{one[peak].get<std::int64_t>()}));
    for (const auto& k : r.classes)
      for (const std::int64_t bytes : k.memory.at_peak)
        if (bytes > 0) both(gib_text(Bytes{bytes}));
    if (json["host_bytes"] > 0) both(gib_text(Bytes{json["host_bytes"].get<std::int64_t>()}));
    EXPECT_NE(page.find(peak_moment_text(r, r.fullest_class)), std::string::npos);
    EXPECT_NE(page.find("a remedy"), std::string::npos);
  }
}

// The optimizer's time on the CPU is a part of its own in the bars, a row among the streams, and has a colour that no other cause has.
TEST(HtmlWriter, TheOptimizerOnTheCpuIsSeen) {
  const scenario::Scenario s = six()[2].second;
  const std::string page = write_html(s, simulated(s));
  const std::regex part("fill=\"(#[0-9a-f]+)\"><title>([^:<]+): ");
  std::map<std::string, std::string> colour_of;
  const std::string bars = page.substr(page.find("busiest ranks"), page.find("mean of ranks") - page.find("busiest ranks"));
  std::set<std::string> colours;
  for (std::sregex_iterator it(bars.begin(), bars.end(), part), end; it != end; ++it) colour_of[(*it)[2]] = (*it)[1], colours.insert((*it)[1]);
  EXPECT_TRUE(colour_of.contains("optimizer on the CPU"));
  EXPECT_EQ(colours.size(), colour_of.size());
  const std::string rows = page.substr(page.find("One step, stream by stream"), page.find("Memory at the peak") - page.find("One step, stream by stream"));
  EXPECT_NE(rows.find("optimizer on the CPU</text>"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::report::html_writer_test
