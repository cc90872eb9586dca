"""Fits the kernel model's parameters, per architecture, to all published kernel tables at once.

Usage: fit_kernels.py [--without TABLE | --each-length | --leave-one-out] [ARCHITECTURE ...]. Prints parameters for hwmodels/data/kernel/*.yaml and errors
by table, GPU and operation. Nuisance parameters (a harness's floor, how fast a loop of long kernels reaches the power
limit) belong to a table and stay out of the model. What each number means: hwmodels/device/kernel_parameters.h.
"""
import argparse
import pathlib

import numpy as np
import yaml
from scipy.optimize import least_squares

import kernel_formulas as F
import kernel_tables as T

GPU_FILES = pathlib.Path(__file__).parents[2] / "hwmodels" / "data" / "gpu"
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
SCALE = {"GB/s": 1e9, "MB": 1e6, "MHz": 1e6, "TFLOPS": 1e12}
ULTRA = ("b300-sxm", "gb300-nvl72")  # twice the exponentials per clock (NVIDIA, Blackwell Ultra)
# Tables of square products alone do not tell shapes apart: taken from the file of the architecture whose tiles and library are the nearest.
SHAPES_LIKE = {"cdna4": "cdna3"}
SHAPE_FIELDS = ["tile_fetch", "wave_quantisation", "k_ramp_bytes", "overlap_leak", "gemm_hbm_fraction"]
GEMM_GROUP = ["table", "gpu", "op", "dtype"]
ASSUMED_SOFTMAX_FLOPS = 64
ATTENTION_FIELDS = ["forward_fraction", "backward_fraction", "softmax_flops", "key_ramp", "causal_waste", "wave_quantisation"]


def number(text):
    value, unit = text.split()
    return float(value) * SCALE[unit]


def load_gpus():
    out = {}
    for path in GPU_FILES.glob("*.yaml"):
        data = yaml.safe_load(path.read_text())
        out[path.stem] = dict(architecture=data["architecture"], sms=data["sms"]["value"], l2=number(data["l2"]["value"]),
                              hbm=number(data["hbm_bandwidth"]["value"]), clock=number(data["boost_clock"]["value"]),
                              peak={t: number(v["value"]) for t, v in data["peak"].items()})
    return out


def balanced_weights(groups, count):
    """Each (table, GPU, operation) counts as the square root of its rows: big tables do not drown small ones."""
    w = np.zeros(count)
    for index in groups.values():
        w[index] = len(index) ** -0.25
    return w


def report(title, groups, predicted, measured):
    print(f"  {title}")
    for key, index in sorted(groups.items(), key=str):
        e = predicted[index] / measured[index] - 1
        print(f"    {' '.join(map(str, key)):58s} n={len(index):4d} MAPE {100 * np.mean(abs(e)):5.1f} % bias {100 * np.mean(e):+5.1f} %")


def none_of_them(row):
    return False


def unit_of(rows, *fallback):
    """What is left out at once: a table on a GPU, or, of one alone, the rows with the same `fallback` (each row where there is none)."""
    if len({(r["table"], r["gpu"]) for r in rows}) > 1:
        return lambda row: (row["table"], row["gpu"])
    return (lambda row: tuple(row[c] for c in fallback)) if fallback else id


def report_left_out(title, rows, groups, measured, fit, unit):
    """Errors of every group by a fit of all rows, and by fits that have not seen the group's rows. `fit`: from what is left out to microseconds."""
    inside, outside = fit(none_of_them), np.zeros(len(rows))
    for name in sorted({unit(r) for r in rows}, key=str):
        own = [i for i, r in enumerate(rows) if unit(r) == name]
        outside[own] = fit(lambda row: unit(row) == name)[own]
    print(f"  {title}")
    for key, index in sorted(groups.items(), key=str):
        a, b = (x[index] / measured[index] - 1 for x in (inside, outside))
        print(f"    {' '.join(map(str, key)):58s} n={len(index):4d} inside MAPE {100 * np.mean(abs(a)):5.1f} % bias {100 * np.mean(a):+5.1f} %"
              f"   left out {100 * np.mean(abs(b)):5.1f} % bias {100 * np.mean(b):+5.1f} %")


def kept(rows, left_out):
    """1 for every row that counts in the fit, 0 for those left out."""
    return np.array([0.0 if left_out(r) else 1.0 for r in rows])


