"""What SciPy makes of small fits: the answers in data/scipy_fits.json.

nnls: random systems, some with columns that must be zero. least_squares (trf): three curves with bounds that bind or do not,
under the square, Huber and Tukey losses, data with outliers. curve_fit: the covariance of the unbounded square fits.
The C++ test rebuilds each curve from its name, so the JSON holds data and answers only.
"""

import json
import pathlib

import numpy as np
from scipy.optimize import curve_fit, least_squares, nnls

OUT = pathlib.Path(__file__).parent / "data" / "scipy_fits.json"
CURVES = {
    "line": (lambda x, a, b: a + b * x, [1.0, 1.0], [2.0, 0.7]),
    "saturation": (lambda x, a, b: a * x / (b + x), [1.0, 1.0], [3.0, 2.5]),
    "decay": (lambda x, a, b, c: a * np.exp(-b * x) + c, [1.0, 1.0, 0.0], [2.5, 0.8, 0.5]),
}
SCALE = 0.05
HUBER, TUKEY = 1.345, 4.685


def rounded(answer, decimals):
    """What every machine agrees on: the digits behind depend on the kernels that BLAS chooses for it."""
    return (np.round(np.asarray(answer), decimals) + 0.0).tolist()


def tukey(z):
    inside = z < 1
    rho = np.where(inside, (1 - (1 - z) ** 3) / 3, 1 / 3)
    first = np.where(inside, (1 - z) ** 2, 0.0)
    second = np.where(inside, -2 * (1 - z), 0.0)
    return np.stack([rho, first, second])


def nnls_cases(draw):
    cases = []
    for n in range(1, 7):
        for _ in range(4):
            a = draw.normal(size=(n + draw.integers(0, 8), n)).round(3)
            b = (a @ np.maximum(draw.normal(size=n), 0) + 0.3 * draw.normal(size=a.shape[0])).round(3)
            x, norm = nnls(a, b)
            cases.append({"a": a.tolist(), "b": b.tolist(), "x": rounded(x, 11), "norm": rounded(norm, 11)})
    return cases


def curve_cases(draw):
    cases = []
    for name, (curve, start, truth) in CURVES.items():
        x = np.linspace(0.2, 6, 40).round(3)
        y = curve(x, *truth) + SCALE * draw.normal(size=x.size)
        for loss in ("square", "huber", "tukey"):
            for bounded in (False, True):
                seen = y.copy()
                if loss != "square":
                    seen[[3, 17, 30]] += [0.9, -0.7, 1.2]
                seen = seen.round(5)
                low = [-10.0] * len(start)
                high = [10.0] * len(start)
                if bounded:
                    high[0] = 0.9 * truth[0]  # binds
                residual = lambda p: curve(x, *p) - seen
                first = np.minimum(start, np.array(high) - 0.01)
                exact = dict(bounds=(low, high), xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=20000)
                fit = least_squares(residual, first, **exact)
                if loss != "square":
                    fit = least_squares(residual, fit.x, loss="huber", f_scale=HUBER * SCALE, **exact)
                if loss == "tukey":
                    fit = least_squares(residual, fit.x, loss=tukey, f_scale=TUKEY * SCALE, **exact)
                case = {"curve": name, "loss": loss, "scale": SCALE, "start": first.tolist(), "low": low, "high": high,
                        "x": x.tolist(), "y": seen.tolist(), "solution": rounded(fit.x, 6)}
                if loss == "square" and not bounded:
                    _, covariance = curve_fit(curve, x, seen, p0=fit.x)
                    case["covariance"] = rounded(covariance, 8)
                cases.append(case)
    return cases


def main():
    draw = np.random.default_rng(7)
    lines = [f'{{"kind": "nnls", "case": {json.dumps(c)}}}' for c in nnls_cases(draw)]
    lines += [f'{{"kind": "curve", "case": {json.dumps(c)}}}' for c in curve_cases(draw)]
    OUT.write_text('{"source": "tests/oracles/scipy_fits.py, SciPy nnls, least_squares, curve_fit", "cases": [\n  '
                   + ",\n  ".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
