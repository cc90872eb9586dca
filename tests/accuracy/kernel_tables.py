"""Reads the published kernel tables (tables/*.csv) into plain rows: what ran, on what, how long.

Leaves out rows whose shape, direction or bytes the source does not state, and multi-kernel providers.
"""
import csv
import json
import pathlib

TABLES = pathlib.Path(__file__).parent / "tables"
GPU = {
    "A100-SXM4-80GB": "a100-80gb-sxm", "A100 SXM": "a100-80gb-sxm", "A100-80GB": "a100-80gb-sxm",
    "A100-PCIe-80GB": "a100-80gb-pcie", "A100 PCIe": "a100-80gb-pcie",
    "H100-SXM5-80GB": "h100-sxm", "H100 SXM": "h100-sxm", "H200-SXM-141GB": "h200-sxm", "H200 SXM": "h200-sxm",
    "H800-SXM": "h800-sxm", "B200-SXM": "b200-sxm", "B200 SXM": "b200-sxm", "B200 (1000 W)": "b200-sxm",
    "B300 SXM": "b300-sxm", "B300-SXM": "b300-sxm", "GB300": "gb300-nvl72", "GB200": "gb200-nvl72", "GB200 SXM": "gb200-nvl72", "L40S": "l40s", "AMD MI300X": "mi300x", "MI300X": "mi300x",
    "AMD MI325X": "mi325x", "MI325X": "mi325x", "AMD MI355X": "mi355x", "MI355X": "mi355x",
    "V100-SXM2 (DGX-1)": "v100-16gb-sxm2",
}


def read(name):
    with open(TABLES / f"{name}.csv", newline="") as f:
        return list(csv.DictReader(f))


def fields(shape):
    out = {}
    for part in shape.replace(" ", "").split(","):
        if "=" in part:
            key, value = part.split("=", 1)
            out[key.lower()] = value
    return out