def grouped_by(rows, *columns):
    groups = {}
    for i, r in enumerate(rows):
        groups.setdefault(tuple(r[c] for c in columns), []).append(i)
    return {key: np.array(index) for key, index in groups.items()}


def gemm_rows_of(gpus, architecture):
    return [r for r in T.gemm_rows() if gpus.get(r["gpu"], {}).get("architecture") == architecture and r["dtype"] in BYTES]


def fit_gemm(gpus, rows, left_out=none_of_them):
    """Parameters, and microseconds of every row by them; rows left out count for nothing in the fit."""
    y = np.array([r["us"] for r in rows])
    groups = grouped_by(rows, *GEMM_GROUP)
    kept_rows = [r for r in rows if not left_out(r)]
    seen = {r[c] for r in kept_rows for c in ("role", "op", "dtype", "state")} | {f"clock of {r['gpu']}" for r in kept_rows if r["state"] != "burst"}
    # name: start, least, most, and what must be in the tables for it to be fitted (else the start stays)
    table = {"gemm_peak_fraction": (.88, .4, 1, None), "tile_fetch": (.15, 0, 1, None), "wave_quantisation": (.5, 0, 1, None),
             "k_ramp_bytes": (200, 0, 1500, None), "overlap_leak": (.15, 0, .6, None), "gemm_hbm_fraction": (.85, .5, .95, None),
             "gemm_launch_us": (4, 1.5, 8, None), "gemm_data_gradient_fraction": (.98, .7, 1, "data_gradient"),
             "gemm_weight_gradient_fraction": (.95, .7, 1, "weight_gradient"), "gemm_fp8_fraction": (.95, .6, 1, "fp8"),
             "grouped_fraction": (.95, .4, 1, "grouped_gemm"), "grouped_group_us": (2, 0, 20, "grouped_gemm"),
             "throttle_us": (150, 20, 5000, "loop")}
    for g in sorted({r["gpu"] for r in rows if r["state"] != "burst"}):
        table["clock " + g] = (.85, .4, 1, f"clock of {g}")
    like = SHAPES_LIKE.get(gpus[rows[0]["gpu"]]["architecture"])
    if like:
        kept = yaml.safe_load((GPU_FILES.parent / "kernel" / f"{like}.yaml").read_text())["parameters"]
        table.update({n: (kept[n]["value"], 0, 0, "its own") for n in SHAPE_FIELDS})
    free = [n for n, v in table.items() if v[3] is None or v[3] in seen]
    fixed = {n: v[0] for n, v in table.items() if n not in free}

    def predict(x):
        p = dict(fixed, l2_share=0.5, **dict(zip(free, x)))
        out = np.zeros(len(rows))
        for (_, g, op, dtype), index in groups.items():
            rr = [rows[i] for i in index]
            role = {"forward": 1, "data_gradient": p["gemm_data_gradient_fraction"], "weight_gradient": p["gemm_weight_gradient_fraction"]}
            rate = gpus[g]["peak"][dtype] * p["gemm_peak_fraction"] * (p["gemm_fp8_fraction"] if dtype == "fp8" else 1)
            rate = rate * np.array([role[r["role"]] for r in rr]) * (p["grouped_fraction"] if op == "grouped_gemm" else 1)
            shape = [np.array([r[c] for r in rr], float) for c in "bmnk"]
            result = np.array([BYTES[r["out"]] * (2 if r["accumulate"] else 1) for r in rr], float)
            clock = p.get("clock " + g, 1.0)
            burst, hot = (F.gemm_us(gpus[g], p, rate * c, *shape, BYTES[dtype], result, op == "grouped_gemm") for c in (1, clock))
            state = rr[0]["state"]
            cold = np.exp(-hot / p["throttle_us"]) if state == "loop" else float(state == "burst")
            out[index] = burst * cold + hot * (1 - cold)
        return out

    w = balanced_weights(groups, len(rows))
    w[[i for i, r in enumerate(rows) if left_out(r)]] = 0
    start, least, most = (np.array([table[n][i] for n in free], float) for i in range(3))
    fit = least_squares(lambda x: 10 * w * np.log(predict(x) / y), start, bounds=(least, most), loss="soft_l1", f_scale=.5,
                        diff_step=1e-3)
    return dict(fixed, **dict(zip(free, map(float, fit.x)))), predict(fit.x)


