#include "sim/importers/shell_words.h"

#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "sim/importers/shell_choices.h"

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

/// Whole numbers, + - * / and brackets, as in $((A * B)); nullopt for anything else.
class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}
  std::optional<std::int64_t> value() {
    const auto v = sum(0);
    skip();
    return text_.empty() ? v : std::nullopt;
  }

 private:
  void skip() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t')) text_.remove_prefix(1);
  }
  bool take(char c) {
    skip();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  std::optional<std::int64_t> atom(int depth) {
    skip();
    if (depth > 32) return std::nullopt;
    if (take('(')) {
      const auto v = sum(depth + 1);
      return take(')') ? v : std::nullopt;
    }
    std::int64_t v = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), v);
    if (error != std::errc{}) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return v;
  }
  std::optional<std::int64_t> product(int depth) {
    auto v = atom(depth);
    while (v) {
      const bool times = take('*');
      if (!times && !take('/')) break;
      const auto w = atom(depth);
      if (!w || (!times && *w == 0)) return std::nullopt;
      std::int64_t out = 0;
      if (times ? __builtin_mul_overflow(*v, *w, &out) : (*w == -1 && *v == INT64_MIN)) return std::nullopt;
      v = times ? out : *v / *w;
    }
    return v;
  }
  std::optional<std::int64_t> sum(int depth) {
    auto v = product(depth);
    while (v) {
      const bool plus = take('+');
      if (!plus && !take('-')) break;
      const auto w = product(depth);
      std::int64_t out = 0;
      if (!w || (plus ? __builtin_add_overflow(*v, *w, &out) : __builtin_sub_overflow(*v, *w, &out))) return std::nullopt;
      v = out;
    }
    return v;
  }
  std::string_view text_;
};

class Script {
 public:
  Script(const std::string& text, const ShellVariables& given) : text_(text), given_(given) {}

  ShellText read() {
    while (at_ < text_.size()) step();
    finish();
    no_condition();
    no_case();
    return std::move(out_);
  }

 private:
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
    if (says_ && !line_break_ && !begins_command_) return;
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
    ShellWord word{std::move(text), word_line_, word_column_, !line_break_, ends_list};
    line_break_ = false;
    begins_command_ = ends_list;
    if (command) says_ = !quoted_ && (word.text == "echo" || word.text == "printf");
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
      if (choices_.reads()) out_.words.push_back(std::move(word));
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
      const std::optional<bool> truth = truth_of(condition_);
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
    else return word == "then" || word == "do";
    return true;
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
      finish();
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
      if (given == given_.end()) return otherwise;
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
        if (const auto v = Arithmetic(inner).value()) return std::to_string(*v);
      }
      std::string open = text_.substr(from, at_ - from);
      std::erase_if(open, [](char c) { return c == ' ' || c == '\t'; });   // one word
      return open;
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

  /// Variables in a text without places: $NAME, ${NAME}, and bare names, as arithmetic allows.
  std::string expand(const std::string& text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size() && out.size() < kMaxWord;) {
      const bool dollar = text[i] == '$';
      std::size_t from = dollar ? i + 1 : i;
      const bool brace = dollar && from < text.size() && text[from] == '{';
      if (brace) ++from;
      std::size_t to = from;
      while (to < text.size() && is_name(text[to])) ++to;
      const std::string name = text.substr(from, to - from);
      if (name.empty() || (!dollar && name[0] >= '0' && name[0] <= '9')) {
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

  const std::string& text_;
  std::size_t at_ = 0;
  int line_ = 1, column_ = 1, word_line_ = 1, word_column_ = 1;
  std::string word_;
  std::vector<std::pair<int, int>> places_;  // line and column of each of its bytes
  bool open_ = false, quoted_ = false, line_break_ = true;
  std::map<std::string, std::string> variables_;
  const ShellVariables& given_;
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

ShellText shell_words(const std::string& text, const ShellVariables& given) { return Script(text, given).read(); }

}  // namespace rehearse::importers
