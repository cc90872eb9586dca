"""Asks PyTorch how many bytes live during one step of a model whose MLP, or output layer and loss, run in pieces of the sequence;
writes data/torch_tiled_live_bytes.json.

As torch_live_bytes.py, with DeepSpeed's own TiledMLP and TiledFusedLogitsLoss (runtime/sequence_parallel/ulysses_sp.py) in
Hugging Face's Llama, applied as DeepSpeed's tutorial on ALST shows.
"""

import math

import deepspeed
import torch
import transformers
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss, TiledMLP

from helpers import answers
from helpers.cuda_on_meta import CudaOnMeta, backward
from helpers.live_bytes import LiveBytes
from torch_live_bytes import LLAMA_8B, figures, loss_of


def tile_mlp(model, shards):
    def whole(mlp, x):
        return mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))

    for layer in model.model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: TiledMLP.apply(whole, mlp, x, shards, list(mlp.parameters()))


def tiled_loss(model, ids):
    hidden = model.model(ids).last_hidden_state
    # The shards that DeepSpeed's docstring of TiledLoss derives: no more than a gibibyte of fp32 logits each.
    shards = math.ceil(ids.numel() * model.config.vocab_size * 4 / 2**30)

    def piece(head, x, y):
        logits = head(x)
        return torch.nn.functional.cross_entropy(logits.float(), y, reduction="sum")

    return TiledFusedLogitsLoss.apply(
        piece, model.lm_head, hidden, ids, None, shards, list(model.lm_head.parameters()), "sum"
    )


def case(layers, batch, sequence, shards, in_pieces, checkpointing=False):
    facts = dict(
        model="hf-llama-8b", layers=layers, batch=batch, sequence=sequence, precision="bf16",
        tiled_mlp_num_shards=shards, tiled_loss=in_pieces, checkpointing=checkpointing,
    )  # fmt: skip
    with torch.device("meta"):
        config = transformers.LlamaConfig(**LLAMA_8B, num_hidden_layers=layers, attn_implementation="sdpa", use_cache=False)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        ids = torch.zeros(batch, sequence, dtype=torch.long)
    if shards > 0:
        tile_mlp(model, shards)
    model.train()
    tracker = LiveBytes()
    tracker.ignore([*model.parameters(), *model.buffers(), ids])
    with CudaOnMeta(), tracker:
        loss = tiled_loss(model, ids) if in_pieces else loss_of(model, ids)
        tracker.mark("forward")
        backward(loss)
        tracker.mark("backward")
    tracker.gradient_bytes = tracker.bytes_of([p.grad for p in model.parameters()])
    return facts | figures(model, tracker)


def compare_with_one():
    """TiledFusedLogitsLoss.backward asks whether the loss's gradient is 1, which the meta device cannot know: it is."""
    usual = torch.Tensor.__ne__
    torch.Tensor.__ne__ = lambda a, b: False if a.is_meta and a.dim() == 0 else usual(a, b)


def cases():
    for batch, sequence in ((1, 4096), (1, 16384), (2, 4096)):
        for checkpointing in (False, True):
            for shards, in_pieces in ((0, True), (4, False), (4, True), (1, False)):
                yield case(2, batch, sequence, shards, in_pieces, checkpointing)


def main():
    compare_with_one()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "deepspeed": deepspeed.__version__.strip()}
    answers.write("torch_tiled_live_bytes.json", versions, tiled=cases())


if __name__ == "__main__":
    main()
