#include "sim/config/tree_builder.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/config/document.h"

namespace rehearse::config {

namespace {
constexpr std::size_t kMaxDiagnostics = 100;
}

TreeBuilder::TreeBuilder(std::shared_ptr<const SourceText> source, std::string root_path, bool located, Dialect dialect)
    : source_(std::move(source)), root_path_(std::move(root_path)), located_(located), dialect_(dialect) {}

Place TreeBuilder::place(const YAML::Mark& mark) {
  if (!located_ || mark.is_null()) return {source_, 0, 0};
  const std::string_view line = source_->line(mark.line + 1);
  const std::size_t bytes = std::min(static_cast<std::size_t>(std::max(mark.column, 0)), line.size());
  if (mark.line != seen_line_ || bytes < seen_bytes_) {
    seen_line_ = mark.line;
    seen_bytes_ = 0;
    seen_column_ = 0;
  }
  for (; seen_bytes_ < bytes; ++seen_bytes_)
    if ((static_cast<unsigned char>(line[seen_bytes_]) & 0xC0) != 0x80) ++seen_column_;
  return {source_, mark.line + 1, seen_column_ + 1};
}

void TreeBuilder::complain(const Place& at, std::string key, std::string problem, std::string fix) {
  diagnostics_.push_back({at.location(), std::move(key), std::move(problem), std::move(fix), at.excerpt()});
  if (diagnostics_.size() >= kMaxDiagnostics) throw BuildStopped{};
}

void TreeBuilder::stop(const Place& at, std::string key, std::string problem, std::string fix) {
  complain(at, std::move(key), std::move(problem), std::move(fix));
  throw BuildStopped{};
}

void TreeBuilder::OnDocumentStart(const YAML::Mark& mark) {
  if (++documents_ > 1)
    stop(place(mark), "", "a second document starts here (a file holds one)",
         "Put it into a file of its own, or check the indentation of this line");
}

bool TreeBuilder::expects_key() const {
  return !frames_.empty() && frames_.back().kind == Value::Kind::map && !frames_.back().key;
}

std::string TreeBuilder::next_path() const {
  if (frames_.empty()) return root_path_;
  const Frame& top = frames_.back();
  return top.kind == Value::Kind::map ? child_path(top.path, *top.key)
                                      : child_path(top.path, top.items.size());
}

void TreeBuilder::charge(const Place& at, std::size_t bytes) {
  bytes_ += bytes;
  if (++nodes_ > kMaxNodes)
    stop(at, "",
         fmt::format("the file holds more than {} values once its aliases are written out", kMaxNodes),
         "Use fewer aliases, or several files");
  if (bytes_ > kMaxExpandedBytes)
    stop(at, "",
         fmt::format("the file holds more than {} MiB once its aliases are written out",
                     kMaxExpandedBytes >> 20),
         "Use fewer aliases, or several files");
}

void TreeBuilder::refuse_tag(const std::string& tag, const Place& at) {
  if (tag.empty() || tag == "?" || tag == "!") return;  // yaml-cpp's names for "plain" and "quoted"
  complain(at, expects_key() ? "" : next_path(), fmt::format("tag {} has no meaning here", tag.substr(0, 80)),
           "Remove the tag");
}

// The place after the closing quote of the scalar at `position`; npos when there is none, and `position`
// itself when no quote stands there (block scalars, anchors we do not understand).
std::size_t TreeBuilder::end_of_quoted(std::size_t position) const {
  const std::string& text = source_->text();
  std::size_t i = position;
  while (i < text.size() && (text[i] == '&' || text[i] == '!')) {  // yaml-cpp's mark is the anchor's
    i = std::min(text.find_first_of(" \t\r\n", i), text.size());
    i = std::min(text.find_first_not_of(" \t\r\n", i), text.size());
  }
  if (i >= text.size() || (text[i] != '"' && text[i] != '\'')) return position;
  const char quote = text[i];
  for (++i; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != quote) return i + 1;
      ++i;  // '' inside single quotes
    }
  }
  return std::string::npos;
}

