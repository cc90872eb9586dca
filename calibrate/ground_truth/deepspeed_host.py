"""What the scripts share that time DeepSpeed's Python on a CPU (zero2_hooks.py, zero3_hooks.py).

Importing it sets the process up as the only rank, without a GPU. Layers are so narrow that nothing but Python and dispatch takes time.
"""

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
WARM_UP = 3
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class NoStream:
    """The CPU's stream is None, which DeepSpeed waits for: before 0.14 under ZeRO-3, later under ZeRO-2 too."""

    def synchronize(self):
        pass

    def wait_stream(self, *_):
        pass


def settings(zero):
    """A DeepSpeed configuration with these settings of ZeRO, under which no optimizer step is timed."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1_000_000,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }


def start(ranks=1):
    torch.set_num_threads(1)
    get_accelerator().device_count = lambda: 1  # which else asks numactl
    get_accelerator().current_stream = lambda *_: NoStream()
    if ranks == 1:
        return torch.distributed.init_process_group("gloo")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())


def llama(layers, adapters=0, attention="sdpa"):
    """Adapters on the first so many of each layer's linear layers."""
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2,
                         vocab_size=VOCABULARY, attn_implementation=attention)
    model = LlamaForCausalLM(config).to(torch.bfloat16).train()
    if not adapters:
        return model
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=8, lora_dropout=0.05, target_modules=LINEAR[:adapters], task_type="CAUSAL_LM"))
    model.enable_input_require_grads()
    return model.to(torch.bfloat16)


def passes(layers, adapters=0, config=None, attention="sdpa"):
    """Two callables: forward to the loss, and backward from it; under DeepSpeed with a configuration."""
    model = llama(layers, adapters, attention)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    if config is None:
        return (lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss), (lambda loss: loss.backward())
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(trained), dist_init_required=False)
    return (lambda: engine(input_ids=tokens, labels=tokens, use_cache=False).loss), (lambda loss: engine.backward(loss))


def timed(forward, backward):
    begin = time.thread_time()
    loss = forward()
    middle = time.thread_time()
    backward(loss)
    return middle - begin, time.thread_time() - middle


def per_layer(make, kinds, depths, repeats):
    """Milliseconds of the thread that a layer takes, (forward, backward) by kind: the lowest fifth's end of the runs, of two depths, whose
    difference leaves embedding, head and engine out. `make(kind, layers)` gives two callables as passes() does."""
    jobs = {(kind, layers): make(kind, layers) for kind in kinds for layers in depths}
    times = {job: [] for job in jobs}
    for _ in range(WARM_UP + repeats):
        for job, (forward, backward) in jobs.items():  # in turn, so that a busy machine slows all of them
            times[job].append(timed(forward, backward))

    def lowest(job, which):
        return sorted(t[which] for t in times[job][WARM_UP:])[repeats // 5]

    few, many = depths
    return {kind: tuple((lowest((kind, many), which) - lowest((kind, few), which)) / (many - few) * 1e3 for which in (0, 1)) for kind in kinds}
