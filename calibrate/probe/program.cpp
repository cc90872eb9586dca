#include "calibrate/probe/program.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "calibrate/probe/host_work.h"
#include "calibrate/probe/options.h"
#include "calibrate/probe/parameters.h"
#include "calibrate/probe/session.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

constexpr int kBadInput = 2, kEnvironmentMissing = 3, kOurBug = 4, kInterrupted = 130;

std::atomic<bool> stop_asked = false;
void ask_to_stop(int) { stop_asked = true; }

/// `restart`: calls into the driver go on after a signal; the waiting parent's must not.
void listen_to_signals(bool restart) {
  stop_asked = false;
  struct sigaction action{};
  action.sa_handler = ask_to_stop;
  action.sa_flags = SA_RESETHAND | (restart ? SA_RESTART : 0);  // the second Ctrl-C kills
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

void say(const std::string& text) { std::fprintf(stderr, "rehearse-probe: %s\n", text.c_str()); }

/// A machine without a GPU: the host's own operations can still be measured.
class NoGpu final : public Device {
 public:
  explicit NoGpu(std::string why) : why_(std::move(why)) {}
  Facts machine() override { return {{"gpu_count", std::int64_t{0}}}; }
  Facts software() override { return {}; }
  std::vector<std::string> warnings() override { return {}; }
  ClockState clocks() override { return {}; }
  std::unique_ptr<Work> prepare(const std::string&, const Facts&) override { throw NotPossible(why_); }

 private:
  std::string why_;
};

std::vector<Case> wanted(const MachineShape& shape, const ProbeOptions& options) {
  std::vector<Case> cases = planned_cases(shape);
  std::erase_if(cases, [&](const Case& c) { return c.tier > options.most_tier() || (!options.only.empty() && !matches(c, options.only)); });
  return cases;
}

/// The shape of the machine, the same in every process: the least of what any has.
MachineShape shape_of(const Facts& machine, const ProbeOptions& options, const RankInfo& me, Team& team, bool gpu) {
  MachineShape shape;
  const auto least = [&](std::int64_t mine) { return static_cast<std::int64_t>(-team.largest({-static_cast<double>(mine)})[0]); };
  shape.gpu = gpu;
  shape.ranks = team.size();
  shape.ranks_per_node = static_cast<int>(team.largest({static_cast<double>(me.local_rank + 1)})[0]);
  shape.compute_capability = static_cast<int>(least(whole(machine, "compute_capability", 80)));
  shape.gpu_bytes = least(whole(machine, "gpu_memory_free_bytes", std::int64_t{16} << 30));
  shape.host_bytes = least(whole(machine, "host_memory_bytes", std::int64_t{16} << 30));
  shape.cores = static_cast<int>(least(whole(machine, "cpu_cores", 1)));
  shape.directory = !options.directory.empty();
  return shape;
}

int list_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) std::printf("%d %s\n", c.tier, identity(c.operation, c.parameters).c_str());
  return 0;
}

int report(const SessionResult& result, const ProbeOptions& options) {
  using End = SessionResult::End;
  const std::string counts = std::to_string(result.measured) + " series measured, " + std::to_string(result.skipped) + " not possible here, " +
                             std::to_string(result.left) + " left; everything so far is in " + options.out;
  if (result.end == End::complete) return say("done: " + counts), 0;
  if (result.end == End::out_of_time) return say("out of time: " + counts + ". Run it again to go on"), 0;
  if (result.end == End::interrupted) return say("interrupted: " + counts + ". Run it again to go on"), kInterrupted;
  say("the GPU does not answer any more (" + result.message + "): " + counts + ". Look at dmesg and nvidia-smi, then run it again to go on");
  return kEnvironmentMissing;
}

int run_rank(const ProbeOptions& options, const ProbeHooks& hooks, const RankInfo& me, Team& team) {
  std::unique_ptr<Device> device;
  std::string why;
  try {
    device = hooks.open(me, team);
  } catch (const NotPossible& e) {
    why = e.what();
  }
  const bool gpu = team.largest({device == nullptr ? 1.0 : 0.0})[0] == 0;
  if (!gpu && why.empty()) why = "another process has no usable GPU";
  if (!gpu) device = std::make_unique<NoGpu>(why);
  if (!gpu && !me.rank && !options.list) say("no usable GPU: " + why);

  Measurements now;
  now.source = "rehearse-probe " + hooks.version;
  now.machine = device->machine();
  now.machine.merge(host_facts());
  now.software = device->software();
  now.software["probe"] = hooks.version;
  const MachineShape shape = shape_of(now.machine, options, me, team, gpu);
  now.machine["gpu_count"] = std::int64_t{gpu ? shape.ranks : 0};
  now.machine["node_count"] = std::int64_t{shape.nodes()};
  if (shape.ranks % shape.ranks_per_node != 0) {
    if (me.rank == 0) say("the nodes have unequal numbers of processes (" + std::to_string(shape.ranks) + " on " + std::to_string(shape.nodes()) + " nodes): start as many on each");
    return kBadInput;
  }
  const std::vector<Case> cases = wanted(shape, options);
  if (options.list) return me.rank == 0 ? list_cases(cases) : 0;
  if (cases.empty()) {
    if (me.rank == 0) say(gpu ? "no series matches --only " + options.only + "; --list shows their names" : "nothing can be measured without a GPU here but host_* (and file, with --directory)");
    return gpu ? kBadInput : kEnvironmentMissing;
  }
  // Without a GPU, only what asks for the host alone is an answer.
  if (!gpu && options.only.empty()) return kEnvironmentMissing;

  const SamplingRule rule = options.rule();
  now.options = {{"mode", options.mode_name()}, {"target_relative_error", rule.target_relative_error}, {"series_cap_s", rule.cap_s},
                 {"minimum_samples", rule.least_samples}};
  if (std::isfinite(options.budget())) now.options["budget_s"] = options.budget();
  if (!options.only.empty()) now.options["only"] = options.only;
  now.warnings = device->warnings();
  if (me.rank == 0)
    for (const std::string& w : now.warnings) say("warning: " + w);

  Measurements so_far;
  double refused = 0;
  std::string refusal;
  if (me.rank == 0) try {
      so_far = earlier_measurements(options, now);
      if (!so_far.series.empty()) say(options.out + " has " + std::to_string(so_far.series.size()) + " series; going on");
    } catch (const ConfigError& e) {
      refused = 1;
      say(e.what());
    }
  if (team.largest({refused})[0] > 0) return kBadInput;
  // Only what is planned for the whole team is timed by all; the leader alone knows what is measured already.
  Surroundings around{*device, team, steady_clock(), [] { return stop_asked.load(); }, say};
  const SessionResult result = run_session(cases, options, std::move(so_far), around);
  return me.rank == 0 ? report(result, options) : result.end == SessionResult::End::interrupted ? kInterrupted : 0;
}

