// Numbers and tables as people read them: units always written, columns aligned.
// Leaves out reading such texts back (sim/config/units.h) and machine-readable numbers (json_writer.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.h"

namespace rehearse::report {

/// Widest line of any text report, in characters.
constexpr std::size_t kWidth = 100;

/// "1.234 s", "12.34 ms", "56.78 us": four significant digits. `seconds` may be 0 or negative.
std::string seconds_text(double seconds);
std::string picoseconds_text(std::int64_t picoseconds);
/// "79.15 GiB", "512.0 MiB", "96 B": powers of 1024.
std::string bytes_text(std::int64_t bytes);
/// Always GiB, two decimals: "79.15", for columns whose head says GiB.
std::string gib_text(Bytes bytes);
/// "12,345" is not written: digits are never grouped. 12345.6 -> "12346", 123.45 -> "123.5", 1.2345 -> "1.234".
std::string number_text(double value);
/// 8.03e9 -> "8.030 B", 512 -> "512.0": things that are counted in thousands (k), millions, billions and trillions.
std::string count_text(double value);
/// "1 GPU", "8 GPUs": a count with its word; the plural takes an s unless it is given.
std::string counted(std::int64_t count, std::string_view word, std::string_view plural = {});
/// With its sign: "+1.2", "-0.3"; what rounds to nothing is "+0.0", never "-0.0".
std::string signed_text(double value, int decimals = 1);
/// 0.4321 -> "43.2 %".
std::string percent_text(double fraction);
/// 8.03e9 -> "8.03 G": with the SI prefix and a space; the unit follows. "989.4 T" + "FLOPS".
std::string si_text(double value, std::string_view unit);

/// Rows of cells, printed with aligned columns. The first column is left-aligned, the others as `left` says.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)}, left_(rows_[0].size(), false) {
    if (!left_.empty()) left_[0] = true;
  }
  /// Columns whose cells start at the left edge: words rather than numbers.
  Table& left(std::size_t column) {
    left_[column] = true;
    return *this;
  }
  /// Missing cells are empty. Precondition: not more cells than the head has.
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.size() == 1; }
  /// Lines that end in '\n', indented. A first or middle left-aligned column is shortened when a line would pass kWidth.
  /// Names::whole keeps what tells rows apart: lines may be longer than the screen.
  enum class Names { may_be_cut, whole };
  std::string text(std::size_t indent = 2, Names names = Names::may_be_cut) const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> left_;
};

/// Characters of UTF-8 text (code points).
std::size_t characters(std::string_view text);
/// The text cut to `width` characters with "..." at the end, or as it is.
std::string shortened(const std::string& text, std::size_t width);
/// Words wrapped at kWidth; the first line starts with `head`, later ones with as many spaces.
std::string wrapped(const std::string& head, const std::string& text);

}  // namespace rehearse::report
