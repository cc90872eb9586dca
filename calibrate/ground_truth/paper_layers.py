"""What the scripts share that time a framework's Python around narrow Llama layers over the GPU on paper (paper_gpu/run.py).

Layers are so narrow that nothing but Python and dispatch takes time. Backward runs in a thread of its own there, so times are of the process.
"""

import argparse
import gc
import os
import pathlib
import sys
import time

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29533")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "paper_gpu"))
import paper_gpu
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, TOKENS, VOCABULARY = 64, 16, 128
WARM_UP = 3
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def command_line(repeats, ranks=None):
    """A parser with --repeats, and --ranks where a number of them is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=repeats)
    if ranks:
        parser.add_argument("--ranks", type=int, default=ranks)
    return parser


def start(ranks=1):
    torch.set_num_threads(1)
    paper_gpu.start(ranks)


def llama(layers, adapters=0, attention="sdpa", frozen=False):
    """Adapters on the first so many of each layer's linear layers. `frozen`: the head alone is trained, and backward goes through all layers."""
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2,
                         vocab_size=VOCABULARY, attn_implementation=attention)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
    if frozen:
        model.requires_grad_(False)
        model.lm_head.requires_grad_(True)
        model.enable_input_require_grads()
    if not adapters:
        return model
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.05, target_modules=LINEAR[:adapters], task_type="CAUSAL_LM"))
    model.enable_input_require_grads()
    return model.to("cuda", torch.bfloat16)


def tokens():
    return torch.randint(0, VOCABULARY, (1, TOKENS), device="cuda")


def loss_of(model, batch):
    return model(input_ids=batch, labels=batch, use_cache=False).loss


def timed(forward, backward):
    """Seconds of forward and of backward, and the calls that each made."""
    calls, begin = [paper_gpu.calls()], time.process_time()
    loss = forward()
    middle = time.process_time()
    calls.append(paper_gpu.calls())
    resumed = time.process_time()
    backward(loss)
    end = time.process_time()
    calls.append(paper_gpu.calls())
    return middle - begin, end - resumed, *({kind: after[kind] - before[kind] for kind in after} for before, after in zip(calls, calls[1:]))


def per_layer(make, kinds, depths, repeats):
    """What a layer takes by kind: (milliseconds of forward, of backward, calls of forward, of backward). Two depths, whose difference leaves embedding, head and engine out. `make(kind, layers)` gives two callables as passes() does."""
    jobs = {(kind, layers): make(kind, layers) for kind in kinds for layers in depths}
    runs = {job: [] for job in jobs}
    gc.collect()
    gc.freeze()  # a collection takes the longer the more of these models there are
    for _ in range(WARM_UP + repeats):
        for job, (forward, backward) in jobs.items():  # in turn, so that a busy machine slows all of them
            backward(forward())  # brings code and data of this one back into the caches
            runs[job].append(timed(forward, backward))
    few, many = depths

    def time_of(kind, which):
        """From the lowest fifth of the turns of each depth: what disturbs a busy machine only adds."""
        lowest = {layers: sorted(run[which] for run in runs[kind, layers][WARM_UP:])[repeats // 5] for layers in depths}
        return (lowest[many] - lowest[few]) / (many - few) * 1e3

    def calls_of(kind, which):
        last = {layers: runs[kind, layers][-1][which] for layers in depths}
        return {call: (last[many][call] - last[few][call]) / (many - few) for call in last[many]}

    return {kind: (time_of(kind, 0), time_of(kind, 1), calls_of(kind, 2), calls_of(kind, 3)) for kind in kinds}


def tell_more(times, kinds):
    """Prints what a layer of each kind takes beyond the plain one, as multiples of its forward too, and the calls made for it. `times` as per_layer() gives them."""
    plain = times["plain"]
    for kind in kinds:
        for which, name in enumerate(("forward", "backward")):
            more = times[kind][which] - plain[which]
            extra = {call: round(n - plain[2 + which][call], 2) for call, n in times[kind][2 + which].items()}
            print(f"{kind}, {name}: {more:.3f} ms, {more / plain[0]:.2f} plain forwards; calls { {call: n for call, n in extra.items() if n} }")
