// Writes measurements: one fact and one series per line. Leaves out reading them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

#include "calibrate/json.h"
#include "calibrate/measurements.h"
#include "sim/core/contract.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

std::string json_of(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& t : texts) out += (out.size() > 1 ? "," : "") + json_text(t);
  return out + "]";
}
std::string json_of(const Fact& fact) {
  if (const bool* v = std::get_if<bool>(&fact)) return *v ? "true" : "false";
  if (const auto* v = std::get_if<std::int64_t>(&fact)) return std::to_string(*v);
  if (const double* v = std::get_if<double>(&fact)) return json_number(*v);
  if (const auto* v = std::get_if<std::string>(&fact)) return json_text(*v);
  return json_of(std::get<std::vector<std::string>>(fact));
}
std::string json_of(const Facts& facts) {
  std::string out = "{";
  for (const auto& [key, value] : facts) out += (out.size() > 1 ? "," : "") + json_text(key) + ":" + json_of(value);
  return out + "}";
}
void put(std::string& out, const char* key, const std::optional<double>& value) {
  if (!value) return;
  EXPECTS(std::isfinite(*value), key);
  out += ",\"" + std::string(key) + "\":" + json_number(*value);
}

template <typename Item>
std::string what_of(const Item& s) {
  return "{\"operation\":" + json_text(s.operation) + ",\"parameters\":" + json_of(s.parameters);
}
std::string json_of(const Series& s) {
  std::string out = what_of(s) + ",\"samples\":" + std::to_string(s.samples);
  if (s.repeats != 1) out += ",\"repeats\":" + std::to_string(s.repeats);
  put(out, "median_s", s.median_s);
  put(out, "mean_s", s.mean_s);
  put(out, "min_s", s.min_s);
  put(out, "max_s", s.max_s);
  put(out, "stddev_s", s.stddev_s);
  put(out, "relative_error", s.relative_error);
  put(out, "drift", s.drift);
  out += s.converged ? ",\"converged\":true" : ",\"converged\":false";
  put(out, "sm_clock_mhz", s.sm_clock_mhz);
  if (!s.throttle.empty()) out += ",\"throttle\":" + json_of(s.throttle);
  if (!s.note.empty()) out += ",\"note\":" + json_text(s.note);
  return out + "}";
}
std::string json_of(const Skipped& s) { return what_of(s) + ",\"reason\":" + json_text(s.reason) + "}"; }
std::string json_of(const std::string& s) { return json_text(s); }

template <typename Items>
void lines(std::ostream& out, const char* name, const Items& items) {
  out << ",\n \"" << name << "\": [";
  const char* comma = "";
  for (const auto& item : items) {
    out << comma << "\n  " << json_of(item);
    comma = ",";
  }
  out << (items.empty() ? "]" : "\n ]");
}
void block(std::ostream& out, const char* name, const Facts& facts) {
  out << ",\n \"" << name << "\": {";
  const char* comma = "";
  for (const auto& [key, value] : facts) {
    out << comma << "\n  \"" << key << "\": " << json_of(value);
    comma = ",";
  }
  out << (facts.empty() ? "}" : "\n }");
}

ConfigError cannot_be_written(const std::string& path, const std::string& why, const std::string& fix) {
  return ConfigError(Diagnostic{{path, 0, 0}, "", "cannot be written (" + why + ")", fix, ""});
}

}  // namespace

std::string to_json(const Measurements& m) {
  std::ostringstream out;
  out << "{\n \"schema\": \"" << kSchema << "\",\n \"source\": " << json_text(m.source);
  block(out, "machine", m.machine);
  block(out, "software", m.software);
  block(out, "options", m.options);
  lines(out, "warnings", m.warnings);
  lines(out, "skipped", m.skipped);
  lines(out, "series", m.series);
  out << "\n}\n";
  return out.str();
}

void write_measurements(const std::string& path, const Measurements& m, bool press) {
  const std::string text = to_json(m), beside = path + ".part";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const auto failed = [&] {
    const std::string why = std::strerror(errno);
    if (file >= 0) ::close(file);
    ::unlink(beside.c_str());
    return cannot_be_written(path, why, "Name a file in a folder that exists and has room");
  };
  if (file < 0) throw failed();
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) throw failed();
    done += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  if (press && ::fsync(file) != 0 && errno != EINVAL) throw failed();  // EINVAL: a pipe or a device has nothing to sync
  ::close(file);
  if (::rename(beside.c_str(), path.c_str()) != 0) throw cannot_be_written(path, std::strerror(errno), "Name a file, not a folder");
}

}  // namespace rehearse::calibrate
