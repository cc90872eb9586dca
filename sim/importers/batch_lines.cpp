// Source: Slurm's manual, sbatch(1): OPTIONS and OUTPUT ENVIRONMENT VARIABLES.
#include "sim/importers/batch_lines.h"

#include <algorithm>
#include <string_view>

#include "sim/config/units.h"

namespace rehearse::importers {
namespace {

constexpr std::string_view kMark = "#SBATCH";

std::string option_name(std::string_view option) {
  static constexpr std::pair<char, const char*> kShort[] = {{'N', "nodes"}, {'n', "ntasks"}, {'G', "gpus"}, {'J', "job_name"}, {'p', "partition"}, {'A', "account"}, {'t', "time"}, {'o', "output"}, {'e', "error"}, {'c', "cpus_per_task"}, {'q', "qos"}, {'D', "chdir"}, {'C', "constraint"}, {'w', "nodelist"}, {'x', "exclude"}};
  if (option.starts_with("--")) {
    std::string name(option.substr(2, option.find('=') - 2));
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  }
  for (const auto& [letter, name] : kShort)
    if (option[1] == letter) return name;
  return std::string(1, option[1]);
}

void read_line(std::string_view line, int number, std::vector<BatchOption>& out) {
  bool open = false;   // the last option may have its value in the next word
  for (std::size_t at = kMark.size(); at < line.size();) {
    at = line.find_first_not_of(" \t\r", at);
    if (at == std::string_view::npos || line[at] == '#') return;
    const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    const std::string_view word = line.substr(at, end - at);
    const int column = static_cast<int>(at) + 1;
    if (word.size() > 1 && word[0] == '-' && word != "--") {
      const bool is_long = word[1] == '-';
      const std::size_t value = is_long ? word.find('=') : word.size() > 2 ? 1 : std::string_view::npos;
      open = value == std::string_view::npos;
      out.push_back({option_name(word), open ? "true" : without_quotes(std::string(word.substr(value + 1))), number, open ? column : column + static_cast<int>(value) + 1});
    } else if (open) {
      out.back() = {out.back().name, without_quotes(std::string(word)), number, column};
      open = false;
    }
    at = end;
  }
}

}  // namespace

std::vector<BatchOption> batch_options(const std::string& text) {
  std::vector<BatchOption> out;
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first != std::string_view::npos && line[first] != '#') break;
    if (line.starts_with(kMark) && line.size() > kMark.size() && (line[kMark.size()] == ' ' || line[kMark.size()] == '\t')) read_line(line, number, out);
  }
  return out;
}

ShellVariables batch_variables(const std::vector<BatchOption>& options) {
  ShellVariables out;
  std::int64_t nodes = 0, per_node = 0;
  for (const BatchOption& o : options) {
    const auto number = config::parse_integer(o.value).value;
    if (!number || *number < 1 || *number > 1'000'000) continue;
    if (o.name == "nodes") nodes = *number, out["SLURM_NNODES"] = out["SLURM_JOB_NUM_NODES"] = o.value;
    else if (o.name == "ntasks") out["SLURM_NTASKS"] = out["SLURM_NPROCS"] = o.value;
    else if (o.name == "ntasks_per_node") per_node = *number, out["SLURM_NTASKS_PER_NODE"] = o.value;
    else if (o.name == "gpus_per_node") out["SLURM_GPUS_PER_NODE"] = out["SLURM_GPUS_ON_NODE"] = o.value;
  }
  if (nodes > 0 && per_node > 0 && !out.contains("SLURM_NTASKS")) out["SLURM_NTASKS"] = out["SLURM_NPROCS"] = std::to_string(nodes * per_node);
  return out;
}

}  // namespace rehearse::importers
