// A model description as text for people: `rehearse model show`.
// Leaves out machine-readable output (sim/report) and files that can be read back (presets.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/model/description.h"

namespace rehearse::model {

/// Shapes, then parameters by part with their share, then total and active. `model` must be free of
/// problems_of().
std::vector<std::string> describe(const ModelDescription& model);

/// Runs of equal layers: "3 x dense, 58 x moe", or a repeating group: "10 x (5 x window 1024, 1 x full), 2 x
/// ...".
std::string describe_layers(const ModelDescription& model);

/// 8030261248 -> "8.03 B"; 124439808 -> "124.4 M"; 4096 -> "4096". Powers of ten.
std::string human_count(std::int64_t count);

std::string_view name_of(Norm norm);
std::string_view name_of(Position position);
std::string_view name_of(Activation activation);

}  // namespace rehearse::model
