// Where the program's own data files are: beside the sources, or installed under share/rehearse.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rehearse {

/// The folder that holds `hwmodels/data`, `sim/model/data` and `scenarios`: the first that exists of
/// <program>/../share/rehearse, the folders above the program, the source tree it was built from.
/// Throws ConfigError when none exists.
const std::filesystem::path& resource_root();

/// Names (without extension) of the files with `extension` in `folder` below resource_root(), sorted. Looked up once
/// per process: the program's own files do not change under it.
const std::vector<std::string>& resource_names(const std::string& folder, const std::string& extension);

}  // namespace rehearse
