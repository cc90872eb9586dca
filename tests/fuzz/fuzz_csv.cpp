// Any bytes are a table or a ConfigError; every cell of a table can be reached.
#include <cstdint>
#include <string>

#include "sim/config/csv.h"

using namespace rehearse;
using namespace rehearse::config;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const CsvTable table = parse_csv(std::string(reinterpret_cast<const char*>(data), size), "fuzz.csv");
    for (std::size_t i = 0; i < table.size(); ++i)
      for (const std::string& column : table.columns()) {
        table.row(i).find(column);
        table.row(i).at(column);
        try {
          table.row(i).number(column);
        } catch (const ConfigError&) {
        }
      }
  } catch (const ConfigError&) {
  }
  return 0;
}
