#include "sim/importers/shell_words.h"

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <string_view>
#include <tuple>
#include <utility>

#include "sim/config/document.h"
#include "sim/importers/batch_lines.h"
#include "sim/importers/shell_arithmetic.h"
#include "sim/importers/shell_choices.h"
#include "sim/importers/shell_commands.h"

namespace rehearse::importers {
namespace {

constexpr std::size_t kMaxWord = 64 << 10;
constexpr std::size_t kMaxCondition = 100;   // words
constexpr const char* kBlank = " \t\r\n";

/// Where arguments begin in a text: two dashes and a letter, at its beginning or after a blank. npos: it has none.
std::size_t arguments_in(std::string_view text, std::size_t from = 0) {
  for (std::size_t at = text.find("--", from); at != std::string_view::npos; at = text.find("--", at + 1)) {
    const bool begins = at == from || std::string_view(kBlank).find(text[at - 1]) != std::string_view::npos;
    const char next = at + 2 < text.size() ? text[at + 2] : '\0';
    if (begins && ((next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z'))) return at;
  }
  return std::string_view::npos;
}

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

class Script {
 public:
  Script(const std::string& text, const std::string& file_name, const ShellVariables& given) : text_(text), given_(given), batch_(batch_variables(batch_options(text))) {
    out_.texts.push_back(std::make_shared<const config::SourceText>(file_name, text));
  }

  ShellText read() {
    read_text();
    no_condition();
    no_case();
    return std::move(out_);
  }

 private:
  void read_text() {
    do {
      while (at_ < text_.size()) {
        step();
        follow();
      }
      finish();
      follow();
    } while (at_ < text_.size());
  }
  /// What the last word asks for: another file, a loop's beginning, or its next turn.
  void follow() {
    if (const ShellWord file = std::exchange(file_, {}); !file.text.empty()) include(file);
    if (std::exchange(loop_begins_, false)) begin_loop();
    if (std::exchange(loop_turns_, false)) turn_loop();
  }

  const std::string& script_name() const { return out_.texts[text_number_]->file(); }

  /// `source FILE`: its words and variables stand in this script.
  void include(const ShellWord& name) {
    constexpr std::size_t kDeepest = 8, kMostFiles = 64, kMostNames = 1000;
    if (out_.sourced.size() >= kMostNames) return;
    const std::string &here = script_name(), &main = out_.texts.front()->file();
    const auto path = sourced_file(name.text, here, main);
    const auto refuse = [&](const std::string& why) { out_.sourced.push_back({name, why}); };
    if (!path) return refuse(name.text.find_first_of("$`") != std::string::npos ? "only running the script would tell which file it is" : "it is not there");
    if (std::find(including_.begin(), including_.end(), path->string()) != including_.end() || *path == std::filesystem::path(main).lexically_normal()) return refuse("it is being read already");
    if (including_.size() >= kDeepest || out_.texts.size() >= kMostFiles) return refuse("too many files source others");
    std::string content;
    try {
      content = config::checked_utf8(config::read_text_file(*path, config::kMaxDocumentBytes), path->string());
    } catch (const ConfigError& e) {
      return refuse(e.diagnostics().front().problem);
    }
    out_.sourced.push_back({name, ""});
    including_.push_back(path->string());
    const auto before = std::tuple(text_number_, at_, line_, column_, line_break_, begins_command_);
    const std::vector<Loop> loops = std::exchange(loops_, {});
    text_number_ = out_.texts.size();
    out_.texts.push_back(std::make_shared<const config::SourceText>(path->string(), content));
    const std::string outer = std::exchange(text_, std::move(content));
    at_ = 0;
    line_ = column_ = 1;
    line_break_ = begins_command_ = true;
    read_text();
    text_ = outer;
    std::tie(text_number_, at_, line_, column_, line_break_, begins_command_) = before;
    loops_ = loops;
    including_.pop_back();
  }

  /// for ((i = 0; i < N; i++)); do ... done: its words are read once for each turn, where the numbers are known.
  struct Loop {
    std::size_t at;
    int line, column;
    std::string name, condition;
    std::int64_t step = 1;
    int inner = 0;   // loops inside that are open
  };
  void begin_loop() {
    static const std::regex kHead(R"(\s*\(\(\s*(\w+)\s*=([^;]{1,40});([^;]{1,80});\s*(?:\+\+(\w+)|(\w+)\s*\+\+|(\w+)\s*\+=\s*(\d{1,6}))\s*\)\)\s*;?\s*do\b)");
    std::smatch m;
    const std::string head = text_.substr(at_, 300);
    if (!std::regex_search(head, m, kHead, std::regex_constants::match_continuous)) return;
    const std::string name = m[1], stepped = m[4].str() + m[5].str() + m[6].str();
    const auto first = arithmetic_value(expand(m[2]));
    if (!first || stepped != name) return;
    auto with_first = variables_;
    with_first[name] = std::to_string(*first);
    variables_.swap(with_first);
    const auto enters = arithmetic_value(expand(m[3]));
    if (!enters) return variables_.swap(with_first);
    open_variables_.erase(name);
    for (auto left = m[0].length(); left > 0; --left) advance();
    choices_.enter(*enters != 0);
    line_break_ = begins_command_ = true;
    loops_.push_back({at_, line_, column_, name, m[3], m[7].matched ? std::stoll(m[7]) : 1});
  }
  /// At `done`.
  void turn_loop() {
    constexpr std::size_t kMostReread = 1 << 20;   // characters, of all loops together
    Loop& loop = loops_.back();
    const auto value = arithmetic_value(variables_[loop.name]);
    if (std::int64_t next = 0; choices_.reads() && value && !__builtin_add_overflow(*value, loop.step, &next)) {
      variables_[loop.name] = std::to_string(next);
      const auto again = arithmetic_value(expand(loop.condition));
      reread_ += at_ - loop.at + 1;
      if (again.value_or(0) != 0 && reread_ < kMostReread) {
        at_ = loop.at;
        line_ = loop.line;
        column_ = loop.column;
        line_break_ = begins_command_ = true;
        return;
      }
    }
    choices_.leave();
    loops_.pop_back();
  }

  /// NAME=( or NAME+=(, at the bracket. A list that conditions leave open has no value.
  void begin_array(const std::string& word) {
    const bool adds = word.ends_with("+=");
    const std::string name = word.substr(0, word.size() - (adds ? 2 : 1));
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_name) || !choices_.reads()) return;
    array_ = name;
    const bool fresh = !arrays_.contains(name);
    auto& list = arrays_[name];
    if (!choices_.certain()) list.reset();
    else if (!adds || fresh) list.emplace();
  }
  void add_to_array(const ShellWord& word) {
    if (array_.empty() || word.text == "(") return;
    constexpr std::size_t kMostElements = 10'000;
    auto& list = arrays_[array_];
    if (word.ends_list) array_.clear();
    else if (list && (list->size() >= kMostElements || word.text.find_first_of("$`") != std::string::npos)) list.reset();
    else if (list) list->push_back(word.text);
  }

  /// printf -v NAME FORMAT VALUE, with one %s.
  void print_to_variable() {
    if (said_.size() != 4 || said_[0] != "-v" || !choices_.reads()) return;
    std::string text = said_[2];
    const std::size_t at = text.find("%s");
    if (at == std::string::npos || text.find('%', at + 1) != std::string::npos) return;
    text.replace(at, 2, said_[3]);
    assign(said_[1] + "=" + text);
  }

  /// A word of a command in $( ... ): a text with its variables, the script's own name, or an array with line breaks between.
  std::optional<std::string> value_of(std::string word) const {
    word = without_quotes(word);
    if (word.starts_with("$(")) {
      const std::size_t end = closing_bracket(word, 1);
      if (end == std::string::npos) return std::nullopt;
      const auto inside = printed_by(word.substr(2, end - 2), [this](const std::string& w) { return value_of(w); });
      return inside ? std::optional(*inside + word.substr(end + 1)) : std::nullopt;
    }
    const bool named = !script_name().empty();
    for (const char* mine : {"$BASH_SOURCE", "${BASH_SOURCE}", "${BASH_SOURCE[0]}", "${BASH_SOURCE:-$0}", "${BASH_SOURCE[0]:-$0}"})
      if (word == mine) return named ? std::optional(script_name()) : std::nullopt;
    if (word == "$0" || word == "${0}") return named ? std::optional(out_.texts.front()->file()) : std::nullopt;
    if (word.starts_with("${") && (word.ends_with("[*]}") || word.ends_with("[@]}"))) {
      const auto array = arrays_.find(word.substr(2, word.size() - 6));
      if (array == arrays_.end() || !array->second) return std::nullopt;
      std::string out;
      for (const std::string& element : *array->second) out += (out.empty() ? "" : "\n") + element;
      return out;
    }
    const std::string text = expand(word, false);
    return text.find_first_of("$`") == std::string::npos ? std::optional(text) : std::nullopt;
  }

  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void advance() {
    const char c = text_[at_++];
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++column_;
    }
  }
  void put(std::string_view piece) {
    begin();
    if (word_.size() + piece.size() > kMaxWord) return;
    word_ += piece;
    places_.resize(word_.size(), {line_, column_});
  }
  /// What an unquoted variable stands for: words, unless it is assigned to another.
  void put_words(const std::string& text, int line, int column) {
    const bool to_variable = !quoted_ && word_.find('=') != std::string::npos;
    for (std::size_t from = 0; from < text.size();) {
      const std::size_t to = to_variable ? text.size() : std::min(text.find_first_of(kBlank, from), text.size());
      if (to > from) {
        begin(line, column);
        put(std::string_view(text).substr(from, to - from));
      }
      if (to < text.size()) finish();
      from = to + 1;
    }
  }
  void begin() { begin(line_, column_); }
  void begin(int line, int column) {
    if (open_) return;
    open_ = true;
    word_line_ = line;
    word_column_ = column;
  }
  void finish() {
    if (!open_) return;
    open_ = false;
    emit();
    word_.clear();
    places_.clear();
    quoted_ = reads_open_ = false;
  }
  void emit() {
    if (says_ && !line_break_ && !begins_command_) {
      said_.push_back(word_);
      return print_to_variable();
    }
    const bool assigned = !quoted_ && !in_condition_ && in_case_ == CasePart::none && choices_.reads() && assign(word_);
    // Arguments in one text: "--flag value" in an array, or NAME="--flag value ...", whose use stands for nothing more.
    const std::size_t from = assigned ? word_.find('=') + 1 : 0;
    if (arguments_in(word_, from) != std::string::npos && (assigned || quoted_) && choices_.reads()) {
      for (std::size_t begin = from; begin < word_.size();) {
        const std::size_t end = std::min(word_.find_first_of(kBlank, begin), word_.size());
        if (end > begin) {
          word_line_ = places_[begin].first;
          word_column_ = places_[begin].second;
          push(word_.substr(begin, end - begin), false);
        }
        begin = end + 1;
      }
      line_break_ = true;
      return;
    }
    if (!assigned && !(word_.empty() && !quoted_)) push(word_, false);
  }
  void push(std::string text, bool ends_list) {
    const bool command = line_break_ || begins_command_;
    ShellWord word{std::move(text), word_line_, word_column_, !line_break_, ends_list, text_number_};
    line_break_ = false;
    begins_command_ = ends_list;
    if (command) {
      says_ = !quoted_ && (word.text == "echo" || word.text == "printf");
      said_.clear();
    }
    const bool names_file = std::exchange(sources_, command && !quoted_ && (word.text == "source" || word.text == ".")) && word.same_line && !ends_list;
    const bool after_semicolon = std::exchange(semicolon_, ends_list && word.text == ";");
    if (in_case_ != CasePart::none) {
      case_word(std::move(word));
    } else if (semicolon_ && after_semicolon && !cases_.empty() && !in_condition_) {   // ;; ends a branch
      in_case_ = CasePart::patterns;
      semicolon_ = false;
    } else if (command && !quoted_ && branch(word.text)) {
      line_break_ = begins_command_ = true;
    } else if (in_condition_) {
      condition_.push_back(std::move(word));
      if (condition_.size() > kMaxCondition) no_condition();
    } else {
      // In a loop over arguments the branch of the first one tells nothing of the others.
      if (command && word.text == "shift" && out_.shifts == 0 && (choices_.reads() || !cases_.empty())) out_.shifts = word.line;
      if (choices_.reads()) {
        if (names_file) file_ = word;
        if (command && word.text == "for" && !quoted_ && choices_.certain()) loop_begins_ = true;
        add_to_array(word);
        out_.words.push_back(std::move(word));
      }
    }
  }
  struct Case {
    std::string subject;
    bool entered = false;   // one of its branches has begun
  };
  enum class CasePart { none, head, patterns };
  /// The head of a `case` (its subject, in) and the patterns before each of its branches.
  void case_word(ShellWord word) {
    const bool closes = word.ends_list;
    const std::string text = word.text;
    case_.push_back(std::move(word));
    if (in_case_ == CasePart::head) {
      if (case_.size() == 1 && !closes) return;
      if (text != "in" || case_.size() != 2) return no_case();
      cases_.push_back({case_.front().text});
      in_case_ = CasePart::patterns;
      case_.clear();
    } else if (case_.size() == 1 && text == "esac") {
      leave_case();
    } else if (case_.size() > kMaxCondition) {
      no_case();
    } else if (closes && text == ")") {
      std::vector<std::string> patterns;
      for (const ShellWord& w : case_)
        if (!w.ends_list) patterns.push_back(w.text);
      const std::optional<bool> match = matches(cases_.back().subject, patterns);
      if (std::exchange(cases_.back().entered, true)) choices_.otherwise(match);
      else choices_.enter(match);
      in_case_ = CasePart::none;
      case_.clear();
    }
  }
  void leave_case() {
    if (cases_.back().entered) choices_.leave();
    cases_.pop_back();
    in_case_ = CasePart::none;
    case_.clear();
  }
  /// What began with "case" is another text's word.
  void no_case() {
    in_case_ = CasePart::none;
    for (ShellWord& w : case_) out_.words.push_back(std::move(w));
    case_.clear();
  }
  /// What began with "if" is another text's word.
  void no_condition() {
    in_condition_ = false;
    for (ShellWord& w : condition_) out_.words.push_back(std::move(w));
    condition_.clear();
  }
  /// A keyword of branches?
  bool branch(const std::string& word) {
    if (in_condition_) {
      if (word != "then") return false;
      const std::optional<bool> truth = in_brackets(condition_) ? truth_of_arithmetic() : truth_of(condition_);
      in_condition_ = false;
      if (elif_) choices_.otherwise(truth);
      else choices_.enter(truth);
      for (ShellWord& w : condition_)
        if (!truth) out_.words.push_back(std::move(w));   // it may be a command with arguments
      condition_.clear();
      return true;
    }
    if (word == "if" || (word == "elif" && choices_.any())) {
      in_condition_ = true;
      elif_ = word == "elif";
      return true;
    }
    if (word == "case") in_case_ = CasePart::head;
    else if (word == "esac" && !cases_.empty()) leave_case();
    else if (word == "else") choices_.otherwise();
    else if (word == "fi") choices_.leave();
    else if (word == "do" && !loops_.empty()) ++loops_.back().inner;
    else if (word == "done" && !loops_.empty()) loops_.back().inner > 0 ? void(--loops_.back().inner) : void(loop_turns_ = true);
    else return word == "then" || word == "do";
    return true;
  }
  /// (( ... )) as a condition, whose words hold no $ where variables stand.
  static bool in_brackets(const std::vector<ShellWord>& words) { return words.size() > 4 && words[0].text == "(" && words[1].text == "("; }
  std::optional<bool> truth_of_arithmetic() const {
    std::string text;
    for (const ShellWord& w : condition_) text += w.text;
    while (text.ends_with(';')) text.pop_back();
    if (!text.ends_with("))")) return std::nullopt;
    const auto v = arithmetic_value(expand(text.substr(2, text.size() - 4)));
    return v ? std::optional(*v != 0) : std::nullopt;
  }
  /// NAME=value, as far as it is no array.
  bool assign(const std::string& word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 || (word[0] >= '0' && word[0] <= '9')) return false;
    for (std::size_t i = 0; i < equals; ++i)
      if (!is_name(word[i])) return false;
    const std::string name = word.substr(0, equals);
    variables_[name] = word.substr(equals + 1);
    if (!choices_.certain() || reads_open_) {
      open_variables_.insert(name);
      out_.variables.erase(name);
    } else {
      open_variables_.erase(name);
      out_.variables[name] = {variables_[name], word_line_, word_column_};
    }
    return true;
  }

