#include "sim/config/csv.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/config/reader.h"
#include "sim/config/text_file.h"
#include "sim/config/units.h"
#include "sim/core/contract.h"
#include "sim/core/suggestion.h"

namespace rehearse::config {

namespace {
constexpr std::size_t kMaxColumns = 10'000;
}

/// One pass over the text. Unquoting shortens, so the cells' texts are compacted in the buffer they came in.
class CsvParser {
 public:
  CsvParser(std::string text, const std::string& file) : text_(std::move(text)) { table_.file_ = file; }

  CsvTable parse() {
    std::vector<CsvTable::Cell> row;
    bool header = true;
    while (next_row(row)) {
      if (header)
        take_header(row);
      else
        take_row(row);
      header = false;
      if (mistakes_.size() > kMaxListedMistakes) break;
    }
    if (header) complain(1, 1, "holds no table", "The first line names the columns");
    throw_if_any(std::move(mistakes_));
    text_.resize(written_);
    table_.content_ = std::move(text_);
    return std::move(table_);
  }

 private:
  bool at_end() const { return read_ >= text_.size(); }
  bool at_line_break() const {
    return text_[read_] == '\n' ||
           (text_[read_] == '\r' && read_ + 1 < text_.size() && text_[read_ + 1] == '\n');
  }
  void skip_line_break() {
    read_ += text_[read_] == '\r' ? 2 : 1;
    ++line_;
    column_ = 1;
  }
  /// Moves one byte from the text to the cell's text.
  void keep() {
    const char c = text_[read_++];
    text_[written_++] = c;
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      ++column_;
    }
  }
  void skip() {
    ++read_;
    ++column_;
  }

  bool next_row(std::vector<CsvTable::Cell>& row) {
    row.clear();
    while (!at_end() && at_line_break()) skip_line_break();
    if (at_end()) return false;
    while (true) {
      row.push_back(next_cell());
      // A file of commas alone must not cost sixteen times its size.
      if (row.size() > kMaxColumns) {
        complain(row[0].line, 1, fmt::format("more than {} cells in one row", kMaxColumns),
                 "Is it a CSV file?");
        throw ConfigError(std::move(mistakes_));
      }
      if (at_end()) return true;
      if (at_line_break()) {
        skip_line_break();
        return true;
      }
      skip();  // the comma
    }
  }

  CsvTable::Cell next_cell() {
    CsvTable::Cell cell{static_cast<std::uint32_t>(written_), 0, line_, column_};
    if (!at_end() && text_[read_] == '"') {
      read_quoted(cell);
    } else {
      bool stray = false;
      while (!at_end() && text_[read_] != ',' && !at_line_break()) {
        if (text_[read_] == '"' && !stray) {
          complain(line_, column_, "a quote inside a cell that does not start with one",
                   "Put the whole cell in quotes and double the quotes in it");
          stray = true;
        }
        keep();
      }
    }
    cell.size = static_cast<std::uint32_t>(written_) - cell.begin;
    return cell;
  }

  void read_quoted(const CsvTable::Cell& cell) {
    skip();
    while (true) {
      if (at_end())
        return complain(cell.line, cell.column, "a quote that is never closed", "Add the closing quote");
      if (text_[read_] != '"') {
        keep();
        continue;
      }
      if (read_ + 1 < text_.size() && text_[read_ + 1] == '"') {
        skip();
        keep();
        continue;
      }
      skip();
      break;
    }
    if (at_end() || text_[read_] == ',' || at_line_break()) return;
    complain(line_, column_, "text after a closing quote", "Double the quotes inside a quoted cell");
    while (!at_end() && text_[read_] != ',' && !at_line_break()) skip();
  }

  /// What other programs separate cells or lines by; "" where the header is one of ours.
  std::string foreign_separator(const std::vector<CsvTable::Cell>& header) const {
    const auto holds = [&](const CsvTable::Cell& cell, char c) { return std::string_view(text_).substr(cell.begin, cell.size).find(c) != std::string_view::npos; };
    if (std::any_of(header.begin(), header.end(), [&](const CsvTable::Cell& cell) { return holds(cell, '\r'); })) return "lines end in CR alone";
    if (header.size() > 1) return "";
    return holds(header[0], ';') ? "cells are separated by semicolons" : holds(header[0], '\t') ? "cells are separated by tabs" : "";
  }

  void take_header(const std::vector<CsvTable::Cell>& row) {
    if (const std::string separator = foreign_separator(row); !separator.empty()) {
      mistakes_.clear();   // else every line tells the same
      complain(1, 1, separator, "Save the table with commas between cells and lines that end in LF or CRLF");
      throw_if_any(std::move(mistakes_));
    }
    for (const CsvTable::Cell& cell : row) {
      std::string name = text_.substr(cell.begin, cell.size);
      if (name.empty()) complain(cell.line, cell.column, "a column without a name", "Name every column");
      names_.push_back(name);
      table_.columns_.push_back(std::move(name));
    }
    std::sort(names_.begin(), names_.end());
    for (std::size_t i = 1; i < names_.size(); ++i)
      if (!names_[i].empty() && names_[i] == names_[i - 1])
        complain(row[0].line, 1, fmt::format("two columns are called {}", names_[i]), "Rename one of them");
  }

  bool blank(const CsvTable::Cell& cell) const { return text_.find_first_not_of(" \t", cell.begin) >= cell.begin + cell.size; }

