"""What PyTorch's own allocator takes for training steps of torchtitan itself, by FSDP2 over eight ranks: allocated and reserved peaks of the third step, in bytes.

Runs over the GPU on paper (calibrate/paper_gpu), so it is asked by hand, not by ask.sh, one case at a time, with a CUDA build of PyTorch and torchtitan 0.3.0:

    python calibrate/paper_gpu/run.py --card b200 --gib 180 tests/oracles/paper_torchtitan_memory.py MODEL CONFIGURATION SAMPLES full|selective|none

Parameters in fp32, compute in bf16, 8,192 tokens a sample, expandable segments; FlexAttention is compiled as on a GPU (its kernels' times on paper choose
among tiles, which changes no byte). The kernel of variable-length attention (GPT-OSS) refuses a GPU that is none: a function stands in for it that allocates output, sums and gradients.
Nothing is initialised, saved or logged; all tokens are 0, so that experts' tokens go where zeros do.
"""

import importlib
import json
import os
import sys

RANKS, TOKENS, STEPS = 8, 8192, 3
os.environ.update(RANK="0", WORLD_SIZE=str(RANKS), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT="29545",
                  PYTORCH_ALLOC_CONF="expandable_segments:True", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")

import torch

import paper_gpu

paper_gpu.start(RANKS)

import torchtitan.models.common.attention as attention
import torchtitan.protocols.module as module
import torchtitan.trainer as trainer
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import activation_checkpoint as checkpoints


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        output, sums = torch.empty_like(query), torch.empty(query.shape[1], query.shape[0], device=query.device, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output, sums

    @staticmethod
    def backward(ctx, *_):
        query, key, value, *_ = ctx.saved_tensors
        accumulated = torch.empty(query.shape, device=query.device, dtype=torch.float32)
        del accumulated
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class Zeros:
    """In the place of a data loader."""

    def __init__(self, samples):
        self.samples = samples

    def build(self, **_):
        return self

    def __iter__(self):
        while True:
            tokens = torch.zeros(self.samples, TOKENS, dtype=torch.long)
            yield {"input": tokens, "positions": torch.arange(TOKENS).expand(self.samples, TOKENS).contiguous()}, tokens

    def state_dict(self):
        return {}


class NoTokenizer:
    def build(self, **_):
        return None


def ask(model, configuration, samples, recompute):
    attention.activate_flash_attention_impl = lambda *_, **__: None
    attention.varlen_attn = lambda q, k, v, *_, **keys: Attention.apply(q, k, v) if "return_aux" in keys else Attention.apply(q, k, v)[0]
    module.Module._init_self_parameters = lambda *_, **__: None
    trainer.Trainer.init_distributed = lambda _: ParallelDims(dp_shard=RANKS, dp_replicate=1, cp=1, tp=1, pp=1, ep=1, world_size=RANKS)
    trainer.dist_utils.set_determinism = lambda *_, **__: None
    config = getattr(importlib.import_module(f"torchtitan.models.{model}.config_registry"), configuration)()
    type(config).to_dict = lambda _: {}
    config.training.disable_cuda_graphs = True
    config.training.seq_len, config.training.local_batch_size = TOKENS, samples
    config.activation_checkpoint = {"full": lambda: checkpoints.FullAC.Config(), "none": lambda: None, "selective": lambda: checkpoints.SelectiveAC.Config()}[recompute]()
    config.compile.enable = config.checkpoint.enable = False
    config.tokenizer = NoTokenizer()
    object.__setattr__(config, "dataloader", Zeros(samples))
    run = trainer.Trainer(config)
    run.metrics_processor.should_log = lambda _: False
    batches = iter(run.dataloader)
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        run.step += 1
        run.train_step(batches)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


if __name__ == "__main__":
    model, configuration, samples, recompute = sys.argv[1:]
    allocated, reserved = ask(model, configuration, int(samples), recompute)
    print(json.dumps({"model": configuration, "samples": int(samples), "recompute": recompute, "allocated": allocated, "reserved": reserved}), flush=True)
    os._exit(0)   # threads of torchtitan's are left