  void step() {
    const char c = peek();
    if (c == '\\' && peek(1) == '\n') {
      finish();
      const bool keep = line_break_;
      advance();
      advance();
      line_break_ = keep;
    } else if (c == '\\' && peek(1) == '\r' && peek(2) == '\n') {
      finish();
      advance();
      advance();
      advance();
    } else if (c == '\\' && at_ + 1 < text_.size()) {
      begin();
      advance();
      put(std::string_view(text_).substr(at_, 1));
      advance();
    } else if (c == '\n') {
      finish();
      advance();
      line_break_ = true;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      finish();
      advance();
    } else if (c == '#' && !open_) {
      while (at_ < text_.size() && peek() != '\n') advance();
    } else if (c == '\'' || c == '"') {
      quote(c);
    } else if (c == '$') {
      const int line = line_, column = column_;
      put_words(variable(), line, column);
    } else if ((c == '<' || c == '>') && open_ && !quoted_ && word_.find_first_not_of("0123456789") == std::string::npos) {
      open_ = false;   // 2>&1: the number of a file, no word
      word_.clear();
      places_.clear();
    } else if (c == '(' || c == ')' || c == ';' || c == '|' || c == '&' || c == '<' || c == '>') {
      const std::string before = c == '(' && open_ && !quoted_ ? word_ : std::string();
      finish();
      if (before.ends_with('=')) begin_array(before);
      begin();
      push(std::string(1, c), true);
      open_ = false;
      advance();
    } else {
      put(std::string_view(text_).substr(at_, 1));
      advance();
    }
  }