def hold_out_each_length(gpus, rows):
    """Microseconds of every row by a fit that has seen no row of its K."""
    out = np.zeros(len(rows))
    for k in sorted({r["k"] for r in rows}):
        own = [i for i, r in enumerate(rows) if r["k"] == k]
        out[own] = fit_gemm(gpus, rows, lambda r: r["k"] == k)[1][own]
    return out


def fit_nvfp4(gpus, architecture, gemm):
    """The fraction of the 4-bit peak, for each GPU: chips of one architecture differ in what feeds their tensor units."""
    out = {}
    rows = [r for r in T.nvfp4_rows() if gpus[r["gpu"]]["architecture"] == architecture]
    for gpu in sorted({r["gpu"] for r in rows}):
        rr = [r for r in rows if r["gpu"] == gpu]
        y = np.array([r["us"] for r in rr])
        m, n, k = (np.array([r[c] for r in rr], float) for c in "mnk")
        g = gpus[gpu]

        def predict(x):  # fraction, speed of the quantising pass as a fraction of HBM, its launch
            rate = g["peak"]["nvfp4"] * gemm["gemm_peak_fraction"] * x[0]
            return F.gemm_us(g, dict(gemm, l2_share=0.5), rate, 1, m, n, k, .5, 2) + m * k * 2.5 / (x[1] * g["hbm"]) * 1e6 + x[2]

        fit = least_squares(lambda x: np.log(predict(x) / y), [.8, .5, 5], bounds=([.3, .2, 0], [1, .9, 25]), loss="soft_l1", f_scale=.1)
        report("4-bit products", grouped_by(rr, "table", "gpu", "op"), predict(fit.x), y)
        out["gemm_nvfp4_fraction " + gpu] = float(fit.x[0])
        print("     quantising pass of", gpu, fit.x[1:])
    return out


def fit_fp8(gpus, architecture, gemm):
    """fp8 beside bf16 products of one library on one GPU: how fast short ones are, and what clock those of 3 ms and more keep."""
    rows = [r for r in T.fp8_rows() if gpus[r["gpu"]]["architecture"] == architecture]
    rates, clocks = {}, {}
    for (gpu, version), index in sorted(grouped_by(rows, "gpu", "version").items()):
        g, rate, clock = gpus[gpu], {}, {}
        for dtype, quantised in (("bf16", 0), ("fp8", 3)):
            rr = [rows[i] for i in index if rows[i]["dtype"] == dtype]
            y = np.array([r["us"] for r in rr])
            m, n, k = (np.array([r[c] for r in rr], float) for c in "mnk")

            def predict(x):  # fraction, speed of the quantising pass as a fraction of HBM, launches
                peak = g["peak"][dtype] * gemm["gemm_peak_fraction"] * x[0]
                return F.gemm_us(g, dict(gemm, l2_share=0.5), peak, 1, m, n, k, BYTES[dtype], 2) + m * k * quantised / (x[1] * g["hbm"]) * 1e6 + x[2]

            short = y < 300
            fit = least_squares(lambda x: np.log(predict(x) / y)[short], [.9, .5, 3], bounds=([.3, .1, 0], [1.5, 1.2, 25]), loss="soft_l1", f_scale=.1)
            rate[dtype], clock[dtype] = float(fit.x[0]), float(np.median((predict(fit.x) / y)[~short]))
        print(f"  fp8 beside bf16, {gpu} {version}: rate {rate['fp8'] / rate['bf16']:.3f}, clock of long ones {clock['bf16']:.3f} and {clock['fp8']:.3f}")
        rates.setdefault(gpu, []).append(rate["fp8"] / rate["bf16"])
        clocks.setdefault(gpu, []).append(clock["fp8"] / clock["bf16"])
    if not rows:
        return {}
    mean = {name: float(np.mean([np.mean(v) for v in by_gpu.values()])) for name, by_gpu in (("rate", rates), ("clock", clocks))}
    return {"gemm_fp8_fraction of TensorRT-LLM": mean["rate"], "clock of fp8 products over bf16 ones": mean["clock"],
            "gemm_8bit_power of a training step": 0.5 + 0.5 * mean["clock"] ** (-1 / 0.266)}


ATTENTION_GROUP = ["table", "gpu", "impl", "direction", "d", "window"]


