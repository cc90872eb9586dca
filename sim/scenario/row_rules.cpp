#include "sim/scenario/row_rules.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "sim/config/document.h"
#include "sim/config/fields.h"
#include "sim/core/remembered.h"
#include "sim/core/resources.h"
#include "sim/core/suggestion.h"
#include "sim/scenario/measured_row.h"

namespace rehearse::scenario {
namespace {

constexpr const char* kFolder = "sim/scenario/readings";

bool any_of(const std::vector<std::string>& words, const std::function<bool(const std::string&)>& holds) { return std::any_of(words.begin(), words.end(), holds); }

/// 0 where the text is no number.
double number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : 0;
}

/// "0.9" as 0.9.0; "25" as 25.0.0.
std::optional<Release> release_of_text(const std::string& text) {
  static const std::regex kRelease(R"(([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.([0-9]{1,4}))?)");
  std::smatch found;
  if (!std::regex_match(text, found, kRelease)) return std::nullopt;
  const auto part = [&](std::size_t i) { return found[i].matched ? std::stoi(found[i].str()) : 0; };
  return Release{part(1), part(2), part(3)};
}

/// What a rule may ask about: the columns of the contract (tests/accuracy/runs/README.md) and what is found out on the way.
const std::vector<std::string>& fact_names() {
  static const std::vector<std::string> names{
      "row_id", "task", "framework", "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "gated_mlp", "n_experts", "top_k", "moe_ffn_hidden", "shared_expert_ffn", "head_dim", "tie_embeddings",
      "seq_len", "params", "gpu", "n_gpus", "gpus_per_node", "interconnect", "tp", "sp", "pp", "vpp", "pp_schedule", "dp", "cp", "ep", "etp", "sharding", "micro_batch", "global_batch", "grad_accum", "precision",
      "recompute", "attention", "optimizer", "offload", "lora_rank", "lora_targets", "torch_compile", "cuda_graph", "outcome", "peak_mem_kind", "after_pp_fix", "source", "note", "model_args_json", "about", "profile", "release", "experts", "sharded"};
  return names;
}

/// One text stands for a list of it.
void read_words(const config::Value& value, std::vector<std::string>& words, config::FieldReader& reader) {
  const auto take = [&](const config::Value& item) {
    if (const std::string* text = reader.scalar(item, "a text", true)) words.push_back(*text);
  };
  if (value.is_list()) config::read_list(value, "texts", reader, take);
  else take(value);
}

config::Field<TextTest> words(const char* name, std::vector<std::string> TextTest::*member, const char* doc) {
  return config::custom<TextTest>(name, doc, "text or list of text", "{}", [member](const config::Value& v, TextTest& test, config::FieldReader& reader) { read_words(v, test.*member, reader); });
}

const config::Fields<TextTest>& test_fields() {
  using T = TextTest;
  static const config::Fields<T> table{
      words("is", &T::is, "one of these, by letters and digits alone"),
      words("has", &T::has, "holds one of these"),
      words("also", &T::also, "holds one of these as well"),
      words("lacks", &T::lacks, "holds none of these"),
      words("starts", &T::starts, "starts with one of these"),
      config::text("matches", &T::matches, "a regular expression that is found in it"),
      config::number("above", &T::above, "a number greater than this"),
      config::text("from", &T::from, "the release in it is this one or a later one"),
      config::text("before", &T::before, "the release in it is an earlier one"),
      config::text("release", &T::release, "what that release follows; else it stands at the start"),
      config::text("earlier", &T::earlier, "the first date in it is before this day"),
  };
  return table;
}

TextTest read_test(const config::Value& value, config::FieldReader& reader) {
  TextTest test;
  if (value.is_map()) config::read_table(value, *test_fields().table(), &test, reader);
  else read_words(value, test.is, reader);
  for (std::vector<std::string>* words : {&test.has, &test.also, &test.lacks, &test.starts})
    for (std::string& word : *words) word = lower(word);
  for (std::string& word : test.is) word = plain_name(word);
  for (const std::string* bound : {&test.from, &test.before})
    if (!bound->empty() && !release_of_text(*bound)) reader.complain(value, "'" + *bound + "' is no release", "Write 0.9 or 0.14.1");
  if (!test.earlier.empty() && !first_date(test.earlier)) reader.complain(value, "'" + test.earlier + "' is no date", "Write 2024-06-12 or 2024-06");
  try {
    test.pattern = std::regex(test.matches, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& wrong) {
    reader.complain(value, "'" + test.matches + "' is no regular expression", wrong.what());
  }
  return test;
}

std::map<std::string, TextTest> read_condition(const config::Value& value, config::FieldReader& reader) {
  std::map<std::string, TextTest> condition;
  config::read_map(value, reader, [&](const config::Value::Entry& e) {
    const auto& known = fact_names();
    if (std::find(known.begin(), known.end(), e.key) == known.end()) reader.complain(e.value, "rows have no '" + e.key + "'", did_you_mean(e.key, known, "Write a column of the table, about, profile or release"));
    condition[e.key] = read_test(e.value, reader);
  });
  return condition;
}

config::Field<RowRule> keys(const char* name, config::Value RowKeys::*member, const char* doc) {
  return config::custom<RowRule>(name, doc, "map", R"({"type": "object"})", [member](const config::Value& v, RowRule& rule, config::FieldReader&) { rule.keys.*member = v; });
}

const config::Fields<RowRule>& rule_fields() {
  using R = RowRule;
  static const config::Fields<R> table{
      config::custom<R>("when", "what the row's cells must be: a map from columns to tests, or a list of such maps of which one must hold", "map or list of maps", "{}",
                        [](const config::Value& v, R& rule, config::FieldReader& reader) {
                          if (v.is_list()) config::read_list(v, "maps", reader, [&](const config::Value& item) { rule.when.push_back(read_condition(item, reader)); });
                          else rule.when.push_back(read_condition(v, reader));
                        }).required(),
      config::text("use", &R::use, "the name to take"),
      keys("profile", &RowKeys::profile, "keys of the framework profile"),
      keys("scenario", &RowKeys::scenario, "sections of the scenario"),
      keys("model", &RowKeys::model, "keys of the model"),
      keys("cells", &RowKeys::cells, "what the row's cells hold"),
      config::text("note", &R::note, "what to say beside the prediction"),
      config::text("because", &R::because, "source or reason"),
  };
  return table;
}

struct Readings {
  std::string title;
  std::vector<RowRule> rules;
};

/// "{1}" in the texts of a value is what the first group of the rule's expression found.
config::Value filled(const config::Value& value, const std::vector<std::string>& groups) {
  if (value.is_map()) {
    std::vector<config::Value::Entry> entries = value.entries();
    for (config::Value::Entry& entry : entries) entry.value = filled(entry.value, groups);
    return config::Value::map(std::move(entries), value.place(), value.path());
  }
  std::string text = value.text();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string place = "{" + std::to_string(i + 1) + "}";
    if (const std::size_t at = text.find(place); at != std::string::npos) text.replace(at, place.size(), groups[i]);
  }
  return value.is_scalar() && text != value.text() ? config::Value::scalar(text, false, value.place(), value.path()) : value;
}

}  // namespace

