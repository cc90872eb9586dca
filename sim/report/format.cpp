#include "sim/report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/contract.h"

namespace rehearse::report {
namespace {

/// Four significant digits without an exponent, for values of 0.1 to 9999.
std::string four_digits(double v) {
  const double a = std::abs(v);
  return fmt::format("{:.{}f}", v, a >= 999.5 ? 0 : a >= 99.95 ? 1 : a >= 9.995 ? 2 : 3);
}

constexpr std::array<const char*, 7> kSiPrefixes{"", "k", "M", "G", "T", "P", "E"};
constexpr std::array<const char*, 5> kCountWords{"", "k", "M", "B", "T"};

/// How often `v` is divided by 1000 until it is below, with so many names for that; `v` becomes what is left.
std::size_t thousands_in(double& v, std::size_t names) {
  std::size_t times = 0;
  for (; std::abs(v) >= 999.95 && times + 1 < names; ++times) v /= 1000;
  return times;
}

/// "-0.00" -> sign + "0.00".
std::string no_minus_zero(std::string text, const char* sign) {
  const bool nothing = text.starts_with('-') && text.find_first_not_of("-0.") == std::string::npos;
  return nothing ? sign + text.substr(1) : text;
}

}  // namespace

std::string seconds_text(double s) {
  const double a = std::abs(s);
  if (a == 0) return "0 s";
  if (a >= 0.9995) return four_digits(s) + " s";
  if (a >= 0.9995e-3) return four_digits(s * 1e3) + " ms";
  if (a >= 0.9995e-6) return four_digits(s * 1e6) + " us";
  return four_digits(s * 1e9) + " ns";
}

std::string picoseconds_text(std::int64_t ps) { return seconds_text(static_cast<double>(ps) * 1e-12); }

std::string bytes_text(std::int64_t bytes) {
  const double b = static_cast<double>(bytes), a = std::abs(b);
  constexpr double kKi = 1024;
  if (a >= kKi * kKi * kKi) return fmt::format("{:.2f} GiB", b / (kKi * kKi * kKi));
  if (a >= kKi * kKi) return fmt::format("{:.1f} MiB", b / (kKi * kKi));
  if (a >= kKi) return fmt::format("{:.1f} KiB", b / kKi);
  return fmt::format("{} B", bytes);
}

std::string gib_text(Bytes bytes) { return no_minus_zero(fmt::format("{:.2f}", gib(bytes)), ""); }

std::string number_text(double v) { return v == 0 ? "0" : std::abs(v) < 0.1 ? fmt::format("{:.3g}", v) : four_digits(v); }

std::string counted(std::int64_t count, std::string_view word, std::string_view plural) {
  if (count != 1 && !plural.empty()) return fmt::format("{} {}", count, plural);
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::string signed_text(double value, int decimals) { return no_minus_zero(fmt::format("{:+.{}f}", value, decimals), "+"); }

std::string percent_text(double fraction) { return no_minus_zero(fmt::format("{:.1f}", 100 * fraction), "") + " %"; }

std::string si_text(double v, std::string_view unit) {
  const std::size_t prefix = thousands_in(v, kSiPrefixes.size());
  return fmt::format("{} {}{}", four_digits(v), kSiPrefixes[prefix], unit);
}

std::string count_text(double v) {
  const std::size_t word = thousands_in(v, kCountWords.size());
  return fmt::format("{}{}{}", four_digits(v), word > 0 ? " " : "", kCountWords[word]);
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string shortened(const std::string& text, std::size_t width) {
  if (characters(text) <= width || width < 4) return text;
  std::string out;
  std::size_t seen = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80 && ++seen > width - 3) break;
    out += c;
  }
  return out + "...";
}

std::string wrapped(const std::string& head, const std::string& text) {
  std::string out = head;
  const std::size_t indent = characters(head);
  std::size_t column = indent;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", i), text.size());
    const std::string word = text.substr(i, end - i);
    const std::size_t width = characters(word);
    if (column > indent && column + 1 + width > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) out += ' ', ++column;
    out += word;
    column += width;
    i = end + 1;
  }
  return out + "\n";
}

void Table::add(std::vector<std::string> row) {
  EXPECTS(row.size() <= rows_[0].size());
  row.resize(rows_[0].size());
  rows_.push_back(std::move(row));
}

std::string Table::text(std::size_t indent, Names names) const {
  const std::size_t columns = rows_[0].size();
  std::vector<std::size_t> width(columns, 0);
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < columns; ++c) width[c] = std::max(width[c], characters(row[c]));
  constexpr std::size_t kGap = 2, kLeast = 12;
  std::size_t total = indent + kGap * (columns - 1);
  for (std::size_t w : width) total += w;
  // The widest column of words gives way first.
  while (total > kWidth && names == Names::may_be_cut) {
    std::size_t widest = columns;
    for (std::size_t c = 0; c < columns; ++c)
      if (left_[c] && width[c] > kLeast && (widest == columns || width[c] > width[widest])) widest = c;
    if (widest == columns) break;
    const std::size_t cut = std::min(total - kWidth, width[widest] - kLeast);
    width[widest] -= cut;
    total -= cut;
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string cell = shortened(row[c], width[c]);
      const std::string fill(width[c] - std::min(width[c], characters(cell)), ' ');
      line += (c == 0 ? "" : std::string(kGap, ' ')) + (left_[c] ? cell + fill : fill + cell);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace rehearse::report