def attention_rows_of(gpus, architecture):
    """By kernel, in an order in which later ones may lean on earlier ones."""
    for impl in ("flash1", "flash2", "flash3", "cudnn_9_13", "cudnn", "cudnn_fp8", "cudnn_mxfp8", "aotriton"):
        rows = [r for r in T.attention_rows() if gpus[r["gpu"]]["architecture"] == architecture and r["impl"] == impl]
        if rows:
            yield impl, rows


def fit_attention(gpus, architecture, gemm):
    out = {}
    for impl, rows in attention_rows_of(gpus, architecture):
        values, predicted = fit_attention_kernel(gpus, rows, impl, gemm, out)
        report(f"attention {impl}", grouped_by(rows, *ATTENTION_GROUP), predicted, np.array([r["us"] for r in rows]))
        out.update(values)
    return out


def fit_attention_kernel(gpus, rows, impl, gemm, out, left_out=none_of_them):
    """Parameters of one kernel, and microseconds of every row by them. `out`: parameters of the kernels before it."""
    p = dict(gemm_launch_us=gemm["gemm_launch_us"], gemm_peak_fraction=gemm["gemm_peak_fraction"])
    y = np.array([r["us"] for r in rows])
    groups = grouped_by(rows, *ATTENTION_GROUP)
    ultra = {r["gpu"] for r in rows if r["gpu"] in ULTRA}
    hot = {d for d in ("fwd", "bwd") if any(r["table"] == "simumax" for r in rows)}
    narrow = impl in ("cudnn_fp8", "cudnn_mxfp8")   # wide heads are no slower; of Blackwell Ultra's twice the exponentials backward gains less
    nuisance = {} if narrow else {"wide": (.85, .5, 1)}
    nuisance.update({"ultra": (.6, .2, 1)} if ultra else {})
    nuisance.update({"backward_softmax_flops": (2000, 0, 6000)} if narrow else {})
    nuisance.update({"ultra back": (.8, .2, 1.5)} if narrow and ultra else {})
    nuisance.update({f"floor {d}": (60, 0, 140) for d in sorted(hot)})
    nuisance.update({"extra": (5, 0, 60), "throttle_us": (8e3, 1e2, 1e5)} if hot else {})
    nuisance.update({"harness": (5, 0, 25)} if any(r["table"].startswith("aiconfigurator") for r in rows) else {})
    names = ATTENTION_FIELDS + list(nuisance)
    # Heads of one size cannot tell softmax from products: tiles as those of the later version.
    shared = ["softmax_flops", "key_ramp", "causal_waste", "wave_quantisation"] if min(r["d"] for r in rows) >= 128 else []
    start = [.6, .5, 100, 50, 64, .5] + [v[0] for v in nuisance.values()]
    least = [.1, .1, 0, 0, 0, 0] + [v[1] for v in nuisance.values()]
    most = [1, 1, 2000 if narrow else 600, 1000, 500, 1] + [v[2] for v in nuisance.values()]
    # Where there is no later version either, what a score costs beside its products is assumed.
    later = "cudnn_9_13_softmax_flops" in out
    for n in shared if later else shared[:1]:
        i, value = names.index(n), out[f"cudnn_9_13_{n}"] if later else ASSUMED_SOFTMAX_FLOPS
        start[i], least[i], most[i] = value, value - 1e-6, value + 1e-6

    def predict(x):
        a = dict(zip(names, x))
        q = dict(p, wide_head_backward_fraction=a.get("wide", 1))
        values = []
        for i, r in enumerate(rows):
            g = gpus[r["gpu"]]
            if r["gpu"] in ultra:
                g = dict(g, softmax_factor=a["ultra"], backward_softmax_factor=a.get("ultra back", a["ultra"]))
            loop = r["table"] == "simumax"
            low = gemm.get("clock " + r["gpu"], 1.0)
            clock = low + (1 - low) * np.exp(-y[i] / a["throttle_us"]) if loop else 1.0
            us = sum(F.attention_us(g, q, a, g["peak"]["fp8" if narrow else "bf16"], clock, r, back)
                     for back, word in ((False, "fwd"), (True, "bwd")) if word in r["direction"])
            if loop:  # the host needs this long to launch one
                us = max(us + a["extra"], a["floor " + r["direction"]])
            values.append(us + (a["harness"] if r["table"].startswith("aiconfigurator") else 0))
        return np.array(values)

    w = balanced_weights(groups, len(rows)) * kept(rows, left_out)
    fit = least_squares(lambda x: 10 * w * np.log(predict(x) / y), start, bounds=(least, most), diff_step=1e-3, loss="soft_l1")
    unseen = [n for n, word in (("forward_fraction", "fwd"), ("backward_fraction", "bwd")) if not any(word in r["direction"] for r in rows)]
    return {f"{impl}_{n}": float(v) for n, v in zip(names, fit.x) if n not in unseen}, predict(fit.x)


