#include "calibrate/fit/write_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/config/document.h"
#include "sim/config/units.h"

namespace rehearse::calibrate {
namespace {

using config::Value;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

/// Six digits: more than any measurement has, few enough to read.
std::string digits(double v) { return fmt::format("{:.6g}", v); }

const LinearFit* find(const std::vector<LinearFit>& copies, const char* operation) {
  const auto at = std::find_if(copies.begin(), copies.end(), [&](const LinearFit& f) { return f.operation == operation; });
  return at == copies.end() || at->per_unit_s <= 0 ? nullptr : &*at;
}

std::string comment_lines(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += "# " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

std::string kernel_lines(const KernelFit& fit, const Value* base, const std::string& origin) {
  std::string text = "kernel:\n";
  std::vector<std::string> written;
  for (const FamilyFit& family : fit.families) {
    const OperationError* all = nullptr;
    std::string errors;
    for (const OperationError& e : family.errors)
      if (e.sizes.empty()) all = &e, errors += fmt::format("{}{}: {} rows, {:.1f} % left out one by one", errors.empty() ? "" : "; ", e.operation, e.after.rows, e.leave_one_out.mean_absolute);
    if (all == nullptr) continue;
    text += comment_lines(fmt::format("{}: {} rows, mean error {}", family.name, family.rows, errors)).insert(0, "  ");
    for (const FittedParameter& p : family.parameters) {
      if (p.standing == Standing::not_determined) continue;
      const std::string how = p.standing == Standing::at_bound ? " (at its bound)" : "";
      text += fmt::format("  {}: {{value: {}, standard_error: {}, source: {}}}\n", p.name, digits(p.value), digits(p.standard_error), quoted("calibrate fit" + how + ": " + origin));
      written.push_back(p.name);
    }
  }
  for (const auto& [name, value] : fit.gpu.kernel_parameters)
    if (name.starts_with("fitted_") && std::any_of(fit.families.begin(), fit.families.end(), [&](const FamilyFit& f) {
          return (name.starts_with("fitted_gemm") && f.name == "matrix products") || (name.starts_with("fitted_attention") && f.name.starts_with("attention")) ||
                 (name.starts_with("fitted_memory") && f.name.starts_with("kernels"));
        })) {
      text += fmt::format("  {}: {{value: {}, source: {}}}\n", name, digits(value), quoted("calibrate fit: sizes that were measured"));
      written.push_back(name);
    }
  if (base != nullptr)
    for (const Value::Entry& e : base->entries()) {
      if (std::find(written.begin(), written.end(), e.key) != written.end()) continue;
      const Value* value = e.value.find("value");
      const Value* source = e.value.find("source");
      if (value != nullptr && source != nullptr) text += fmt::format("  {}: {{value: {}, source: {}}}\n", e.key, value->text(), quoted(source->text()));
    }
  return text == "kernel:\n" ? std::string() : text;
}

}  // namespace

std::string gpu_yaml(const KernelFit& fit, const std::vector<LinearFit>& copies, const std::string& origin, const std::string& points_file) {
  const config::Document base = config::load_document(fit.gpu.file);
  std::string text = comment_lines("Written by rehearse calibrate fit over " + fit.gpu.name + ".\n" + origin);
  std::vector<Value::Entry> kept;
  const LinearFit *to_device = find(copies, "host_to_device pinned"), *to_host = find(copies, "device_to_host pinned");
  for (const Value::Entry& e : base.root.entries()) {
    const bool replaced = e.key == "kernel" || e.key == "points" || (e.key == "host_to_device" && to_device != nullptr) || (e.key == "device_to_host" && to_host != nullptr);
    if (!replaced) kept.push_back(e);
  }
  text += config::to_yaml(Value::map(std::move(kept), base.root.place(), base.root.path()));
  const auto copy = [&](const char* key, const LinearFit* f) {
    if (f == nullptr) return;
    const double error = f->per_unit_error_s / f->per_unit_s * f->rate();
    text += fmt::format("{}: {{value: {} GB/s, standard_error: {} GB/s, source: {}}}\n", key, digits(f->rate() * 1e-9), digits(error * 1e-9),
                        quoted(fmt::format("calibrate fit: pinned, {} sizes, latency {:.1f} us, {:.1f} % left out one by one; {}", f->rows, f->latency_s * 1e6, f->leave_one_out.mean_absolute, origin)));
  };
  copy("host_to_device", to_device), copy("device_to_host", to_host);
  text += kernel_lines(fit, base.root.find("kernel"), origin);
  if (!points_file.empty() && !fit.gpu.measured_kernels.empty())
    text += fmt::format("points: {{file: {}, gemm_reach: {}, attention_reach: {}, memory_reach: {}}}  # octaves; chosen by the least error at rows left out\n", quoted(points_file), fit.gpu.reach.gemm,
                        fit.gpu.reach.attention, fit.gpu.reach.memory);
  return text;
}

}  // namespace rehearse::calibrate
