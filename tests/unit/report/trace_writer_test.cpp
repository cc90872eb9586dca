#include "sim/report/trace_writer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "small_scenario.h"
#include "sim/report/memory_snapshot_writer.h"

namespace rehearse::report::trace_writer_test {
namespace {

using Json = nlohmann::json;

Json trace_of(const scenario::Scenario& scenario) {
  std::ostringstream out;
  write_trace(scenario, simulated(scenario), out);
  return Json::parse(out.str());
}

/// Times have three decimals: whole nanoseconds.
std::int64_t ns(const Json& us) { return std::llround(us.get<double>() * 1000); }

TEST(TraceWriter, SlicesOfOneStreamNeverOverlapAndTimeOnlyGrows) {
  for (const auto& scenario : {small_scenario(), pipelined_scenario(), small_scenario({"training.framework=deepspeed", "data_parallel.kind=zero2", "memory.offload.optimizer=cpu"})}) {
    const Json trace = trace_of(scenario);
    std::map<std::pair<int, int>, std::int64_t> end;
    std::int64_t last = 0;
    int slices = 0;
    for (const Json& e : trace["traceEvents"]) {
      if (e["ph"] == "M") continue;
      EXPECT_GE(ns(e["ts"]), last);
      last = ns(e["ts"]);
      if (e["ph"] != "X") continue;
      ++slices;
      auto& busy = end[{e["pid"], e["tid"]}];
      EXPECT_GE(ns(e["ts"]), busy) << e;
      busy = ns(e["ts"]) + ns(e["dur"]);
      EXPECT_GE(ns(e["dur"]), 0);
      EXPECT_FALSE(e["name"].get<std::string>().empty());
    }
    EXPECT_GT(slices, 100);
  }
}

// ZeRO-2 with its optimizer on the CPU: the host's work is there, lies within the time of the step, and takes what the account says.
TEST(TraceWriter, WorkOfTheHostHasAThreadOfItsOwn) {
  const scenario::Scenario scenario = small_scenario({"training.framework=deepspeed", "data_parallel.kind=zero2", "memory.offload.optimizer=cpu"});
  const scenario::Result result = simulated(scenario);
  std::ostringstream out;
  write_trace(scenario, result, out);
  double worked = 0;
  bool named = false;
  const Json trace = Json::parse(out.str());
  for (const Json& e : trace["traceEvents"]) {
    if (e.value("cat", "") == "cpu_op") {
      EXPECT_EQ(e["name"], "CPU optimizer");
      EXPECT_EQ(e["args"]["phase"], "optimizer");
      EXPECT_GT(e["args"]["memory_bytes"], 0);
      worked += e["dur"].get<double>() * 1e-6;
    }
    named = named || (e["name"] == "thread_name" && e["args"]["name"] == "optimizer on the CPU");
  }
  EXPECT_TRUE(named);
  EXPECT_GT(worked, 0);
  EXPECT_NEAR(worked, static_cast<double>(result.classes[0].timing.time[static_cast<std::size_t>(executor::Cause::host_work)]) * 1e-12, 0.2 * worked);
}

// What HolisticTraceAnalysis and PyTorch's own tools go by.
TEST(TraceWriter, CommunicationAndStepsAreNamedAsTheProfilerNamesThem) {
  const Json trace = trace_of(pipelined_scenario());
  int steps = 0, messages = 0;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const auto name = e["name"].get<std::string>();
    steps += name == "ProfilerStep#1";
    messages += name.starts_with("ncclDevKernel_SendRecv");
    if (e["args"].contains("Collective name")) {
      EXPECT_TRUE(name.starts_with("ncclDevKernel_")) << name;
    }
  }
  EXPECT_EQ(steps, 4);  // one per stage
  EXPECT_GT(messages, 0);
}

TEST(TraceWriter, OneRankAloneIsThatRankOnly) {
  const scenario::Scenario s = pipelined_scenario();
  const scenario::Result r = simulated(s);
  std::ostringstream out;
  write_trace(s, r, out, 2);
  const Json trace = Json::parse(out.str());
  EXPECT_EQ(trace["distributedInfo"]["rank"], r.plan.classes[2].representative);
  for (const Json& e : trace["traceEvents"]) EXPECT_EQ(e["pid"], r.plan.classes[2].representative);
}

TEST(TraceWriter, NamesRanksAndStreams) {
  const Json trace = trace_of(pipelined_scenario());
  EXPECT_EQ(trace["distributedInfo"]["rank"], 0);
  EXPECT_EQ(trace["distributedInfo"]["world_size"], 8);
  std::set<int> processes, slices;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == "M" && e["name"] == "process_name") processes.insert(e["pid"].get<int>());
    if (e["ph"] == "X") slices.insert(e["pid"].get<int>());
  }
  EXPECT_EQ(processes, (std::set<int>{0, 2, 4, 6}));  // one rank of each of the four stages, two GPUs per stage
  EXPECT_EQ(processes, slices);
}

