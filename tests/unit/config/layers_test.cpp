#include "sim/config/layers.h"

#include <gtest/gtest.h>

#include "tests/unit/config/helpers.h"

namespace rehearse::config::layers_test {
namespace {

Value parse(const std::string& text) { return parse_document(text, "a.yaml").root; }

TEST(Extends, OwnKeysWinAndMapsMergeDeeply) {
  const TempFolder folder;
  folder.write("base.yaml",
               "model: gpt2\ntraining:\n  micro_batch_size: 1\n  precision: bf16\nlist: [1, 2, 3]\n");
  folder.write("run.yaml", "extends: base.yaml\ntraining:\n  micro_batch_size: 4\n  new: x\nlist: [9]\n");
  const Value root = load_layered(folder.path("run.yaml"));
  EXPECT_EQ(to_yaml(root),
            "model: gpt2\ntraining:\n  micro_batch_size: 4\n  precision: bf16\n  new: x\nlist:\n  - 9\n");
  const Value& training = *root.find("training");
  EXPECT_EQ(folder.without_folder(to_string(training.find("micro_batch_size")->at())), "run.yaml:3:21");
  EXPECT_EQ(folder.without_folder(to_string(training.find("precision")->at())), "base.yaml:4:14");
  EXPECT_EQ(training.find("precision")->path(), "training.precision");
  EXPECT_EQ(root.find("extends"), nullptr);
}

TEST(Extends, ListsOfFilesLaterWinsAndPathsAreRelative) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("parts"));
  folder.write("parts/a.yaml", "extends: deep.yaml\nx: a\ny: a\n");
  folder.write("parts/deep.yaml", "x: deep\nz: deep\n");
  folder.write("b.yaml", "y: b\n");
  folder.write("run.yaml", "extends: [parts/a.yaml, b.yaml]\nw: own\n");
  EXPECT_EQ(to_yaml(load_layered(folder.path("run.yaml"))), "x: a\nz: deep\ny: b\nw: own\n");
}

TEST(Extends, AnEmptyKeyTakesAwayWhatIsBelow) {
  EXPECT_EQ(to_yaml(merged(parse("a: {b: 1}\nc: 2\nd: 3\n"), parse("a: ~\nc:\n"))), "d: 3\n");
  EXPECT_EQ(to_yaml(merged(parse("a: {b: 1, c: 2}\n"), parse("a: {b: ~}\n"))), "a:\n  c: 2\n");
  EXPECT_EQ(to_yaml(merged(parse("a: 1\n"), parse("typo: ~\n"))), "a: 1\ntypo: null\n") << "what takes nothing away is still there to be named";
}

TEST(Extends, MissingFilesAndCirclesNameTheChain) {
  const TempFolder folder;
  folder.write("run.yaml", "extends: bas.yaml\n");
  folder.write("base.yaml", "extends: ./run2.yaml\n");
  folder.write("run2.yaml", "a: 1\nextends: [base.yaml, gone]\n");
  const auto refused = [&](const std::string& name) {
    return folder.without_folder(error_of([&] { load_layered(folder.path(name)); }));
  };
  EXPECT_EQ(refused("run.yaml"),
            "run.yaml:1:10: extends: bas.yaml: no such file (run.yaml -> bas.yaml). Did you mean base.yaml?");
  EXPECT_EQ(refused("run2.yaml"),
            "base.yaml:1:10: extends: the files extend each other in a circle (run2.yaml -> base.yaml -> "
            "run2.yaml). "
            "Remove one of the extends\n"
            "run2.yaml:2:22: extends[1]: gone: no such file (run2.yaml -> gone). Check the path");
  folder.write("self.yaml", "extends: self.yaml\n");
  EXPECT_NE(refused("self.yaml").find("in a circle (self.yaml -> self.yaml)"), std::string::npos);
  folder.write("odd.yaml", "extends: {a: 1}\n");
  EXPECT_EQ(refused("odd.yaml"), "odd.yaml:1:10: extends: needs a file name. Write extends: base.yaml");
}

TEST(Extends, MistakesInBaseFilesKeepTheirPlace) {
  const TempFolder folder;
  folder.write("base.yaml", "a: 1\na: 2\n");
  folder.write("list.yaml", "[1]\n");
  folder.write("run.yaml", "extends: [base.yaml, list.yaml]\n");
  EXPECT_EQ(folder.without_folder(error_of([&] { load_layered(folder.path("run.yaml")); })),
            "base.yaml:2:1: a: duplicate key (first on line 1). Keep one of them\n"
            "list.yaml:1:1: needs 'key: value' lines to be extended");
}

