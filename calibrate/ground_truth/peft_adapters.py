"""What PEFT's low-rank adapters cost the host thread, next to the layers that carry them.

Needs torch, transformers and peft, but no GPU: Llama layers of a width at which nothing but Python and dispatch takes time
run with and without an adapter on each of their seven linear layers, under autocast, on the CPU. Prints, per layer and
micro-batch, microseconds of the plain layer and of one adapter, forward and backward, and the adapter's share as a multiple
of the plain layer's pass. That multiple is what strategies/framework/data/huggingface.yaml rests on (adapter_host), times the
host time of a layer's pass under that profile, less the adapter's own kernels.

    python calibrate/ground_truth/peft_adapters.py [REPEATS]
"""

import sys
import time

import peft
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, TOKENS, VOCABULARY = 64, 4, 128
FEW, MANY = 2, 10  # layers: their difference leaves embedding, head and loss out
WARM_UP = 5
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def passes(layers, adapted, repeats):
    """Seconds of this thread in forward and in backward, each the lowest fifth of `repeats`."""
    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, vocab_size=VOCABULARY, use_cache=False, **shape)).bfloat16().train()
    if adapted:
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=4, lora_dropout=0.05, target_modules=TARGETS))
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    forward, backward = [], []
    for _ in range(WARM_UP + repeats):
        begin = time.thread_time()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=tokens).logits.float().sum()
        middle = time.thread_time()
        loss.backward()
        forward.append(middle - begin)
        backward.append(time.thread_time() - middle)
    return sorted(forward[WARM_UP:])[repeats // 5], sorted(backward[WARM_UP:])[repeats // 5]


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}; us per layer and micro-batch")

    def layer(adapted):
        few, many = passes(FEW, adapted, repeats), passes(MANY, adapted, repeats)
        return [1e6 * (b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True)]

    plain, adapted = layer(False), layer(True)
    for name, alone, whole in zip(("forward", "backward"), plain, adapted, strict=True):
        one = (whole - alone) / len(TARGETS)
        print(f"{name}: plain layer {alone:.0f}, one adapter {one:.0f}: {one / alone:.2f} of it")


if __name__ == "__main__":
    main()
