#include "sim/importers/argument_text.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "sim/importers/batch_lines.h"

namespace rehearse::importers {

using config::Place;
using config::SourceText;
using config::Value;

namespace {

std::string argument_name(std::string_view flag) {
  while (flag.starts_with('-')) flag.remove_prefix(1);
  std::string name(flag);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Name -> value, the last one wins; in the order of first appearance.
class Arguments {
 public:
  explicit Arguments(Place origin) : origin_(std::move(origin)) {}
  void set(const std::string& name, Place key_place, Value value) {
    if (name.empty()) return;
    const auto [it, fresh] = index_.emplace(name, entries_.size());
    if (fresh) entries_.push_back({name, std::move(key_place), std::move(value)});
    else entries_[it->second] = {name, std::move(key_place), std::move(value)};
  }
  Value take() { return Value::map(std::move(entries_), origin_, ""); }

 private:
  Place origin_;
  std::vector<Value::Entry> entries_;
  std::map<std::string, std::size_t> index_;
};

bool is_flag(const ShellWord& w) { return w.text.size() > 2 && w.text.starts_with("--") && w.text[2] != '-'; }

/// `-x` of another program; a negative number is a value.
bool is_short_flag(const ShellWord& w) { return w.text.size() > 1 && w.text[0] == '-' && ((w.text[1] >= 'a' && w.text[1] <= 'z') || (w.text[1] >= 'A' && w.text[1] <= 'Z')); }

/// The program that a launcher starts stands behind the launcher's last value: torchrun --nproc_per_node 8 pretrain_gpt.py
bool is_program(const ShellWord& w) { return w.text.ends_with(".py"); }

std::string file_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// A script may call others before and after: they make data and convert checkpoints.
bool trains(const std::string& program) { return program.starts_with("pretrain") || program.starts_with("train") || program.starts_with("finetune"); }

/// What programs beside training are called for, as far as their names tell.
bool does_something_else(const std::string& path) {
  const std::string program = file_of(path);
  for (const char* word : {"generat", "inference", "server", "preprocess", "convert", "quantize", "export", "eval", "prompt"})
    if (program.find(word) != std::string::npos) return true;
  // Megatron's tasks/main.py and its like evaluate, prompt and fine-tune encoders.
  return program == "main.py" && ("/" + path).find("/tasks/") != std::string::npos;
}

/// `python -m examples.inference.offline_inference`, or torchrun ... -m: a module is a program too.
std::string module_path(const std::vector<ShellWord>& words, std::size_t i) {
  if (words[i].text != "-m" || i + 1 >= words.size() || !words[i + 1].same_line) return {};
  bool starts = false;
  for (std::size_t j = i; j > 0 && words[j].same_line && !starts; --j) starts = file_of(words[j - 1].text).starts_with("python") || file_of(words[j - 1].text) == "torchrun";
  if (!starts) return {};
  std::string path = words[i + 1].text;
  if (path.starts_with("torch.") || path.starts_with("-")) return {};
  std::replace(path.begin(), path.end(), '.', '/');
  return path + ".py";
}

bool is_name_character(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

/// The files as a map: name -> why it was not read, empty where it was.
Value sourced_files(const ShellText& script) {
  std::vector<Value::Entry> entries;
  for (const SourcedFile& f : script.sourced) {
    const std::string name = f.name.text == "$" ? "$(...)" : f.name.text;
    if (std::any_of(entries.begin(), entries.end(), [&](const Value::Entry& e) { return e.key == name; })) continue;
    const Place at{script.texts[f.name.text_of], f.name.line, f.name.column};
    entries.push_back({name, at, Value::scalar(f.problem, true, at, config::child_path(kSourced, name))});
  }
  const Place first = entries.front().key_place;
  return Value::map(std::move(entries), first, kSourced);
}

constexpr std::string_view kBegin = " arguments ---", kEnd = " end of arguments ---";

}  // namespace

Value parse_command_line(const std::string& text, const std::string& file_name, const ShellVariables& given) {
  const ShellText script = shell_words(text, file_name, given);
  const std::vector<ShellWord>& words = script.words;
  const auto place = [&](const ShellWord& w) { return Place{script.texts[w.text_of], w.line, w.column}; };
  const std::shared_ptr<const SourceText>& source = script.texts.front();
  Arguments out({source, 1, 1});
  for (const BatchOption& o : batch_options(text)) {
    const Place at{source, o.line, o.column};
    out.set(kBatchPrefix + o.name, at, Value::scalar(o.value, false, at, kBatchPrefix + o.name));
  }
  const bool training = std::any_of(words.begin(), words.end(), [](const ShellWord& w) { return is_program(w) && trains(file_of(w.text)); });
  for (std::size_t i = 0; i < words.size(); ++i) {
    const Place at = place(words[i]);
    const std::string file = file_of(words[i].text);
    if (const std::string module = module_path(words, i); !training && does_something_else(module)) out.set(kProgram, at, Value::scalar(file_of(module), false, at, kProgram));
    if (is_program(words[i]) && (training ? trains(file) : does_something_else(words[i].text))) out.set(kProgram, at, Value::scalar(file == "main.py" ? words[i].text : file, false, at, kProgram));
    if (!is_flag(words[i])) continue;
    std::string flag = words[i].text;
    std::vector<Value> values;
    if (const auto equals = flag.find('='); equals != std::string::npos) {
      values.push_back(Value::scalar(flag.substr(equals + 1), false, at, ""));
      flag.resize(equals);
    } else {
      const auto is_value = [](const ShellWord& w) { return w.same_line && !w.ends_list && !is_flag(w) && !is_short_flag(w) && !is_program(w); };
      for (; i + 1 < words.size() && is_value(words[i + 1]); ++i)
        values.push_back(Value::scalar(words[i + 1].text, false, place(words[i + 1]), ""));
    }
    const std::string name = argument_name(flag);
    if (values.empty()) out.set(name, at, Value::scalar("true", false, at, name));
    else if (values.size() == 1) out.set(name, at, Value::scalar(values[0].text(), false, values[0].place(), name));
    else out.set(name, at, Value::list(std::move(values), at, name));
  }
  for (const char* name : kEnvironment)
    if (const auto set = script.variables.find(name); set != script.variables.end()) {
      const Place at = place(set->second);
      out.set(name, at, Value::scalar(set->second.text, false, at, name));
    }
  if (!script.sourced.empty()) out.set(kSourced, place(script.sourced.front().name), sourced_files(script));
  return out.take();
}

bool has_argument_dump(const std::string& text) {
  for (std::size_t at = text.find(kBegin); at != std::string::npos; at = text.find(kBegin, at + 1))
    if (at > 0 && text[at - 1] == '-') return true;
  return false;
}

Value parse_argument_dump(const std::string& text, const std::string& file_name) {
  if (!has_argument_dump(text)) return {};
  const auto source = std::make_shared<const SourceText>(file_name, text);
  Arguments out({source, 1, 1});
  bool inside = false;
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = source->line(number);
    begin = end + 1;
    if (line.find(kEnd) != std::string_view::npos) {
      inside = false;
      continue;
    }
    if (line.find("- arguments -") != std::string_view::npos) {
      inside = true;
      continue;
    }
    if (!inside) continue;
    // "  name ..... value"; a name too long for dots is followed by two spaces.
    std::size_t gap = line.find(" ..");
    std::size_t value_at = gap == std::string_view::npos ? gap : line.find_first_not_of('.', gap + 1);
    if (gap == std::string_view::npos) {
      const std::size_t name_end = line.find_last_not_of(' ', line.find("  ", line.find_first_not_of(' ') == std::string_view::npos ? 0 : line.find_first_not_of(' ')));
      if (name_end == std::string_view::npos || name_end + 1 >= line.size()) continue;
      gap = value_at = name_end + 1;
    }
    std::size_t name_begin = gap;
    while (name_begin > 0 && is_name_character(line[name_begin - 1])) --name_begin;
    if (name_begin == gap) continue;
    if (value_at == std::string_view::npos) value_at = line.size();
    value_at = std::min(line.find_first_not_of(' ', value_at), line.size());
    std::string value(line.substr(value_at));
    while (!value.empty() && value.back() == ' ') value.pop_back();
    const std::string name = argument_name(line.substr(name_begin, gap - name_begin));
    const Place at{source, number, static_cast<int>(name_begin) + 1};
    out.set(name, at, Value::scalar(std::move(value), false, at, name));
  }
  return out.take();
}

namespace {

void flatten(const Value& tree, Arguments& out, int depth) {
  for (const Value::Entry& e : tree.entries()) {
    if (e.value.is_map() && depth < 8) flatten(e.value, out, depth + 1);
    else out.set(argument_name(e.key), e.key_place, e.value);
  }
}

}  // namespace

Value flat_arguments(const Value& tree) {
  Arguments out(tree.place());
  flatten(tree, out, 0);
  return out.take();
}

}  // namespace rehearse::importers
