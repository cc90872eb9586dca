// What becomes of memory that the program frees. Leaves out who frees it.
#pragma once

namespace rehearse {

/// From now on freed memory stays with the process, for a program that does much the same again and again: else each round
/// asks the kernel for the same pages anew. For the whole process; with glibc only, elsewhere nothing happens. Changes no number.
void keep_freed_memory();

}  // namespace rehearse
