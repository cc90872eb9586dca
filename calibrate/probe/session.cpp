#include "calibrate/probe/session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "calibrate/probe/host_work.h"
#include "calibrate/probe/sampling.h"
#include "calibrate/probe/watchdog.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

/// A case as text and back: rank 0 tells the others what comes next.
std::string encoded(const Case& c) {
  Measurements m;
  m.skipped.push_back({c.operation, c.parameters, "next"});
  return to_json(m);
}
Case decoded(const std::string& text) {
  const Measurements m = measurements_from_json(text, "next case");
  return {m.skipped[0].operation, m.skipped[0].parameters, 0};
}

std::string seconds_text(double s) {
  char out[32];
  if (s < 1e-3) std::snprintf(out, sizeof out, "%.2f us", s * 1e6);
  else if (s < 1) std::snprintf(out, sizeof out, "%.3f ms", s * 1e3);
  else std::snprintf(out, sizeof out, "%.3f s", s);
  return out;
}

/// The output file, replaced whole after each series: what was measured outlives the program. Pressed through to the disk, so
/// that it outlives the machine too, but not for more than a twentieth of the time.
class Output {
 public:
  Output(std::string path, Measurements content, const Clock& clock) : path_(std::move(path)), content_(std::move(content)), clock_(clock) {}
  Measurements& content() { return content_; }
  void save(bool at_once) {
    const double begin = clock_();
    const bool press = at_once || begin >= not_before_;
    write_measurements(path_, content_, press);
    const double end = clock_();
    if (press) not_before_ = end + 20 * (end - begin);
  }

 private:
  std::string path_;
  Measurements content_;
  const Clock& clock_;
  double not_before_ = 0;
};

/// The case that is being measured, in a file beside the output: what ends the program without a word (a fault in a library,
/// the kernel's killer of processes, kill -9) does not meet the next run first.
class UnderWay {
 public:
  explicit UnderWay(const std::string& out) : path_(out + ".now") {}
  /// The case of a run that ended in the middle of it.
  std::optional<Skipped> left_behind() const {
    try {
      const Measurements m = read_measurements(path_);
      if (m.skipped.size() == 1) return m.skipped[0];
    } catch (const ConfigError&) {  // there is none, or it was cut off itself
    }
    return std::nullopt;
  }
  void begin(const Case& c) {
    Measurements m;
    m.skipped.push_back({c.operation, c.parameters, "the run before ended while it was measured"});
    write_measurements(path_, m, false);
  }
  void end() { ::unlink(path_.c_str()); }

 private:
  std::string path_;
};

/// Prepares and times one case in every process. Throws NotPossible in all processes or in none.
Series measure(const Case& c, const ProbeOptions& options, Surroundings& around) {
  std::unique_ptr<Work> work;
  std::string why;
  double failed = 0;
  try {
    if (gpus_of(c) == 0) {
      if (around.team.rank() == 0) work = prepare_host_work(c.operation, c.parameters, options.directory);
    } else {
      work = around.device.prepare(c.operation, c.parameters);
    }
  } catch (const DeviceLost& e) {
    failed = 2;
    why = e.what();
  } catch (const std::exception& e) {
    failed = 1;
    why = e.what();
  }
  const double worst = around.team.largest({failed})[0];
  if (worst > 1) throw DeviceLost(why.empty() ? "another process lost its GPU" : why);
  if (worst > 0) throw NotPossible(why.empty() ? "it is not possible for another process" : why);
  Series s = sample(work.get(), options.rule(), around.device, around.team, around.clock, around.interrupted);
  s.operation = c.operation;
  s.parameters = c.parameters;
  return s;
}

}  // namespace

Measurements earlier_measurements(const ProbeOptions& options, const Measurements& now) {
  struct stat status{};
  if (options.fresh || ::stat(options.out.c_str(), &status) != 0 || (S_ISREG(status.st_mode) && status.st_size == 0)) return now;
  Measurements earlier = read_measurements(options.out);
  const auto same = [&](const Facts& then, const Facts& here, const char* key) {
    const auto a = then.find(std::string_view(key)), b = here.find(std::string_view(key));
    if (a == then.end() || b == here.end() || a->second == b->second) return;
    const auto shown = [](const Fact& f) {
      if (const auto* text = std::get_if<std::string>(&f)) return *text;
      const auto* whole = std::get_if<std::int64_t>(&f);
      return whole != nullptr ? std::to_string(*whole) : std::string("?");
    };
    throw ConfigError(Diagnostic{{options.out, 0, 0}, key, "was \"" + shown(a->second) + "\" when this file was begun, and is \"" + shown(b->second) + "\" now",
                                 "One file holds one machine: name another by --out, or start it anew by --fresh", ""});
  };
  for (const char* key : {"gpu", "gpu_count", "node_count", "cpu", "driver"}) same(earlier.machine, now.machine, key);
  for (const char* key : {"cuda_runtime", "cublaslt", "nccl"}) same(earlier.software, now.software, key);
  Measurements out = now;
  out.series = std::move(earlier.series);
  out.skipped = std::move(earlier.skipped);
  std::set<std::string> warnings(earlier.warnings.begin(), earlier.warnings.end());
  warnings.insert(now.warnings.begin(), now.warnings.end());
  out.warnings.assign(warnings.begin(), warnings.end());
  if (const auto elapsed = earlier.options.find("elapsed_s"); elapsed != earlier.options.end()) out.options["elapsed_s"] = elapsed->second;
  return out;
}

