// Traces of PyTorch's profiler. Kernels know their stream and duration; what they worked on is known to the CPU operator that
// launched them ("External id"), when the trace was made with record_shapes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "calibrate/import/import.h"
#include "calibrate/import/json_text.h"
#include "calibrate/import/nccl_words.h"
#include "calibrate/import/series_builder.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

/// GPUs or nodes.
int count_of(double v) { return static_cast<int>(std::clamp<std::int64_t>(whole_number(v), 0, 10'000'000)); }

using Json = nlohmann::json;

const Json* member(const Json& holder, const char* key) {
  if (!holder.is_object()) return nullptr;
  const auto at = holder.find(key);
  return at == holder.end() ? nullptr : &*at;
}
double number_of(const Json& holder, const char* key, double otherwise = 0) {
  const Json* v = member(holder, key);
  if (v == nullptr) return otherwise;
  if (v->is_number()) return v->get<double>();
  if (v->is_string()) return std::strtod(v->get<std::string>().c_str(), nullptr);
  return otherwise;
}

/// The ranks of a group: a list, or a text that looks like one. Cut lists ("[0, 1, ...]") give what is there.
std::vector<int> ranks_of(const Json& args) {
  const Json* v = member(args, "Process Group Ranks");
  std::vector<int> out;
  if (v == nullptr) return out;
  if (v->is_array()) {
    for (const Json& r : *v)
      if (r.is_number_integer()) out.push_back(r.get<int>());
    return out;
  }
  if (!v->is_string()) return out;
  const std::string text = v->get<std::string>();
  for (std::size_t i = 0; i < text.size();) {
    if (std::isdigit(static_cast<unsigned char>(text[i]))) {
      char* end = nullptr;
      out.push_back(static_cast<int>(std::strtol(text.c_str() + i, &end, 10)));
      i = static_cast<std::size_t>(end - text.c_str());
    } else {
      ++i;
    }
  }
  return out;
}

/// A matrix product as its aten operator states it.
struct Product {
  std::int64_t batch, m, n, k;
};
std::optional<Product> product_of(const std::string& name, const Json& args) {
  const Json* dims = member(args, "Input Dims");
  if (dims == nullptr || !dims->is_array()) return std::nullopt;
  const auto matrix = [&](std::size_t i, std::size_t rank) {
    std::vector<std::int64_t> out;
    if (i < dims->size() && (*dims)[i].is_array() && (*dims)[i].size() == rank)
      for (const Json& d : (*dims)[i])
        if (d.is_number_integer()) out.push_back(d.get<std::int64_t>());
    return out.size() == rank ? out : std::vector<std::int64_t>{};
  };
  const std::size_t first = name == "aten::addmm" ? 1 : 0;
  if (name == "aten::mm" || name == "aten::addmm") {
    const auto a = matrix(first, 2), b = matrix(first + 1, 2);
    if (!a.empty() && !b.empty() && a[1] == b[0] && a[0] > 0 && a[1] > 0 && b[1] > 0) return Product{1, a[0], b[1], a[1]};
  } else if (name == "aten::bmm") {
    const auto a = matrix(0, 3), b = matrix(1, 3);
    if (!a.empty() && !b.empty() && a[2] == b[1] && a[0] == b[0] && a[0] > 0 && a[1] > 0 && a[2] > 0 && b[2] > 0) return Product{a[0], a[1], b[2], a[2]};
  }
  return std::nullopt;
}

class Trace {
 public:
  Trace(const Json& root, const std::string& file, const ImportOptions& options) : root_(root), file_(file), options_(options) {}

  Imported read() {
    const Json* events = root_.is_array() ? &root_ : member(root_, "traceEvents");
    if (events == nullptr || !events->is_array()) throw ConfigError(Diagnostic{{file_, 0, 0}, "traceEvents", "is missing: this is no trace of PyTorch's profiler", "Give the JSON that export_chrome_trace wrote", ""});
    for (const Json& e : *events)
      if (text_of(e, "cat") == "cpu_op") operators_[whole_number(number_of(args_of(e), "External id", -1))] = &e;
    for (const Json& e : *events) count_products(e);
    for (const Json& e : *events) event(e);
    return finish();
  }

