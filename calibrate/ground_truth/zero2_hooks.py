"""What DeepSpeed's ZeRO-2 costs the host thread in backward, per trained parameter.

Needs torch, transformers, peft and deepspeed, but no GPU: Llama layers with adapters, of a width at which nothing but Python and
dispatch takes time, run with and without ZeRO-2 on the CPU. Each trained parameter's gradient has a hook that copies it into a bucket
and remembers it, and the buckets' reduction cuts it into the ranks' partitions (runtime/zero/stage_1_and_2.py). Prints milliseconds
per trained parameter and micro-batch, and the same as a multiple of the forward of a plain layer without adapters, which is what
strategies/framework/data/deepspeed.yaml holds (gradient_host), times the host time of a layer's forward under that profile.
Time is that of the thread, so that others on the machine do not matter.

    python calibrate/ground_truth/zero2_hooks.py [--repeats N]
"""

import argparse
import os
import time

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29534")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, TOKENS, VOCABULARY = 64, 16, 128
FEW, MANY = 2, 10  # layers: their difference leaves embedding, head and engine out
WARM_UP = 3
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1_000_000,  # no optimizer step is timed
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 2e8},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 10**9,
}


class NoStream:
    """The CPU's stream, which is None."""

    def synchronize(self):
        pass

    def wait_stream(self, *_):
        pass


def llama(layers, adapters):
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2, vocab_size=VOCABULARY)
    model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    if not adapters:
        return model
    model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.05, target_modules=LINEAR[:adapters], task_type="CAUSAL_LM"))
    model.enable_input_require_grads()
    return model.to(torch.bfloat16)


def passes(sharded, layers, adapters):
    """Two callables: forward to the loss, and backward from it."""
    model = llama(layers, adapters)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    if not sharded:
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


def main(repeats):
    torch.set_num_threads(1)
    get_accelerator().device_count = lambda: 1  # which else asks numactl
    get_accelerator().current_stream = lambda *_: NoStream()
    torch.distributed.init_process_group("gloo")
    kinds = [(False, 0)] + [(sharded, adapters) for sharded in (False, True) for adapters in (4, len(LINEAR))]
    jobs = {(kind, layers): passes(kind[0], layers, kind[1]) for kind in kinds for layers in (FEW, MANY)}
    times = {job: [] for job in jobs}
    for _ in range(WARM_UP + repeats):
        for job, (forward, backward) in jobs.items():  # in turn, so that a busy machine slows all of them
            times[job].append(timed(forward, backward))

    def per_layer(kind, which):
        low = {layers: sorted(t[which] for t in times[kind, layers][WARM_UP:])[repeats // 5] for layers in (FEW, MANY)}
        return (low[MANY] - low[FEW]) / (MANY - FEW) * 1e3

    layer = per_layer((False, 0), 0)
    print(f"deepspeed {deepspeed.__version__}, torch {torch.__version__}: plain forward {layer:.3f} ms per layer")
    for adapters in (4, len(LINEAR)):
        hooks = (per_layer((True, adapters), 1) - per_layer((False, adapters), 1)) / (2 * adapters)
        print(f"{2 * adapters} trained parameters a layer: {hooks:.4f} ms each in backward, {hooks / layer:.3f} plain forwards")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=25)
    main(parser.parse_args().repeats)
