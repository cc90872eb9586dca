// Names of files for one test process: two builds may run the same test at the same time.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace rehearse::calibrate {

inline std::string scratch(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("rehearse_" + std::to_string(::getpid()) + "_" + name)).string();
}

}  // namespace rehearse::calibrate
