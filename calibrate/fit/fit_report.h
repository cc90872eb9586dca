// What a fit found, for people: parameters before and after, errors on rows seen and unseen, outliers, what was not used.
// Leaves out the files it writes (write_gpu.h, fit_collectives.h).
#pragma once

#include <string>

#include "calibrate/fit/fit_collectives.h"
#include "calibrate/fit/fit_copies.h"
#include "calibrate/fit/fit_host.h"
#include "calibrate/fit/fit_kernels.h"

namespace rehearse::calibrate {

std::string family_text(const FamilyFit& family);
std::string lines_text(const std::string& title, const std::vector<LinearFit>& fits, bool rates);
std::string host_text(const std::vector<HostNumber>& numbers);
std::string unused_text(const std::vector<std::pair<std::string, std::string>>& unused);

}  // namespace rehearse::calibrate
