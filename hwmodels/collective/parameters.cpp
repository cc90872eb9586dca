#include "hwmodels/collective/parameters.h"

#include <fmt/ranges.h>

#include "hwmodels/source_field.h"
#include "sim/config/document.h"
#include "sim/config/fields.h"
#include "sim/core/resources.h"
#include "sim/core/suggestion.h"

namespace rehearse::hwmodels {
namespace {
using namespace config;

constexpr const char* kFile = "hwmodels/data/collective/nccl.yaml";

// The numbers of each struct, named once: for reading them and for programs that fit them.
#define REHEARSE_GENERATION_NUMBERS(X) \
  X(launch) X(step_ll) X(step_ll128) X(step_simple) X(chain_step) X(ll_bandwidth) X(ring_efficiency) \
  X(gather_efficiency) X(ramp_step) X(ramp_half) X(nvls_launch) X(nvls_efficiency) \
  X(nvls_rack_efficiency) X(nvls_tree_efficiency) X(nvls_chunk) X(nvls_ramp) X(nvls_ramp_half) \
  X(direct_launch) X(direct_peer) X(direct_efficiency) X(direct_ramp) X(direct_ramp_half) \
  X(send_efficiency) X(send_ramp) X(send_ramp_half) X(send_channel)
#define REHEARSE_NETWORK_NUMBERS(X) \
  X(tree_hop) X(tree_hop_large) X(tree_hop_half) X(ring_step_ll) X(ring_step_ll128) X(ring_step_simple) \
  X(ramp) X(ramp_half) X(tree_efficiency) X(send) X(send_channel) X(send_more_channels) X(sharp_efficiency) X(all_to_all_efficiency) X(all_to_all_decline) X(all_to_all_peer) \
  X(latency_norm)
#define REHEARSE_NUMBER(T, member) number(#member, &T::member, "see collective/parameters.h", non_negative)
#define REHEARSE_FIELD_OF_G(member) REHEARSE_NUMBER(G, member),
#define REHEARSE_FIELD_OF_N(member) REHEARSE_NUMBER(N, member),
#define REHEARSE_NAMED_OF_G(member) {#member, &G::member},
#define REHEARSE_NAMED_OF_N(member) {#member, &N::member},

const Fields<GenerationTiming>& generation_fields() {
  using G = GenerationTiming;
  static const Fields<G> fields{REHEARSE_GENERATION_NUMBERS(REHEARSE_FIELD_OF_G) source_field<G>()};
  return fields;
}

const Fields<NetworkTiming>& network_fields() {
  using N = NetworkTiming;
  static const Fields<N> fields{boolean("ll128", &N::ll128, "128-byte writes arrive in order"),
                                REHEARSE_NETWORK_NUMBERS(REHEARSE_FIELD_OF_N) source_field<N>()};
  return fields;
}

const Fields<CommonTiming>& common_fields() {
  using C = CommonTiming;
  static const Fields<C> fields{REHEARSE_NUMBER(C, own_piece), REHEARSE_NUMBER(C, message_efficiency), REHEARSE_NUMBER(C, all_channels), REHEARSE_NUMBER(C, copy_efficiency), source_field<C>()};
  return fields;
}

const Fields<DispatchTiming>& dispatch_fields() {
  using D = DispatchKernel;
  static const Fields<D> kernel{number("sms", &D::sms, "see collective/parameters.h", positive), REHEARSE_NUMBER(D, launch), REHEARSE_NUMBER(D, token), REHEARSE_NUMBER(D, rate), REHEARSE_NUMBER(D, link_efficiency), source_field<D>()};
  using T = DispatchTiming;
  static const Fields<T> fields{nested("dispatch", &T::dispatch, "DeepEP, to the experts", kernel), nested("combine", &T::combine, "DeepEP, back from them", kernel), nested("bulk", &T::bulk, "HybridEP", kernel)};
  return fields;
}

const Fields<RegisteredBuffers>& registered_fields() {
  using S = RegisteredSms;
  static const Fields<S> sms{integer("gather", &S::gather, "SMs of an all-gather", positive), integer("scatter", &S::scatter, "SMs of a reduce-scatter", positive)};
  using T = RegisteredBuffers;
  static const Fields<T> fields{nested("nvlink", &T::nvlink, "groups inside NVLink", sms), nested("both", &T::both, "NVLink and the network", sms), nested("both_sharp", &T::both_sharp, "the same, with SHARP in the network", sms),
                                nested("network", &T::network, "one rank per node", sms), nested("network_sharp", &T::network_sharp, "the same, with SHARP in the network", sms), source_field<T>()};
  return fields;
}

const Fields<HostBackendTiming>& backend_fields() {
  using H = HostBackendTiming;
  static const Fields<H> fields{REHEARSE_NUMBER(H, alpha), REHEARSE_NUMBER(H, intra),
                                REHEARSE_NUMBER(H, inter), REHEARSE_NUMBER(H, nic_fraction), REHEARSE_NUMBER(H, copies),
                                source_field<H>()};
  return fields;
}
#undef REHEARSE_NUMBER

const Fields<CollectiveParameters>& parameter_fields() {
  using P = CollectiveParameters;
  static const Fields<P> fields{
      map_of("generations", &P::generations, "by GPU generation", generation_fields()),
      map_of("networks", &P::networks, "by kind of network", network_fields()),
      nested("common", &P::common, "whatever the generation and the network", common_fields()),
      nested("expert_dispatch", &P::expert_dispatch, "kernels that send tokens to experts without NCCL", dispatch_fields()),
      nested("registered_buffers", &P::registered_buffers, "SMs of gathers and scatters whose buffers NCCL knows", registered_fields()),
      map_of("backends", &P::backends, "communication through host memory", backend_fields()),
  };
  return fields;
}

CollectiveParameters load_parameters() {
  Document document = load_document(resource_root() / kFile);
  Diagnostics wrong;
  auto parameters = read(document.root, parameter_fields(), wrong);
  throw_if_any(std::move(wrong));
  parameters.file = kFile;
  return parameters;
}

}  // namespace

std::vector<std::string> collective_parameter_names() { return resource_names("hwmodels/data/collective", ".yaml"); }

const std::vector<NamedNumber<GenerationTiming>>& generation_numbers() {
  using G = GenerationTiming;
  static const std::vector<NamedNumber<G>> numbers{REHEARSE_GENERATION_NUMBERS(REHEARSE_NAMED_OF_G)};
  return numbers;
}

const std::vector<NamedNumber<NetworkTiming>>& network_numbers() {
  using N = NetworkTiming;
  static const std::vector<NamedNumber<N>> numbers{REHEARSE_NETWORK_NUMBERS(REHEARSE_NAMED_OF_N)};
  return numbers;
}

template <typename Timing>
static std::vector<std::string> names_in(const std::map<std::string, Timing>& timings) {
  std::vector<std::string> names;
  for (const auto& [name, timing] : timings) names.push_back(name);
  return names;
}

CollectiveParameters load_collective_parameters(const std::string& file) {
  Document document = load_document(file);
  Diagnostics wrong;
  // What the user did not measure stays as it was.
  const CollectiveParameters& usual = collective_parameters();
  CollectiveParameters own = read(document.root, parameter_fields(), wrong, nullptr, usual);
  const std::vector<std::string> known = names_in(usual.generations);
  for (const std::string& name : names_in(own.generations))
    if (!usual.generations.contains(name))
      wrong.push_back(document.root.find("generations")->find(name)->diagnostic("there is no such generation", did_you_mean(name, known, fmt::format("Known: {}", fmt::join(known, ", ")))));
  throw_if_any(std::move(wrong));
  own.file = file;
  return own;
}

const CollectiveParameters& collective_parameters() {
  static const CollectiveParameters parameters = load_parameters();
  return parameters;
}

}  // namespace rehearse::hwmodels
