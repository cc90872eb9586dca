#include "sim/report/html_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/model/describe.h"
#include "sim/report/format.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {
namespace {

constexpr int kWidthOfDrawings = 1100, kLabel = 150;   // SVG units
constexpr std::size_t kClassesShown = 16;

constexpr const char* kStyle = R"(
:root{--ink:#1c2733;--quiet:#66727f;--line:#dde3e8;--paper:#fff;--panel:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#dbe2e8;--quiet:#8d99a5;--line:#33404c;--paper:#141b22;--panel:#1c252e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;margin:2em auto;padding:0 1em}
h1{font-size:1.35em;margin:0 0 .2em}h2{font-size:1.05em;margin:2em 0 .5em}p{margin:.2em 0}
.quiet{color:var(--quiet)}.verdict{padding:.7em 1em;border-radius:6px;margin:1em 0;font-weight:600;color:#fff;background:#1a7f4b}.no{background:#b3312c}
.cards{display:flex;flex-wrap:wrap;gap:.8em}.card{background:var(--panel);border-radius:6px;padding:.6em 1em;min-width:8em}.card b{display:block;font-size:1.25em}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font-size:12px}svg .quiet{fill:var(--quiet)}
.key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
table{border-collapse:collapse;margin:.6em 0;font-variant-numeric:tabular-nums}th{font-weight:600;color:var(--quiet)}th,td{text-align:right;padding:.15em 0 .15em 1.4em}
th:first-child,td:first-child{text-align:left;padding-left:0}tr+tr td{border-top:1px solid var(--line)}summary{cursor:pointer;font-weight:600;margin:2em 0 .5em}
pre{background:var(--panel);padding:1em;border-radius:6px;overflow:auto;font-size:13px;line-height:1.35})";

/// Colours that differ in lightness too, as many as a drawing has kinds.
constexpr std::array<const char*, 16> kColours{"#2f6fb5", "#d98324", "#3a9d5d", "#b8433f", "#7b5ea7", "#c9a227", "#3aa6b0", "#8c6239", "#d06fa8", "#6b7d8f", "#9ab83c", "#5a54c4", "#e0605a", "#1f4e5f", "#b9c3cc", "#86c5e8"};
static_assert(kColours.size() >= executor::kCauses && kColours.size() >= plan::kCategories + 3 && kColours.size() >= kClassesShown && kColours.size() > static_cast<std::size_t>(plan::Phase::count_));
const char* colour(std::size_t i) { return kColours[i]; }
constexpr std::size_t kHostColour = kColours.size() - 1;   // of the host's row among the streams

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

std::string rect(double x, double y, double width, double height, const char* fill, const std::string& title) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>", x, y, std::max(width, 0.3), height, fill, escaped(title));
}
std::string label(double x, double y, const std::string& text, const char* more = "") { return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>", x, y, more, escaped(text)); }
std::string drawing(double height, const std::string& inside) { return fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\">{}</svg>\n", kWidthOfDrawings, height, inside); }
std::string key_entry(const char* fill, const std::string& text) { return fmt::format("<span><i style=\"background:{}\"></i>{}</span>", fill, escaped(text)); }

/// Rows of cells under a head.
std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table><tr>";
  for (const std::string& cell : head) out += "<th>" + escaped(cell) + "</th>";
  out += "</tr>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += "<td>" + escaped(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

/// A bar of parts, in proportion to `whole`.
struct Part {
  double value;
  std::size_t colour;
  std::string title;
};
std::string bar(const std::string& name, const std::vector<Part>& parts, double whole, double y) {
  std::string out = label(0, y + 14, name);
  double x = kLabel;
  for (const Part& p : parts) {
    const double width = whole > 0 ? p.value / whole * (kWidthOfDrawings - kLabel) : 0;
    if (width > 0) out += rect(x, y, width, 20, colour(p.colour), p.title);
    x += width;
  }
  return out;
}