 private:
  static const Json& args_of(const Json& e) {
    static const Json none = Json::object();
    const Json* args = member(e, "args");
    return args == nullptr ? none : *args;
  }

  /// An operator may launch several kernels; only where it is one is its shape the kernel's.
  void count_products(const Json& e) {
    if (text_of(e, "cat") == "kernel") ++launches_[whole_number(number_of(args_of(e), "External id", -1))];
  }

  void event(const Json& e) {
    if (!e.is_object()) {
      ++strange_;
      return;
    }
    const std::string category = text_of(e, "cat"), name = text_of(e, "name");
    if (category != "kernel" && category != "gpu_memcpy" && category != "gpu_memset") {
      if (!category.empty()) ++others_[category];
      return;
    }
    const double seconds = number_of(e, "dur") * 1e-6;
    if (!(seconds > 0)) {
      ++instant_;
      return;
    }
    const Json& args = args_of(e);
    if (category == "gpu_memcpy") return copy(name, args, seconds);
    if (category == "gpu_memset") return other(name, seconds);
    if (name.find("nccl") == 0 || name.find("ncclDevKernel") != std::string::npos || name.find("ncclKernel") != std::string::npos) return collective(name, args, seconds);
    const auto op = operators_.find(whole_number(number_of(args, "External id", -1)));
    if (op != operators_.end() && launches_[op->first] == 1 && product(*op->second, seconds)) return;
    other(name, seconds);
  }

  bool product(const Json& op, double seconds) {
    const auto shape = product_of(text_of(op, "name"), args_of(op));
    if (!shape) return false;
    const Json* types = member(args_of(op), "Input type");
    const std::size_t first = text_of(op, "name") == "aten::addmm" ? 1 : 0;
    std::optional<std::string> dtype;
    if (types != nullptr && types->is_array() && types->size() > first && (*types)[first].is_string()) dtype = dtype_of_nccl((*types)[first].get<std::string>());
    if (!dtype) return false;
    series_.add("gemm", {{"m", shape->m}, {"n", shape->n}, {"k", shape->k}, {"batch", shape->batch}, {"dtype", *dtype}, {"origin", std::string("trace")}}, seconds);
    ++products_;
    return true;
  }

  void collective(const std::string& name, const Json& args, double seconds) {
    const auto kind = collective_of_torch(text_of(args, "Collective name"));
    const auto dtype = dtype_of_nccl(text_of(args, "dtype"));
    const double in = number_of(args, "In msg nelems"), received = number_of(args, "Out msg nelems");
    const int ranks = count_of(number_of(args, "Group size"));
    if (!kind || !dtype || ranks < 1 || std::max(in, received) <= 0) {
      ++unsized_;
      return other(name, seconds);
    }
    // nccl-tests' size: all_gather and reduce_scatter count the whole, others one rank's buffer.
    const double elements = *kind == "all_gather" ? std::max(received, in) : in;
    const int nodes = nodes_of(ranks_of(args), ranks);
    series_.add("collective", {{"collective", *kind}, {"bytes", whole_number(elements) * bytes_of_dtype(*dtype)}, {"ranks", std::int64_t{ranks}}, {"nodes", std::int64_t{nodes}}, {"dtype", *dtype}}, seconds);
    ++collectives_;
  }

  /// With 8 GPUs to a node unless the caller says how many nodes there are.
  int nodes_of(const std::vector<int>& ranks, int size) {
    const Json* info = member(root_, "distributedInfo");
    const int world = info == nullptr ? size : count_of(number_of(*info, "world_size", size));
    const int per_node = options_.nodes ? std::max(1, world / std::max(1, *options_.nodes)) : 8;
    std::set<int> nodes;
    for (const int r : ranks) nodes.insert(r / per_node);
    if (static_cast<int>(ranks.size()) != size || size % std::max<int>(1, static_cast<int>(nodes.size())) != 0) return std::max(1, (size + per_node - 1) / per_node);
    return static_cast<int>(nodes.size());
  }

