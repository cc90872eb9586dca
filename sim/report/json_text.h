// A text as a JSON string, quotes included. Leaves out documents (json_writer.cpp): traces are too large to hold as trees.
#pragma once

#include <string>
#include <string_view>

namespace rehearse::report {

std::string json_text(std::string_view text);

}  // namespace rehearse::report