std::string time_section(const Result& r) {
  const StepAccount account = account_of(r);
  std::string bars, key;
  double y = 0;
  for (const auto& [name, causes] : {std::pair{std::string("busiest ranks"), account.critical}, {std::string("mean of ranks"), account.mean}}) {
    std::vector<Part> parts;
    for (std::size_t c = 0; c < executor::kCauses; ++c)
      parts.push_back({causes[c], c, fmt::format("{}: {} ({})", label_of(static_cast<executor::Cause>(c), r), seconds_text(causes[c]), percent_text(r.step_time > 0 ? causes[c] / r.step_time : 0))});
    bars += bar(name, parts, r.step_time, y);
    y += 28;
  }
  const bool several = r.classes.size() > 1;
  std::vector<std::string> head{"", several ? r.classes[r.critical_class].name : "time", ""};
  if (several) head.insert(head.end(), {"mean of ranks", ""});
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& name, double critical, double mean) {
    rows.push_back({name, seconds_text(critical), percent_text(critical / r.step_time)});
    if (several) rows.back().insert(rows.back().end(), {seconds_text(mean), percent_text(mean / r.step_time)});
  };
  for (const std::size_t c : causes_by_time(account)) {
    const std::string name = label_of(static_cast<executor::Cause>(c), r);
    key += key_entry(colour(c), name);
    row(name, account.critical[c], account.mean[c]);
  }
  row("step", r.step_time, r.step_time);
  return "<h2>Where the step goes</h2>\n" + drawing(y, bars) + "<p class=\"key\">" + key + "</p>\n" + table(head, rows);
}

std::string memory_at_peak(const Scenario& s, const Result& r, const std::vector<std::size_t>& shown) {
  constexpr std::size_t kOutside = plan::kCategories, kUnused = plan::kCategories + 1, kPaged = plan::kCategories + 2;
  const auto has = static_cast<double>(s.cluster.gpu.memory.value);
  double most = has;
  for (const std::size_t c : shown) most = std::max(most, static_cast<double>(r.classes[c].peak_device().value));
  std::string bars, key;
  std::array<bool, plan::kCategories + 3> used{};
  std::vector<std::vector<std::string>> rows, parts_of;
  double y = 0;
  for (const std::size_t c : shown) {
    const scenario::ClassResult& k = r.classes[c];
    std::vector<Part> parts;
    double live = 0;
    const auto add = [&](std::size_t colour_of, double bytes, const std::string& what) {
      used[colour_of] = used[colour_of] || bytes > 0;
      parts.push_back({bytes, colour_of, fmt::format("{}: {}", what, bytes_text(static_cast<std::int64_t>(bytes)))});
    };
    for (std::size_t i = 0; i < plan::kCategories; ++i) {
      add(i, static_cast<double>(k.memory.at_peak[i]), std::string(name_of(static_cast<plan::Category>(i))));
      live += static_cast<double>(k.memory.at_peak[i]);
    }
    add(kUnused, std::max(0.0, static_cast<double>(k.memory.peak_reserved.value) - live), "reserved beyond it");
    add(kOutside, static_cast<double>((k.context + k.communicators + k.misc).value), "context, NCCL and other");
    add(kPaged, static_cast<double>(k.unified.value), "paged");
    rows.push_back({k.name, std::to_string(k.ranks), model::human_count(k.parameters), gib_text(k.memory.peak_allocated), gib_text(k.memory.peak_reserved), gib_text(k.peak_device()), gib_text(s.cluster.gpu.memory)});
    parts_of.push_back({k.name});
    for (std::size_t i = 0; i < plan::kCategories; ++i) parts_of.back().push_back(gib_text(Bytes{k.memory.at_peak[i]}));
    for (const Bytes outside : {k.context, k.communicators, k.misc, k.unified}) parts_of.back().push_back(gib_text(outside));
    bars += bar(fmt::format("{} ({})", k.name, k.ranks), parts, most, y);
    y += 28;
  }
  const double edge = kLabel + has / most * (kWidthOfDrawings - kLabel);
  bars += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1:.0f}\" stroke=\"#b3312c\" stroke-width=\"2\" stroke-dasharray=\"4 3\"/>", edge - 1, y) +
          label(edge - 6, y + 14, fmt::format("the GPU has {} GiB", gib_text(s.cluster.gpu.memory)), "text-anchor=\"end\" class=\"quiet\"");
  for (std::size_t i = 0; i < used.size(); ++i)
    if (used[i]) key += key_entry(colour(i), i == kOutside ? "context, NCCL and other" : i == kUnused ? "reserved beyond it" : i == kPaged ? "paged" : std::string(name_of(static_cast<plan::Category>(i))));
  std::vector<std::string> head{"at the peak, GiB"};
  for (std::size_t i = 0; i < plan::kCategories; ++i) head.emplace_back(name_of(static_cast<plan::Category>(i)));
  head.insert(head.end(), {"context", "NCCL", "other", "paged"});
  std::string more = table(head, parts_of) + "<p>Peak of '" + escaped(r.classes[r.fullest_class].name) + "': " + escaped(peak_moment_text(r, r.fullest_class)) + ".</p>\n";
  if (shown.size() < r.classes.size()) more += fmt::format("<p class=\"quiet\">{} more like these: --json has them all.</p>\n", r.classes.size() - shown.size());
  return "<h2>Memory at the peak</h2>\n" + drawing(y + 20, bars) + "<p class=\"key\">" + key + "</p>\n" + table({"GiB", "GPUs", "parameters", "allocated", "reserved", "on device", "has"}, rows) + more;
}

