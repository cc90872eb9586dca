#include "sim/importers/import_file.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/config/document.h"
#include "sim/core/suggestion.h"
#include "sim/importers/importer.h"
#include "sim/importers/readers.h"
#include "sim/importers/toml_document.h"

namespace rehearse::importers {

const Catalog<Format>& formats() {
  static const Catalog<Format> list{"format", {
      {"torchtitan", "torchtitan's TOML, or the JSON that its trainer writes", {parse_torchtitan, is_torchtitan, read_torchtitan}},
      {"accelerate", "YAML of `accelerate config`: FSDP, DeepSpeed, Megatron, DDP", {parse_accelerate, is_accelerate, read_accelerate}},
      {"deepspeed", "DeepSpeed's JSON", {parse_deepspeed, is_deepspeed, read_deepspeed}},
      {"megatron", "Megatron-LM's command line, script, argument dump or YAML", {parse_megatron, is_megatron, read_megatron}},
  }};
  return list;
}

namespace {

std::string known_formats() {
  std::string known;
  for (const std::string& n : formats().names()) known += (known.empty() ? "" : ", ") + n;
  return known;
}

const Format* detect(const std::string& text, const std::string& file_name) {
  for (const auto& entry : formats().entries()) {
    try {
      const config::Value root = entry.value.parse(text, file_name, {});
      if (root.is_map() && entry.value.recognises(root, text)) return &entry.value;
    } catch (const ConfigError&) {
      // Not this format's syntax.
    }
  }
  if (file_name.ends_with(".toml")) parse_toml(text, file_name);   // throws when it is broken TOML
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw ConfigError(Diagnostic{{file_name, 0, 0}, "", "is empty", "Is it the file you meant?", ""});
  if (first != std::string::npos && text[first] == '{') parse_commented_json(text, file_name);  // throws when it is broken JSON
  throw ConfigError(Diagnostic{{file_name, 0, 0}, "", "is no configuration of a framework that can be imported (" + known_formats() + ")", "Say which it is: --framework deepspeed, or from: deepspeed", ""});
}

/// Every name in `without` must have met a key, here or in a file that this one names.
void check_without(const Imported& imported, const Context& context) {
  std::vector<Diagnostic> mistakes;
  const model::ImportReport& r = imported.report;
  for (const std::string& name : context.without) {
    const bool met = std::any_of(r.ignored.begin(), r.ignored.end(), [&](const model::ImportNote& n) { return n.note == kLeftOut && (n.key == name || n.key.starts_with(name + ".")); });
    if (met) continue;
    std::vector<std::string> names;
    for (const auto* list : {&r.used, &r.ignored, &r.not_understood})
      for (const model::ImportNote& n : *list) names.push_back(n.key);
    for (const Diagnostic& d : imported.unsimulated) names.push_back(d.key);
    const std::string meant = did_you_mean(name, names);
    mistakes.push_back({{imported.file, 0, 0}, "training.without", fmt::format("there is no key '{}' to leave out", name), meant.empty() ? "Write the key as the import's report names it" : meant, ""});
  }
  if (!mistakes.empty()) throw ConfigError(std::move(mistakes));
}

}  // namespace

void refuse_variables(const std::string& file_name, const ShellVariables& given) {
  if (!given.empty()) throw ConfigError(Diagnostic{{file_name, 0, 0}, "training.variables", fmt::format("'{}' is given, but this is no script: it has no variables", given.begin()->first), "Leave it out", ""});
}

Imported import_text(const std::string& text, const std::string& file_name, const std::string& format, const Context& context) {
  const Format* chosen = format.empty() ? detect(text, file_name) : formats().find(format);
  if (chosen == nullptr) {
    throw ConfigError(Diagnostic{{file_name, 0, 0}, "", fmt::format("there is no format '{}' to import from", format), did_you_mean(format, formats().names(), "Known: " + known_formats()), ""});
  }
  Imported imported = chosen->read(chosen->parse(text, file_name, context.variables), context);
  imported.file = file_name;
  check_without(imported, context);
  return imported;
}

Imported import_file(const std::filesystem::path& path, const std::string& format, const Context& context) {
  Context here = context;
  if (here.beside.empty()) here.beside = path.parent_path().string();
  return import_text(config::checked_utf8(config::read_text_file(path, config::kMaxDocumentBytes), path.string()), path.string(), format, here);
}

namespace {

std::string section_of(const std::string& key) { return key.substr(0, key.find('.')); }

/// Keys of one section that are refused for one reason, as one: a section of thirty keys is left out by its name.
std::vector<Diagnostic> by_section(const std::vector<Diagnostic>& unsimulated) {
  std::vector<Diagnostic> all;
  for (std::size_t i = 0; i < unsimulated.size();) {
    Diagnostic d = unsimulated[i];
    const std::string section = section_of(d.key);
    std::size_t end = i + 1;
    while (end < unsimulated.size() && section_of(unsimulated[end].key) == section && unsimulated[end].problem == d.problem) ++end;
    if (end - i > 1) {
      d.key = section;
      d.fix = "Simulate without it: " + how_to_leave_out(section);
    }
    all.push_back(std::move(d));
    i = end;
  }
  return all;
}

}  // namespace

std::vector<std::string> to_lines(const Imported& imported) {
  std::vector<std::string> lines;
  std::vector<model::ImportNote> left_out, ignored;
  for (const model::ImportNote& n : imported.report.ignored) (n.note == kLeftOut ? left_out : ignored).push_back(n);
  const auto list = [&](const char* heading, const std::vector<model::ImportNote>& notes) {
    if (!notes.empty()) lines.push_back(fmt::format("{} ({})", heading, notes.size()));
    for (const model::ImportNote& n : notes) lines.push_back(fmt::format("  {}: {}", n.key, n.note));
  };
  list("used", imported.report.used);
  list("assumed, the file does not say", imported.report.assumed);
  list("ignored, changes neither time nor memory of a step", ignored);
  list("left out, whatever it changes", left_out);
  list("not understood", imported.report.not_understood);
  if (!imported.unsimulated.empty()) lines.push_back(fmt::format("not simulated yet ({})", imported.unsimulated.size()));
  for (const Diagnostic& d : by_section(imported.unsimulated)) lines.push_back(fmt::format("  {}: {}", d.key, d.problem));
  return lines;
}

std::vector<Diagnostic> refusals(const Imported& imported, bool strict) {
  std::vector<Diagnostic> all = by_section(imported.unsimulated);
  if (strict)
    for (const Diagnostic& d : model::strict_diagnostics(imported.report)) all.push_back(d);
  return all;
}

}  // namespace rehearse::importers
