// Columns of a row of a table of measured runs as the scenario's own values: shapes, precision, sharding, schedule.
// Leaves out what a row does not state (measured_scenario.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/model/description.h"
#include "sim/scenario/measured_row.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::scenario {

/// Throws NotSimulated for counts that no job has, which would overflow further on or divide by zero.
void check_counts(const config::CsvRow& row);

/// torchtitan's asynchronous tensor parallelism has no column of its own.
bool asynchronous_tensor(const config::CsvRow& row);

/// The release that a row's source, or else its note, names: "26.04.01 NeMo Container" is "26.04.01", "NeMo 25.04" is "25.04"; "": none.
std::string release_of(const config::CsvRow& row);

/// The named model, or one of the row's shapes. Throws NotSimulated where there is neither.
model::ModelDescription model_of(const config::CsvRow& row, const std::string& profile, std::vector<std::string>& notes);

/// Throw NotSimulated for words that nobody here knows. `data`: data-parallel degree.
strategies::Precision precision_of(const std::string& word);
strategies::DataParallelKind kind_of(const std::string& word, const strategies::FrameworkProfile& profile, int data);

/// The schedule by its name in the row; without one, by the number of chunks.
strategies::Pipeline pipeline_of(const config::CsvRow& row, int stages, std::int64_t layers, std::vector<std::string>& notes);

/// Data-parallel ranks of a test of Megatron's CI whose global batch is smaller than its machine: it runs on a part of it
/// (tests/functional_tests, model_config.yaml of gpt3_mcore_reruns_resume_check_grads: "DP=1", GPUS_PER_NODE: 1).
std::optional<std::int64_t> ranks_of_test(const config::CsvRow& row, std::int64_t ranks);

}  // namespace rehearse::scenario