  void quote(char kind) {
    begin();
    if (word_.empty()) quoted_ = true;
    advance();
    while (at_ < text_.size() && peek() != kind) {
      if (kind == '"' && peek() == '$') {
        put(variable());
        continue;
      }
      if (kind == '"' && peek() == '\\' && at_ + 1 < text_.size()) advance();
      put(std::string_view(text_).substr(at_, 1));
      advance();
    }
    if (at_ < text_.size()) advance();
  }

  std::string lookup(const std::string& name, const std::string& otherwise) const {
    const auto it = variables_.find(name);
    if (it == variables_.end()) {
      const auto given = given_.find(name);
      if (given == given_.end()) return batch_.contains(name) ? batch_.at(name) : otherwise;
      out_.used.insert(name);
      return given->second;
    }
    const bool open = open_variables_.contains(name);
    if (open && in_condition_) return otherwise;   // one of several values: it decides nothing
    reads_open_ = reads_open_ || open;
    return arguments_in(it->second) == std::string::npos ? it->second : std::string();  // arguments are read where they are written
  }

  /// Reads what starts with '$' and returns what it stands for.
  std::string variable() {
    const std::size_t from = at_;
    advance();
    if (peek() == '(' && peek(1) == '(') {
      const std::size_t end = text_.find("))", at_);
      if (end != std::string::npos && end - at_ < 400) {
        const std::string inner = expand(text_.substr(at_ + 2, end - at_ - 2));
        while (at_ < end + 2) advance();
        if (const auto v = arithmetic_value(inner)) return std::to_string(*v);
      }
      std::string open = text_.substr(from, at_ - from);
      std::erase_if(open, [](char c) { return c == ' ' || c == '\t'; });   // one word
      return open;
    }
    if (peek() == '(' && peek(1) != '(') {
      const std::size_t end = closing_bracket(text_, at_);
      const auto printed = end == std::string::npos ? std::nullopt : printed_by(text_.substr(at_ + 1, end - at_ - 1), [this](const std::string& w) { return value_of(w); });
      if (printed) {
        while (at_ <= end) advance();
        return *printed;
      }
    }
    if (peek() == '{') {
      const std::size_t end = text_.find('}', at_);
      if (end == std::string::npos || end - at_ > 400) return "$";
      const std::string inner = text_.substr(at_ + 1, end - at_ - 1);
      while (at_ <= end) advance();
      const std::string whole = text_.substr(from, at_ - from);
      std::size_t name_end = 0;
      while (name_end < inner.size() && is_name(inner[name_end])) ++name_end;
      const std::string rest = inner.substr(name_end);
      const bool with_default = rest.starts_with(":-") || rest.starts_with(":=");
      if (rest.starts_with(":+")) return alternative(inner.substr(0, name_end), rest.substr(2));
      if (!rest.empty() && !with_default) return whole;
      return lookup(inner.substr(0, name_end), with_default ? expand(without_quotes(rest.substr(2))) : whole);
    }
    std::size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    if (peek() >= '0' && peek() <= '9') end = at_ + 1;   // $12 is $1 and a 2
    const std::string name = text_.substr(at_, end - at_);
    while (at_ < end) advance();
    return lookup(name, "$" + name);
  }

