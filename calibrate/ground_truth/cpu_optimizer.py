"""What one thread, or several, of a CPU do for an offloaded optimizer: DeepSpeed's CPU Adam, PyTorch's AdamW, and the passes around them.

Needs torch, a C++ compiler and DeepSpeed's sources (an unpacked `pip download --no-deps --no-binary :all: deepspeed`), but no
GPU. Prints nanoseconds per element and the DRAM traffic that they stand for, as strategies/data/optimizer_offload.cpp counts it;
less than the wall clock where other processes have the cores, so the thread's own time is printed too.

    python calibrate/ground_truth/cpu_optimizer.py FOLDER_OF_DEEPSPEED [THREADS] [ELEMENTS]

An EPYC with Zen 5 (virtual, 2 cores), DeepSpeed 0.19.8, PyTorch 2.13, 1e8 elements, AVX-512, one thread and two:

    DeepSpeed CPU Adam       0.58   0.48 ns   48   58 GB/s       (AVX2 0.65, without vectors 2.4 ns of the thread's own time)
    AdamW, fused             0.47   0.48      60   58
    AdamW, operators         5.33   6.48      80 bytes of traffic, 8 of new tensors
    scale gradients          0.15   0.16      55   50
    cast to 16 bit           0.19   0.24      32   25
    the same, new tensor     1.11   1.28

A core there moves about 50 GB/s, all of them hardly more; memory touched for the first time costs 0.46 ns per byte whatever the
number of threads, so that half of the operator-by-operator AdamW and most of a cast into a new tensor are its pages. They take
four times longer here than on DGX-2 (hwmodels/topology/host.cpp), where no hypervisor is between.
"""

import pathlib
import sys
import tempfile
import time

import torch
from torch.utils import cpp_extension

REPEATS = 5


def cpu_adam(folder):
    """DeepSpeed's kernel, compiled as op_builder does (AVX-512 where the CPU has it)."""
    csrc = pathlib.Path(folder) / "csrc"
    vectors = "-D__AVX512__" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "-D__AVX256__"
    return cpp_extension.load("cpu_adam", [str(csrc / "adam" / name) for name in ("cpu_adam.cpp", "cpu_adam_impl.cpp")],
                              extra_include_paths=[str(csrc / "includes")], build_directory=tempfile.mkdtemp(),
                              extra_cflags=["-O3", "-std=c++20", "-march=native", "-fopenmp", vectors], extra_ldflags=["-fopenmp"])


def report(name, act, elements, moved):
    act()
    best = None
    for _ in range(REPEATS):
        wall, own = time.perf_counter(), time.thread_time()
        act()
        now = (time.perf_counter() - wall, time.thread_time() - own)
        best = now if best is None else min(best, now)
    print(f"{name:26s} {best[0] / elements * 1e9:6.2f} ns per element ({best[1] / elements * 1e9:5.2f} of this thread) {moved * elements / best[0] / 1e9:6.1f} GB/s")


def main():
    folder, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    n = int(float(sys.argv[3])) if len(sys.argv) > 3 else 10**8
    torch.set_num_threads(threads)
    kernel = cpu_adam(folder)
    kernel.create_adam(0, 1e-3, 0.9, 0.999, 1e-8, 0.01, True, False)
    master, gradient, first, second = torch.randn(n), torch.randn(n), torch.zeros(n), torch.rand(n)
    narrow = torch.zeros(n, dtype=torch.bfloat16)
    step = iter(range(1, 1000))
    report("DeepSpeed CPU Adam", lambda: kernel.adam_update(0, next(step), 1e-3, 0.9, 0.999, 1e-8, 0.01, True, master, gradient, first, second), n, 28)
    report("scale gradients", lambda: gradient.mul_(1.0000001), n, 8)
    report("cast to 16 bit", lambda: narrow.copy_(master), n, 6)
    report("cast to a new tensor", lambda: master.to(torch.bfloat16), n, 6)
    weight = torch.nn.Parameter(master)
    weight.grad = gradient
    for name, how, moved in (("AdamW, fused", {"fused": True}, 28), ("AdamW, operators", {"foreach": False}, 80), ("AdamW, foreach", {"foreach": True}, 80)):
        report(name, torch.optim.AdamW([weight], lr=1e-3, **how).step, n, moved)


if __name__ == "__main__":
    main()
