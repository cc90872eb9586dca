"""What DeepSpeed's ZeRO-3 costs the host thread per rank of the group that shards: lists of shards, which it walks for each parameter and each gradient.

Needs a CUDA build of torch and deepspeed, but no GPU (calibrate/paper_gpu). Times two functions by themselves, over groups of several sizes: the wait for a gather
of several parameters (AllGatherCoalescedHandle.wait: each rank's part of each parameter is cut out and marked as used), and the reduction of several
gradients (reduce_scatter_coalesced: each is cut into the ranks' parts). Prints what a parameter and a gradient more take, its share per rank
by least squares, and both as multiples of a plain Llama layer's forward: strategies/framework/data/deepspeed.yaml holds that times the host time
of a layer's forward (gathered_part_host, gradient_part_host).

    python calibrate/paper_gpu/run.py calibrate/ground_truth/zero3_ranks.py [--repeats N]
"""

import statistics
import time
from types import SimpleNamespace

from deepspeed_host import command_line, deepspeed, llama, loss_of, start, tokens, torch
from deepspeed.runtime.comm.coalesced_collectives import reduce_scatter_coalesced
from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus

RANKS = 2, 8, 32, 64, 128, 256
FEW, MANY = 2, 10  # parameters or gradients at once
SHARD = 16  # elements of a parameter on a rank


def seconds(call, repeats):
    call()
    runs = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        runs.append(time.process_time() - begin)
    return statistics.median(runs)


def gather(count, ranks):
    flat = torch.empty(count * SHARD * ranks, device="cuda", dtype=torch.bfloat16)
    parts = [flat.narrow(0, rank * count * SHARD, count * SHARD) for rank in range(ranks)]
    status = ZeroParamStatus.INFLIGHT

    def parameter():
        return SimpleNamespace(ds_status=status, ds_tensor=SimpleNamespace(ds_numel=SHARD), ds_numel=SHARD * ranks, ds_shape=(SHARD, ranks), data=None)

    def call():
        AllGatherCoalescedHandle(allgather_handle=SimpleNamespace(wait=lambda: None), params=[parameter() for _ in range(count)], partitions=parts, world_size=ranks).wait()

    return call


def reduction(count, ranks):
    group = torch.distributed.new_group(range(ranks))
    gradients = [torch.empty(SHARD * ranks, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    return lambda: reduce_scatter_coalesced(gradients, group)


def slope(points):
    mean_x, mean_y = (statistics.mean(values) for values in zip(*points))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def main(repeats):
    start(max(RANKS))
    deepspeed.comm.init_distributed(dist_backend="nccl", dist_init_required=False, verbose=False)
    model, batch = llama(12), tokens()
    less = llama(2)
    for made, name in ((gather, "a parameter gathered with others"), (reduction, "a gradient reduced with others")):
        points, layers = [], []
        for ranks in RANKS:
            each = (seconds(made(MANY, ranks), repeats) - seconds(made(FEW, ranks), repeats)) / (MANY - FEW)
            layers.append((seconds(lambda: loss_of(model, batch), repeats) - seconds(lambda: loss_of(less, batch), repeats)) / 10)
            points.append((ranks, each))
        layer = statistics.median(layers)
        print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}; plain forward {layer * 1e3:.3f} ms")
        print(f"{name}: " + ", ".join(f"{each * 1e6:.0f} us of {ranks} ranks" for ranks, each in points) + f"; {slope(points) * 1e6:.2f} us per rank, {slope(points) / layer:.5f} plain forwards")


if __name__ == "__main__":
    main(command_line(30).parse_args().repeats)
