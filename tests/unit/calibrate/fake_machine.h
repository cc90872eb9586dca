// A machine that does not exist: its operations take a made-up time on a made-up clock, with made-up noise.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "calibrate/probe/device.h"
#include "calibrate/probe/sampling.h"

namespace rehearse::calibrate {

class FakeMachine final : public Device {
 public:
  std::function<double(const std::string&, const Facts&)> seconds = [](const std::string&, const Facts&) { return 1e-4; };
  double noise = 0;           // relative, uniform
  double slower_per_s = 0;    // clocks that fall
  std::int64_t most_repeats = 1000;
  std::vector<std::string> throttle;
  std::function<void()> after_run = [] {};
  double now = 0;
  std::map<std::string, int> prepared;

  Clock clock() { return [this] { return now += 1e-7; }; }
  Facts machine() override {
    return {{"gpu", std::string("Fake GPU")}, {"compute_capability", std::int64_t{90}}, {"gpu_memory_free_bytes", std::int64_t{80} << 30}};
  }
  Facts software() override { return {{"nccl", std::string("2.0")}}; }
  std::vector<std::string> warnings() override { return {}; }
  ClockState clocks() override { return {1700, throttle}; }
  std::unique_ptr<Work> prepare(const std::string& operation, const Facts& parameters) override {
    ++prepared[identity(operation, parameters)];
    if (operation == "attention_backward") throw NotPossible("no such kernel");
    if (operation == lose_at) throw DeviceLost("error 700");
    return std::make_unique<FakeWork>(*this, seconds(operation, parameters));
  }
  std::string lose_at;

 private:
  struct FakeWork final : Work {
    FakeWork(FakeMachine& m, double s) : machine(m), one(s) {}
    double run(std::int64_t count) override {
      EXPECT_LE(count, machine.most_repeats);
      std::uniform_real_distribution<double> spread(1 - machine.noise, 1 + machine.noise);
      const double s = one * static_cast<double>(count) * spread(random) * (1 + machine.slower_per_s * machine.now);
      machine.now += s;
      machine.after_run();
      return s;
    }
    std::int64_t most_repeats() const override { return machine.most_repeats; }
    FakeMachine& machine;
    double one;
    std::mt19937 random{1};
  };
};

}  // namespace rehearse::calibrate
