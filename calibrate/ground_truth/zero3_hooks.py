"""What DeepSpeed's ZeRO-3 costs the host thread, next to the layers that it surrounds.

Needs a CUDA build of torch, transformers and deepspeed, but no GPU (calibrate/paper_gpu): Llama layers of a width at which nothing but Python and
dispatch takes time run with and without ZeRO-3, all weights trained or all frozen, their weights on this rank at all times
(persistent) or gathered one by one, gradients reduced in one bucket or each by itself. Differences give what a module, a gather, a gradient and
a reduction take, as multiples of the forward of a plain layer: those are what strategies/framework/data/deepspeed.yaml holds (submodule_host,
submodule_backward_host, gather_host, gathered_parameter_host, bucket_host, reduction_host), times the host time of a layer's forward under that profile, less the launches
that the simulator counts by themselves. What CUDA's driver takes is not in it.

    python calibrate/paper_gpu/run.py calibrate/ground_truth/zero3_hooks.py [--repeats N] [--ranks N]
"""

from deepspeed_host import command_line, deepspeed, llama, passes, per_layer, settings, start, torch

DEPTHS = 2, 12
PARAMETERS, LINEAR_LAYERS = 9, 7  # of a layer


def zero3(here, bucket, ahead=0):
    """Settings of ZeRO-3: all weights `here` at all times, or each gathered when its module asks for it, or many together so many elements `ahead`; a
    bucket of so many elements."""
    return settings({"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": bucket,
                     "stage3_param_persistence_threshold": 10**9 if here else 0, "stage3_prefetch_bucket_size": ahead, "stage3_max_reuse_distance": 0})


LARGE = 10**8
CONFIGURATIONS = {"plain": None, "linear": None, "here": zero3(True, LARGE), "away": zero3(False, LARGE), "together": zero3(False, LARGE, LARGE), "alone": zero3(False, 1)}
KINDS = [(frozen, kind) for frozen in (False, True) for kind in CONFIGURATIONS if not (frozen and kind == "alone" or not frozen and kind == "together")]


def modules_called():
    """Modules of a layer whose forward runs."""
    return sum(1 for m in llama(1).model.layers[0].modules() if not isinstance(m, (torch.nn.ModuleDict, torch.nn.ParameterDict)))


def main(repeats, ranks):
    start(ranks)
    times = per_layer(lambda kind, layers: passes(layers, 0, CONFIGURATIONS[kind[1]], frozen=kind[0], **({"linear": None} if kind[1] == "linear" else {})), KINDS, DEPTHS, repeats)
    layer, modules = times[False, "plain"][0], modules_called()
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {ranks} ranks: plain forward {layer:.3f} ms, backward {times[False, 'plain'][1]:.3f} ms, "
          f"of frozen weights {times[True, 'plain'][1]:.3f} ms; {modules} modules")

    def more(which, kind, than, count, frozen=True):
        extra = {call: round((times[frozen, kind][2 + which][call] - times[frozen, than][2 + which][call]) / count, 2) for call in times[frozen, kind][2]}
        return (times[frozen, kind][which] - times[frozen, than][which]) / count, {call: n for call, n in extra.items() if n}

    def tell(what, milliseconds, calls):
        print(f"{what}: {milliseconds * 1e3:.0f} us, {milliseconds / layer:.3f} plain forwards; calls {calls}")

    tell("a linear layer of DeepSpeed's, forward", *more(0, "linear", "plain", LINEAR_LAYERS))
    tell("a linear layer of DeepSpeed's, backward", *more(1, "linear", "plain", LINEAR_LAYERS))
    tell("a module, forward", *more(0, "here", "linear", modules))
    tell("a module, backward", *more(1, "here", "linear", modules))
    tell("a gather, forward", *more(0, "away", "here", PARAMETERS))
    tell("a gather, backward", *more(1, "away", "here", PARAMETERS))
    tell("a parameter gathered with many others, forward", *more(0, "together", "here", PARAMETERS))
    tell("a parameter gathered with many others, backward", *more(1, "together", "here", PARAMETERS))
    trained, calls = more(1, "here", "linear", PARAMETERS, False)
    tell("a gradient, with what its module takes", trained, calls)
    tell("a gradient", trained - more(1, "here", "linear", PARAMETERS)[0], {})
    tell("a reduction", *more(1, "alone", "away", PARAMETERS, False))


if __name__ == "__main__":
    options = command_line(20, 8).parse_args()
    main(options.repeats, options.ranks)