/// What a stream did, in as many columns as a screen can show: the phase that filled most of each.
std::string stream_row(const Result& r, std::size_t rank_class, plan::Stream stream, double y, double height) {
  constexpr int kColumns = kWidthOfDrawings - kLabel;
  constexpr auto kPhases = static_cast<std::size_t>(plan::Phase::count_);
  std::vector<std::array<float, kPhases>> filled(kColumns);
  const double scale = r.step_time > 0 ? kColumns / (r.step_time * 1e12) : 0;
  for (const executor::Slice& s : r.trace) {
    if (s.rank_class != rank_class || s.stream != stream) continue;
    const auto phase = static_cast<std::size_t>(r.plan.classes[rank_class].program.step[s.call].phase);
    const double a = static_cast<double>(s.start) * scale, b = static_cast<double>(s.end) * scale;
    for (int c = std::max(0, static_cast<int>(a)); c < kColumns && c < b; ++c) filled[static_cast<std::size_t>(c)][phase] += static_cast<float>(std::min<double>(c + 1, b) - std::max<double>(c, a));
  }
  std::string out;
  const auto phase_of = [&](std::size_t c) -> std::size_t {
    const auto most = std::max_element(filled[c].begin(), filled[c].end());
    return *most < 0.15F ? kPhases : static_cast<std::size_t>(most - filled[c].begin());
  };
  for (std::size_t c = 0; c < filled.size();) {
    const std::size_t phase = phase_of(c);
    std::size_t end = c + 1;
    while (end < filled.size() && phase_of(end) == phase) ++end;
    if (phase < kPhases)
      out += rect(kLabel + static_cast<double>(c), y, static_cast<double>(end - c), height, colour(phase),
                  fmt::format("{}, {} to {}", name_of(static_cast<plan::Phase>(phase)), seconds_text(static_cast<double>(c) / scale * 1e-12), seconds_text(static_cast<double>(end) / scale * 1e-12)));
    c = end;
  }
  return out;
}

