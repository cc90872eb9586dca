"""What DeepSpeed's ZeRO-2 costs the host thread in backward, per trained parameter.

Needs a CUDA build of torch, transformers, peft and deepspeed, but no GPU (calibrate/paper_gpu): Llama layers with adapters, of a width at which nothing but Python and
dispatch takes time, run with and without ZeRO-2. Each trained parameter's gradient has a hook that copies it into a bucket
and remembers it, and the buckets' reduction cuts it into the ranks' partitions (runtime/zero/stage_1_and_2.py). Prints milliseconds
per trained parameter and micro-batch, and the same as a multiple of the forward of a plain layer without adapters, which is what
strategies/framework/data/deepspeed.yaml holds (gradient_host), times the host time of a layer's forward under that profile.

    python calibrate/paper_gpu/run.py calibrate/ground_truth/zero2_hooks.py [--repeats N]
"""

from deepspeed_host import LINEAR, command_line, deepspeed, passes, per_layer, settings, start, torch

DEPTHS = 2, 10
ZERO2 = settings({"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 2e8})


def main(repeats):
    start()
    kinds = [(False, 0)] + [(sharded, adapters) for sharded in (False, True) for adapters in (4, len(LINEAR))]
    times = per_layer(lambda kind, layers: passes(layers, kind[1], ZERO2 if kind[0] else None), kinds, DEPTHS, repeats)
    layer = times[False, 0][0]
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}: plain forward {layer:.3f} ms per layer")
    for adapters in (4, len(LINEAR)):
        hooks = (times[True, adapters][1] - times[False, adapters][1]) / (2 * adapters)
        print(f"{2 * adapters} trained parameters a layer: {hooks:.4f} ms each in backward, {hooks / layer:.3f} plain forwards")


if __name__ == "__main__":
    main(command_line(25).parse_args().repeats)