TEST(TraceWriter, EveryFlowHasTwoEndsInSlicesThatStartTogether) {
  const Json trace = trace_of(pipelined_scenario());
  std::map<int, std::pair<int, int>> ends;
  std::map<int, std::int64_t> start;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "s" && e["ph"] != "f") continue;
    auto& [out, in] = ends[e["id"]];
    ++(e["ph"] == "s" ? out : in);
    const auto [it, first] = start.emplace(e["id"].get<int>(), ns(e["ts"]));
    EXPECT_TRUE(first || it->second == ns(e["ts"]));
  }
  // 16 micro-batches over 3 boundaries, forward and backward; those at the step's edges may lie outside it.
  EXPECT_GT(ends.size(), 80u);
  for (const auto& [id, end] : ends) EXPECT_EQ(end, (std::pair{1, 1})) << id;
}

TEST(TraceWriter, CountsMemory) {
  const Json trace = trace_of(small_scenario());
  int counters = 0;
  for (const Json& e : trace["traceEvents"])
    if (e["ph"] == "C") {
      ++counters;
      EXPECT_GT(e["args"]["allocated_bytes"].get<std::int64_t>(), 0);
    }
  EXPECT_GT(counters, 10);
}

TEST(TraceWriter, EstimatesItsSize) {
  const auto scenario = small_scenario();
  const auto result = simulated(scenario);
  std::ostringstream out;
  write_trace(scenario, result, out);
  const double ratio = static_cast<double>(estimated_trace_bytes(result)) / static_cast<double>(out.str().size());
  EXPECT_GT(ratio, 0.5);
  EXPECT_LT(ratio, 2.0);
}

TEST(MemorySnapshot, BlocksTileSegmentsAndEveryFreeHasItsAllocation) {
  const auto scenario = small_scenario();
  const Json snapshot = Json::parse(write_memory_snapshot(scenario, simulated(scenario), SnapshotFormat::json));
  for (const Json& segment : snapshot["segments"]) {
    std::int64_t at = segment["address"];
    for (const Json& block : segment["blocks"]) {
      EXPECT_EQ(block["address"], at);
      at += block["size"].get<std::int64_t>();
    }
    EXPECT_EQ(at, segment["address"].get<std::int64_t>() + segment["total_size"].get<std::int64_t>());
  }
  std::map<std::int64_t, int> live;
  bool unknown = false;
  std::int64_t allocated = 0, peak = 0;
  std::map<std::int64_t, std::int64_t> size;
  for (const Json& e : snapshot["device_traces"][0]) {
    unknown = unknown || e["category"] == "unknown";
    const std::int64_t address = e["addr"];
    if (e["action"] == "alloc") {
      EXPECT_EQ(live[address]++, 0);
      size[address] = e["size"];
      allocated += size[address];
      peak = std::max(peak, allocated);
    } else if (e["action"] == "free_completed") {
      EXPECT_EQ(live[address]--, 1);
      allocated -= size[address];
    }
  }
  EXPECT_TRUE(unknown);  // the viewer throws without one
  // The trace has requested sizes; the statistics count rounded blocks.
  const auto statistics = simulated(scenario).classes[0].memory.peak_allocated.value;
  EXPECT_LE(peak, statistics);
  EXPECT_GT(peak, statistics * 95 / 100);
}

TEST(MemorySnapshot, PickleIsProtocol2AndEnds) {
  const auto scenario = small_scenario();
  const std::string pickle = write_memory_snapshot(scenario, simulated(scenario), SnapshotFormat::pickle);
  EXPECT_EQ(pickle.substr(0, 3), "\x80\x02}");
  EXPECT_EQ(pickle.back(), '.');
}

}  // namespace
}  // namespace rehearse::report::trace_writer_test