std::string streams(const Result& r, const std::vector<std::size_t>& shown) {
  std::string rows, key;
  double y = 4;
  bool on_host = false;
  std::array<bool, static_cast<std::size_t>(plan::Phase::count_)> used{};
  for (const executor::Slice& s : r.trace) used[static_cast<std::size_t>(r.plan.classes[s.rank_class].program.step[s.call].phase)] = true;
  for (const std::size_t c : shown) {
    bool first = true;
    for (int k = 0; k < plan::kStreams; ++k) {
      if (r.classes[c].timing.busy[static_cast<std::size_t>(k)] == 0) continue;
      const auto stream = static_cast<plan::Stream>(k);
      const bool compute = stream == plan::Stream::compute;
      if (!compute && shown.size() > 4) continue;  // pipelines: the picture is the schedule
      const double height = compute ? 18 : 8;
      rows += label(0, y + (compute ? 13 : 8), first ? r.classes[c].name : "  " + std::string(name_of(stream)), first ? "" : "class=\"quiet\" style=\"font-size:10px\"");
      rows += stream_row(r, c, stream, y, height);
      y += height + (compute ? 3 : 4);
      first = false;
    }
    if (const auto& works = r.classes[c].timing.host_works; !works.empty()) {
      on_host = true;
      const double scale = r.step_time > 0 ? (kWidthOfDrawings - kLabel) / (r.step_time * 1e12) : 0;
      rows += label(0, y + 8, "  optimizer on the CPU", "class=\"quiet\" style=\"font-size:10px\"");
      for (const executor::HostSlice& work : works) {
        const double from = static_cast<double>(std::max<std::int64_t>(0, work.start)) * scale;
        rows += rect(kLabel + from, y, static_cast<double>(work.end) * scale - from, 8, colour(kHostColour),
                     fmt::format("{}, {}", r.plan.host_works[work.spec].name, picoseconds_text(work.end - work.start)));
      }
      y += 12;
    }
    y += shown.size() > 4 ? 0 : 6;
  }
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0})
    rows += label(kLabel + part * (kWidthOfDrawings - kLabel), y + 12, seconds_text(part * r.step_time), part == 0 ? "class=\"quiet\"" : part == 1 ? "class=\"quiet\" text-anchor=\"end\"" : "class=\"quiet\" text-anchor=\"middle\"");
  for (std::size_t p = 0; p < used.size(); ++p)
    if (used[p]) key += key_entry(colour(p), std::string(name_of(static_cast<plan::Phase>(p))));
  if (on_host) key += key_entry(colour(kHostColour), "optimizer on the CPU");
  return "<h2>One step, stream by stream</h2>\n" + drawing(y + 18, rows) + "<p class=\"key\">" + key + "</p>\n";
}

/// Allocated bytes over the step's calls, one line per class.
std::string memory_over_time(const Scenario& s, const Result& r, const std::vector<std::size_t>& shown) {
  constexpr double kHeight = 220;
  const auto has = static_cast<double>(s.cluster.gpu.memory.value);
  double most = has;
  for (const std::size_t c : shown)
    for (const executor::MemorySample& m : r.classes[c].memory.timeline) most = std::max(most, static_cast<double>(m.reserved));
  const auto y_of = [&](double bytes) { return 8 + kHeight * (1 - bytes / most); };
  std::string lines, key;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const std::vector<executor::MemorySample>& t = r.classes[shown[i]].memory.timeline;
    if (t.empty()) continue;
    const std::size_t group = std::max<std::size_t>(1, t.size() / 900);
    std::string points;
    for (std::size_t j = 0; j < t.size(); j += group) {
      std::int64_t high = 0;
      for (std::size_t k = j; k < std::min(t.size(), j + group); ++k) high = std::max(high, t[k].allocated);
      points += fmt::format("{:.1f},{:.1f} ", kLabel + static_cast<double>(j) / static_cast<double>(t.size()) * (kWidthOfDrawings - kLabel), y_of(static_cast<double>(high)));
    }
    lines += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"><title>{}</title></polyline>", points, colour(i), escaped(r.classes[shown[i]].name));
    key += key_entry(colour(i), r.classes[shown[i]].name);
  }
  for (const double bytes : {0.0, has / 2, has})
    lines += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" stroke-width=\"1\"/>", kLabel, kWidthOfDrawings, y_of(bytes), bytes == has ? "#b3312c" : "var(--line)") +
             label(kLabel - 8, y_of(bytes) + 4, fmt::format("{} GiB", gib_text(Bytes{static_cast<std::int64_t>(bytes)})), "text-anchor=\"end\" class=\"quiet\"");
  return "<h2>Memory over the step</h2>\n<p class=\"quiet\">Allocated by PyTorch, in the order in which the host issues the step; the red line is what the GPU has.</p>\n" + drawing(kHeight + 20, lines) +
         "<p class=\"key\">" + key + "</p>\n";
}

