#include "strategies/layer/tape.h"

namespace rehearse::strategies {

std::int64_t Tape::trainable_elements(Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.in(part) && w.trainable && !w.parameter_elsewhere ? w.elements : 0;
  return n;
}

std::int64_t Tape::elements(Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.in(part) && !w.parameter_elsewhere ? w.elements : 0;
  return n;
}

std::int64_t Tape::parameter_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights)
    if (!w.parameter_elsewhere && w.in(part)) n += parameter_bytes(w, element);
  return n;
}

std::int64_t Tape::packed_states(Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights)
    if (!w.parameter_elsewhere && w.in(part)) n += w.packed_states;
  return n;
}

std::int64_t Tape::parameter_bytes(const Weight& w, std::int64_t element) {
  const std::int64_t bytes = w.packed_bytes >= 0 ? w.packed_bytes : w.elements * (w.wide_bytes > 0 ? w.wide_bytes : element);
  return w.copied ? 2 * bytes : bytes;
}

std::int64_t Tape::travel_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights)
    if (w.in(part) && w.trainable && !w.parameter_elsewhere) n += w.travel_bytes >= 0 ? w.travel_bytes : w.elements * (w.wide_bytes > 0 ? w.wide_bytes : element);
  return n;
}

std::int64_t Tape::narrow_elements() const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += gathered_narrow(w) ? w.elements : 0;
  return n;
}

std::int64_t Tape::cast_bytes() const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.packed_bytes < 0 ? w.cast_bytes : 0;
  return n;
}

std::int64_t Tape::trainable_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.in(part) && w.trainable && !w.parameter_elsewhere ? w.elements * (w.wide_bytes > 0 ? w.wide_bytes : element) : 0;
  return n;
}

}  // namespace rehearse::strategies
