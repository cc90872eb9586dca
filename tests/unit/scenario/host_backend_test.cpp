// Gloo and MPI: collectives go through host memory, and the host thread waits for them.
#include <gtest/gtest.h>

#include "hwmodels/collective/closed_forms.h"
#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::host_backend_test {
namespace {

using executor::Cause;
using plan::Stream;

Scenario job(const std::string& backend, const std::string& rest = "data_parallel: {kind: ddp, bucket: 25 MiB}", const char* nodes = "1") {
  const std::string text = "model: gpt-3-1.3b\ncluster: {node: dgx-a100, nodes: " + std::string(nodes) + ", backend: " + backend + "}\n" +
                           "training: {sequence_length: 2048, global_batch_size: 64, micro_batch_size: 4, precision: bf16, framework: plain}\n" + rest + "\n";
  return read_scenario(config::parse_document(text, "backend.yaml").root, "backend.yaml");
}

std::int64_t exposed(const Result& r) { return r.classes[0].timing.time[static_cast<std::size_t>(Cause::data)]; }
std::int64_t busy(const Result& r) { return r.classes[0].timing.busy[static_cast<std::size_t>(Stream::data_reduce)]; }

// Ring over host memory, and every rank's buffer down to the host and up again, two GPUs behind one PCIe switch.
TEST(HostBackend, AnAllReduceIsARingBetweenTwoCopies) {
  const hwmodels::ClusterDescription cluster = hwmodels::load_cluster("dgx-a100", 1);
  const hwmodels::HostRates host = hwmodels::host_rates(cluster);
  const auto gloo = hwmodels::make_network(cluster, {.backend = "gloo"});
  const Bytes bytes = 1_GiB;
  const GroupShape node{8, 1, 8, 1, 1, 1};
  const Duration ring = hwmodels::ring_all_reduce_time(bytes, 8, microseconds(60), BytesPerSecond{4e9});
  EXPECT_EQ(gloo->collective(CollectiveKind::all_reduce, bytes, node).duration, ring + bytes / host.to_host + bytes / host.to_device);
}

// NCCL before Gloo, and inside a node Gloo before MPI, as the notes have it. The reason is what overlaps: Gloo's worker threads
// carry buckets under backward, an MPI without CUDA support waits for each.
TEST(HostBackend, InsideANodeTheNotesOrderHolds) {
  const Result nccl = simulate(job("nccl")), gloo = simulate(job("gloo")), mpi = simulate(job("mpi"));
  for (const Result* r : {&nccl, &gloo, &mpi}) EXPECT_EQ(r->deadlock, "");
  EXPECT_LT(nccl.step_time, gloo.step_time);
  EXPECT_LT(gloo.step_time, mpi.step_time);
  EXPECT_LT(exposed(gloo), busy(gloo));
  EXPECT_GE(exposed(mpi), busy(mpi));
}

// Between nodes the order of the last two depends on the network that each uses: MPI drives InfiniBand, Gloo TCP over one card.
TEST(HostBackend, BetweenNodesMpiPassesGloo) {
  const double nccl = simulate(job("nccl", "data_parallel: {kind: ddp, bucket: 25 MiB}", "2")).step_time, gloo = simulate(job("gloo", "data_parallel: {kind: ddp, bucket: 25 MiB}", "2")).step_time,
               mpi = simulate(job("mpi", "data_parallel: {kind: ddp, bucket: 25 MiB}", "2")).step_time;
  EXPECT_LT(nccl, mpi);
  EXPECT_LT(mpi, gloo);
}

TEST(HostBackend, OtherStrategiesRunAndKeepBuffersOnTheHost) {
  for (const char* backend : {"gloo", "mpi"})
    for (const char* rest : {"data_parallel: {kind: fsdp2}", "data_parallel: {kind: zero2}", "data_parallel: {kind: zero3}", "parallelism: {tensor: 2}\ndata_parallel: {kind: ddp}"}) {
      const Result r = simulate(job(backend, rest));
      EXPECT_EQ(r.deadlock, "") << backend << " " << rest;
      EXPECT_GT(r.host.ram(), Bytes{0});
      EXPECT_EQ(r.classes[0].communicators, Bytes{0});
    }
  EXPECT_THROW(job("gloo", "parallelism: {pipeline: 2}"), ConfigError);
}

}  // namespace
}  // namespace rehearse::scenario::host_backend_test