def gemm_rows():
    """GEMM and grouped GEMM: dicts with table, gpu, op, b, m, n, k, dtype, out, accumulate, role, us, state."""
    out = []
    for r in read("simumax_kernel_efficiency"):
        if r["op"] == "matmul":
            s = fields(r["shape"])
            role = {"TN": "forward", "NN": "data_gradient", "NT": "weight_gradient"}[s["layout"]]
            out.append(dict(table="simumax", gpu=GPU[r["gpu"]], op="gemm", b=int(s["b"]), m=int(s["m"]), n=int(s["n"]),
                            k=int(s["k"]), dtype="bf16", out=s["out_dtype"], accumulate=s["accumulate"] == "True",
                            role=role, us=float(r["time_us_derived"]), state="loop"))
        elif r["op"] == "group_matmul":
            s = fields(r["shape"])
            m, n, k, g = int(s["m"]), int(s["n"]), int(s["k"]), int(s["ng"])
            role = {"fwd": "forward", "bwd_grad_act": "data_gradient", "bwd_grad_w": "weight_gradient"}[s["stage"]]
            if role == "data_gradient":
                n, k = k, n
            if role == "weight_gradient":
                m, n, k = n, k, m
            accumulate = s["accumulate"] == "True"
            out.append(dict(table="simumax", gpu=GPU[r["gpu"]], op="grouped_gemm", b=g, m=m, n=n, k=k, dtype="bf16",
                            out=s["main_grad_dtype"] if accumulate else "bf16", accumulate=accumulate, role=role,
                            us=float(r["time_us_derived"]), state="loop"))
    for r in read("gemm_aiconfigurator"):  # longer kernels reach the power limit in their loop
        if float(r["time_us"]) < 300:
            out.append(dict(table="aiconfigurator", gpu=GPU[r["gpu"]], op="gemm", b=1, m=int(r["m"]), n=int(r["n"]), k=int(r["k"]), dtype="bf16",
                            out="bf16", accumulate=False, role="forward", us=float(r["time_us"]), state="burst"))
    for r in read("gemm_deepbench"):  # cuBLAS: by columns, m and k or m and n filled up to 8 for tensor cores (code/nvidia/gemm_bench.cu)
        m, n, k = int(r["m"]), int(r["n"]), int(r["k"])
        role = {"yn": "forward", "nn": "data_gradient", "ny": "weight_gradient"}[r["a_transposed"] + r["b_transposed"]]
        m = -(-m // 8) * 8
        if role == "weight_gradient":
            n = -(-n // 8) * 8
        else:
            k = -(-k // 8) * 8
        out.append(dict(table="deepbench", gpu=GPU[r["gpu"]], op="gemm", b=1, m=n, n=m, k=k,
                        dtype="fp16", out="fp16", accumulate=False, role=role, us=float(r["time_us"]), state="burst"))
    for r in read("gemm_hipkittens"):  # bf16: the host's launch is in the time, of shorter ones too much of it
        if r["dtype"] == "fp8" or int(r["m"]) >= 8192:
            out.append(dict(table="hipkittens", gpu=GPU[r["gpu"]], op="gemm", b=1, m=int(r["m"]), n=int(r["n"]), k=int(r["k"]), dtype=r["dtype"],
                            out="bf16", accumulate=False, role="forward", us=float(r["time_us"]), state="burst"))
    seen = set()
    for r in read("kernels_gemm_attention"):
        gpu = GPU.get(r["gpu"])
        if not gpu or not r["shape"]:
            continue
        if r["op"] == "gemm (best shape found)":
            m, n, k = (int(x) for x in r["shape"].split("=")[1].split("x"))
            # The MI325X is the same chip at 1000 W: that the MI300X is 0.85 as fast here is its limit of 750 W.
            row = dict(table="mamf", op="gemm", b=1, state="sustained" if gpu == "mi300x" else "burst")
        elif r["op"] == "gemm":
            s = fields(r["shape"])
            m, n, k = int(s["m"]), int(s["n"]), int(s["k"])
            table = "deepgemm" if "DeepGEMM" in r["impl"] else "azure"
            if table == "azure":
                m, n = n, m  # cuBLASLt stores by columns: its m is the length of the result's rows
            row = dict(table=table, op="gemm", b=1, state="burst" if table == "deepgemm" else "sustained")
        elif r["op"].startswith("grouped gemm ("):
            s = fields(r["shape"])
            m, n, k = int(s["m_per_group"]), int(s["n"]), int(s["k"])
            row = dict(table="deepgemm", op="grouped_gemm", b=int(s["groups"]), state="burst")
        else:
            continue
        key = (row["table"], gpu, row["op"], row["b"], m, n, k, r["tflops"])
        if key in seen:  # one source repeats the other's tables
            continue
        seen.add(key)
        dtype = r["dtype"].split()[0]
        row.update(gpu=gpu, m=m, n=n, k=k, dtype=dtype, out="bf16", accumulate=False, role="forward",
                   us=2e-6 * row["b"] * m * n * k / float(r["tflops"]))
        out.append(row)
    return out


def fp8_rows():
    """Products of TensorRT-LLM in bf16 and in fp8, the latter with the pass that quantises their input: short ones, and ones of 3 ms and more."""
    return [dict(table="aiconfigurator", gpu=GPU[r["gpu"]], version=r["source"].split("/")[-1], dtype=r["dtype"], m=int(r["m"]), n=int(r["n"]), k=int(r["k"]),
                 us=float(r["time_us"])) for r in read("gemm_fp8_aiconfigurator")]


def nvfp4_rows():
    """4-bit products with the pass before them that quantises their 16-bit input (m x k)."""
    return [dict(table="aiconfigurator", gpu=GPU[r["gpu"]], op="gemm nvfp4", m=int(r["m"]), n=int(r["n"]), k=int(r["k"]), us=float(r["time_us"]))
            for r in read("gemm_nvfp4_aiconfigurator")]


def attention_rows():
    """Fused and unfused attention: dicts with table, gpu, impl, direction, b, h, hkv, s, d, dv, causal, window, us."""
    out = []
    names = {"FlashAttention-1": "flash1", "FlashAttention-2": "flash2", "FlashAttention-3": "flash3", "PyTorch unfused": "math"}
    for r in read("kernels_gemm_attention"):
        if r["op"] != "attention" or r["impl"] not in names or not r["tflops"] or not r["heads"]:
            continue
        b, s, h, d = int(r["batch"]), int(r["seq_len"]), int(r["heads"]), int(r["head_dim"])
        causal = r["causal"] == "y"
        flops = 4.0 * b * h * s * s * d * (0.5 if causal else 1) * (3.5 if r["direction"] == "fwd+bwd" else 1)
        out.append(dict(table="flash", gpu=GPU[r["gpu"]], impl=names[r["impl"]], direction=r["direction"], b=b, h=h, hkv=h,
                        s=s, d=d, dv=d, causal=causal, window=0, us=flops / float(r["tflops"]) * 1e-6))
    for r in read("simumax_kernel_efficiency"):
        if r["op"] in ("sdp_fwd", "sdp_bwd"):
            s = fields(r["shape"])
            out.append(dict(table="simumax", gpu=GPU[r["gpu"]], impl="cudnn" if "B200" in r["gpu"] else "flash2",
                            direction=r["op"][4:], b=int(s["batch"]), h=int(s["head_num"]), hkv=int(s["kv_head_num"]),
                            s=int(s["seq_len"]), d=int(s["qk_head_dim"]), dv=int(s["v_head_dim"]), causal=True,
                            window=0, us=float(r["time_us_derived"])))
    for r in read("context_parallel_attention"):
        if r["n_gpus"] == "1" and r["api"] == "batch":
            out.append(dict(table="ring-flash", gpu=GPU[r["gpu"]], impl="flash2", direction=r["phase"], b=1,
                            h=int(r["heads"]), hkv=int(r["kv_heads"]), s=8192, d=128, dv=128, causal=True,
                            window=0, us=1e3 * float(r["ms_per_iter"])))
    for r in read("attention_aiconfigurator"):  # longer kernels may reach the power limit in their loop
        if float(r["time_us"]) < 300:
            d = int(r["head_dim"])
            out.append(dict(table="aiconfigurator " + r["source"].split("/")[1], gpu=GPU[r["gpu"]], impl="flash3", direction="fwd",
                            b=int(r["batch"]), h=int(r["heads"]), hkv=int(r["kv_heads"]), s=int(r["seq_len"]), d=d, dv=d,
                            causal=True, window=int(r["window"]), us=float(r["time_us"])))
    for r in read("attention_cudnn_frontend"):
        if float(r["time_us"]) < 1e5:
            out.append(dict(table="cudnn-frontend", gpu=GPU[r["gpu"]], impl="cudnn" if r["cudnn"] == "before 9.13" else "cudnn_9_13",
                            direction=r["direction"], b=int(r["batch"]), h=int(r["heads"]), hkv=int(r["kv_heads"]), s=int(r["seq_len"]),
                            d=int(r["head_dim"]), dv=int(r["value_head_dim"]), causal=r["causal"] == "y", window=int(r["window"]),
                            us=float(r["time_us"])))
    for r in read("attention_cudnn_fp8"):
        if float(r["time_us"]) < 1e5:
            out.append(dict(table="cudnn-frontend", gpu=GPU[r["gpu"]], impl="cudnn_" + r["dtype"], direction=r["direction"], b=int(r["batch"]), h=int(r["heads"]),
                            hkv=int(r["kv_heads"]), s=int(r["seq_len"]), d=int(r["head_dim"]), dv=int(r["value_head_dim"]), causal=r["causal"] == "y",
                            window=int(r["window"]), us=float(r["time_us"])))
    for r in read("attention_sdpa_loops"):  # 30 at once: under 6 ms each the power limit has no time to act
        if r["cudnn"] != "9.1.0" or r["implementation"] != "cudnn":  # parameters are of 9.4 and later
            if float(r["time_us"]) < 6e3:
                d = int(r["head_dim"])
                out.append(dict(table="sdpa loops", gpu=GPU[r["gpu"]], impl=r["implementation"], direction=r["direction"], b=int(r["batch"]),
                                h=int(r["heads"]), hkv=int(r["kv_heads"]), s=int(r["seq_len"]), d=d, dv=d, causal=r["causal"] == "y",
                                window=0, us=float(r["time_us"])))
    for r in read("attention_aotriton"):  # tiles for every compute unit; the assembly kernels are AITER's, whose own table is fitted
        if r["kernels"] == "triton" and int(r["batch"]) * int(r["heads"]) * int(r["seq_len"]) >= 128 * 304:
            d = int(r["head_dim"])
            out.append(dict(table="aotriton", gpu=GPU[r["gpu"]], impl="aotriton", direction=r["direction"], b=int(r["batch"]), h=int(r["heads"]),
                            hkv=int(r["kv_heads"]), s=int(r["seq_len"]), d=d, dv=d, causal=r["causal"] == "y", window=0, us=float(r["time_us"])))
    for r in read("attention_aiter"):  # what AMD's recipes take: fp32 atomics on MI300X (fp16 ones overflow there), 16-bit ones on MI355X
        if r["dq_accumulation"] in ("", "fp32" if r["gpu"] == "MI300X" else "fp16"):
            d = int(r["head_dim"])
            out.append(dict(table="aiter", gpu=GPU[r["gpu"]], impl="flash2", direction=r["direction"], b=int(r["batch"]), h=int(r["heads"]),
                            hkv=int(r["kv_heads"]), s=int(r["seq_len"]), d=d, dv=d, causal=r["causal"] == "y", window=0, us=float(r["time_us"])))
    return out


def memory_rows():
    """Single fused kernels of the Liger table: dicts with table, gpu, kind, backward, bytes, us.

    Bytes: tensors read and written by the kernel as its source has it (cross entropy reads the logits twice and writes
    their gradient in place). The harness empties the L2 before each run and adds its own few microseconds.
    """
    out = []
    for r in read("liger_kernels"):
        if r["metric"] != "speed" or r["provider"] != "liger" or r["mode"] not in ("forward", "backward"):
            continue
        c, x, backward = json.loads(r["config"]), float(r["x_value"]), r["mode"] == "backward"
        size = 4 if "float32" in c.get("dtype", "") else 2
        streams = {"layer_norm": ("normalization", 2, 3), "rms_norm": ("normalization", 2, 3),
                   "relu_squared": ("elementwise", 2, 3)}
        kernel = r["kernel"]
        if kernel in streams:
            kind, forward_passes, backward_passes = streams[kernel]
            count = (backward_passes if backward else forward_passes) * size * c["M"] * x
        elif backward:
            continue  # the harness's own launches dominate the other backward rows
        elif kernel == "cross_entropy":
            kind, count = "cross_entropy", 3 * 4 * c["B"] * c["T"] * x
        elif kernel == "megatron_cross_entropy":
            kind, count = "cross_entropy", 3 * 2 * c["S"] * c["B"] * x
        elif kernel == "megatron_rms_norm":
            kind, count = "normalization", 2 * 2 * c["S"] * c["B"] * x
        elif kernel == "megatron_swiglu":
            kind, count = "elementwise", 3 * 2 * c["S"] * c["B"] * x
        elif kernel == "rope":
            width = (c.get("hidden_size") or x) * (c["num_q_heads"] + c["num_kv_heads"]) / c["num_q_heads"]
            kind, count = "elementwise", 2 * 2 * (c.get("seq_len") or x) * width
        elif kernel == "embedding":
            unique = min(c["B"] * c["T"], x)  # rows gathered twice come from the L2
            kind, count = "embedding", 4 * c["D"] * (c["B"] * c["T"] + unique)
        else:
            continue
        out.append(dict(table="liger", gpu=GPU[r["gpu"]], kind=kind, backward=backward, bytes=count,
                        us=1e3 * float(r["median"])))
    return out


def eager_rows():
    """Chains of PyTorch's own kernels in the Liger table: dicts with table, gpu, op, parts [(kind, bytes)], us; of strided
    ones elements of the result too.

    strided: pointwise, an operand broadcast over rows or heads, a chunk of a wider tensor, or permuted. Sources of the
    chains: benchmark/scripts of Liger-Kernel and modeling_llama.py of transformers (RMSNorm widens, squares, averages,
    scales by rows, casts, scales by an fp32 weight; rope is x cos + cat(-x2, x1) sin over permuted heads).
    """
    out = []
    for r in read("liger_kernels"):
        if r["metric"] != "speed" or r["mode"] != "forward":
            continue
        c, x = json.loads(r["config"]), float(r["x_value"])
        size = 4 if "float32" in c.get("dtype", "") else 2
        key = (r["kernel"], r["provider"])
        if key == ("megatron_swiglu", "torch"):
            n = c["S"] * c["B"] * x
            parts = [("strided", 4 * n, n), ("strided", 6 * n, n)]
        elif key == ("rms_norm", "huggingface"):
            n = c["M"] * x
            parts = [("elementwise", 6 * n), ("elementwise", 8 * n), ("reduction", 4 * n), ("elementwise", 0), ("strided", 8 * n, n),
                     ("elementwise", 6 * n), ("strided", 6 * n, n)]
        elif key == ("fused_add_rms_norm", "huggingface"):
            n = c["M"] * x
            parts = [("elementwise", 12 * n), ("elementwise", 8 * n), ("reduction", 4 * n), ("elementwise", 0), ("strided", 8 * n, n), ("strided", 8 * n, n)]
        elif key == ("rope", "huggingface"):
            width = (c.get("hidden_size") or x) * (c["num_q_heads"] + c["num_kv_heads"]) / c["num_q_heads"]
            n = (c.get("seq_len") or x) * width
            parts = [("strided", 4 * n, n), ("strided", 2 * n, n / 2), ("strided", 4 * n, n), ("strided", 4 * n, n), ("strided", 6 * n, n)] + [("elementwise", 0)] * 5
        elif key == ("layer_norm", "huggingface"):
            parts = [("native_normalization", 2 * size * c["M"] * x)]
        elif key == ("megatron_rms_norm", "torch"):
            parts = [("native_normalization", 2 * 2 * c["S"] * c["B"] * x)]
        else:
            continue
        out.append(dict(table="liger", gpu=GPU[r["gpu"]], op=r["kernel"], parts=parts, us=1e3 * float(r["median"])))
    return out
