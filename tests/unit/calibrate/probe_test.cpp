// The whole program over a made-up machine: resuming, killing, exit codes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "calibrate/probe/options.h"
#include "calibrate/probe/program.h"
#include "calibrate/probe/session.h"
#include "sim/core/error.h"
#include "tests/support/error_of.h"
#include "tests/unit/calibrate/fake_machine.h"
#include "tests/unit/calibrate/scratch.h"

namespace rehearse::calibrate::probe_test {
namespace {

std::string refusal(const std::vector<std::string>& arguments) {
  return error_of([&] { parse_options(arguments); });
}

TEST(ProbeOptionsTest, AreReadAndMistakesNamed) {
  const ProbeOptions o = parse_options({"--quick", "--only=gemm,copy", "--out", "x.json", "--budget", "12.5", "--gpus=4"});
  EXPECT_EQ(o.mode_name(), "quick");
  EXPECT_EQ(o.only, "gemm,copy");
  EXPECT_EQ(o.out, "x.json");
  EXPECT_EQ(o.budget(), 12.5);
  EXPECT_EQ(o.gpus, 4);
  EXPECT_EQ(parse_options({"--quick"}).budget(), 180);
  EXPECT_EQ(parse_options({}).budget(), 900);
  EXPECT_EQ(refusal({"--bugdet", "3"}), "--bugdet: unknown option. Did you mean --budget?\n3: unknown option. See --help");
  EXPECT_EQ(refusal({"--budget", "-3"}), "--budget: \"-3\" is not a number above 0. Write seconds, for example --budget 300");
  EXPECT_EQ(refusal({"--budget"}), "--budget: needs a value. Write --budget VALUE");
  EXPECT_EQ(refusal({"--quick=1"}), "--quick: takes no value. Write --quick");
  EXPECT_EQ(refusal({"--gpus", "1.5"}), "--gpus: must be a whole number. Write for example --gpus 4");
}

struct Session : testing::Test {
  FakeMachine machine;
  std::unique_ptr<Team> team = single_process();
  ProbeOptions options;
  bool stop = false;
  std::vector<std::string> said;
  std::vector<Case> cases;

  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    options.out = scratch("probe_" + name + ".json");
    std::filesystem::remove(options.out);
    MachineShape shape;
    cases = launch_cases(shape);
    const auto attention = attention_cases(shape);
    cases.insert(cases.begin() + 3, attention.begin(), attention.begin() + 4);
  }
  void TearDown() override { std::filesystem::remove(options.out); }

