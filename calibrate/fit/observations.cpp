#include "calibrate/fit/observations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "calibrate/fit/fit_kernels.h"

namespace rehearse::calibrate {
namespace {

using model::KernelKind;
using model::KernelSpec;

DType format_of(const std::string& name, DType otherwise) { return dtype_named(name).value_or(otherwise); }

model::GemmRole role_of(const std::string& name) {
  if (name == "data_gradient") return model::GemmRole::data_gradient;
  if (name == "weight_gradient") return model::GemmRole::weight_gradient;
  return model::GemmRole::forward;
}

/// Power and heat make a GPU slower for as long as the work lasts; other reasons (idle, display, a user's clock) do not tell.
bool power_limited(const Series& s) {
  if (s.note == "from a training step") return true;  // the importer of traces says so
  return std::any_of(s.throttle.begin(), s.throttle.end(), [](const std::string& reason) {
    return reason.find("power") != std::string::npos || reason.find("thermal") != std::string::npos || reason.find("slowdown") != std::string::npos;
  });
}

KernelObservation start_of(const Series& s) {
  KernelObservation out;
  out.seconds = s.median_s;
  out.relative_error = s.relative_error.value_or(0);
  out.clock = power_limited(s) ? hwmodels::ClockState::sustained : hwmodels::ClockState::burst;
  return out;
}

KernelObservation product(const Series& s, bool grouped) {
  KernelObservation out = start_of(s);
  KernelSpec& k = out.kernel;
  k.kind = grouped ? KernelKind::grouped_gemm : KernelKind::gemm;
  k.batch = s.integer(grouped ? "groups" : "batch");
  k.m = s.integer("m"), k.n = s.integer("n"), k.k = s.integer("k");
  k.dtype = format_of(s.text("dtype"), DType::bf16);
  k.role = role_of(s.text("role"));
  // Quantised operands leave a 16-bit result where the log does not say otherwise.
  k.output_dtype = bits(k.dtype) < 16 ? DType::bf16 : k.dtype;
  if (!grouped) k.output_dtype = format_of(s.text("output_dtype"), k.output_dtype), k.accumulate = s.flag("accumulate");
  out.operation = fmt::format("{} {} {}", grouped ? "grouped_gemm" : "gemm", s.text("dtype"), s.text("role"));
  out.size = model::flops_of(k).value;
  return out;
}

KernelObservation attention(const Series& s, model::AttentionKernel implementation) {
  KernelObservation out = start_of(s);
  KernelSpec& k = out.kernel;
  k.kind = s.operation == "attention_forward" ? KernelKind::attention_forward : KernelKind::attention_backward;
  k.attention = implementation;
  k.batch = s.integer("batch"), k.heads = s.integer("heads"), k.kv_heads = s.integer("kv_heads");
  k.query_length = s.integer("query_length"), k.key_length = s.integer("key_length");
  k.head_dim = k.value_head_dim = s.integer("head_dim");
  k.causal = s.flag("causal");
  k.dtype = k.output_dtype = format_of(s.text("dtype"), DType::bf16);
  out.operation = fmt::format("{} {}", s.operation, s.text("implementation"));
  out.size = model::flops_of(k).value;
  return out;
}

KernelObservation memory_bound(const Series& s) {
  static const std::map<std::string, KernelKind> kinds{{"copy", KernelKind::elementwise},        {"add", KernelKind::elementwise},
                                                       {"cast", KernelKind::elementwise},        {"rms_norm", KernelKind::normalization},
                                                       {"layer_norm", KernelKind::normalization}, {"softmax", KernelKind::softmax},
                                                       {"cross_entropy", KernelKind::cross_entropy}, {"adam", KernelKind::optimizer},
                                                       {"memset", KernelKind::memset},           {"reduction", KernelKind::reduction}};
  KernelObservation out = start_of(s);
  KernelSpec& k = out.kernel;
  const auto kind = kinds.find(s.text("kernel"));
  k.kind = kind == kinds.end() ? KernelKind::elementwise : kind->second;
  k.dtype = k.output_dtype = format_of(s.text("dtype"), DType::bf16);
  k.bytes_read = s.integer("bytes_read"), k.bytes_written = s.integer("bytes_written");
  out.operation = "memory " + s.text("kernel");
  out.size = static_cast<double>(k.bytes_read + k.bytes_written);
  return out;
}

std::optional<CollectiveKind> collective_named(const std::string& name) {
  for (int k = 0; k <= static_cast<int>(CollectiveKind::send_recv); ++k)
    if (name_of(static_cast<CollectiveKind>(k)) == name) return static_cast<CollectiveKind>(k);
  return std::nullopt;
}

std::string text_or(const Facts& facts, const char* key) {
  const auto at = facts.find(key);
  const auto* text = at == facts.end() ? nullptr : std::get_if<std::string>(&at->second);
  return text == nullptr ? "" : *text;
}

void add_collective(const Series& s, Observations& out) {
  const auto kind = collective_named(s.text("collective"));
  CollectiveObservation c;
  c.kind = kind.value_or(CollectiveKind::all_reduce);
  c.bytes = static_cast<double>(s.integer("bytes"));
  c.seconds = s.median_s, c.relative_error = s.relative_error.value_or(0);
  c.shape.ranks = static_cast<int>(s.integer("ranks")), c.shape.nodes = static_cast<int>(s.integer("nodes"));
  c.shape.ranks_per_node = c.shape.nodes > 0 ? c.shape.ranks / c.shape.nodes : 0;
  c.shape.stride = static_cast<int>(s.integer("stride")), c.shape.groups_per_node = static_cast<int>(s.integer("groups"));
  c.operation = fmt::format("{} {} GPUs{}", s.text("collective"), c.shape.ranks, c.shape.nodes > 1 ? fmt::format("/{}", c.shape.nodes) : "");
  if (!kind) return out.unused.emplace_back(identity(s), "unknown collective"), void();
  if (c.shape.ranks < 2) return out.unused.emplace_back(identity(s), "a collective of one GPU moves nothing"), void();
  if (c.shape.ranks_per_node < 1 || c.shape.ranks_per_node * c.shape.nodes != c.shape.ranks) return out.unused.emplace_back(identity(s), "the GPUs do not divide over the nodes"), void();
  if (c.bytes <= 0) return out.unused.emplace_back(identity(s), "an empty message"), void();
  if (c.shape.groups_per_node > 1 && c.shape.nodes > 1) c.operation += fmt::format(", {} at once", c.shape.groups_per_node);
  out.collectives.push_back(std::move(c));
}

/// Medians by what was measured, for pairs that need to know how long each side takes alone.
class Alone {
 public:
  explicit Alone(const Measurements& m) {
    for (const Series& s : m.series) {
      if (s.operation == "gemm" && (s.text("role") != "forward" || s.integer("batch") != 1 || s.flag("accumulate"))) continue;
      if (s.operation == "gemm" || s.operation == "collective" || s.operation == "transfer") seconds_.emplace(identity(s.operation, bare(s.parameters)), s.median_s);
    }
  }
  /// 0: was not measured.
  double seconds(const std::string& operation, const Facts& parameters) const {
    const auto at = seconds_.find(identity(operation, parameters));
    return at == seconds_.end() ? 0 : at->second;
  }

