// A model description written in the scenario file's own shape keys, every one of them.
// Leaves out reading them (sim/model/model_file.h).
#pragma once

#include "sim/config/value.h"
#include "sim/model/description.h"

namespace rehearse::report {

/// A map that read_model turns into the same description, unless layers differ in more than one window width or their
/// experts follow no "dense first, then every n-th" rule: then `layers` tells only how many there are.
config::Value effective_model(const model::ModelDescription& model);

}  // namespace rehearse::report
