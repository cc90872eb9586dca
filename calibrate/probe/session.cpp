#include "calibrate/probe/session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "calibrate/probe/attempt.h"
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
  const Attempt preparation([&] {
    if (gpus_of(c) > 0) work = around.device.prepare(c.operation, c.parameters);
    else if (around.team.rank() == 0) work = prepare_host_work(c.operation, c.parameters, options.directory);
  });
  preparation.throw_worst(around.team.largest({preparation.failure()})[0], "it is not possible for another process");
  Series s = sample(work.get(), options.rule(), around.device, around.team, around.clock, around.interrupted);
  s.operation = c.operation;
  s.parameters = c.parameters;
  return s;
}

/// The work of one process in a run. All processes take the same cases in the same order; what they found out is kept by rank 0.
class Session {
 public:
  Session(const std::vector<Case>& cases, const ProbeOptions& options, Measurements so_far, Surroundings& around)
      : options_(options), around_(around), under_way_(options.out), todo_(left_to_do(cases, so_far)), elapsed_before_(elapsed(so_far)), output_(options.out, std::move(so_far), around.clock) {}
  SessionResult run();

 private:
  std::vector<Case> left_to_do(const std::vector<Case>& cases, Measurements& so_far) const;
  void remember_cut_case(Measurements& so_far, const std::set<std::string>& measured) const;
  static double elapsed(const Measurements& so_far);
  std::string next_word() const;
  std::optional<Case> agreed_case();
  bool measure_case(const Case& now);
  void take(const std::string& name, Series series);
  void skip(const Case& c, const std::string& why);
  void give_up_hanging_case();
  void keep(bool at_once);
  void finish();

  const ProbeOptions& options_;
  Surroundings& around_;
  const bool leads_ = around_.team.rank() == 0;
  const double begin_ = around_.clock();
  UnderWay under_way_;
  const std::vector<Case> todo_;
  std::size_t next_ = 0;
  const double elapsed_before_;   // s, by earlier runs
  Output output_;
  std::map<std::string, int> throttled_;
  SessionResult result_;

  static constexpr int kEnvironmentMissing = 3;
  // Rank 0 first: when it ends, the others notice.
  Watchdog watchdog_{options_.case_limit_s + (leads_ ? 0 : 10), kEnvironmentMissing, [this] { if (leads_) give_up_hanging_case(); }};
};

/// What could not be measured in an earlier run comes last: it may have been what stopped it.
std::vector<Case> Session::left_to_do(const std::vector<Case>& cases, Measurements& so_far) const {
  std::vector<Case> todo, again;
  std::set<std::string> measured, once_skipped;
  for (const Series& s : so_far.series) measured.insert(identity(s));
  if (leads_ && !options_.fresh) remember_cut_case(so_far, measured);
  for (const Skipped& s : so_far.skipped) once_skipped.insert(identity(s.operation, s.parameters));
  for (const Case& c : cases) {
    const std::string name = identity(c.operation, c.parameters);
    if (!measured.contains(name)) (once_skipped.contains(name) ? again : todo).push_back(c);
  }
  todo.insert(todo.end(), again.begin(), again.end());
  std::erase_if(so_far.skipped, [&](const Skipped& s) {
    return std::any_of(again.begin(), again.end(), [&](const Case& c) { return c.operation == s.operation && c.parameters == s.parameters; });
  });
  return todo;
}

/// A case in whose middle the run before ended counts as skipped.
void Session::remember_cut_case(Measurements& so_far, const std::set<std::string>& measured) const {
  std::optional<Skipped> cut = under_way_.left_behind();
  if (!cut) return;
  const std::string name = identity(cut->operation, cut->parameters);
  if (measured.contains(name) || std::any_of(so_far.skipped.begin(), so_far.skipped.end(), [&](const Skipped& s) { return identity(s.operation, s.parameters) == name; })) return;
  around_.say(name + ": " + cut->reason + "; it comes last now");
  so_far.skipped.push_back(std::move(*cut));
}

double Session::elapsed(const Measurements& so_far) {
  const auto before = so_far.options.find("elapsed_s");
  return before == so_far.options.end() ? 0 : std::get<double>(before->second);
}

