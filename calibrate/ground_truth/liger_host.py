"""What Liger's kernels cost the host thread, next to the operators of transformers that they stand in for.

Needs a CUDA build of torch, transformers and liger-kernel, but no GPU (calibrate/paper_gpu): narrow Llama layers run plain and patched with one of Liger's
kernels or all of them. Prints what a layer takes more than the plain one, in milliseconds and as a multiple of its forward, and the calls that it makes
more. What strategies/framework/data/huggingface-liger.yaml holds (fused_operator_host) is that multiple times the host time of a layer's forward, plus what
the simulator counts for the calls that are gone, per launch of Liger's. Times of one process scatter by as much: take the mean of several.

    python calibrate/paper_gpu/run.py --card a100 calibrate/ground_truth/liger_host.py [--repeats N]
"""

import importlib

import transformers.models.llama.modeling_llama as modeling
from liger_kernel.transformers.monkey_patch import apply_liger_kernel_to_llama
from paper_layers import VOCABULARY, WIDTH, command_line, loss_of, per_layer, tell_more, tokens, torch
from transformers import LlamaConfig

DEPTHS = 2, 8
KERNELS = "rms_norm", "swiglu", "rope"


def llama(kind, layers):
    importlib.reload(modeling)  # as it was before anything was patched
    if kind != "plain":
        apply_liger_kernel_to_llama(cross_entropy=False, fused_linear_cross_entropy=False, **{kernel: kind in (kernel, "all") for kernel in KERNELS})
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2, vocab_size=VOCABULARY, attn_implementation="sdpa")
    return modeling.LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()


def passes(kind, layers):
    model, batch = llama(kind, layers), tokens()
    return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())


def main(repeats):
    torch.set_num_threads(1)
    kinds = ["plain", *KERNELS, "all"]
    times = per_layer(passes, kinds, DEPTHS, repeats)
    print(f"torch {torch.__version__}: plain forward {times['plain'][0]:.3f} ms, backward {times['plain'][1]:.3f} ms")
    tell_more(times, kinds[1:])


if __name__ == "__main__":
    main(command_line(20).parse_args().repeats)
