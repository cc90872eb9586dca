import argparse

from paper_layers import VOCABULARY, WIDTH, loss_of, per_layer, tokens, torch
from transformers import LlamaConfig, LlamaForCausalLM

DEPTHS = 2, 8
KERNELS = {"rms_norm": 2, "swiglu": 1, "rope": 1}


def llama(kind, layers):
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance  # noqa
    import liger_kernel.transformers.monkey_patch as patch
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2,
                         vocab_size=VOCABULARY, attn_implementation="sdpa")
    import importlib, transformers.models.llama.modeling_llama as m
    importlib.reload(m)
    if kind != "plain":
        which = {k: (kind == k or kind == "all") for k in KERNELS}
        patch.apply_liger_kernel_to_llama(cross_entropy=False, fused_linear_cross_entropy=False, **which)
    return m.LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()


def passes(kind, layers):
    model, batch = llama(kind, layers), tokens()
    return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())


def main(repeats):
    kinds = ["plain", *KERNELS, "all"]
    times = per_layer(passes, kinds, DEPTHS, repeats)
    layer = times["plain"][0]
    print(f"torch {torch.__version__}: plain forward {layer:.3f} ms, backward {times['plain'][1]:.3f} ms")
    for kind in kinds:
        for which, name in enumerate(("forward", "backward")):
            more = times[kind][which] - times["plain"][which]
            extra = {call: round(n - times["plain"][2 + which][call], 2) for call, n in times[kind][2 + which].items()}
            print(f"{kind}, {name}: {more:.3f} ms, {more / layer:.2f} plain forwards; calls { {call: n for call, n in extra.items() if n} }")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    main(parser.parse_args().repeats)