  Measurements now() {
    Measurements m;
    m.machine = machine.machine();
    m.software = machine.software();
    return m;
  }
  SessionResult run() {
    Surroundings around{machine, *team, machine.clock(), [this] { return stop; }, [this](const std::string& s) { said.push_back(s); }};
    return run_session(cases, options, earlier_measurements(options, now()), around);
  }
};

using End = SessionResult::End;

TEST_F(Session, MeasuresEverythingAndSaysWhatIsNotPossible) {
  const SessionResult r = run();
  EXPECT_EQ(r.end, End::complete);
  EXPECT_EQ(r.left, 0);
  const Measurements m = read_measurements(options.out);
  EXPECT_EQ(m.series.size() + m.skipped.size(), cases.size());
  EXPECT_EQ(m.skipped.size(), 2u);  // the made-up machine has no attention_backward
  EXPECT_EQ(m.skipped[0].reason, "no such kernel");
  EXPECT_EQ(m.options.at("complete"), Fact(true));
}

TEST_F(Session, AnInterruptedRunGoesOnWhereItStopped) {
  machine.after_run = [this] { stop = machine.now > 0.7; };
  SessionResult r = run();
  EXPECT_EQ(r.end, End::interrupted);
  EXPECT_GT(r.measured, 0);
  EXPECT_GT(r.left, 0);
  const Measurements half = read_measurements(options.out);
  EXPECT_EQ(half.series.size(), static_cast<std::size_t>(r.measured));
  EXPECT_EQ(half.options.at("complete"), Fact(false));

  stop = false;
  machine.after_run = [] {};
  machine.prepared.clear();
  r = run();
  EXPECT_EQ(r.end, End::complete);
  const Measurements whole = read_measurements(options.out);
  EXPECT_EQ(whole.series.size() + whole.skipped.size(), cases.size());
  for (const Series& s : half.series) EXPECT_EQ(machine.prepared.count(identity(s)), 0u) << "measured twice: " << identity(s);
  EXPECT_GT(std::get<double>(whole.options.at("elapsed_s")), std::get<double>(half.options.at("elapsed_s")));
}

TEST_F(Session, TheBudgetEndsItBetweenSeries) {
  options.budget_s = 0.5;
  const SessionResult r = run();
  EXPECT_EQ(r.end, End::out_of_time);
  EXPECT_GT(r.measured, 0);
  EXPECT_GT(r.left, 0);
  EXPECT_LT(machine.now, 0.5 + 2 * options.rule().cap_s);
}

TEST_F(Session, ALostDeviceEndsItAndTheCaseComesLastNextTime) {
  machine.lose_at = "attention_forward";
  SessionResult r = run();
  EXPECT_EQ(r.end, End::device_lost);
  EXPECT_EQ(read_measurements(options.out).skipped.size(), 1u);
  machine.lose_at.clear();
  r = run();
  EXPECT_EQ(r.end, End::complete);
  EXPECT_EQ(read_measurements(options.out).series.size(), cases.size() - 2);
}

TEST_F(Session, AnotherMachinesFileIsRefused) {
  run();
  Measurements other = read_measurements(options.out);
  other.machine["gpu"] = std::string("NVIDIA A100");
  write_measurements(options.out, other);
  EXPECT_EQ(error_of([&] { run(); }), options.out + ": gpu: was \"NVIDIA A100\" when this file was begun, and is \"Fake GPU\" now. One file holds one "
                                                    "machine: name another by --out, or start it anew by --fresh");
  options.fresh = true;
  EXPECT_EQ(run().end, End::complete);
}

TEST_F(Session, ThrottlingIsSaid) {
  machine.throttle = {"power cap"};
  run();
  EXPECT_EQ(read_measurements(options.out).warnings, std::vector<std::string>{"clocks were held down while measuring: power cap"});
}

TEST_F(Session, AFileThatIsNoMeasurementsFileIsNotOverwritten) {
  std::ofstream(options.out) << "my thesis\n";
  EXPECT_THROW(run(), ConfigError);
  std::ifstream in(options.out);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "my thesis");
}

// ---- the program ----

std::string aborts_at;  // the case that ends the program; empty: none

/// Real time, so that it can be killed.
class SlowMachine final : public Device {
 public:
  Facts machine() override { return {{"gpu", std::string("Slow GPU")}}; }
  Facts software() override { return {}; }
  std::vector<std::string> warnings() override { return {"it is slow"}; }
  ClockState clocks() override { return {}; }
  std::unique_ptr<Work> prepare(const std::string& operation, const Facts& parameters) override {
    if (!aborts_at.empty() && identity(operation, parameters).find(aborts_at) != std::string::npos) std::abort();
    return std::make_unique<SlowWork>();
  }

 private:
  struct SlowWork final : Work {
    double run(std::int64_t count) override {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * count));
      return 2e-4 * static_cast<double>(count);
    }
  };
};

ProbeHooks hooks(int gpus) {
  return {[gpus] { return gpus; },
          [gpus](const RankInfo&, Team&) -> std::unique_ptr<Device> {
            if (gpus == 0) throw NotPossible("there is none");
            return std::make_unique<SlowMachine>();
          },
          "test", [gpus] { return std::vector<std::string>{"ok one", gpus == 1 ? "ok two" : "WRONG two"}; }};
}

