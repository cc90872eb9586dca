// Reads a CSV table (RFC 4180) whose first line names the columns; every row knows its file and line.
// Leaves out what the columns mean, and writing (sim/report).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.h"

namespace rehearse::config {

inline constexpr std::size_t kMaxCsvBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxCsvCells = 16'000'000;

class CsvTable;

/// One data row; valid while its table lives.
class CsvRow {
 public:
  /// The cell, unquoted; "" when it is empty. Throws ConfigError when the table has no such column.
  std::string_view text(std::string_view column) const;
  /// As text(), but nullopt when the cell is empty or the table has no such column.
  std::optional<std::string_view> find(std::string_view column) const;
  /// Empty cells are nullopt. Throw ConfigError at the cell when it holds something else.
  std::optional<double> number(std::string_view column) const;
  std::optional<std::int64_t> integer(std::string_view column) const;

  /// Cell by position; precondition: index < table's columns.
  std::string_view operator[](std::size_t index) const;
  /// Where the row starts.
  SourceLocation at() const;
  /// Where the cell starts; the row's start when there is no such column.
  SourceLocation at(std::string_view column) const;
  /// A mistake in this row's cell.
  Diagnostic diagnostic(std::string_view column, std::string problem, std::string fix = {}) const;

 private:
  friend class CsvTable;
  CsvRow(const CsvTable* table, std::size_t index) : table_(table), index_(index) {}
  const CsvTable* table_;
  std::size_t index_;
};

class CsvTable {
 public:
  const std::string& file() const { return file_; }
  const std::vector<std::string>& columns() const { return columns_; }
  bool has(std::string_view column) const { return column_index(column).has_value(); }
  std::optional<std::size_t> column_index(std::string_view column) const;
  /// Data rows, the header left out.
  std::size_t size() const { return columns_.empty() ? 0 : cells_.size() / columns_.size(); }
  /// Precondition: index < size().
  CsvRow row(std::size_t index) const;
  /// Throws ConfigError naming every column of `names` that is missing.
  void require(const std::vector<std::string>& names) const;

  /// The column's name from now on. Preconditions: it is one of the table's; no other has the new name.
  void rename(std::size_t column, std::string name);
  /// Blanks around every cell's text are no part of it from now on.
  void trim();
  /// What the cell holds from now on; its place in the file stays. A column that is not there yet is added, empty in the other rows.
  void set(std::size_t row, std::string_view column, std::string_view text);

 private:
  friend class CsvRow;
  friend class CsvParser;
  struct Cell {
    std::uint32_t begin;
    std::uint32_t size;
    std::uint32_t line;
    std::uint32_t column;
  };
  const Cell& cell(std::size_t row, std::size_t column) const {
    return cells_[row * columns_.size() + column];
  }
  std::string_view text_of(const Cell& cell) const {
    return std::string_view(content_).substr(cell.begin, cell.size);
  }

  std::string file_;
  std::string content_;  // the cells' texts, unquoted
  std::vector<std::string> columns_;
  std::vector<Cell> cells_;
};

/// Quoted cells may hold commas, line breaks and doubled quotes; lines end in LF or CRLF; blank lines are
/// skipped. Throws ConfigError with all mistakes: missing or too large file, not UTF-8, no header, doubled or
/// empty column names, rows of another length than the header, stray or unclosed quotes.
CsvTable read_csv(const std::filesystem::path& path);
CsvTable parse_csv(std::string text, const std::string& file_name);

}  // namespace rehearse::config
