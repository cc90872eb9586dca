// The program's version: the build system's, where it tells.
// Leaves out the versions of data files, which have none: results carry hashes of the numbers.
#pragma once

#ifndef REHEARSE_VERSION
#define REHEARSE_VERSION "0.1.0"
#endif

namespace rehearse::cli {

constexpr const char* kVersion = REHEARSE_VERSION;

}  // namespace rehearse::cli
