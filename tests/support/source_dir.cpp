#include "tests/support/source_dir.h"

namespace rehearse {

std::filesystem::path source_dir() { return REHEARSE_SOURCE_DIR; }

}  // namespace rehearse
