#!/usr/bin/env python3
"""Counts the parameters of public models with the transformers library, as answers for the model room's tests.

Builds each configuration on the meta device (no weights, no network), writes its config.json to data/hf/ in the form
the library itself saves, and the counts to data/transformers_parameters.json. Tied matrices count once, because
torch's Module.parameters() yields a shared tensor once. Buffers do not count. Multi-token-prediction layers do not
count: the library's DeepSeek classes drop them.

Run with any Python that has torch and transformers:  python tests/oracles/transformers_parameters.py
"""

import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
CONFIGS = HERE / "data" / "hf"
ANSWERS = HERE / "data" / "transformers_parameters.json"

# Module-path fragments that identify a part; the first that matches wins. Names differ from family to family.
PARTS = [
    ("router", ["mixer.gate.weight", "latent_proj", ".router.weight", ".router.bias", "mlp.gate.weight", "block_sparse_moe.gate.", "feed_forward.router.",
                "shared_expert_gate", "moe_statics"]),
    ("shared_experts", ["shared_expert", "shared_mlp"]),
    ("experts", [".experts."]),
    ("delta_net", ["linear_attn."]),
    ("state_space", [".mamba.", "conv1d", "mixer.in_proj", "mixer.out_proj", "A_log", "mixer.D", "dt_bias", "mixer.norm"]),
    ("norms", ["norm", "ln_"]),
    ("position", ["wpe", "embed_positions"]),
    ("embedding", ["embed_tokens", "model.embeddings.weight", "wte", "embed_in", "word_embeddings", "project_in"]),
    ("head", ["lm_head", "embed_out", "project_out"]),
    ("attention", ["attn", "attention", "mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"]),
    ("mlp", ["mlp", "mixer.up_proj", "mixer.down_proj", "fc1", "fc2", "feed_forward", ".ffn."]),
]


def llama(hidden, ffn, layers, heads, kv_heads, vocab, **more):
    return dict(hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, vocab_size=vocab, **more)


def hybrid(pattern, hidden, ffn, heads, kv_heads, **more):
    kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    return dict(layers_block_type=[kinds[c] for c in pattern], hidden_size=hidden, intermediate_size=ffn, num_attention_heads=heads,
                num_key_value_heads=kv_heads, **more)


def granite_hybrid(layers):
    return ["full_attention" if i % 10 == 5 else "linear_attention" for i in range(layers)]


def gpt2(hidden, layers, heads):
    return dict(n_embd=hidden, n_layer=layers, n_head=heads)


def opt(hidden, ffn, layers, heads, **more):
    return dict(hidden_size=hidden, ffn_dim=ffn, num_hidden_layers=layers, num_attention_heads=heads, **more)


def neox(hidden, ffn, layers, heads, vocab, **more):
    return dict(hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
                vocab_size=vocab, **more)


def bloom(hidden, layers, heads):
    return dict(hidden_size=hidden, n_layer=layers, n_head=heads, vocab_size=250880)


def qwen_moe(hidden, ffn, layers, heads, kv_heads, experts, expert_ffn, **more):
    return llama(hidden, ffn, layers, heads, kv_heads, 151936, num_experts=experts, num_experts_per_tok=8,
                 moe_intermediate_size=expert_ffn, tie_word_embeddings=False, **more)


def deepseek(hidden, ffn, layers, heads, vocab, experts, shared, top_k, expert_ffn, q_lora, dense_layers, **more):
    return llama(hidden, ffn, layers, heads, heads, vocab, n_routed_experts=experts, n_shared_experts=shared,
                 num_experts_per_tok=top_k, moe_intermediate_size=expert_ffn, q_lora_rank=q_lora, kv_lora_rank=512,
                 qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=dense_layers,
                 tie_word_embeddings=False, **more)


def gpt_oss(layers, experts):
    return llama(2880, 2880, layers, 64, 8, 201088, head_dim=64, num_local_experts=experts, num_experts_per_tok=4)


