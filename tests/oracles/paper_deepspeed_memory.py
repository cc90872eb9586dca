"""What PyTorch's own allocator takes for training steps of DeepSpeed: ZeRO-1, 2 and 3 around Hugging Face's Llama and Qwen3 MoE, one of eight ranks.

Allocated and reserved peaks of the third step, in bytes, over the GPU on paper (calibrate/paper_gpu); asked by hand, with a CUDA build of PyTorch,
DeepSpeed and transformers:

    python calibrate/paper_gpu/run.py --card h100 --gib 80 tests/oracles/paper_deepspeed_memory.py

Attention takes queries, keys and values as they lie, as in paper_training_memory.py. Models have few layers, since DeepSpeed keeps the weights on the CPU first.
"""

import json
import os
import pathlib
import subprocess
import sys

RANKS = 8
os.environ |= {"RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29578", "DS_ACCELERATOR": "cuda"}

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "calibrate" / "paper_gpu"))
import paper_gpu

STEPS = 3
NAMES = ["model", "layers", "stage", "overlap_comm", "recompute", "sequence_length"]
CASES = [
    ("dense", 4, 1, False, "none", 1024), ("dense", 4, 2, False, "none", 1024), ("dense", 4, 2, True, "none", 1024), ("dense", 4, 3, True, "none", 1024), ("dense", 8, 3, True, "full", 4096),
    ("dense", 8, 3, False, "full", 4096), ("experts", 2, 3, True, "none", 1024), ("experts", 4, 3, True, "none", 1024), ("experts", 4, 3, True, "full", 1024), ("experts", 4, 2, True, "none", 1024),
]


def attention(module, query, key, value, attention_mask, scaling=None, **_):
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=True, enable_gqa=key.shape[1] != query.shape[1])
    return out.transpose(1, 2), None


def model_of(kind, layers):
    import transformers

    transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["as_they_lie"] = attention
    for name in dir(torch.nn.init):  # values do not matter
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    common = {"num_hidden_layers": layers, "num_attention_heads": 32, "use_cache": False, "attn_implementation": "as_they_lie", "tie_word_embeddings": False, "max_position_embeddings": 8192}
    torch.set_default_dtype(torch.bfloat16)
    if kind == "dense":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32000, hidden_size=4096, intermediate_size=11008, **common))
    else:
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(vocab_size=151936, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_key_value_heads=4, head_dim=128,
                                                                             num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, **common))
    torch.set_default_dtype(torch.float32)
    return model.to(torch.bfloat16).train()


def ask(kind, layers, stage, overlap, recompute, sequence):
    paper_gpu.start(RANKS)
    import deepspeed

    model = model_of(kind, layers)
    if recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": True})
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": stage, "overlap_comm": overlap}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), config=config)
    tokens = torch.zeros((1, sequence), dtype=torch.long, device="cuda")
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def main():
    if len(sys.argv) > 1:  # one case in a process of its own
        print(*ask(*CASES[int(sys.argv[1])]), flush=True)
        os._exit(0)  # threads of the process group are not waited for
    import deepspeed
    import transformers

    answers = []
    for i, case in enumerate(CASES):
        allocated, reserved = map(int, subprocess.run([sys.executable, __file__, str(i)], check=True, capture_output=True, text=True).stdout.split()[-2:])
        answers.append(dict(zip(NAMES, case)) | {"allocated": allocated, "reserved": reserved})
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "deepspeed": deepspeed.__version__, "card": torch.cuda.get_device_name()}
    lines = ",\n    ".join(json.dumps(a) for a in answers)
    target = pathlib.Path(__file__).parent / "data" / "paper_deepspeed_memory.json"
    target.write_text(f'{{\n  "made_with": {json.dumps(made_with)},\n  "cases": [\n    {lines}\n  ]\n}}\n')


main()
