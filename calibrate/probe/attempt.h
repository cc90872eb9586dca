// An attempt that every process of a team makes at once, and of which all learn the worst outcome.
#pragma once

#include <string>

#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

class Attempt {
 public:
  /// Calls `work`. What it throws is kept until the others are heard.
  template <typename Work>
  explicit Attempt(Work&& work) {
    try {
      work();
    } catch (const DeviceLost& e) {
      failure_ = 2;
      why_ = e.what();
    } catch (const std::exception& e) {
      failure_ = 1;
      why_ = e.what();
    }
  }
  /// 0: done, 1: not possible, 2: the GPU is lost. The largest of all processes is the worst.
  double failure() const { return failure_; }
  /// Throws in every process, or in none: DeviceLost or NotPossible, with this process's own reason where it has one.
  void throw_worst(double worst, const char* failed_elsewhere) const {
    if (worst > 1) throw DeviceLost(why_.empty() ? "another process lost its GPU" : why_);
    if (worst > 0) throw NotPossible(why_.empty() ? failed_elsewhere : why_);
  }

 private:
  double failure_ = 0;
  std::string why_;
};

}  // namespace rehearse::calibrate
