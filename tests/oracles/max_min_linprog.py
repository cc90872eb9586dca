"""Max-min fair rates of random systems by linear programming: the answers in data/max_min.json.

Leaves out time. Method: maximise the common rate of all activities that are not fixed yet; fix those that cannot go
above it (each tried by its own linear programme); repeat. Needs SciPy; the C++ test needs only the JSON.
Usage: python max_min_linprog.py > data/max_min.json
"""

import json
import random

import numpy as np
from scipy.optimize import linprog


def max_min(weights, caps):
    """Rates for weights[resource][activity] (share at rate 1; capacity 1) and caps[activity]."""
    n = len(caps)
    fixed = {}
    while len(fixed) < n:
        free = [i for i in range(n) if i not in fixed]
        # Variables: the rates, then the common rate t. Maximise t with rate_i >= t for the free ones.
        rows = [list(row) + [0.0] for row in weights]
        limits = [1.0] * len(weights)
        for i in free:
            row = [0.0] * (n + 1)
            row[i], row[n] = -1.0, 1.0
            rows.append(row)
            limits.append(0.0)
        bounds = [(fixed[i], fixed[i]) if i in fixed else (0.0, caps[i]) for i in range(n)] + [(0.0, 1.0)]
        best = linprog([0.0] * n + [-1.0], A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
        level = best.x[n]
        floor = [(fixed[i], fixed[i]) if i in fixed else (level * (1 - 1e-12), caps[i]) for i in range(n)]
        for i in free:
            goal = np.zeros(n)
            goal[i] = -1.0
            own = linprog(goal, A_ub=weights, b_ub=[1.0] * len(weights), bounds=floor, method="highs")
            if -own.fun <= level + 1e-8:
                fixed[i] = level
    return [fixed[i] for i in range(n)]


def main():
    draw = random.Random(20)
    cases = []
    for _ in range(40):
        resources, activities = draw.randint(1, 6), draw.randint(1, 12)
        weights = [
            [draw.choice([0.0, 0.0, 0.25, 0.5, 1.0, 1.5]) for _ in range(activities)] for _ in range(resources)
        ]
        caps = [draw.choice([1.0, 1.0, 0.5, 0.25, 0.125]) for _ in range(activities)]
        rates = [round(x, 9) for x in max_min(weights, caps)]
        cases.append({"weights": weights, "caps": caps, "rates": rates})
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    print('{"source": "tests/oracles/max_min_linprog.py, SciPy linprog (HiGHS)", "cases": [\n' + lines + "\n]}")


if __name__ == "__main__":
    main()
