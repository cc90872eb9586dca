// Operations of the host alone: its DRAM, Adam on its cores, files. Measured without a GPU.
// Leaves out copies between host and GPU (cuda/).
#pragma once

#include <memory>
#include <string>

#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

/// host_memory, host_adam and file, made ready; null for every other operation. `directory`: for file; its test file is
/// nameless from the moment it is open, so nothing stays behind however the program ends.
/// Throws NotPossible: too little memory or room, a file system without O_DIRECT, no directory named.
std::unique_ptr<Work> prepare_host_work(const std::string& operation, const Facts& parameters, const std::string& directory);

/// Processor name, sockets, cores that this process may use, memory: machine_keys().
Facts host_facts();

}  // namespace rehearse::calibrate