 private:
  static Facts bare(Facts p) {
    for (const char* key : {"origin", "role", "output_dtype"}) p.erase(key);
    return p;
  }
  std::map<std::string, double> seconds_;
};

OverlapSide side_of(const Series& s, const std::string& name, const Alone& alone) {
  OverlapSide out;
  if (name == "gemm") {
    out.kernel.kind = KernelKind::gemm;
    out.kernel.m = s.integer("m"), out.kernel.n = s.integer("n"), out.kernel.k = s.integer("k");
    out.kernel.dtype = out.kernel.output_dtype = format_of(s.text("dtype"), DType::bf16);
    out.alone_seconds = alone.seconds("gemm", {{"m", s.integer("m")}, {"n", s.integer("n")}, {"k", s.integer("k")}, {"dtype", s.text("dtype")}});
    return out;
  }
  out.bytes = static_cast<double>(s.integer("bytes"));
  if (name == "transfer") {
    out.kind = OverlapSide::Kind::transfer;
    out.both_directions = s.text("direction") == "both";
    out.alone_seconds = alone.seconds("transfer", {{"direction", s.text("direction")}, {"bytes", s.integer("bytes")}});
    return out;
  }
  out.kind = OverlapSide::Kind::collective;
  out.collective = collective_named(s.text("collective")).value_or(CollectiveKind::all_reduce);
  const auto ranks = static_cast<int>(s.integer("ranks")), nodes = std::max(1, static_cast<int>(s.integer("nodes")));
  out.shape.ranks = ranks, out.shape.nodes = nodes, out.shape.ranks_per_node = ranks / nodes;
  Facts group{{"collective", s.text("collective")}, {"bytes", s.integer("bytes")}, {"ranks", s.integer("ranks")}};
  if (nodes > 1) group["nodes"] = s.integer("nodes");
  out.alone_seconds = alone.seconds("collective", group);
  return out;
}

void add_overlap(const Series& s, const Alone& alone, Observations& out) {
  const auto unused = [&](const char* why) { out.unused.emplace_back(identity(s), why); };
  OverlapObservation o{side_of(s, s.text("timed"), alone), side_of(s, s.text("beside"), alone), s.median_s, s.relative_error.value_or(0), ""};
  using Kind = OverlapSide::Kind;
  if ((o.timed.kind == Kind::gemm) == (o.beside.kind == Kind::gemm)) return unused("interference is fitted to matrix products beside communication only");
  const OverlapSide& other = o.timed.kind == Kind::gemm ? o.beside : o.timed;
  if (other.kind == Kind::collective && (other.shape.ranks < 2 || other.shape.ranks_per_node * other.shape.nodes != other.shape.ranks)) return unused("the GPUs do not divide over the nodes");
  if (s.note.find("ended first") != std::string::npos) return unused("the other operation ended before it in some samples");
  if (o.timed.alone_seconds <= 0) return unused("how long it takes alone was not measured");
  const std::string name = other.kind != Kind::transfer ? s.text("collective") : other.both_directions ? "copies" : s.text("direction") == "host_to_device" ? "copy in" : "copy out";
  o.operation = o.timed.kind == Kind::gemm ? "gemm beside " + name : name + " beside gemm";
  out.overlaps.push_back(std::move(o));
}

void add_host(const Series& s, Observations& out) {
  using Kind = HostObservation::Kind;
  const auto unused = [&](const char* why) { out.unused.emplace_back(identity(s), why); };
  if (s.operation == "host_memory") {
    if (s.text("kernel") != "triad") return unused("of the host's DRAM, the triad is what counts");
    return out.host.push_back({Kind::triad, static_cast<double>(s.integer("bytes")), s.median_s, s.integer("threads"), 0, 0});
  }
  if (s.operation == "host_adam") return out.host.push_back({Kind::adam, 30.0 * static_cast<double>(s.integer("elements")), s.median_s, s.integer("threads"), 0, 0});
  if (!s.flag("direct")) return unused("the page cache took part");
  if (s.integer("block_bytes") < 1 << 20) return unused("states are read and written in large requests: those of 1 MiB or more count");
  out.host.push_back({s.text("direction") == "read" ? Kind::disk_read : Kind::disk_write, static_cast<double>(s.integer("bytes")), s.median_s, 0, s.integer("block_bytes"), s.integer("depth")});
}

}  // namespace

Observations observe(const Measurements& m) {
  Observations out;
  const Alone alone(m);
  for (const Series& s : m.series) {
    if (s.median_s <= 0) {
      out.unused.emplace_back(identity(s), "took no time");
    } else if (s.operation == "gemm" || s.operation == "grouped_gemm") {
      const bool grouped = s.operation == "grouped_gemm";
      if (grouped && s.text("implementation") == "sequence") out.unused.emplace_back(identity(s), "one product per expert, one after another: no grouped kernel");
      else out.kernels.push_back(product(s, grouped));
    } else if (s.operation == "attention_forward" || s.operation == "attention_backward") {
      const auto known = model::attention_kernel_named(s.text("implementation"));
      if (known && !fitted_attention(*known).empty()) out.kernels.push_back(attention(s, *known));
      else if (known) out.unused.emplace_back(identity(s), "no parameters of this kernel are fitted");
      else out.unused.emplace_back(identity(s), "no library kernel: a lower bound of what libraries reach");
    } else if (s.operation == "memory_kernel") {
      out.kernels.push_back(memory_bound(s));
    } else if (s.operation == "overlap") {
      add_overlap(s, alone, out);
    } else if (s.operation == "collective") {
      add_collective(s, out);
    } else if (s.operation == "transfer") {
      const std::string direction = s.text("direction");
      if (s.integer("gpus") > 1) out.unused.emplace_back(identity(s), "several GPUs at once: sharing is not fitted");
      else out.copies.push_back({direction + (direction == "host_to_device" || direction == "device_to_host" || direction == "both" ? (s.flag("pinned") ? " pinned" : " pageable") : ""),
                                 static_cast<double>(s.integer("bytes")), s.median_s, s.relative_error.value_or(0)});
    } else if (s.operation == "kernel_launch" || s.operation == "graph_launch") {
      // A graph's gap is a time per node already.
      const bool line = s.operation == "graph_launch" && s.text("what") != "gap";
      out.launches.push_back({s.operation + " " + s.text("what"), line ? static_cast<double>(s.integer("nodes")) : 0, s.median_s});
    } else if (s.operation == "host_memory" || s.operation == "host_adam" || s.operation == "file") {
      add_host(s, out);
    } else {
      out.unused.emplace_back(identity(s), "no parameter of ours is about it");
    }
  }
  return out;
}

std::string origin_of(const Measurements& m, const std::string& date) {
  std::string text = m.source.empty() ? "measurements" : m.source;
  const auto add = [&](const char* title, const std::string& value) {
    if (!value.empty()) text += fmt::format(", {}{}", title, value);
  };
  add("", text_or(m.machine, "gpu"));
  add("driver ", text_or(m.machine, "driver"));
  add("CUDA ", text_or(m.software, "cuda_runtime"));
  add("cuBLASLt ", text_or(m.software, "cublaslt"));
  add("cuDNN ", text_or(m.software, "cudnn"));
  add("NCCL ", text_or(m.software, "nccl"));
  add("PyTorch ", text_or(m.software, "pytorch"));
  add("fitted ", date);
  return text;
}

}  // namespace rehearse::calibrate