MATH_GROUP = ["table", "gpu", "impl", "direction"]


def math_rows_of(gpus, architecture):
    return [r for r in T.attention_rows() if gpus[r["gpu"]]["architecture"] == architecture and r["impl"] == "math"]


def fit_math(gpus, rows, gemm, softmax_fraction, left_out=none_of_them):
    y, w = np.array([r["us"] for r in rows]), kept(rows, left_out)
    names = ["math_passes_forward", "math_passes_mask", "math_passes_backward"]

    def predict(x):
        p = dict(zip(names, x), memory_launch_us=4, softmax_fraction=softmax_fraction)
        return np.array([sum(F.math_us(gpus[r["gpu"]], p, gpus[r["gpu"]]["peak"]["bf16"] * gemm["gemm_peak_fraction"], r, back)
                             for back, word in ((False, "fwd"), (True, "bwd")) if word in r["direction"]) for r in rows])

    fit = least_squares(lambda x: w * np.log(predict(x) / y), [4.5, 4.7, 8.5], bounds=(0, 30))
    return dict(zip(names, map(float, fit.x))), predict(fit.x)


MEMORY_GROUP = ["table", "gpu", "kind", "backward"]


def fit_memory(gpus, rows, left_out=none_of_them):
    y = np.array([r["us"] for r in rows])
    groups = grouped_by(rows, *MEMORY_GROUP)
    names = [f"{k[2]}{'_backward' if k[3] else ''}" for k in groups]
    names = sorted(set(names))
    slot = np.array([names.index(r["kind"] + ("_backward" if r["backward"] else "")) for r in rows])
    size = np.array([r["bytes"] for r in rows])
    hbm = np.array([gpus[r["gpu"]]["hbm"] for r in rows])
    w = balanced_weights(groups, len(rows)) * kept(rows, left_out)

    def predict(x):  # x[0]: floor with the harness; others: fractions
        return x[0] + 1e6 * size / hbm / x[1:][slot]

    # Least absolute-like loss: some backward rows are bound by the harness's host, not by the kernel.
    fit = least_squares(lambda x: 10 * w * np.log(predict(x) / y), [5.0] + [.75] * len(names),
                        bounds=([1] + [.1] * len(names), [12] + [.95] * len(names)), loss="soft_l1", f_scale=.3)
    return dict(zip(["floor with harness"] + [n + "_fraction" for n in names], map(float, fit.x))), predict(fit.x)


EAGER_GROUP = ["table", "gpu", "op"]


def fit_eager(gpus, rows, memory, left_out=none_of_them):
    """What PyTorch's own kernels reach, of chains whose other kernels are known."""
    y = np.array([r["us"] for r in rows])
    groups = grouped_by(rows, *EAGER_GROUP)
    w = balanced_weights(groups, len(rows)) * kept(rows, left_out)

    def predict(x):  # elements per SM and clock, fraction of native norms, and the launch of one more kernel (the harness keeps the queue full)
        out = []
        for r in rows:
            g = gpus[r["gpu"]]
            rate = {"elementwise": g["hbm"] * memory["elementwise_fraction"], "reduction": g["hbm"] * 0.85, "native_normalization": g["hbm"] * x[1]}
            rate["strided"] = rate["elementwise"]
            issue = x[0] * g["sms"] * g["clock"]
            out.append(sum(1e6 * np.hypot(size / rate[kind], sum(elements) / issue) + x[2] for kind, size, *elements in r["parts"]))
        return np.array(out)

    fit = least_squares(lambda x: 10 * w * np.log(predict(x) / y), [1.5, .6, 2], bounds=([.3, .2, .5], [8, .95, 6]), loss="soft_l1", f_scale=.3)
    return dict(zip(["strided_elements_per_clock", "native_normalization_fraction", "launch of one kernel"], map(float, fit.x))), predict(fit.x)


