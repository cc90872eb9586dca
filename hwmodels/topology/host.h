// What a node's host can do for one of its GPUs while the others want the same: copies over the PCIe tree, CPU optimizer
// updates, NVMe. Leaves out when it happens (sim/executor) and what is kept there (strategies).
#pragma once

#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels {

/// Rates of one GPU's share when every used GPU of the node does the same at once.
struct HostRates {
  BytesPerSecond to_device, to_host;        // pinned copies
  BytesPerSecond to_device_alone, to_host_alone;   // those of one GPU while the node's others wait
  double pageable = 0.35;                   // of a pinned copy's rate
  BytesPerSecond pageable_most;             // of a pageable copy: the driver's thread moves it to and from what is pinned; 0: no bound of its own
  BytesPerSecond update;                    // DRAM traffic of a CPU optimizer on all cores
  BytesPerSecond core;                      // on one core; 0: no bound of its own
  double crowding = 1;                      // what a byte of pinned memory counts in `update`: a process's lies on one memory domain
  BytesPerSecond fresh, fresh_core;         // first touch of memory that the operating system has yet to give: by many threads, by one
  BytesPerSecond nvme_read, nvme_write;     // 0: no disk

  /// Of a CPU optimizer that moves `moved` bytes through DRAM, `pinned` of them in pinned memory, on so many threads, a core each
  /// (0: one per core). Zero where nothing is known of the DRAM.
  Duration update_time(Bytes moved, Bytes pinned, int threads) const;
  /// First touch of so much new memory by so many threads (0: one per core).
  Duration touch_time(Bytes bytes, int threads) const;
};

/// GPUs behind one PCIe switch share its uplink; all share the host's DRAM and disks. What the node does not say of its host is
/// that of hwmodels/data/host/defaults.yaml. Throws ConfigError if that is broken.
HostRates host_rates(const ClusterDescription& cluster);

}  // namespace rehearse::hwmodels
