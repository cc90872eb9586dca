// The words of a shell script with their places, variables filled in. Leaves out running anything: commands and loops are
// words like others; of branches see shell_choices.h.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace rehearse::importers {

struct ShellWord {
  std::string text;
  int line = 1, column = 1;
  bool same_line = false;   // no line break since the word before, continued lines aside
  bool ends_list = false;   // a closing bracket, semicolon or pipe
};

/// Variables that come from outside: the environment's, and the script's arguments as "1", "2" and so on.
using ShellVariables = std::map<std::string, std::string>;

struct ShellText {
  std::vector<ShellWord> words;
  std::map<std::string, ShellWord> variables;   // what NAME=value set last, where a shell certainly comes by
  std::set<std::string> used;   // of the variables from outside
  int shifts = 0;               // line where the script takes its arguments apart, 0: it does not
};

/// The inside of a text in one pair of quotes, as in ${NODES:-"1"}; other texts as they are.
std::string without_quotes(std::string text);

/// Words of at most 64 KiB after substitution; unknown variables stay as they are written. Branches that the variables rule
/// out are left out, and so is what echo and printf say.
ShellText shell_words(const std::string& text, const ShellVariables& given = {});

}  // namespace rehearse::importers
