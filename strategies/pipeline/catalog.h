// Every pipeline schedule the program knows by name. A schedule given as a table is read by table.h.
// Leaves out the schedules themselves: one file each in this folder.
#pragma once

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

extern const Catalog<PipelineSchedule> kPipelineSchedules;

}  // namespace rehearse::strategies
