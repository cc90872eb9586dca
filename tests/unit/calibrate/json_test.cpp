// Our reader of JSON beside nlohmann's: what the one takes, the other takes, and it says the same.
#include "calibrate/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace rehearse::calibrate::json_test {
namespace {

/// Equal, member by member; numbers to the last bit.
bool same(const JsonValue& a, const nlohmann::ordered_json& b) {
  if (std::holds_alternative<std::nullptr_t>(a.value)) return b.is_null();
  if (const bool* v = a.get<bool>()) return b.is_boolean() && b.get<bool>() == *v;
  if (const auto* v = a.get<std::int64_t>()) return b.is_number() && b.get<double>() == static_cast<double>(*v) && (!b.is_number_integer() || b.get<std::int64_t>() == *v);
  if (const double* v = a.get<double>()) return b.is_number() && b.get<double>() == *v;
  if (const auto* v = a.get<std::string>()) return b.is_string() && b.get<std::string>() == *v;
  if (const auto* items = a.get<JsonValue::Items>()) {
    if (!b.is_array() || items->size() != b.size()) return false;
    for (std::size_t i = 0; i < items->size(); ++i)
      if (!same((*items)[i], b[i])) return false;
    return true;
  }
  if (!b.is_object()) return false;
  for (const auto& [key, value] : b.items()) {
    const JsonValue* mine = a.find(key);
    if (mine == nullptr || !same(*mine, value)) return false;
  }
  return true;
}

/// None when the text is refused.
std::optional<ParsedJson> parsed(const std::string& text) {
  try {
    return parse_json(text);
  } catch (const JsonError& e) {
    EXPECT_GT(e.at.line, 0);
    EXPECT_LE(static_cast<std::size_t>(e.at.column), text.size() + 1);
    return std::nullopt;
  }
}

TEST(Json, AgreesWithAnotherReaderOnDamagedTexts) {
  const std::vector<std::string> seeds = {
      R"({"a": [1, -2, 3.5, 1e-5, -0.0, 1E+3, 12345678901234567890, 9223372036854775807], "b": {"c": "x\n\"\u00e9\ud83d\ude00\/", "d": null}, "e": [true, false, [], {}]})",
      "[\"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\", \"\\u0041\\t\", 0, -0, 0.1, 1e308, 1e-400, 5e-324]",
      "{\n \"k\": \"v\",\n \"k2\": [\n  {\"x\": 1}\n ]\n}\n"};
  std::mt19937 draw(1);
  const std::string likely = "{}[],:\"\\0123456789.eE+-u tfnaldrsb\xC3\xA9\xED\xA0\x80";
  int taken = 0, refused = 0;
  for (const std::string& seed : seeds)
    for (int i = 0; i < 20000; ++i) {
      std::string text = seed;
      for (int changes = static_cast<int>(draw() % 4); changes > 0; --changes) {
        const std::size_t at = draw() % (text.size() + 1);
        const char c = draw() % 3 == 0 ? static_cast<char>(draw() % 256) : likely[draw() % likely.size()];
        switch (draw() % 3) {
          case 0: text.insert(at, 1, c); break;
          case 1: if (at < text.size()) text.erase(at, 1); break;
          default: if (at < text.size()) text[at] = c;
        }
      }
      const auto mine = parsed(text);
      nlohmann::ordered_json theirs;
      bool they = true;
      try {
        theirs = nlohmann::ordered_json::parse(text);
      } catch (const nlohmann::json::exception&) {
        they = false;
      }
      // A byte order mark is theirs to skip; a repeated key keeps the last value in both.
      ASSERT_EQ(mine.has_value(), they) << text;
      if (they) {
        ASSERT_TRUE(same(mine->root, theirs)) << text;
        ++taken;
      } else {
        ++refused;
      }
    }
  EXPECT_GT(taken, 5000);
  EXPECT_GT(refused, 5000);
}

TEST(Json, ValuesKnowTheirPlaces) {
  const ParsedJson p = parse_json("{\n \"a\": [1,\n   {\"b\": 2, \"b\": 3}]}");
  const JsonValue& b = *(*p.root.find("a")->get<JsonValue::Items>())[1].find("b");
  EXPECT_EQ(*b.get<std::int64_t>(), 3);
  EXPECT_EQ(b.at.line, 3);
  EXPECT_EQ(b.at.column, 18);
  EXPECT_EQ(to_string(p.repeated), "a[1].b");
  EXPECT_EQ(p.repeated_at.line, 3);
  try {
    parse_json("[1,\n 2 3]");
    FAIL();
  } catch (const JsonError& e) {
    EXPECT_EQ(e.at.line, 2);
    EXPECT_EQ(e.at.column, 4);
  }
}

TEST(Json, DeepTextsAreRefusedNotOverflown) { EXPECT_FALSE(parsed(std::string(1'000'000, '['))); }

TEST(Json, WhatIsWrittenIsReadByOthersToTheLastBit) {
  std::mt19937_64 draw(2);
  for (int i = 0; i < 20000; ++i) {
    const double v = std::bit_cast<double>(draw());
    if (!std::isfinite(v)) continue;
    ASSERT_EQ(nlohmann::json::parse(json_number(v)).get<double>(), v) << json_number(v);
    ASSERT_EQ(*parse_json(json_number(v)).root.get<double>(), v);
  }
  EXPECT_EQ(json_number(180), "180.0");
  for (int i = 0; i < 5000; ++i) {
    std::string text(draw() % 12, '\0');
    for (char& c : text) c = static_cast<char>(draw() % 256);
    const auto theirs = nlohmann::json::parse(json_text(text)).get<std::string>();  // throws when it is no JSON
    ASSERT_EQ(*parse_json(json_text(text)).root.get<std::string>(), theirs);
  }
  EXPECT_EQ(nlohmann::json::parse(json_text("a\"\\\n\x01 \xC3\xA9")).get<std::string>(), "a\"\\\n\x01 \xC3\xA9");
}

}  // namespace
}  // namespace rehearse::calibrate::json_test
