"""GPT-2 and Llama as plain PyTorch modules with random weights: one operator per line, nothing fused by hand, so that what
a step runs and keeps is known. Leaves out training them (train_case.py)."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


@dataclass
class Shape:
    family: str  # gpt or llama
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    positions: int

    def parameters(self) -> int:
        """By hand, to check the modules with: tied embeddings and biases for gpt, neither for llama."""
        head = self.hidden // self.heads
        if self.family == "gpt":
            block = 4 * self.hidden**2 + 4 * self.hidden + 2 * self.hidden * self.ffn + self.ffn + self.hidden + 4 * self.hidden
            return self.layers * block + (self.vocab + self.positions) * self.hidden + 2 * self.hidden
        block = 2 * self.hidden**2 + 2 * self.hidden * self.kv_heads * head + 3 * self.hidden * self.ffn + 2 * self.hidden
        return self.layers * block + 2 * self.vocab * self.hidden + self.hidden


GPT2 = Shape("gpt", 12, 768, 12, 12, 3072, 50304, 1024)
SHAPES = {  # sources: config.json of the public models; gpt2's vocabulary padded to a multiple of 128
    "gpt2": GPT2,
    "gpt2-medium": Shape("gpt", 24, 1024, 16, 16, 4096, 50304, 1024),
    "gpt2-large": Shape("gpt", 36, 1280, 20, 20, 5120, 50304, 1024),
    "gpt2-xl": Shape("gpt", 48, 1600, 25, 25, 6400, 50304, 1024),
    "llama-3.2-1b-untied": Shape("llama", 16, 2048, 32, 8, 8192, 128256, 8192),
    "llama-3.2-3b-untied": Shape("llama", 28, 3072, 24, 8, 8192, 128256, 8192),
    "llama-3-8b": Shape("llama", 32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-8b-8-layers": Shape("llama", 8, 4096, 32, 8, 14336, 128256, 8192),
    "llama-8-layers": Shape("llama", 8, 2048, 32, 8, 8192, 32000, 8192),
    "tiny-gpt": Shape("gpt", 2, 64, 4, 4, 128, 512, 64),
    "tiny-llama": Shape("llama", 2, 64, 4, 2, 96, 512, 64),
}


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class GptBlock(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.heads = s.heads
        self.norm1, self.norm2 = nn.LayerNorm(s.hidden), nn.LayerNorm(s.hidden)
        self.qkv, self.proj = nn.Linear(s.hidden, 3 * s.hidden), nn.Linear(s.hidden, s.hidden)
        self.fc1, self.fc2 = nn.Linear(s.hidden, s.ffn), nn.Linear(s.ffn, s.hidden)

    def forward(self, x, cos, sin):
        b, t, h = x.shape
        q, k, v = (p.view(b, t, self.heads, h // self.heads).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(h, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, h))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.heads, s.kv_heads, s.hidden // s.heads
        self.norm1, self.norm2 = nn.RMSNorm(s.hidden), nn.RMSNorm(s.hidden)
        self.q = nn.Linear(s.hidden, s.hidden, bias=False)
        self.k = nn.Linear(s.hidden, s.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(s.hidden, s.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(s.hidden, s.hidden, bias=False)
        self.gate, self.up = nn.Linear(s.hidden, s.ffn, bias=False), nn.Linear(s.hidden, s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.hidden, bias=False)

    @staticmethod
    def rotate(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(y).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(y).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = self.rotate(q, cos[:t].to(q.dtype), sin[:t].to(q.dtype)), self.rotate(k, cos[:t].to(k.dtype), sin[:t].to(k.dtype))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """forward(ids, labels) -> mean loss. `recompute`: none, selective (keep matrix products and attention), full."""

    def __init__(self, s: Shape, recompute: str = "none"):
        super().__init__()
        self.shape, self.recompute = s, recompute
        self.embedding = nn.Embedding(s.vocab, s.hidden)
        if s.family == "gpt":
            self.positions = nn.Embedding(s.positions, s.hidden)
        self.blocks = nn.ModuleList((GptBlock if s.family == "gpt" else LlamaBlock)(s) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.hidden) if s.family == "gpt" else nn.RMSNorm(s.hidden)
        self.head = None if s.family == "gpt" else nn.Linear(s.hidden, s.vocab, bias=False)
        head_dim = s.hidden // s.heads
        angles = torch.outer(torch.arange(s.positions).float(), 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():  # as GPT-2 and Llama begin; PyTorch's own embeddings are fifty times as wide
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        if self.shape.family == "gpt":
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            if self.recompute == "none":
                x = block(x, self.cos, self.sin)
            elif self.recompute == "full":
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False, context_fn=keep_products)
        x = self.norm(x)
        logits = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))


def keep_products():
    ops = torch.ops.aten
    kept = {ops.mm.default, ops.addmm.default, ops.bmm.default, ops._scaled_dot_product_flash_attention.default,
            ops._scaled_dot_product_efficient_attention.default, ops._scaled_dot_product_cudnn_attention.default,
            ops._scaled_dot_product_flash_attention_for_cpu.default}
    return create_selective_checkpoint_contexts(
        lambda context, op, *a, **k: CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE)


def add_lora(model: Model, rank: int):
    """Freezes all weights and puts adapters beside every linear layer of the blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, child in list(block.named_children()):
            if isinstance(child, nn.Linear):
                setattr(block, name, LoraLinear(child, rank).to(child.weight.device, child.weight.dtype))
