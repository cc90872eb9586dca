// One import under way: typed access to the file's keys, and a ledger in which every key ends up exactly once.
// Leaves out what the keys of a framework mean (one file per framework).
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/reader.h"
#include "sim/importers/fragment.h"
#include "sim/importers/import_file.h"

namespace rehearse::importers {

/// A key that changes neither time nor memory of a step. `key` may end in '*', which stands for anything.
struct Ignored {
  std::string_view key;
  const char* why;
};

/// A key that would change the answer and cannot be simulated, unless its value is one of `off` (separated by '|').
struct Unsimulated {
  std::string_view key;
  std::string_view off;
  const char* what;
};

/// What is known of a framework's keys beyond those that its reader asks for.
struct Vocabulary {
  std::span<const Ignored> ignored;
  std::span<const Unsimulated> unsimulated;
  bool unset_is_off = false;   // the file lists every option: None and False of an unknown one mean that it is not used
  std::string needs = {};      // who needs the right kind of value, for messages: "DeepSpeed"
};

class Importer {
 public:
  /// `root` must be a map (ConfigError otherwise). Keys are the dotted ones of the file; what `context.without` names is gone.
  Importer(const config::Value& root, const Context& context, Vocabulary vocabulary);

  const Context& context() const { return context_; }
  const config::Value& root() const { return root_; }

  // Values of the file. null counts as absent, and so does what cannot be read as the type asked for (with a mistake).
  const config::Value* find(std::string_view key);
  bool has(std::string_view key) { return find(key) != nullptr; }
  std::optional<std::int64_t> integer(std::string_view key, const config::Limits& limits = config::any_value);
  /// As integer(); where only running the script would tell, what the scenario states for `scenario_key` stands in its place.
  std::optional<std::int64_t> integer_or_stated(std::string_view key, const std::string& scenario_key, const config::Limits& limits = config::any_value);
  /// Its text has variables that nobody sets, or what commands print.
  bool is_open(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> word(std::string_view key);
  /// Every key of the file below `prefix` (dotted), in file order.
  std::vector<std::string> keys_below(std::string_view prefix) const;

  /// What the user wrote for a key of the scenario itself; it wins over the file.
  std::optional<std::string> stated(const std::string& scenario_key) const;
  std::optional<std::int64_t> stated_integer(const std::string& scenario_key) const;

  // The ledger. Each call also says what became of the file's key.
  void set(const std::string& scenario_key, const std::string& value, std::string_view because_of, const std::string& note = {});
  void set_list(const std::string& scenario_key, const std::vector<std::string>& items, std::string_view because_of);
  /// Sets a key that the file says nothing of.
  void assume(const std::string& scenario_key, const std::string& value, const std::string& why);
  /// The key was read and needs no key of ours.
  void use(std::string_view key, const std::string& note);
  void ignore(std::string_view key, const std::string& why);
  /// The key is one that the importer cannot follow; --strict refuses it.
  void leave(std::string_view key, const std::string& why);
  void refuse(std::string_view key, const std::string& what, const std::string& fix = {});
  /// A mistake in the key's value; when it is absent, in the file.
  void complain(std::string_view key, const std::string& problem, const std::string& fix = {});
  /// Something that no key of the file states.
  void remark(const std::string& key, const std::string& note) { report_.assumed.push_back({{}, key, note}); }

  /// Takes over another import whose keys lie below this one's: own keys win.
  void add(const Imported& other);
  /// Takes over the file in `format` that `key` names; relative names begin where context().beside says. A file that cannot be
  /// read is a mistake of `key` (false); mistakes inside it are thrown (ConfigError), as import_file throws them.
  bool add_file(std::string_view key, const std::string& format, const Context& inside);
  Fragment& fragment() { return fragment_; }

  /// Sorts what is left into ignored, not simulated and not understood. Throws ConfigError with the mistakes.
  Imported finish(const std::string& framework);

 private:
  struct Leaf {
    std::string key;
    config::Value value;
    bool asked = false, settled = false;
  };
  void flatten(const config::Value& value, const std::string& key);
  Leaf* leaf(std::string_view key);
  void settle(std::string_view key);
  config::Place place_of(std::string_view key);
  SourceLocation location_of(std::string_view key) { return place_of(key).location(); }
  bool leave_out(const std::string& key) const;
  /// A key that is missing and one that is unknown may be the same, misspelt: the mistake is then where that stands.
  void look_for_slips(const std::vector<const Leaf*>& unknown);
  std::optional<std::string> near_key(const std::string& key, std::size_t before);

  config::Value root_;
  const Context& context_;
  Vocabulary vocabulary_;
  std::vector<Leaf> leaves_;
  std::map<std::string, std::size_t, std::less<>> by_key_;
  std::set<std::string> asked_;
  Fragment fragment_;
  model::ImportReport report_;
  std::vector<Diagnostic> unsimulated_;
  config::Diagnostics mistakes_;
};

/// The product of positive numbers, at most 10^15: what lies beyond is refused later, as a batch that no run has.
std::int64_t bounded_product(std::initializer_list<std::int64_t> factors);

/// What the report says of a key in `context.without`.
inline constexpr const char* kLeftOut = "left out, as asked";

/// For messages: both ways to leave a key of a file out.
std::string how_to_leave_out(std::string_view key);

/// A scalar as true or false in any of YAML's, JSON's, Python's and TOML's spellings.
std::optional<bool> parse_flag(std::string_view text);

}  // namespace rehearse::importers
