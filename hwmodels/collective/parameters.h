// Measured constants of the time model, per GPU generation and per kind of network, as nccl.yaml states them.
// Leaves out NCCL's own tuning constants (tuner.h): those decide, these tell how long it takes.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rehearse::hwmodels {

/// Times in microseconds, sizes in MiB where not said otherwise; efficiencies are fractions of NCCL's link
/// constant.
struct GenerationTiming {
  double launch = 7;     // kernel launch and first flag, whatever the size
  double step_ll = 1.5;  // one ring step inside a domain, by protocol
  double step_ll128 = 1.8;
  double step_simple = 2.5;
  double chain_step = 0.7;          // one step of a tree's chain inside a domain
  double ll_bandwidth = 100;        // GB/s of bus bandwidth that LL reaches on NVLink
  double ring_efficiency = 0.98;    // plateau of all-reduce
  double gather_efficiency = 0.97;  // plateau of all-gather and reduce-scatter
  double ramp_step = 8;             // slices in flight: extra time of each ring step once steps are long ...
  double ramp_half = 6;             // ... half of it when a step carries this many microseconds of data
  double nvls_launch = 26;          // floor of NVLS
  double nvls_efficiency = 0.83;    // e in busbw = link * e * 2(n-1)/(n+1)
  double nvls_rack_efficiency = 0.64;  // e when the domain is larger than 8 GPUs
  double nvls_tree_efficiency = 0.93;  // plateau across nodes as a part of the one inside a node
  double nvls_chunk = 3;               // KiB: a chunk costs as much as this many more KiB
  double nvls_ramp = 85;
  double nvls_ramp_half = 25;  // MiB
  double direct_launch = 10;   // all-to-all and send/recv
  double direct_peer = 0.3;    // per peer of an all-to-all
  double direct_efficiency = 0.9;
  double direct_ramp = 80;
  double direct_ramp_half = 20;  // MiB
  double send_efficiency = 0.92;
  double send_ramp = 20;      // of one message
  double send_ramp_half = 4;  // MiB
  double send_channel = 0;    // GB/s that one channel moves of a message; 0: channels are no limit
};

struct NetworkTiming {
  bool ll128 = true;            // writes of 128 bytes arrive in order; NCCL leaves LL128 out otherwise
  double tree_hop = 10.5;       // one hop of the tree between nodes, small LL message
  double tree_hop_large = 20;   // the same once the hop carries whole slices
  double tree_hop_half = 0.06;  // MiB: size at which half of the growth is reached
  double ring_step_ll = 6;      // one ring step between nodes, by protocol
  double ring_step_ll128 = 20;
  double ring_step_simple = 40;
  double ramp = 150;                    // pipeline through the NICs of a large message
  double ramp_half = 8;                 // MiB
  double tree_efficiency = 1;           // of the NICs' bandwidth when they carry both directions of a tree
  double send = 16;                     // one message, first byte to last flag
  double send_channel = 0;              // GB/s that one channel moves of it; 0: channels are no limit
  double send_more_channels = 1;        // c channels move c^this as much
  double sharp_efficiency = 0.79;       // of network_bandwidth, sums that the switches make
  double all_to_all_efficiency = 0.94;  // of the NIC line rate between two nodes ...
  double all_to_all_decline = 0.3;      // ... times (nodes / 2)^-this: pairs collide in the switches
  double all_to_all_peer = 1.0;
  double latency_norm = 2.4;  // p: how step latencies and data of a ring hide each other, (a^p + b^p)^(1/p)
};

/// The same on every generation and network.
struct CommonTiming {
  double own_piece = 0.45;           // what the piece that a ring step moves within a GPU's own memory costs, of a piece on NVLink
  double message_efficiency = 0.95;  // of the NIC line rate, one message in flight
  double all_channels = 0.93;        // of what each channel moves of one message, when all of a GPU's channels carry one each
  double copy_efficiency = 0.9;      // of the HBM bandwidth, copies within a GPU
};

/// A kernel that sends tokens to their experts, or brings them back, and does not go through NCCL.
struct DispatchKernel {
  double sms = 20;             // that it holds
  double launch = 40;          // microseconds before the first token
  double token = 0;            // microseconds of an SM per token ...
  double rate = 0;             // ... and GB/s of an SM for its copies; 0: links alone decide
  double link_efficiency = 1;  // of NVLink: the kernel reaches this part of it
};

/// Inside a node DeepEP's kernels; `bulk` is HybridEP, which moves what all tokens of a rank send at once.
struct DispatchTiming {
  DispatchKernel dispatch, combine, bulk;
};

/// SMs that gathers and scatters hold when NCCL knows their buffers: no copies into its own, and inside NVLink the switches multicast and sum.
struct RegisteredSms {
  int gather = 0, scatter = 0;
};
struct RegisteredBuffers {
  RegisteredSms nvlink{4, 5};            // groups inside NVLink, with NVLink SHARP
  RegisteredSms both{16, 16};            // NVLink and the network ...
  RegisteredSms both_sharp{6, 6};        // ... whose switches sum
  RegisteredSms network{1, 4}, network_sharp{1, 1};   // one rank per node
};

/// Gloo and MPI: alpha-beta through host memory.
struct HostBackendTiming {
  double alpha = 50;   // microseconds per step
  double intra = 5;    // GB/s per rank, same node
  double inter = 1.2;  // GB/s per node at most, else the NIC times `nic_fraction`
  double nic_fraction = 0.5;
  double copies = 1;   // copies between GPU and host, of a pinned copy's rate
};

struct CollectiveParameters {
  std::map<std::string, GenerationTiming> generations;  // volta, ampere, hopper, blackwell, cdna3, cdna4, pcie
  std::map<std::string, NetworkTiming> networks;        // by the name that a node design gives
  CommonTiming common;
  DispatchTiming expert_dispatch;
  RegisteredBuffers registered_buffers;
  std::map<std::string, HostBackendTiming> backends;    // gloo, mpi
  std::string file;
};

/// hwmodels/data/collective/nccl.yaml, read once and constant from then on. Throws ConfigError.
const CollectiveParameters& collective_parameters();
/// What scenarios may call it: "nccl".
std::vector<std::string> collective_parameter_names();

/// A file of the user's own in the same form; what it does not name is as in nccl.yaml. Throws ConfigError.
CollectiveParameters load_collective_parameters(const std::string& file);

/// Name and member of each number, in the order of the file, for programs that fit them.
template <typename T>
struct NamedNumber {
  std::string name;
  double T::*member;
};
const std::vector<NamedNumber<GenerationTiming>>& generation_numbers();
const std::vector<NamedNumber<NetworkTiming>>& network_numbers();
}  // namespace rehearse::hwmodels
