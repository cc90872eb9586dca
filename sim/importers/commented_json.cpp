#include "sim/config/document.h"
#include "sim/importers/readers.h"

namespace rehearse::importers {

config::Value parse_commented_json(std::string text, const std::string& file_name) {
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (quote != 0) {
      if (c == '\\') ++i;
      else if (c == quote) quote = 0;
    } else if (c == '"') {
      quote = c;
    } else if (c == '/' && next == '/') {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (c == '#') {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (c == '/' && next == '*') {
      const std::size_t end = text.find("*/", i + 2);
      if (end == std::string::npos) break;  // the parser will say where it stops
      for (; i < end + 2; ++i)
        if (text[i] != '\n') text[i] = ' ';
      --i;
    }
  }
  return config::parse_document(std::move(text), file_name).root;
}

}  // namespace rehearse::importers
