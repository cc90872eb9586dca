// Which branches of a shell script are read: if, elif, else and fi, as far as the script's own variables decide.
// Leaves out loops, functions and `case`, whose words are read as they come.
#pragma once

#include <optional>
#include <vector>

#include "sim/importers/shell_words.h"

namespace rehearse::importers {

/// What a condition between `if` and `then` comes to, from its words: [ ], [[ ]] and test with = == != -eq -ne -lt -le -gt
/// -ge -z -n, !, && and ||. Nullopt where it asks for a file, a command, or a variable that nobody set.
std::optional<bool> truth_of(const std::vector<ShellWord>& condition);

/// The branches around a place of a script. A branch is read unless its condition, or one before it, says otherwise:
/// where nothing decides, all of them are.
class ShellChoices {
 public:
  bool reads() const;
  /// Is what is read here what a shell would take?
  bool certain() const;
  bool any() const { return !open_.empty(); }
  /// `if` with what its condition came to.
  void enter(std::optional<bool> condition);
  void otherwise(std::optional<bool> condition);   // elif
  void otherwise();                                // else
  void leave();                                    // fi

 private:
  struct Choice {
    bool reads = true;     // the branch that is open
    bool settled = false;  // one of the branches so far is the one that a shell takes
    bool decided = true;   // all conditions so far came to something
  };
  std::vector<Choice> open_;
};

}  // namespace rehearse::importers
