// rehearse framework: the framework profiles.
#include <fmt/format.h>

#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/config/document.h"
#include "sim/core/resources.h"
#include "sim/report/format.h"
#include "strategies/framework/profile.h"

namespace rehearse::cli {
namespace {

int list_frameworks() {
  report::Table table({"Framework profile", "what it stands for"});
  table.left(1);
  for (const std::string& name : strategies::profile_names()) table.add({"  " + name, strategies::load_profile(name).title});
  print(table.text(0));
  return kYes;
}

int show_framework(const std::string& name) {
  const strategies::FrameworkProfile profile = strategies::load_profile(name);  // checks the name and the file
  const std::string file = "strategies/framework/data/" + name + ".yaml";
  const config::Document data = config::load_document(resource_root() / file);
  std::string text = report::wrapped("", profile.title) + report::wrapped("file    ", file) + report::wrapped("source  ", profile.source);
  report::Table table({"Key", "value", "source"});
  table.left(1).left(2);
  const config::Value* sources = data.root.find("sources");
  for (const config::Value::Entry& e : data.root.entries()) {
    if (e.key == "title" || e.key == "source" || e.key == "sources") continue;
    std::string value = e.value.text();
    for (const config::Value& item : e.value.items()) value += (value.empty() ? "" : ", ") + item.text();
    const config::Value* source = sources == nullptr ? nullptr : sources->find(e.key);
    table.add({"  " + e.key, value, source == nullptr ? "" : source->text()});
  }
  const config::Value* base = data.root.find("extends");
  print(text + table.text(0) + (base == nullptr ? std::string("Keys that are not named have their defaults.\n") : "Keys that are not named are those of " + base->text() + ".\n"));
  return kYes;
}

}  // namespace

Run add_framework(CLI::App& app) {
  app.require_subcommand(1);
  auto name = std::make_shared<std::string>();
  app.footer("Examples:\n  rehearse framework list\n  rehearse framework show torchtitan");  // of the subcommands, too: they take what is there
  CLI::App* list_command = app.add_subcommand("list", "every framework profile");
  CLI::App* show_command = app.add_subcommand("show", "the values of one, with their sources");
  show_command->add_option("NAME", *name, "name of a profile")->required();
  return [=] { return list_command->parsed() ? list_frameworks() : show_framework(*name); };
}

}  // namespace rehearse::cli
