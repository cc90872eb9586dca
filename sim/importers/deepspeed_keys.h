// DeepSpeed keys that are known and not read: those that cost nothing, and those that cannot be simulated yet.
// Source: deepspeedai/DeepSpeed 0.19.5, runtime/config.py, runtime/constants.py, runtime/zero/config.py, docs "config-json".
#pragma once

#include "sim/importers/importer.h"

namespace rehearse::importers {

Vocabulary deepspeed_vocabulary();

}  // namespace rehearse::importers
