#include "sim/core/freed_memory.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace rehearse {

void keep_freed_memory() {
#ifdef __GLIBC__
  // mallopt(3). Setting either also stops glibc from adapting both to what it has seen.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);   // the largest that it takes (DEFAULT_MMAP_THRESHOLD_MAX on 64-bit machines)
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
}

}  // namespace rehearse
