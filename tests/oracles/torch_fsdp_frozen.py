"""Asks PyTorch's FSDP1 what outlives a recomputed layer's backward; writes data/torch_fsdp_frozen.json.

Layers with a frozen base and a trained adapter, wrapped as huggingface/peft's policy wraps them (each adapter a unit of
its own), recomputed by torch.utils.checkpoint, around a layer's unit or inside it; two processes, gloo, CPU.  When a layer's output gradient arrives: how
many layer inputs and how many output gradients of layers above it still live.
"""

import gc
import os
import tempfile
import weakref

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

from helpers import answers

LAYERS, WIDTH, RANKS = 6, 64, 2


class Layer(nn.Module):
    def __init__(self, frozen: bool):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(not frozen)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        self.seen = None  # called with the gradient of the output

    def forward(self, x):
        y = x + torch.tanh(self.base(x) + self.up(self.down(x)))
        if torch.is_grad_enabled():
            y.register_hook(self.seen)
        return y


class Checkpointed(nn.Module):
    """As checkpoint_wrapper makes it."""

    def __init__(self, layer, reentrant):
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


class Model(nn.Module):
    def __init__(self, layers, reentrant, inside):
        super().__init__()
        self.layers, self.reentrant, self.inside, self.inputs = nn.ModuleList(layers), reentrant, inside, []

    def forward(self, x):
        self.inputs = []
        for layer in self.layers:
            self.inputs.append(weakref.ref(x.untyped_storage()))
            x = layer(x) if self.inside else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def alive(references):
    return sum(reference() is not None for reference in references)


def rank(number, store, cases, file):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=RANKS)
    gc.disable()  # what only Python's collector would find is there until it happens to run
    rows = []
    for sharded, frozen, reentrant, inside in cases:

        def wrap(module):
            device = torch.device("cpu")
            return FullyShardedDataParallel(module, device_id=device, use_orig_params=True) if sharded else module  # noqa: B023

        layers = [Layer(frozen) for _ in range(LAYERS)]
        for layer in layers:
            layer.down, layer.up = wrap(layer.down), wrap(layer.up)
        model = Model([wrap(Checkpointed(layer, reentrant) if inside else layer) for layer in layers], reentrant, inside)
        whole = wrap(model)
        for _ in range(2):  # the second step counts
            gradients, inputs_alive, gradients_alive = [], [], []

            def seen(gradient):
                inputs_alive.append(alive(model.inputs))  # noqa: B023
                gradients_alive.append(alive(gradients))  # noqa: B023
                gradients.append(weakref.ref(gradient.untyped_storage()))  # noqa: B023

            for layer in layers:
                layer.seen = seen
            whole(torch.randn(32, WIDTH, requires_grad=True)).sum().backward()
            whole.zero_grad()
        rows.append(
            dict(
                sharded=sharded, frozen=frozen, reentrant=reentrant, inside=inside, layers=LAYERS,
                inputs_alive=inputs_alive, gradients_alive=gradients_alive, inputs_alive_after=alive(model.inputs[1:]),
            )  # fmt: skip
        )
    torch.distributed.destroy_process_group()
    if number == 0:
        answers.write(file, {"torch": torch.__version__}, cases=rows)


def main():
    cases = [(False, True, True, False), (True, True, True, False), (True, False, True, False), (True, True, False, False), (True, True, True, True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = (os.path.join(folder, "store"), cases, "torch_fsdp_frozen.json")
        torch.multiprocessing.spawn(rank, args=arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
