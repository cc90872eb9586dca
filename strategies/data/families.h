// The families of data-parallel writers, one file each; catalog.cpp chooses.
#pragma once

#include "strategies/data/data_parallel.h"

namespace rehearse::strategies {

std::unique_ptr<DataParallelWriter> make_replicated(Stage& stage);     // replicated.cpp
std::unique_ptr<DataParallelWriter> make_sharded(Stage& stage);        // sharded.cpp
std::unique_ptr<DataParallelWriter> make_zero3(Stage& stage);          // zero3.cpp
std::unique_ptr<DataParallelWriter> make_megatron_fsdp(Stage& stage);  // megatron_fsdp.cpp
std::unique_ptr<DataParallelWriter> make_one_process(Stage& stage);    // one_process.cpp

}  // namespace rehearse::strategies
