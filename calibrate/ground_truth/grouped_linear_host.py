"""What the Python of Transformer Engine's grouped linear layers costs the host thread per expert.

Needs torch and an unpacked Transformer Engine (its folder `transformer_engine`, 2.12 or later), but no GPU. With EXTENSION, a
transformer_engine_torch.so of grouped_linear_extension.py, the extension's own work per expert is in the time; without it what the
extension would do is left out, and the tensor objects that it would return are made. Two GroupedLinear layers, as TEGroupedMLP
has them, run forward and backward over several micro-batches with quantised weights cached, with one expert and with sixteen;
Megatron's hook on every gradient runs too. Prints microseconds per expert and layer, forward and backward: what
strategies/framework/data/megatron-*.yaml hold (grouped_host and its kin). Launches are not in it, the profile counts them by
themselves, nor what cuBLASLt's calls take.

    python calibrate/ground_truth/grouped_linear_host.py FOLDER [REPEATS] [EXTENSION]
"""

import contextlib
import enum
import importlib
import importlib.util
import os
import sys
import time
import types
from unittest import mock

os.environ.setdefault("NVTE_TORCH_COMPILE", "0")

import torch

WIDTH, TOKENS = 64, 32  # per expert: nothing but Python and dispatch takes time
FEW, MANY = 1, 16  # experts: their difference leaves the layers themselves out
WARM_UP = 5


def package(name, folder):
    module = types.ModuleType(name)
    module.__path__, module.__file__ = [folder], os.path.join(folder, "__init__.py")
    sys.modules[name] = module
    if "." in name:
        parent, child = name.rsplit(".", 1)
        setattr(sys.modules[parent], child, module)
    return module


def anything(name):
    """A module whose every attribute exists: what is imported and never called here."""
    module = types.ModuleType(name)
    module.__file__ = name

    def attribute(wanted):
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return mock.MagicMock(name=wanted)

    module.__getattr__ = attribute
    sys.modules[name] = module
    return module


