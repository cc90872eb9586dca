#!/usr/bin/env python3
"""Times PyTorch's attention kernels (FlashAttention-2, cuDNN, memory-efficient, unfused) and writes a measurements file
(../measurements.md) beside those of rehearse-probe, whose own attention kernel is only a lower bound. A run that was cut off
goes on in the same file.

  attention.py --out FILE [--budget SECONDS]           needs PyTorch 2.5 or later and one NVIDIA GPU
  attention.py --out FILE --device cpu --tiny          the same code on small shapes, as a test"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path


def median_interval(n):
    """Ranks (from 1) that enclose the median with 95 % probability; as calibrate/probe/statistics.h."""
    below, j = 0.0, 0
    while j < n // 2:
        below += math.comb(n, j) / 2**n
        if 2 * below > 0.05:
            break
        j += 1
    return (1, n) if j == 0 else (j, n + 1 - j)


def series(operation, parameters, samples, repeats, converged, clock, note):
    ordered = sorted(samples)
    low, high = median_interval(len(ordered))
    median = statistics.median(ordered)
    half = len(samples) // 2
    out = {"operation": operation, "parameters": parameters, "samples": len(samples), "repeats": repeats, "median_s": median,
           "mean_s": statistics.fmean(ordered), "min_s": ordered[0], "max_s": ordered[-1], "stddev_s": statistics.stdev(ordered) if half else 0.0,
           "relative_error": (ordered[high - 1] - ordered[low - 1]) / 2 / median, "converged": converged}
    if len(samples) >= 4:
        out["drift"] = statistics.median(samples[half:]) / statistics.median(samples[:half]) - 1
    if clock:
        out["sm_clock_mhz"] = clock
    if note:
        out["note"] = note
    return out


def plan(tiny):
    out = []
    lengths = [64, 128] if tiny else [2048, 512, 4096, 1024, 8192, 16384]
    for length in lengths:
        for head_dim in ([16] if tiny else [128, 64]):
            heads = 4 if tiny else 2048 // head_dim
            for causal in (True, False):
                for name in ("flash2", "cudnn", "mem_efficient", "sdpa_math"):
                    if name == "sdpa_math" and length > 4096:
                        continue  # its scores alone would fill the memory
                    for kv_heads in (heads, heads // 4) if name in ("flash2", "cudnn") and length == 2048 else (heads,):
                        out.append({"batch": max(1, 16384 // length) if not tiny else 1, "heads": heads, "kv_heads": kv_heads, "query_length": length,
                                    "key_length": length, "head_dim": head_dim, "causal": causal, "dtype": "bf16", "implementation": name})
    return out


def take_up(result, path):
    """Series of an earlier run in this file on this machine and PyTorch. A file that is not of them is refused: ValueError."""
    if not path.exists() or not path.read_text().strip():
        return
    try:
        earlier = json.loads(path.read_text())
    except ValueError as e:
        raise ValueError(f"{path}:{getattr(e, 'lineno', 1)}: is not JSON ({e}); take it away, or name another by --out") from None
    for part in ("source", "machine", "software"):
        if not isinstance(earlier, dict) or earlier.get(part) != result[part]:
            raise ValueError(f"{path}: {part} is not this run's; name another file by --out")
    result["series"] = earlier["series"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--budget", type=float, default=120)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention as attention
    except ImportError as e:
        print(f"attention.py: PyTorch 2.5 or later is needed ({e})", file=sys.stderr)
        return 3
    cuda = options.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("attention.py: PyTorch sees no GPU", file=sys.stderr)
        return 3
    backends = {"flash2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
                "sdpa_math": SDPBackend.MATH}
    result = {"schema": "rehearse-measurements/1", "source": "calibrate/ground_truth/attention.py", "machine": {}, "software": {"pytorch": torch.__version__},
              "options": {"mode": "quick", "budget_s": options.budget}, "warnings": [], "skipped": [], "series": []}
    if cuda:
        p = torch.cuda.get_device_properties(0)
        result["machine"] = {"gpu": p.name, "gpu_count": 1, "compute_capability": 10 * p.major + p.minor, "sms": p.multi_processor_count,
                             "gpu_memory_bytes": p.total_memory}
        result["software"] |= {"cuda_runtime": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}

    try:
        take_up(result, options.out)
    except ValueError as e:
        print(f"attention.py: {e}", file=sys.stderr)
        return 2
    done = [(s["operation"], s["parameters"]) for s in result["series"]]

    def clock():
        try:
            return float(torch.cuda.clock_rate()) if cuda else None
        except Exception:  # noqa: BLE001  nvidia-ml-py is not there
            return None

    def timed(act, repeats):
        """Seconds of one execution, by events around `repeats` of them."""
        if not cuda:
            start = time.perf_counter()
            for _ in range(repeats):
                act()
            return (time.perf_counter() - start) / repeats
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000 + 300_000 * repeats)  # cycles; the host runs ahead meanwhile
        first.record()
        for _ in range(repeats):
            act()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / repeats

    def measure(operation, parameters, act):
        for _ in range(3):
            timed(act, 1)
        once = timed(act, 1)
        repeats = max(1, min(100, math.ceil(0.5e-3 / once)))
        samples, start, clocks, converged = [], time.monotonic(), [], False
        while time.monotonic() - start < 0.3 or len(samples) < 3:
            samples.append(timed(act, repeats))
            if len(samples) >= 10 and time.monotonic() - start > 0.05:
                low, high = median_interval(len(samples))
                ordered = sorted(samples)
                converged = (ordered[high - 1] - ordered[low - 1]) / 2 / statistics.median(ordered) <= 0.01
                if converged:
                    break
        clocks.append(clock())
        mhz = clocks[-1]
        result["series"].append(series(operation, parameters, samples, repeats, converged, mhz, "scaled_dot_product_attention of PyTorch"))

    def save():
        beside = options.out.with_suffix(".part")
        beside.write_text(json.dumps(result, indent=1))
        os.replace(beside, options.out)

    for parameters in plan(options.tiny):
        if ("attention_backward", parameters) in done:
            continue
        if time.monotonic() - begin > options.budget:
            print("attention.py: out of time", file=sys.stderr)
            break
        b, h, kv, t, d = (parameters[k] for k in ("batch", "heads", "kv_heads", "query_length", "head_dim"))
        operation = "attention_forward"
        try:
            with torch.device(options.device), sdpa_kernel([backends[parameters["implementation"]]]):
                q = torch.randn(b, h, t, d, dtype=torch.bfloat16, requires_grad=True)
                k, v = (torch.randn(b, kv, t, d, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

                def forward():
                    return attention(q, k, v, is_causal=parameters["causal"], enable_gqa=kv != h)  # noqa: B023

                if ("attention_forward", parameters) not in done:
                    with torch.no_grad():
                        measure("attention_forward", parameters, forward)
                operation = "attention_backward"
                y = forward()
                gradient = torch.randn_like(y)
                measure("attention_backward", parameters, lambda: torch.autograd.grad(y, (q, k, v), gradient, retain_graph=True))  # noqa: B023
        except (RuntimeError, torch.OutOfMemoryError) as e:
            result["skipped"].append({"operation": operation, "parameters": parameters, "reason": str(e).splitlines()[0][:200]})
            if cuda:
                torch.cuda.empty_cache()
        save()
    save()
    print(f"attention.py: {len(result['series'])} series, {len(result['skipped'])} not possible, in {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
