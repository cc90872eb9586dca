// Reads TOML into the same tree of values that YAML and JSON give. Leaves out what the keys mean.
#pragma once

#include <string>

#include "sim/config/value.h"

namespace rehearse::importers {

/// Throws ConfigError at the place where the text is no TOML.
config::Value parse_toml(const std::string& text, const std::string& file_name);

}  // namespace rehearse::importers
