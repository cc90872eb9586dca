// Where in a JSON text a value stands: nlohmann::json forgets, and messages need the line.
// Leaves out checking the text, which the parser has done.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rehearse::calibrate {

struct Place {
  int line = 0;    // from 1; 0 = no such value
  int column = 0;  // from 1, in bytes
};

/// The way to a value: keys of objects and positions in arrays.
using JsonPath = std::vector<std::variant<std::string, std::size_t>>;

/// Place of the value's first character. Walks the text again, so it is for errors only. Expects well-formed JSON.
Place place_of(std::string_view json, const JsonPath& path);

/// Line and column of a byte of the text.
Place place_of_byte(std::string_view text, std::size_t byte);

/// "series[3].parameters.m"
std::string to_string(const JsonPath& path);

}  // namespace rehearse::calibrate
