"""What gradient checkpoints cost the host thread, next to the layers that they hold.

Needs torch and transformers, but no GPU: Llama layers of a width at which nothing but Python and dispatch takes time run under
autocast on the CPU, with all weights trained and with all frozen (as beside adapters), without checkpoints, with reentrant ones and with
others. Variants take turns, so that what else the machine does meets all of them. Prints microseconds per layer and micro-batch and
multiples of the plain layer's forward. What non-reentrant checkpoints take more than reentrant ones is what
strategies/framework/data/huggingface.yaml rests on (checkpoint_host), times the host time of a layer's pass under that profile.

    python calibrate/ground_truth/checkpoint_host.py [ROUNDS]
"""

import sys
import time

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, TOKENS, VOCABULARY = 64, 4, 128
FEW, MANY = 2, 10  # layers: their difference leaves embedding, head and loss out
WARM_UP = 3
VARIANTS = [(trained, checkpoint) for trained in ("all trained", "frozen") for checkpoint in ("none", "reentrant", "other")]


def build(layers, trained, checkpoint):
    """A model in training mode with the checkpoints asked for."""
    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, vocab_size=VOCABULARY, use_cache=False, **shape)).bfloat16().train()
    if trained == "frozen":
        model.requires_grad_(False)
    if checkpoint != "none":
        model.gradient_checkpointing_enable({"use_reentrant": checkpoint == "reentrant"})
    model.enable_input_require_grads()
    return model


def passes(model, tokens):
    """Seconds of this thread in forward and in backward, recomputation included."""
    begin = time.thread_time()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=tokens).logits.float().sum()
    middle = time.thread_time()
    loss.backward()
    return middle - begin, time.thread_time() - middle


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; us per layer and micro-batch")
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    models = {(variant, layers): build(layers, *variant) for variant in VARIANTS for layers in (FEW, MANY)}
    taken = {key: [] for key in models}
    for turn in range(WARM_UP + rounds):
        for key, model in models.items():
            times = passes(model, tokens)
            if turn >= WARM_UP:
                taken[key].append(times)

    def low(key, which):
        return sorted(t[which] for t in taken[key])[rounds // 5]

    unit = None
    for variant in VARIANTS:
        forward, backward = (1e6 * (low((variant, MANY), w) - low((variant, FEW), w)) / (MANY - FEW) for w in (0, 1))
        unit = unit or forward
        words = [f"{name} {us:.0f} ({us / unit:.2f})" for name, us in (("forward", forward), ("backward", backward), ("both", forward + backward))]
        print(f"{variant[0]}, checkpoints: {variant[1]}: {', '.join(words)}")


if __name__ == "__main__":
    main()
