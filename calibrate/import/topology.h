// A node description (hwmodels/data/node) out of what a machine says of its own wiring.
// Leaves out speeds that such texts do not hold: what is missing is said, never guessed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/import/import.h"

namespace rehearse::calibrate {

struct ImportedNode {
  std::string yaml;   // a file that `cluster.node: ./node.yaml` reads
  ImportReport report;
};

struct TopologyOptions {
  std::string gpu;            // name or file of the GPU: neither text holds it
  std::string nic_bandwidth;  // "400 Gb/s": nvidia-smi does not know it
};

/// `nvidia-smi topo -m`. Throws ConfigError with file:line: no matrix, rows of another length, unknown GPU.
ImportedNode import_topology_matrix(const std::string& text, const std::string& file, const TopologyOptions& options);

/// What NCCL wrote to NCCL_TOPO_DUMP_FILE. Throws ConfigError with file:line: broken XML, no GPUs, unknown GPU.
ImportedNode import_nccl_topology(const std::string& text, const std::string& file, const TopologyOptions& options);

}  // namespace rehearse::calibrate