/// Series in a file that may not be there yet.
std::size_t series_in(const std::string& path) {
  try {
    return read_measurements(path).series.size();
  } catch (const ConfigError&) {
    return 0;
  }
}

/// Runs the program in a process of its own; returns the exit code or -signal. With `signal`, sends it once the file at `out` has
/// `series` series.
int in_a_process(const std::vector<std::string>& arguments, int gpus, int signal = 0, const std::string& out = "", std::size_t series = 0) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr || std::freopen("/dev/null", "w", stdout) == nullptr) std::_Exit(99);
    std::_Exit(probe_main(arguments, hooks(gpus)));
  }
  if (signal != 0) {
    for (int i = 0; i < 3000 && series_in(out) < series; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(child, signal);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct Program : testing::Test {
  std::string out;
  void SetUp() override {
    out = scratch(std::string("program_") + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json");
    std::filesystem::remove(out);
  }
  void TearDown() override {
    std::filesystem::remove(out);
    std::filesystem::remove(out + ".part");
    std::filesystem::remove(out + ".now");
  }
  std::vector<std::string> quick(const std::string& only) { return {"--quick", "--only", only, "--out", out, "--series-cap", "0.02"}; }
};

TEST_F(Program, KilledAtAnyMomentItsFileIsWholeAndTheNextRunGoesOn) {
  EXPECT_EQ(in_a_process(quick("gemm"), 1, SIGKILL, out, 2), -SIGKILL);
  const std::size_t first = read_measurements(out).series.size();
  EXPECT_EQ(in_a_process(quick("gemm"), 1, SIGINT, out, first + 2), 130);
  const std::size_t second = read_measurements(out).series.size();
  EXPECT_GE(second, first + 2);
  EXPECT_EQ(in_a_process(quick("launch"), 1), 0);
  const Measurements m = read_measurements(out);
  EXPECT_EQ(m.series.size(), second + 6);
  EXPECT_EQ(m.warnings, std::vector<std::string>{"it is slow"});
}

/// "rehearse-probe: [3/90] gemm k=64 m=64 n=64: 0.2 ms +- ..." -> "gemm k=64 m=64 n=64", of whole lines.
std::set<std::string> said_as_measured(const std::string& log) {
  std::ifstream in(log);
  std::set<std::string> out;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const std::size_t name = line.find("] "), end = line.rfind(": ");
    if (line.find(": [") != std::string::npos && name != std::string::npos && end > name) out.insert(line.substr(name + 2, end - name - 2));
  }
  return out;
}

// Killed two hundred times at random moments: after each, the file is whole, holds every series that was said to be measured,
// and every series of before, unchanged.
TEST_F(Program, KilledAgainAndAgainItLosesNothing) {
  const std::string log = out + ".log";
  std::filesystem::remove(log);
  std::mt19937 draw(1);
  std::uniform_int_distribution<int> moment(0, 5'000);  // microseconds
  std::vector<Series> before;
  int kills = 0, grew = 0;
  for (; kills < 200; ++kills) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (std::freopen(log.c_str(), "a", stderr) == nullptr || std::freopen("/dev/null", "w", stdout) == nullptr) std::_Exit(99);
      std::_Exit(probe_main({"--quick", "--only", "gemm,memory_kernel,transfer", "--out", out, "--series-cap", "0.002"}, hooks(1)));
    }
    // Every other time it gets as far as to write another series, however busy the machine is.
    for (int i = 0; kills % 4 == 1 && i < 3000 && series_in(out) <= before.size(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::microseconds(moment(draw)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!std::filesystem::exists(out)) continue;  // killed before it wrote
    const Measurements now = read_measurements(out);
    ASSERT_GE(now.series.size(), before.size()) << "after " << kills << " kills";
    for (std::size_t i = 0; i < before.size(); ++i) ASSERT_EQ(now.series[i], before[i]) << "after " << kills << " kills";
    if (now.series.size() > before.size()) ++grew;
    before = now.series;
    std::set<std::string> there;
    for (const Series& s : before) there.insert(identity(s));
    for (const std::string& name : said_as_measured(log)) ASSERT_TRUE(there.contains(name)) << name << " after " << kills << " kills";
    if (WIFEXITED(status)) break;  // all is measured
  }
  EXPECT_GT(kills, 10);
  EXPECT_GT(grew, 5);
  std::filesystem::remove(log);
}

TEST_F(Program, ACaseThatHangsIsWrittenDownAndComesLast) {
  auto arguments = quick("host_adam");  // real work, but not within a microsecond
  arguments.insert(arguments.end(), {"--case-limit", "1e-6"});
  EXPECT_EQ(in_a_process(arguments, 1), 3);
  const Measurements m = read_measurements(out);
  EXPECT_EQ(m.series.size(), 0u);
  ASSERT_EQ(m.skipped.size(), 1u);
  EXPECT_EQ(m.skipped[0].reason, "it did not end within 1 s");
}

// A fault in a library, or the kernel's killer of processes: nothing is said, and the next run would meet the same end.
TEST_F(Program, WhatEndedTheProgramComesLastInTheNextRun) {
  aborts_at = "kernel=copy elements=16777216";  // one of three
  const auto arguments = quick("memory_kernel*kernel=copy*");
  EXPECT_EQ(in_a_process(arguments, 1), -SIGABRT);
  const std::size_t first = series_in(out);
  EXPECT_LT(first, 2u);
  EXPECT_EQ(in_a_process(arguments, 1), -SIGABRT);  // but all others are measured now
  EXPECT_EQ(series_in(out), 2u);
  aborts_at.clear();
  EXPECT_EQ(in_a_process(arguments, 1), 0);
  const Measurements m = read_measurements(out);
  EXPECT_EQ(m.series.size(), 3u);
  EXPECT_TRUE(m.skipped.empty());
  EXPECT_FALSE(std::filesystem::exists(out + ".now"));
}

TEST_F(Program, SeveralProcessesMeasureTogether) {
  EXPECT_EQ(in_a_process(quick("all_reduce bytes=126 "), 3), 0);
  const Measurements m = read_measurements(out);
  EXPECT_EQ(m.machine.at("gpu_count"), Fact(std::int64_t{3}));
  EXPECT_EQ(m.machine.at("node_count"), Fact(std::int64_t{1}));
  EXPECT_EQ(in_a_process(quick("launch"), 2), 2);  // another machine's file
  auto anew = quick("gemm");
  anew.push_back("--fresh");
  std::filesystem::remove(out);
  EXPECT_EQ(in_a_process(anew, 2, SIGTERM, out, 2), 130);
  EXPECT_EQ(read_measurements(out).machine.at("gpu_count"), Fact(std::int64_t{2}));
}

TEST_F(Program, ExitCodesSayWhoIsAsked) {
  EXPECT_EQ(in_a_process({"--quikc"}, 1), 2);
  EXPECT_EQ(in_a_process({"--self-test"}, 1), 0);
  EXPECT_EQ(in_a_process({"--self-test"}, 2), 1);
  EXPECT_EQ(in_a_process({"--quick", "--out", out}, 0), 3);                 // no GPU
  EXPECT_EQ(in_a_process({"--only", "host_memory kernel=read bytes=50331648 threads=1", "--out", out, "--series-cap", "0.02"}, 0), 0);  // none needed
  EXPECT_EQ(in_a_process(quick("no such series"), 1), 2);
  EXPECT_EQ(in_a_process({"--gpus", "4", "--out", out}, 2), 2);
  EXPECT_EQ(in_a_process({"--only", "launch", "--out", "/no/such/folder/x.json"}, 1), 2);
}

}  // namespace
}  // namespace rehearse::calibrate::probe_test