def mpt(hidden, layers, heads, vocab):
    return dict(d_model=hidden, n_layers=layers, n_heads=heads, vocab_size=vocab)


def glm_moe(hidden, ffn, layers, dense_layers, experts, expert_ffn, **more):
    return llama(hidden, ffn, layers, 96, 8, 151552, head_dim=128, attention_bias=True, n_routed_experts=experts,
                 num_experts_per_tok=8, moe_intermediate_size=expert_ffn, n_shared_experts=1,
                 first_k_dense_replace=dense_layers, **more)


MODELS = {
    "llama-2-7b": ("llama", llama(4096, 11008, 32, 32, 32, 32000)),
    "llama-2-13b": ("llama", llama(5120, 13824, 40, 40, 40, 32000)),
    "llama-2-70b": ("llama", llama(8192, 28672, 80, 64, 8, 32000)),
    "llama-3-8b": ("llama", llama(4096, 14336, 32, 32, 8, 128256)),
    "llama-3-70b": ("llama", llama(8192, 28672, 80, 64, 8, 128256)),
    "llama-3.1-405b": ("llama", llama(16384, 53248, 126, 128, 8, 128256)),
    "llama-3.2-1b": ("llama", llama(2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True)),
    "llama-3.2-3b": ("llama", llama(3072, 8192, 28, 24, 8, 128256, head_dim=128, tie_word_embeddings=True)),
    "llama-biased": ("llama", llama(1024, 2816, 4, 16, 4, 32000, attention_bias=True, mlp_bias=True)),
    "tinyllama-1.1b": ("llama", llama(2048, 5632, 22, 32, 4, 32000)),
    "mistral-7b": ("mistral", llama(4096, 14336, 32, 32, 8, 32000, sliding_window=4096)),
    "mistral-nemo": ("mistral", llama(5120, 14336, 40, 32, 8, 131072, head_dim=128, sliding_window=None)),
    "mixtral-8x7b": ("mixtral", llama(4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2)),
    "mixtral-8x22b": ("mixtral", llama(6144, 16384, 56, 48, 8, 32000, num_local_experts=8, num_experts_per_tok=2)),
    "qwen2-7b": ("qwen2", llama(3584, 18944, 28, 28, 4, 152064)),
    "qwen2.5-0.5b": ("qwen2", llama(896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True)),
    "qwen2.5-32b": ("qwen2", llama(5120, 27648, 64, 40, 8, 152064)),
    "qwen3-0.6b": ("qwen3", llama(1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True)),
    "qwen3-4b": ("qwen3", llama(2560, 9728, 36, 32, 8, 151936, head_dim=128, tie_word_embeddings=True)),
    "qwen3-8b": ("qwen3", llama(4096, 12288, 36, 32, 8, 151936, head_dim=128)),
    "qwen3-32b": ("qwen3", llama(5120, 25600, 64, 64, 8, 151936, head_dim=128)),
    "qwen3-30b-a3b": ("qwen3_moe", qwen_moe(2048, 6144, 48, 32, 4, 128, 768, head_dim=128)),
    "qwen3-235b-a22b": ("qwen3_moe", qwen_moe(4096, 12288, 94, 64, 4, 128, 1536, head_dim=128)),
    "qwen3-moe-sparse-step": ("qwen3_moe", qwen_moe(512, 1536, 9, 8, 4, 16, 192, head_dim=64, decoder_sparse_step=2,
                                                    mlp_only_layers=[3])),
    "qwen3-next-80b-a3b": ("qwen3_next", {}),
    "qwen3.5-35b-a3b": ("qwen3_5_moe_text", {}),
    "qwen3.5-defaults": ("qwen3_5_text", {}),
    "qwen3.5-odd": ("qwen3_5_text", llama(512, 1536, 6, 4, 1, 4096, head_dim=128, linear_num_key_heads=4, linear_num_value_heads=12, linear_key_head_dim=64,
                                          linear_value_head_dim=96, linear_conv_kernel_dim=3, tie_word_embeddings=True,
                                          layer_types=["full_attention", "linear_attention"] * 3)),
    "qwen2-57b-a14b": ("qwen2_moe", qwen_moe(3584, 18944, 28, 28, 4, 64, 2560, shared_expert_intermediate_size=20480)),
    "gemma-2b": ("gemma", llama(2048, 16384, 18, 8, 1, 256000, head_dim=256)),
    "gemma-7b": ("gemma", llama(3072, 24576, 28, 16, 16, 256000, head_dim=256)),
    "gemma-2-2b": ("gemma2", llama(2304, 9216, 26, 8, 4, 256000, head_dim=256)),
    "gemma-2-9b": ("gemma2", llama(3584, 14336, 42, 16, 8, 256000, head_dim=256)),
    "gemma-2-27b": ("gemma2", llama(4608, 36864, 46, 32, 16, 256000, head_dim=128)),
    "gemma-3-1b": ("gemma3_text", llama(1152, 6912, 26, 4, 1, 262144, head_dim=256, sliding_window=512)),
    "gemma-3-27b": ("gemma3_text", llama(5376, 21504, 62, 32, 16, 262208, head_dim=128, sliding_window=1024)),
    "gpt2": ("gpt2", gpt2(768, 12, 12)),
    "gpt2-medium": ("gpt2", gpt2(1024, 24, 16)),
    "gpt2-large": ("gpt2", gpt2(1280, 36, 20)),
    "gpt2-xl": ("gpt2", gpt2(1600, 48, 25)),
    "pythia-1.4b": ("gpt_neox", neox(2048, 8192, 24, 16, 50304)),
    "pythia-6.9b": ("gpt_neox", neox(4096, 16384, 32, 32, 50432)),
    "gpt-neox-20b": ("gpt_neox", neox(6144, 24576, 44, 64, 50432)),
    "falcon-rw-1b": ("falcon", dict(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, vocab_size=50304,
                                    alibi=True, bias=True, multi_query=False, new_decoder_architecture=False,
                                    parallel_attn=False)),
    "falcon-7b": ("falcon", dict(hidden_size=4544, num_hidden_layers=32, num_attention_heads=71, vocab_size=65024,
                                 alibi=False, bias=False, multi_query=True, new_decoder_architecture=False,
                                 parallel_attn=True)),
    "falcon-40b": ("falcon", dict(hidden_size=8192, num_hidden_layers=60, num_attention_heads=128, num_kv_heads=8,
                                  vocab_size=65024, alibi=False, bias=False, new_decoder_architecture=True,
                                  parallel_attn=True)),
    "falcon-180b": ("falcon", dict(hidden_size=14848, num_hidden_layers=80, num_attention_heads=232, num_kv_heads=8,
                                   vocab_size=65024, alibi=False, bias=False, new_decoder_architecture=True,
                                   parallel_attn=True)),
    "falcon2-11b": ("falcon", dict(hidden_size=4096, num_hidden_layers=60, num_attention_heads=32, num_kv_heads=8,
                                   vocab_size=65024, alibi=False, bias=False, new_decoder_architecture=True,
                                   parallel_attn=True, num_ln_in_parallel_attn=1, ffn_hidden_size=16384)),
    "opt-350m": ("opt", opt(1024, 4096, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False)),
    "opt-1.3b": ("opt", opt(2048, 8192, 24, 32)),
    "opt-66b": ("opt", opt(9216, 36864, 64, 72)),
    "opt-175b": ("opt", opt(12288, 49152, 96, 96)),
    "bloom-560m": ("bloom", bloom(1024, 24, 16)),
    "bloom-7b1": ("bloom", bloom(4096, 30, 32)),
    "bloom-176b": ("bloom", bloom(14336, 70, 112)),
    "phi-1.5": ("phi", llama(2048, 8192, 24, 32, None, 51200)),
    "phi-2": ("phi", llama(2560, 10240, 32, 32, 32, 51200, partial_rotary_factor=0.4)),
    "phi-qk-norm": ("phi", llama(512, 2048, 3, 8, 8, 51200, qk_layernorm=True)),
    "phi-3-mini": ("phi3", llama(3072, 8192, 32, 32, 32, 32064)),
    "phi-3-medium": ("phi3", llama(5120, 17920, 40, 40, 10, 32064)),
    "phi-4-mini": ("phi3", llama(3072, 8192, 32, 24, 8, 200064, partial_rotary_factor=0.75, tie_word_embeddings=True)),
    "codestral-22b": ("mistral", llama(6144, 16384, 56, 48, 8, 32768, sliding_window=None)),
    "ministral-8b": ("ministral", llama(4096, 12288, 36, 32, 8, 131072, head_dim=128, sliding_window=32768)),
    "cerebras-gpt-13b": ("gpt2", dict(n_embd=5120, n_layer=40, n_head=40, n_inner=20480, n_positions=2048,
                                      activation_function="gelu")),
    "starcoder-15b": ("gpt_bigcode", dict(n_embd=6144, n_layer=40, n_head=48, n_inner=24576, n_positions=8192,
                                          vocab_size=49152)),
    "granite-20b-code": ("gpt_bigcode", dict(n_embd=6144, n_layer=52, n_head=48, n_inner=24576, n_positions=8192,
                                             vocab_size=49152)),
    "gpt-neo-2.7b": ("gpt_neo", dict(hidden_size=2560, num_layers=32, num_heads=20,
                                     attention_types=[[["global", "local"], 16]])),
    "gpt-j-6b": ("gptj", dict()),
    "codegen-16b": ("codegen", dict(n_embd=6144, n_layer=34, n_head=24, vocab_size=51200)),
    "mpt-7b-alibi": ("mpt", mpt(4096, 32, 32, 50432)),
    "mpt-30b-alibi": ("mpt", mpt(7168, 48, 64, 50432)),
    "persimmon-8b": ("persimmon", dict()),
    "starcoder2-3b": ("starcoder2", llama(3072, 12288, 30, 24, 2, 49152, sliding_window=4096)),
    "starcoder2-7b": ("starcoder2", llama(4608, 18432, 32, 36, 4, 49152, sliding_window=4096)),
    "starcoder2-15b": ("starcoder2", llama(6144, 24576, 40, 48, 4, 49152, sliding_window=4096, tie_word_embeddings=False)),
    "stablelm-3b": ("stablelm", llama(2560, 6912, 32, 32, 32, 50304)),
    "stablelm-2-1.6b": ("stablelm", llama(2048, 5632, 24, 32, 32, 100352, use_qkv_bias=True)),
    "stablelm-parallel": ("stablelm", llama(512, 1376, 3, 8, 2, 50304, use_parallel_residual=True)),
    "olmo-1b": ("olmo", llama(2048, 8192, 16, 16, 16, 50304, tie_word_embeddings=True)),
    "olmo-7b": ("olmo", llama(4096, 11008, 32, 32, 32, 50304)),
    "olmo-2-1b": ("olmo2", llama(2048, 8192, 16, 16, 16, 100352)),
    "olmo-2-7b": ("olmo2", llama(4096, 11008, 32, 32, 32, 100352)),
    "olmo-2-13b": ("olmo2", llama(5120, 13824, 40, 40, 40, 100352)),
    "olmo-2-32b": ("olmo2", llama(5120, 27648, 64, 40, 8, 100352)),
    "olmo-3-7b": ("olmo3", llama(4096, 11008, 32, 32, 32, 100278)),
    "olmo-3-32b": ("olmo3", llama(5120, 27648, 64, 40, 8, 100278)),
    "olmoe-1b-7b": ("olmoe", llama(2048, 1024, 16, 16, 16, 50304)),
    "command-r": ("cohere", llama(8192, 22528, 40, 64, 64, 256000)),
    "command-r-plus": ("cohere", llama(12288, 33792, 64, 96, 8, 256000, use_qk_norm=True)),
    "command-r7b": ("cohere2", llama(4096, 14336, 32, 32, 8, 256000, head_dim=128)),
    "granite-3-2b": ("granite", llama(2048, 8192, 40, 32, 8, 49155, tie_word_embeddings=True)),
    "granite-3-8b": ("granite", llama(4096, 12800, 40, 32, 8, 49155, tie_word_embeddings=True)),
    "granite-8b-code": ("llama", llama(4096, 14336, 36, 32, 8, 49152, attention_bias=True, mlp_bias=True,
                                       tie_word_embeddings=True)),
    "granite-3-3b-a800m": ("granitemoe", llama(1536, 512, 32, 24, 8, 49155, num_local_experts=40, num_experts_per_tok=8,
                                               tie_word_embeddings=True)),
    "granite-moe-shared": ("granitemoeshared", llama(512, 256, 4, 8, 4, 49155, num_local_experts=8, num_experts_per_tok=2,
                                                     shared_intermediate_size=384)),
    "glm-4-9b": ("glm", llama(4096, 13696, 40, 32, 2, 151552, head_dim=128)),
    "glm-4-9b-0414": ("glm4", llama(4096, 13696, 40, 32, 2, 151552, head_dim=128)),
    "glm-4.5-air": ("glm4_moe", glm_moe(4096, 10944, 46, 1, 128, 1408)),
    "glm-4.5": ("glm4_moe", glm_moe(5120, 12288, 92, 3, 160, 1536, use_qk_norm=True)),
    "glm-4.7-flash": ("glm4_moe_lite", {}),
    "glm-lite-dense-last": ("glm4_moe_lite", dict(num_hidden_layers=4, mlp_layer_types=["sparse", "dense", "sparse", "dense"])),
    "youtu-2b": ("youtu", {}),
    "solar-open-100b": ("solar_open", {}),
    "cwm-32b": ("cwm", {}),
    "ministral-3-8b": ("ministral3", {}),
    "ministral-3-tied": ("ministral3", llama(3072, 9216, 26, 32, 8, 131072, head_dim=128, tie_word_embeddings=True)),
    "smollm3-3b": ("smollm3", llama(2048, 11008, 36, 16, 4, 128256)),
    "seed-oss-36b": ("seed_oss", llama(5120, 27648, 64, 80, 8, 155136, head_dim=128)),
    "exaone-4-32b": ("exaone4", llama(5120, 27392, 64, 40, 8, 102400, head_dim=128, sliding_window=4096)),
    "exaone-4-1.2b": ("exaone4", llama(2048, 4096, 30, 32, 8, 102400, head_dim=64, sliding_window=None, layer_types=["full_attention"] * 30,
                                       tie_word_embeddings=True)),
    "helium-2b": ("helium", llama(2560, 7040, 24, 20, 20, 48000)),
    "arcee-4.5b": ("arcee", llama(2560, 18432, 36, 20, 4, 128004, head_dim=128)),
    "ernie-4.5-0.3b": ("ernie4_5", llama(1024, 3072, 18, 16, 2, 103424, head_dim=128)),
    "ernie-4.5-21b-a3b": ("ernie4_5_moe", llama(2560, 12288, 28, 20, 4, 103424)),
    "dots-llm1": ("dots1", llama(4096, 10944, 62, 32, 32, 152064, n_routed_experts=128, num_experts_per_tok=6,
                                 n_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=1,
                                 sliding_window=None)),
    "minimax-m2": ("minimax_m2", llama(3072, 1536, 62, 48, 8, 200064, head_dim=128, rope_parameters=dict(
        rope_theta=5000000.0, rope_type="default", partial_rotary_factor=0.5))),
    "phi-3.5-moe": ("phimoe", llama(4096, 6400, 32, 32, 8, 32064, attention_bias=True, lm_head_bias=True)),
    "nemotron-minitron-4b": ("nemotron", llama(3072, 9216, 32, 24, 8, 256000, head_dim=128)),
    # Hybrids
    "nemotron-h-8b": ("nemotron_h", hybrid("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 4096, 21504, 32, 8, mamba_num_heads=128)),
    "nemotron-h-56b": ("nemotron_h", hybrid("M-M-M-M*-M" + "-M-M-M-M*-M" * 9 + "-M-M-M-M-", 8192, 32768, 64, 8, mamba_num_heads=256, ssm_state_size=256)),
    "nemotron-nano-9b-v2": ("nemotron_h", hybrid("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", 4480, 15680, 40, 8, mamba_num_heads=128, mamba_head_dim=80)),
    "nemotron-h-47b": ("nemotron_h", hybrid("M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-", 8192, 30720, 64, 8,
                                             mamba_num_heads=256, ssm_state_size=256)),
    "nemotron-nano-12b-v2": ("nemotron_h", hybrid("M-M-M-M" + "*-M-M-M-M" * 6 + "-", 5120, 20480, 40, 8, mamba_num_heads=128, mamba_head_dim=80)),
    "nemotron-3-nano-30b-a3b": ("nemotron_h", hybrid("MEMEM*" + "EMEMEM*" * 4 + "EMEMEMEM*EMEMEMEME", 2688, 1856, 32, 2, mamba_num_heads=64, n_routed_experts=128,
                                                     num_experts_per_tok=6, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712)),
    "nemotron-3-super-120b-a12b": ("nemotron_h", hybrid("MEMEMEM*" + "EMEMEMEM*" * 2 + "EMEMEMEMEM*" * 4 + "EMEMEMEM*EMEMEMEME", 4096, 2688, 32, 2, mamba_num_heads=128, n_routed_experts=512,
                                                        num_experts_per_tok=22, moe_intermediate_size=2688, moe_shared_expert_intermediate_size=5376, moe_latent_size=1024)),
    "nemotron-3-ultra-550b-a55b": ("nemotron_h", hybrid("MEMEMEM*" + ("EMEMEM*" + "EMEMEMEM*" * 2) * 3 + "EMEMEM*EMEMEMEM*EMEMEMEME", 8192, 5120, 64, 2, mamba_num_heads=256, n_routed_experts=512,
                                                        num_experts_per_tok=22, moe_intermediate_size=5120, moe_shared_expert_intermediate_size=10240, moe_latent_size=2048)),
    "nemotron-h-4b": ("nemotron_h", hybrid("M-M-M-M*-M" + "-M-M-M-M*-M" * 3 + "-M-M-M-M-", 3072, 12288, 32, 8, mamba_num_heads=112, head_dim=128)),
    "bamba-9b": ("bamba", llama(4096, 14336, 32, 32, 8, 128256, attn_layer_indices=[9, 18, 27], mamba_n_heads=128, mamba_d_state=128)),
    "granite-4-h-tiny": ("granitemoehybrid", llama(1536, 512, 40, 12, 4, 100352, num_local_experts=64, num_experts_per_tok=6, shared_intermediate_size=1024,
                                                   layer_types=granite_hybrid(40), mamba_n_heads=48, mamba_d_state=128, tie_word_embeddings=True)),
    "granite-4-h-micro": ("granitemoehybrid", llama(2048, 8192, 40, 32, 8, 100352, num_local_experts=0, shared_intermediate_size=8192,
                                                    layer_types=granite_hybrid(40), mamba_n_heads=64, mamba_d_state=128, tie_word_embeddings=True)),
    # Odd corners: no public model, but what a file may say.
    "llama-head-dim": ("llama", llama(512, 1376, 4, 8, 2, 32000, head_dim=96)),
    "mistral-head-dim": ("mistral", llama(512, 1376, 4, 8, 2, 32000, head_dim=32, sliding_window=128)),
    "qwen3-biased": ("qwen3", llama(512, 1376, 4, 8, 2, 32000, head_dim=128, attention_bias=True)),
    "gemma-3-biased": ("gemma3_text", llama(512, 1376, 7, 8, 4, 32000, head_dim=64, attention_bias=True)),
    "pythia-without-biases": ("gpt_neox", neox(512, 2048, 3, 8, 50432, attention_bias=False, use_parallel_residual=False)),
    "gpt2-wide": ("gpt2", dict(n_layer=2, n_inner=1000, tie_word_embeddings=False)),
    "falcon-new-alibi": ("falcon", dict(hidden_size=512, num_hidden_layers=3, num_attention_heads=8, num_kv_heads=2,
                                        vocab_size=65024, alibi=True, new_decoder_architecture=True)),
    "falcon-new-sequential": ("falcon", dict(hidden_size=512, num_hidden_layers=3, num_attention_heads=8, num_kv_heads=4,
                                             vocab_size=65024, new_decoder_architecture=True, parallel_attn=False)),
    "opt-projected-first": ("opt", opt(512, 2048, 3, 8, word_embed_proj_dim=256)),
    "opt-without-biases": ("opt", opt(512, 2048, 3, 8, enable_bias=False, tie_word_embeddings=False)),
    "phi-grouped": ("phi", llama(512, 2048, 3, 8, 2, 51200, qk_layernorm=True, tie_word_embeddings=True)),
    "deepseek-v2-lite": ("deepseek_v2", deepseek(2048, 10944, 27, 16, 102400, 64, 2, 6, 1408, None, 1, n_group=1,
                                                 topk_group=1)),
    "deepseek-v2": ("deepseek_v2", deepseek(5120, 12288, 60, 128, 102400, 160, 2, 6, 1536, 1536, 1, n_group=8,
                                            topk_group=3, topk_method="group_limited_greedy")),
    "deepseek-v3": ("deepseek_v3", deepseek(7168, 18432, 61, 128, 129280, 256, 1, 8, 2048, 1536, 3)),
    "gpt-oss-20b": ("gpt_oss", gpt_oss(24, 32)),
    "gpt-oss-120b": ("gpt_oss", gpt_oss(36, 128)),
    "llama-4-scout": ("llama4_text", llama(5120, 8192, 48, 40, 8, 202048, head_dim=128, intermediate_size_mlp=16384,
                                           num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1)),
    "llama-4-maverick": ("llama4_text", llama(5120, 8192, 48, 40, 8, 202048, head_dim=128, intermediate_size_mlp=16384,
                                              num_local_experts=128, num_experts_per_tok=1,
                                              interleave_moe_layer_step=2, use_qk_norm=False)),
}


def part_of(name):
    return next((part for part, fragments in PARTS if any(f in name for f in fragments)), "other")


def count(model_type, fields):
    config = AutoConfig.for_model(model_type, **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parts = {}
    for name, parameter in model.named_parameters():
        part = part_of(name)
        if part == "other":
            raise SystemExit(f"{model_type}: no part is known for {name}")
        parts[part] = parts.get(part, 0) + parameter.numel()
    if "experts" not in parts and "shared_experts" in parts:  # Granite 4 without experts calls its MLP shared
        parts["mlp"] = parts.pop("shared_experts")
    return config, {"total": sum(parts.values()), "parts": parts}


def main():
    CONFIGS.mkdir(parents=True, exist_ok=True)
    only = sys.argv[1:]
    answers = {}
    for name, (model_type, fields) in MODELS.items():
        if only and name not in only:
            continue
        config, answers[name] = count(model_type, fields)
        (CONFIGS / f"{name}.json").write_text(config.to_json_string())
        print(f"{name:24} {answers[name]['total']:>16,} {answers[name]['parts']}", flush=True)
    if not only:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        ANSWERS.write_text(json.dumps({"versions": versions, "models": answers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
