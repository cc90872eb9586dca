// rehearse schema and rehearse reference: the scenario file described from the parser's own table.
#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/scenario/scenario.h"

namespace rehearse::cli {
namespace {

Run printer(CLI::App& app, std::string (*text)(), const char* footer) {
  auto output = std::make_shared<std::string>();
  app.add_option("-o,--output", *output, "write to a file instead of stdout")->type_name("FILE");
  app.footer(footer);
  return [output, text] {
    if (output->empty()) print(text());
    else write_file(*output, text());
    return static_cast<int>(kYes);
  };
}

}  // namespace

Run add_schema(CLI::App& app) {
  return printer(app, scenario::scenario_schema,
                 "Examples:\n  rehearse schema -o scenario.schema.json\n  then begin scenario files with: # yaml-language-server: $schema=scenario.schema.json");
}

Run add_reference(CLI::App& app) { return printer(app, scenario::scenario_reference, "Examples:\n  rehearse reference | less\n  rehearse reference -o scenario.md"); }

}  // namespace rehearse::cli
