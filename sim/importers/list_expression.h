// Lists of whole numbers as Megatron's arguments spell them, in Python: ([0]*3+[1]*58), "[1,1,0]*4".
// Leaves out every other expression, and what the numbers mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace rehearse::importers {

/// Sums of lists and of lists times whole numbers, with brackets. Nothing for anything else, or for more than 100,000 numbers.
/// Source: megatron/training/arguments.py, _eval_pattern.
std::optional<std::vector<std::int64_t>> parse_list_expression(std::string_view text);

}  // namespace rehearse::importers
