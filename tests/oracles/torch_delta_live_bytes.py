"""Asks PyTorch how many bytes live during one step of a Qwen 3.5, whose layers mix tokens by a gated delta rule or by gated attention;
writes data/torch_delta_live_bytes.json.

As torch_live_bytes.py, with Hugging Face's own classes. Two operators of theirs are kernels of other libraries, which a CPU build
cannot run; here each makes, keeps and gives back the tensors that its library's does:

  causal_conv1d_fn               Dao-AILab/causal-conv1d, causal_conv1d_interface.py, CausalConv1dFn
  torch_chunk_gated_delta_rule   fla-org/flash-linear-attention bc3b101d, fla/ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction,
                                 with use_qk_l2norm_in_kernel, as the classes call it
"""

import torch
import transformers
from transformers.models.qwen3_5 import modeling_qwen3_5

from helpers import answers
from torch_live_bytes import case

SHAPE = dict(
    hidden_size=2048, intermediate_size=6144, num_attention_heads=8, num_key_value_heads=2, head_dim=256, vocab_size=32000,
    linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
)  # fmt: skip
CHUNK = 64


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def unit_length(x):
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


def states_of(key, value):
    batch, tokens, heads, width = value.shape
    return value.new_empty(batch, tokens // CHUNK, heads, key.shape[-1], width)


class DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, decay, beta):
        query, key, value, decay, beta = (x.contiguous() for x in (query, key, value, decay, beta))
        query, query_length = unit_length(query)
        key, key_length = unit_length(key)
        decay = torch.empty_like(decay)
        wide_key, new_value = value.new_empty(*value.shape[:3], key.shape[-1]), torch.empty_like(value)
        inverse = value.new_empty(*value.shape[:3], CHUNK)
        states, corrected = states_of(key, value), torch.empty_like(value)
        output = torch.empty_like(value)
        ctx.save_for_backward(query, query_length, key, key_length, value, decay, beta, inverse)
        return output

    @staticmethod
    def backward(ctx, grad):
        query, _, key, _, value, decay, beta, inverse = ctx.saved_tensors
        wide_key, new_value = value.new_empty(*value.shape[:3], key.shape[-1]), torch.empty_like(value)
        states, corrected = states_of(key, value), torch.empty_like(value)
        local = torch.empty_like(value)
        state_gradients, value_gradient = states_of(key, value), torch.empty_like(value)
        local = None
        query_gradient, key_gradient, wide_gradient = (torch.empty_like(wide_key) for _ in range(3))
        decay_gradient = torch.empty_like(decay)
        other_key_gradient, value_gradient = torch.empty_like(wide_key), torch.empty_like(value)
        beta_gradient, other_decay_gradient = torch.empty_like(beta), torch.empty_like(decay)
        decay_gradient = torch.empty_like(decay_gradient)
        sums = torch.empty_like(query), torch.empty_like(key)
        return torch.empty_like(sums[0]), torch.empty_like(sums[1]), value_gradient, decay_gradient, beta_gradient


def convolve(hidden_states, weight, bias=None, activation=None, **unused):
    return Convolution.apply(hidden_states, weight)


def delta_rule(query, key, value, g, beta, **unused):
    return DeltaRule.apply(query, key, value, g, beta), None


def qwen(kinds, layers, batch, sequence):
    facts = dict(model="hf-qwen3.5", kinds=kinds, layers=layers, batch=batch, sequence=sequence, precision="bf16")

    def build(count):
        words = {"D": "linear_attention", "T": "full_attention"}
        types = [words[kinds[i % len(kinds)]] for i in range(count)]
        config = transformers.Qwen3_5TextConfig(**SHAPE, num_hidden_layers=count, layer_types=types, attn_implementation="sdpa", use_cache=False)
        return transformers.Qwen3_5ForCausalLM(config).to(torch.bfloat16)

    return case(facts, build)


def cases():
    for batch, sequence in ((1, 2048), (1, 8192), (2, 1024)):
        for kinds, layers in (("D", 2), ("T", 2), ("DDDT", 8)):
            yield qwen(kinds, layers, batch, sequence)


def main():
    modeling_qwen3_5.causal_conv1d_fn = convolve
    modeling_qwen3_5.torch_chunk_gated_delta_rule = delta_rule
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    answers.write("torch_delta_live_bytes.json", versions, qwen=cases())


if __name__ == "__main__":
    main()
