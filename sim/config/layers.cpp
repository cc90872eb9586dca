#include "sim/config/layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

namespace rehearse::config {

namespace fs = std::filesystem;

Value as_preset(const Value& name) { return Value::map({{"preset", name.place(), name}}, name.place(), name.path()); }

static bool changes_named_model(const Value& base, const Value& top) {
  return base.is_scalar() && base.path() == "model" && top.is_map() && !top.find("preset") && !top.find("from") && !top.find("hidden");
}

Value merged(const Value& base, const Value& top) {
  if (changes_named_model(base, top)) return merged(as_preset(base), top);
  if (base.is_map() && top.is_null()) return base;
  if (!base.is_map() || !top.is_map()) return top;
  std::vector<Value::Entry> entries;
  for (const Value::Entry& below : base.entries()) {
    const Value::Entry* above = top.find_entry(below.key);
    if (above && above->value.is_null()) continue;
    entries.push_back(above ? Value::Entry{below.key, above->key_place, merged(below.value, above->value)}
                            : below);
  }
  for (const Value::Entry& above : top.entries())
    if (!base.find(above.key)) entries.push_back(above);
  return Value::map(std::move(entries), top.place(), top.path());
}

namespace {

struct File {
  std::string shown;  // as messages name it
  fs::path canonical;
};

class Extender {
 public:
  Value resolve(const Document& document) {
    std::error_code ignored;
    chain_.push_back({document.file, fs::weakly_canonical(document.file, ignored)});
    Value own = document.root;
    std::optional<Value> result;
    if (const Value* extends = own.find("extends")) {
      for (const Value& name : names(*extends))
        if (const auto base = load_base(name, document.file))
          result = result ? merged(*result, *base) : *base;
      own = without_extends(own);
    }
    chain_.pop_back();
    return result ? merged(*result, own) : own;
  }

  std::vector<Diagnostic> diagnostics;

 private:
  std::vector<Value> names(const Value& extends) {
    std::vector<Value> out = extends.is_list() ? extends.items() : std::vector<Value>{extends};
    std::erase_if(out, [&](const Value& name) {
      const bool good = name.is_scalar() && !name.text().empty();
      if (!good) diagnostics.push_back(name.diagnostic("needs a file name", "Write extends: base.yaml"));
      return !good;
    });
    return out;
  }

  std::string chain_to(const std::string& last) const {
    std::string text;
    for (const File& file : chain_) text += file.shown + " -> ";
    return text + last;
  }

  std::optional<Value> load_base(const Value& name, const std::string& from) {
    const fs::path path = (fs::path(from).parent_path() / name.text()).lexically_normal();
    const std::string shown = path.string();
    std::error_code ignored;
    const fs::path canonical = fs::weakly_canonical(path, ignored);
    for (const File& file : chain_)
      if (file.canonical == canonical) {
        diagnostics.push_back(
            name.diagnostic(fmt::format("the files extend each other in a circle ({})", chain_to(shown)),
                            "Remove one of the extends"));
        return std::nullopt;
      }
    if (++files_ > kMaxExtendedFiles) {
      if (files_ == kMaxExtendedFiles + 1)
        diagnostics.push_back(name.diagnostic(
            fmt::format("extends reads more than {} files", kMaxExtendedFiles), "Use fewer layers"));
      return std::nullopt;
    }
    try {
      const Document base = load_document(path);
      if (!base.root.is_map() && !base.root.is_null()) {
        diagnostics.push_back(base.root.diagnostic("needs 'key: value' lines to be extended", ""));
        return std::nullopt;
      }
      return resolve(base);
    } catch (const ConfigError& error) {
      for (Diagnostic d : error.diagnostics()) {
        // A mistake of the whole file (it is missing, say) is mended where the file is named.
        if (d.at.line == 0) {
          const std::string problem = fmt::format("{}: {} ({})", shown, d.problem, chain_to(shown));
          d = name.diagnostic(problem, d.fix);
        }
        diagnostics.push_back(std::move(d));
      }
      return std::nullopt;
    }
  }

  static Value without_extends(const Value& map) {
    std::vector<Value::Entry> entries = map.entries();
    std::erase_if(entries, [](const Value::Entry& e) { return e.key == "extends"; });
    return Value::map(std::move(entries), map.place(), map.path());
  }

  std::vector<File> chain_;
  int files_ = 0;
};

}  // namespace

Value resolve_extends(const Document& document) {
  Extender extender;
  Value root = extender.resolve(document);
  if (!extender.diagnostics.empty()) throw ConfigError(std::move(extender.diagnostics));
  return root;
}

Value load_layered(const fs::path& path) { return resolve_extends(load_document(path)); }

}  // namespace rehearse::config
