"""What FSDP costs the host thread per unit, next to the layers that it shards.

Needs a CUDA build of torch and transformers (with --adapters: peft), but no GPU (calibrate/paper_gpu): narrow Llama layers run plain, under FSDP1
(FullyShardedDataParallel) and FSDP2 (fully_shard), a unit per layer, in bf16 without and with mixed precision's casts; with --adapters also as PEFT's own policy
wraps them, each matrix of an adapter a unit. Prints milliseconds that a layer takes beyond the plain one, as multiples of its forward too, and the calls
made for it: what strategies/framework/data holds (unit_host, unit_backward_host) is that multiple times the host time of a layer's
forward under that profile, less the launches that the simulator counts by themselves. What CUDA's driver takes is not in it.

    python calibrate/paper_gpu/run.py calibrate/ground_truth/fsdp_host.py [--repeats N] [--ranks N] [--adapters]
"""

import functools

from paper_layers import LINEAR, command_line, llama, loss_of, per_layer, start, tell_more, tokens, torch
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy, transformer_auto_wrap_policy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

DEPTHS = 2, 12


def fsdp1(model, adapters=False, mixed=False):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    if adapters:
        from peft.utils.other import fsdp_auto_wrap_policy

        policy = fsdp_auto_wrap_policy(model)
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16) if mixed else None
    return FullyShardedDataParallel(model.float() if mixed else model, auto_wrap_policy=policy, mixed_precision=precision, use_orig_params=not adapters, device_id=0, limit_all_gathers=True)


def fsdp2(model, mixed=False):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)} if mixed else {}
    model = model.float() if mixed else model
    for layer in model.model.layers:
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    return model


WRAPPERS = {"plain": lambda model: model, "FSDP1": fsdp1, "FSDP1, mixed precision": functools.partial(fsdp1, mixed=True)}
try:
    from torch.distributed.fsdp import fully_shard as _  # since PyTorch 2.6
    WRAPPERS |= {"FSDP2": fsdp2, "FSDP2, mixed precision": functools.partial(fsdp2, mixed=True)}
except ImportError:
    pass


def passes(kind, layers, adapters):
    model = llama(layers, adapters)
    if kind == "FSDP1 as PEFT wraps":
        model = fsdp1(model, adapters=True)
    elif kind != "plain":
        model = WRAPPERS[kind](model)
    batch = tokens()
    return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())


def main(repeats, ranks, adapters):
    start(ranks)
    kinds = ["plain", "FSDP1 as PEFT wraps"] if adapters else list(WRAPPERS)
    times = per_layer(lambda kind, layers: passes(kind, layers, len(LINEAR) if adapters else 0), kinds, DEPTHS, repeats)
    print(f"torch {torch.__version__}, {ranks} ranks: plain forward {times['plain'][0]:.3f} ms, backward {times['plain'][1]:.3f} ms")
    tell_more(times, kinds[1:])


if __name__ == "__main__":
    parser = command_line(20, 8)
    parser.add_argument("--adapters", action="store_true")
    options = parser.parse_args()
    main(options.repeats, options.ranks, options.adapters)
