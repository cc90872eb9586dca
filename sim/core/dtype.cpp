#include "sim/core/dtype.h"

#include <array>
#include <utility>

namespace rehearse {
namespace {
constexpr std::array<std::pair<DType, std::string_view>, 13> kNames{{
    {DType::fp64, "fp64"}, {DType::fp32, "fp32"}, {DType::tf32, "tf32"}, {DType::fp16, "fp16"}, {DType::bf16, "bf16"},
    {DType::fp8, "fp8"}, {DType::mxfp8, "mxfp8"}, {DType::nvfp4, "nvfp4"}, {DType::int64, "int64"},
    {DType::int32, "int32"}, {DType::int8, "int8"}, {DType::nf4, "nf4"}, {DType::boolean, "bool"},
}};
}  // namespace

std::string_view name_of(DType t) {
  for (const auto& [type, name] : kNames)
    if (type == t) return name;
  return "?";
}

std::optional<DType> dtype_named(std::string_view wanted) {
  for (const auto& [type, name] : kNames)
    if (name == wanted) return type;
  return std::nullopt;
}

}  // namespace rehearse