def rows_on(gpus, architecture, rows):
    return [r for r in rows if gpus[r["gpu"]]["architecture"] == architecture]


def fit_others(gpus, architecture, gemm):
    """Parameters of all kernels but products, with their errors."""
    found = fit_attention(gpus, architecture, gemm)
    for title, group, rows, fit in (("unfused attention", MATH_GROUP, math_rows_of(gpus, architecture), lambda r: fit_math(gpus, r, gemm, 0.8)),
                                    ("memory-bound", MEMORY_GROUP, rows_on(gpus, architecture, T.memory_rows()), lambda r: fit_memory(gpus, r)),
                                    ("PyTorch's own chains", EAGER_GROUP, rows_on(gpus, architecture, T.eager_rows()), lambda r: fit_eager(gpus, r, found))):
        if rows:
            values, predicted = fit(rows)
            report(title, grouped_by(rows, *group), predicted, np.array([r["us"] for r in rows]))
            found.update(values)
    return found


def leave_one_out(gpus, architecture, gemm_rows):
    """Every fit again without each table on each GPU; of a table that is alone without each K of products, each length of attention, each row of
    memory-bound kernels."""
    def show(title, rows, group, fit, *fallback):
        report_left_out(title, rows, grouped_by(rows, *group), np.array([r["us"] for r in rows]), fit, unit_of(rows, *fallback))

    gemm = fit_gemm(gpus, gemm_rows)[0]
    show("GEMM", gemm_rows, GEMM_GROUP, lambda out: fit_gemm(gpus, gemm_rows, out)[1], "k")
    known = {}
    for impl, rows in attention_rows_of(gpus, architecture):
        show(f"attention {impl}", rows, ATTENTION_GROUP, lambda out, r=rows, i=impl: fit_attention_kernel(gpus, r, i, gemm, known, out)[1], "s")
        known.update(fit_attention_kernel(gpus, rows, impl, gemm, known)[0])
    if rows := math_rows_of(gpus, architecture):
        show("unfused attention", rows, MATH_GROUP, lambda out: fit_math(gpus, rows, gemm, 0.8, out)[1], "s")
    if rows := rows_on(gpus, architecture, T.memory_rows()):
        memory = fit_memory(gpus, rows)[0]
        show("memory-bound", rows, MEMORY_GROUP, lambda out: fit_memory(gpus, rows, out)[1])
        if chains := rows_on(gpus, architecture, T.eager_rows()):
            show("PyTorch's own chains", chains, EAGER_GROUP, lambda out: fit_eager(gpus, chains, memory, out)[1])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--without", help="leave this table out of the GEMM fit, and report its errors")
    arguments.add_argument("--each-length", action="store_true", help="fit GEMM once for every K, without its rows, and report the errors of these")
    arguments.add_argument("--leave-one-out", action="store_true", help="report the errors of every table inside the fits, and by fits without it")
    arguments.add_argument("architectures", nargs="*", default=["volta", "ampere", "hopper", "blackwell", "cdna3", "cdna4"])
    options = arguments.parse_args()
    gpus = load_gpus()
    for architecture in options.architectures:
        print(architecture)
        rows = gemm_rows_of(gpus, architecture)
        if not rows:
            arguments.error(f"no table has a product on {architecture}")
        groups, measured = grouped_by(rows, *GEMM_GROUP), np.array([r["us"] for r in rows])
        if options.leave_one_out:
            leave_one_out(gpus, architecture, rows)
            continue
        if options.each_length:
            report("GEMM, every K by a fit without it", groups, hold_out_each_length(gpus, rows), measured)
            continue
        gemm, predicted = fit_gemm(gpus, rows, lambda r: r["table"] == options.without)
        report("GEMM" + (f" fitted without {options.without}" if options.without else ""), groups, predicted, measured)
        found = dict(gemm)
        if not options.without:
            found.update(fit_fp8(gpus, architecture, gemm))
            found.update(fit_nvfp4(gpus, architecture, gemm))
            found.update(fit_others(gpus, architecture, gemm))
        for name, value in found.items():
            print(f"    {name}: {value:.4g}")


if __name__ == "__main__":
    main()
