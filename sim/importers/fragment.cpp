#include "sim/importers/fragment.h"

namespace rehearse::importers {

using config::Value;

void Fragment::set(const std::string& key, std::string text, const config::Place& place) {
  values_.insert_or_assign(key, Value::scalar(std::move(text), false, place, key));
}

void Fragment::set_list(const std::string& key, const std::vector<std::string>& items, const config::Place& place) {
  std::vector<Value> list;
  for (const std::string& item : items) list.push_back(Value::scalar(item, false, place, config::child_path(key, list.size())));
  values_.insert_or_assign(key, Value::list(std::move(list), place, key));
}

const Value* Fragment::find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void Fragment::add(const Value& keys) {
  if (keys.is_map()) {
    for (const Value::Entry& e : keys.entries()) add(e.value);
  } else if (!keys.is_null()) {
    values_.insert_or_assign(keys.path(), keys);
  }
}

namespace {

/// The keys in [from, to) that start with `prefix`, as one map; keys are sorted, so that those of a map stand together.
template <typename Iterator>
Value branch(Iterator from, Iterator to, const std::string& prefix, const config::Place& origin) {
  std::vector<Value::Entry> entries;
  while (from != to) {
    const std::size_t begin = prefix.empty() ? 0 : prefix.size() + 1;
    const std::size_t dot = from->first.find('.', begin);
    const std::string name = from->first.substr(begin, dot == std::string::npos ? dot : dot - begin);
    if (dot == std::string::npos) {
      entries.push_back({name, from->second.place(), from->second});
      ++from;
      continue;
    }
    const std::string path = config::child_path(prefix, name);
    Iterator last = from;
    while (last != to && last->first.starts_with(path + ".")) ++last;
    entries.push_back({name, origin, branch(from, last, path, origin)});
    from = last;
  }
  return Value::map(std::move(entries), origin, prefix);
}

}  // namespace

Value Fragment::tree(const config::Place& origin) const { return branch(values_.begin(), values_.end(), std::string(), origin); }

const Value* find_dotted(const Value& root, std::string_view key) {
  const Value* here = &root;
  while (here != nullptr && !key.empty()) {
    const std::size_t dot = key.find('.');
    here = here->find(key.substr(0, dot));
    key = dot == std::string_view::npos ? std::string_view() : key.substr(dot + 1);
  }
  return here;
}

}  // namespace rehearse::importers
