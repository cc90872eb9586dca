// rehearse calibrate: from measurements of a machine to the files that predictions rest on.
#include "sim/cli/calibrate.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>
#include <vector>

namespace rehearse::cli {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

Run add_calibrate(CLI::App& app) {
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, Run>> runs;
  const auto add = [&](const char* name, const char* help, AddSubcommand adder) {
    CLI::App* sub = app.add_subcommand(name, help);
    runs.emplace_back(sub, adder(*sub));
  };
  add("fit", "fit GPU and network parameters to measurements", add_calibrate_fit);
  add("import", "turn logs, traces and topologies into measurements or a node description", add_calibrate_import);
  add("show", "what a measurements file holds", add_calibrate_show);
  add("against", "fit a framework's host costs and interference to your own training runs", add_calibrate_against);
  app.footer("Examples:\n  rehearse calibrate import all_reduce.log --op all_reduce --out m.json\n  rehearse calibrate fit m.json --out my-cluster\n  rehearse run scenario.yaml --set cluster.collectives=my-cluster/collectives.yaml");
  return [runs] {
    for (const auto& [sub, run] : runs)
      if (sub->parsed()) return run();
    return static_cast<int>(kBadInput);
  };
}

}  // namespace rehearse::cli
