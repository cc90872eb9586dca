// Parts of the Megatron reader, one file each.
#pragma once

#include "sim/importers/importer.h"
#include "sim/importers/megatron.h"

namespace rehearse::importers {

Vocabulary megatron_vocabulary(bool dump);
std::span<const Unsimulated> megatron_unsimulated();
/// Sizes and style of the model as keys below `model`.
void read_megatron_model(Importer& in, const MegatronLayer& layer);
/// Degrees, stages, distributed optimizer, and the machines that a launcher's arguments name.
void read_megatron_parallelism(Importer& in);
/// Kernels that Megatron-Core and Transformer Engine choose otherwise than the framework profile: keys below `profile`.
void read_megatron_kernels(Importer& in, const MegatronLayer& layer);
/// Variables of the job's environment that PyTorch and CUDA read.
void read_megatron_environment(Importer& in);

}  // namespace rehearse::importers