  void copy(const std::string& name, const Json& args, double seconds) {
    const auto bytes = whole_number(number_of(args, "bytes"));
    const bool pinned = name.find("Pageable") == std::string::npos;
    const char* direction = name.find("HtoD") != std::string::npos ? "host_to_device" : name.find("DtoH") != std::string::npos ? "device_to_host" : name.find("DtoD") != std::string::npos ? "device_to_device" : nullptr;
    if (bytes <= 0 || direction == nullptr) return other(name, seconds);
    series_.add("transfer", {{"direction", std::string(direction)}, {"bytes", bytes}, {"pinned", pinned}}, seconds);
    ++copies_;
  }

  void other(const std::string& name, double seconds) {
    auto& [count, total] = unknown_[name];
    ++count, total += seconds;
  }

  Imported finish() {
    Imported out;
    Measurements& m = out.measurements;
    m.source = "PyTorch profiler trace";
    if (const Json* devices = member(root_, "deviceProperties"); devices != nullptr && devices->is_array() && !devices->empty()) {
      const Json& d = devices->front();
      if (const std::string gpu = text_of(d, "name"); !gpu.empty()) m.machine["gpu"] = gpu;
      if (const double sms = number_of(d, "numSms"); sms > 0) m.machine["sms"] = whole_number(sms);
      if (const double major = number_of(d, "computeMajor"); major > 0) m.machine["compute_capability"] = whole_number(10 * major + number_of(d, "computeMinor"));
    }
    if (const Json* info = member(root_, "distributedInfo")) {
      if (const std::string nccl = text_of(*info, "nccl_version"); !nccl.empty()) m.software["nccl"] = nccl;
      if (const double world = number_of(*info, "world_size"); world > 0) m.machine["gpu_count"] = whole_number(world);
    }
    m.series = series_.take();
    if (collectives_ > 0) m.warnings.push_back("collectives of a trace hold the time that a rank waited for the others: prefer nccl-tests");
    m.warnings.push_back("kernels of a training step share the GPU with others and run at its sustained clock");
    // The fit tells such kernels from a cold microbenchmark's by this word.
    for (Series& s : m.series)
      if (s.operation == "gemm") s.note = "from a training step";
    ImportReport& r = out.report;
    r.used = {fmt::format("{} matrix products with shapes, {} collectives, {} copies, as {} series", products_, collectives_, copies_, m.series.size())};
    for (const auto& [category, count] : others_) r.ignored.push_back(fmt::format("{} events of category {}", count, category));
    if (instant_ > 0) r.ignored.push_back(fmt::format("{} kernels without a duration", instant_));
    if (strange_ > 0) r.not_understood.push_back(fmt::format("{} events that are no objects", strange_));
    if (unsized_ > 0) r.not_understood.push_back(fmt::format("{} NCCL kernels without sizes or with a format that is not known", unsized_));
    std::vector<std::pair<std::string, std::pair<int, double>>> kernels(unknown_.begin(), unknown_.end());
    std::sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.second.second > b.second.second; });
    for (std::size_t i = 0; i < kernels.size() && i < 20; ++i)
      r.not_understood.push_back(fmt::format("{}: {} times, {:.3f} ms: its shapes are unknown", kernels[i].first.substr(0, 80), kernels[i].second.first, 1e3 * kernels[i].second.second));
    if (kernels.size() > 20) r.not_understood.push_back(fmt::format("{} more kernels", kernels.size() - 20));
    if (products_ == 0 && !kernels.empty()) r.not_understood.push_back("no matrix product has a shape: profile with record_shapes=True");
    return out;
  }

  const Json& root_;
  const std::string& file_;
  const ImportOptions& options_;
  SeriesBuilder series_;
  std::map<std::int64_t, const Json*> operators_;
  std::map<std::int64_t, int> launches_;
  std::map<std::string, int> others_;
  std::map<std::string, std::pair<int, double>> unknown_;
  int products_ = 0, collectives_ = 0, copies_ = 0, instant_ = 0, strange_ = 0, unsized_ = 0;
};

}  // namespace

Imported import_kineto(const std::string& text, const std::string& file, const ImportOptions& options) {
  int repaired = 0;
  const Json root = parse_foreign_json(text, file, &repaired);
  Imported out = Trace(root, file, options).read();
  if (repaired > 0) out.report.ignored.push_back(fmt::format("{} control characters inside texts", repaired));
  return out;
}

}  // namespace rehearse::calibrate