std::string card(const std::string& name, const std::string& value) { return fmt::format("<div class=\"card\"><b>{}</b>{}</div>", escaped(value), escaped(name)); }

std::string cards(const Scenario& s, const Result& r) {
  const Utilisation u = utilisation_of(r);
  std::string out = "<div class=\"cards\">";
  if (r.deadlock.empty())
    out += card("step time", seconds_text(r.step_time)) + card("tokens/s", number_text(r.tokens_per_second)) + card("tokens/s per GPU", number_text(r.tokens_per_second / s.gpus())) +
           card("samples/s", number_text(r.samples_per_second)) + card("model FLOP/s per GPU", si_text(u.model_flops_per_second, "FLOPS")) + card("MFU, causal", percent_text(u.mfu)) +
           card("MFU, PaLM", percent_text(u.mfu_full)) + card("HFU", percent_text(u.hfu));
  if (r.host.ram() > Bytes{0}) out += card(fmt::format("GiB of a node's host memory, of {}", gib_text(s.cluster.node.cpu.memory)), gib_text(r.host.ram()));
  if (r.host.pinned > Bytes{0}) out += card("GiB of it pinned", gib_text(r.host.pinned));
  if (r.host.nvme > Bytes{0}) out += card(fmt::format("GiB of a node's NVMe, of {}", gib_text(s.cluster.node.nvme.capacity)), gib_text(r.host.nvme));
  return out + "</div>\n";
}

/// Bars of what each expert rank gets, as routing makes them differ; nothing where it does not.
std::string experts_section(const Result& r, const std::vector<std::size_t>& shown) {
  const double most = expert_imbalance(r.plan);
  if (most == 1) return {};
  std::string bars;
  double y = 0;
  for (const std::size_t c : shown) {
    const double load = r.plan.classes[c].expert_load;
    bars += bar(r.classes[c].name, {{load, 0, fmt::format("{:.3f} times the mean", load)}}, most, y) + label(kLabel + 6, y + 14, fmt::format("{:.3f}", load), "style=\"fill:#fff\"");
    y += 24;
  }
  return "<h2>Expert ranks: slots over the mean of their stage</h2>\n" + drawing(y, bars);
}

/// What is simulated, in the words of the text answer, without its title.
std::string subtitle(const Scenario& s) {
  Scenario untitled = s;
  untitled.title.clear();
  std::string text = heading_text(untitled);
  if (const std::size_t line = text.rfind("\nsequence "); line != std::string::npos) text.replace(line, 1, "; ");
  return text;
}

}  // namespace

std::string write_html(const Scenario& s, const Result& r, const std::string& remedy) {
  const std::string title = !s.title.empty() ? s.title : !s.model.name.empty() ? s.model.name : "model";
  const std::string rests = foundations_text(s, r);
  const std::vector<std::size_t> shown = shown_classes(r, kClassesShown);
  std::string page = fmt::format("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n<style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n",
                                 escaped(title), kStyle);
  page += "<p class=\"quiet\">" + escaped(subtitle(s)) + "</p>\n";
  page += fmt::format("<p class=\"verdict{}\">{}</p>\n", r.fits && r.deadlock.empty() ? "" : " no", escaped(verdict_line(s, r)));
  if (const std::string why = failure_text(s, r) + remedy; !why.empty()) page += "<pre>" + escaped(why) + "</pre>\n";
  if (!r.fits && r.deadlock.empty()) page += "<p class=\"quiet\">Speed, if it did fit:</p>\n";
  page += cards(s, r);
  if (r.deadlock.empty() && r.step_time > 0) page += time_section(r) + streams(r, shown);
  page += memory_at_peak(s, r, shown) + memory_over_time(s, r, shown) + experts_section(r, shown);
  page += "<h2>What the numbers rest on</h2>\n<pre>" + escaped(rests.substr(rests.find("\n", 1) + 1)) + "</pre>\n";
  page += "<details><summary>The answer in words</summary>\n<pre>" + escaped(write_text(s, r)) + "</pre></details>\n</body></html>\n";
  return page;
}

}  // namespace rehearse::report
