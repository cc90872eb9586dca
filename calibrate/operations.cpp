#include "calibrate/operations.h"

#include <algorithm>

namespace rehearse::calibrate {
namespace {

using K = FactKind;

Fact text(const char* word) { return Fact(std::string(word)); }
Fact whole(std::int64_t v) { return Fact(v); }

Key required(const char* name, const char* meaning, K kind = K::integer, std::vector<std::string> words = {}) {
  return {name, kind, meaning, std::nullopt, std::move(words)};
}
Key optional(const char* name, const char* meaning, Fact fallback, std::vector<std::string> words = {}) {
  constexpr K kKinds[] = {K::flag, K::integer, K::number, K::text, K::lines};
  return {name, kKinds[fallback.index()], meaning, std::move(fallback), std::move(words)};
}
/// A fact that may be left out, with nothing in its place.
Key fact(const char* name, const char* meaning, K kind) { return {name, kind, meaning, std::nullopt, {}}; }

const std::vector<std::string> kTypes = {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8"};
const std::vector<std::string> kRoles = {"forward", "data_gradient", "weight_gradient"};
const std::vector<std::string> kCollectives = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                               "broadcast", "reduce", "send_recv"};
const std::vector<std::string> kTimed = {"gemm", "collective", "transfer"};

using Keys = std::vector<Key>;

Keys gemm_shape() {
  return {required("m", "rows of C; forward and data_gradient: tokens; weight_gradient: out features"),
          required("n", "columns of C; forward: out features; data_gradient and weight_gradient: in features"),
          required("k", "summed dimension; forward: in features; data_gradient: out features; weight_gradient: tokens"),
          required("dtype", "operands", K::text, kTypes)};
}

Keys group_shape() {
  return {required("collective", "kind", K::text, kCollectives),
          required("bytes", "nccl-tests' size: all_reduce, broadcast, reduce: one rank's buffer; all_gather, reduce_scatter: "
                            "all ranks' shards together; all_to_all: what one rank sends, its own part included; send_recv: "
                            "the message"),
          required("ranks", "GPUs in one group"),
          optional("nodes", "nodes that hold a member", whole(1)),
          optional("stride", "distance between neighbouring members in local GPU numbers", whole(1)),
          optional("groups", "groups of this shape that run the same collective at once, on different GPUs", whole(1)),
          optional("dtype", "elements", text("bf16"), kTypes),
          optional("in_place", "send and receive buffer are one", Fact(false)),
          optional("pattern", "of send_recv: pair = GPU 0 sends to the last one; ring = each sends to the next", text("pair"),
                   {"pair", "ring"})};
}

Keys with(Keys keys, Keys more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

Keys attention_shape() {
  return {required("batch", "sequences"),
          required("heads", "query heads"),
          required("kv_heads", "key and value heads"),
          required("query_length", "tokens"),
          required("key_length", "tokens"),
          required("head_dim", "elements of a head"),
          required("causal", "a query sees earlier keys only", K::flag),
          required("dtype", "operands", K::text, kTypes),
          required("implementation", "which kernel: rehearse-tiled = the probe's own simple one (a lower bound of what libraries "
                                     "reach); others by name: cudnn, cudnn_9_13, flash2, flash3, sdpa_math", K::text)};
}

std::vector<Operation> make_operations() {
  return {
      {"gemm", "one matrix product C[m,n] (+)= A[m,k] B[k,n], row-major, in the layout of its role in a linear layer "
               "(weights are stored [out, in]): cuBLASLt's first heuristic choice",
       with(gemm_shape(), {optional("role", "which GEMM of a linear layer", text("forward"), kRoles),
                           optional("batch", "independent products in one call", whole(1)),
                           optional("output_dtype", "C; default: dtype", text(""), {"", "fp32", "fp16", "bf16", "fp8"}),
                           optional("accumulate", "C is read and added to", Fact(false)),
                           optional("origin", "where the shape is from: a model's layer, or grid", text(""))})},
      {"grouped_gemm", "independent products of the experts of a mixture, one after another or in one call",
       with(gemm_shape(), {required("groups", "experts; m (weight_gradient: k) is the mean of their tokens"),
                           optional("role", "which GEMM of a linear layer", text("forward"), kRoles),
                           optional("implementation", "sequence = one cuBLASLt call per expert on one stream", text("sequence"))})},
      {"attention_forward", "fused attention, forward", attention_shape()},
      {"attention_backward", "fused attention: gradients of query, key and value, scores computed again", attention_shape()},
      {"memory_kernel", "a kernel bound by memory; every operand read once and written once",
       {required("kernel", "what it does", K::text,
                 {"copy", "add", "cast", "rms_norm", "layer_norm", "softmax", "cross_entropy", "adam", "memset", "reduction"}),
        required("elements", "elements of the main operand"),
        optional("row", "elements per row of rms_norm, layer_norm, softmax, cross_entropy (there: the vocabulary)", whole(0)),
        optional("dtype", "elements; adam: of the gradient and the working copy, its state is fp32", text("bf16"), kTypes),
        required("bytes_read", "bytes that must be read"),
        required("bytes_written", "bytes that must be written")}},
      {"kernel_launch", "empty kernels on one stream",
       {required("what", "latency = one launch until the host sees it done; gap = device time per kernel, launched back to back; "
                         "host = host time of the call", K::text, {"latency", "gap", "host"}),
        optional("arguments_bytes", "size of the kernel's arguments", whole(8))}},
      {"graph_launch", "a CUDA graph of a chain of empty kernels",
       {required("what", "latency = one launch until the host sees it done; gap = device time per node; host = host time of the "
                         "call", K::text, {"latency", "gap", "host"}),
        required("nodes", "kernels in the graph")}},
      {"transfer", "copies between memories by the copy engines; the time until the last of them is done",
       {required("direction", "both = host to device and device to host at once; peer = GPU to GPU; peer_both = both ways at once",
                 K::text, {"host_to_device", "device_to_host", "both", "device_to_device", "peer", "peer_both"}),
        required("bytes", "of one copy, one direction"),
        optional("pinned", "host memory is page-locked", Fact(true)),
        optional("gpus", "GPUs that copy at once, each its own buffer", whole(1)),
        optional("first", "number of the first GPU", whole(0)),
        optional("second", "peer: number of the other GPU", whole(0))}},
      {"collective", "one NCCL collective on all ranks; the slowest rank's time", group_shape()},
      {"overlap", "one operation while another runs on the same GPUs, again and again, on another stream",
       {required("timed", "which of the two these times are of", K::text, kTimed),
        required("beside", "the other one", K::text, kTimed),
        optional("m", "of the GEMM: rows of C", whole(0)),
        optional("n", "of the GEMM: columns of C", whole(0)),
        optional("k", "of the GEMM: summed dimension", whole(0)),
        optional("dtype", "of the GEMM", text("bf16"), kTypes),
        optional("collective", "of the collective: kind", text("all_reduce"), kCollectives),
        optional("direction", "of the transfer", text("host_to_device"), {"host_to_device", "device_to_host", "both"}),
        optional("bytes", "of the collective or the transfer", whole(0)),
        optional("ranks", "of the collective", whole(1)),
        optional("nodes", "of the collective", whole(1))}},
      {"host_memory", "the host's DRAM, all threads together",
       {required("kernel", "read = sum; write = fill; copy = one array to another; triad = a + s*b to a third", K::text,
                 {"read", "write", "copy", "triad"}),
        required("bytes", "moved in all, read and written"),
        required("threads", "host threads")}},
      {"host_adam", "Adam on the host: fp32 parameters, moments and gradients; writes a 16-bit copy",
       {required("elements", "parameters"), required("threads", "host threads")}},
      {"file", "reads or writes of one file in the directory that the user named, past the page cache (O_DIRECT) where it can",
       {required("direction", "what is done", K::text, {"read", "write"}),
        required("block_bytes", "bytes of one request"),
        required("depth", "requests in flight"),
        required("bytes", "moved in all"),
        optional("direct", "past the page cache", Fact(true))}},
  };
}

}  // namespace

std::string_view name_of(FactKind kind) {
  switch (kind) {
    case K::flag: return "true or false";
    case K::integer: return "integer";
    case K::number: return "number";
    case K::text: return "text";
    case K::lines: return "list of texts";
  }
  return "?";
}

const Key* Operation::find(std::string_view key) const {
  const auto at = std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == key; });
  return at == keys.end() ? nullptr : &*at;
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> table = make_operations();
  return table;
}

