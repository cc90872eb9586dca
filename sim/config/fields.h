// Tables of fields: one list per struct that serves reading, defaults, JSON Schema and the reference page.
// Leaves out how single values are read (scalar_types.h) and rules across files (the rooms above).
//
//   const Fields<Training>& training_fields() {
//     static const Fields<Training> fields{
//         integer("micro_batch_size", &Training::micro_batch_size, "samples per GPU per micro-step",
//         positive), integer("data", &Training::data, "data-parallel degree", positive).word("auto"),   //
//         std::optional bytes("bucket", &Training::bucket, "size of a gradient bucket", positive),
//     };
//     return fields;
//   }
//
// Defaults are those of a default-constructed struct. A member may be M, std::optional<M> (absent = nullopt)
// or std::vector<M> (a YAML list) for every scalar type M.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/config/scalar_types.h"
#include "sim/core/catalog.h"
#include "sim/core/contract.h"

namespace rehearse::config {

namespace detail {
template <typename M>
struct Element {
  using type = M;
};
template <typename M>
struct Element<std::optional<M>> {
  using type = M;
};
template <typename M>
struct Element<std::vector<M>> {
  using type = M;
};
template <typename M>
inline constexpr bool is_optional = false;
template <typename M>
inline constexpr bool is_optional<std::optional<M>> = true;
template <typename M>
inline constexpr bool is_vector = false;
template <typename M>
inline constexpr bool is_vector<std::vector<M>> = true;

FieldInfo described(std::string name, std::string doc, FieldInfo::Shape shape, ScalarType type);
std::string list_text(const std::vector<std::string>& items);
}  // namespace detail

template <typename M>
using element_t = typename detail::Element<M>::type;

/// One row, tied to its struct so that a table cannot mix structs.
template <typename T>
class Field {
 public:
  explicit Field(FieldInfo i) : info(std::move(i)) {}
  Field required() && {
    info.required = true;
    info.default_text.clear();
    return std::move(*this);
  }
  /// Required, but another key of the file (dotted, from this table) can bring it: `from: deepspeed`. Who reads that key
  /// must put the value in before this table is read.
  Field required_unless(std::string key) && {
    info.unless = std::move(key);
    return std::move(*this).required();
  }
  /// A word that the user may write for "no value" (std::nullopt): "auto", "unlimited", "none".
  Field word(std::string text) && {
    EXPECTS(info.clear, "word() needs a std::optional member: " + info.name);
    if (info.default_text.empty() && !info.required) info.default_text = text;
    info.word = std::move(text);
    return std::move(*this);
  }
  /// A bare scalar stands for this key of the sub-table: `model: gpt2` for `model: {name: gpt2}`.
  Field shorthand(std::string key) && {
    EXPECTS(info.table && info.table->find(key), "shorthand() names no field of " + info.name);
    info.shorthand = std::move(key);
    return std::move(*this);
  }
  /// What the reference page shows instead of the struct's own default.
  Field shown_default(std::string text) && {
    info.default_text = std::move(text);
    return std::move(*this);
  }
  FieldInfo info;
};

template <typename T>
class Fields {
 public:
  Fields(std::initializer_list<Field<T>> fields) {
    auto table = std::make_shared<TableInfo>();
    for (const Field<T>& field : fields) {
      EXPECTS(!table->find(field.info.name), "field named twice: " + field.info.name);
      table->fields.push_back(field.info);
    }
    table_ = std::move(table);
  }
  /// A rule over several keys, checked when each of them could be read.
  Fields check(std::function<void(const Value&, const T&, FieldReader&)> rule) const {
    auto table = std::make_shared<TableInfo>(*table_);
    table->check = [rule = std::move(rule)](const Value& value, const void* object, FieldReader& reader) {
      rule(value, *static_cast<const T*>(object), reader);
    };
    Fields copy(*this);
    copy.table_ = std::move(table);
    return copy;
  }
  const std::shared_ptr<const TableInfo>& table() const { return table_; }

