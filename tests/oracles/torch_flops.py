"""Asks PyTorch's FlopCounterMode for the FLOPs of one training step; writes data/torch_flops.json.

A multiply-add is two FLOPs; only matrix products and attention count.  Fused attention is counted in full, as if it
were not causal; its backward as five products of the size of one in forward (two in forward).  Models run on the meta
device with CUDA's operators (helpers/cuda_on_meta.py).  "step" is forward and backward, recomputation included.
"""

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from helpers import answers
from helpers.cuda_on_meta import CudaOnMeta, backward

GPT2 = {
    "gpt2-small": dict(n_embd=768, n_layer=12, n_head=12),
    "gpt2-medium": dict(n_embd=1024, n_layer=24, n_head=16),
}
LLAMA = {
    "llama-2-7b": dict(
        hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000
    ),
    "llama-3-8b": dict(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    ),
}


def by_operator(counter) -> dict:
    return {str(op).removeprefix("aten."): int(n) for op, n in counter.get_flop_counts()["Global"].items()}


def count(facts, model_class, config) -> dict:
    with torch.device("meta"):
        model = model_class(config).to(torch.bfloat16)
        ids = torch.zeros(facts["batch"], facts["sequence"], dtype=torch.long)
    model.train()
    if facts["checkpointing"]:
        model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    counters = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with CudaOnMeta(), counters[0]:
        with counters[1]:
            loss = model(ids, labels=ids).loss
        backward(loss)
    step, forward = (by_operator(c) for c in counters)
    return facts | dict(
        forward_flops=sum(forward.values()), step_flops=sum(step.values()),
        forward_by_operator=forward, step_by_operator=step,
    )  # fmt: skip


def cases():
    for name, shape in GPT2.items():
        for sequence in (512, 1024):
            for attention in ("sdpa", "eager"):
                # Without dropout a recomputation that stops early leaves out a layer's last addmm; with it the mask comes after that.
                for checkpointing, dropout in ((False, 0.1), (True, 0.1), (True, 0.0)):
                    facts = dict(
                        model=name, layers=shape["n_layer"], batch=2, sequence=sequence, dropout=dropout,
                        attention_implementation=attention, checkpointing=checkpointing, tied=True,
                    )  # fmt: skip
                    dropouts = dict(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
                    config = transformers.GPT2Config(**shape, **dropouts, attn_implementation=attention, use_cache=False)
                    yield count(facts, transformers.GPT2LMHeadModel, config)
    for name, shape in LLAMA.items():
        for sequence in (1024, 2048):
            for attention in ("sdpa", "eager"):
                for checkpointing, tied in ((False, False), (False, True), (True, False)):
                    facts = dict(
                        model=name, layers=2, batch=1, sequence=sequence,
                        attention_implementation=attention, checkpointing=checkpointing, tied=tied,
                    )  # fmt: skip
                    config = transformers.LlamaConfig(
                        **shape,
                        num_hidden_layers=2,
                        tie_word_embeddings=tied,
                        attn_implementation=attention,
                        use_cache=False,
                    )
                    yield count(facts, transformers.LlamaForCausalLM, config)


def main():
    head = {"torch": torch.__version__, "transformers": transformers.__version__}
    answers.write("torch_flops.json", head, cases=cases())


if __name__ == "__main__":
    main()
