"""Asks torch.compile what learned factors make a layer keep for backward; writes data/torch_learned_scales.json.

Layers of the nanoGPT kind (norms without weights, normalised and rotated queries and keys, squared ReLU) under autocast, with
vectors on their branches, with each layer's input mixed with the first one's, with a factor per head on queries, each alone and
all together.  The joint graph is cut where min_cut_rematerialization_partition cuts it, as TorchInductor's is.  Answers are in
units of a layer's input, of one layer: what eight layers keep less what four keep.
"""

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from helpers import answers
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional

HIDDEN, HEADS, KV_HEADS, INNER, SAMPLES, TOKENS = 512, 8, 4, 1024, 2, 256
WIDTH = HIDDEN // HEADS
INPUT = SAMPLES * TOKENS * HIDDEN * 2


class Cast(nn.Linear):
    def __init__(self, width, out):
        super().__init__(width, out, bias=False)

    def forward(self, x):
        return functional.linear(x, self.weight.to(x.dtype))


def normalised(x):
    return functional.rms_norm(x, (x.size(-1),))


def rotated(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines + second * sines, second * cosines - first * sines), dim=-1)


class Layer(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.scaled = scaled
        kv = KV_HEADS * WIDTH
        self.q, self.k, self.v, self.o = Cast(HIDDEN, HIDDEN), Cast(HIDDEN, kv), Cast(HIDDEN, kv), Cast(HIDDEN, HIDDEN)
        self.up, self.down = Cast(HIDDEN, INNER), Cast(INNER, HIDDEN)
        self.branches, self.mix = nn.Parameter(torch.ones(2, HIDDEN)), nn.Parameter(torch.ones(2, HIDDEN))
        self.gain = nn.Parameter(torch.ones(HEADS))

    def branch(self, x, which):
        return self.branches[which].to(x.dtype) * x if "branches" in self.scaled else x

    def attention(self, x, cosines, sines):
        q, k, v = (p(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotated(normalised(q), cosines, sines), rotated(normalised(k), cosines, sines)
        if "queries" in self.scaled:
            q = q * self.gain.to(q.dtype)[:, None, None]
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, x, first, cosines, sines):
        if "embedding" in self.scaled:
            mix = self.mix.to(x.dtype)
            x = mix[0] * x + mix[1] * first
        x = x + self.branch(self.attention(normalised(x), cosines, sines), 0)
        return x + self.branch(self.down(functional.relu(self.up(normalised(x))).square()), 1)


class Layers(nn.Module):
    def __init__(self, count, scaled):
        super().__init__()
        self.table = nn.Embedding(1024, HIDDEN, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer(scaled) for _ in range(count))

    def forward(self, ids, cosines, sines):
        x = first = normalised(self.table(ids))
        for layer in self.layers:
            x = layer(x, first, cosines, sines)
        return x


def kept(count, scaled):
    """Bytes of what forward's graph hands to backward's beside its own inputs."""
    torch._dynamo.reset()
    total = 0

    def forward(graph, _):
        nonlocal total
        outputs = next(n for n in graph.graph.nodes if n.op == "output").args[0]
        made = [n.meta["val"] for n in outputs if hasattr(n, "meta") and n.op != "placeholder"]
        total = sum(t.numel() * t.element_size() for t in made if isinstance(t, torch.Tensor))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=lambda graph, _: make_boxed_func(graph.forward), partition_fn=min_cut_rematerialization_partition)
    layers = torch.compile(Layers(count, scaled), backend=backend, fullgraph=True)
    angles = torch.randn(TOKENS, WIDTH // 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layers(torch.randint(0, 1024, (SAMPLES, TOKENS)), angles, angles)
    y.float().sum().backward()
    return total


def main():
    torch.manual_seed(0)
    cases = [[], ["branches"], ["embedding"], ["queries"], ["branches", "embedding", "queries"]]
    rows = [{"scales": scaled, "kept_per_layer": round((kept(8, scaled) - kept(4, scaled)) / 4 / INPUT, 3)} for scaled in cases]
    answers.write("torch_learned_scales.json", {"torch": torch.__version__, "unit": "a layer's input"}, kept=rows)


if __name__ == "__main__":
    main()
