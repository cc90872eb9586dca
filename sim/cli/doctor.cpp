// rehearse doctor: is everything here that the program needs? The first thing to ask for in a bug report.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "hwmodels/collective/parameters.h"
#include "hwmodels/topology/cluster.h"
#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/cli/version.h"
#include "sim/core/resources.h"
#include "sim/model/presets.h"
#include "sim/scenario/scenario.h"
#include "strategies/framework/profile.h"

namespace rehearse::cli {
namespace {

class Examination {
 public:
  void say_line(const std::string& what, const std::string& value) { text_ += fmt::format("{:<20}{}\n", what, value); }

  /// Loads every file of a kind; none at all is a finding too.
  template <typename Load>
  void check(const std::string& what, const std::vector<std::string>& names, Load load) {
    std::size_t good = 0;
    std::string problems;
    for (const std::string& name : names) {
      try {
        load(name);
        ++good;
      } catch (const std::exception& error) {
        problems += fmt::format("  {}: {}\n", name, error.what());
      }
    }
    healthy_ = healthy_ && good == names.size() && good > 0;
    say_line(what, names.empty() ? "none found" : fmt::format("{} of {} load", good, names.size()));
    text_ += problems;
  }

  const std::string& text() const { return text_; }
  bool healthy() const { return healthy_; }

 private:
  std::string text_;
  bool healthy_ = true;
};

/// With those in folders below.
std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  std::error_code unreadable;   // none is found then, and that is said
  for (const auto& entry : std::filesystem::recursive_directory_iterator(resource_root() / "scenarios", unreadable))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

int examine() {
  Examination e;
  e.say_line("rehearse", kVersion);
  e.say_line("compiler", fmt::format("GCC {}, C++ {}", __VERSION__, __cplusplus));
#ifdef NDEBUG
  e.say_line("build", "without assertions");
#else
  e.say_line("build", "with assertions");
#endif
  e.say_line("cores", std::to_string(std::thread::hardware_concurrency()));
  e.say_line("data files", resource_root().string());
  e.check("GPUs", hwmodels::gpu_names(), [](const std::string& n) { hwmodels::load_gpu(n); });
  e.check("node designs", hwmodels::node_names(), [](const std::string& n) { hwmodels::load_node(n); });
  e.check("fabrics", hwmodels::fabric_names(), [](const std::string& n) { hwmodels::load_fabric(n); });
  e.check("collectives", {"nccl"}, [](const std::string&) { hwmodels::collective_parameters(); });
  e.check("models", model::preset_names(), [](const std::string& n) { model::load_preset(n); });
  e.check("framework profiles", strategies::profile_names(), [](const std::string& n) { strategies::load_profile(n); });
  e.check("scenarios", scenario_files(), [](const std::string& file) { scenario::load_scenario(file); });
  print(e.text() + (e.healthy() ? "all is well\n" : "something is missing or broken: install the program again\n"));
  return e.healthy() ? kYes : kMissingEnvironment;
}

}  // namespace

Run add_doctor(CLI::App& app) {
  app.footer("Examples:\n  rehearse doctor\n  rehearse doctor | grep -v load");
  return examine;
}

}  // namespace rehearse::cli
