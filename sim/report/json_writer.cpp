#include "sim/report/json_writer.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/report/costs.h"
#include "sim/report/effective_config.h"

namespace rehearse::report {
namespace {

using Json = nlohmann::json;  // a sorted map

Json number(double v) { return std::isfinite(v) ? Json(v) : Json(nullptr); }
Json number_if(bool exists, double v) { return exists ? number(v) : Json(nullptr); }

Json tree(const config::Value& value) {
  if (value.is_map()) {
    Json out = Json::object();
    for (const config::Value::Entry& e : value.entries()) out[e.key] = tree(e.value);
    return out;
  }
  if (value.is_list()) {
    Json out = Json::array();
    for (const config::Value& item : value.items()) out.push_back(tree(item));
    return out;
  }
  // Numbers and booleans as such, as the YAML of --print-config has them.
  const Json parsed = Json::parse(value.text(), nullptr, false);
  return parsed.is_number() || parsed.is_boolean() ? parsed : Json(value.text());
}

Json by_cause(const std::array<double, executor::kCauses>& seconds) {
  Json out = Json::object();
  for (std::size_t k = 0; k < seconds.size(); ++k) out[key_of(static_cast<executor::Cause>(k)) + "_s"] = seconds[k];
  return out;
}

Json failure(const Scenario& s, const Result& r, std::size_t i) {
  const scenario::ClassResult& c = r.classes[i];
  if (!lacks_memory(s, c)) return nullptr;
  Json out = {{"needed_bytes", c.peak_device().value}, {"available_bytes", s.cluster.gpu.memory.value}};
  if (c.needs_more) out["needed_is_lower_bound"] = true;
  if (const auto& oom = c.memory.out_of_memory) {
    out["asked_bytes"] = oom->asked.value;
    out["allocated_bytes"] = oom->allocated.value;
    out["reserved_bytes"] = oom->reserved.value;
    out["allocator_limit_bytes"] = oom->limit.value;
    out["largest_free_block_bytes"] = oom->largest_free_block.value;
    out["call"] = c.memory.failed_call;
    out["step"] = c.memory.failed_step + 1;
    out["moment"] = moment_text(r.plan, i, c.memory.failed_call);
  }
  return out;
}

Json memory(const Scenario& s, const Result& r) {
  Json out = Json::array();
  for (std::size_t i = 0; i < r.classes.size(); ++i) {
    const scenario::ClassResult& c = r.classes[i];
    Json categories = Json::object();
    for (std::size_t k = 0; k < plan::kCategories; ++k) categories[std::string(name_of(static_cast<plan::Category>(k)))] = c.memory.at_peak[k];
    Json outside = {{"context_bytes", c.context.value}, {"communicator_bytes", c.communicators.value}, {"other_bytes", c.misc.value}};
    if (c.unified > Bytes{0}) outside["unified_bytes"] = c.unified.value;
    out.push_back({{"class", c.name},
                   {"ranks", c.ranks},
                   {"representative_rank", r.plan.classes[i].representative},
                   {"parameters", c.parameters},
                   {"peak_allocated_bytes", c.memory.peak_allocated.value},
                   {"peak_reserved_bytes", c.memory.peak_reserved.value},
                   {"peak_device_bytes", c.peak_device().value},
                   {"end_allocated_bytes", c.memory.end_allocated.value},
                   {"by_category", categories},
                   {"outside_allocator", outside},
                   {"peak_moment", moment_text(r.plan, i, c.memory.peak_call)},
                   {"out_of_memory", failure(s, r, i)}});
    if (expert_imbalance(r.plan) > 1) out.back()["expert_load"] = r.plan.classes[i].expert_load;
  }
  return out;
}

Json provenance(const Scenario& s, const Result& r) {
  Json rests = Json::array();
  for (const Foundation& f : foundations_of(s)) rests.push_back({{"what", f.what}, {"value", f.value}, {"file", f.file}});
  const double outside = r.plan.kernels.empty() || r.classes.empty() ? 0 : extrapolated_share(r.plan, costs_of(s, r.plan), r.critical_class);
  return {{"rests_on", rests},
          {"extrapolated_kernel_time_share", outside},
          {"notes", r.notes},
          {"plan_instructions", r.plan.instructions_per_step()},
          {"config", tree(effective_config(s))},
          {"formulas",
           {{"mfu", "model FLOPs (forward + 2 x backward of matrix products, attention over the causal half) / step time / peak"},
            {"mfu_full_attention", "the same with the whole attention square (PaLM appendix B)"},
            {"hfu", "FLOPs of the GEMM and attention kernels that run, recomputation included / step time / peak"}}}};
}

}  // namespace

std::string write_json(const Scenario& s, const Result& r) {
  const Utilisation u = utilisation_of(r);
  const bool timed = r.step_time > 0;
  const double gpus = s.gpus();
  const ErrorBand band = error_band_of(s);
  Json out;
  out["schema_version"] = kSchemaVersion;
  out["scenario_hash"] = hash_of(s);
  out["title"] = s.title;
  out["fits"] = r.fits;
  out["deadlock"] = r.deadlock.empty() ? Json(nullptr) : Json(r.deadlock);
  out["gpus"] = s.gpus();
  out["gpu_memory_bytes"] = s.cluster.gpu.memory.value;
  out["step_time_s"] = number_if(timed, r.step_time);
  out["tokens_per_s"] = number_if(timed, r.tokens_per_second);
  out["tokens_per_s_per_gpu"] = number_if(timed, r.tokens_per_second / gpus);
  out["samples_per_s"] = number_if(timed, r.samples_per_second);
  out["model_tflops_per_gpu"] = number_if(timed, u.model_flops_per_second / 1e12);
  out["hardware_tflops_per_gpu"] = number_if(timed, u.hardware_flops_per_second / 1e12);
  out["peak_tflops_per_gpu"] = r.peak_flops_per_gpu / 1e12;
  out["mfu"] = number_if(timed, u.mfu);
  out["mfu_full_attention"] = number_if(timed, u.mfu_full);
  out["hfu"] = number_if(timed, u.hfu);
  // Each sums to the step: of the class that waits least, and the mean over all GPUs.
  out["breakdown"] = timed ? by_cause(account_of(r).critical) : Json(nullptr);
  out["breakdown_mean"] = timed ? by_cause(account_of(r).mean) : Json(nullptr);
  out["critical_class"] = r.classes.empty() ? Json(nullptr) : Json(r.classes[r.critical_class].name);
  // Slots of the fullest expert rank over the mean, in the layers of its stage.
  if (expert_imbalance(r.plan) > 1) out["expert_imbalance"] = expert_imbalance(r.plan);
  out["memory"] = memory(s, r);
  out["headroom_bytes"] = r.classes.empty() ? Json(nullptr) : Json(headroom_of(s, r).value);
  out["fullest_class"] = r.classes.empty() ? Json(nullptr) : Json(r.classes[r.fullest_class].name);
  // Training state kept outside the GPUs, on the node that keeps most.
  out["host_bytes"] = r.host.ram().value;
  out["host_pinned_bytes"] = r.host.pinned.value;
  out["host_memory_bytes"] = s.cluster.node.cpu.memory.value;
  out["nvme_bytes"] = r.host.nvme.value;
  out["nvme_capacity_bytes"] = s.cluster.node.nvme.capacity.value;
  out["error_band"] = {{"step_time", band.step_time ? Json(*band.step_time) : Json(nullptr)}, {"peak_memory", band.peak_memory ? Json(*band.peak_memory) : Json(nullptr)}, {"basis", band.basis}};
  out["provenance"] = provenance(s, r);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rehearse::report
