"""Asks PyTorch how many bytes an optimizer step creates and keeps; writes data/torch_optimizer.json.

A step counter is a host tensor, except in fused AdamW, where every parameter has one of 4 bytes on the device.
"foreach" and "for-loop" run on the meta device.  "fused" has no meta kernel and runs on real host tensors; its operator
list is the one a GPU runs.  Bytes are above parameters and gradients; extra peaks are above what lives before the step.
Left out: arrays of addresses that the foreach and fused GPU kernels pass to the device.
"""

import torch

from helpers import answers
from helpers.live_bytes import LiveBytes

SHAPES = [(1000, 64), (64, 256), (256,), (64, 64)]
KINDS = {"for-loop": dict(foreach=False), "foreach": dict(foreach=True), "fused": dict(fused=True)}
OPTIMIZERS = {
    "adamw": lambda parameters, kind: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, **kind),
    "adamw-no-decay": lambda parameters, kind: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0, **kind),
    "sgd": lambda parameters, kind: torch.optim.SGD(parameters, lr=1e-3, **kind),
    "sgd-decay": lambda parameters, kind: torch.optim.SGD(parameters, lr=1e-3, weight_decay=0.1, **kind),
    "sgd-momentum": lambda parameters, kind: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **kind),
}


def parameters_with_gradients(device, dtype):
    parameters = [torch.nn.Parameter(torch.ones(shape, device=device, dtype=dtype)) for shape in SHAPES]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


def tracked(run, parameters, kept=()):
    """Runs once; (bytes kept, extra peak, operators).  kept: tensors that lived before."""
    tracker = LiveBytes(parameters[0].device.type, keep_operators=True)
    tracker.ignore([*parameters, *(p.grad for p in parameters), *kept])
    with tracker:
        result = run()
        del result
        tracker.mark("end")
    operators = [line.split(" ")[0] for line in tracker.operators]
    return tracker.at("end"), tracker.peak(), list(dict.fromkeys(operators))


def case(optimizer_name, kind, dtype):
    device = "cpu" if kind == "fused" else "meta"
    parameters = parameters_with_gradients(device, dtype)
    optimizer = OPTIMIZERS[optimizer_name](parameters, KINDS[kind])
    state, first_peak, _ = tracked(optimizer.step, parameters)
    states = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    kept, second_peak, operators = tracked(optimizer.step, parameters, states)
    assert kept == 0, (optimizer_name, kind, kept)
    return dict(
        optimizer=optimizer_name, kind=kind, dtype=str(dtype).removeprefix("torch."),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters), state_bytes=state,
        first_step_extra_peak_bytes=first_peak, later_step_extra_peak_bytes=second_peak, later_step_operators=operators,
    )  # fmt: skip


def clipping(foreach, dtype):
    parameters = parameters_with_gradients("cpu", dtype)  # foreach clipping refuses meta
    kept, peak, operators = tracked(
        lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach), parameters
    )
    assert kept == 0, kept
    return dict(
        kind="foreach" if foreach else "for-loop",
        dtype=str(dtype).removeprefix("torch."),
        extra_peak_bytes=peak,
        operators=operators,
    )


def main():
    dtypes = (torch.float32, torch.bfloat16)
    answers.write(
        "torch_optimizer.json",
        {"torch": torch.__version__, "parameter_shapes": SHAPES},
        cases=[case(name, kind, dtype) for name in OPTIMIZERS for kind in KINDS for dtype in dtypes],
        clip_grad_norm=[clipping(foreach, dtype) for foreach in (False, True) for dtype in dtypes],
    )


if __name__ == "__main__":
    main()
