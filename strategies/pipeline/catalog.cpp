#include "strategies/pipeline/catalog.h"

#include "strategies/pipeline/limits.h"

namespace rehearse::strategies {

const Catalog<PipelineSchedule> kPipelineSchedules{
    "pipeline schedule",
    {
        {"naive", "one micro-batch after the other; one stage works at a time", {make_naive, any_shape, 1}},
        {"gpipe", "all forwards, then all backwards", {make_gpipe, any_shape, 1}},
        {"1f1b",
         "alternate forward and backward, as Megatron-LM; at most p micro-batches live",
         {make_one_forward_one_backward, any_shape, 1}},
        {"pytorch-1f1b",
         "the same order with PyTorch's messages (Schedule1F1B)",
         {make_pytorch_one_forward_one_backward, at_least_one_per_stage, 1}},
        {"interleaved-1f1b",
         "1F1B over v chunks per rank, as Megatron-LM: bubble divided by v",
         {make_interleaved, interleaved_limits, 0}},
        {"pytorch-interleaved-1f1b",
         "1F1B over v chunks per rank, as PyTorch (ScheduleInterleaved1F1B)",
         {make_pytorch_interleaved, whole_rounds, 0, true}},
        {"pytorch-interleaved-zero-bubble",
         "the same with weight gradients held back (ScheduleInterleavedZeroBubble)",
         {make_pytorch_interleaved_zero_bubble, whole_rounds, 0, true}},
        {"breadth-first",
         "all micro-batches of a chunk, then the next chunk (ScheduleLoopedBFS)",
         {make_breadth_first, any_shape, 0, true}},
        {"zb-h1", "weight gradients fill the drain; memory as 1F1B", {make_zero_bubble_h1, any_shape, 1}},
        {"zb-h2", "no bubble, twice the memory of 1F1B", {make_zero_bubble_h2, any_shape, 1}},
        {"zb-1p",
         "searched for with the times of the passes; memory as 1F1B",
         {make_zero_bubble_1p, any_shape, 1, false, true}},
        {"zb-2p",
         "searched for with the times of the passes; twice the memory of 1F1B",
         {make_zero_bubble_2p, any_shape, 1, false, true}},
        {"zb-v", "two chunks per rank in a V; no bubble, memory as 1F1B", {make_zero_bubble_v, any_shape, 2, true}},
        {"dualpipe",
         "two copies of the model, fed from both ends; forward and backward overlap",
         {make_dualpipe, dualpipe_limits, 2}},
        {"dualpipev",
         "DualPipe cut in half: two chunks per rank in a V",
         {make_dualpipe_v, dualpipe_v_limits, 2, true}},
    }};

}  // namespace rehearse::strategies
