"""Host time per rank of what DeepSpeed's ZeRO-3 of 2021 does around a collective that takes a list of tensors, one per rank.

Before an all-gather it cuts the parameter into one view per rank and asks for its own rank each time; before a reduce-scatter it
cuts the gradient (deepspeedai/DeepSpeed d0b61f181 runtime/zero/partition_parameters.py, _allgather_param and _partition_gradient).
The loops here do the same calls in the same number, on the CPU; the copies that PyTorch then launches per rank are not in them.

Time is that of the thread, so that others on the machine do not matter.

Usage: python gather_lists.py [RANKS]       prints microseconds per rank, the least and the median of 15 runs
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

PART = 400   # elements


def views_of_parameter(flat, ranks, group):
    views = []
    for rank in range(ranks):
        views.append(flat.narrow(0, PART * rank, PART))
        if rank == dist.get_rank(group=group):
            views[rank].data
    return views


def views_of_gradient(gradient, ranks, _):
    views = []
    for rank in range(ranks):
        if (rank + 1) * PART <= gradient.numel():
            views.append(gradient.view(-1).narrow(0, PART * rank, PART))
    return views


def seconds(work, *arguments):
    started = time.thread_time()
    work(*arguments)
    return time.thread_time() - started


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1536
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29655", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    group = dist.new_group([0])
    tensor = torch.zeros(ranks * PART, dtype=torch.half)
    for name, work in (("gather", views_of_parameter), ("reduce-scatter", views_of_gradient)):
        runs = [seconds(work, tensor, ranks, group) * 1e6 / ranks for _ in range(18)][3:]
        print(f"{name}: {min(runs):.1f} us per rank, median {statistics.median(runs):.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