  /// ${NAME:+text}: the text where the variable has a value. What nobody sets has none.
  std::string alternative(const std::string& name, const std::string& text) const {
    if (lookup(name, "").empty()) return {};
    std::string out = expand(text);
    std::erase(out, '"');
    return out;
  }

  /// Variables in a text without places: $NAME, ${NAME}, and bare names, which arithmetic allows.
  std::string expand(const std::string& text, bool with_bare_names = true) const {
    std::string out;
    for (std::size_t i = 0; i < text.size() && out.size() < kMaxWord;) {
      const bool dollar = text[i] == '$';
      std::size_t from = dollar ? i + 1 : i;
      const bool brace = dollar && from < text.size() && text[from] == '{';
      if (brace) ++from;
      std::size_t to = from;
      while (to < text.size() && is_name(text[to])) ++to;
      const std::string name = text.substr(from, to - from);
      const bool modified = brace && (to >= text.size() || text[to] != '}') && !with_bare_names;   // ${NAME%...}
      if (name.empty() || modified || (!dollar && (!with_bare_names || (name[0] >= '0' && name[0] <= '9')))) {
        const std::size_t length = std::max<std::size_t>(1, to - i);
        out += text.substr(i, length);
        i += length;
        continue;
      }
      out += lookup(name, text.substr(i, to - i));
      i = brace && to < text.size() && text[to] == '}' ? to + 1 : to;
    }
    return out;
  }

