"""Two transformers written out, so that every operator and every saved tensor can be named.

Plain Llama: RMSNorm, grouped-query attention with rotary embedding, SwiGLU, no biases, separate output head,
loss in fp32.  Plain GPT: LayerNorm, one qkv projection, GELU, biases, learned positions, tied head, loss in the
logits' dtype; LayerNorm and GELU (by tanh) are an operator each, or `spelled` in many.  Labels come shifted.  No cache, no attention mask.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    positions: int
    dropout: float = 0.0
    spelled: bool = False


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class PlainLlamaBlock(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.heads, s.kv_heads, s.hidden // s.heads
        self.norm1 = nn.RMSNorm(s.hidden)
        self.q = nn.Linear(s.hidden, s.heads * self.head_dim, bias=False)
        self.k = nn.Linear(s.hidden, s.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(s.hidden, s.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(s.heads * self.head_dim, s.hidden, bias=False)
        self.norm2 = nn.RMSNorm(s.hidden)
        self.gate = nn.Linear(s.hidden, s.ffn, bias=False)
        self.up = nn.Linear(s.hidden, s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.hidden, bias=False)

    def attention(self, x, cos, sin):
        batch, sequence, _ = x.shape
        q = self.q(x).view(batch, sequence, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(batch, sequence, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(batch, sequence, self.kv_heads, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.o(y.transpose(1, 2).reshape(batch, sequence, -1))

    def mlp(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class PlainLlama(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.hidden)
        self.blocks = nn.ModuleList(PlainLlamaBlock(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden)
        self.head = nn.Linear(s.hidden, s.vocabulary, bias=False)
        # Tables in the model's dtype, one row per position; they exist before the step and need no gradient.
        self.register_buffer("cos", torch.empty(s.positions, s.hidden // s.heads))
        self.register_buffer("sin", torch.empty(s.positions, s.hidden // s.heads))

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class SpelledLayerNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.weight * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.bias


def spelled_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def layer_norm(s: Shape):
    return SpelledLayerNorm(s.hidden) if s.spelled else nn.LayerNorm(s.hidden)


class PlainGptBlock(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.heads, self.head_dim, self.dropout = s.heads, s.hidden // s.heads, s.dropout
        self.norm1 = layer_norm(s)
        self.qkv = nn.Linear(s.hidden, 3 * s.hidden)
        self.proj = nn.Linear(s.hidden, s.hidden)
        self.norm2 = layer_norm(s)
        self.gelu = spelled_gelu if s.spelled else F.gelu
        self.fc1 = nn.Linear(s.hidden, s.ffn)
        self.fc2 = nn.Linear(s.ffn, s.hidden)

    def attention(self, x):
        batch, sequence, hidden = x.shape
        heads = (batch, sequence, self.heads, self.head_dim)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(hidden, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, sequence, hidden))

    def forward(self, x):
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout)
        return x + F.dropout(self.fc2(self.gelu(self.fc1(self.norm2(x)))), self.dropout)


class PlainGpt(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.hidden)
        self.positions = nn.Embedding(s.positions, s.hidden)
        self.blocks = nn.ModuleList(PlainGptBlock(s) for _ in range(s.layers))
        self.norm = layer_norm(s)
        self.dropout = s.dropout
        self.register_buffer("position_ids", torch.arange(s.positions))

    def forward(self, ids, labels):
        x = self.embedding(ids) + self.positions(self.position_ids[: ids.shape[1]])
        x = F.dropout(x, self.dropout)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
