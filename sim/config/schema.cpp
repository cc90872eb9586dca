// JSON Schema and reference page, written from the same tables that read the files.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "sim/config/fields.h"

namespace rehearse::config {

namespace detail {

FieldInfo described(std::string name, std::string doc, FieldInfo::Shape shape, ScalarType type) {
  FieldInfo info;
  info.name = std::move(name);
  info.doc = std::move(doc);
  info.shape = shape;
  info.type = std::move(type);
  using Shape = FieldInfo::Shape;
  if (shape == Shape::table) info.type.words = "map";
  if (shape == Shape::table_list) info.type.words = "list of maps";
  if (shape == Shape::table_map) info.type.words = "map of named maps";
  return info;
}

std::string list_text(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out += (out.size() > 1 ? ", " : "") + item;
  return out + "]";
}

}  // namespace detail

namespace {

using Json = nlohmann::ordered_json;
using Shape = FieldInfo::Shape;

Json schema_of(const TableInfo& table);

/// A scalar default as JSON: what reads as JSON is a number or boolean, the rest is text.
Json default_of(const FieldInfo& field, const Json& schema) {
  const std::string kind = schema.contains("type") && schema["type"].is_string() ? schema["type"] : "";
  if (field.default_text != field.word && (kind == "integer" || kind == "number" || kind == "boolean")) {
    Json value = Json::parse(field.default_text, nullptr, false);
    if (!value.is_discarded()) return value;
  }
  return field.default_text;
}

Json schema_of(const FieldInfo& field) {
  Json schema;
  switch (field.shape) {
    case Shape::scalar:
    case Shape::custom:
      schema = Json::parse(field.type.schema);
      break;
    case Shape::list:
      schema = {{"type", "array"}, {"items", Json::parse(field.type.schema)}};
      break;
    case Shape::table:
      schema = schema_of(*field.table);
      break;
    case Shape::table_list:
      schema = {{"type", "array"}, {"items", schema_of(*field.table)}};
      break;
    case Shape::table_map:
      schema = {{"type", "object"}, {"additionalProperties", schema_of(*field.table)}};
      break;
  }
  const Json plain = schema;
  Json alternatives = Json::array({plain});
  if (!field.word.empty()) alternatives.push_back({{"const", field.word}});
  if (!field.shorthand.empty()) alternatives.push_back(schema_of(*field.table->find(field.shorthand)));
  if (alternatives.size() > 1) schema = {{"anyOf", alternatives}};
  schema["description"] = field.doc;
  if (field.shape == Shape::scalar && !field.default_text.empty())
    schema["default"] = default_of(field, plain);
  return schema;
}

/// A schema that holds where the dotted key is present.
Json presence_of(const std::string& key) {
  const auto dot = key.find('.');
  const std::string name = key.substr(0, dot);
  Json schema = {{"required", Json::array({name})}};
  if (dot != std::string::npos) schema["properties"] = {{name, presence_of(key.substr(dot + 1))}};
  return schema;
}

/// The keys of a map and their forms; which of them must be there says requirements_of.
Json schema_of(const TableInfo& table) {
  Json properties = Json::object();
  for (const FieldInfo& field : table.fields) properties[field.name] = schema_of(field);
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", properties}};
}

Json requirements_of(const TableInfo& table);

/// What a field's own keys must hold; null when nothing.
Json requirements_of(const FieldInfo& field) {
  if (!field.table) return nullptr;
  const Json inside = requirements_of(*field.table);
  if (inside.empty()) return nullptr;
  if (field.shape == Shape::table_list) return {{"items", inside}};
  if (field.shape == Shape::table_map) return {{"additionalProperties", inside}};
  return inside;
}

/// Which keys must be there, down the whole tree: a schema to stand beside schema_of. Empty when none must.
Json requirements_of(const TableInfo& table) {
  Json required = Json::array();
  Json properties = Json::object();
  std::map<std::string, Json> required_unless;
  for (const FieldInfo& field : table.fields) {
    if (field.required) (field.unless.empty() ? required : required_unless[field.unless]).push_back(field.name);
    if (Json inside = requirements_of(field); !inside.is_null()) properties[field.name] = std::move(inside);
  }
  Json schema = Json::object();
  if (!required.empty()) schema["required"] = required;
  for (const auto& [key, names] : required_unless) schema["allOf"].push_back({{"if", presence_of(key)}, {"else", {{"required", names}}}});
  if (!properties.empty()) schema["properties"] = properties;
  return schema;
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string type_words(const FieldInfo& field) {
  std::string words = field.shape == Shape::list ? "list of " + field.type.words : field.type.words;
  if (!field.type.choices.empty()) words = field.shape == Shape::list ? "list of choices" : "choice";
  if (!field.word.empty()) words += fmt::format(", or `{}`", field.word);
  if (!field.shorthand.empty()) words += fmt::format(", or `{}` alone", field.shorthand);
  return words;
}

void write_section(const TableInfo& table, const std::string& path, std::string& out) {
  out += "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const FieldInfo& field : table.fields) {
    const std::string otherwise = field.required && !field.unless.empty() ? fmt::format("**required** unless `{}`", field.unless)
                                  : field.required             ? "**required**"
                                  : field.default_text.empty() ? "-"
                                                               : "`" + field.default_text + "`";
    out += fmt::format("| `{}` | {} | {} | {} |\n", field.name, cell(type_words(field)), cell(otherwise),
                       cell(field.doc));
  }
  for (const FieldInfo& field : table.fields) {
    if (field.type.choices.empty()) continue;
    out += fmt::format("\n`{}`:\n\n", field.name);
    for (const auto& [word, doc] : field.type.choices) out += fmt::format("- `{}`: {}\n", word, doc);
  }
  for (const FieldInfo& field : table.fields) {
    if (!field.table) continue;
    const char* suffix = field.shape == Shape::table_list  ? "[]"
                         : field.shape == Shape::table_map ? ".<name>"
                                                           : "";
    const std::string here = child_path(path, field.name) + suffix;
    out += fmt::format("\n## {}\n\n{}\n\n", here, field.doc);
    write_section(*field.table, here, out);
  }
}

}  // namespace

/// Read before any table (layers.h), so no table has it.
constexpr const char* kExtends = "file or files that this one completes; paths relative to this file";

std::string json_schema(const TableInfo& root, const std::string& title) {
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", title}};
  const Json file_name = {{"type", "string"}};
  schema.update(schema_of(root));
  // A file that extends others may leave required keys to them, at every depth.
  if (const Json requirements = requirements_of(root); !requirements.empty()) {
    schema["if"] = {{"required", Json::array({"extends"})}};
    schema["else"] = requirements;
  }
  schema["properties"]["extends"] = {
      {"description", kExtends},
      {"anyOf", Json::array({file_name, {{"type", "array"}, {"items", file_name}}})}};
  return schema.dump(2) + "\n";
}

std::string markdown_reference(const TableInfo& root, const std::string& title) {
  std::string out = "# " + title + "\n\n";
  write_section(root, "", out);
  return out;
}

}  // namespace rehearse::config
