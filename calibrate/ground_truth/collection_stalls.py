"""How long a collection of Python's garbage stops a training step of Megatron-LM, from the golden values of its CI.

Needs a checkout of NVIDIA/Megatron-LM. Its tests log each step's time. Without --manual-gc Python collects when it wants, one rank at a
time, and all others wait: single steps stand out. With it nothing is collected in so few steps, and they should not. Left out: the first
steps, steps after a save, tests slower than 1.5 s per step, and those named 1node, weekly, release or offloading. Prints, per
machine, the tests, the stalls and their lengths: what strategies/framework/data/megatron-*.yaml hold (collection_host).

    python calibrate/ground_truth/collection_stalls.py FOLDER
"""

import collections
import json
import re
import statistics
import sys
from pathlib import Path

STALL = 0.25  # seconds beyond the median step
FIRST, FEWEST, SLOWEST = 5, 20, 1.5  # steps left out; steps a test needs; seconds per step


def steps_of(golden):
    """Numbers and seconds of the logged steps, the first ones left out."""
    try:
        times = json.loads(golden.read_text()).get("iteration-time") or {}
    except json.JSONDecodeError:  # a few are kept as something else
        return []
    times = times.get("values", times)
    known = [(int(step), float(time)) for step, time in times.items() if time not in (None, "nan")]
    return sorted(known)[FIRST:]


def stalls_of(steps, save_interval):
    median = statistics.median(time for _, time in steps)
    after_save = [save_interval > 0 and (step - 1) % save_interval <= 1 for step, _ in steps]
    return [time - median for (_, time), saved in zip(steps, after_save) if time > median + STALL and not saved]


def main():
    cases = Path(sys.argv[1]) / "tests/functional_tests/test_cases"
    tests, found = collections.Counter(), collections.defaultdict(list)
    for golden in sorted(path for kind in ("gpt", "moe", "t5") for path in (cases / kind).rglob("golden_values_*.json")):
        test = golden.parent.name
        if any(word in test for word in ("1node", "weekly", "release", "offload")):
            continue
        configuration = golden.parent / "model_config.yaml"
        settings = configuration.read_text() if configuration.exists() else ""
        steps = steps_of(golden)
        if len(steps) < FEWEST or statistics.median(time for _, time in steps) > SLOWEST:
            continue
        save = re.search(r"--save-interval: (\d+)", settings)
        machine = re.search(r"dgx_[a-z]+\d+", golden.name)
        key = (machine.group() if machine else golden.stem, "manual" if "--manual-gc: true" in settings else "automatic")
        tests[key] += 1
        found[key] += stalls_of(steps, int(save.group(1)) if save else 0)
    for key, stalls in sorted(found.items()):
        lengths = sorted(stalls)
        middle = f"{statistics.median(lengths):.2f} s, {lengths[len(lengths) // 10]:.2f} to {lengths[9 * len(lengths) // 10]:.2f}" if lengths else "-"
        print(f"{' '.join(key):24s} {tests[key]:4d} tests {len(lengths):4d} stalls  {middle}")


if __name__ == "__main__":
    main()
