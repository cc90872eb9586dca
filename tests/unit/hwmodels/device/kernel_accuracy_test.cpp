// The kernel model against published kernel tables: prints the error table of hwmodels/data/kernel/README.md and holds
// each group to a loose bound, so that a change of formula or parameter that loses accuracy is seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>

#include "hwmodels/device/kernel_model.h"
#include "kernel_tables.h"
#include "sim/model/delta_kernels.h"
#include "sim/model/scan_kernels.h"

namespace rehearse::hwmodels::kernel_accuracy_test {
namespace {

using test::Harness;
using test::MeasuredKernel;

// A loop of short kernels stays cool, a loop of long ones throttles: time constant of the SimuMax harness, as fitted.
double throttle_us(const std::string& gpu) { return gpu == "b200-sxm" ? 141 : 46; }

// The clock that the harness ran at, where training's differs from it (hwmodels/data/kernel/README.md, "Clocks").
double table_clock(const std::string& table, const std::string& gpu, double training) {
  static const std::map<std::string, double> kAzure{{"a100-80gb-sxm", 0.945}, {"h100-sxm", 0.803}, {"h200-sxm", 0.803}, {"gb200-nvl72", 0.733}};
  const auto loops = kAzure.find(gpu);
  if (gpu == "mi300x") return 0.862;   // of loops, as all of its tables are (cdna3.yaml)
  return table == "azure" && loops != kAzure.end() ? loops->second : training;
}

double predicted_us(const MeasuredKernel& m) {
  Gpu gpu = load_gpu(m.gpu);
  // Loops of them alone: the clock that fp8 products keep beside bf16 ones (README.md, "Clocks"), 1.06 and 1.02 times.
  if (m.table == "azure" && gpu.kernel_parameters.contains("gemm_8bit_power")) gpu.kernel_parameters["gemm_8bit_power"] = m.gpu == "gb200-nvl72" ? 0.94 : 0.8;
  gpu.kernel_parameters["sustained_clock"] = table_clock(m.table, m.gpu, gpu.kernel_parameters["sustained_clock"]);
  const KernelModel burst(gpu, ClockState::burst), hot(gpu);
  double cold_us = m.floor_us, hot_us = m.floor_us;  // of the kernels and the harness
  for (const model::KernelSpec& s : m.kernels) {
    cold_us += to_seconds(burst.cost(s).duration) * 1e6;
    hot_us += to_seconds(hot.cost(s).duration) * 1e6;
  }
  const double cool = m.harness == Harness::burst       ? 1
                      : m.harness == Harness::sustained ? 0
                                                        : std::exp(-hot_us / (m.throttle_us > 0 ? m.throttle_us : throttle_us(m.gpu)));
  return std::max(m.at_least_us, cool * cold_us + (1 - cool) * hot_us);
}

struct Errors {
  int rows = 0;
  double absolute = 0, signed_sum = 0;
};

std::map<std::string, Errors> errors_of(const std::vector<MeasuredKernel>& rows) {
  std::map<std::string, Errors> out;
  for (const MeasuredKernel& m : rows) {
    const double e = predicted_us(m) / m.microseconds - 1;
    Errors& g = out[m.table + " " + m.gpu + " " + m.label];
    ++g.rows, g.absolute += std::abs(e), g.signed_sum += e;
  }
  return out;
}

/// What a group may be wrong by beyond the others: short windows of attention, products of up to 128 rows in 20 to 70 us.
double harder(const std::string& group) {
  if (group.find("window") != std::string::npos) return 0.09;
  return group.find("few rows") != std::string::npos ? 0.06 : 0;
}

/// Prints the table; every group of at least five rows stays within `most` mean absolute error, or what is said above.
void report(const std::vector<MeasuredKernel>& rows, double most) {
  ASSERT_FALSE(rows.empty());
  for (const auto& [name, e] : errors_of(rows)) {
    std::printf("  %-48s n=%4d  MAPE %5.1f %%  bias %+5.1f %%\n", name.c_str(), e.rows, 100 * e.absolute / e.rows,
                100 * e.signed_sum / e.rows);
    if (e.rows >= 5) {
      EXPECT_LT(e.absolute / e.rows, most + harder(name)) << name;
    }
  }
}

TEST(KernelAccuracy, Gemms) { report(test::measured_gemms(), 0.12); }

// Loops of square products on cards of 23 kinds: from 4096 on every kind within a quarter, all of them within a tenth in the mean. Training keeps the
// clock of data-centre cards lower than such a loop does (README.md, "Clocks"), so that these are predicted too slow.
TEST(KernelAccuracy, LoopsOfLargeProductsAreWhatCardsOfManyKindsReach) {
  std::map<std::string, Errors> cards;
  for (const MeasuredKernel& m : test::measured_product_loops()) {
    if (m.kernels.front().m < 4096) continue;
    ASSERT_FALSE(m.gpu.empty());
    const double e = predicted_us(m) / m.microseconds - 1;
    Errors& card = cards[m.gpu];
    ++card.rows, card.absolute += std::abs(e), card.signed_sum += e;
  }
  double absolute = 0;
  for (const auto& [gpu, e] : cards) {
    std::printf("  torch loops, %-16s n=%2d  MAPE %5.1f %%  bias %+5.1f %%\n", gpu.c_str(), e.rows, 100 * e.absolute / e.rows, 100 * e.signed_sum / e.rows);
    EXPECT_LT(e.absolute / e.rows, 0.25) << gpu;
    absolute += e.absolute / e.rows;
  }
  EXPECT_LT(absolute / static_cast<double>(cards.size()), 0.1);
}

TEST(KernelAccuracy, Attention) { report(test::measured_attention(), 0.14); }
TEST(KernelAccuracy, MemoryBoundKernels) { report(test::measured_memory_kernels(), 0.14); }
TEST(KernelAccuracy, ChainsOfPyTorchsOwnKernels) { report(test::measured_eager_chains(), 0.14); }

// Tokens put in the order of experts and back by vLLM's kernels on an H200, where there are enough of them: all together, as a
// layer runs both. An H100 has the same SMs, and they are the bound.
TEST(KernelAccuracy, PermutesTakeWhatTheyDoOnAnH200) {
  const KernelModel h200(load_gpu("h200-sxm")), h100(load_gpu("h100-sxm"));
  double measured = 0, predicted = 0, on_h100 = 0;
  for (const test::CsvRow& r : test::read_table("permute_tileops")) {
    if (!r.at("kernel").starts_with("vllm") || std::stoll(r.at("tokens")) < 2048) continue;
    model::KernelSpec s;
    s.kind = model::KernelKind::permute;
    s.bytes_read = std::stoll(r.at("tokens")) * std::stoll(r.at("hidden")) * 2;
    s.bytes_written = s.bytes_read * std::stoll(r.at("choices"));
    const double bytes = static_cast<double>(s.bytes_read + s.bytes_written);
    measured += r.at("milliseconds").empty() ? bytes / (std::stod(r.at("terabytes_per_s")) * 1e12) : std::stod(r.at("milliseconds")) * 1e-3;
    predicted += to_seconds(h200.cost(s).duration);
    on_h100 += to_seconds(h100.cost(s).duration);
  }
  std::printf("  permutes on an H200: %.3f ms measured, %.3f ms predicted\n", measured * 1e3, predicted * 1e3);
  EXPECT_NEAR(predicted / measured, 1, 0.15);
  EXPECT_NEAR(on_h100 / predicted, 1, 0.02);
}

// mamba_ssm's Triton kernels on an H200: each within a fifth, but for those of 3 us, whole forward scans within a seventh.
TEST(KernelAccuracy, ScansTakeWhatMambaMeasuredOnAnH200) {
  const KernelModel h200(load_gpu("h200-sxm"), ClockState::burst);
  const auto us = [&](const model::KernelSpec& s) { return to_seconds(h200.cost(s).duration) * 1e6; };
  double absolute = 0;
  int rows = 0;
  for (const test::CsvRow& r : test::read_table("scan_tileops")) {
    const auto number = [&](const char* column) { return std::stoll(r.at(column)); };
    const model::ScanShape shape{.tokens = number("batch") * number("sequence"), .heads = number("heads"), .head_dim = number("head_dim"), .groups = number("groups"), .state = number("state"), .chunk = number("chunk"), .dtype = DType::bf16};
    model::ScanForward k = scan_forward(shape, false);
    const std::string kernel = r.at("kernel");
    if (r.at("dtype") == "fp32") k.pass.bytes_written = k.pass.bytes_read;
    const double whole = us(k.sums) + us(k.state) + us(k.pass) + us(k.products) + us(k.output);
    const double predicted = kernel == "sums" ? us(k.sums) : kernel == "output" ? us(k.output) : kernel == "states" ? us(k.state) : kernel == "pass" ? us(k.pass) : whole;
    const double measured = std::stod(r.at("milliseconds")) * 1e3, error = predicted / measured - 1;
    std::printf("  scan %-8s %5lld tokens, %lld heads: %7.1f us measured, %+5.1f %%\n", kernel.c_str(), static_cast<long long>(shape.tokens), static_cast<long long>(shape.heads), measured, 100 * error);
    EXPECT_LT(std::abs(error), measured < 5 ? 0.3 : kernel == "forward" ? 0.15 : 0.2) << kernel;
    absolute += std::abs(error);
    ++rows;
  }
  std::printf("  scans: %.1f %% in the mean\n", 100 * absolute / rows);
  EXPECT_EQ(rows, 17);
  EXPECT_LT(absolute / rows, 0.13);
}

// flash-linear-attention's gated delta rules, by CUDA graphs (tests/accuracy/tables/delta_rule.csv): on the two GPUs that were fitted 5 % in the mean, on two
// cards that were not within a third.
TEST(KernelAccuracy, DeltaRulesTakeWhatFlashLinearAttentionMeasured) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> errors;
  std::map<std::string, KernelModel> gpus;
  for (const test::CsvRow& r : test::read_table("delta_rule")) {
    if (!r.at("library").starts_with("flash-linear-attention")) continue;
    const KernelModel& gpu = gpus.try_emplace(r.at("gpu"), load_gpu(r.at("gpu")), ClockState::burst).first->second;
    const auto us = [&](const model::KernelSpec& s) { return to_seconds(gpu.cost(s).duration) * 1e6; };
    const std::int64_t tokens = std::stoll(r.at("tokens")), longest = std::stoll(r.at("longest")), width = std::stoll(r.at("head_dim"));
    const model::DeltaNet mixer{.key_heads = std::stoll(r.at("key_heads")), .value_heads = std::stoll(r.at("value_heads")), .key_dim = width, .value_dim = width};
    const model::DeltaShape shape = model::DeltaShape::of(mixer, 1, tokens, 1, DType::bf16);
    model::DeltaForward f = delta_forward(shape);
    model::DeltaBackward b = delta_backward(shape);
    for (model::KernelSpec* k : {&f.states, &b.states_again, &b.states}) k->elements = longest / model::DeltaShape::kChunk;   // samples of several lengths, side by side
    const double sum = mixer.value_heads > mixer.key_heads ? us({.kind = model::KernelKind::reduction, .bytes_read = 2 * shape.wide_keys(), .bytes_written = 2 * shape.keys()}) : 0;
    const double predicted = r.at("pass") == "forward" ? us(f.sums) + us(f.within) + us(f.states) + us(f.output)
                                                       : us(b.within_again) + us(b.states_again) + us(b.local) + us(b.states) + us(b.operands) + us(b.within) + us(b.add_keys) + us(b.add_decays) + us(b.sums) + sum;
    errors[{r.at("gpu"), r.at("pass")}].push_back(predicted / (std::stod(r.at("milliseconds")) * 1e3) - 1);
  }
  EXPECT_EQ(errors.size(), 6u);
  for (const auto& [of, list] : errors) {
    double absolute = 0, bias = 0, worst = 0;
    for (const double e : list) absolute += std::abs(e), bias += e, worst = std::max(worst, std::abs(e));
    const auto rows = static_cast<double>(list.size());
    std::printf("  delta rule, %-12s %-8s %3.0f rows: %4.1f %% in the mean, bias %+5.1f, worst %.0f\n", of.first.c_str(), of.second.c_str(), rows, 100 * absolute / rows, 100 * bias / rows, 100 * worst);
    const bool fitted = of.first == "h200-sxm" || of.first == "gb200-nvl72";
    EXPECT_LT(absolute / rows, fitted ? 0.06 : 0.35) << of.first;
    EXPECT_LT(worst, fitted ? 0.25 : 0.8) << of.first;
  }
}

// A training step of Nemotron 3 Nano: the convolution's kernels and the gradient of the values were read off it, forward states and the sum of all were not.
TEST(KernelAccuracy, ScansOfATrainingStepTakeWhatAProfileHas) {
  const KernelModel hopper(load_gpu("h100-sxm"));   // at the clock that products leave
  const auto ms = [&](const model::KernelSpec& s) { return to_seconds(hopper.cost(s).duration) * 1e3; };
  const model::ScanShape shape{.tokens = 8192, .heads = 64, .head_dim = 64, .groups = 8, .state = 128, .chunk = 128, .dtype = DType::bf16};
  const model::ScanForward f = scan_forward(shape, false);
  const model::ScanBackward b = scan_backward(shape);
  const double again = ms(f.convolution) + ms(f.sums) + ms(f.state) + ms(f.pass) + ms(f.products), forward = again + ms(f.output);
  const double backward = again + ms(b.states) + ms(b.pass) + ms(b.values) + ms(b.input_map) + ms(b.output_map) + ms(b.products) + ms(b.products_input) + ms(b.products_output) + ms(b.decays) + ms(b.sums) + ms(b.convolution);
  const std::map<std::string, std::pair<double, double>> predicted{{"chunk_state_fwd", {ms(f.state), 0.35}}, {"chunk_scan_chunk_state_bwd_dx", {ms(b.values), 0.05}}, {"causal_conv1d_fwd", {ms(f.convolution), 0.1}},
                                                                   {"causal_conv1d_bwd", {ms(b.convolution), 0.05}}, {"all", {forward + backward, 0.08}}};
  for (const test::CsvRow& r : test::read_table("scan_nemotron_profile")) {
    const auto& [milliseconds, within] = predicted.at(r.at("kernel"));
    const double launches = r.at("kernel") == "all" ? 23 : std::stod(r.at("launches_per_step")), measured = std::stod(r.at("milliseconds_per_step")) / launches;
    std::printf("  %-30s %.3f ms measured, %+5.1f %%\n", r.at("kernel").c_str(), measured, 100 * (milliseconds / measured - 1));
    EXPECT_NEAR(milliseconds / measured, 1, within) << r.at("kernel");
  }
  EXPECT_GT(ms(f.output), to_seconds(KernelModel(load_gpu("h100-sxm"), ClockState::burst).cost(f.output).duration) * 1e3 * 1.15);
}

// Transformer Engine's grouped products on an H100: in one CUTLASS kernel within a twentieth. One by one on four streams the larger come as fast
// to a tenth, and of the smaller each takes longer than the device needs, but no less than cuBLAS holds the host for it: 10.3 us
// (strategies/framework/data/megatron-core.yaml, grouped_host).
TEST(KernelAccuracy, GroupedProductsAreWhatTransformerEngineMeasured) {
  const KernelModel h100(load_gpu("h100-sxm"), ClockState::burst);
  for (const test::CsvRow& r : test::read_table("grouped_transformer_engine")) {
    model::KernelSpec s;
    s.kind = model::KernelKind::grouped_gemm, s.batch = std::stoll(r.at("groups")), s.m = std::stoll(r.at("m")), s.n = std::stoll(r.at("n")), s.k = std::stoll(r.at("k"));
    const double flops = 2.0 * static_cast<double>(s.batch * s.m) * static_cast<double>(s.n * s.k), us = to_seconds(h100.cost(s).duration) * 1e6;
    const double cutlass = flops / (std::stod(r.at("cutlass_2_7_tflops")) * 1e6), streams = flops / (std::stod(r.at("multi_stream_2_7_tflops")) * 1e6);
    std::printf("  grouped %lld x %lld x %lld, %lld groups: %.0f us in one kernel, %+5.1f %%; %.0f us one by one, %.1f us each\n", static_cast<long long>(s.m), static_cast<long long>(s.n), static_cast<long long>(s.k),
                static_cast<long long>(s.batch), cutlass, 100 * (us / cutlass - 1), streams, streams / static_cast<double>(s.batch));
    EXPECT_NEAR(us / cutlass, 1, 0.05);
    const double hold = 10.3 * static_cast<double>(s.batch);
    EXPECT_NEAR(std::max(us, hold) / streams, 1, 0.13);
  }
}

// torch._grouped_mm on a B200, forward and both gradients of one product: each shape within a sixth, all together within 5 %.
TEST(KernelAccuracy, PyTorchsOwnGroupedProductsAreSlowerThanCublas) {
  const KernelModel b200(load_gpu("b200-sxm"));
  double measured = 0, predicted = 0;
  for (const test::CsvRow& r : test::read_table("grouped_torchao")) {
    const std::int64_t groups = std::stoll(r.at("groups")), rows = std::stoll(r.at("rows")) / groups, n = std::stoll(r.at("n")), k = std::stoll(r.at("k"));
    double us = 0;
    for (const auto& [role, m, columns, depth] : {std::tuple{model::GemmRole::forward, rows, n, k}, {model::GemmRole::data_gradient, rows, k, n}, {model::GemmRole::weight_gradient, n, k, rows}}) {
      model::KernelSpec s;
      s.kind = model::KernelKind::native_grouped_gemm, s.role = role, s.batch = groups, s.m = m, s.n = columns, s.k = depth;
      us += to_seconds(b200.cost(s).duration) * 1e6;
    }
    const double stated = std::stod(r.at("bf16_us"));
    std::printf("  grouped %lld x %lld x %lld, %lld groups: %.0f us measured, %+5.1f %%\n", static_cast<long long>(rows), static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(groups), stated, 100 * (us / stated - 1));
    EXPECT_NEAR(us / stated, 1, 1.0 / 6);
    measured += stated, predicted += us;
  }
  EXPECT_NEAR(predicted / measured, 1, 0.05);
}

// PyTorch's grouped products on an H200 (torch._grouped_mm, 36 of them), and operators over rows: traffic as strategies/layer/operators.h and
// expert_dispatch.cpp say it.
TEST(KernelAccuracy, GroupedProductsTakeWhatTheyDoOnAnH200) {
  const KernelModel h200(load_gpu("h200-sxm"), ClockState::burst);
  double bias = 0, absolute = 0;
  int rows = 0;
  for (const test::CsvRow& r : test::read_table("grouped_torch")) {
    const auto number = [&](const char* column) { return std::stoll(r.at(column)); };
    const std::int64_t groups = number("groups"), tokens = number("tokens") / groups, n = number("n"), k = number("k");
    const std::string role = r.at("role");
    model::KernelSpec s;
    s.kind = model::KernelKind::native_grouped_gemm, s.batch = groups;
    if (role == "forward") s.role = model::GemmRole::forward, s.m = tokens, s.n = n, s.k = k;
    else if (role == "dgrad") s.role = model::GemmRole::data_gradient, s.m = tokens, s.n = k, s.k = n;
    else s.role = model::GemmRole::weight_gradient, s.m = n, s.n = k, s.k = tokens;
    const double measured = std::stod(r.at("time_us")), error = to_seconds(h200.cost(s).duration) * 1e6 / measured - 1;
    std::printf("  grouped %-8s %6lld x %5lld x %5lld, %3lld %s groups: %7.1f us measured, %+5.1f %%\n", role.c_str(), static_cast<long long>(tokens), static_cast<long long>(n), static_cast<long long>(k), static_cast<long long>(groups), r.at("spread").c_str(), measured, 100 * error);
    EXPECT_LT(std::abs(error), tokens < 100 ? 0.35 : 0.25);
    bias += error, absolute += std::abs(error), ++rows;
  }
  std::printf("  grouped: %.1f %% in the mean, bias %+.1f %%\n", 100 * absolute / rows, 100 * bias / rows);
  EXPECT_LT(absolute / rows, 0.15);
}

TEST(KernelAccuracy, OperatorsOverRowsTakeWhatTheyDoOnAnH200) {
  const KernelModel h200(load_gpu("h200-sxm"), ClockState::burst);
  double absolute = 0;
  int rows = 0;
  for (const test::CsvRow& r : test::read_table("operators_torch")) {
    const std::string name = r.at("operator");
    const std::int64_t width = r.at("dtype") == "float32" ? 4 : 2, elements = std::stoll(r.at("rows")) * std::stoll(r.at("row")), bytes = elements * width;
    model::KernelSpec s;
    if (name.starts_with("log_softmax")) s.bytes_read = 3 * bytes, s.bytes_written = bytes;
    else if (name == "AdamW fused") s.kind = model::KernelKind::optimizer, s.bytes_read = 4 * bytes, s.bytes_written = 3 * bytes, s.elements = elements;
    else if (name == "AdamW foreach") s.kind = model::KernelKind::optimizer, s.bytes_read = 4 * bytes * 20 / 7, s.bytes_written = 3 * bytes * 20 / 7;
    else s.kind = model::KernelKind::embedding, s.role = model::GemmRole::data_gradient, s.bytes_read = s.bytes_written = elements * width, s.elements = name == "index_add" ? 2 * elements : name == "scatter_add" ? elements : elements * 9 / 2;
    const double measured = std::stod(r.at("time_us"));
    double predicted = to_seconds(h200.cost(s).duration) * 1e6;
    if (name == "embedding backward") predicted += to_seconds(h200.cost({.kind = model::KernelKind::memset, .bytes_written = std::int64_t{128256} * 4096 * width}).duration) * 1e6;
    const double error = predicted / measured - 1;
    std::printf("  %-22s %-8s %6s rows of %9s: %7.1f us measured, %+5.1f %%\n", name.c_str(), r.at("dtype").c_str(), r.at("rows").c_str(), r.at("row").c_str(), measured, 100 * error);
    // Rows of 0.10 and 0.13 MB lie in the L2 between passes, in part.
    const bool in_l2 = name == "log_softmax" && std::stoll(r.at("row")) * width < 140'000 && std::stoll(r.at("row")) * width > 70'000;
    EXPECT_LT(std::abs(error), in_l2 ? 0.45 : 0.25) << name;
    absolute += std::abs(error);
    ++rows;
  }
  std::printf("  operators: %.1f %% in the mean\n", 100 * absolute / rows);
  EXPECT_LT(absolute / rows, 0.12);
}

// Large GEMMs of training steps reach 0.70-0.82 of the A100's peak, 0.62-0.74 of the H100's and 0.45-0.60 of the B200's
// (published steps; the 500 W H100 less).
TEST(KernelAccuracy, LargeGemmsInTrainingReachPublishedFractions) {
  struct Range {
    const char* gpu;
    double least, most;
  };
  for (const Range& r : {Range{"a100-80gb-sxm", 0.70, 0.83}, Range{"h100-sxm", 0.60, 0.74},
                         Range{"h100-96gb-hbm2e", 0.50, 0.66}, Range{"b200-sxm", 0.42, 0.60}}) {
    const KernelModel gpu(load_gpu(r.gpu));
    for (const auto& [n, k] : {std::pair{8192, 8192}, {28672, 8192}, {8192, 28672}, {14336, 4096}}) {
      model::KernelSpec s;
      s.kind = model::KernelKind::gemm;
      s.m = 8192, s.n = n, s.k = k;
      const double fraction =
          model::flops_of(s).value / to_seconds(gpu.cost(s).duration) / gpu.gpu().peak.at(DType::bf16).value;
      std::printf("  %-16s 8192 x %5d x %5d: %.3f of peak\n", r.gpu, n, k, fraction);
      EXPECT_GE(fraction, r.least) << r.gpu;
      EXPECT_LE(fraction, r.most) << r.gpu;
    }
  }
}

// MI300X and MI325X are the same chip at 750 and 1000 W: the best products that the same search found are 668 and 785 TFLOPS
// (stas00/ml-engineering; the MI300X's training steps are slower than such loops, mi300x.yaml). MI350X and MI355X, at 1000 and 1400 W: real work differs by about 20 % (SemiAccurate, 2025-06).
TEST(KernelAccuracy, OneChipAtTwoPowerLimits) {
  const auto rate = [](const char* name) {
    Gpu part = load_gpu(name);
    part.kernel_parameters["sustained_clock"] = table_clock("mamf", name, part.kernel_parameters["sustained_clock"]);
    const KernelModel gpu(part);
    model::KernelSpec s;
    s.kind = model::KernelKind::gemm;
    s.m = 10240, s.n = 15360, s.k = 8192;
    return model::flops_of(s).value / to_seconds(gpu.cost(s).duration) * 1e-12;
  };
  EXPECT_NEAR(rate("mi300x"), 668, 0.03 * 668);
  EXPECT_NEAR(rate("mi325x"), 785, 0.03 * 785);
  EXPECT_NEAR(rate("mi355x"), 1565, 0.03 * 1565);
  EXPECT_NEAR(rate("mi355x") / rate("mi350x"), 1.2, 0.02);
}

// One layer of GPT-22B on 8 A100s (tensor parallel 8, micro-batch 4, 2048 tokens, hidden 6144, 64 heads): the compute of
// the forward pass must leave room for two all-reduces of 100.7 MB (about 1.5 ms of the published 7.7 ms).
TEST(KernelAccuracy, ForwardOfAMegatronLayerLeavesRoomForItsAllReduces) {
  const KernelModel gpu(load_gpu("a100-80gb-sxm"));
  const std::int64_t tokens = 4 * 2048, h = 6144, local = h / 8;
  double us = 0;
  const auto gemm = [&](std::int64_t n, std::int64_t k) {
    model::KernelSpec s;
    s.kind = model::KernelKind::gemm;
    s.m = tokens, s.n = n, s.k = k;
    us += to_seconds(gpu.cost(s).duration) * 1e6;
  };
  const auto move = [&](model::KernelKind kind, std::int64_t bytes) {
    model::KernelSpec s;
    s.kind = kind, s.bytes_read = bytes;
    us += to_seconds(gpu.cost(s).duration) * 1e6;
  };
  gemm(3 * local, h), gemm(h, local), gemm(4 * local, h), gemm(h, 4 * local);
  const std::int64_t scores = 4 * 8 * 2048 * std::int64_t{2048}, stream = tokens * h * 2;
  model::KernelSpec product;  // scores and context: 32 heads of 2048 x 2048 x 96
  product.kind = model::KernelKind::gemm;
  product.batch = 32, product.m = 2048, product.n = 2048, product.k = 96;
  us += to_seconds(gpu.cost(product).duration) * 1e6;
  std::swap(product.n, product.k);
  us += to_seconds(gpu.cost(product).duration) * 1e6;
  move(model::KernelKind::softmax, 2 * scores * 2);      // fused scale, mask, softmax
  move(model::KernelKind::elementwise, 2 * scores * 2 + scores);  // dropout and its mask
  move(model::KernelKind::normalization, 2 * stream), move(model::KernelKind::normalization, 2 * stream);
  move(model::KernelKind::elementwise, 3 * stream + stream / 2), move(model::KernelKind::elementwise, 3 * stream + stream / 2);
  move(model::KernelKind::elementwise, 2 * tokens * 4 * local * 2);  // gelu
  const double published = std::stod(test::read_table("megatron_layer_times_22b").at(0).at("fwd_ms")) * 1e3;
  std::printf("  forward compute %.2f ms of %.2f ms published with communication\n", us / 1e3, published / 1e3);
  EXPECT_LT(us, published - 1000);
  EXPECT_GT(us, published - 2500);
}

}  // namespace
}  // namespace rehearse::hwmodels::kernel_accuracy_test
