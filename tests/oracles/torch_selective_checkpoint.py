"""Asks torch.compile what a selective checkpoint that is compiled with its layer keeps; writes data/torch_selective_checkpoint.json.

One pre-norm Llama layer under torchtitan's policy by operators (distributed/activation_checkpoint.py: every second aten.mm,
attention, reduce_scatter_tensor), whole and on one of two tensor-parallel ranks with sequence parallelism (a process group
that only pretends): bytes that autograd saves, weights left out, by shape and format.
"""

import warnings
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from helpers import answers

HIDDEN, INNER, TOKENS, HEADS, KV_HEADS, RANKS = 256, 896, 128, 4, 2, 2
PRODUCT = torch.ops.aten.mm.default
LISTED = {PRODUCT, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}


def product(width, out):
    return nn.Linear(width, out, bias=False, dtype=torch.bfloat16)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (product(HIDDEN, out) for out in (HIDDEN, HIDDEN * KV_HEADS // HEADS, HIDDEN * KV_HEADS // HEADS, HIDDEN))

    def forward(self, y):
        q, k, v = (p(y).view(1, TOKENS, -1, HIDDEN // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        return self.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, TOKENS, -1))


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = product(HIDDEN, INNER), product(HIDDEN, INNER), product(INNER, HIDDEN)

    def forward(self, z):
        return self.down(functional.silu(self.gate(z)) * self.up(z))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), GatedMlp()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x):
        h = x + self.attention(self.norms[0](x))
        return h + self.mlp(self.norms[1](h))


def policy():
    products = defaultdict(int)

    def choose(context, operator, *_, **__):
        products[context.is_recompute] += operator == PRODUCT
        kept = operator in LISTED and not (operator == PRODUCT and products[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)


def split(layer):
    entry = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {"norms.0": SequenceParallel(), "norms.1": SequenceParallel(), "attention": entry, "mlp": entry}
    plan |= {name: ColwiseParallel() for name in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.o", "mlp.down")}
    return parallelize_module(layer, init_device_mesh("cpu", (RANKS,)), plan)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def saved(ranks):
    layer = split(Layer()) if ranks > 1 else Layer()
    layer = torch.compile(checkpoint_wrapper(layer, context_fn=policy, preserve_rng_state=False), fullgraph=True)
    x = torch.randn(1, TOKENS // ranks, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    weights = {local(w).untyped_storage().data_ptr() for w in layer.parameters()}
    found = []

    def pack(tensor):
        if local(tensor).untyped_storage().data_ptr() not in weights:
            found.append(local(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    return {
        "tensor": ranks,
        "tensors": [f"{str(t.dtype).removeprefix('torch.')} {' x '.join(map(str, t.shape))}" for t in found],
        "bytes": sum(t.numel() * t.element_size() for t in found),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    about = {"torch": torch.__version__, "layer": {"hidden": HIDDEN, "inner": INNER, "tokens": TOKENS, "heads": HEADS, "kv_heads": KV_HEADS}}
    answers.write("torch_selective_checkpoint.json", about, compiled=[saved(1), saved(RANKS)])
