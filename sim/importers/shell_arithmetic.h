// Whole numbers as $((...)) and for ((...)) have them. Leaves out variables, which are filled in before.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rehearse::importers {

/// + - * /, brackets and one comparison, which is 1 or 0; nullopt for anything else, and for what 64 bits do not hold.
std::optional<std::int64_t> arithmetic_value(std::string_view text);

}  // namespace rehearse::importers
