// Number formats as training uses them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rehearse {

enum class DType : std::uint8_t { fp64, fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4, int64, int32, int8, nf4, boolean };

/// Bits of one element in memory, scales of block formats left out (they are tensors of their own).
constexpr int bits(DType t) {
  switch (t) {
    case DType::fp64: case DType::int64: return 64;
    case DType::fp32: case DType::tf32: case DType::int32: return 32;
    case DType::fp16: case DType::bf16: return 16;
    case DType::fp8: case DType::mxfp8: case DType::int8: case DType::boolean: return 8;
    case DType::nvfp4: case DType::nf4: return 4;
  }
  return 0;
}
/// Bytes of `elements` elements, rounded up to whole bytes.
constexpr std::int64_t byte_size(DType t, std::int64_t elements) { return (elements * bits(t) + 7) / 8; }

std::string_view name_of(DType t);
std::optional<DType> dtype_named(std::string_view name);

}  // namespace rehearse
