// From the probe's plan to a prediction: a machine of known truth is measured by the probe's own session, its file is read and
// fitted, the fitted files are used by a scenario, and that scenario takes as long as on the true machine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "calibrate/fit/fit_machine.h"
#include "calibrate/fit/observations.h"
#include "calibrate/operations.h"
#include "calibrate/probe/session.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/calibrate_fit/true_machine.h"

namespace rehearse::calibrate::chain_test {
namespace {

namespace fs = std::filesystem;

MachineShape shape(int ranks, int per_node) {
  MachineShape s;
  s.ranks = ranks, s.ranks_per_node = per_node, s.compute_capability = 90, s.gpu_bytes = std::int64_t{79} << 30, s.host_bytes = std::int64_t{512} << 30, s.cores = 96, s.directory = true;
  return s;
}

/// The probe's session over the machine, through its file.
Measurements measured(test::TrueMachine& machine, std::vector<Case> cases, const fs::path& file) {
  ProbeOptions options;
  options.mode = ProbeOptions::Mode::quick;
  options.out = file.string();
  options.budget_s = 1e12;
  Measurements now;
  now.source = "rehearse-probe test", now.machine = machine.machine(), now.software = machine.software();
  const std::unique_ptr<Team> team = single_process();
  Surroundings around{machine, *team, machine.clock(), [] { return false; }, [](const std::string&) {}};
  // Every case of the plan goes through the device: host operations too, which the real machine has no part in here.
  std::vector<Case> host;
  std::erase_if(cases, [&](const Case& c) { return gpus_of(c) == 0 && (host.push_back(c), true); });
  run_session(cases, options, now, around);
  Measurements out = read_measurements(options.out);
  for (const Case& c : host) out.series.push_back({.operation = c.operation, .parameters = c.parameters, .samples = 10, .median_s = machine.seconds(c.operation, c.parameters)});
  write_measurements(options.out, out);
  return read_measurements(options.out);
}

/// "  name: {value: 0.8, standard_error: 0.01, ..." of a file that the fit wrote.
double stated_error(const std::string& yaml, const std::string& name) {
  const std::size_t line = yaml.find("  " + name + ": {value: "), at = yaml.find("standard_error: ", line);
  return line == std::string::npos || at == std::string::npos ? 0 : std::stod(yaml.substr(at + 16));
}

class Chain : public ::testing::Test {
 protected:
  static inline Measurements file;
  static inline FittedMachine fitted;
  static inline fs::path folder;
  static inline std::unique_ptr<test::TrueMachine> machine;
  static void SetUpTestSuite() {
    folder = fs::path(::testing::TempDir()) / ("chain-" + std::to_string(::getpid()));  // two runs at once must not share it
    fs::remove_all(folder), fs::create_directories(folder);
    machine = std::make_unique<test::TrueMachine>(0.01, 0.02, 7);
    std::vector<Case> cases = planned_cases(shape(16, 8));
    std::erase_if(cases, [](const Case& c) { return c.tier > 0; });  // what a quick run measures
    file = measured(*machine, cases, folder / "m.json");
    fitted = fit_machine(file, "h100-sxm", "", folder.string(), "2026-11-21");
    for (const auto& [name, text] : fitted.files) std::ofstream(folder / name) << text;
  }
  static void TearDownTestSuite() { fs::remove_all(folder); }
  static double parameter(const std::string& name) { return hwmodels::load_gpu((folder / "gpu.yaml").string()).kernel_parameters.at(name); }
};

TEST_F(Chain, EveryFamilyIsFittedAndToldWithErrorsOnRowsLeftOut) {
  std::set<std::string> names;
  for (const auto& [name, text] : fitted.files) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"gpu.points.csv", "gpu.yaml", "node.yaml", "collectives.yaml", "cluster.yaml"}));
  for (const char* words : {"matrix products:", "kernels bound by memory:", "collectives:", "interference:", "Copies", "Launches", "cpu.update_bandwidth", "nvme.read", "one out", "fifth out",
                            "gemm bf16 weight_gradient", "memory adam", "all_gather 8 GPUs", "reduce_scatter 16 GPUs/2", "gemm beside all_reduce", "all_reduce beside gemm", "copies beside gemm"})
    EXPECT_NE(fitted.text.find(words), std::string::npos) << words << "\n" << fitted.text;
  EXPECT_EQ(fitted.text.find("was not measured"), std::string::npos) << "a pair without its sides alone";
}

