// The page is well formed, needs nothing from elsewhere, and its drawings add up.
#include "sim/report/html_writer.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace rehearse::report::html_writer_test