def without_gpu(capability):
    """torch.cuda answers as if there were a GPU; tensors meant for it lie in host memory."""
    properties = types.SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=132, name="none", total_memory=80 << 30)
    stream = types.SimpleNamespace(cuda_stream=0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda *_: capability
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.current_stream = lambda *_: stream
    torch.cuda.device = lambda _: contextlib.nullcontext()
    torch.cuda.nvtx.range = lambda *_, **__: contextlib.nullcontext()
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: 0
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    wrapped = torch.Tensor._make_wrapper_subclass
    torch.Tensor._make_wrapper_subclass = staticmethod(lambda cls, *a, **k: wrapped(cls, *a, **{**k, "device": "cpu"}))
    for name in ("empty", "zeros", "ones", "tensor", "full", "empty_like"):
        def on_host(*a, made=getattr(torch, name), **k):
            if k.get("device") is not None:
                k["device"] = "cpu"
            return made(*a, **k)
        setattr(torch, name, on_host)


def built(path):
    """The extension without CUDA: missing functions are only looked up when called."""
    sys.setdlopenflags(os.RTLD_LAZY)
    found = importlib.util.spec_from_file_location("transformer_engine_torch", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Extension:
    """In place of transformer_engine_torch: makes the objects that it would return, or has `real` make them."""

    def __init__(self, real):
        self.buffers = {}
        module = anything("transformer_engine_torch")
        module.DType = enum.IntEnum("DType", "kByte kInt16 kInt32 kInt64 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat8E8M0 kFloat4E2M1", start=0)
        module.FP8FwdTensors = enum.IntEnum("FP8FwdTensors", " ".join(f"GEMM{i}_{t}" for i in (1, 2, 3) for t in ("INPUT", "WEIGHT", "OUTPUT")), start=0)
        module.FP8BwdTensors = enum.IntEnum("FP8BwdTensors", " ".join(f"GRAD_{t}{i}" for i in (1, 2, 3) for t in ("OUTPUT", "INPUT")), start=0)
        module.FP8TensorMeta = type("FP8TensorMeta", (), {})
        module.get_num_cublas_streams = lambda: 4
        module.get_cublasLt_version = lambda: 130000
        module.get_cudnn_version = lambda: 91300
        if real is not None:
            module.DType = real.DType
            module.split_quantize, module.quantize, module.te_general_grouped_gemm = real.split_quantize, real.quantize, real.te_general_grouped_gemm
            return
        module.te_general_grouped_gemm = lambda a, ta, b, tb, d, *rest: rest[2] if len(rest) > 2 else None
        module.split_quantize = lambda x, splits, quantizers, **_: [self.quantised(q, (s, x.shape[1])) for s, q in zip(splits, quantizers)]
        module.quantize = lambda x, quantizer, output=None, noop=None: output if output is not None else self.quantised(quantizer, tuple(x.shape))

    def buffer(self, shape):
        if shape not in self.buffers:
            self.buffers[shape] = torch.empty(shape, dtype=torch.uint8)
        return self.buffers[shape]

    def quantised(self, quantizer, shape):
        rows, columns = (quantizer.rowwise_usage, quantizer.columnwise_usage)
        internal = getattr(quantizer, "internal", False)
        whole = {} if internal else {"shape": shape, "dtype": torch.bfloat16, "requires_grad": False}
        if type(quantizer).__name__ == "MXFP8Quantizer":
            from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Tensor
            from transformer_engine.pytorch.tensor.storage.mxfp8_tensor_storage import MXFP8TensorStorage

            return (MXFP8TensorStorage if internal else MXFP8Tensor)(
                rowwise_data=self.buffer(shape) if rows else None, rowwise_scale_inv=self.buffer((shape[0], shape[1] // 32)) if rows else None,
                columnwise_data=self.buffer(shape) if columns else None, columnwise_scale_inv=self.buffer((shape[0] // 32, shape[1])) if columns else None,
                fp8_dtype=quantizer.dtype, quantizer=quantizer, with_gemm_swizzled_scales=False, **whole)
        from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor
        from transformer_engine.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

        return (Float8TensorStorage if internal else Float8Tensor)(
            data=self.buffer(shape) if rows else None, data_transpose=self.buffer(shape[::-1]) if columns else None,
            fp8_scale_inv=self.buffer((1,)), fp8_dtype=quantizer.dtype, quantizer=quantizer, **whole)


def load(folder):
    """The modules of an unpacked Transformer Engine that grouped linear layers need, without its libraries."""
    root = os.path.join(folder, "transformer_engine")
    package("transformer_engine", root)
    common = package("transformer_engine.common", os.path.join(root, "common"))
    common.load_framework_extension = lambda *_: None
    common.__getattr__ = anything("transformer_engine.common.rest").__getattr__
    package("transformer_engine.pytorch", os.path.join(root, "pytorch"))
    package("transformer_engine.pytorch.module", os.path.join(root, "pytorch", "module"))
    for name in ("onnx_extensions", "triton.pad", "triton.grouped_dbias_dscales", "triton.permutation", "triton.cross_entropy"):
        anything("transformer_engine.pytorch." + name)
    importlib.import_module("transformer_engine.pytorch.tensor")
    quantization = importlib.import_module("transformer_engine.pytorch.quantization")
    layer = importlib.import_module("transformer_engine.pytorch.module.grouped_linear").GroupedLinear
    recipes = importlib.import_module("transformer_engine.common.recipe")
    # The one line that asks where the input lies.
    base = importlib.import_module("transformer_engine.pytorch.module.base").TransformerEngineBaseModule
    if hasattr(base, "prepare_forward"):
        torch.Tensor.is_cuda = property(lambda _: True)
    return layer, quantization, recipes


def hook_gradients(parameters):
    """As megatron/core/distributed/distributed_data_parallel.py does for micro-batches before the last."""
    kept = []
    for parameter in parameters:
        parameter.main_grad, parameter.grad_added_to_main_grad, parameter.zero_out_wgrad = torch.empty(parameter.shape, dtype=parameter.dtype), False, False

        def hook(*_, parameter=parameter):
            if parameter.grad is not None and (not parameter.grad_added_to_main_grad or parameter.zero_out_wgrad):
                parameter.main_grad.add_(parameter.grad.data)
            parameter.grad = None

        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        accumulator.register_hook(hook)
        kept.append(accumulator)
    return kept


def seconds(layer, quantization, recipe, experts, repeats):
    """Lowest fifth of forward and of backward times."""
    layers = [layer(experts, WIDTH, WIDTH, bias=False, params_dtype=torch.bfloat16, device="cpu", fuse_wgrad_accumulation=True) for _ in range(2)]
    kept = hook_gradients([p for each in layers for p in each.parameters()])
    splits, times = [TOKENS] * experts, []
    for micro_batch in range(WARM_UP + repeats):
        x = torch.empty(TOKENS * experts, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        begin = time.perf_counter()
        with quantization.autocast(enabled=recipe is not None, recipe=recipe):
            y = x
            for each in layers:
                y = each(y, splits, is_first_microbatch=micro_batch == 0)
        forward = time.perf_counter() - begin
        gradient = torch.empty_like(y)
        begin = time.perf_counter()
        y.backward(gradient)
        times.append((forward, time.perf_counter() - begin))
    assert len(kept) == 2 * experts
    return [sorted(t[which] for t in times[WARM_UP:])[repeats // 5] for which in (0, 1)]


def main(folder, repeats, extension):
    torch.set_num_threads(1)
    without_gpu((10, 0))
    Extension(built(extension) if extension else None)
    layer, quantization, recipes = load(folder)
    for name, recipe in (("bf16", None), ("mxfp8", recipes.MXFP8BlockScaling()), ("fp8, current scaling", recipes.Float8CurrentScaling())):
        few, many = (seconds(layer, quantization, recipe, experts, repeats) for experts in (FEW, MANY))
        forward, backward = ((m - f) / (MANY - FEW) / 2 * 1e6 for f, m in zip(few, many))
        print(f"{name}: {forward:.1f} us per expert and layer forward, {backward:.1f} us backward")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60, sys.argv[3] if len(sys.argv) > 3 else None)
