#include "sim/config/csv.h"

#include <gtest/gtest.h>

#include "tests/unit/config/helpers.h"

namespace rehearse::config::csv_test {
namespace {

std::string refusal(const std::string& text) {
  return error_of([&] { parse_csv(text, "r.csv"); });
}

TEST(Csv, RowsByColumnName) {
  const CsvTable table = parse_csv("id,gpus,time\na,8,1.5\nb,,2e-3\n", "r.csv");
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table.columns(), (std::vector<std::string>{"id", "gpus", "time"}));
  EXPECT_EQ(table.row(0).text("id"), "a");
  EXPECT_EQ(table.row(0).integer("gpus"), 8);
  EXPECT_EQ(table.row(1).integer("gpus"), std::nullopt);
  EXPECT_EQ(table.row(1).number("time"), 2e-3);
  EXPECT_EQ(table.row(1).find("gpus"), std::nullopt);
  EXPECT_EQ(table.row(1).find("absent"), std::nullopt);
  EXPECT_EQ(table.row(1)[2], "2e-3");
  EXPECT_EQ(to_string(table.row(1).at()), "r.csv:3:1");
  EXPECT_EQ(to_string(table.row(1).at("time")), "r.csv:3:4");
}

TEST(Csv, QuotesCommasAndLineBreaks) {
  const CsvTable table = parse_csv("a,b\r\n\"x, \"\"y\"\"\",\"two\r\nlines\"\r\n\"\",last\r\n", "r.csv");
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table.row(0).text("a"), "x, \"y\"");
  EXPECT_EQ(table.row(0).text("b"), "two\r\nlines");
  EXPECT_EQ(table.row(1).text("a"), "");
  EXPECT_EQ(to_string(table.row(1).at("b")), "r.csv:4:4");
}

TEST(Csv, EndsOfFileAndBlankLines) {
  EXPECT_EQ(parse_csv("a,b\n1,2", "r.csv").row(0).text("b"), "2");
  EXPECT_EQ(parse_csv("a,b\n1,", "r.csv").row(0).text("b"), "");
  EXPECT_EQ(parse_csv("\n\na,b\n\n1,2\n\n\n3,4\n\n", "r.csv").size(), 2u);
  EXPECT_EQ(to_string(parse_csv("\n\na\n\n1\n", "r.csv").row(0).at()), "r.csv:5:1");
  EXPECT_EQ(parse_csv("a,b", "r.csv").size(), 0u);
  EXPECT_EQ(parse_csv("a\n\"\"\n", "r.csv").size(), 1u);
  EXPECT_EQ(parse_csv("\xEF\xBB\xBF"
                      "a\n1\n",
                      "r.csv")
                .columns()[0],
            "a");
  EXPECT_EQ(to_string(parse_csv("a,b\n\u00e9\u00e9,1\n", "r.csv").row(0).at("b")), "r.csv:2:4");
}

TEST(Csv, OtherSeparatorsAreNamed) {
  EXPECT_EQ(refusal("a;b\n1;2\n"), "r.csv:1:1: cells are separated by semicolons. Save the table with commas between cells and lines that end in LF or CRLF");
  EXPECT_EQ(refusal("a\tb\n1\t2\n").substr(0, 41), "r.csv:1:1: cells are separated by tabs. S");
  EXPECT_EQ(refusal("a,b\r1,2\r").substr(0, 37), "r.csv:1:1: lines end in CR alone. Sav");
  EXPECT_EQ(parse_csv("a;x,b\n1,2\n", "r.csv").columns()[0], "a;x");
}

TEST(Csv, LinesOfBlanksAreBlankLines) {
  EXPECT_EQ(parse_csv("a,b\n1,2\n   \n\t\n3,4\n", "r.csv").size(), 2u);
  EXPECT_EQ(parse_csv("a\n \n", "r.csv").size(), 1u);   // the cell of a table of one column
}

