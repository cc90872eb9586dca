"""What Megatron's distributed optimizer costs the host thread per parameter that a rank updates.

Needs torch, packaging, an unpacked Megatron-LM (MEGATRON, its folder `megatron`) and an unpacked Transformer Engine (ENGINE, its folder
`transformer_engine`), but no GPU: eight ranks of PyTorch's fake process group share small weights, kernels of Transformer Engine do
nothing. Two models of different size leave out what a step takes besides. Prints microseconds of this thread per parameter of the rank's
share, until the gradients' norm and from it on: what strategies/framework/data/megatron-*.yaml hold (norm_host, update_host).

    python calibrate/ground_truth/distributed_optimizer_host.py MEGATRON ENGINE [precision-aware]
"""

import importlib
import importlib.metadata
import sys
import time
import types
from unittest import mock

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS, WIDTH, FEW, MANY, WARM_UP, REPEATS = 8, 64, 400, 2000, 2, 8
GRADIENT = 0.01


def module(name, folder=None, **names):
    made = types.ModuleType(name)
    if folder:
        made.__path__ = [folder]
    for key, value in names.items():
        setattr(made, key, value)
    sys.modules[name] = made
    return made


class Extension(types.ModuleType):
    """transformer_engine_torch: norms are zero, everything else does nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: (torch.zeros(1), torch.zeros(1)) if name == "multi_tensor_l2norm" else None


def fused_adam(engine):
    """Transformer Engine's optimizer, of which only the Python is there."""
    sys.modules["transformer_engine_torch"] = Extension("transformer_engine_torch")
    top, pytorch = "transformer_engine", "transformer_engine.pytorch"
    module(top, f"{engine}/{top}")
    module(pytorch, f"{engine}/{top}/pytorch")
    optimizers = module(f"{pytorch}.optimizers", f"{engine}/{top}/pytorch/optimizers")
    module(f"{pytorch}.tensor")
    module(f"{pytorch}.tensor.float8_tensor", Float8Tensor=type("Float8Tensor", (), {}), Float8Quantizer=type("Float8Quantizer", (), {}))
    module(f"{pytorch}.quantized_tensor", QuantizedTensor=type("QuantizedTensor", (), {}))
    module(f"{pytorch}.constants", DType=mock.MagicMock())
    optimizers.FusedAdam = importlib.import_module(f"{pytorch}.optimizers.fused_adam").FusedAdam
    return optimizers.FusedAdam


def without_gpu():
    """Tensors meant for a GPU lie in host memory and say that they do not."""
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, mock.MagicMock)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = lambda *_: mock.MagicMock()
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    for name in ("empty", "zeros", "tensor", "full"):
        plain = getattr(torch, name)
        setattr(torch, name, lambda *a, plain=plain, **k: plain(*a, **{**k, "device": "cpu"}))
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "2.18.0" if "transformer" in name else version(name)
    type_of = torch.Tensor.type
    torch.Tensor.type = lambda self, *a: type_of(self, *a) if a else type_of(self).replace("torch.", "torch.cuda.")


def measure(weights, precision_aware):
    """Seconds until the norm and after it, and the parameters of this rank's share."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=4, bf16=True, params_dtype=torch.bfloat16, use_cpu_initialization=True)
    net = MegatronModule(config)
    net.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(weights))
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True, bucket_size=40_000_000), net)
    low = {"exp_avg_dtype": torch.bfloat16, "exp_avg_sq_dtype": torch.bfloat16, "main_grads_dtype": torch.bfloat16}
    aware = {"use_precision_aware_optimizer": True, **low} if precision_aware else {}
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True, clip_grad=1.0, **aware)
    chained = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    optimizer = chained.chained_optimizers[0] if hasattr(chained, "chained_optimizers") else chained
    before, after = [], []
    for _ in range(WARM_UP + REPEATS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        for parameter in net.parameters():
            parameter.main_grad.fill_(GRADIENT)
        begin = time.thread_time()
        optimizer.prepare_grads()
        optimizer.get_grad_norm()
        middle = time.thread_time()
        optimizer.step_with_ready_grads()
        before.append(middle - begin)
        after.append(time.thread_time() - middle)
    own = sum(len(group["params"]) for group in optimizer.optimizer.param_groups)
    return min(before[WARM_UP:]), min(after[WARM_UP:]), own


def main():
    megatron, engine = sys.argv[1:3]
    sys.path.insert(0, megatron)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    without_gpu()
    from megatron.core import parallel_state  # before there is a Transformer Engine, of which nothing but the optimizer is here

    adam = fused_adam(engine)
    from megatron.core import optimizer

    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = adam, False
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    few, many = (measure(weights, len(sys.argv) > 3) for weights in (FEW, MANY))
    each = [1e6 * (many[i] - few[i]) / (many[2] - few[2]) for i in range(2)]
    print(f"per parameter of a rank's share: {each[0]:.1f} us until the norm, {each[1]:.1f} us from it on")


if __name__ == "__main__":
    main()
