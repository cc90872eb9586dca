// The table of measured kernels as a CSV file: reading and writing. The numbers' use: measured_points.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hwmodels/device/measured_points.h"
#include "sim/config/csv.h"
#include "sim/core/error.h"

namespace rehearse::hwmodels {
namespace {

using model::AttentionKernel;
using model::GemmRole;
using model::KernelKind;

constexpr std::array<std::pair<std::string_view, GemmRole>, 3> kRoles{
    {{"forward", GemmRole::forward}, {"data_gradient", GemmRole::data_gradient}, {"weight_gradient", GemmRole::weight_gradient}}};
constexpr std::array<std::pair<std::string_view, ClockState>, 2> kClocks{{{"burst", ClockState::burst}, {"sustained", ClockState::sustained}}};

template <typename T, std::size_t N>
std::string_view word_of(const std::array<std::pair<std::string_view, T>, N>& words, T value) {
  for (const auto& [word, v] : words)
    if (v == value) return word;
  return "?";
}

/// One row; mistakes go to `problems`.
class RowReader {
 public:
  RowReader(const config::CsvRow& row, std::vector<Diagnostic>& problems) : row_(row), problems_(problems) {}

  std::int64_t size(const char* column, std::int64_t least, std::optional<std::int64_t> otherwise = std::nullopt) {
    try {
      const auto value = row_.find(column) ? row_.integer(column) : std::nullopt;
      if (!value && otherwise) return *otherwise;
      if (value && *value >= least) return *value;
    } catch (const ConfigError& e) {
      problems_.insert(problems_.end(), e.diagnostics().begin(), e.diagnostics().end());
      return least;
    }
    problems_.push_back(row_.diagnostic(column, fmt::format("is missing or below {}", least), "Write a whole number"));
    return least;
  }
  double number(const char* column) {
    try {
      if (const auto value = row_.find(column) ? row_.number(column) : std::nullopt) return *value;
    } catch (const ConfigError& e) {
      problems_.insert(problems_.end(), e.diagnostics().begin(), e.diagnostics().end());
    }
    return 0;
  }
  bool flag(const char* column) { return row_.find(column).value_or("") == "true"; }
  template <typename T, std::size_t N>
  T word(const char* column, const std::array<std::pair<std::string_view, T>, N>& words, T otherwise) {
    const auto text = row_.find(column);
    if (!text) return otherwise;
    std::string known;
    for (const auto& [word, value] : words) {
      if (word == *text) return value;
      known += (known.empty() ? "" : ", ") + std::string(word);
    }
    problems_.push_back(row_.diagnostic(column, "unknown word '" + std::string(*text) + "'", "Known: " + known));
    return otherwise;
  }
  AttentionKernel attention(AttentionKernel otherwise) {
    const auto text = row_.find("attention");
    if (!text) return otherwise;
    if (const auto kernel = model::attention_kernel_named(*text)) return *kernel;
    std::vector<std::string> names;
    for (const AttentionKernel kernel : model::all_attention_kernels()) names.emplace_back(name_of(kernel));
    problems_.push_back(row_.diagnostic("attention", "unknown word '" + std::string(*text) + "'", fmt::format("Known: {}", fmt::join(names, ", "))));
    return otherwise;
  }
  DType format(const char* column, DType otherwise) {
    const auto text = row_.find(column);
    if (!text) return otherwise;
    if (const auto type = dtype_named(*text)) return *type;
    problems_.push_back(row_.diagnostic(column, "unknown number format '" + std::string(*text) + "'", "Write fp32, tf32, fp16, bf16 or fp8"));
    return otherwise;
  }

