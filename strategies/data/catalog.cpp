// Every data-parallel strategy the program knows.
#include "strategies/data/catalog.h"

#include "strategies/data/families.h"

namespace rehearse::strategies {

const Catalog<DataParallelKind>& data_parallel_kinds() {
  static const Catalog<DataParallelKind> kinds{"data-parallel strategy", {
      {"none", "one replica, nothing to exchange", DataParallelKind::none},
      {"data-parallel", "torch.nn.DataParallel: one process; parameters are broadcast from the first GPU of a node, outputs and gradients gathered there", DataParallelKind::one_process},
      {"ddp", "full replicas; gradients are all-reduced in buckets during backward", DataParallelKind::ddp},
      {"zero1", "DeepSpeed ZeRO-1: optimizer states are sharded", DataParallelKind::zero1},
      {"zero2", "DeepSpeed ZeRO-2: gradients are sharded as well", DataParallelKind::zero2},
      {"zero3", "DeepSpeed ZeRO-3: parameters are sharded as well", DataParallelKind::zero3},
      {"fsdp1", "PyTorch FullyShardedDataParallel: flat parameters gathered per wrapped module", DataParallelKind::fsdp1},
      {"fsdp2", "PyTorch fully_shard: per-parameter shards gathered per group", DataParallelKind::fsdp2},
      {"megatron-fsdp", "Megatron-FSDP, optim_grads_params: layers gathered whole, gradients reduced after each backward into fp32 shards", DataParallelKind::megatron_fsdp},
      {"distributed-optimizer", "Megatron: gradients reduce-scattered, states sharded, parameters gathered", DataParallelKind::distributed_optimizer},
  }};
  return kinds;
}

std::unique_ptr<DataParallelWriter> make_data_parallel(Stage& stage) {
  switch (stage.strategy.data_parallel.kind) {
    case DataParallelKind::one_process:
      return make_one_process(stage);
    case DataParallelKind::zero3:
      return make_zero3(stage);
    case DataParallelKind::fsdp1:
    case DataParallelKind::fsdp2:
      return make_sharded(stage);
    case DataParallelKind::megatron_fsdp:
      return make_megatron_fsdp(stage);
    default:
      return make_replicated(stage);
  }
}

}  // namespace rehearse::strategies
