#include "calibrate/fit/fit_host.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/config/document.h"
#include "sim/config/scalar_types.h"
#include "sim/core/resources.h"

namespace rehearse::calibrate {
namespace {

using config::Value;

std::optional<HostNumber> median_number(const std::string& key, std::vector<double> rates, const std::string& how) {
  if (rates.empty()) return std::nullopt;
  std::sort(rates.begin(), rates.end());
  const double middle = rates[rates.size() / 2];
  return HostNumber{key, middle, static_cast<int>(rates.size()), (rates.back() - rates.front()) / middle, how};
}

/// Rates of this operation on one thread.
std::vector<double> with_one_thread(const Observations& o, HostObservation::Kind kind) {
  std::vector<double> out;
  for (const HostObservation& h : o.host)
    if (h.kind == kind && h.threads == 1) out.push_back(h.bytes / h.seconds);
  return out;
}

/// Rates of this operation with the most threads that it was measured with.
std::vector<double> with_all_threads(const Observations& o, HostObservation::Kind kind) {
  std::int64_t most = 0;
  std::vector<double> out;
  for (const HostObservation& h : o.host) {
    if (h.kind != kind || h.threads < most) continue;
    if (h.threads > most) out.clear();
    most = h.threads;
    out.push_back(h.bytes / h.seconds);
  }
  return out;
}

std::optional<HostNumber> disk(const Observations& o, HostObservation::Kind kind, const char* key, const char* what) {
  HostNumber best{key, 0, 0, 0, ""};
  double worst = 0;
  for (const HostObservation& h : o.host) {
    if (h.kind != kind) continue;
    const double rate = h.bytes / h.seconds;
    if (rate > best.value) best.value = rate, best.how = fmt::format("best {}: {} KiB, {} at once", what, h.block_bytes >> 10, h.depth);
    worst = best.rows == 0 ? rate : std::min(worst, rate);
    ++best.rows;
  }
  if (best.rows == 0) return std::nullopt;
  best.spread = (best.value - worst) / best.value;
  return best;
}

double rate_of(const std::vector<LinearFit>& copies, const char* operation) {
  const auto at = std::find_if(copies.begin(), copies.end(), [&](const LinearFit& f) { return f.operation == operation; });
  return at == copies.end() ? 0 : at->rate();
}

std::string value_text(const HostNumber& n) { return n.key.ends_with("fraction") ? fmt::format("{:.4g}", n.value) : fmt::format("{:.5g} GB/s", n.value * 1e-9); }

/// "  key: value  # ...", for keys of this section; `names` collects them.
std::string section_lines(const std::vector<HostNumber>& numbers, const std::string& section, std::vector<std::string>& names) {
  std::string out;
  for (const HostNumber& n : numbers) {
    const std::size_t dot = n.key.find('.');
    if (n.key.substr(0, dot) != section) continue;
    names.push_back(n.key.substr(dot + 1));
    out += fmt::format("  {}: {}  # measured, {} series{}: {}\n", names.back(), value_text(n), n.rows, n.rows > 1 ? fmt::format(" within {:.0f} %", 100 * n.spread) : "", n.how);
  }
  return out;
}

}  // namespace

std::vector<HostNumber> fit_host(const Observations& o, const std::vector<LinearFit>& copies) {
  std::vector<HostNumber> out;
  const auto add = [&](std::optional<HostNumber> n) {
    if (n) out.push_back(std::move(*n));
  };
  add(median_number("cpu.copy_bandwidth", with_all_threads(o, HostObservation::Kind::triad), "triad with all threads"));
  add(median_number("cpu.update_bandwidth", with_all_threads(o, HostObservation::Kind::adam), "Adam with all threads"));
  add(median_number("cpu.core_bandwidth", with_one_thread(o, HostObservation::Kind::adam), "Adam on one thread"));
  std::vector<double> pageable;
  for (const char* direction : {"host_to_device", "device_to_host"}) {
    const double slow = rate_of(copies, fmt::format("{} pageable", direction).c_str()), fast = rate_of(copies, fmt::format("{} pinned", direction).c_str());
    if (slow > 0 && fast > 0) pageable.push_back(std::min(1.0, slow / fast));
  }
  if (!pageable.empty())
    out.push_back({"cpu.pageable_fraction", (pageable.front() + pageable.back()) / 2, static_cast<int>(pageable.size()),
                   (std::max(pageable.front(), pageable.back()) - std::min(pageable.front(), pageable.back())) / ((pageable.front() + pageable.back()) / 2), "pageable over pinned copies"});
  add(disk(o, HostObservation::Kind::disk_read, "nvme.read", "read"));
  add(disk(o, HostObservation::Kind::disk_write, "nvme.write", "write"));
  return out;
}

std::string node_yaml(const hwmodels::NodeDesign& base, const std::vector<HostNumber>& numbers, const std::string& gpu, const std::string& origin) {
  // Ours are shown by their path below the program's data, wherever the user stands.
  const config::Document file = config::load_document(config::is_file_name(base.name) ? std::filesystem::path(base.file) : resource_root() / base.file);
  std::string text = "# Written by rehearse calibrate fit over " + base.name + ".\n# " + origin + "\n";
  std::vector<Value::Entry> kept;
  for (const Value::Entry& e : file.root.entries())
    if (e.key != "cpu" && e.key != "nvme" && (e.key != "gpu" || gpu.empty())) kept.push_back(e);
  text += config::to_yaml(Value::map(std::move(kept), file.root.place(), file.root.path()));
  if (!gpu.empty()) text += "gpu: " + gpu + "\n";
  for (const char* section : {"cpu", "nvme"}) {
    std::vector<std::string> names;
    const std::string lines = section_lines(numbers, section, names);
    const Value* old = file.root.find(section);
    if (lines.empty() && old == nullptr) continue;
    text += std::string(section) + ":\n" + lines;
    if (old == nullptr) continue;
    for (const Value::Entry& e : old->entries())
      if (std::find(names.begin(), names.end(), e.key) == names.end()) text += fmt::format("  {}: {}\n", e.key, e.value.quoted() ? "\"" + e.value.text() + "\"" : e.value.text());
  }
  return text;
}

}  // namespace rehearse::calibrate
