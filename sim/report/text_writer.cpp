#include "sim/report/text_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/model/describe.h"
#include "sim/report/costs.h"
#include "sim/report/effective_config.h"
#include "sim/report/format.h"

namespace rehearse::report {
namespace {

std::string coloured(const std::string& text, const char* code, bool colour) {
  return colour ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
}

std::string item(const char* what, const std::string& value, const std::string& note = {}) {
  std::string line = fmt::format("  {:<22}{:<15} {}", what, value, note);
  line.erase(line.find_last_not_of(' ') + 1);
  return shortened(line, kWidth) + "\n";
}

std::string heading(const Scenario& s) {
  std::string text;
  if (!s.title.empty()) text += wrapped("", s.title);
  const auto parameters = model::human_count(model::count_parameters(s.model).total);
  const auto& t = s.strategy.training;
  text += wrapped("", fmt::format("{} ({} parameters) on {} x {} ({} x {}), {}", s.model.name.empty() ? "model" : s.model.name, parameters, s.gpus(), s.cluster.gpu.title, s.cluster.nodes,
                                  s.cluster.node.title, s.profile.title));
  std::string split;
  for (const auto& [key, value] : flattened(effective_config(s)))
    if (key.starts_with("parallelism.") && value != "1" && value != "false" && key != "parallelism.order" && key != "parallelism.data_shard")
      split += (split.empty() ? "" : ", ") + (key == "parallelism.sequence_parallel" ? "sequence parallel" : key.substr(12) + " " + value);
  text += wrapped("", fmt::format("sequence {}, global batch {}, micro-batch {} ({} per step); {}", t.sequence_length, t.global_batch_size, t.micro_batch_size, s.strategy.micro_batches(),
                                  split.empty() ? "one GPU holds it all" : split));
  return text + "\n";
}

std::string failure(const Result& r, std::size_t rank_class) {
  const scenario::ClassResult& c = r.classes[rank_class];
  std::string text;
  if (r.classes.size() > 1) text += item(c.name.c_str(), "needs " + gib_text(c.peak_device()) + " GiB", c.ranks == 1 ? "on its GPU" : fmt::format("on each of {} GPUs", c.ranks));
  if (const auto& oom = c.memory.out_of_memory) {
    text += wrapped("  fails at              ", (c.memory.failed_call < 0 ? "" : fmt::format("step {}, ", c.memory.failed_step + 1)) + moment_text(r.plan, rank_class, c.memory.failed_call));
    text += item("asks for", bytes_text(oom->asked.value), fmt::format("(a segment of {})", bytes_text(oom->segment.value)));
    text += item("while live", gib_text(oom->allocated) + " GiB",
                 fmt::format("of {} GiB reserved; the allocator can have {} GiB", gib_text(oom->reserved), gib_text(oom->limit)));
    text += item("largest free block", bytes_text(oom->largest_free_block.value));
  }
  return text;
}

/// What a user may compare with: a step counts three passes over every weight, frozen or not, an evaluation one.
std::string mfu_formula(const Scenario& s) {
  if (s.strategy.training.phase == strategies::StepKind::evaluation) return "2 FLOPs per token and weight, attention over the causal half";
  if (s.strategy.tuning.kind != strategies::TuningKind::full) return "6 FLOPs per token and weight, as if none were frozen; causal";
  return "6 FLOPs per token and weight, attention over the causal half";
}

std::string speed(const Scenario& s, const Result& r) {
  const Utilisation u = utilisation_of(r);
  const double gpus = s.gpus();
  std::string text = r.fits ? "\nSpeed\n" : "\nSpeed, if it did fit\n";
  if (!r.deadlock.empty()) return text + wrapped("  the program stands still: ", r.deadlock);
  text += item("step time", seconds_text(r.step_time));
  text += item("tokens/s", number_text(r.tokens_per_second), number_text(r.tokens_per_second / gpus) + " per GPU");
  text += item("samples/s", number_text(r.samples_per_second));
  text += item("model FLOP/s per GPU", si_text(u.model_flops_per_second, "FLOPS"), "of " + si_text(r.peak_flops_per_gpu, "FLOPS") + ", the dense peak used below");
  text += item("MFU, causal", percent_text(u.mfu), mfu_formula(s));
  text += item("MFU, PaLM", percent_text(u.mfu_full), "the same with the whole attention square, as most logs have");
  text += item("HFU", percent_text(u.hfu), "what products, attention, scans execute, recomputed too");
  return text;
}

std::string where_time_goes(const Result& r) {
  if (r.step_time <= 0) return {};
  const StepAccount a = account_of(r);
  const bool several = r.classes.size() > 1;
  std::vector<std::string> head{"Where the time goes", several ? r.classes[r.critical_class].name : "time", ""};
  if (several) head.insert(head.end(), {"mean of ranks", ""});
  Table table(head);
  const auto row = [&](const std::string& name, double critical, double mean) {
    std::vector<std::string> cells{name, seconds_text(critical), percent_text(critical / r.step_time)};
    if (several) cells.insert(cells.end(), {seconds_text(mean), percent_text(mean / r.step_time)});
    table.add(std::move(cells));
  };
  for (const std::size_t k : causes_by_time(a)) row("  " + label_of(static_cast<executor::Cause>(k), r), a.critical[k], a.mean[k]);
  row("  step", r.step_time, r.step_time);
  return "\n" + table.text(0);
}

std::string rests_on(const Scenario& s, const Result& r) {
  std::string text = "\nWhat the numbers rest on\n";
  for (const Foundation& f : foundations_of(s)) {
    std::string value = f.value;
    if (f.what == "kernels" && !r.plan.kernels.empty()) {
      const double share = extrapolated_share(r.plan, costs_of(s, r.plan), r.critical_class);
      value += share > 0 ? fmt::format("; {} of kernel time outside measured sizes", percent_text(share)) : ", all sizes measured";
    }
    text += wrapped(fmt::format("  {:<16}", f.what), fmt::format("{} [{}]", value, f.file));
  }
  const ErrorBand band = error_band_of(s);
  std::string error = band.step_time ? fmt::format("+-{} on step time", percent_text(*band.step_time)) : "";
  if (band.peak_memory) error += fmt::format("{}+-{} on memory", error.empty() ? "" : ", ", percent_text(*band.peak_memory));
  text += wrapped("  expected error  ", (error.empty() ? "" : error + ": ") + band.basis);
  text += fmt::format("  {:<16}{}\n", "scenario", hash_of(s));
  for (const std::string& note : r.notes) text += wrapped("  note            ", note);
  return text;
}

}  // namespace

std::vector<std::size_t> shown_classes(const Result& r, std::size_t at_most) {
  std::vector<std::size_t> shown;
  const std::size_t n = r.classes.size(), last = std::max<std::size_t>(1, at_most / 3);
  for (std::size_t i = 0; i < n; ++i) {
    const bool edge = n <= at_most || i + last + 2 < at_most || i + last >= n;
    if (edge || i == r.critical_class || i == r.fullest_class) shown.push_back(i);
  }
  return shown;
}

namespace {

/// What a node has outside its GPUs and does not have enough of.
std::vector<std::string> lacking_on_node(const Scenario& s, const Result& r) {
  std::vector<std::string> out;
  const auto compare = [&](const char* what, Bytes needed, Bytes has) {
    if (needed > has) out.push_back(fmt::format("needs {} of {} GiB of {}; {} GiB too much", gib_text(needed), gib_text(has), what, gib_text(needed - has)));
  };
  compare("a node's host memory", r.host.ram(), s.cluster.node.cpu.memory);
  compare("a node's NVMe", r.host.nvme, s.cluster.node.nvme.capacity);
  return out;
}

}  // namespace

std::string verdict_line(const Scenario& s, const Result& r) {
  if (!r.deadlock.empty()) return "STANDS STILL: the program of this scenario never ends";
  if (r.classes.empty()) return "NOTHING TO RUN";
  const scenario::ClassResult& c = r.classes[r.fullest_class];
  const std::string of = fmt::format("{} of {} GiB", gib_text(c.peak_device()), gib_text(s.cluster.gpu.memory));
  const std::string where = r.classes.size() > 1 ? " on '" + c.name + "', the fullest class" : c.ranks == 1 ? " on the GPU" : " on every GPU";
  const Bytes left = headroom_of(s, r);
  if (r.fits) {
    const std::optional<double> error = error_band_of(s).peak_memory;
    const bool tight = error && left / c.peak_device() < *error;
    return fmt::format("FITS: {}{}; {} GiB left ({}){}", of, where, gib_text(left), percent_text(left / s.cluster.gpu.memory), tight ? fmt::format(", within the expected error of +-{}", percent_text(*error)) : "");
  }
  const char* bound = c.needs_more ? "more than " : "";
  const bool gpus_suffice = std::none_of(r.classes.begin(), r.classes.end(), [&](const scenario::ClassResult& k) { return lacks_memory(s, k); });
  if (const auto lacking = lacking_on_node(s, r); gpus_suffice && !lacking.empty()) return "DOES NOT FIT: " + lacking.front();
  if (left < Bytes{0}) return fmt::format("DOES NOT FIT: needs {}{}{}; {}{} GiB too much", bound, of, where, bound, gib_text(Bytes{0} - left));
  return fmt::format("DOES NOT FIT: runs out of memory{} although {} would do", where, of);
}

std::string heading_text(const Scenario& s) { return heading(s); }
std::string foundations_text(const Scenario& s, const Result& r) { return rests_on(s, r); }

std::string failure_text(const Scenario& s, const Result& r) {
  std::string text;
  if (!r.fits)
    for (const std::size_t i : shown_classes(r, 4))
      if (lacks_memory(s, r.classes[i])) text += failure(r, i);
  const std::string verdict = verdict_line(s, r);
  for (const std::string& line : lacking_on_node(s, r))
    if (verdict.find(line) == std::string::npos) text += "  " + line + "\n";
  return text;
}

std::string write_text(const Scenario& s, const Result& r, const TextOptions& options) {
  std::string text = heading_text(s);
  const std::string verdict = verdict_line(s, r);
  const std::size_t colon = verdict.find(':');
  text += coloured(verdict.substr(0, colon), r.fits && r.deadlock.empty() ? "1;32" : "1;31", options.colour) + (colon == std::string::npos ? "" : verdict.substr(colon)) + "\n";
  text += failure_text(s, r);
  text += speed(s, r);
  text += where_time_goes(r);
  text += memory_text(s, r);
  text += experts_text(r);
  text += rests_on(s, r);
  text += "\nGiB = 2^30 bytes, GB = 10^9 bytes. More: rehearse explain SCENARIO --stage costs | timeline | memory\n";
  return text;
}

}  // namespace rehearse::report
