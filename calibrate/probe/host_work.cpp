#include "calibrate/probe/host_work.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "calibrate/probe/host_limits.h"
#include "calibrate/probe/host_work_kinds.h"

namespace rehearse::calibrate {

std::unique_ptr<Work> prepare_host_work(const std::string& operation, const Facts& parameters, const std::string& directory) {
  if (operation == "host_memory") return prepare_host_memory(parameters);
  if (operation == "host_adam") return prepare_host_adam(parameters);
  if (operation == "file") return prepare_file(parameters, directory);
  return nullptr;
}

Facts host_facts() {
  Facts out;
  std::ifstream in("/proc/cpuinfo");
  std::set<std::string> sockets;
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) out.emplace("cpu", line.substr(colon + 2));
    if (line.starts_with("physical id")) sockets.insert(line.substr(colon + 2));
  }
  if (!sockets.empty()) out["cpu_sockets"] = static_cast<std::int64_t>(sockets.size());
  cpu_set_t set;
  CPU_ZERO(&set);
  std::ifstream groups("/proc/self/cgroup");
  const HostLimits limits = host_limits({std::istreambuf_iterator<char>(groups), {}}, "/sys/fs/cgroup");
  const std::int64_t cores = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::int64_t bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  // More threads than the quota allows would be stopped in turn; memory beyond the limit ends the program.
  out["cpu_cores"] = limits.cpus ? std::clamp<std::int64_t>(static_cast<std::int64_t>(*limits.cpus), 1, cores) : cores;
  out["host_memory_bytes"] = std::min(bytes, limits.memory_bytes.value_or(bytes));
  return out;
}

}  // namespace rehearse::calibrate
