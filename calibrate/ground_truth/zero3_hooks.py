"""What DeepSpeed's ZeRO-3 hooks cost the host thread, next to the layers they surround.

Needs torch, transformers and deepspeed (with --adapters: peft), but no GPU: Llama layers of a width at which nothing but
Python and dispatch takes time run with and without ZeRO-3 on the CPU. Prints, per layer and micro-batch, milliseconds of
the plain layer and of the hooks, forward and backward, and the hooks' share per module as a multiple of the forward of a
plain layer without adapters. That multiple is what strategies/framework/data/deepspeed.yaml holds (submodule_host,
submodule_backward_host), times the host time of a layer's forward under that profile. One rank gathers nothing; of several
(--ranks) this is one whose collectives do nothing. Their launches, which the profile counts by themselves, are left out, and
so is what streams and events cost on a GPU. Time is that of the thread, so that others on the machine do not matter.

Gradients leave in buckets, here one for all layers. --alone reduces every gradient by itself, as small buckets (transformers' "auto") do: prints what one
reduction takes beyond, which holds for reduction_host less the kernels of a reduction.

DeepSpeed before 0.14 imports intel_extension_for_pytorch and oneccl_bindings_for_pytorch on a CPU; empty modules do.

    python calibrate/ground_truth/zero3_hooks.py [--repeats N] [--ranks N] [--adapters | --alone]
"""

import argparse

from deepspeed_host import LINEAR, deepspeed, llama, passes, per_layer, settings, start, torch

DEPTHS = 2, 14
ZERO3 = settings({"stage": 3, "stage3_param_persistence_threshold": 0})
ALONE = settings({"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 1})


def modules_called(adapters):
    """Modules of a layer whose forward runs: PEFT's containers are never called."""
    model = llama(1, adapters)
    layers = (model.get_base_model() if adapters else model).model.layers
    return sum(1 for m in layers[0].modules() if not isinstance(m, (torch.nn.ModuleDict, torch.nn.ParameterDict)))


def main_alone(repeats, ranks):
    start(ranks)
    configs = {"plain": None, "zero3": ZERO3, "alone": ALONE}
    times = per_layer(lambda kind, layers: passes(layers, 0, configs[kind], "eager"), list(configs), DEPTHS, repeats)
    reductions = sum(1 for _ in llama(1).model.layers[0].parameters())
    more, layer = times["alone"][1] - times["zero3"][1], times["plain"][0]
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {ranks} ranks: plain forward {layer:.3f} ms")
    print(f"{reductions} reductions in a layer instead of none: {more:.3f} ms, {more / reductions / layer:.3f} plain forwards each")


def main(repeats, ranks, adapters):
    start(ranks)
    kinds = {"plain": 0, "zero3": adapters} | ({"adapted": adapters} if adapters else {})
    times = per_layer(lambda kind, layers: passes(layers, kinds[kind], ZERO3 if kind == "zero3" else None, "eager"), list(kinds), DEPTHS, repeats)
    modules, (layer, backward) = modules_called(adapters), times["plain"]
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {ranks} ranks: {modules} modules in a layer, plain forward {layer:.3f} ms, backward {backward:.3f} ms")
    for which, name in enumerate(("forward", "backward")):
        hooks = times["zero3"][which] - times["adapted" if adapters else "plain"][which]
        print(f"{name}: hooks {hooks:.3f} ms per layer, {hooks / modules / layer:.3f} plain forwards per module")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--adapters", action="store_true")
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    if options.alone:
        main_alone(options.repeats, options.ranks)
    else:
        main(options.repeats, options.ranks, len(LINEAR) if options.adapters else 0)
