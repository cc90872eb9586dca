// Says what is wrong with a pipeline program: work left out or done twice, messages that do not meet,
// deadlocks. Leaves out whether it is fast.
#pragma once

#include <string>
#include <vector>

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

/// Empty when every micro-batch goes once forward and once backward through every stage of its copy of the
/// model, in order; every tensor that changes ranks is sent after it is made and received before it is used;
/// messages meet in order; and the ranks never wait in a circle. At most `limit` lines.
std::vector<std::string> problems_of(const PipelineProgram& program, std::size_t limit = 20);

/// The part of it that computations alone can break: work left out, done twice or out of order on one rank.
std::vector<std::string> problems_of_computations(const PipelineProgram& program, std::size_t limit = 20);

}  // namespace rehearse::strategies
