// Which branches of a shell script are read: if, elif, else and fi, case and esac, as far as the script's own variables decide.
// Leaves out loops and functions, whose words are read as they come.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/importers/shell_words.h"

namespace rehearse::importers {

/// What a condition between `if` and `then` comes to, from its words: [ ], [[ ]] and test with = == != -eq -ne -lt -le -gt
/// -ge -z -n, !, && and ||. Nullopt where it asks for a file, a command, or a variable that nobody set.
std::optional<bool> truth_of(const std::vector<ShellWord>& condition);

/// Does one of a branch's patterns stand for the subject of a `case`? Nullopt where only running the script would tell.
std::optional<bool> matches(const std::string& subject, const std::vector<std::string>& patterns);

/// The branches around a place of a script. A branch is read unless its condition, or one before it, says otherwise:
/// where nothing decides, all of them are.
class ShellChoices {
 public:
  bool reads() const;
  /// Is what is read here what a shell would take?
  bool certain() const;
  bool any() const { return !open_.empty(); }
  /// `if`, or a `case`'s first pattern, with what its condition came to.
  void enter(std::optional<bool> condition);
  void otherwise(std::optional<bool> condition);   // elif, further patterns
  void otherwise();                                // else
  void leave();                                    // fi, esac

 private:
  struct Choice {
    bool reads = true;     // the branch that is open
    bool settled = false;  // one of the branches so far is the one that a shell takes
    bool decided = true;   // all conditions so far came to something
  };
  std::vector<Choice> open_;
};

}  // namespace rehearse::importers
