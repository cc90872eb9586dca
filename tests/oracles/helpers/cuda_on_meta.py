"""Makes models on the meta device issue the operators that a CUDA device would issue.

Without a GPU the meta device chooses differently in four places, each of which changes what backward keeps:

  scaled_dot_product_attention   meta takes the unfused "math" path; CUDA takes a fused kernel
  dropout                        meta keeps a mask in the tensor's own dtype; CUDA keeps one byte per element
  rms_norm                       meta splits it into six operators; CUDA runs one and keeps input, weight and rstd
  autocast                       has no rules for meta

`CudaOnMeta` replaces the first three while it is active, `CudaAutocastOnMeta` the fourth.  Everything else is
PyTorch's own: views, broadcasting, strides, autograd formulas.

Left out: what a CUDA kernel allocates inside itself and frees before it returns (GEMM workspaces, flash
attention's fp32 dQ accumulator and, with grouped queries, its expanded dK and dV, partial sums of norm backward).
"""

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

# One CUDA operator each, so that a dispatch mode sees one call.  Saved tensors and the dtype of rstd (the
# accumulation type, fp32) follow the autograd formula of aten::_fused_rms_norm, whose CUDA kernels a CPU build lacks.
LIBRARY = torch.library.Library("cuda_like", "DEF")
LIBRARY.define("fused_rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)")
LIBRARY.define("fused_rms_norm_backward(Tensor grad, Tensor x, Tensor rstd, Tensor weight) -> (Tensor, Tensor)")


def _rms_norm_shapes(x, weight, eps):
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _rms_norm_backward_shapes(grad, x, rstd, weight):
    return torch.empty_like(x), torch.empty_like(weight)


LIBRARY.impl("fused_rms_norm", _rms_norm_shapes, "Meta")
LIBRARY.impl("fused_rms_norm_backward", _rms_norm_backward_shapes, "Meta")


class FusedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        y, rstd = torch.ops.cuda_like.fused_rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, rstd = ctx.saved_tensors
        return *torch.ops.cuda_like.fused_rms_norm_backward(grad, x, rstd, weight), None


def attention_kernel(query, key, value, attn_mask) -> str:
    """The kernel that CUDA's selection takes, for inputs that need a gradient.

    flash: 16-bit, no mask, head dimension at most 256; takes grouped queries as they are.
    efficient: any float dtype; refuses grouped queries in 2.13 (later sources accept them).
    math: the rest.
    On compute capability 9.0 and 10.x a recent cuDNN's kernel comes before flash; it too keeps query, key, value,
    output, one fp32 log-sum-exp per row and head, and the random state.
    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend and the can_use_* filters.
    """
    if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] <= 256:
        return "flash"
    if attn_mask is None and query.shape[1] == key.shape[1]:
        return "efficient"
    return "math"


def cuda_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    kernel = attention_kernel(query, key, value, attn_mask)
    if kernel == "flash":
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "efficient":
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, dropout_p, is_causal, scale=scale
        )[0]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def cuda_dropout(x, p=0.5, training=True, inplace=False):
    if not training or p == 0.0:
        return x
    return torch.native_dropout(x, p, True)[0]


def cuda_rms_norm(x, normalized_shape, weight=None, eps=None):
    if weight is None or weight.dtype != x.dtype:
        raise NotImplementedError("rms_norm: CUDA splits mixed dtypes into several operators; not modelled here")
    return FusedRmsNorm.apply(x, weight, eps or 1e-6)


def truth_of_meta(condition):
    """A meta tensor has no value.  Hugging Face asks for one only to learn whether positions are unpacked: they are."""
    return True


class CudaOnMeta(TorchFunctionMode):
    """Keep it active through backward too: recomputation issues forward operators again."""

    REPLACED = {
        F.scaled_dot_product_attention: cuda_attention,
        F.dropout: cuda_dropout,
        F.rms_norm: cuda_rms_norm,
        torch.Tensor.__bool__: truth_of_meta,
    }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.REPLACED.get(func, func)(*args, **(kwargs or {}))


def backward(loss):
    """`loss.backward()` that stays inside CudaOnMeta; PyTorch's own leaves every function mode before it starts."""
    seed = torch.ones_like(loss)  # held until the end, as PyTorch's caller holds it
    torch.autograd.graph._engine_run_backward(
        (loss,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


class CudaAutocastOnMeta(TorchFunctionMode):
    """CUDA's autocast rules for the operators that our models use; enter it inside CudaOnMeta, leave before backward.

    Source of the lists: torch/include/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP and AT_FORALL_FP32.
    A cast of a leaf parameter is kept and reused until the context ends, as autocast does.
    """

    LOWER_PRECISION = {
        F.linear, torch.addmm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.mm,
        F.scaled_dot_product_attention,
    }  # fmt: skip
    FULL_PRECISION = {
        F.layer_norm, F.rms_norm, F.log_softmax, F.softmax, torch.pow, torch.Tensor.pow,
        torch.rsqrt, torch.Tensor.sum, torch.sum,
    }  # fmt: skip

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.dtype = dtype
        self.cast_parameters = {}

    def __exit__(self, *error):
        self.cast_parameters.clear()
        return super().__exit__(*error)

    def cast(self, value, dtype):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad and value.dtype == torch.float32 and dtype == self.dtype):
            return value.to(dtype)
        if value not in self.cast_parameters:
            self.cast_parameters[value] = value.to(dtype)
        return self.cast_parameters[value]

    @staticmethod
    def cross_entropy(logits, target, ignore_index=-100, reduction="mean", **others):
        assert not any(others.values()), f"only the plain loss is modelled, not {others}"
        return F.nll_loss(
            torch.log_softmax(logits, 1, dtype=torch.float32), target, ignore_index=ignore_index, reduction=reduction
        )

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        dtype = None
        if func in self.LOWER_PRECISION:
            dtype = self.dtype
        elif func in self.FULL_PRECISION:
            dtype = torch.float32
        if dtype is not None:
            args = [self.cast(a, dtype) for a in args]
            kwargs = {k: self.cast(a, dtype) for k, a in kwargs.items()}
        if func is F.cross_entropy:  # itself in no list, but it calls log_softmax, which is in the fp32 list
            return self.cross_entropy(*args, **kwargs)
        return func(*args, **kwargs)