TEST(Extends, DoublingFamiliesAreBounded) {
  const TempFolder folder;
  folder.write("f0.yaml", "a: 1\n");
  for (int i = 1; i < 30; ++i) {
    const std::string below = "f" + std::to_string(i - 1) + ".yaml";
    folder.write("f" + std::to_string(i) + ".yaml", "extends: [" + below + ", " + below + "]\n");
  }
  EXPECT_NE(error_of([&] { load_layered(folder.path("f29.yaml")); }).find("extends reads more than 64 files"),
            std::string::npos);
}

TEST(Overrides, SetCreateAndReplace) {
  const Value root = parse("a:\n  b: 1\n  c: 2\nstages: [{n: 1}, {n: 2}]\n");
  EXPECT_EQ(to_yaml(apply_override(root, "a.b=7")),
            "a:\n  b: 7\n  c: 2\nstages:\n  -\n    n: 1\n  -\n    n: 2\n");
  EXPECT_EQ(apply_override(root, "stages[1].n=9").find("stages")->items()[1].find("n")->text(), "9");
  EXPECT_EQ(apply_override(root, "x.y.z=80 GiB").find("x")->find("y")->find("z")->text(), "80 GiB");
  EXPECT_TRUE(apply_override(root, "a=").find("a")->is_null());
  EXPECT_EQ(to_yaml(apply_override(root, "a = {d: [1, 2]}").find("a")[0]), "d:\n  - 1\n  - 2\n");
  EXPECT_EQ(to_yaml(merged(parse("model: llama-3-8b"), parse("model: {layers: 8}"))), "model:\n  preset: llama-3-8b\n  layers: 8\n");
  EXPECT_EQ(to_yaml(merged(parse("model: llama-3-8b"), parse("model: {layers: 8, hidden: 512}"))), "model:\n  layers: 8\n  hidden: 512\n");
  EXPECT_EQ(to_yaml(merged(parse("model: llama-3-8b"), parse("model: {preset: gpt2}"))), "model:\n  preset: gpt2\n");
  EXPECT_EQ(to_yaml(merged(parse("sweep: llama-3-8b"), parse("sweep: {layers: 8}"))), "sweep:\n  layers: 8\n");
  EXPECT_EQ(to_yaml(apply_override(parse("model: llama-3-8b"), "model.layers=8")), "model:\n  preset: llama-3-8b\n  layers: 8\n");
  EXPECT_EQ(to_yaml(apply_override(Value(), "a.b=1")), "a:\n  b: 1\n");
  EXPECT_EQ(apply_override(root, "a.b=x=y").find("a")->find("b")->text(), "x=y");
  EXPECT_EQ(root.find("a")->find("b")->text(), "1");  // the original is constant
}

TEST(Overrides, KeysThatHoldDotsAreFound) {
  const Value root = parse("sweep:\n  parallelism.tensor: [1, 2]\n");
  EXPECT_EQ(to_yaml(apply_override(root, "sweep.parallelism.tensor=[4]")),
            "sweep:\n  parallelism.tensor:\n    - 4\n");
}

TEST(Overrides, PlaceIsTheOption) {
  const Value b = *apply_override(parse("a: {b: 1}"), "a.b=[x, {c: 2}]").find("a")->find("b");
  EXPECT_EQ(to_string(b.at()), "--set a.b");
  EXPECT_EQ(b.path(), "a.b");
  EXPECT_EQ(b.items()[1].find("c")->path(), "a.b[1].c");
  EXPECT_EQ(to_string(b.items()[1].find("c")->at()), "--set a.b");
}

TEST(Overrides, AllMistakesAtOnce) {
  const Value root = parse("a: 3\nl: [1]\n");
  EXPECT_EQ(
      error_of([&] {
        apply_overrides(root, {"a.b=1", "novalue", "=1", "l[5]=2", "l[x]=2", "a[0]=1", "q..r=1", "q.=1",
                               "c=[1", "d={x: 1, x: 2}", "e=1\n---\n2"});
      }),
      "--set a.b: a.b: a is not a map here. It was set at a.yaml:1:4\n"
      "--set novalue: needs a key and a value. Write --set training.micro_batch_size=4\n"
      "--set : needs a key and a value. Write --set training.micro_batch_size=4\n"
      "--set l[5]: l[5]: the list has 1 items (they count from 0). It was set at a.yaml:2:4\n"
      "--set l[x]: l[x]: '[' needs a number and ']'. Items count from 0: stages[0]\n"
      "--set a[0]: a[0]: a is not a list here. It was set at a.yaml:1:4\n"
      "--set q..r: q..r: an empty name in the key. Write --set part.part=value\n"
      "--set q.: q.: the key ends with a dot. Write --set part.part=value\n"
      "--set c: c: a list or map stands where a key is needed. Close its bracket, or write a name, then ':'\n"
      "--set d: d.x: duplicate key. Keep one of them\n"
      "--set e: a second document starts here (a file holds one). Put it into a file of its own, or check "
      "the "
      "indentation of this line");
}

}  // namespace
}  // namespace rehearse::config::layers_test