  void take_row(const std::vector<CsvTable::Cell>& row) {
    if (row.size() == 1 && table_.columns_.size() > 1 && blank(row[0])) return;
    if (row.size() != table_.columns_.size())
      return complain(
          row[0].line, 1,
          fmt::format("{} cells, but the header names {} column{}", row.size(), table_.columns_.size(), table_.columns_.size() == 1 ? "" : "s"),
          "Quote cells that hold commas");
    if (table_.cells_.size() + row.size() > kMaxCsvCells)
      throw ConfigError(Diagnostic{{table_.file_, static_cast<int>(row[0].line), 1},
                                   "",
                                   fmt::format("the table has more than {} cells", kMaxCsvCells),
                                   "Split the file",
                                   ""});
    table_.cells_.insert(table_.cells_.end(), row.begin(), row.end());
  }

  void complain(std::uint32_t line, std::uint32_t column, std::string problem, std::string fix) {
    mistakes_.push_back({{table_.file_, static_cast<int>(line), static_cast<int>(column)},
                         "",
                         std::move(problem),
                         std::move(fix),
                         ""});
  }

  CsvTable table_;
  std::string text_;
  std::size_t read_ = 0;
  std::size_t written_ = 0;  // never beyond read_
  std::uint32_t line_ = 1;
  std::uint32_t column_ = 1;
  std::vector<std::string> names_;
  Diagnostics mistakes_;
};

CsvTable read_csv(const std::filesystem::path& path) {
  return parse_csv(read_text_file(path, kMaxCsvBytes), path.string());
}

CsvTable parse_csv(std::string text, const std::string& file_name) {
  return CsvParser(checked_utf8(std::move(text), file_name), file_name).parse();
}

std::optional<std::size_t> CsvTable::column_index(std::string_view column) const {
  const auto it = std::find(columns_.begin(), columns_.end(), column);
  if (it == columns_.end()) return std::nullopt;
  return static_cast<std::size_t>(it - columns_.begin());
}

void CsvTable::rename(std::size_t column, std::string name) {
  EXPECTS(column < columns_.size() && !has(name));
  columns_[column] = std::move(name);
}

void CsvTable::trim() {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  for (Cell& cell : cells_) {
    while (cell.size > 0 && blank(content_[cell.begin])) ++cell.begin, --cell.size;
    while (cell.size > 0 && blank(content_[cell.begin + cell.size - 1])) --cell.size;
  }
}

void CsvTable::set(std::size_t row, std::string_view column, std::string_view text) {
  EXPECTS(row < size());
  if (!has(column)) {
    std::vector<Cell> cells;
    cells.reserve(cells_.size() + size());
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      cells.push_back(cells_[i]);
      if ((i + 1) % columns_.size() == 0) cells.push_back({cells_[i].begin, 0, cells_[i].line, cells_[i].column});
    }
    cells_ = std::move(cells);
    columns_.emplace_back(column);
  }
  Cell& cell = cells_[row * columns_.size() + *column_index(column)];
  cell.begin = static_cast<std::uint32_t>(content_.size());
  cell.size = static_cast<std::uint32_t>(text.size());
  content_ += text;
}

CsvRow CsvTable::row(std::size_t index) const {
  EXPECTS(index < size());
  return {this, index};
}

void CsvTable::require(const std::vector<std::string>& names) const {
  Diagnostics missing;
  for (const std::string& name : names) {
    if (has(name)) continue;
    const auto near = nearest_name(name, columns_);
    missing.push_back(
        {{file_, 1, 1},
         name,
         "no such column",
         near ? fmt::format("Is it the one called {}?", *near) : std::string("Add it to the header"),
         ""});
  }
  throw_if_any(std::move(missing));
}

std::string_view CsvRow::operator[](std::size_t index) const {
  EXPECTS(index < table_->columns().size());
  return table_->text_of(table_->cell(index_, index));
}

std::string_view CsvRow::text(std::string_view column) const {
  const auto index = table_->column_index(column);
  if (!index) table_->require({std::string(column)});
  return (*this)[*index];
}

std::optional<std::string_view> CsvRow::find(std::string_view column) const {
  const auto index = table_->column_index(column);
  if (!index || (*this)[*index].empty()) return std::nullopt;
  return (*this)[*index];
}

std::optional<double> CsvRow::number(std::string_view column) const {
  const std::string_view cell = text(column);
  if (cell.empty()) return std::nullopt;
  const Reading<double> reading = parse_number(cell);
  if (!reading) throw ConfigError(diagnostic(column, "needs a number: " + reading.problem, reading.fix));
  return reading.value;
}

std::optional<std::int64_t> CsvRow::integer(std::string_view column) const {
  const std::string_view cell = text(column);
  if (cell.empty()) return std::nullopt;
  const Reading<std::int64_t> reading = parse_integer(cell);
  if (!reading) throw ConfigError(diagnostic(column, "needs an integer: " + reading.problem, reading.fix));
  return reading.value;
}

SourceLocation CsvRow::at() const {
  return {table_->file(), static_cast<int>(table_->cell(index_, 0).line), 1};
}

SourceLocation CsvRow::at(std::string_view column) const {
  const auto index = table_->column_index(column);
  if (!index) return at();
  const auto& cell = table_->cell(index_, *index);
  return {table_->file(), static_cast<int>(cell.line), static_cast<int>(cell.column)};
}

Diagnostic CsvRow::diagnostic(std::string_view column, std::string problem, std::string fix) const {
  return {at(column), std::string(column), std::move(problem), std::move(fix), ""};
}

}  // namespace rehearse::config