// yaml-cpp takes a last line without ':' for a key with an empty value.
bool TreeBuilder::key_has_colon() const {
  const Frame& top = frames_.back();
  if (top.kind != Value::Kind::map || top.key_position < 0) return true;
  const std::string& text = source_->text();
  auto at = static_cast<std::size_t>(top.key_position);
  if (text.compare(at, top.key->size(), *top.key) == 0)
    at += top.key->size();
  else if (const std::size_t end = end_of_quoted(at); end != at)
    at = end;
  else
    return true;  // an anchor or tag stands before it: leave it
  at = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
  return at < text.size() && text[at] == ':';
}

// yaml-cpp lets a quote run to the end of the file when the last line is complete.
void TreeBuilder::finish() {
  if (last_quoted_ >= 0 && end_of_quoted(static_cast<std::size_t>(last_quoted_)) == std::string::npos)
    complain(last_quoted_place_, "", "this quote is never closed", "Add the closing quote");
}

void TreeBuilder::remember(YAML::anchor_t anchor, const Value& value) {
  if (anchor != YAML::NullAnchor) anchors_.insert_or_assign(anchor, value);
}

void TreeBuilder::take_key(const std::string& key, bool quoted, const Place& at, int position) {
  Frame& top = frames_.back();
  top.key = key;
  top.key_place = at;
  top.key_position = position;
  top.refused = true;
  top.repeats = false;
  top.merges = key == "<<" && !quoted && dialect_ == Dialect::pyyaml;
  if (key.size() > kMaxKeyBytes)
    stop(at, top.path, fmt::format("a key of {} bytes (the limit is {})", key.size(), kMaxKeyBytes),
         "Is a quote missing?");
  if (key.empty()) {
    complain(at, top.path, "an empty key", "Write a name before ':'");
  } else if (top.merges) {
    top.refused = false;
  } else if (key == "<<" && !quoted) {
    complain(at, child_path(top.path, key), "merge keys are not supported (YAML dropped them in version 1.2)",
             "Write the keys out, or put the shared ones into a file and name it with extends");
  } else if (const auto [it, fresh] = top.key_lines.emplace(key, at.line); !fresh && dialect_ == Dialect::strict) {
    complain(
        at, child_path(top.path, key),
        located_ ? fmt::format("duplicate key (first on line {})", it->second) : std::string("duplicate key"),
        "Keep one of them");
  } else {
    top.refused = false;
    top.repeats = !fresh;
  }
}

void TreeBuilder::take(Value value) {
  if (frames_.empty()) {
    root_ = std::move(value);
    return;
  }
  Frame& top = frames_.back();
  if (top.kind == Value::Kind::list) {
    top.items.push_back(std::move(value));
    return;
  }
  if (top.merges) {
    merge(top, value);
  } else if (!top.refused) {
    const auto known = top.repeats ? std::find_if(top.entries.begin(), top.entries.end(), [&](const Value::Entry& e) { return e.key == *top.key; }) : top.entries.end();
    Value::Entry entry{std::move(*top.key), std::move(top.key_place), std::move(value)};
    if (known == top.entries.end()) top.entries.push_back(std::move(entry));
    else *known = std::move(entry);
  }
  top.key.reset();
}

/// Of several maps the first counts that has a key.
void TreeBuilder::merge(Frame& into, const Value& from) {
  if (from.kind() == Value::Kind::list) {
    for (const Value& one : from.items()) merge(into, one);
    return;
  }
  if (from.kind() != Value::Kind::map) return complain(into.key_place, into.path, "a merge key without a map", "Name a map, or a list of maps, behind <<");
  for (const Value::Entry& e : from.entries())
    if (into.merged_keys.insert(e.key).second)
      into.merged.push_back({e.key, e.key_place, copy(e.value, e.value.place(), child_path(into.path, e.key))});
}

