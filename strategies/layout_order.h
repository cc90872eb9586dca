// Reads the user's order of axes ("tp-cp-ep-dp-pp") into one list of the six axes that a layout needs.
// Leaves out the degrees: layout.h puts the two together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rehearse::strategies {

struct AxisOrder {
  std::vector<std::string> axes;     // fastest first: tp, cp, ep, dp_shard, dp_replicate, pp, each once
  std::vector<std::string> unknown;  // words that are no axis
  std::vector<std::string> repeated;
  std::vector<std::string> left_out;  // axes that the user did not write (placed as Megatron does)
};

/// "" is Megatron's order. `dp` stands for dp_shard-dp_replicate. An expert axis that is left out goes just
/// below data.
AxisOrder read_order(std::string_view order);

}  // namespace rehearse::strategies
