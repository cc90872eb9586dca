"""Asks torch.distributed.pipelining for its schedules; writes data/torch_pipeline_schedules.json.

The schedule classes compute every rank's list of actions when they are built; they get stand-ins for stages, and no
process group.  An action is "<stage><kind><micro-batch>": F forward, B full backward, I backward of the input, W of the
weights; "(<F>;<B>)OVERLAP_F_B" runs two at once.  "compute" keeps the order only: idle slots are left out.
"with_communication" adds what the runtime inserts: SEND/RECV of activations (F) and gradients (B), UNSHARD, RESHARD
and REDUCE_GRAD for sharded parameters.
"""

import logging
from types import SimpleNamespace

import torch
import torch.distributed.pipelining.schedules as schedules

from helpers import answers

ONE_STAGE = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}
SEVERAL_STAGES = {
    "looped-bfs": schedules.ScheduleLoopedBFS,
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": schedules.ScheduleInterleavedZeroBubble,
}
V_SHAPED = {"zb-v": schedules.ScheduleZBVZeroBubble, "dualpipe-v": schedules.ScheduleDualPipeV}


def stand_ins(ranks, stages_per_rank):
    stages = ranks * stages_per_rank
    return [
        SimpleNamespace(num_stages=stages, group_size=ranks, group_rank=0, stage_index=i, is_last=False, submod=None)
        for i in range(stages_per_rank)
    ]


def texts(order, keep=lambda action: True):
    return [" ".join(str(a) for a in order[rank] if a is not None and keep(a)) for rank in sorted(order)]


def case(name, schedule_class, ranks, micro_batches, stages_per_rank):
    stages = stand_ins(ranks, stages_per_rank)
    schedule = schedule_class(stages[0] if name in ONE_STAGE else stages, micro_batches)
    row = dict(
        schedule=name, ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages_per_rank,
        compute=texts(schedule.pipeline_order, lambda a: a.is_compute_op),
    )  # fmt: skip
    if name not in ONE_STAGE:
        row["rank_of_stage"] = [schedule.stage_index_to_group_rank[i] for i in range(ranks * stages_per_rank)]
        if ranks * stages_per_rank * micro_batches <= 32:
            row["with_communication"] = texts(schedule.pipeline_order_with_comms)
    return row


def cases():
    for name, schedule_class in ONE_STAGE.items():
        for ranks, micro_batches in ((1, 2), (2, 2), (2, 4), (3, 5), (4, 4), (4, 8), (8, 16)):
            yield case(name, schedule_class, ranks, micro_batches, 1)
    for name, schedule_class in SEVERAL_STAGES.items():
        for stages_per_rank in (1, 2, 3):
            for ranks, micro_batches in ((2, 2), (2, 4), (2, 8), (3, 6), (4, 4), (4, 8), (4, 10), (8, 16)):
                yield case(name, schedule_class, ranks, micro_batches, stages_per_rank)
    for name, schedule_class in V_SHAPED.items():
        for ranks, micro_batches in ((2, 4), (2, 8), (3, 6), (4, 8), (4, 10), (8, 16), (8, 20)):
            yield case(name, schedule_class, ranks, micro_batches, 2)


def main():
    logging.disable()
    answers.write("torch_pipeline_schedules.json", {"torch": torch.__version__}, cases=cases())


if __name__ == "__main__":
    main()
