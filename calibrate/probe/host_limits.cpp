#include "calibrate/probe/host_limits.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

namespace rehearse::calibrate {
namespace {

/// The number at the beginning of a file; none for "max", -1, and what cannot be read.
std::optional<double> number_in(const std::string& path, double* second = nullptr) {
  std::ifstream in(path);
  double value = 0;
  if (!(in >> value) || value < 0) return std::nullopt;
  if (second != nullptr && !(in >> *second)) return std::nullopt;
  return value;
}

template <typename T>
void lower(std::optional<T>& limit, std::optional<T> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

/// act(folder) for a group and all above it; in a container only the mount itself may be there.
void upwards(const std::string& mount, std::string group, const std::function<void(const std::string&)>& act) {
  while (!group.empty() && group != "/") {
    act(mount + group);
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  act(mount);
}

}  // namespace

HostLimits host_limits(const std::string& groups, const std::string& root) {
  HostLimits out;
  const auto memory = [&](const std::string& file) {
    const auto bytes = number_in(file);
    if (bytes && *bytes > 0 && *bytes < 0x1p60) lower<std::int64_t>(out.memory_bytes, static_cast<std::int64_t>(*bytes));  // version 1 says "none" by a huge number
  };
  const auto cpus = [&](std::optional<double> quota, std::optional<double> period) {
    if (quota && period && *quota > 0 && *period > 0) lower<double>(out.cpus, *quota / *period);
  };
  std::istringstream in(groups);
  for (std::string line; std::getline(in, line);) {  // number:controllers:path
    const std::size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", group = line.substr(second + 1);
    if (controllers == ",,")
      upwards(root, group, [&](const std::string& folder) {
        memory(folder + "/memory.max");
        double period = 0;
        const auto quota = number_in(folder + "/cpu.max", &period);
        cpus(quota, period);
      });
    if (controllers.find(",memory,") != std::string::npos) upwards(root + "/memory", group, [&](const std::string& folder) { memory(folder + "/memory.limit_in_bytes"); });
    if (controllers.find(",cpu,") != std::string::npos)
      upwards(root + "/cpu", group, [&](const std::string& folder) { cpus(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us")); });
  }
  return out;
}

}  // namespace rehearse::calibrate
