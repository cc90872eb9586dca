"""Asks PyTorch how many bytes live during one step of a model whose base is frozen; writes data/torch_lora_live_bytes.json.

As torch_live_bytes.py, but nothing is trained except low-rank adapters on chosen linear layers (written here as
huggingface/peft's Linear.forward computes them), or only named parts.  `adapter`: fp32 adapters beside a bf16 model are
computed in fp32, without autocast.
"""

import torch
import transformers
from torch import nn

from helpers import answers
from helpers.cuda_on_meta import CudaOnMeta, backward
from helpers.live_bytes import LiveBytes
from torch_live_bytes import LLAMA_7B, LLAMA_8B, loss_of

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, dropout: float, dtype):
        super().__init__()
        self.base, self.scale = base, 2.0
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.down = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)

    def forward(self, x):
        result = self.base(x)
        kind = result.dtype
        x = x.to(self.down.weight.dtype)
        result = result + self.up(self.down(self.dropout(x))) * self.scale
        return result.to(kind)


def tuned(model, rank, targets, dropout, dtype, trainable):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in trainable))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, Adapted(child, rank, dropout, dtype))
    return model


def case(name, shape, layers, batch, sequence, rank=0, targets=(), dropout=0.0, adapter="bf16", trainable=(), checkpointing=False):
    facts = dict(
        model=name, layers=layers, batch=batch, sequence=sequence, precision="bf16", rank=rank, targets=list(targets),
        dropout=dropout, adapter=adapter, trainable=list(trainable), checkpointing=checkpointing,
    )  # fmt: skip
    with torch.device("meta"):
        config = transformers.LlamaConfig(**shape, num_hidden_layers=layers, attn_implementation="sdpa", use_cache=False)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        dtype = torch.float32 if adapter == "fp32" else torch.bfloat16
        model = tuned(model, rank, targets, dropout, dtype, trainable)
        ids = torch.zeros(batch, sequence, dtype=torch.long)
    if checkpointing:
        # As transformers' enable_input_require_grads does.
        model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    model.train()
    tracker = LiveBytes()
    tracker.ignore([*model.parameters(), *model.buffers(), ids])
    with CudaOnMeta(), tracker:
        loss = loss_of(model, ids)
        tracker.mark("forward")
        backward(loss)
        tracker.mark("backward")
    trained = [p for p in model.parameters() if p.requires_grad]
    return facts | dict(
        trained_parameters=sum(p.numel() for p in trained),
        parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        after_forward_bytes=tracker.at("forward"),
        forward_peak_bytes=tracker.peak(before="forward"),
        step_peak_bytes=tracker.peak(),
        gradient_bytes=tracker.bytes_of([p.grad for p in trained]),
    )


def cases():
    for name, shape in (("hf-llama-7b", LLAMA_7B), ("hf-llama-8b", LLAMA_8B)):
        for targets in (["q_proj", "v_proj"], ALL):
            for adapter in ("bf16", "fp32"):
                for dropout in (0.0, 0.1):
                    yield case(name, shape, 3, 1, 1024, 16, targets, dropout, adapter)
            yield case(name, shape, 3, 2, 1024, 64, targets, 0.0, "bf16", checkpointing=True)
        yield case(name, shape, 3, 1, 1024, trainable=["lm_head"])
        yield case(name, shape, 3, 1, 1024, trainable=["layers.2."])
        yield case(name, shape, 3, 1, 1024, trainable=["norm"])


def main():
    answers.write("torch_lora_live_bytes.json", {"torch": torch.__version__, "transformers": transformers.__version__}, cases=cases())


if __name__ == "__main__":
    main()