  std::string text_;                         // the script, or the file that is being sourced
  std::size_t text_number_ = 0;              // of it in out_.texts
  std::vector<std::string> including_;       // files around what is read
  std::vector<Loop> loops_;                  // loops around it, in the same file
  std::size_t reread_ = 0;
  ShellWord file_;                           // to be sourced next
  bool sources_ = false, loop_begins_ = false, loop_turns_ = false;
  std::string array_;                        // whose elements are being read
  std::map<std::string, std::optional<std::vector<std::string>>> arrays_;
  std::vector<std::string> said_;            // words of echo or printf so far
  std::size_t at_ = 0;
  int line_ = 1, column_ = 1, word_line_ = 1, word_column_ = 1;
  std::string word_;
  std::vector<std::pair<int, int>> places_;  // line and column of each of its bytes
  bool open_ = false, quoted_ = false, line_break_ = true;
  std::map<std::string, std::string> variables_;
  const ShellVariables& given_;
  const ShellVariables batch_;               // what Slurm sets
  ShellChoices choices_;
  std::set<std::string> open_variables_;     // set where no condition tells whether a shell comes by, or from such a variable
  mutable bool reads_open_ = false;          // this word does
  std::vector<ShellWord> condition_;         // between if or elif and then
  std::vector<Case> cases_;                  // around what is read
  std::vector<ShellWord> case_;              // of a head or of patterns, so far
  CasePart in_case_ = CasePart::none;
  bool semicolon_ = false;                   // the last word was one that ends a command
  bool in_condition_ = false, elif_ = false, begins_command_ = true;
  bool says_ = false;                        // the command is echo or printf: its words are no arguments
  mutable ShellText out_;
};

}  // namespace

std::string without_quotes(std::string text) {
  const bool quoted = text.size() >= 2 && (text[0] == '"' || text[0] == '\'') && text.back() == text[0];
  return quoted ? text.substr(1, text.size() - 2) : text;
}

ShellText shell_words(const std::string& text, const std::string& file_name, const ShellVariables& given) { return Script(text, file_name, given).read(); }

}  // namespace rehearse::importers
