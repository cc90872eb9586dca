#include "sim/model/pipeline_layout.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace rehearse::model {

namespace {

/// The text without brackets and repetitions; empty where it has mistakes.
std::string spelt_out(const std::string& text) {
  constexpr long kLongest = 100'000;   // letters: what no model reaches
  std::vector<std::string> open{""};   // of nested groups
  std::string last;                    // what a repetition is of
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<long>(open.back().size()) > kLongest) return {};
    if (c == '(') {
      last.clear();
      open.emplace_back();
    } else if (c == ')') {
      if (open.size() < 2) return {};
      last = open.back();
      open.pop_back();
      open.back() += last;
    } else if (c == '*') {
      char* end = nullptr;
      const long times = std::strtol(text.c_str() + i + 1, &end, 10);
      if (times < 1 || times > kLongest || last.empty() || static_cast<long>(last.size()) * times > kLongest) return {};
      for (long n = 1; n < times; ++n) open.back() += last;
      i = static_cast<std::size_t>(end - text.c_str()) - 1;
    } else {
      last = c;
      open.back() += c;
    }
  }
  return open.size() == 1 ? open.front() : std::string{};
}

}  // namespace

std::int64_t PipelineLayout::total() const { return std::accumulate(layers.begin(), layers.end(), std::int64_t{0}); }

PipelineLayout read_pipeline_layout(const std::string& text) {
  const std::string letters = spelt_out(text);
  if (letters.empty()) return {};
  PipelineLayout out{.layers = {0}, .predictions = static_cast<int>(std::count(letters.begin(), letters.end(), 'm'))};
  for (const char c : letters) {
    if (c == '|') out.layers.push_back(0);
    else if (c == 't') ++out.layers.back();
  }
  return out;
}

}  // namespace rehearse::model