// Cells keep their places in the file, whatever they are made to hold.
TEST(Csv, CellsCanBeWritten) {
  CsvTable table = parse_csv("a,b\n x ,2\n y,3\n", "r.csv");
  table.trim();
  EXPECT_EQ(table.row(0).text("a"), "x");
  EXPECT_EQ(table.row(1).text("a"), "y");
  table.set(1, "b", "thirty");
  table.set(0, "new", "n");
  EXPECT_EQ(table.columns(), (std::vector<std::string>{"a", "b", "new"}));
  EXPECT_EQ(table.row(0).text("b"), "2");
  EXPECT_EQ(table.row(0).text("new"), "n");
  EXPECT_EQ(table.row(1).text("b"), "thirty");
  EXPECT_EQ(table.row(1).text("new"), "");
  EXPECT_EQ(to_string(table.row(1).at("b")), "r.csv:3:4");
  table.rename(0, "first");
  EXPECT_EQ(table.row(0).text("first"), "x");
  EXPECT_FALSE(table.has("a"));
}

TEST(Csv, MistakesAreCollected) {
  EXPECT_EQ(refusal("a,b\n1\n1,2,3\nx\"y,2\n\"x\"y,2\n3,\"never\n"),
            "r.csv:2:1: 1 cells, but the header names 2 columns. Quote cells that hold commas\n"
            "r.csv:3:1: 3 cells, but the header names 2 columns. Quote cells that hold commas\n"
            "r.csv:4:2: a quote inside a cell that does not start with one. Put the whole cell in quotes and "
            "double "
            "the quotes in it\n"
            "r.csv:5:4: text after a closing quote. Double the quotes inside a quoted cell\n"
            "r.csv:6:3: a quote that is never closed. Add the closing quote");
  EXPECT_EQ(refusal("a,b,a,,b\n"),
            "r.csv:1:1: two columns are called a. Rename one of them\n"
            "r.csv:1:1: two columns are called b. Rename one of them\n"
            "r.csv:1:7: a column without a name. Name every column");
  EXPECT_EQ(refusal(""), "r.csv:1:1: holds no table. The first line names the columns");
  EXPECT_EQ(refusal("a\n\xFF\n"), "r.csv:2:1: byte 0xFF is not UTF-8 text. Save the file as UTF-8");
  EXPECT_EQ(refusal(std::string(20000, ',')),
            "r.csv:1:1: more than 10000 cells in one row. Is it a CSV file?");
}

TEST(Csv, CellsOfTheWrongKindAndMissingColumns) {
  const CsvTable table = parse_csv("gpus,step_time\n8x,fast\n", "r.csv");
  EXPECT_EQ(
      error_of([&] { table.row(0).integer("gpus"); }),
      "r.csv:2:1: gpus: needs an integer: '8x' is not a whole number (a count has no unit). Write the number "
      "alone");
  EXPECT_EQ(error_of([&] { table.row(0).number("step_time"); }),
            "r.csv:2:4: step_time: needs a number: 'fast' is not a finite number");
  EXPECT_EQ(error_of([&] { table.row(0).text("steptime"); }),
            "r.csv:1:1: steptime: no such column. Is it the one called step_time?");
  EXPECT_EQ(error_of([&] {
              table.require({"gpus", "model", "x"});
            }),
            "r.csv:1:1: model: no such column. Add it to the header\n"
            "r.csv:1:1: x: no such column. Add it to the header");
}

TEST(Csv, Files) {
  const TempFolder folder;
  folder.write("runs.csv", "a\n1\n");
  EXPECT_EQ(read_csv(folder.path("runs.csv")).row(0).integer("a"), 1);
  EXPECT_EQ(folder.without_folder(error_of([&] { read_csv(folder.path("run.csv")); })),
            "run.csv: no such file. Did you mean runs.csv?");
  folder.write("big.csv", "");
  std::filesystem::resize_file(folder.path("big.csv"), std::uintmax_t{1} << 30);
  EXPECT_EQ(folder.without_folder(error_of([&] { read_csv(folder.path("big.csv")); })),
            "big.csv: is larger than 256 MiB, the limit for this kind of file. Is it the file you meant?");
}

}  // namespace
}  // namespace rehearse::config::csv_test
