"""Asks PyTorch what a loss over logits sharded by vocabulary keeps; writes data/torch_loss_parallel.json.

`torch.distributed.tensor.parallel.loss_parallel` over two ranks of a made-up process group (no communication): bf16 logits,
widened, cross-entropy, as torchtitan writes it.  Eager: bytes per logit of this rank that live at most in forward, between the
passes, and at most in backward, the bf16 logits not counted.  Compiled: what forward keeps for backward and what backward makes, by
AOTAutograd's graphs as TorchInductor gets them.
"""

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers import answers
from helpers.live_bytes import LiveBytes

RANKS, TOKENS, VOCABULARY = 2, 4096, 4096
LOGITS = TOKENS * VOCABULARY // RANKS


class LocalBytes(LiveBytes):
    """Leaves DTensors to their own dispatch, so that the operators on a rank's shard are seen and the wrapper is not, nor the fake tensors by
    which shardings are worked out."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)

    def meet(self, tensor, operator):
        if not isinstance(tensor, FakeTensor):
            super().meet(tensor, operator)


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def inputs(mesh):
    shard = torch.randn(1, TOKENS, VOCABULARY // RANKS, dtype=torch.bfloat16, requires_grad=True)
    return shard, DTensor.from_local(shard, mesh, [Shard(-1)], run_check=False), torch.randint(VOCABULARY, (1, TOKENS))


def eager(mesh):
    shard, logits, labels = inputs(mesh)
    tracker = LocalBytes(device="cpu")
    tracker.ignore([shard, labels])
    with loss_parallel(), tracker:
        loss = loss_of(logits, labels)
        tracker.mark("forward")
        loss.backward()
    return [round(x / LOGITS, 2) for x in (tracker.peak(before="forward"), tracker.at("forward"), tracker.peak())]


def compiled(mesh):
    sizes = {}

    def keep(name):
        def compiler(graph, examples):
            made = [n for n in graph.graph.find_nodes(op="output")[0].args[0] if n is not None and n.op != "placeholder"]
            sizes[name] = [n.meta["val"] for n in made]
            return make_boxed_func(graph)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"),
        bw_compiler=keep("backward"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    _, logits, labels = inputs(mesh)
    with loss_parallel():
        torch.compile(loss_of, backend=backend)(logits, labels).backward()
    wide = {k: sum(v.numel() * v.element_size() for v in vs if v.numel() >= LOGITS) for k, vs in sizes.items()}
    return [wide["forward"] / LOGITS, wide["backward"] / LOGITS]


def main():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    forward, kept, backward = eager(mesh)
    saved, made = compiled(mesh)
    answers.write(
        "torch_loss_parallel.json",
        {"torch": torch.__version__.split("+")[0], "unit": "bytes per logit of a rank, the bf16 logits not counted"},
        cases=[
            {"loss": "eager", "forward peak": forward, "kept": kept, "backward peak": backward},
            {"loss": "compiled", "kept": saved, "gradient": made},
        ],
    )


main()
