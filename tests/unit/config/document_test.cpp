#include "sim/config/document.h"

#include <gtest/gtest.h>

#include "tests/unit/config/helpers.h"

namespace rehearse::config::document_test {
namespace {

Value parse(const std::string& text) { return parse_document(text, "a.yaml").root; }
std::string refusal(const std::string& text) {
  return error_of([&] { parse(text); });
}

TEST(Document, ValuesKnowTheirPlaceAndKey) {
  const Value root = parse("model: gpt2\ntraining:\n  stages:\n    - layers: 3\n    - layers: 5\n");
  const Value& layers = *root.find("training")->find("stages")->items()[1].find("layers");
  EXPECT_EQ(layers.text(), "5");
  EXPECT_EQ(to_string(layers.at()), "a.yaml:5:15");
  EXPECT_EQ(layers.path(), "training.stages[1].layers");
  EXPECT_EQ(layers.place().excerpt(), "    - layers: 5");
  EXPECT_EQ(root.entries()[1].key, "training");
  EXPECT_EQ(to_string(root.entries()[1].key_place.location()), "a.yaml:2:1");
  EXPECT_EQ(root.find("absent"), nullptr);
}

TEST(Document, ColumnsCountCharactersNotBytes) {
  const Value root = parse("{\"größe\": 1, b: 2}");  // ö and ß take two bytes each
  EXPECT_EQ(to_string(root.find("b")->at()), "a.yaml:1:17");
}

TEST(Document, CarriageReturnsAndByteOrderMark) {
  const Value root = parse(
      "\xEF\xBB\xBF"
      "a: 1\r\nb: x y\r\n");
  EXPECT_EQ(root.find("a")->text(), "1");
  EXPECT_EQ(root.find("b")->text(), "x y");
  EXPECT_EQ(to_string(root.find("b")->at()), "a.yaml:2:4");
  EXPECT_EQ(root.find("b")->place().excerpt(), "b: x y");
}

TEST(Document, ScalarsStayAsTyped) {
  const Value root = parse("[010, 1e6, 1_000, yes, NO, 0x10, '7', \"a\\nb\", ~, null, , 12:30:45]");
  const char* const expected[] = {"010", "1e6", "1_000", "yes", "NO", "0x10", "7", "a\nb"};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(root.items()[i].text(), expected[i]);
  EXPECT_FALSE(root.items()[0].quoted());
  EXPECT_TRUE(root.items()[6].quoted());
  EXPECT_TRUE(root.items()[8].is_null());
  EXPECT_TRUE(root.items()[9].is_null());
}

TEST(Document, BlockScalarsAreText) {
  const Value root = parse("a: |\n  1\n  2\nb: >-\n  3\n  4\n");
  EXPECT_EQ(root.find("a")->text(), "1\n2\n");
  EXPECT_EQ(root.find("b")->text(), "3 4");
  EXPECT_TRUE(root.find("b")->quoted());
}

TEST(Document, EmptyFilesAreNull) {
  for (const char* text : {"", "\n\n", "# nothing\n", "---\n"}) {
    const Value root = parse(text);
    EXPECT_TRUE(root.is_null()) << text;
    EXPECT_EQ(to_string(root.at()), "a.yaml");
  }
}

TEST(Document, Json) {
  const Value root = parse(
      "{\n\t\"eps\":1e-05, \"limit\": Infinity, \"low\": -Infinity,\n\t\"bad\":NaN, \"none\": null,"
      " \"s\": \"a\\/b \\u00e9 \\ud83d\\ude00\", \"l\":[1,2 , true]}");
  EXPECT_EQ(root.find("eps")->text(), "1e-05");
  EXPECT_EQ(root.find("limit")->text(), "Infinity");
  EXPECT_EQ(root.find("low")->text(), "-Infinity");
  EXPECT_EQ(root.find("bad")->text(), "NaN");
  EXPECT_TRUE(root.find("none")->is_null());
  EXPECT_EQ(root.find("s")->text(), "a/b \u00e9 \U0001F600");
  EXPECT_EQ(root.find("l")->items().size(), 3u);
  EXPECT_EQ(to_string(root.find("bad")->at()), "a.yaml:3:8");
}

TEST(Document, DuplicateKeysAreAllNamed) {
  EXPECT_EQ(refusal("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n"),
            "a.yaml:4:3: b.c: duplicate key (first on line 3). Keep one of them\n"
            "a.yaml:5:1: a: duplicate key (first on line 1). Keep one of them");
  EXPECT_EQ(refusal("{\"a\": 1, \"a\": 2}"),
            "a.yaml:1:10: a: duplicate key (first on line 1). Keep one of them");
}

TEST(Document, MergeKeysAndTagsAreRefused) {
  EXPECT_EQ(refusal("x: &x {a: 1}\ny:\n  <<: *x\n  b: !!int 2\n"),
            "a.yaml:3:3: y.<<: merge keys are not supported (YAML dropped them in version 1.2). Write the "
            "keys out, "
            "or put the shared ones into a file and name it with extends\n"
            "a.yaml:4:6: y.b: tag tag:yaml.org,2002:int has no meaning here. Remove the tag");
}

// PyYAML, which reads the files of frameworks written in Python.
TEST(Document, PyYamlTakesTheLastValueAndMerges) {
  const Value root = parse_document("base: &base {a: 1, b: {c: 2}}\nother: &other {a: 7, d: 8}\ny:\n  <<: *base\n  a: 3\n  a: 4\nz:\n  <<: [*base, *other]\n  e: 9\n", "a.yaml", Dialect::pyyaml).root;
  const Value &y = *root.find("y"), &z = *root.find("z");
  EXPECT_EQ(y.find("a")->text(), "4");
  EXPECT_EQ(y.find("a")->path(), "y.a");
  EXPECT_EQ(to_string(y.find("a")->at()), "a.yaml:6:6");
  EXPECT_EQ(y.find("b")->find("c")->text(), "2");
  EXPECT_EQ(y.find("b")->find("c")->path(), "y.b.c");
  EXPECT_EQ(y.entries().size(), 2u);
  EXPECT_EQ(z.find("a")->text(), "1");   // of several maps the first
  EXPECT_EQ(z.find("d")->text(), "8");
  EXPECT_EQ(z.find("e")->text(), "9");
  EXPECT_EQ(z.entries().size(), 4u);
  EXPECT_EQ(error_of([] { parse_document("a: {<<: 1}\n", "a.yaml", Dialect::pyyaml); }), "a.yaml:1:5: a: a merge key without a map. Name a map, or a list of maps, behind <<");
  EXPECT_EQ(parse_document("a: {'<<': 1}\n", "a.yaml", Dialect::pyyaml).root.find("a")->find("<<")->text(), "1");
}

TEST(Document, SecondDocument) {
  EXPECT_EQ(
      refusal("a: 1\n---\nb: 2\n"),
      "a.yaml:2:1: a second document starts here (a file holds one). Put it into a file of its own, or check "
      "the indentation of this line");
  EXPECT_EQ(refusal("---\na: 1\n...\n"), "");
}

TEST(Document, Tabs) {
  EXPECT_EQ(refusal("a:\n  b: 1\n\tc: 2\n"),
            "a.yaml:3:1: a tab as indentation (YAML does not say how wide it is). Use spaces");
  EXPECT_EQ(refusal("a: 1\n \t \nb:\t2\n"), "");  // blank line; tab as separation
}

TEST(Document, SyntaxErrorsSpeakOfWhatPeopleDo) {
  EXPECT_EQ(refusal("a: b: c\n"),
            "a.yaml:1:5: ':' does not fit here. Quote text that holds ': ', or check the indentation");
  EXPECT_EQ(
      refusal("a:\n  b: 1\n c: 2\n"),
      "a.yaml:3:2: this line belongs to no key. Write 'key: value' with a space after ':', and align it with "
      "its neighbours");
  EXPECT_EQ(refusal("a: [1, 2\nb: 3\n"), "a.yaml:2:2: '[' is not closed before this. Add ']' or a comma");
  EXPECT_EQ(refusal("a: \"x\n"), "a.yaml:1:4: this quote is never closed. Add the closing quote");
  EXPECT_EQ(refusal("a: \"x"), "a.yaml:1:6: a quote is not closed before the end. Add the closing quote");
  EXPECT_EQ(refusal("a: &b 'x''\nb: 2\n"), "a.yaml:1:4: this quote is never closed. Add the closing quote");
  EXPECT_EQ(refusal("a: *b\n"), "a.yaml:1:4: the alias names no anchor above it. Define it with &name first");
  EXPECT_EQ(refusal("a: @b\n"), "a.yaml:1:4: a character that YAML reserves. Quote the text");
}

TEST(Document, KeysMustBeShortText) {
  EXPECT_EQ(
      refusal("[a, b]: 1\n"),
      "a.yaml:1:1: a list or map stands where a key is needed. Close its bracket, or write a name, then ':'");
  EXPECT_EQ(refusal("a: 1\nb\n"), "a.yaml:2:1: b: no ':' after the key. Write 'key: value'");
  EXPECT_EQ(refusal("{a, 'b', c: 1}"),
            "a.yaml:1:2: a: no ':' after the key. Write 'key: value'\n"
            "a.yaml:1:5: b: no ':' after the key. Write 'key: value'");
  EXPECT_EQ(refusal("a:\n'b' :\n\"c\":\n&x d:\n"), "");  // empty values are no mistake here
  EXPECT_EQ(refusal("a:\n  : 1\n"), "a.yaml:2:3: a: an empty key. Write a name before ':'");
  EXPECT_EQ(refusal(std::string(300, 'k') + ": 1"),
            "a.yaml:1:1: a key of 300 bytes (the limit is 256). Is a quote missing?");
}

TEST(Document, AliasesAreCopiesWithTheirOwnKey) {
  const Value root = parse("base: &b\n  tensor: 3\nuse: *b\n&k name: 1\nlist: [*k]\n");
  const Value& use = *root.find("use");
  EXPECT_EQ(use.path(), "use");
  EXPECT_EQ(to_string(use.at()), "a.yaml:3:6");
  EXPECT_EQ(use.find("tensor")->path(), "use.tensor");
  EXPECT_EQ(to_string(use.find("tensor")->at()), "a.yaml:2:11");  // where it can be mended
  EXPECT_EQ(root.find("list")->items()[0].text(), "name");
}

TEST(Document, AliasBombs) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += "*a" + std::to_string(i - 1) + (k < 9 ? ", " : "]\n");
  }
  EXPECT_NE(refusal(bomb).find("more than 200000 values once its aliases are written out"),
            std::string::npos);