 private:
  const config::CsvRow& row_;
  std::vector<Diagnostic>& problems_;
};

MeasuredKernel read_row(const config::CsvRow& row, std::vector<Diagnostic>& problems) {
  RowReader in(row, problems);
  MeasuredKernel out;
  model::KernelSpec& s = out.kernel;
  const std::string_view kind = row.text("kernel");
  bool known = false;
  for (int k = 0; k <= static_cast<int>(KernelKind::memset); ++k)
    if (name_of(static_cast<KernelKind>(k)) == kind) s.kind = static_cast<KernelKind>(k), known = true;
  if (!known) problems.push_back(row.diagnostic("kernel", "unknown kind of kernel '" + std::string(kind) + "'", "Write gemm, attention_forward, elementwise, …"));
  s.role = in.word("role", kRoles, GemmRole::forward);
  s.attention = in.attention(AttentionKernel::flash2);
  s.dtype = in.format("dtype", DType::bf16);
  s.output_dtype = in.format("output_dtype", s.dtype);
  s.accumulate = in.flag("accumulate");
  s.causal = in.flag("causal");
  if (model::is_product(s.kind)) {
    s.batch = in.size("batch", 1, 1), s.m = in.size("m", 1), s.n = in.size("n", 1), s.k = in.size("k", 1);
  } else if (s.kind == KernelKind::attention_forward || s.kind == KernelKind::attention_backward) {
    s.batch = in.size("batch", 1), s.heads = in.size("heads", 1), s.kv_heads = in.size("kv_heads", 1, s.heads);
    s.query_length = in.size("query_length", 1), s.key_length = in.size("key_length", 1, s.query_length);
    s.head_dim = in.size("head_dim", 1), s.value_head_dim = in.size("value_head_dim", 1, s.head_dim), s.window = in.size("window", 0, 0);
  } else {
    s.bytes_read = in.size("bytes_read", 0, 0), s.bytes_written = in.size("bytes_written", 0, 0);
    s.flops = in.number("flops");
    if (s.bytes_read + s.bytes_written <= 0) problems.push_back(row.diagnostic("bytes_read", "the kernel moves nothing", "State bytes_read and bytes_written"));
  }
  out.clock = in.word("clock", kClocks, ClockState::burst);
  out.seconds = in.number("seconds");
  if (!(out.seconds > 0)) problems.push_back(row.diagnostic("seconds", "is not a positive time", "Write the measured time in seconds"));
  return out;
}

}  // namespace

std::vector<MeasuredKernel> read_measured_kernels(const std::filesystem::path& file) {
  const config::CsvTable table = config::read_csv(file);
  table.require({"kernel", "seconds"});
  std::vector<Diagnostic> problems;
  std::vector<MeasuredKernel> out;
  for (std::size_t i = 0; i < table.size(); ++i) out.push_back(read_row(table.row(i), problems));
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return out;
}

std::string measured_kernels_csv(const std::vector<MeasuredKernel>& points) {
  std::string text =
      "kernel,role,attention,dtype,output_dtype,accumulate,causal,batch,m,n,k,heads,kv_heads,query_length,key_length,head_dim,value_head_dim,window,bytes_read,bytes_written,flops,clock,seconds\n";
  const auto size = [](std::int64_t v) { return v > 0 ? std::to_string(v) : std::string(); };
  for (const MeasuredKernel& p : points) {
    const model::KernelSpec& s = p.kernel;
    const bool attention = s.kind == KernelKind::attention_forward || s.kind == KernelKind::attention_backward;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", name_of(s.kind), word_of(kRoles, s.role), attention ? name_of(s.attention) : "",
                        name_of(s.dtype), name_of(s.output_dtype), s.accumulate ? "true" : "", s.causal && attention ? "true" : "", size(s.batch), size(s.m), size(s.n), size(s.k), size(s.heads),
                        size(s.kv_heads), size(s.query_length), size(s.key_length), size(s.head_dim), size(s.value_head_dim), size(s.window), size(s.bytes_read), size(s.bytes_written),
                        s.flops > 0 ? fmt::format("{}", s.flops) : "", word_of(kClocks, p.clock), fmt::format("{}", p.seconds));
  }
  return text;
}

}  // namespace rehearse::hwmodels