void TreeBuilder::OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) {
  Place at = place(mark);
  charge(at, 0);
  if (expects_key()) return take_key("", false, at, -1);
  if (!frames_.empty() && frames_.back().kind == Value::Kind::map) {
    const Frame& top = frames_.back();
    if (!top.refused && !key_has_colon())
      complain(top.key_place, next_path(), "no ':' after the key", "Write 'key: value'");
    // An empty value's mark is that of whatever comes next, lines below.
    if (at.line != top.key_place.line) at = top.key_place;
  }
  Value value = Value::null(std::move(at), next_path());
  remember(anchor, value);
  take(std::move(value));
}

void TreeBuilder::OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                           const std::string& text) {
  const Place at = place(mark);
  refuse_tag(tag, at);
  const bool quoted = tag == "!";
  if (quoted) {
    last_quoted_ = mark.pos;
    last_quoted_place_ = at;
  }
  if (expects_key()) {
    charge(at, text.size());
    if (anchor != YAML::NullAnchor) remember(anchor, Value::scalar(text, quoted, at, ""));
    return take_key(text, quoted, at, mark.pos);
  }
  std::string path = next_path();
  charge(at, text.size() + path.size());
  Value value = Value::scalar(text, quoted, at, std::move(path));
  remember(anchor, value);
  take(std::move(value));
}

void TreeBuilder::OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) {
  const Place at = place(mark);
  const auto it = anchors_.find(anchor);
  if (it == anchors_.end())
    stop(at, expects_key() ? "" : next_path(), "an alias inside the value that it names",
         "Write the value out");
  const Value named = it->second;  // a copy of the handle: take() may grow the table
  if (!expects_key()) return take(copy(named, at, next_path()));
  if (!named.is_scalar()) stop(at, frames_.back().path, "a key must be text", "Write the key out");
  charge(at, named.text().size());
  take_key(named.text(), named.quoted(), at, -1);
}

// The copy stands where the alias stands; what is inside keeps the lines where somebody can mend it.
Value TreeBuilder::copy(const Value& value, const Place& at, const std::string& path) {
  charge(at, path.size() + value.text().size());
  switch (value.kind()) {
    case Value::Kind::null:
      return Value::null(at, path);
    case Value::Kind::scalar:
      return Value::scalar(value.text(), value.quoted(), at, path);
    case Value::Kind::list: {
      std::vector<Value> items;
      for (const Value& item : value.items())
        items.push_back(copy(item, item.place(), child_path(path, items.size())));
      return Value::list(std::move(items), at, path);
    }
    case Value::Kind::map: {
      std::vector<Value::Entry> entries;
      for (const Value::Entry& e : value.entries())
        entries.push_back({e.key, e.key_place, copy(e.value, e.value.place(), child_path(path, e.key))});
      return Value::map(std::move(entries), at, path);
    }
  }
  return {};
}

void TreeBuilder::open(Value::Kind kind, const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t anchor) {
  const Place at = place(mark);
  refuse_tag(tag, at);
  if (expects_key())
    stop(at, frames_.back().path, "a list or map stands where a key is needed",
         "Close its bracket, or write a name, then ':'");
  std::string path = next_path();
  charge(at, path.size());
  if (frames_.size() >= static_cast<std::size_t>(kMaxNesting))
    stop(at, "", fmt::format("nested deeper than {} levels", kMaxNesting), "Is a bracket or quote missing?");
  frames_.push_back({kind, at, std::move(path), anchor});
}

void TreeBuilder::OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                                  YAML::EmitterStyle::value) {
  open(Value::Kind::list, mark, tag, anchor);
}

void TreeBuilder::OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                             YAML::EmitterStyle::value) {
  open(Value::Kind::map, mark, tag, anchor);
}

void TreeBuilder::close() {
  Frame top = std::move(frames_.back());
  frames_.pop_back();
  for (Value::Entry& e : top.merged)
    if (!top.key_lines.contains(e.key)) top.entries.push_back(std::move(e));
  Value value = top.kind == Value::Kind::list
                    ? Value::list(std::move(top.items), std::move(top.place), std::move(top.path))
                    : Value::map(std::move(top.entries), std::move(top.place), std::move(top.path));
  remember(top.anchor, value);
  take(std::move(value));
}

}  // namespace rehearse::config
