// Keys of `accelerate config` that are known and not read. Source: as accelerate.cpp.
#pragma once

#include "sim/importers/importer.h"

namespace rehearse::importers {

Vocabulary accelerate_vocabulary();

}  // namespace rehearse::importers
