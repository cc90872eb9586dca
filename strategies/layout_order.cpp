#include "strategies/layout_order.h"

#include <algorithm>

#include "strategies/layout.h"

namespace rehearse::strategies {

AxisOrder read_order(std::string_view order) {
  if (order.empty()) order = kMegatronOrder;
  AxisOrder out;
  const auto has = [&](std::string_view axis) { return std::ranges::find(out.axes, axis) != out.axes.end(); };
  const auto add = [&](const std::string& axis) {
    if (has(axis))
      out.repeated.push_back(axis);
    else
      out.axes.push_back(axis);
  };
  for (std::size_t begin = 0; begin <= order.size();) {
    const std::size_t end = std::min(order.find('-', begin), order.size());
    const std::string word{order.substr(begin, end - begin)};
    begin = end + 1;
    if (word == "dp") {
      add("dp_shard");
      add("dp_replicate");
    } else if (word == "tp" || word == "cp" || word == "ep" || word == "dp_shard" || word == "dp_replicate" ||
               word == "pp") {
      add(word);
    } else {
      out.unknown.push_back(word);
    }
  }
  for (const char* axis : {"tp", "cp", "dp_shard", "dp_replicate", "pp", "ep"}) {
    if (has(axis)) continue;
    if (std::string_view{axis} != "ep") out.left_out.push_back(axis);
    // The experts' axis moves no dense rank, so leaving it out is usual; everything else goes to the slow
    // end.
    const auto at =
        std::string_view{axis} == "ep"
            ? std::ranges::find_if(out.axes, [](const std::string& a) { return a.starts_with("dp"); })
            : out.axes.end();
    out.axes.insert(at, axis);
  }
  return out;
}

}  // namespace rehearse::strategies
