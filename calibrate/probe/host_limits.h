// What a container or a batch job leaves a process of the host: memory and processor time, less than the machine has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rehearse::calibrate {

struct HostLimits {
  std::optional<std::int64_t> memory_bytes;  // none: all of the machine's
  std::optional<double> cpus;                // processor seconds per second
};

/// The tightest limits of the control groups, version 1 or 2, that `groups` (the text of /proc/self/cgroup) names and of
/// those above them. `root`: where they are mounted, /sys/fs/cgroup. What cannot be read sets no limit; throws nothing.
/// Source: Linux, Documentation/admin-guide/cgroup-v2.rst (memory.max, cpu.max), cgroup-v1/memory.rst, scheduler/sched-bwc.rst.
HostLimits host_limits(const std::string& groups, const std::string& root);

}  // namespace rehearse::calibrate
