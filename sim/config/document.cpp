#include "sim/config/document.h"

#include <fmt/core.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

#include "sim/config/tree_builder.h"

namespace rehearse::config {

namespace {

struct Advice {
  const char* from_parser;
  const char* problem;
  const char* fix;
};

// yaml-cpp's messages speak of tokens; these speak of what people do. Found by trying the mistakes.
constexpr Advice kAdvice[] = {
    {"illegal map value", "':' does not fit here", "Quote text that holds ': ', or check the indentation"},
    {"illegal map key", "a key does not fit here", "Check the indentation"},
    {"illegal block entry", "'-' does not fit here", "Start the list on a line of its own"},
    {"end of map not found", "this line belongs to no key",
     "Write 'key: value' with a space after ':', and align it with its neighbours"},
    {"end of map flow not found", "'{' is not closed before this", "Add '}' or a comma"},
    {"end of sequence not found", "this line belongs to no list item", "Check the indentation"},
    {"end of sequence flow not found", "'[' is not closed before this", "Add ']' or a comma"},
    {"illegal flow end", "a closing bracket without its opening one", "Remove it"},
    {"illegal EOF in scalar", "a quote is not closed before the end", "Add the closing quote"},
    {"illegal tab when looking for indentation", "a tab as indentation", "Use spaces"},
    {"the referenced anchor is not defined", "the alias names no anchor above it",
     "Define it with &name first"},
    {"unknown token", "a character that YAML reserves", "Quote the text"},
};

std::string unquoted_name(std::string_view message) {
  const auto colon = message.find(": ");
  return std::string(message.substr(0, colon == std::string_view::npos ? message.size() : colon));
}

Diagnostic explained(const YAML::Exception& e, const Place& at) {
  const std::string message = unquoted_name(e.msg);
  for (const Advice& advice : kAdvice)
    if (message == advice.from_parser) return {at.location(), "", advice.problem, advice.fix, at.excerpt()};
  return {at.location(), "", "not readable as YAML (" + e.msg.substr(0, 200) + ")", "", at.excerpt()};
}

bool looks_like_json(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
}

// YAML forbids tabs as indentation, yaml-cpp accepts some of them and then misreads the nesting.
void refuse_tabs(const std::shared_ptr<const SourceText>& source) {
  const std::string& text = source->text();
  if (looks_like_json(text)) return;
  int line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t first = std::min(text.find_first_not_of(' ', begin), text.size());
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (first < end && text[first] == '\t' && text.find_first_not_of(" \t\r", first) < end) {
      const Place at{source, line, static_cast<int>(first - begin) + 1};
      throw ConfigError(Diagnostic{at.location(), "",
                                   "a tab as indentation (YAML does not say how wide it is)", "Use spaces",
                                   at.excerpt()});
    }
    begin = end + 1;
  }
}

int hex_value(std::string_view digits) {
  int value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9'                 ? c - '0'
                      : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                           : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// JSON writes characters beyond the first 65,536 as two \u escapes, which YAML does not know: one \U instead.
std::string join_surrogates(std::string text) {
  if (!looks_like_json(text) || text.find("\\u") == std::string::npos) return text;
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 >= text.size()) {
      out += text[i];
      continue;
    }
    const std::string_view here = std::string_view(text).substr(i, 12);
    if (here.size() == 12 && here[1] == 'u' && here[6] == '\\' && here[7] == 'u') {
      const int high = hex_value(here.substr(2, 4));
      const int low = hex_value(here.substr(8, 4));
      if (high >= 0xD800 && high < 0xDC00 && low >= 0xDC00 && low < 0xE000) {
        out += fmt::format("\\U{:08x}", 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00));
        i += 11;
        continue;
      }
    }
    out += text[i];
    out += text[++i];
  }
  return out;
}

Value parse(const std::shared_ptr<const SourceText>& source, const std::string& root_path, bool located, Dialect dialect) {
  refuse_tabs(source);
  TreeBuilder builder(source, root_path, located, dialect);
  try {
    std::istringstream stream(source->text());
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
    builder.finish();
  } catch (const BuildStopped&) {
  } catch (const YAML::Exception& e) {
    builder.diagnostics().push_back(explained(e, builder.place(e.mark)));
  }
  if (!builder.diagnostics().empty()) throw ConfigError(builder.diagnostics());
  return builder.root();
}

}  // namespace

Document load_document(const std::filesystem::path& path) {
  return parse_document(read_text_file(path, kMaxDocumentBytes), path.string());
}

Document parse_document(std::string text, const std::string& file_name, Dialect dialect) {
  if (text.size() > kMaxDocumentBytes)
    throw ConfigError(Diagnostic{{file_name, 0, 0},
                                 "",
                                 fmt::format("is larger than {} MiB, the limit", kMaxDocumentBytes >> 20),
                                 "Is it the file you meant?",
                                 ""});
  text = join_surrogates(checked_utf8(std::move(text), file_name));
  const auto source = std::make_shared<const SourceText>(file_name, std::move(text));
  Value root = parse(source, "", true, dialect);
  if (root.is_null()) root = Value::null({source, 0, 0}, "");
  return {root, file_name};
}

Value parse_fragment(std::string text, const std::string& origin, const std::string& path) {
  const auto source = std::make_shared<const SourceText>(origin, checked_utf8(std::move(text), origin));
  Value value = parse(source, path, false, Dialect::strict);
  return value.place().source ? value : Value::null({source, 0, 0}, path);
}

}  // namespace rehearse::config
