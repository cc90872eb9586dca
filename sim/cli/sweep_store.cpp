#include "sim/cli/sweep_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/cli/version.h"
#include "sim/core/hash.h"
#include "sim/core/resources.h"
#include "sim/report/effective_config.h"

namespace rehearse::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::optional<std::string> text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

Json json_of(const Row& r) {
  return {{"outcome", std::string(name_of(r.outcome))}, {"reason", r.reason}, {"hash", r.hash}, {"gpus", r.gpus}, {"step_time", r.step_time}, {"tokens_per_second", r.tokens_per_second},
          {"samples_per_second", r.samples_per_second}, {"mfu", r.mfu}, {"hfu", r.hfu}, {"peak_allocated", r.peak_allocated}, {"peak_reserved", r.peak_reserved}, {"peak_device", r.peak_device},
          {"headroom", r.headroom}};
}

std::optional<Row> row_in(const std::string& text) {
  try {
    const Json j = Json::parse(text);
    Row r;
    const auto outcome = j.at("outcome").get<std::string>();
    r.outcome = outcome == "fits" ? Outcome::fits : Outcome::does_not_fit;
    if (name_of(r.outcome) != outcome) return std::nullopt;
    j.at("reason").get_to(r.reason), j.at("gpus").get_to(r.gpus), j.at("step_time").get_to(r.step_time), j.at("tokens_per_second").get_to(r.tokens_per_second);
    j.at("samples_per_second").get_to(r.samples_per_second), j.at("mfu").get_to(r.mfu), j.at("hfu").get_to(r.hfu), j.at("peak_allocated").get_to(r.peak_allocated);
    j.at("peak_reserved").get_to(r.peak_reserved), j.at("peak_device").get_to(r.peak_device), j.at("headroom").get_to(r.headroom);
    j.at("hash").get_to(r.hash);
    return r;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string fingerprint_of_data() {
  std::vector<fs::path> files;
  for (const char* room : {"hwmodels/data", "strategies/framework", "sim/model/data"})
    for (const auto& entry : fs::recursive_directory_iterator(resource_root() / room))
      if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::uint64_t hash = kHashOfNothing;
  for (const fs::path& file : files) hash = hash_of_text(file.filename().string() + "\n" + text_of(file).value_or(""), hash);
  return fmt::format("{:016x}", hash);
}

SweepStore::SweepStore(std::string folder) : folder_(std::move(folder)) {
  make_folder(folder_);
  std::error_code error;
  const fs::path about = fs::path(folder_) / "about.json";
  const Json mine{{"rehearse", std::string(kVersion)}, {"data", fingerprint_of_data()}};
  if (!fs::exists(about, error)) {
    if (error) cannot_write(about.string(), error.value());
    // Others may be starting in the same empty folder.
    fs::directory_iterator entries(folder_, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error))
      if (!entries->path().filename().string().starts_with("about.json"))
        throw ConfigError(Diagnostic{{}, "--into", fmt::format("{} is a folder of something else", folder_), "Give a new folder", ""});
    if (error) cannot_write(folder_, error.value());
    write_file(about.string(), mine.dump() + "\n");
  }
  if (!(Json::parse(text_of(about).value_or(""), nullptr, false) == mine))   // what cannot be parsed is neither equal nor unequal
    throw ConfigError(Diagnostic{{about.string(), 1, 1}, "--into", "holds points of another version of the program or of other data files: they would not be comparable", "Give a new folder, or remove this one", ""});
}

std::string SweepStore::key_of(const scenario::Scenario& s) {
  std::uint64_t hash = hash_of_text(report::hash_of(s));
  for (const auto& [key, value] : report::flattened(report::effective_config(s))) {
    std::error_code none;
    if (value.find('.') != std::string::npos && fs::is_regular_file(value, none)) hash = hash_of_text(text_of(value).value_or(""), hash);
  }
  return fmt::format("{:016x}", hash);
}

std::string SweepStore::path_of(const std::string& key) const { return (fs::path(folder_) / key.substr(0, 2) / (key + ".json")).string(); }

std::optional<Row> SweepStore::find(const std::string& key) const {
  const auto text = text_of(path_of(key));
  return text ? row_in(*text) : std::nullopt;
}

void SweepStore::keep(const std::string& key, const Row& row) const {
  const std::string path = path_of(key);
  make_folder(fs::path(path).parent_path().string());
  write_file(path, json_of(row).dump() + "\n");
}

}  // namespace rehearse::cli
