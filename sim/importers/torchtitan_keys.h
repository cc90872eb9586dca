// torchtitan keys that are known and not read. Source: as torchtitan.cpp.
#pragma once

#include "sim/importers/importer.h"

namespace rehearse::importers {

Vocabulary torchtitan_vocabulary();

}  // namespace rehearse::importers
