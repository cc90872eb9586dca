// TOML as a tree of values with places. Only user of toml++.
#include <stdexcept>

namespace {
/// What toml++ takes for impossible and a broken file makes possible ("[[,a"): with its own assert such a file would end
/// the program, without it the parser would go on over it.
struct BrokenToml : std::logic_error {
  using std::logic_error::logic_error;
};
}  // namespace

#undef NDEBUG  // with it toml++ drops TOML_ASSERT
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : throw BrokenToml(#expr))
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wterminate"  // accessors that the parser does not use are noexcept
#endif
#include <toml++/toml.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "sim/config/document.h"
#include "sim/importers/toml_document.h"

namespace rehearse::importers {
namespace {

using config::Place;
using config::Value;

class Reader {
 public:
  explicit Reader(std::shared_ptr<const config::SourceText> source) : source_(std::move(source)) {}

  Value read(const toml::node& node, const std::string& path, int depth) {
    const Place at = place(node.source());
    if (depth > config::kMaxNesting) throw ConfigError(Diagnostic{at.location(), path, fmt::format("nested deeper than {} levels", config::kMaxNesting), "", ""});
    if (const toml::table* table = node.as_table()) {
      std::vector<Value::Entry> entries;
      for (const auto& [key, child] : *table) entries.push_back({std::string(key.str()), place(key.source()), read(child, config::child_path(path, key.str()), depth + 1)});
      return Value::map(std::move(entries), at, path);
    }
    if (const toml::array* array = node.as_array()) {
      std::vector<Value> items;
      for (const toml::node& child : *array) items.push_back(read(child, config::child_path(path, items.size()), depth + 1));
      return Value::list(std::move(items), at, path);
    }
    if (const auto* text = node.as_string()) return Value::scalar(text->get(), true, at, path);
    if (const auto* flag = node.as_boolean()) return Value::scalar(flag->get() ? "true" : "false", false, at, path);
    if (const auto* whole = node.as_integer()) return Value::scalar(std::to_string(whole->get()), false, at, path);
    if (const auto* real = node.as_floating_point()) return Value::scalar(fmt::format("{}", real->get()), false, at, path);
    return Value::scalar("a date", true, at, path);  // no framework has dates in its configuration
  }

  Place place(const toml::source_region& region) const { return {source_, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)}; }

 private:
  std::shared_ptr<const config::SourceText> source_;
};

/// toml++ 3.3 runs into its own "unreachable" on U+FEC0 to U+FEFE (Arabic presentation forms) outside quotes
/// (is_unicode_horizontal_whitespace). They become U+FFFD, which has as many bytes, so that every place stays.
std::string without_arabic_forms(std::string text) {
  for (std::size_t i = 0; i + 2 < text.size(); ++i)
    if (text[i] == '\xEF' && text[i + 1] == '\xBB' && text[i + 2] != '\xBF') text.replace(i, 3, "\xEF\xBF\xBD");
  return text;
}

/// Where keys and brackets nest deeper than tables may: toml++ 3.3 bounds brackets but not dotted keys, and takes its tables
/// apart by recursion. Strings and comments are passed over; a broken file may be passed over wrongly where toml++ has
/// already stopped.
std::optional<SourceLocation> too_deep(const std::string& text, const std::string& file_name) {
  constexpr int kMost = 4 * config::kMaxNesting;   // more than the reader takes, less than recursion bears
  std::vector<int> around;                         // levels outside each open bracket
  int levels = 0, line = 1;
  std::size_t line_begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      const std::string three(3, c);
      const bool many_lines = text.compare(i, 3, three) == 0;
      for (i += many_lines ? 3 : 1; i < text.size(); ++i) {
        if (c == '"' && text[i] == '\\' && i + 1 < text.size() && text[i + 1] != '\n') ++i;
        else if (many_lines ? text.compare(i, 3, three) == 0 : text[i] == c || text[i] == '\n') break;
        else if (text[i] == '\n') ++line, line_begin = i + 1;
      }
      if (many_lines) {
        for (i += 2; i + 1 < text.size() && text[i + 1] == c; ++i) {}   // quotes that end the string's own text
      } else if (i < text.size() && text[i] == '\n') {
        --i;
      }
    } else if (c == '.') {
      if (++levels > kMost) return SourceLocation{file_name, line, static_cast<int>(i - line_begin) + 1};
    } else if (c == '[' || c == '{') {
      around.push_back(levels);
      if (++levels > kMost) return SourceLocation{file_name, line, static_cast<int>(i - line_begin) + 1};
    } else if ((c == ']' || c == '}') && !around.empty()) {
      levels = around.back();
      around.pop_back();
    } else if (c == ',' || c == '\n') {
      levels = around.empty() ? 0 : around.back() + 1;
      if (c == '\n') ++line, line_begin = i + 1;
    }
  }
  return std::nullopt;
}

}  // namespace

Value parse_toml(const std::string& text, const std::string& file_name) {
  const auto source = std::make_shared<const config::SourceText>(file_name, text);
  Reader reader(source);
  if (const auto at = too_deep(text, file_name)) {
    const Place place{source, at->line, at->column};
    throw ConfigError(Diagnostic{*at, "", fmt::format("nested deeper than {} levels", config::kMaxNesting), "Is it the file you meant?", place.excerpt()});
  }
  try {
    const toml::table root = toml::parse(without_arabic_forms(text), file_name);
    return reader.read(root, "", 0);
  } catch (const BrokenToml&) {
    throw ConfigError(Diagnostic{{file_name, 0, 0}, "", "not readable as TOML", "Check it with another TOML reader: where it breaks is not known here", ""});
  } catch (const toml::parse_error& e) {
    const Place at = reader.place(e.source());
    throw ConfigError(Diagnostic{at.location(), "", fmt::format("not readable as TOML ({})", std::string(e.description()).substr(0, 200)), "", at.excerpt()});
  }
}

}  // namespace rehearse::importers