/// Starts one process per GPU of this node, as training does, and waits for them.
int run_local_team(const ProbeOptions& options, const ProbeHooks& hooks, int gpus) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("rehearse-probe-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string meeting = (folder / "meet").string();
  std::vector<pid_t> children;
  listen_to_signals(false);
  for (int r = 0; r < gpus; ++r) {
    const pid_t child = ::fork();
    if (child != 0) {
      if (child > 0) children.push_back(child);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    listen_to_signals(true);
    int code = kOurBug;
    try {
      const RankInfo me{r, gpus, r};
      code = run_rank(options, hooks, me, *meet_through_file(me, meeting, 60));
    } catch (const NotPossible& e) {
      say(e.what());
      code = kEnvironmentMissing;
    } catch (const ConfigError& e) {
      say(e.what());
      code = kBadInput;
    } catch (const std::exception& e) {
      say("process " + std::to_string(r) + ": " + e.what());
    }
    std::fflush(nullptr);
    std::_Exit(code);
  }
  int code = children.size() == static_cast<std::size_t>(gpus) ? 0 : kEnvironmentMissing;
  bool told = false;
  for (std::size_t alive = children.size(); alive > 0;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    // Ctrl-C reaches all of us; kill reaches this process only.
    if (stop_asked && !told) {
      told = true;
      for (pid_t c : children) ::kill(c, SIGTERM);
    }
    if (ended <= 0) continue;
    --alive;
    const int theirs = WIFEXITED(status) ? WEXITSTATUS(status) : kOurBug;
    if (WIFSIGNALED(status)) say("process " + std::to_string(std::find(children.begin(), children.end(), ended) - children.begin()) + " was ended by signal " + std::to_string(WTERMSIG(status)));
    if (ended == children[0] || (theirs != 0 && code == 0)) code = theirs == 0 ? code : theirs;
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return code;
}

int run(const std::vector<std::string>& arguments, const ProbeHooks& hooks) {
  const ProbeOptions options = parse_options(arguments);
  if (options.help) return std::fputs(usage().c_str(), stdout), 0;
  if (options.version) return std::printf("rehearse-probe %s\n", hooks.version.c_str()), 0;
  if (options.self_test) {
    bool wrong = false;
    for (const std::string& line : hooks.self_test ? hooks.self_test() : std::vector<std::string>{}) {
      std::printf("%s\n", line.c_str());
      wrong = wrong || line.starts_with("WRONG");
    }
    return wrong ? 1 : 0;
  }
  listen_to_signals(true);
  if (const auto me = rank_from_environment([](const char* name) { return std::getenv(name); })) {
    if (options.meet.empty())
      throw ConfigError(Diagnostic{{}, "--meet", "is needed with several processes", "Name a file that every node sees and that is not there yet: --meet $HOME/probe.meet", ""});
    return run_rank(options, hooks, *me, *meet_through_file(*me, options.meet, 120));
  }
  const int there = hooks.count_gpus();
  if (options.gpus && *options.gpus > there && there > 0)
    throw ConfigError(Diagnostic{{}, "--gpus", std::to_string(*options.gpus) + " are asked for, " + std::to_string(there) + " are here", "Use " + std::to_string(there) + " or fewer", ""});
  const int gpus = options.gpus.value_or(there);
  if (gpus > 1) return run_local_team(options, hooks, gpus);
  return run_rank(options, hooks, {}, *single_process());
}

}  // namespace

int probe_main(const std::vector<std::string>& arguments, const ProbeHooks& hooks) {
  try {
    return run(arguments, hooks);
  } catch (const ConfigError& e) {
    say(e.what());
    return kBadInput;
  } catch (const NotPossible& e) {
    say(e.what());
    return kEnvironmentMissing;
  } catch (const std::exception& e) {
    say(std::string("a mistake of ours, please report it: ") + e.what());
    return kOurBug;
  }
}

}  // namespace rehearse::calibrate
