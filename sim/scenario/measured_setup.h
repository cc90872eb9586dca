// Which framework profile, GPU and node design a row of a table of measured runs means: by name where it gives one, else by
// what it says of itself. Leaves out degrees, batch and model (measured_run.h) and fine-tuning (measured_tuning.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hwmodels/topology/cluster.h"
#include "sim/scenario/measured_row.h"
#include "strategies/framework/profile.h"

namespace rehearse::scenario {

struct ProfileChoice {
  std::string name;   // of a file in strategies/framework/data
  std::string note;   // where it stands in for a framework without a profile: which, and why this one
  bool guessed = false;   // the row names a framework, and nobody here knows it
};

/// Never fails: a framework that nobody knows is the one that the row's degrees, sharding and GPU point to.
ProfileChoice profile_of(const config::CsvRow& row);

/// Our name of the row's GPU, however it is spelled: "H800-80GB" is h800-sxm. Throws NotSimulated where there is none.
std::string gpu_of(const config::CsvRow& row);

/// The GPU of the same chip whose memory the row's note gives ("184 GiB class"), where `gpu` has 2 % less or more than that;
/// nullopt where nothing is stated, or `gpu` has it. B200 of 184 GiB is GB200.
std::optional<std::string> gpu_of_stated_memory(const config::CsvRow& row, const std::string& gpu);

/// The node design for a GPU; the prose of `interconnect` decides between designs that differ in their NICs.
std::string node_of(const config::CsvRow& row, const std::string& gpu);

/// The network between nodes as the row's prose gives it, where that is a rate per node ("400 Gbps") that the design has not.
void apply_network(const config::CsvRow& row, hwmodels::ClusterDescription& cluster, std::vector<std::string>& notes);

/// The word for sharding in the contract's terms, "" where nothing is stated. Wording that does not say what is sharded is
/// taken as the profile's habit, and said in a note.
std::string sharding_of(const config::CsvRow& row, const std::string& profile, std::vector<std::string>& notes);

}  // namespace rehearse::scenario
