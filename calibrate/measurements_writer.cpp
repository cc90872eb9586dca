// Writes measurements: one fact and one series per line. Leaves out reading them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "calibrate/measurements.h"
#include "sim/core/contract.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const Fact& fact) {
  return std::visit([](const auto& v) { return OrderedJson(v); }, fact);
}
OrderedJson json_of(const Facts& facts) {
  OrderedJson out = OrderedJson::object();
  for (const auto& [key, value] : facts) out[key] = json_of(value);
  return out;
}
void put(OrderedJson& out, const char* key, const std::optional<double>& value) {
  if (!value) return;
  EXPECTS(std::isfinite(*value), key);
  out[key] = *value;
}

OrderedJson json_of(const Series& s) {
  OrderedJson out = {{"operation", s.operation}, {"parameters", json_of(s.parameters)}, {"samples", s.samples}};
  if (s.repeats != 1) out["repeats"] = s.repeats;
  out["median_s"] = s.median_s;
  put(out, "mean_s", s.mean_s);
  put(out, "min_s", s.min_s);
  put(out, "max_s", s.max_s);
  put(out, "stddev_s", s.stddev_s);
  put(out, "relative_error", s.relative_error);
  put(out, "drift", s.drift);
  out["converged"] = s.converged;
  put(out, "sm_clock_mhz", s.sm_clock_mhz);
  if (!s.throttle.empty()) out["throttle"] = s.throttle;
  if (!s.note.empty()) out["note"] = s.note;
  return out;
}
OrderedJson json_of(const Skipped& s) {
  return {{"operation", s.operation}, {"parameters", json_of(s.parameters)}, {"reason", s.reason}};
}

/// Names of devices may hold any bytes: those that are no UTF-8 are replaced.
std::string text_of(const OrderedJson& value) { return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

template <typename Items>
void lines(std::ostream& out, const char* name, const Items& items) {
  out << ",\n \"" << name << "\": [";
  const char* comma = "";
  for (const auto& item : items) {
    out << comma << "\n  " << text_of(json_of(item));
    comma = ",";
  }
  out << (items.empty() ? "]" : "\n ]");
}
void block(std::ostream& out, const char* name, const Facts& facts) {
  out << ",\n \"" << name << "\": {";
  const char* comma = "";
  for (const auto& [key, value] : facts) {
    out << comma << "\n  \"" << key << "\": " << text_of(json_of(value));
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
  out << "{\n \"schema\": \"" << kSchema << "\",\n \"source\": " << text_of(OrderedJson(m.source));
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
