// Any bytes are what a machine measured, a log, a trace, a topology, or a ConfigError; measurements that are read write back
// and can be observed by the fit, a node that is imported can be read as one. One program per reader: REHEARSE_READER.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "calibrate/fit/against.h"
#include "calibrate/fit/observations.h"
#include "calibrate/import/import.h"
#include "calibrate/import/topology.h"
#include "hwmodels/topology/cluster.h"
#include "sim/core/error.h"

using namespace rehearse;
using namespace rehearse::calibrate;

namespace {

void check(const Measurements& m) {
  if (measurements_from_json(to_json(m), "written.json") != m) std::abort();
  const Observations seen = observe(m);
  if (seen.kernels.size() + seen.collectives.size() + seen.copies.size() + seen.launches.size() + seen.overlaps.size() + seen.host.size() + seen.unused.size() != m.series.size()) std::abort();
}

std::string written(const std::string& text, const char* ending) {
  static const std::string file = "/tmp/rehearse-fuzz-" + std::to_string(::getpid()) + ending;
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
  return file;
}

void run(const std::string& reader, const std::string& text) {
  if (reader == "measurements") return check(measurements_from_json(text, "fuzz.json"));
  if (reader == "nccl_text") return check(import_nccl_tests_text(text, "fuzz.log", {"all_reduce", 8, 1}).measurements);
  if (reader == "nccl_json") return check(import_nccl_tests_json(text, "fuzz.json").measurements);
  if (reader == "kineto") return check(import_kineto(text, "fuzz.json", {"", std::nullopt, 2}).measurements);
  if (reader == "nsys") return check(import_nsys(written(text, ".sqlite")).measurements);
  if (reader == "training_log") return void(read_training_log(text, "fuzz.log", 1e6, 8));
  const TopologyOptions options{"h100-sxm", "400 Gb/s"};
  const ImportedNode node = reader == "topo" ? import_topology_matrix(text, "fuzz.txt", options) : import_nccl_topology(text, "fuzz.xml", options);
  try {
    hwmodels::load_node(written(node.yaml, ".yaml"));
  } catch (const ConfigError&) {
    std::abort();  // what we write, we can read
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    run(REHEARSE_READER, std::string(reinterpret_cast<const char*>(data), size));
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty() || error.diagnostics()[0].at.file == "written.json") std::abort();
  }
  return 0;
}