const Operation* find_operation(std::string_view name) {
  for (const Operation& o : operations())
    if (o.name == name) return &o;
  return nullptr;
}

const std::vector<Key>& machine_keys() {
  static const std::vector<Key> table = {
      fact("gpu", "name that the driver gives, e.g. NVIDIA H200", K::text),
      fact("gpu_count", "GPUs that took part, all nodes together", K::integer),
      fact("node_count", "nodes that took part", K::integer),
      fact("compute_capability", "10 x major + minor, e.g. 90", K::integer),
      fact("sms", "streaming multiprocessors", K::integer),
      fact("gpu_memory_bytes", "memory that the driver reports", K::integer),
      fact("gpu_memory_free_bytes", "memory that was free when the probe began", K::integer),
      fact("l2_bytes", "second-level cache", K::integer),
      fact("sm_clock_max_mhz", "highest SM clock, MHz", K::integer),
      fact("memory_clock_max_mhz", "highest memory clock, MHz", K::integer),
      fact("memory_bus_bits", "width of the memory interface, bits", K::integer),
      fact("power_limit_w", "power limit in force, W", K::integer),
      fact("ecc", "error correction is on", K::flag),
      fact("mig", "the GPU is divided (MIG)", K::flag),
      fact("driver", "driver version", K::text),
      fact("pcie_generation", "PCIe generation in use", K::integer),
      fact("pcie_width", "PCIe lanes in use", K::integer),
      fact("nvlinks", "active NVLinks of one GPU", K::integer),
      fact("cpu", "processor name", K::text),
      fact("cpu_sockets", "processors of a node", K::integer),
      fact("cpu_cores", "cores of a node that the probe may use", K::integer),
      fact("host_memory_bytes", "memory of a node that the probe may use", K::integer),
      fact("topology", "paths between GPUs and NICs as the system shows them (nvidia-smi topo -m)", K::lines),
      fact("nccl_channels", "what NCCL says of its channels, rings and trees (its INIT and GRAPH log)", K::lines),
  };
  return table;
}

