// The words of a shell script with their places, variables filled in. Leaves out running anything: commands are words like
// others, and so are loops that do not count; of branches see shell_choices.h.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/config/text_file.h"

namespace rehearse::importers {

struct ShellWord {
  std::string text;
  int line = 1, column = 1;
  bool same_line = false;   // no line break since the word before, continued lines aside
  bool ends_list = false;   // a closing bracket, semicolon or pipe
  std::size_t text_of = 0;  // which of ShellText::texts it stands in
};

/// Variables that come from outside: the environment's, and the script's arguments as "1", "2" and so on.
using ShellVariables = std::map<std::string, std::string>;

/// A file that the script sources, as it is written there.
struct SourcedFile {
  ShellWord name;
  std::string problem;      // why it was not read; empty: it was
};

struct ShellText {
  std::vector<std::shared_ptr<const config::SourceText>> texts;   // the script, then each file that it sources
  std::vector<ShellWord> words;
  std::map<std::string, ShellWord> variables;   // what NAME=value set last, where a shell certainly comes by
  std::set<std::string> used;   // of the variables from outside
  std::vector<SourcedFile> sourced;
  int shifts = 0;               // line where the script takes its arguments apart, 0: it does not
};

/// The inside of a text in one pair of quotes, as in ${NODES:-"1"}; other texts as they are.
std::string without_quotes(std::string text);

/// Words of at most 64 KiB after substitution; unknown variables stay as they are written. Branches that the variables rule
/// out are left out, and so is what echo and printf say. Files that it sources are read where they lie beside `file_name`.
ShellText shell_words(const std::string& text, const std::string& file_name, const ShellVariables& given = {});

}  // namespace rehearse::importers
