"""Asks torch.compile what becomes of the sums in a layer with adapters; writes data/torch_compiled_layer.json.

One pre-norm layer with a frozen base and adapters on every projection, compiled by TorchInductor for the CPU: how many
matrix products each pass calls, and the kernels that it makes beside them, by the operators that each holds.  Then: which
products a checkpoint around a layer runs once more in backward, plain and compiled, and how many products backward has where
the checkpoints, around attention and MLP or around all, are compiled with the layer.  Then: what runs of a rotary embedding
by complex numbers (torchtitan models/llama3), TorchInductor's own kernels and PyTorch's.  Then the kernels of norms of
queries with the rotation behind them, and of an output layer's cross-entropy, logits capped or not.
"""

import re

import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from helpers import answers

HIDDEN, INNER, RANK, TOKENS, HEADS = 256, 512, 8, 128, 4
PRODUCTS = ("aten::mm", "aten::addmm")


class Adapted(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.base = nn.Parameter(torch.randn(out, width, dtype=torch.bfloat16), requires_grad=False)
        self.down = nn.Linear(width, RANK, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(RANK, out, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return functional.linear(x, self.base) + 2.0 * self.up(self.down(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (Adapted(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, y):
        heads = [p(y).view(1, TOKENS, HEADS, HIDDEN // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v)]
        return self.o(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(1, TOKENS, HIDDEN))


class GatedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = Adapted(HIDDEN, INNER), Adapted(HIDDEN, INNER), Adapted(INNER, HIDDEN)

    def forward(self, y):
        return self.down(functional.silu(self.gate(y)) * self.up(y))


class Layer(nn.Module):
    def __init__(self, wrap=lambda module: module):
        super().__init__()
        self.attention, self.mlp = wrap(Attention()), wrap(GatedMlp())
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(HIDDEN), requires_grad=False) for _ in range(2))

    @staticmethod
    def norm(x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight).type_as(x)

    def forward(self, x):
        x = x + self.attention(self.norm(x, self.norms[0]))
        return x + self.mlp(self.norm(x, self.norms[1]))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)

    def forward(self, x):
        return x + self.two(functional.silu(self.one(x)))


class Counter(TorchDispatchMode):
    products = 0

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        self.products += str(operator).startswith(("aten.mm", "aten.addmm"))
        return operator(*arguments, **(keywords or {}))


def kernels(code):
    """Operators of each kernel in the order of calls, and the number of products."""
    calls = code[code.index("def call(") :]
    return [re.sub(r"_\d+$", "", name) for name in re.findall(r"^\s+cpp_fused_(\w+)\(", calls, re.M)], len(re.findall(r"extern_kernels\.(?:mm|addmm)\(", calls))


def passes_of(layer):
    """Forward's and backward's kernels and number of products."""
    layer = torch.compile(layer)
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)

    def step():
        y = layer(x)
        y.backward(torch.ones_like(y))
        return y

    _, codes = run_and_get_code(step)
    return [kernels(code) for code in codes]


def compiled_layer():
    return [{"pass": name, "products": products, "kernels": made} for name, (made, products) in zip(("forward", "backward"), passes_of(Layer()), strict=True)]


def compiled_checkpoints():
    """Products of a layer's backward where checkpoints are compiled with it."""

    def wrap(module):
        return checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT)

    rows = []
    for name, layer in (("none", Layer()), ("attention and mlp", Layer(wrap)), ("layer", wrap(Layer()))):
        torch._dynamo.reset()
        (_, forward), (_, backward) = passes_of(layer)
        rows.append({"checkpoints": name, "forward": forward, "backward": backward})
    return rows


def recomputed_products():
    rows = []
    for compiled in (False, True):
        layer = Mlp()
        if compiled:
            layer.compile()
        x = torch.randn(32, 64, requires_grad=True)
        for _ in range(2):  # the first step compiles
            y = checkpoint(layer, x, use_reentrant=False).sum()
            # Compiled products pass no dispatch mode; the profiler also counts one that the checkpoint breaks off.
            with Counter() if not compiled else profile(activities=[ProfilerActivity.CPU]) as seen:
                y.backward()
        run = sum(e.count for e in seen.key_averages() if e.key in PRODUCTS) if compiled else seen.products
        rows.append({"compiled": compiled, "of_backward": 4, "run": run})
    return rows


def complex_rotation():
    """Kernels of TorchInductor, and products that it leaves to PyTorch, of queries times complex frequencies."""

    def rotate(x, frequencies):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * frequencies.view(1, TOKENS, 1, -1)).flatten(3).type_as(x)

    torch._dynamo.reset()
    rotate = torch.compile(rotate)
    x = torch.randn(1, TOKENS, HEADS, HIDDEN // HEADS, dtype=torch.bfloat16, requires_grad=True)
    frequencies = torch.polar(torch.ones(TOKENS, HIDDEN // HEADS // 2), torch.rand(TOKENS, HIDDEN // HEADS // 2))

    def step():
        y = rotate(x, frequencies)
        y.backward(torch.ones_like(y))
        return y

    _, codes = run_and_get_code(step)
    calls = [code[code.index("def call(") :] for code in codes]
    return [{"pass": name, "kernels": len(kernels(code)[0]), "eager_products": code.count("aten.mul.Tensor(")} for name, code in zip(("forward", "backward"), calls, strict=True)]


def kernels_of(function, *inputs):
    """Forward's and backward's kernels."""
    torch._dynamo.reset()
    function = torch.compile(function)

    def step():
        y = function(*inputs)
        y.backward(torch.ones_like(y))
        return y

    _, codes = run_and_get_code(step)
    return [kernels(code)[0] for code in codes]


def normalised_rotation():
    """Norms without weights of each head, then the rotation of halves."""
    width = HIDDEN // HEADS
    x = torch.randn(1, TOKENS, HEADS, width, dtype=torch.bfloat16, requires_grad=True)
    cosine, sine = (torch.randn(1, TOKENS, 1, width // 2, dtype=torch.bfloat16) for _ in range(2))

    def rotate(x):
        first, second = (half for half in functional.rms_norm(x, (width,)).chunk(2, dim=3))
        return torch.cat([first * cosine + second * sine, second * cosine - first * sine], 3)

    return [{"pass": name, "kernels": made} for name, made in zip(("forward", "backward"), kernels_of(rotate, x), strict=True)]


def cross_entropy():
    """Kernels beside the products of an output layer and its loss in one graph."""
    x, weight = (torch.randn(rows, HIDDEN, dtype=torch.bfloat16, requires_grad=True) for rows in (TOKENS, 1024))
    targets = torch.randint(0, 1024, (TOKENS,))

    def loss(x, weight, cap):
        logits = functional.linear(x, weight)
        logits = 15 * torch.tanh(logits / 15) if cap else logits
        return functional.cross_entropy(logits.float(), targets)

    rows = []
    for cap in (False, True):
        forward, backward = kernels_of(lambda x, weight: loss(x, weight, cap), x, weight)  # noqa: B023
        rows.append({"capped": cap, "forward": forward, "backward": backward})
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    answers.write("torch_compiled_layer.json", {"torch": torch.__version__}, passes=compiled_layer(), checkpoint=recomputed_products(), compiled_checkpoints=compiled_checkpoints(), complex_rotation=complex_rotation(),
                  normalised_rotation=normalised_rotation(), cross_entropy=cross_entropy())