SessionResult run_session(const std::vector<Case>& cases, const ProbeOptions& options, Measurements so_far, Surroundings& around) {
  const bool leads = around.team.rank() == 0;
  const double begin = around.clock();
  SessionResult result;

  // What is left to do; what could not be measured in an earlier run comes last: it may have been what stopped it.
  std::vector<Case> todo, again;
  std::set<std::string> measured, once_skipped;
  for (const Series& s : so_far.series) measured.insert(identity(s));
  UnderWay under_way(options.out);
  if (leads && !options.fresh)
    if (auto cut = under_way.left_behind()) {
      const std::string name = identity(cut->operation, cut->parameters);
      const bool known = measured.contains(name) || std::any_of(so_far.skipped.begin(), so_far.skipped.end(), [&](const Skipped& s) { return identity(s.operation, s.parameters) == name; });
      if (!known) {
        around.say(name + ": " + cut->reason + "; it comes last now");
        so_far.skipped.push_back(std::move(*cut));
      }
    }
  for (const Skipped& s : so_far.skipped) once_skipped.insert(identity(s.operation, s.parameters));
  for (const Case& c : cases) {
    const std::string name = identity(c.operation, c.parameters);
    if (!measured.contains(name)) (once_skipped.contains(name) ? again : todo).push_back(c);
  }
  todo.insert(todo.end(), again.begin(), again.end());
  std::erase_if(so_far.skipped, [&](const Skipped& s) {
    return std::any_of(again.begin(), again.end(), [&](const Case& c) { return c.operation == s.operation && c.parameters == s.parameters; });
  });

  const Fact* before = so_far.options.contains("elapsed_s") ? &so_far.options["elapsed_s"] : nullptr;
  const double elapsed_before = before == nullptr ? 0 : std::get<double>(*before);
  Output output(options.out, std::move(so_far), around.clock);
  if (leads) output.save(true);  // a place that cannot be written is said before anything is measured

  std::size_t next = 0;
  std::map<std::string, int> throttled;
  const auto keep = [&](bool at_once) {
    output.content().options["elapsed_s"] = elapsed_before + around.clock() - begin;
    output.content().options["complete"] = next == todo.size();
    output.save(at_once);
  };

  // Rank 0 first: when it ends, the others notice.
  constexpr int kEnvironmentMissing = 3;
  Watchdog watchdog(options.case_limit_s + (leads ? 0 : 10), kEnvironmentMissing, [&] {
    if (!leads) return;
    const std::string why = "it did not end within " + std::to_string(static_cast<int>(std::ceil(options.case_limit_s))) + " s";
    output.content().skipped.push_back({todo[next].operation, todo[next].parameters, why});
    around.say(identity(todo[next].operation, todo[next].parameters) + ": " + why + "; it will come last in the next run");
    keep(true);
  });
  while (true) {
    // Rank 0 decides; the others hear of it.
    std::string word;
    if (leads) {
      if (around.interrupted()) word = "interrupted";
      else if (next == todo.size()) word = "complete";
      else if (around.clock() - begin >= options.budget()) word = "out of time";
      else word = encoded(todo[next]);
    }
    word = around.team.from_first(word);
    if (word == "interrupted") result.end = SessionResult::End::interrupted;
    if (word == "out of time") result.end = SessionResult::End::out_of_time;
    if (!word.starts_with("{")) break;
    const Case now = decoded(word);
    const std::string name = identity(now.operation, now.parameters);
    const auto skip = [&](const std::string& why) {
      ++result.skipped;
      ++next;
      if (!leads) return;
      output.content().skipped.push_back({now.operation, now.parameters, why});
      keep(false);
      around.say(name + ": not measured (" + why + ")");
    };
    watchdog.begin();
    try {
      if (leads) under_way.begin(now);
      Series s = measure(now, options, around);
      watchdog.end();
      ++result.measured;
      ++next;
      if (!leads) continue;
      char text[160];
      std::snprintf(text, sizeof text, ": %s +- %.1f %% (%lld samples of %lld)%s", seconds_text(s.median_s).c_str(), 100 * s.relative_error.value_or(0),
                    static_cast<long long>(s.samples), static_cast<long long>(s.repeats), s.converged ? "" : ", not converged");
      std::string line = "[" + std::to_string(next) + "/" + std::to_string(todo.size()) + "] " + name + text;
      for (const std::string& t : s.throttle) {
        line += ", " + t;
        if (throttled[t]++ == 0) output.content().warnings.push_back("clocks were held down while measuring: " + t);
      }
      output.content().series.push_back(std::move(s));
      keep(false);
      around.say(line);  // it is in the file when it is said
    } catch (const Interrupted&) {
      watchdog.end();
      result.end = SessionResult::End::interrupted;
      break;
    } catch (const NotPossible& e) {
      watchdog.end();
      skip(e.what());
    } catch (const DeviceLost& e) {
      watchdog.end();
      skip(e.what());
      result.end = SessionResult::End::device_lost;
      result.message = e.what();
      break;
    }
  }
  result.left = static_cast<std::int64_t>(todo.size() - std::min(next, todo.size()));
  if (leads) {
    auto& warnings = output.content().warnings;  // of several runs
    std::sort(warnings.begin(), warnings.end());
    warnings.erase(std::unique(warnings.begin(), warnings.end()), warnings.end());
    keep(true);
    under_way.end();
  }
  return result;
}

}  // namespace rehearse::calibrate
