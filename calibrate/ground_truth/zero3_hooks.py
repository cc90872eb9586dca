"""What DeepSpeed's ZeRO-3 hooks cost the host thread, next to the layers they surround.

Needs torch, transformers and deepspeed (with --adapters: peft), but no GPU: Llama layers of a width at which nothing but
Python and dispatch takes time run with and without ZeRO-3 on the CPU. Prints, per layer and micro-batch, milliseconds of
the plain layer and of the hooks, forward and backward, and the hooks' share per module as a multiple of the forward of a
plain layer without adapters. That multiple is what strategies/framework/data/deepspeed.yaml holds (submodule_host,
submodule_backward_host), times the host time of a layer's forward under that profile. One rank gathers nothing; of several
(--ranks) this is one whose collectives do nothing. Their launches, which the profile counts by themselves, are left out, and
so is what streams and events cost on a GPU. Time is that of the thread, so that others on the machine do not matter.

DeepSpeed before 0.14 imports intel_extension_for_pytorch and oneccl_bindings_for_pytorch on a CPU; empty modules do.

    python calibrate/ground_truth/zero3_hooks.py [--repeats N] [--ranks N] [--adapters]
"""

import argparse
import os
import time

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29533")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, TOKENS, VOCABULARY = 64, 16, 128
FEW, MANY = 2, 14  # layers: their difference leaves embedding, head and engine out
WARM_UP = 3
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1_000_000,  # no optimizer step is timed
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 10**9,
}


LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class NoStream:
    """DeepSpeed before 0.14 synchronises the CPU's stream, which is None."""

    def synchronize(self):
        pass


def llama(layers, adapters=False):
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2,
                         vocab_size=VOCABULARY, attn_implementation="eager")
    model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    if not adapters:
        return model
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.05, target_modules=LINEAR, task_type="CAUSAL_LM"))
    model.enable_input_require_grads()
    return model.to(torch.bfloat16)


def modules_called(adapters):
    """Modules of a layer whose forward runs: PEFT's containers are never called."""
    model = llama(1, adapters)
    layers = (model.get_base_model() if adapters else model).model.layers
    return sum(1 for m in layers[0].modules() if not isinstance(m, (torch.nn.ModuleDict, torch.nn.ParameterDict)))


def passes(kind, layers, adapters):
    """Two callables: forward to the loss, and backward from it."""
    model = llama(layers, adapters)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    if kind != "zero3":
        return (lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss), (lambda loss: loss.backward())
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, config=DEEPSPEED, optimizer=torch.optim.AdamW(trained), dist_init_required=False)
    return (lambda: engine(input_ids=tokens, labels=tokens, use_cache=False).loss), (lambda loss: engine.backward(loss))


def timed(forward, backward):
    begin = time.thread_time()
    loss = forward()
    middle = time.thread_time()
    backward(loss)
    return middle - begin, time.thread_time() - middle


def start(ranks):
    if ranks == 1:
        return torch.distributed.init_process_group("gloo")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())


def main(repeats, ranks, adapters):
    torch.set_num_threads(1)
    get_accelerator().device_count = lambda: 1  # which else asks numactl
    get_accelerator().current_stream = lambda *_: NoStream()
    start(ranks)
    kinds = {"plain": False, "zero3": adapters} | ({"adapted": True} if adapters else {})
    jobs = {(kind, layers): passes(kind, layers, adapted) for kind, adapted in kinds.items() for layers in (FEW, MANY)}
    times = {job: [] for job in jobs}
    for _ in range(WARM_UP + repeats):
        for job, (forward, backward) in jobs.items():  # in turn, so that a busy machine slows all of them
            times[job].append(timed(forward, backward))

    def per_layer(kind, which):
        low = {layers: sorted(t[which] for t in times[kind, layers][WARM_UP:])[repeats // 5] for layers in (FEW, MANY)}
        return (low[MANY] - low[FEW]) / (MANY - FEW) * 1e3

    modules, layer = modules_called(adapters), per_layer("plain", 0)
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, {ranks} ranks: {modules} modules in a layer, plain forward {layer:.3f} ms, backward {per_layer('plain', 1):.3f} ms")
    for which, name in enumerate(("forward", "backward")):
        hooks = per_layer("zero3", which) - per_layer("adapted" if adapters else "plain", which)
        print(f"{name}: hooks {hooks:.3f} ms per layer, {hooks / modules / layer:.3f} plain forwards per module")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--adapters", action="store_true")
    options = parser.parse_args()
    main(options.repeats, options.ranks, options.adapters)
