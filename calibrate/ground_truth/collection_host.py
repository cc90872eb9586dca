"""What one collection of Python's garbage takes in a process that has imported what trainers import.

Needs torch and transformers, but no GPU. The collector looks at every object that can hold others, garbage or not, so that modules, functions and
classes count. Prints milliseconds of gc.collect() and the number of objects: the lower bound of collection_host in
strategies/framework/data/megatron-*.yaml.
Megatron's own modules, the model and its optimizer come on top and are not in it: collection_stalls.py has the whole.

    python calibrate/ground_truth/collection_host.py [REPEATS]
"""

import gc
import sys
import time

import torch  # noqa: F401
import torch._inductor.compile_fx  # noqa: F401
import transformers  # noqa: F401
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    gc.disable()
    gc.collect()
    times = []
    for _ in range(repeats):
        begin = time.thread_time()
        gc.collect()
        times.append(time.thread_time() - begin)
    print(f"torch {torch.__version__}, {len(gc.get_objects())} objects: {1e3 * min(times):.0f} to {1e3 * max(times):.0f} ms")


if __name__ == "__main__":
    main()
