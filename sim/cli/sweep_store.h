// Points of sweeps that outlive the program: a folder with one file per simulated point, under the hash of its scenario.
// Killed anywhere and started again, nothing is lost or done twice; many machines may share one folder.
// Leaves out which points there are and who simulates them (sweep.cpp).
#pragma once

#include <optional>
#include <string>

#include "sim/cli/sweep_rows.h"

namespace rehearse::cli {

class SweepStore {
 public:
  /// Makes the folder, or goes on in it. Throws ConfigError when it holds points of another version of the program or of other
  /// data files, EnvironmentError when it cannot be written.
  explicit SweepStore(std::string folder);

  /// What two equal points have in common: the scenario's hash and the content of the user's own files that it names.
  static std::string key_of(const scenario::Scenario& scenario);
  /// The kept point of this key. A file that is not whole counts as absent.
  std::optional<Row> find(const std::string& key) const;
  /// Keeps a point whole or not at all. Safe from any thread.
  void keep(const std::string& key, const Row& row) const;

 private:
  std::string path_of(const std::string& key) const;
  std::string folder_;
};

/// The data files that predictions rest on, as one number.
std::string fingerprint_of_data();

}  // namespace rehearse::cli