 private:
  std::shared_ptr<const TableInfo> table_;
};

/// Reads a map into a T. Mistakes are added to `out` (throw_if_any turns them into a ConfigError) and leave
/// their member at its default. `given` learns every key that was written; `object` has what the map does not name.
template <typename T>
T read(const Value& map, const Fields<T>& fields, Diagnostics& out, Provenance* given = nullptr, T object = {}) {
  FieldReader reader(out, given, fields.table().get());
  read_table(map, *fields.table(), &object, reader);
  return object;
}

/// Puts what the map names in place of the object's own. Mistakes are added to `out` and leave their member as it was.
template <typename T>
void amend(T& object, const Value& map, const Fields<T>& fields, Diagnostics& out) {
  FieldReader reader(out, nullptr, fields.table().get());
  reader.amending = true;
  read_table(map, *fields.table(), &object, reader);
}

/// The scalars, and lists of them, in which an object is not as another, as a map that amends the other; null where there are none. What the object
/// lacks and the other has is not in it: no map says so. `path` of the map in its file.
template <typename T>
Value differences(const T& object, const T& other, const Fields<T>& fields, const std::string& path) {
  return differences(&object, &other, *fields.table(), path);
}

/// A member of a scalar type, an optional of it, or a list of it.
template <typename T, typename M>
Field<T> scalar_field(std::string name, M T::*member, std::string doc, ScalarType type) {
  using E = element_t<M>;
  using Shape = FieldInfo::Shape;
  const auto shape = detail::is_vector<M> ? Shape::list : Shape::scalar;
  FieldInfo info = detail::described(std::move(name), std::move(doc), shape, std::move(type));
  const T defaults{};
  const auto& read_one = info.type.read;
  if constexpr (detail::is_vector<M>) {
    std::vector<std::string> items;
    for (const E& item : defaults.*member) items.push_back(info.type.show(&item));
    info.default_text = detail::list_text(items);
    info.texts = [member, show = info.type.show](const void* object) {
      std::vector<std::string> out;
      for (const E& item : static_cast<const T*>(object)->*member) out.push_back(show(&item));
      return out;
    };
    info.assign = [member, read_one, words = info.type.words](const Value& v, void* object,
                                                              FieldReader& reader) {
      M& list = static_cast<T*>(object)->*member;
      list.clear();
      read_list(v, words, reader, [&](const Value& item) {
        E one{};
        if (read_one(item, &one, reader)) list.push_back(std::move(one));
      });
    };
  } else if constexpr (detail::is_optional<M>) {
    if (defaults.*member) info.default_text = info.type.show(&*(defaults.*member));
    info.texts = [member, show = info.type.show](const void* object) {
      const M& value = static_cast<const T*>(object)->*member;
      return value ? std::vector<std::string>{show(&*value)} : std::vector<std::string>{};
    };
    info.assign = [member, read_one](const Value& v, void* object, FieldReader& reader) {
      E one{};
      if (read_one(v, &one, reader)) static_cast<T*>(object)->*member = std::move(one);
    };
    info.clear = [member](void* object) { (static_cast<T*>(object)->*member).reset(); };
  } else {
    info.default_text = info.type.show(&(defaults.*member));
    info.texts = [member, show = info.type.show](const void* object) { return std::vector<std::string>{show(&(static_cast<const T*>(object)->*member))}; };
    info.assign = [member, read_one](const Value& v, void* object, FieldReader& reader) {
      read_one(v, &(static_cast<T*>(object)->*member), reader);
    };
  }
  return Field<T>(std::move(info));
}

// Builders of single fields: name, member, what it is, and what is allowed.

template <typename T, typename M>
Field<T> integer(std::string name, M T::*member, std::string doc, Limits limits = any_value) {
  return scalar_field(std::move(name), member, std::move(doc),
                      integer_type(integer_slot<element_t<M>>(), limits));
}
/// A std::optional integer whose absence is the word `auto`.
template <typename T, typename M>
Field<T> integer_or_auto(std::string name, M T::*member, std::string doc, Limits limits = any_value) {
  return integer(std::move(name), member, std::move(doc), limits).word("auto");
}
template <typename T, typename M>
Field<T> boolean(std::string name, M T::*member, std::string doc) {
  static_assert(std::is_same_v<element_t<M>, bool>);
  return scalar_field(std::move(name), member, std::move(doc), boolean_type());
}
template <typename T, typename M>
Field<T> text(std::string name, M T::*member, std::string doc) {
  static_assert(std::is_same_v<element_t<M>, std::string>);
  return scalar_field(std::move(name), member, std::move(doc), text_type());
}
/// Text that must be one of the names, which are asked for when the file is read; `what` they name: "GPU".
template <typename T, typename M>
Field<T> named(std::string name, M T::*member, std::string doc, std::string what, Names names) {
  static_assert(std::is_same_v<element_t<M>, std::string>);
  return scalar_field(std::move(name), member, std::move(doc), name_type(std::move(what), std::move(names)));
}
/// The same, or the path of a file of the user's own.
template <typename T, typename M>
Field<T> named_or_file(std::string name, M T::*member, std::string doc, std::string what, Names names, Meant meant = {}) {
  static_assert(std::is_same_v<element_t<M>, std::string>);
  return scalar_field(std::move(name), member, std::move(doc), name_or_file_type(std::move(what), std::move(names), std::move(meant)));
}
#define REHEARSE_QUANTITY_FIELD(builder, member_type, type_maker)                                   \
  template <typename T, typename M>                                                                 \
  Field<T> builder(std::string name, M T::*member, std::string doc, Limits limits = non_negative) { \
    static_assert(std::is_same_v<element_t<M>, member_type>);                                       \
    return scalar_field(std::move(name), member, std::move(doc), type_maker(limits));               \
  }
REHEARSE_QUANTITY_FIELD(bytes, Bytes, bytes_type)
REHEARSE_QUANTITY_FIELD(rate, BytesPerSecond, rate_type)
REHEARSE_QUANTITY_FIELD(duration, Duration, duration_type)
REHEARSE_QUANTITY_FIELD(flops_rate, FlopsPerSecond, flops_rate_type)
REHEARSE_QUANTITY_FIELD(frequency, double, frequency_type)  // hertz
REHEARSE_QUANTITY_FIELD(power, double, power_type)          // watts
REHEARSE_QUANTITY_FIELD(fraction, double, fraction_type)    // 0.45 or 45 %
#undef REHEARSE_QUANTITY_FIELD
template <typename T, typename M>
Field<T> number(std::string name, M T::*member, std::string doc, Limits limits = any_value) {
  static_assert(std::is_same_v<element_t<M>, double>);
  return scalar_field(std::move(name), member, std::move(doc), number_type(limits));
}

template <typename E>
struct Choice {
  std::string word;
  E value;
  std::string doc;
};
template <typename T, typename M>
Field<T> choice(std::string name, M T::*member, std::string doc,
                std::initializer_list<Choice<std::type_identity_t<element_t<M>>>> choices) {
  std::vector<ChoiceWord> words;
  for (const auto& c : choices) words.push_back({c.word, static_cast<std::int64_t>(c.value), c.doc});
  return scalar_field(std::move(name), member, std::move(doc),
                      choice_type(integer_slot<element_t<M>>(), std::move(words)));
}

/// One of a catalog's names.
template <typename T, typename M>
Field<T> choice(std::string name, M T::*member, std::string doc, const Catalog<element_t<M>>& catalog) {
  std::vector<ChoiceWord> words;
  for (const auto& e : catalog.entries()) words.push_back({e.name, static_cast<std::int64_t>(e.value), e.summary});
  return scalar_field(std::move(name), member, std::move(doc),
                      choice_type(integer_slot<element_t<M>>(), std::move(words)));
}

/// A struct of its own: S, or std::optional<S> (absent = nullopt).
template <typename T, typename M>
Field<T> nested(std::string name, M T::*member, std::string doc, const Fields<element_t<M>>& fields) {
  FieldInfo info = detail::described(std::move(name), std::move(doc), FieldInfo::Shape::table, {});
  info.table = fields.table();
  info.assign = [member, table = info.table](const Value& v, void* object, FieldReader& reader) {
    M& target = static_cast<T*>(object)->*member;
    if constexpr (detail::is_optional<M>) {
      target.emplace();
      read_table(v, *table, &*target, reader);
    } else {
      read_table(v, *table, &target, reader);
    }
  };
  if constexpr (detail::is_optional<M>)
    info.clear = [member](void* object) { (static_cast<T*>(object)->*member).reset(); };
  return Field<T>(std::move(info));
}

/// A list of structs.
template <typename T, typename S>
Field<T> list_of(std::string name, std::vector<S> T::*member, std::string doc, const Fields<S>& fields) {
  FieldInfo info = detail::described(std::move(name), std::move(doc), FieldInfo::Shape::table_list, {});
  info.table = fields.table();
  info.assign = [member, table = info.table](const Value& v, void* object, FieldReader& reader) {
    auto& list = static_cast<T*>(object)->*member;
    list.clear();
    read_list(v, "maps", reader,
              [&](const Value& item) { read_table(item, *table, &list.emplace_back(), reader); });
  };
  return Field<T>(std::move(info));
}

/// A map from names that the user chooses to structs. Those that the object has already stay, but for what the map says of them.
template <typename T, typename S>
Field<T> map_of(std::string name, std::map<std::string, S> T::*member, std::string doc,
                const Fields<S>& fields) {
  FieldInfo info = detail::described(std::move(name), std::move(doc), FieldInfo::Shape::table_map, {});
  info.table = fields.table();
  info.assign = [member, table = info.table](const Value& v, void* object, FieldReader& reader) {
    auto& map = static_cast<T*>(object)->*member;
    read_map(v, reader, [&](const Value::Entry& e) { read_table(e.value, *table, &map[e.key], reader); });
  };
  return Field<T>(std::move(info));
}

/// Anything else. `words` for people, `schema` a JSON Schema; `take` reports mistakes with reader.complain().
template <typename T>
Field<T> custom(std::string name, std::string doc, std::string words, std::string schema,
                std::function<void(const Value&, T&, FieldReader&)> take) {
  ScalarType type;
  type.words = std::move(words);
  type.schema = std::move(schema);
  FieldInfo info =
      detail::described(std::move(name), std::move(doc), FieldInfo::Shape::custom, std::move(type));
  info.assign = [take = std::move(take)](const Value& v, void* object, FieldReader& reader) {
    take(v, *static_cast<T*>(object), reader);
  };
  return Field<T>(std::move(info));
}

/// JSON Schema (draft-07) of a file whose top is this table; `extends` is allowed at the top. Pretty-printed.
std::string json_schema(const TableInfo& root, const std::string& title);
/// Markdown: a section per table, each field with type, default and meaning; choices below.
std::string markdown_reference(const TableInfo& root, const std::string& title);

template <typename T>
std::string json_schema(const Fields<T>& root, const std::string& title) {
  return json_schema(*root.table(), title);
}
template <typename T>
std::string markdown_reference(const Fields<T>& root, const std::string& title) {
  return markdown_reference(*root.table(), title);
}

}  // namespace rehearse::config