SessionResult Session::run() {
  if (leads_) output_.save(true);  // a place that cannot be written is said before anything is measured
  while (const std::optional<Case> now = agreed_case())
    if (!measure_case(*now)) break;
  finish();
  return result_;
}

/// The case that comes next, as text, or why there is none.
std::string Session::next_word() const {
  if (around_.interrupted()) return "interrupted";
  if (next_ == todo_.size()) return "complete";
  if (around_.clock() - begin_ >= options_.budget()) return "out of time";
  return encoded(todo_[next_]);
}

/// Rank 0 decides; the others hear of it.
std::optional<Case> Session::agreed_case() {
  const std::string word = around_.team.from_first(leads_ ? next_word() : "");
  if (word == "interrupted") result_.end = SessionResult::End::interrupted;
  if (word == "out of time") result_.end = SessionResult::End::out_of_time;
  if (!word.starts_with("{")) return std::nullopt;
  return decoded(word);
}

/// False: the run ends here.
bool Session::measure_case(const Case& now) {
  const std::string name = identity(now.operation, now.parameters);
  watchdog_.begin();
  try {
    if (leads_) under_way_.begin(now);
    Series series = measure(now, options_, around_);
    watchdog_.end();
    ++result_.measured;
    ++next_;
    if (leads_) take(name, std::move(series));
  } catch (const Interrupted&) {
    watchdog_.end();
    result_.end = SessionResult::End::interrupted;
    return false;
  } catch (const NotPossible& e) {
    watchdog_.end();
    skip(now, e.what());
  } catch (const DeviceLost& e) {
    watchdog_.end();
    skip(now, e.what());
    result_.end = SessionResult::End::device_lost;
    result_.message = e.what();
    return false;
  }
  return true;
}

void Session::take(const std::string& name, Series series) {
  char text[160];
  std::snprintf(text, sizeof text, ": %s +- %.1f %% (%lld samples of %lld)%s", seconds_text(series.median_s).c_str(), 100 * series.relative_error.value_or(0),
                static_cast<long long>(series.samples), static_cast<long long>(series.repeats), series.converged ? "" : ", not converged");
  std::string line = "[" + std::to_string(next_) + "/" + std::to_string(todo_.size()) + "] " + name + text;
  for (const std::string& t : series.throttle) {
    line += ", " + t;
    if (throttled_[t]++ == 0) output_.content().warnings.push_back("clocks were held down while measuring: " + t);
  }
  output_.content().series.push_back(std::move(series));
  keep(false);
  around_.say(line);  // it is in the file when it is said
}

void Session::skip(const Case& c, const std::string& why) {
  ++result_.skipped;
  ++next_;
  if (!leads_) return;
  output_.content().skipped.push_back({c.operation, c.parameters, why});
  keep(false);
  around_.say(identity(c.operation, c.parameters) + ": not measured (" + why + ")");
}

void Session::give_up_hanging_case() {
  const Case& c = todo_[next_];
  const std::string why = "it did not end within " + std::to_string(static_cast<int>(std::ceil(options_.case_limit_s))) + " s";
  output_.content().skipped.push_back({c.operation, c.parameters, why});
  around_.say(identity(c.operation, c.parameters) + ": " + why + "; it will come last in the next run");
  keep(true);
}

void Session::keep(bool at_once) {
  output_.content().options["elapsed_s"] = elapsed_before_ + around_.clock() - begin_;
  output_.content().options["complete"] = next_ == todo_.size();
  output_.save(at_once);
}

void Session::finish() {
  result_.left = static_cast<std::int64_t>(todo_.size() - std::min(next_, todo_.size()));
  if (!leads_) return;
  auto& warnings = output_.content().warnings;  // of several runs
  std::sort(warnings.begin(), warnings.end());
  warnings.erase(std::unique(warnings.begin(), warnings.end()), warnings.end());
  keep(true);
  under_way_.end();
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
  return Session(cases, options, std::move(so_far), around).run();
}

}  // namespace rehearse::calibrate