  std::string wide = "a: &a " + std::string(1 << 20, 'x') + "\nb: [";
  for (int i = 0; i < 100; ++i) wide += "*a, ";
  EXPECT_NE(refusal(wide + "]").find("more than 64 MiB once its aliases are written out"), std::string::npos);

  EXPECT_EQ(refusal("a: &a [1, *a]\n"),
            "a.yaml:1:11: a[1]: an alias inside the value that it names. Write the value out");
}

TEST(Document, NestingIsBounded) {
  const auto nested = [](int depth) {
    const auto n = static_cast<std::size_t>(depth);
    return std::string(n, '[') + std::string(n, ']');
  };
  EXPECT_EQ(refusal(nested(64)), "");
  EXPECT_EQ(refusal(nested(65)), "a.yaml:1:65: nested deeper than 64 levels. Is a bracket or quote missing?");
  EXPECT_NE(refusal(std::string(100000, '[')), "");
  EXPECT_NE(refusal(std::string(100000, '{')), "");
}

TEST(Document, OneLongLineIsReadInLinearTime) {
  std::string text = "[";
  for (int i = 0; i < 150'000; ++i) text += std::to_string(i) + ",";  // 1 MB; a square would take minutes
  const Value root = parse(text + "end]");
  EXPECT_EQ(root.items().size(), 150'001u);
  EXPECT_EQ(root.items().back().at().column, static_cast<int>(text.size()) + 1);
  EXPECT_EQ(root.items().back().place().excerpt().size(), 203u);
}

TEST(Document, BytesThatAreNoText) {
  EXPECT_EQ(refusal("a: 1\nb: \xFF\n"), "a.yaml:2:4: byte 0xFF is not UTF-8 text. Save the file as UTF-8");
  EXPECT_EQ(refusal("a: \xC0\x80\n"), "a.yaml:1:4: byte 0xC0 is not UTF-8 text. Save the file as UTF-8");
  EXPECT_EQ(refusal(std::string("a\0b", 3)),
            "a.yaml:1:2: holds a NUL byte (is it a binary or UTF-16 file?). Save the file as UTF-8");
}

TEST(Document, FilesThatCannotBeRead) {
  const TempFolder folder;
  folder.write("gpt2.yaml", "a: 1\n");
  EXPECT_EQ(load_document(folder.path("gpt2.yaml")).root.find("a")->text(), "1");
  const auto refused = [&](const std::string& name) {
    return folder.without_folder(error_of([&] { load_document(folder.path(name)); }));
  };
  EXPECT_EQ(refused("gpt3.yaml"), "gpt3.yaml: no such file. Did you mean gpt2.yaml?");
  EXPECT_EQ(refused("completely-different.txt"), "completely-different.txt: no such file. Check the path");
  EXPECT_EQ(error_of([&] { load_document("no-such-folder/x.yaml"); }),
            "no-such-folder/x.yaml: no such file. The folder no-such-folder does not exist");
  std::filesystem::create_directory(folder.path("sub"));
  EXPECT_EQ(refused("sub"), "sub: is a folder, not a file. Name a file in it");

  folder.write("big.yaml", "");
  std::filesystem::resize_file(folder.path("big.yaml"), std::uintmax_t{1} << 30);  // sparse
  EXPECT_EQ(refused("big.yaml"),
            "big.yaml: is larger than 16 MiB, the limit for this kind of file. Is it the file you meant?");
}

TEST(Document, WrittenYamlReadsBackTheSame) {
  const Value root = parse(
      "a: 1\nb: 'x: y'\nc: [1, [2, {d: 3}], {}, [], '']\n\"k: l\": |\n  two\n  lines\ne: {f: {g: null}}\nh: "
      "-5 GB/s\n"
      "i: '8'\nj: \"\\t\\\"\\\\\"\nk: 'null'\nl: ' x '\nm: '- a'\nn: '#'\n");
  const std::string written = to_yaml(root);
  EXPECT_TRUE(same_content(root, parse(written))) << written;
  EXPECT_TRUE(parse(written).find("i")->quoted());
  EXPECT_EQ(to_yaml(parse("a: {b: [1, x y]}")), "a:\n  b:\n    - 1\n    - x y\n");
}

}  // namespace
}  // namespace rehearse::config::document_test
