"""The kernel model's formulas (hwmodels/device/*_cost.cpp) once more, vectorised for fitting.

Leaves out the fit (fit_kernels.py) and the numbers. The C++ accuracy test recomputes the same errors, so a difference
between the two languages shows as two different tables.
"""
import numpy as np

TILES = [(256, 128), (128, 256), (128, 128), (64, 256), (256, 64), (128, 64), (64, 128), (64, 64)]
REFERENCE_EDGE = 1 / 128 + 1 / 256
QUERY_TILE = 128.0


def waves(tiles, sms, q):
    w = tiles / sms
    return np.maximum(1.0, w + q * (np.ceil(w) - w))


def gemm_us(gpu, p, rate, b, m, n, k, operand, result, grouped=False):
    """gemm_cost.cpp. gpu: sms, hbm, l2; rate: FLOP/s of the whole GPU; operand, result: bytes; arrays or scalars."""
    b, m, n, k = (np.asarray(x, float) for x in (b, m, n, k))
    best = np.full(np.broadcast(b, m).shape, np.inf)
    hbm = gpu["hbm"] * p["gemm_hbm_fraction"]
    once = operand * (m * k + k * n)
    for tm, tn in TILES:
        rows = np.maximum(1.0, m / tm + 0.5) if grouped else np.ceil(m / tm)
        columns = np.ceil(n / tn)
        tiles = b * rows * columns
        fetch = 1 + p["tile_fetch"] * ((1 / tm + 1 / tn) / REFERENCE_EDGE - 1)
        wave_rows = np.minimum(rows, np.maximum(np.sqrt(gpu["sms"] * tn / tm), gpu["sms"] / columns))
        wave_columns = np.minimum(columns, np.maximum(1.0, gpu["sms"] / wave_rows))
        again = operand * k * rows * columns * (tm / wave_columns + tn / wave_rows)
        reads = np.where(once <= gpu["l2"] * p["l2_share"], once, np.maximum(once, again))
        for split in (1, 2, 4, 8):
            partial = 8.0 * b * m * n * split if split > 1 else 0.0
            depth = k / split + p["k_ramp_bytes"] / operand
            compute = waves(tiles * split, gpu["sms"], p["wave_quantisation"]) * 2 * tm * tn * depth * gpu["sms"] / rate * fetch
            memory = (b * (reads + result * m * n) + partial) / hbm
            total = np.maximum(compute, memory) + p["overlap_leak"] * np.minimum(compute, memory)
            best = np.where((split == 1) | (tiles < gpu["sms"]), np.minimum(best, total), best)
    return best * 1e6 + p["gemm_launch_us"] + (b * p["grouped_group_us"] if grouped else 0.0)


def attention_us(gpu, p, a, peak, clock, row, backward):
    """attention_cost.cpp for one row; a: parameters of one implementation; clock: of the burst clock,
    while matrix products run; attention keeps more of it by how much less the tensor units draw."""
    s, heads, d, dv, window = float(row["s"]), float(row["b"] * row["h"]), row["d"], row["dv"], min(row["window"], row["s"])
    fraction = a["backward_fraction"] * (p["wide_head_backward_fraction"] if d > 128 else 1) if backward else a["forward_fraction"]
    products = 2.0 * (d + dv) * (2.5 if backward else 1)
    softmax = a.get("backward_softmax_flops", a["softmax_flops"]) if backward else a["softmax_flops"]
    per_score = products + softmax * gpu.get("backward_softmax_factor" if backward else "softmax_factor", 1.0)
    busy = fraction * products / per_score
    sm_rate = peak * (1 if clock >= 1 else min(1, clock * (p["gemm_peak_fraction"] / busy) ** 0.266)) * fraction / gpu["sms"]
    ramp = a["key_ramp"] + a["causal_waste"] * (row["causal"] + (row["window"] > 0))
    seen = (s + 1) / 2 if row["causal"] else s
    if window:
        seen = window - window * (window - 1) / (2 * s)
    tiles = heads * np.ceil(s / QUERY_TILE)
    one = QUERY_TILE * (seen + ramp) * per_score / sm_rate
    longest = QUERY_TILE * ((window or s) + ramp) * per_score / sm_rate
    return 1e6 * max(waves(tiles, gpu["sms"], a["wave_quantisation"]) * one, longest) + p["gemm_launch_us"] * (2 if backward else 1)


def math_us(gpu, p, rate, row, backward):
    """Unfused attention, attention_cost.cpp."""
    scores = float(row["b"] * row["h"]) * row["s"] ** 2
    passes = p["math_passes_backward"] if backward else p["math_passes_forward"] + (p["math_passes_mask"] if row["causal"] else 0)
    flops = 2 * scores * (row["d"] + row["dv"]) * (2 if backward else 1)
    return 6 * p["memory_launch_us"] + 1e6 * (flops / rate + passes * scores * 2 / (gpu["hbm"] * p["softmax_fraction"]))
