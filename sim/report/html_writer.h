// The answer of `rehearse run` as one HTML page that needs nothing else: verdict, where the step goes, streams and memory
// over the step as drawings. Leaves out running it: simulate with `trace` and `timeline` on.
#pragma once

#include <string>

#include "sim/report/accounts.h"

namespace rehearse::report {

/// Precondition: result.trace and the memory timelines were asked for. `remedy`: what would make it fit, or nothing.
std::string write_html(const Scenario& scenario, const Result& result, const std::string& remedy = {});

}  // namespace rehearse::report