TEST_F(Chain, TheTruthIsFoundAgain) {
  EXPECT_NEAR(parameter("gemm_peak_fraction"), 0.80, 0.02);
  EXPECT_NEAR(parameter("gemm_weight_gradient_fraction"), 0.9, 0.02);
  EXPECT_NEAR(parameter("elementwise_fraction"), 0.8, 0.02);
  EXPECT_NEAR(parameter("optimizer_fraction"), 0.6, 0.02);
  EXPECT_NEAR(parameter("gemm_late_tiles"), 0.8, 0.05);
  EXPECT_NEAR(parameter("collective_beside_kernels"), 0.75, 0.03);
  EXPECT_NEAR(parameter("copy_beside_kernels"), 0.85, 0.03);
  // Within the errors that the fit states for itself.
  std::ifstream in(folder / "gpu.yaml");
  const std::string yaml{std::istreambuf_iterator<char>(in), {}};
  for (const char* name : {"gemm_peak_fraction", "tile_fetch", "k_ramp_bytes", "gemm_hbm_fraction", "gemm_fp8_fraction", "elementwise_fraction", "cross_entropy_fraction", "memory_launch_us",
                           "gemm_late_tiles", "collective_beside_kernels", "copy_beside_kernels"}) {
    const double error = stated_error(yaml, name), truth = machine->cluster.gpu.kernel_parameters.at(name);
    EXPECT_GT(error, 0) << name;
    EXPECT_LT(error, 0.02 * truth) << name;
    EXPECT_LT(std::abs(parameter(name) - truth), 4 * error) << name;
  }
  const hwmodels::Gpu gpu = hwmodels::load_gpu((folder / "gpu.yaml").string());
  EXPECT_NEAR(gpu.host_to_device.value, 48e9, 1e9);
  EXPECT_NEAR(gpu.device_to_host.value, 44e9, 1e9);
  const hwmodels::NodeDesign node = hwmodels::load_node((folder / "node.yaml").string());
  EXPECT_NEAR(node.cpu.copy_bandwidth.value, 350e9, 4e9);
  EXPECT_NEAR(node.cpu.update_bandwidth.value, 210e9, 2e9);
  EXPECT_NEAR(node.cpu.core_bandwidth.value, 210e9 / 24, 0.1e9);
  EXPECT_NEAR(node.cpu.pageable_fraction, 0.25, 0.02);
  EXPECT_NEAR(node.nvme.read.value, 12e9, 0.5e9);
  EXPECT_EQ(node.gpus, 8);
  const auto collectives = hwmodels::load_collective_parameters((folder / "collectives.yaml").string());
  EXPECT_NEAR(collectives.generations.at("hopper").ring_efficiency, 0.85, 0.03);
  EXPECT_NEAR(collectives.generations.at("hopper").direct_efficiency, 0.7, 0.03);
}

TEST_F(Chain, AScenarioOnTheFittedFilesTakesAsLongAsOnTheTrueMachine) {
  const std::string job = "model: {layers: 8, hidden: 4096, heads: 32, kv_heads: 8, ffn_hidden: 14336, vocab: 32000}\ntraining: {sequence_length: 8192, global_batch_size: 32, framework: megatron-core}\n"
                          "parallelism: {tensor: 2}\ndata_parallel: {kind: distributed-optimizer}\n";
  std::ofstream(folder / "job.yaml") << "extends: cluster.yaml\n" << job << "cluster: {nodes: 2}\n";
  std::ofstream(folder / "base.yaml") << job << "cluster: {node: dgx-h100, nodes: 2}\n";
  const auto step = [](const scenario::Scenario& s) { return simulate(s, {.time = true, .memory = false}).step_time; };
  const scenario::Scenario base = scenario::load_scenario((folder / "base.yaml").string()), own = scenario::load_scenario((folder / "job.yaml").string());
  scenario::Scenario truth = base;
  truth.cluster.gpu = machine->cluster.gpu, truth.cluster.collectives = machine->cluster.collectives, truth.cluster.nic_efficiency = machine->cluster.nic_efficiency, truth.cluster.node = machine->cluster.node;
  const double wanted = step(truth);
  EXPECT_GT(std::abs(step(base) / wanted - 1), 0.06) << "the files as they are would do: the test says nothing";
  EXPECT_NEAR(step(own) / wanted, 1, 0.02);
}

TEST_F(Chain, NothingThatWasMeasuredIsDroppedInSilence) {
  const Observations seen = observe(file);
  EXPECT_EQ(seen.kernels.size() + seen.collectives.size() + seen.copies.size() + seen.launches.size() + seen.overlaps.size() + seen.host.size() + seen.unused.size(), file.series.size());
  for (const auto& [what, why] : seen.unused) EXPECT_FALSE(why.empty()) << what;
}

// Each case of each plan alone, so that a case cannot hide among others of its operation.
TEST(ChainPlans, EveryCaseOfEveryPlanIsReadByTheFitOrNamed) {
  std::set<std::string> operations_met;
  for (const auto& [ranks, per_node] : {std::pair{1, 1}, {8, 8}, {16, 8}, {24, 8}, {4, 1}, {12, 6}}) {
    const std::vector<Case> plan = planned_cases(shape(ranks, per_node));
    Measurements whole;
    for (const Case& c : plan) {
      operations_met.insert(c.operation);
      whole.series.push_back({.operation = c.operation, .parameters = c.parameters, .samples = 10, .median_s = 1e-3});
    }
    const Measurements read = measurements_from_json(to_json(whole), "plan");
    ASSERT_EQ(read, whole) << ranks;
    const Observations seen = observe(read);
    EXPECT_EQ(seen.kernels.size() + seen.collectives.size() + seen.copies.size() + seen.launches.size() + seen.overlaps.size() + seen.host.size() + seen.unused.size(), plan.size()) << ranks;
    std::map<std::string, int> reasons;
    for (const auto& [what, why] : seen.unused) {
      ++reasons[why];
      EXPECT_EQ(why.find("no parameter of ours"), std::string::npos) << what;
      EXPECT_EQ(why.find("was not measured"), std::string::npos) << what;
    }
    // What no fit takes, and nothing else.
    for (const auto& [why, count] : reasons)
      EXPECT_TRUE(why.find("one after another") != std::string::npos || why.find("no library kernel") != std::string::npos || why.find("several GPUs at once") != std::string::npos ||
                  why.find("the triad is what counts") != std::string::npos || why.find("large requests") != std::string::npos)
          << why << " (" << count << ")";
  }
  for (const Operation& o : operations()) EXPECT_TRUE(operations_met.contains(o.name)) << o.name << " is in no plan";
}

}  // namespace
}  // namespace rehearse::calibrate::chain_test
