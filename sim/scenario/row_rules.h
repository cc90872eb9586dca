// Rules that say what rows of tables of measured runs mean, as data: sim/scenario/readings/<name>.yaml. A rule has a condition
// on a row's cells, and what holds where it is met: a name (of a profile, a GPU, a node design), keys of the framework
// profile, of the scenario or of the model, a note. Leaves out who asks, and in which order (measured_setup.h).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/csv.h"
#include "sim/config/value.h"

namespace rehearse::scenario {

/// What rules look at: a row's cells by their columns, `about` (source and note) and what has been found out so far.
class RowFacts {
 public:
  explicit RowFacts(const config::CsvRow& row) : row_(row) {}
  /// A fact beside the row's cells, or in place of one.
  RowFacts& with(const std::string& name, const std::string& text);
  /// In small letters; "" where the row has no such column.
  const std::string& text(const std::string& name) const;

 private:
  config::CsvRow row_;
  mutable std::map<std::string, std::string> texts_;
};

using Release = std::array<int, 3>;

/// The first "1.2" or "1.2.3" that follows `name` ("peft 0.7.1", "DeepSpeed v0.9"), at the start of the text where `name` is
/// empty. All in small letters.
std::optional<Release> release_after(const std::string& text, const std::string& name);

/// The first "2024-06-12" or "2024-06" in the text, as a release of three parts; a month stands for its first day.
std::optional<Release> first_date(const std::string& text);

/// What one text must be; all that is given must hold. Words are looked for in any case of letters.
struct TextTest {
  std::vector<std::string> is;      // one of these, by letters and digits alone
  std::vector<std::string> has;     // holds one of these
  std::vector<std::string> also;    // and one of these
  std::vector<std::string> lacks;   // none of these
  std::vector<std::string> starts;  // with one of these
  std::string matches;              // a regular expression (ECMAScript) that is found in it; its groups are {1}, {2}, ... of the rule
  std::optional<double> above;      // a number greater than this
  std::string from, before;         // "0.9": the release in it is that or a later one; an earlier one
  std::string release;              // what that release follows: "peft "; "": it stands at the start
  std::string earlier;              // "2024-06-12": the first date in it is an earlier day; a month stands for its first day
  std::regex pattern;               // of `matches`

  bool holds(const std::string& text, std::vector<std::string>& groups) const;
};

/// What a rule sets; null where it sets none.
struct RowKeys {
  config::Value profile;            // keys of the framework profile
  config::Value scenario;           // sections of a scenario file, model and cluster aside
  config::Value model;              // dropout, attention_dropout, embedding_norm, position
  config::Value cells;              // texts by column
};

struct RowRule {
  std::vector<std::map<std::string, TextTest>> when;   // by fact; one of the maps must hold
  std::string use;                  // the name that the rules of this file look for
  RowKeys keys;
  std::string note;                 // said beside the prediction
  std::string because;              // the source, or the reason

  bool holds(const RowFacts& facts, std::vector<std::string>& groups) const;
};

/// The rules of a file's content, in their order. Throws ConfigError with every mistake.
std::vector<RowRule> read_row_rules(const config::Value& root);
/// Those of sim/scenario/readings/<name>.yaml.
const std::vector<RowRule>& row_rules(const std::string& name);

/// `use` of the first rule that holds; "" where none does.
std::string first_use(const std::string& name, const RowFacts& facts);

/// Each rule that holds, with its keys, groups filled in.
void each_rule(const std::string& name, const RowFacts& facts, const std::function<void(const RowRule&, const RowKeys&)>& take);

}  // namespace rehearse::scenario
