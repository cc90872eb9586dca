"""What PyTorch's own allocator takes for training steps of Hugging Face's Llama: allocated and reserved peaks of the third step, in bytes.

Runs over the GPU on paper (calibrate/paper_gpu), so it is asked by hand, not by ask.sh, with a CUDA build of PyTorch:

    python calibrate/paper_gpu/run.py --card h200 --gib 140 tests/oracles/paper_training_memory.py

Attention takes queries, keys and values as they lie and grouped ones as they are, as flash-attn does: transformers' own call of
scaled_dot_product_attention copies them first (4.48 to 4.5x), and so its output afterwards: with it PyTorch takes 1 to 2 % more without
recomputation than the simulator says. flash-attn itself was not run.
"""

import json
import pathlib

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

STEPS = 3
# layers, hidden, heads, key-value heads, ffn, vocabulary, sequence, micro-batch, recomputation
CASES = [
    (16, 2048, 16, 16, 5632, 32000, 2048, 4, "none"), (16, 2048, 16, 8, 5632, 32000, 2048, 4, "none"), (22, 2048, 32, 4, 5632, 32000, 4096, 2, "none"),
    (24, 1024, 16, 16, 2816, 151936, 1024, 8, "none"), (12, 768, 12, 12, 3072, 50304, 512, 16, "none"), (32, 4096, 32, 32, 11008, 32000, 4096, 1, "none"),
    (16, 2048, 16, 8, 5632, 32000, 2048, 4, "full"), (24, 1024, 16, 16, 2816, 151936, 1024, 8, "full"), (32, 4096, 32, 32, 11008, 32000, 4096, 2, "full"),
    (32, 4096, 32, 8, 14336, 128256, 4096, 2, "full"), (80, 4096, 32, 8, 14336, 32000, 2048, 1, "full"), (12, 768, 12, 12, 3072, 50304, 512, 48, "full"),
]


def attention(module, query, key, value, attention_mask, scaling=None, **_):
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=True, enable_gqa=key.shape[1] != query.shape[1])
    return out.transpose(1, 2), None


def ask(layers, hidden, heads, kv_heads, ffn, vocabulary, sequence, micro_batch, recompute):
    torch.cuda.empty_cache()
    config = LlamaConfig(hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocabulary,
                         max_position_embeddings=sequence, attn_implementation="as_they_lie", use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).train()
    torch.set_default_dtype(torch.float32)
    if recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(STEPS):
        tokens = torch.zeros((micro_batch, sequence), dtype=torch.long, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def main():
    import subprocess
    import sys

    names = ["layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "sequence_length", "micro_batch", "recompute"]
    if len(sys.argv) > 1:  # one case in a process of its own
        ALL_ATTENTION_FUNCTIONS["as_they_lie"] = attention
        print(*ask(*CASES[int(sys.argv[1])]))
        return
    answers = []
    for i, case in enumerate(CASES):
        allocated, reserved = map(int, subprocess.run([sys.executable, __file__, str(i)], check=True, capture_output=True, text=True).stdout.split()[-2:])
        answers.append(dict(zip(names, case)) | {"allocated": allocated, "reserved": reserved})
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "card": torch.cuda.get_device_name()}
    lines = ",\n    ".join(json.dumps(a) for a in answers)
    target = pathlib.Path(__file__).parent / "data" / "paper_training_memory.json"
    target.write_text(f'{{\n  "made_with": {json.dumps(made_with)},\n  "cases": [\n    {lines}\n  ]\n}}\n')


main()