RowFacts& RowFacts::with(const std::string& name, const std::string& text) {
  texts_[name] = lower(text);
  return *this;
}

const std::string& RowFacts::text(const std::string& name) const {
  const auto known = texts_.find(name);
  if (known != texts_.end()) return known->second;
  const std::string text = name == "about" ? cell(row_, "source") + " " + cell(row_, "note") : cell(row_, name);
  return texts_.emplace(name, lower(text)).first->second;
}

std::optional<Release> release_after(const std::string& text, const std::string& name) {
  static const std::regex kRelease(R"(^v?([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?)");
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    std::smatch found;
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(at + name.size());
    if (std::regex_search(from, text.end(), found, kRelease)) return Release{std::stoi(found[1].str()), std::stoi(found[2].str()), found[3].matched ? std::stoi(found[3].str()) : 0};
    if (name.empty()) break;
  }
  return std::nullopt;
}

std::optional<Release> first_date(const std::string& text) {
  static const std::regex kDate(R"(\b(20[0-9]{2})-(0[1-9]|1[0-2])(?:-(0[1-9]|[12][0-9]|3[01]))?\b)");
  std::smatch found;
  if (!std::regex_search(text, found, kDate)) return std::nullopt;
  return Release{std::stoi(found[1].str()), std::stoi(found[2].str()), found[3].matched ? std::stoi(found[3].str()) : 1};
}

