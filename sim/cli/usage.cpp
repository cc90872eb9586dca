#include "sim/cli/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sim/core/suggestion.h"

namespace rehearse::cli {
namespace {

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options([](const CLI::Option*) { return true; }))
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string joined(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

/// Two letters in the wrong order are two edits: too many for short names, yet the commonest slip.
std::optional<std::string> same_letters(std::string word, const std::vector<std::string>& names) {
  std::sort(word.begin(), word.end());
  for (const std::string& name : names) {
    std::string letters = name;
    std::sort(letters.begin(), letters.end());
    if (letters == word) return name;
  }
  return std::nullopt;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& names, const char* what) {
  const std::string all = fmt::format("{}: {}", what, joined(names));
  const auto swapped = nearest_name(word, names) ? std::nullopt : same_letters(word, names);
  return swapped ? fmt::format("Did you mean {}? {}", *swapped, all) : did_you_mean(word, names, all);
}

}  // namespace

std::optional<Diagnostic> empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->count() > 0; }))
    for (const std::string& value : option->results())
      if (value.empty()) return Diagnostic{{}, "", fmt::format("{}: the value of {} is empty", app.get_name(), option->get_name()), "Give one, or leave the option out", ""};
  for (const CLI::App* sub : app.get_subcommands())
    if (auto found = empty_value(*sub)) return found;
  return std::nullopt;
}

Diagnostic explain_usage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string place = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    place += " " + at->get_name();
  }
  const std::vector<std::string> names = subcommand_names(*at);
  std::vector<std::string> unknown = at->remaining(false);
  if (unknown.empty()) unknown = app.remaining(true);
  if (!unknown.empty() && unknown[0].size() > 1 && unknown[0][0] == '-') {
    const std::string option = unknown[0].substr(0, unknown[0].find('='));
    return {{}, "", fmt::format("{} has no option {}", place, option), suggestion(option, option_names(*at), "Options"), ""};
  }
  if (!names.empty()) {
    if (!unknown.empty()) return {{}, "", fmt::format("{} has no subcommand '{}'", place, unknown[0]), suggestion(unknown[0], names, "Subcommands"), ""};
    return {{}, "", fmt::format("{} needs a subcommand", place), "Subcommands: " + joined(names), ""};
  }
  if (!unknown.empty()) return {{}, "", fmt::format("{} does not know what to do with '{}'", place, unknown[0]), fmt::format("See {} --help", place), ""};
  return {{}, "", fmt::format("{}: {}", place, error.what()), fmt::format("See {} --help", place), ""};
}

}  // namespace rehearse::cli
