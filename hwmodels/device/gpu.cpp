#include "hwmodels/device/gpu.h"

#include <algorithm>
#include <array>
#include <utility>

#include "hwmodels/device/data_facts.h"
#include "hwmodels/device/kernel_parameters.h"
#include "hwmodels/device/measured_points.h"
#include "sim/config/document.h"
#include "sim/config/scalar_types.h"
#include "sim/core/remembered.h"
#include "sim/core/resources.h"
#include "sim/core/suggestion.h"

namespace rehearse::hwmodels {
namespace {

constexpr const char* kGpuFolder = "hwmodels/data/gpu";
constexpr const char* kKernelFolder = "hwmodels/data/kernel";

constexpr std::array<std::pair<Architecture, std::string_view>, 9> kArchitectures{{
    {Architecture::volta, "volta"},
    {Architecture::turing, "turing"},
    {Architecture::ampere, "ampere"},
    {Architecture::ada, "ada"},
    {Architecture::hopper, "hopper"},
    {Architecture::blackwell, "blackwell"},
    {Architecture::cdna2, "cdna2"},
    {Architecture::cdna3, "cdna3"},
    {Architecture::cdna4, "cdna4"},
}};

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
  return out;
}

/// Reads a map of kernel parameters into `out`, over what is there already.
void read_parameters(const config::Value& map, const config::Value* tags, std::vector<Diagnostic>& problems, Gpu& out) {
  FactReader reader(map, "kernel.", problems, out.sources);
  if (tags != nullptr) reader.set_tags(*tags);
  for (const ParameterField& f : kernel_parameter_fields()) {
    const std::string name{f.name};
    const std::optional<double> value = reader.fact(name, &config::parse_number, false);
    if (!value) continue;
    out.kernel_parameters[name] = *value;
    const config::Value& at = *map.find(name);
    if (*value < 0) reader.complain(at, "is negative", "Write a number >= 0.");
    if (f.is_fraction && (*value <= 0 || *value > 1))
      reader.complain(at, "is not in (0, 1] (it is a fraction of a peak)", "Write a fraction, e.g. 0.85.");
  }
  reader.refuse_the_rest();
}

void read_peaks(const config::Value& map, std::vector<Diagnostic>& problems, Gpu& out) {
  FactReader reader(map, "peak.", problems, out.sources);
  for (const std::string& name : reader.keys()) {
    const std::optional<DType> type = dtype_named(name);
    const auto peak = reader.size(name, &config::parse_flops_rate);
    const auto best = reader.measured_size(name, &config::parse_flops_rate);
    if (!type) reader.complain(*map.find(name), "unknown number format", "Write fp32, tf32, fp16, bf16, fp8, ….");
    if (!type || !peak) continue;
    out.peak[*type] = *peak;
    if (best) out.measured_peak[*type] = *best;
  }
  if (!out.peak.contains(DType::fp32))
    reader.complain(map, "has no fp32 (what every GPU can compute)", "Add fp32: {value: … TFLOPS, source: …}.");
}

/// points: {file: my-gpu.points.csv, gemm_reach: 1, …}: single measured kernels; the file lies beside this one.
void read_points(const config::Value& map, const std::string& gpu_file, std::vector<Diagnostic>& problems, Gpu& out) {
  FactReader reader(map, "points.", problems, out.sources);
  const config::Value* file = reader.map("file");
  const auto octaves = [&](const char* key, double& to) {
    const auto value = parse_at(reader.map(key, false), &config::parse_number, problems);
    if (value && *value < 0) reader.complain(*map.find(key), "is negative", "Write octaves >= 0, e.g. 1.");
    if (value) to = *value;
  };
  octaves("gemm_reach", out.reach.gemm), octaves("attention_reach", out.reach.attention), octaves("memory_reach", out.reach.memory);
  reader.refuse_the_rest();
  if (file == nullptr || file->text().empty()) return;
  const std::filesystem::path place = std::filesystem::path(gpu_file).parent_path() / file->text();
  out.measured_kernels = read_measured_kernels(place);
  out.measured_kernels_file = place.string();
}

template <typename Wanted, typename Read>
void keep(Wanted& into, const std::optional<Read>& read) {
  if (read) into = static_cast<Wanted>(*read);
}

Gpu read_gpu(const config::Document& document, std::vector<Diagnostic>& problems) {
  using namespace config;
  Gpu out;
  out.file = document.file;
  FactReader reader(document.root, "", problems, out.sources);
  out.title = reader.word("title");
  const std::string architecture = reader.word("architecture");
  if (const auto known = architecture_named(architecture)) {
    out.architecture = *known;
  } else if (const Value* at = document.root.find("architecture")) {
    reader.complain(*at, "unknown architecture " + architecture, "Write volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3 or cdna4.");
  }
  if (const Value* cc = reader.map("compute_capability")) {
    const auto capability = parse_at(cc, &parse_integer, problems);
    if (capability && (*capability < 30 || *capability > 999)) reader.complain(*cc, "is no compute capability", "Write ten times the major number and the minor one, e.g. 90.");
    keep(out.compute_capability, capability);
  }
  const auto sms = reader.size("sms", &parse_integer);
  if (sms && *sms > 10'000) reader.complain(*document.root.find("sms"), "are more multiprocessors than a GPU has", "Write a number up to 10000.");
  keep(out.sms, sms);
  if (const auto hertz = reader.size("boost_clock", &parse_frequency)) out.boost_clock_mhz = *hertz / 1e6;
  if (const auto hertz = reader.size("max_clock", &parse_frequency, false)) out.max_clock_mhz = *hertz / 1e6;
  keep(out.tdp_watts, reader.size("tdp", &parse_power));
  out.own_watts = reader.size("gpu_power", &parse_power, false).value_or(out.tdp_watts);
  keep(out.memory, reader.size("memory", &parse_bytes));
  keep(out.hbm_bandwidth, reader.size("hbm_bandwidth", &parse_rate));
  out.measured_hbm_bandwidth = reader.measured_size("hbm_bandwidth", &parse_rate);
  keep(out.l2, reader.size("l2", &parse_bytes));
  if (const Value* peaks = reader.map("peak")) read_peaks(*peaks, problems, out);
  keep(out.nvlink_bandwidth, reader.size("nvlink", &parse_rate, false));
  keep(out.nvlink_links, reader.member("nvlink", "links", &parse_integer));
  keep(out.pcie_generation, reader.size("pcie_generation", &parse_integer));
  keep(out.host_to_device, reader.size("host_to_device", &parse_rate));
  keep(out.device_to_host, reader.size("device_to_host", &parse_rate));
  reader.map("kernel", false);
  if (const Value* points = reader.map("points", false)) read_points(*points, document.file, problems, out);
  reader.refuse_the_rest();
  return out;
}

}  // namespace

std::string_view name_of(Architecture architecture) {
  for (const auto& [value, name] : kArchitectures)
    if (value == architecture) return name;
  return "?";
}

std::optional<Architecture> architecture_named(std::string_view wanted) {
  for (const auto& [value, name] : kArchitectures)
    if (name == wanted) return value;
  return std::nullopt;
}

std::vector<std::string> gpu_names() { return resource_names(kGpuFolder, ".yaml"); }

Gpu load_gpu_file(const std::filesystem::path& file, const std::filesystem::path& parameters_folder) {
  std::vector<Diagnostic> problems;
  const config::Document document = config::load_document(file);
  Gpu gpu = read_gpu(document, problems);
  gpu.name = file.stem().string();
  if (!parameters_folder.empty() && problems.empty()) {
    const config::Document parameters =
        config::load_document(parameters_folder / (std::string{name_of(gpu.architecture)} + ".yaml"));
    std::map<std::string, std::string> unused;
    FactReader top(parameters.root, "", problems, unused);
    const config::Value* tags = top.map("sources");
    if (const config::Value* map = top.map("parameters")) read_parameters(*map, tags, problems, gpu);
    top.refuse_the_rest();
  }
  if (const config::Value* own = document.root.find("kernel")) read_parameters(*own, nullptr, problems, gpu);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return gpu;
}

Gpu load_gpu(const std::string& name) {
  if (config::is_file_name(name)) {
    Gpu own = load_gpu_file(name, resource_root() / kKernelFolder);
    own.name = name;
    return own;
  }
  const std::vector<std::string> names = gpu_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw ConfigError(Diagnostic{{}, "", "unknown GPU " + name, did_you_mean(name, names, "Known: " + joined(names) + "."), ""});
  }
  static Remembered<std::string, Gpu> gpus;
  const std::filesystem::path& root = resource_root();
  return gpus.get(name, [&] { return load_gpu_file(root / kGpuFolder / (name + ".yaml"), root / kKernelFolder); });
}

}  // namespace rehearse::hwmodels