bool TextTest::holds(const std::string& text, std::vector<std::string>& groups) const {
  const auto within = [&](const std::string& word) { return contains(text, word); };
  if (!is.empty() && std::find(is.begin(), is.end(), plain_name(text)) == is.end()) return false;
  if (!has.empty() && !any_of(has, within)) return false;
  if (!also.empty() && !any_of(also, within)) return false;
  if (any_of(lacks, within)) return false;
  if (!starts.empty() && !any_of(starts, [&](const std::string& word) { return text.starts_with(word); })) return false;
  if (above && !(number_of(text) > *above)) return false;
  if (!from.empty() || !before.empty()) {
    const std::optional<Release> found = release_after(text, lower(release));
    if (!found || (!from.empty() && *found < *release_of_text(from)) || (!before.empty() && *found >= *release_of_text(before))) return false;
  }
  if (!earlier.empty()) {
    const std::optional<Release> day = first_date(text);
    if (!day || *day >= *first_date(earlier)) return false;
  }
  std::smatch found;
  if (matches.empty()) return true;
  if (!std::regex_search(text, found, pattern)) return false;
  for (std::size_t i = 1; i < found.size(); ++i) groups.push_back(found[i].str());
  return true;
}

bool RowRule::holds(const RowFacts& facts, std::vector<std::string>& groups) const {
  return std::any_of(when.begin(), when.end(), [&](const std::map<std::string, TextTest>& condition) {
    groups.clear();
    return std::all_of(condition.begin(), condition.end(), [&](const auto& test) { return test.second.holds(facts.text(test.first), groups); });
  });
}

std::vector<RowRule> read_row_rules(const config::Value& root) {
  static const config::Fields<Readings> table{
      config::text("title", &Readings::title, "what the rules find").required(),
      config::list_of("rules", &Readings::rules, "in their order", rule_fields()).required(),
  };
  config::Diagnostics problems;
  Readings out = config::read(root, table, problems);
  config::throw_if_any(std::move(problems));
  return std::move(out.rules);
}

const std::vector<RowRule>& row_rules(const std::string& name) {
  static Remembered<std::string, std::vector<RowRule>> all;
  return all.get(name, [&] { return read_row_rules(config::load_document(resource_root() / kFolder / (name + ".yaml")).root); });
}

std::string first_use(const std::string& name, const RowFacts& facts) {
  std::vector<std::string> groups;
  for (const RowRule& rule : row_rules(name))
    if (rule.holds(facts, groups)) return rule.use;
  return "";
}

void each_rule(const std::string& name, const RowFacts& facts, const std::function<void(const RowRule&, const RowKeys&)>& take) {
  std::vector<std::string> groups;
  for (const RowRule& rule : row_rules(name)) {
    if (!rule.holds(facts, groups)) continue;
    if (groups.empty()) take(rule, rule.keys);
    else take(rule, {filled(rule.keys.profile, groups), filled(rule.keys.scenario, groups), filled(rule.keys.model, groups), filled(rule.keys.cells, groups)});
  }
}

}  // namespace rehearse::scenario
