// Where the project's folders lie on the machine that built the tests: for data that tests read.
#pragma once

#include <filesystem>

namespace rehearse {

std::filesystem::path source_dir();

}  // namespace rehearse
