// What prepare_host_work() chooses from, and the parts that tests compare with arithmetic in double.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

std::unique_ptr<Work> prepare_host_memory(const Facts& parameters);
std::unique_ptr<Work> prepare_host_adam(const Facts& parameters);
std::unique_ptr<Work> prepare_file(const Facts& parameters, const std::string& directory);

/// Step number `step` (from 1) of Adam over n parameters: rate 1e-4, betas 0.9 and 0.95, epsilon 1e-8, weight decay 0.1;
/// `half` gets the upper 16 bits of each parameter.
void adam_step(float* p, float* m, float* v, const float* g, std::uint16_t* half, std::size_t n, int step);

}  // namespace rehearse::calibrate
