#include "sim/core/resources.h"

#include <algorithm>
#include <system_error>

#include "sim/core/error.h"
#include "sim/core/remembered.h"

namespace rehearse {
namespace fs = std::filesystem;

namespace {

fs::path find_root() {
  const fs::path marker = fs::path("hwmodels") / "data";
  std::error_code ec;
  std::vector<fs::path> tried;
  const fs::path program = fs::read_symlink("/proc/self/exe", ec);
  if (!ec) {
    tried.push_back(program.parent_path().parent_path() / "share" / "rehearse");
    for (fs::path p = program.parent_path(); p.has_relative_path(); p = p.parent_path()) tried.push_back(p);
  }
  tried.emplace_back(REHEARSE_SOURCE_DIR);
  for (const fs::path& candidate : tried)
    if (fs::is_directory(candidate / marker, ec)) return candidate;
  throw ConfigError(Diagnostic{{}, "", "the program's data files (hwmodels/data) were not found beside it",
                               "Run the program from its build folder, or install it with cmake --install", ""});
}

}  // namespace

const fs::path& resource_root() {
  static const fs::path root = find_root();
  return root;
}

const std::vector<std::string>& resource_names(const std::string& folder, const std::string& extension) {
  static Remembered<std::pair<std::string, std::string>, std::vector<std::string>> folders;
  return folders.get({folder, extension}, [&] {
    std::vector<std::string> names;
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(resource_root() / folder, ec))
      if (entry.path().extension() == extension) names.push_back(entry.path().stem().string());
    std::sort(names.begin(), names.end());
    return names;
  });
}

}  // namespace rehearse
