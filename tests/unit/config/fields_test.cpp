#include "sim/config/fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/config/layers.h"
#include "tests/unit/config/helpers.h"

namespace rehearse::config::fields_test {
namespace {

enum class Recompute { none, selective, full };

struct Training {
  std::int64_t micro_batch_size = 1;
  int sequence_length = 0;
  std::optional<std::int64_t> data;
  std::string precision = "bf16";
  bool compile = false;
  double learning_rate = 3e-4;
  std::vector<std::int64_t> stages = {1, 2};
};
struct Memory {
  Recompute recompute = Recompute::none;
  Bytes bucket = 25_MiB;
  std::optional<Bytes> cap = 80_GiB;
  double headroom = 0.05;
};
struct Link {
  BytesPerSecond bandwidth{900e9};
  Duration latency{2'000'000};
  FlopsPerSecond peak{312e12};
};
struct Scenario {
  Training training;
  std::optional<Memory> memory;
  Memory host;
  std::vector<Link> links;
  std::map<std::string, Link> named_links;
  std::int64_t sum = 0;
};

const Fields<Training>& training_fields() {
  static const Fields<Training> fields{
      integer("micro_batch_size", &Training::micro_batch_size, "samples per GPU per micro-step", positive),
      integer("sequence_length", &Training::sequence_length, "tokens per sample", between(1, 1e6)).required(),
      integer_or_auto("data", &Training::data, "data-parallel degree", positive),
      named("precision", &Training::precision, "number format", "precision",
            [] {
              return std::vector<std::string>{"fp32", "bf16", "fp8"};
            }),
      boolean("compile", &Training::compile, "torch.compile"),
      number("learning_rate", &Training::learning_rate, "does not change the time", non_negative),
      integer("stages", &Training::stages, "layers per stage", positive),
  };
  return fields;
}
const Fields<Memory>& memory_fields() {
  static const Fields<Memory> fields{
      choice("recompute", &Memory::recompute, "what is computed twice",
             {{"none", Recompute::none, "keep all"},
              {"selective", Recompute::selective, "attention | only"},
              {"full", Recompute::full, "every layer"}}),
      bytes("bucket", &Memory::bucket, "gradient bucket", positive),
      bytes("cap", &Memory::cap, "memory to use").word("unlimited"),
      fraction("headroom", &Memory::headroom, "kept free", between(0, 1)),
  };
  return fields;
}
const Fields<Link>& link_fields() {
  static const Fields<Link> fields{
      rate("bandwidth", &Link::bandwidth, "one direction", positive),
      duration("latency", &Link::latency, "one way"),
      flops_rate("peak", &Link::peak, "in-network reduction"),
  };
  return fields;
}
const Fields<Scenario>& scenario_fields() {
  static const Fields<Scenario> fields =
      Fields<Scenario>{
          nested("training", &Scenario::training, "how it trains", training_fields()),
          nested("memory", &Scenario::memory, "device memory", memory_fields()).shorthand("recompute"),
          nested("host", &Scenario::host, "host memory", memory_fields()),
          list_of("links", &Scenario::links, "links", link_fields()),
          map_of("named_links", &Scenario::named_links, "links by name", link_fields()),
          custom<Scenario>("sum", "sum of a list", "list of integers", R"({"type":"array"})",
                           [](const Value& v, Scenario& run, FieldReader& reader) {
                             if (!v.is_list()) return reader.complain(v, "needs a list");
                             for (const Value& item : v.items()) run.sum += *parse_integer(item.text()).value;
                           }),
      }
          .check([](const Value& v, const Scenario& run, FieldReader& reader) {
            if (run.sum > 100) reader.complain(*v.find("sum"), "is more than 100");
          });
  return fields;
}

Scenario read_scenario(const std::string& text, Diagnostics& out, Provenance* given = nullptr) {
  return read(parse_document(text, "a.yaml").root, scenario_fields(), out, given);
}
std::string mistakes(const std::string& text) {
  Diagnostics out;
  read_scenario(text, out);
  return error_of([&] { throw_if_any(out); });
}
std::string mistakes_in_training(const std::string& lines) {
  return mistakes("training:\n  sequence_length: 1\n" + lines);
}

TEST(Fields, ReadsEveryKindOfMember) {
  Diagnostics out;
  Provenance given;
  const Scenario run = read_scenario(
      "training: {micro_batch_size: 5e1, sequence_length: 4096, data: 8, precision: fp8, compile: true, "
      "learning_rate: 1e-5, stages: [3, 4]}\n"
      "memory: full\n"
      "host: {cap: unlimited, bucket: 1 MB, headroom: 10 %}\n"
      "links:\n  - bandwidth: 400 Gb/s\n  - {latency: 1 ns, peak: 1 PFLOPS}\n"
      "named_links: {rail: {latency: 5 us}}\nsum: [1, 2]\n",
      out, &given);
  EXPECT_EQ(out.size(), 0u) << to_string(out.front());
  EXPECT_EQ(run.training.micro_batch_size, 50);
  EXPECT_EQ(run.training.sequence_length, 4096);
  EXPECT_EQ(run.training.data, 8);
  EXPECT_EQ(run.training.precision, "fp8");
  EXPECT_TRUE(run.training.compile);
  EXPECT_EQ(run.training.learning_rate, 1e-5);
  EXPECT_EQ(run.training.stages, (std::vector<std::int64_t>{3, 4}));
  ASSERT_TRUE(run.memory.has_value());
  EXPECT_EQ(run.memory->recompute, Recompute::full);
  EXPECT_EQ(run.memory->cap, 80_GiB);
  EXPECT_EQ(run.host.cap, std::nullopt);
  EXPECT_EQ(run.host.bucket, Bytes{1'000'000});
  EXPECT_EQ(run.host.headroom, 0.1);
  ASSERT_EQ(run.links.size(), 2u);
  EXPECT_EQ(run.links[0].bandwidth, BytesPerSecond{50e9});
  EXPECT_EQ(run.links[1].peak, FlopsPerSecond{1e15});
  EXPECT_EQ(run.named_links.at("rail").latency, Duration{5'000'000});
  EXPECT_EQ(run.sum, 3);
}

TEST(Fields, AbsentKeysKeepTheDefaults) {
  Diagnostics out;
  const Scenario run = read_scenario("training: {sequence_length: 1, data: \"auto\"}\nhost:\n", out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(run.training.micro_batch_size, 1);
  EXPECT_EQ(run.training.data, std::nullopt);
  EXPECT_EQ(run.memory.has_value(), false);
  EXPECT_EQ(run.host.bucket, 25_MiB);
}

TEST(Fields, AllMistakesOfAFileAtOnceInFileOrder) {
  EXPECT_EQ(
      mistakes(
          "host:\n  bukcet: 1 MB\n  recompute: selectiv\ntraining:\n  micro_batchs: 3\n  compile: yes\n"),
      "a.yaml:2:3: host.bukcet: unknown key. Did you mean bucket?\n"
      "a.yaml:3:14: host.recompute: unknown choice 'selectiv'. Did you mean selective? Valid: none, "
      "selective, "
      "full\n"
      "a.yaml:5:3: training.micro_batchs: unknown key. Did you mean micro_batch_size?\n"
      "a.yaml:5:3: training.sequence_length: missing (tokens per sample). Write sequence_length: <integer, "
      "between 1 and 1000000>\n"
      "a.yaml:6:12: training.compile: needs true or false, not 'yes'. Write true");
}

TEST(Fields, MisplacedKeysAreToldWhereTheyBelong) {
  EXPECT_EQ(mistakes("learning_rate: 1\ntraining: {sequence_length: 1}\n"),
            "a.yaml:1:1: learning_rate: unknown key. It belongs at training.learning_rate");
}

TEST(Fields, WrongKindsOfValues) {
  EXPECT_EQ(mistakes("[1]\n"),
            "a.yaml:1:1: needs 'key: value' lines, not a list. Keys here: training, memory, host, links, "
            "named_links, sum");
  EXPECT_EQ(mistakes("training: 3\n"),
            "a.yaml:1:11: training: needs 'key: value' lines, not '3'. Keys here: micro_batch_size, "
            "sequence_length, "
            "data, precision, compile, learning_rate, stages");
  EXPECT_EQ(mistakes_in_training("  micro_batch_size: [1]\n"),
            "a.yaml:3:21: training.micro_batch_size: needs an integer, not a list. Write one value, without brackets");
  EXPECT_EQ(mistakes_in_training("  micro_batch_size:\n"),
            "a.yaml:3:3: training.micro_batch_size: needs an integer, not nothing. Write a value, or remove "
            "the key");
  EXPECT_EQ(
      mistakes_in_training("  micro_batch_size: '8'\n"),
      "a.yaml:3:21: training.micro_batch_size: needs an integer, not text in quotes. Remove the quotes");
  EXPECT_EQ(mistakes_in_training("  layers: 3\n"),
            "a.yaml:3:3: training.layers: unknown key. Keys here: micro_batch_size, sequence_length, data, "
            "precision, "
            "compile, learning_rate, stages");
  EXPECT_EQ(mistakes_in_training("  stages: 3\n"),
            "a.yaml:3:11: training.stages: needs a list of integer, greater than 0, not '3'. Write [3]");
  EXPECT_EQ(mistakes_in_training("  stages: [1, x]\n"),
            "a.yaml:3:15: training.stages[1]: needs an integer: 'x' is not a whole number");
  EXPECT_EQ(mistakes_in_training("  data: atuo\n"),
            "a.yaml:3:9: training.data: needs an integer or 'auto': 'atuo' is not a whole number");
  EXPECT_EQ(mistakes_in_training("  precision: bf61\n"),
            "a.yaml:3:14: training.precision: unknown precision 'bf61'. Did you mean bf16? Valid: fp32, bf16, fp8");
  EXPECT_EQ(mistakes_in_training("links: {a: 1}\n"), "a.yaml:3:8: links: needs a list of maps, not a map");
}

TEST(Fields, TrapsOfYaml) {
  const auto micro = [](const std::string& text) {
    return mistakes_in_training("  micro_batch_size: " + text + "\n");
  };
  const std::string where = "a.yaml:3:21: training.micro_batch_size: ";
  EXPECT_EQ(micro("1e6"), "");
  EXPECT_EQ(
      micro("010"),
      where + "needs an integer: '010' starts with 0, which some YAML readers take for octal. Write 10");
  EXPECT_EQ(
      micro("1_000"),
      where + "needs an integer: '1_000' groups its digits, which YAML readers disagree about. Write 1000");
  EXPECT_EQ(micro("0"), where + "must be greater than 0, not 0");
  EXPECT_EQ(micro("-3"), where + "must be greater than 0, not -3");
  EXPECT_EQ(micro("true"), where + "needs an integer: 'true' is not a whole number");
  EXPECT_EQ(mistakes("training: {sequence_length: 3000000000}\n"),
            "a.yaml:1:29: training.sequence_length: must be between 1 and 1000000, not 3000000000");
  for (const char* lie : {"no", "off", "N", "FALSE", "0"})
    EXPECT_NE(mistakes_in_training(std::string("  compile: ") + lie + "\n").find("Write false"),
              std::string::npos);
  EXPECT_NE(mistakes_in_training("  learning_rate: .nan\n"), "");
  EXPECT_NE(mistakes_in_training("  learning_rate: inf\n"), "");
}

TEST(Fields, QuantitiesNeedUnitsAndSign) {
  const std::string head = "training: {sequence_length: 1}\nhost: {";
  EXPECT_EQ(mistakes(head + "bucket: 80}\n"),
            "a.yaml:2:16: host.bucket: needs a size: '80' has no unit. Write 80 GiB, 80 GB, 80 MiB or 80 MB");
  EXPECT_EQ(words_of({.minimum = 1024, .maximum = {}}, "B"), "at least 1024 B");
  EXPECT_EQ(words_of({.minimum = 0, .maximum = 2}, "s"), "between 0 and 2 s");
  EXPECT_EQ(mistakes(head + "bucket: 0 B}\n"), "a.yaml:2:16: host.bucket: must be greater than 0, not 0 B");
  EXPECT_EQ(mistakes(head + "cap: -1 GB}\n"), "a.yaml:2:13: host.cap: must be at least 0, not -1 GB");
  EXPECT_EQ(mistakes(head + "headroom: 120 %}\n"),
            "a.yaml:2:18: host.headroom: must be between 0 and 1, not 120 %");
  EXPECT_EQ(
      mistakes(head + "cap: unlimitd}\n"),
      "a.yaml:2:13: host.cap: needs a size or 'unlimited': 'unlimitd' is not a size. Write a number with a "
      "unit, e.g. 80 GiB or 80 GB");
}

TEST(Fields, RulesOverSeveralKeysWaitForEachKey) {
  EXPECT_EQ(mistakes("training: {sequence_length: 1}\nsum: [99, 2]\n"), "a.yaml:2:6: sum: is more than 100");
  EXPECT_EQ(mistakes("training: {sequence_length: x}\nsum: [99, 2]\n"),
            "a.yaml:1:29: training.sequence_length: needs an integer: 'x' is not a whole number");
}

TEST(Fields, TooManyMistakesAreCut) {
  std::string text = "training: {sequence_length: 1}\n";
  for (int i = 0; i < 500; ++i) text += "key" + std::to_string(i) + ": 1\n";
  Diagnostics out;
  read_scenario(text, out);
  EXPECT_EQ(out.size(), kMaxListedMistakes + 1);
  EXPECT_EQ(out.back().problem, "more mistakes follow");
}

TEST(Provenance, KnowsWhatWasGivenAndWhere) {
  Diagnostics out;
  Provenance given;
  const Value root =
      apply_override(parse_document("training:\n  sequence_length: 7\nmemory: full\n", "a.yaml").root,
                     "training.compile=true");
  read(root, scenario_fields(), out, &given);
  EXPECT_EQ(to_string(*given.where("training.sequence_length")), "a.yaml:2:20");
  EXPECT_EQ(to_string(*given.where("training.compile")), "--set training.compile");
  EXPECT_EQ(to_string(*given.where("memory.recompute")), "a.yaml:3:9");
  EXPECT_FALSE(given.given("training.data"));
  EXPECT_EQ(given.where("host"), std::nullopt);
  EXPECT_EQ(
      to_string(given.diagnostic("training.sequence_length", "3 does not divide it (whole groups)", "Use 7")),
      "a.yaml:2:20: training.sequence_length: 3 does not divide it (whole groups). Use 7");
  EXPECT_EQ(given.diagnostic("training.sequence_length", "").excerpt, "  sequence_length: 7");
  // A default is blamed on the table it stands in.
  EXPECT_EQ(to_string(given.diagnostic("training.data", "must be 1")),
            "a.yaml:2:3: training.data: must be 1");
  EXPECT_EQ(to_string(given.diagnostic("host.cap", "is small")), "a.yaml:1:1: host.cap: is small");
}

TEST(Schema, IsWrittenFromTheSameTable) {
  using nlohmann::json;
  const json schema = json::parse(json_schema(scenario_fields(), "Rehearse scenario"));
  EXPECT_EQ(schema["$schema"], "http://json-schema.org/draft-07/schema#");
  EXPECT_EQ(schema["title"], "Rehearse scenario");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_TRUE(schema["properties"].contains("extends"));
  const json& training = schema["properties"]["training"];
  EXPECT_EQ(schema["else"]["properties"]["training"]["required"], json::array({"sequence_length"}));
  const json& micro = training["properties"]["micro_batch_size"];
  EXPECT_EQ(micro, (json{{"type", "integer"},
                         {"minimum", 1},
                         {"default", 1},
                         {"description", "samples per GPU per micro-step"}}));
  const json& data = training["properties"]["data"];
  EXPECT_EQ(data["anyOf"][1], (json{{"const", "auto"}}));
  EXPECT_EQ(data["default"], "auto");
  EXPECT_EQ(training["properties"]["compile"]["default"], false);
  EXPECT_EQ(training["properties"]["learning_rate"]["default"], 3e-4);
  EXPECT_EQ(training["properties"]["stages"]["items"]["type"], "integer");
  const json& host = schema["properties"]["host"]["properties"];
  EXPECT_EQ(host["recompute"]["enum"], json::array({"none", "selective", "full"}));
  EXPECT_EQ(host["bucket"]["default"], "25 MiB");
  EXPECT_EQ(schema["properties"]["memory"]["anyOf"][1]["enum"].size(), 3u);
  EXPECT_EQ(schema["properties"]["links"]["items"]["properties"]["latency"]["default"], "2 us");
  EXPECT_EQ(schema["properties"]["named_links"]["additionalProperties"]["type"], "object");
  EXPECT_EQ(schema["properties"]["sum"]["type"], "array");
}

// At every depth: a file of `extends` and `training: {micro_batch_size: 2}` is whole.
TEST(Schema, RequiredKeysMayComeFromAnExtendedFile) {
  for (const auto& text : {json_schema(training_fields(), "t"), json_schema(scenario_fields(), "s")}) {
    auto schema = nlohmann::json::parse(text);
    EXPECT_EQ(schema["if"]["required"], nlohmann::json::array({"extends"}));
    EXPECT_NE(schema["else"].dump().find("\"required\":[\"sequence_length\"]"), std::string::npos);
    schema.erase("if");
    schema.erase("else");
    EXPECT_EQ(schema.dump().find("\"required\""), std::string::npos);
  }
}

TEST(Reference, IsWrittenFromTheSameTable) {
  EXPECT_EQ(markdown_reference(memory_fields(), "Memory"),
            "# Memory\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
            "| `recompute` | choice | `none` | what is computed twice |\n"
            "| `bucket` | size (80 GiB or 80 GB), greater than 0 | `25 MiB` | gradient bucket |\n"
            "| `cap` | size (80 GiB or 80 GB), at least 0, or `unlimited` | `80 GiB` | memory to use |\n"
            "| `headroom` | fraction (0.45 or 45 %), between 0 and 1 | `0.05` | kept free |\n"
            "\n`recompute`:\n\n- `none`: keep all\n- `selective`: attention | only\n- `full`: every layer\n");
  const std::string page = markdown_reference(scenario_fields(), "Scenario");
  for (const char* part : {"## training\n\nhow it trains\n",
                           "| `sequence_length` | integer, between 1 and 1000000 | "
                           "**required** |",
                           "## links[]\n", "## named_links.<name>\n", "or `recompute` alone",
                           "| `stages` | list of integer, greater than 0 | `[1, 2]` |",
                           "| `data` | integer, greater "
                           "than 0, or `auto` | `auto` |"})
    EXPECT_NE(page.find(part), std::string::npos) << part << "\n" << page;
}

}  // namespace
}  // namespace rehearse::config::fields_test
