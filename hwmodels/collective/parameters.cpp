#include "hwmodels/collective/parameters.h"

#include "sim/config/document.h"
#include "sim/config/fields.h"
#include "sim/core/resources.h"

namespace rehearse::hwmodels {
namespace {
using namespace config;

constexpr const char* kFile = "hwmodels/data/collective/nccl.yaml";

template <typename T>
Field<T> source_field() {
  return custom<T>("source", "where the numbers come from", "text", R"({"type":"string"})",
                   [](const Value& value, T&, FieldReader& reader) {
                     if (!value.is_scalar() || value.text().empty())
                       reader.complain(value, "is no text", "Name the source");
                   })
      .required();
}

#define REHEARSE_NUMBER(T, member) number(#member, &T::member, "see collective/parameters.h", non_negative)

const Fields<GenerationTiming>& generation_fields() {
  using G = GenerationTiming;
  static const Fields<G> fields{REHEARSE_NUMBER(G, launch),
                                REHEARSE_NUMBER(G, step_ll),
                                REHEARSE_NUMBER(G, step_ll128),
                                REHEARSE_NUMBER(G, step_simple),
                                REHEARSE_NUMBER(G, chain_step),
                                REHEARSE_NUMBER(G, ll_bandwidth),
                                REHEARSE_NUMBER(G, ring_efficiency),
                                REHEARSE_NUMBER(G, gather_efficiency),
                                REHEARSE_NUMBER(G, ramp_step),
                                REHEARSE_NUMBER(G, ramp_half),
                                REHEARSE_NUMBER(G, nvls_launch),
                                REHEARSE_NUMBER(G, nvls_efficiency),
                                REHEARSE_NUMBER(G, nvls_rack_efficiency),
                                REHEARSE_NUMBER(G, nvls_tree_efficiency),
                                REHEARSE_NUMBER(G, nvls_chunk),
                                REHEARSE_NUMBER(G, nvls_ramp),
                                REHEARSE_NUMBER(G, nvls_ramp_half),
                                REHEARSE_NUMBER(G, direct_launch),
                                REHEARSE_NUMBER(G, direct_peer),
                                REHEARSE_NUMBER(G, direct_efficiency),
                                REHEARSE_NUMBER(G, direct_ramp),
                                REHEARSE_NUMBER(G, direct_ramp_half),
                                REHEARSE_NUMBER(G, send_efficiency),
                                REHEARSE_NUMBER(G, send_ramp_half),
                                REHEARSE_NUMBER(G, send_narrow),
                                REHEARSE_NUMBER(G, send_narrow_until),
                                source_field<G>()};
  return fields;
}

const Fields<NetworkTiming>& network_fields() {
  using N = NetworkTiming;
  static const Fields<N> fields{boolean("ll128", &N::ll128, "128-byte writes arrive in order"),
                                REHEARSE_NUMBER(N, tree_hop),
                                REHEARSE_NUMBER(N, tree_hop_large),
                                REHEARSE_NUMBER(N, tree_hop_half),
                                REHEARSE_NUMBER(N, ring_step_ll),
                                REHEARSE_NUMBER(N, ring_step_ll128),
                                REHEARSE_NUMBER(N, ring_step_simple),
                                REHEARSE_NUMBER(N, ramp),
                                REHEARSE_NUMBER(N, ramp_half),
                                REHEARSE_NUMBER(N, send),
                                REHEARSE_NUMBER(N, all_to_all_efficiency),
                                REHEARSE_NUMBER(N, all_to_all_decline),
                                REHEARSE_NUMBER(N, all_to_all_peer),
                                REHEARSE_NUMBER(N, latency_norm),
                                source_field<N>()};
  return fields;
}

const Fields<HostBackendTiming>& backend_fields() {
  using H = HostBackendTiming;
  static const Fields<H> fields{REHEARSE_NUMBER(H, alpha), REHEARSE_NUMBER(H, intra),
                                REHEARSE_NUMBER(H, inter), REHEARSE_NUMBER(H, nic_fraction),
                                source_field<H>()};
  return fields;
}
#undef REHEARSE_NUMBER

const Fields<CollectiveParameters>& parameter_fields() {
  using P = CollectiveParameters;
  static const Fields<P> fields{
      map_of("generations", &P::generations, "by GPU generation", generation_fields()),
      map_of("networks", &P::networks, "by kind of network", network_fields()),
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

const CollectiveParameters& collective_parameters() {
  static const CollectiveParameters parameters = load_parameters();
  return parameters;
}

}  // namespace rehearse::hwmodels