const std::vector<Key>& software_keys() {
  static const std::vector<Key> table = {
      fact("probe", "version of the measuring program", K::text),
      fact("cuda_runtime", "e.g. 13.0", K::text),
      fact("cuda_driver", "newest CUDA that the driver knows, e.g. 13.0", K::text),
      fact("cublaslt", "e.g. 13.0.2", K::text),
      fact("nccl", "e.g. 2.27.7", K::text),
      fact("cudnn", "where it was used", K::text),
      fact("mpi", "where it was used", K::text),
      fact("pytorch", "where it was used", K::text),
      fact("built_for", "GPU architectures in the probe", K::text),
  };
  return table;
}

const std::vector<Key>& option_keys() {
  static const std::vector<Key> table = {
      fact("mode", "quick, default, or full", K::text),
      fact("budget_s", "time that the whole run may take, s", K::number),
      fact("only", "patterns of series that were asked for", K::text),
      fact("target_relative_error", "where a series stops", K::number),
      fact("series_cap_s", "most time for one series, s", K::number),
      fact("minimum_samples", "fewest samples of a series", K::integer),
      fact("seed", "of the random operands and the space-filling grid", K::integer),
      fact("complete", "every planned series was measured or skipped with a reason", K::flag),
      fact("elapsed_s", "time measured so far, all resumed runs together, s", K::number),
  };
  return table;
}

}  // namespace rehearse::calibrate
