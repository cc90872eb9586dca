"""Runs a Python script with PyTorch's CUDA build over a GPU on paper: no GPU is needed.

What runs is real: PyTorch's CUDA dispatch, its caching allocator, streams and events, DeepSpeed's, FSDP's and NCCL's process
groups. What does not: kernels, products and collectives, which are counted and, with --trace, written down with their shapes.
So three things can be read off a framework itself on any machine: the order of its calls, the memory that it allocates and
reserves, and what it costs the host thread (less the driver's own time). Values are not there: kernels write nothing, the host reads zeros
or what was copied there last.

    python calibrate/paper_gpu/run.py [--card a100|h100|h200|b200] [--gib 80] [--trace FILE] SCRIPT [ARGUMENTS]

Needs g++ and, in the same Python, a CUDA build of PyTorch (12.1 and later); the library is built once for each of them, next to
Python's other caches. Tried with PyTorch 2.3.1, 2.6.0 and 2.14.1.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def include_folders():
    """Of the wheels that PyTorch came with, then those of a CUDA toolkit (crt/host_defines.h is in no wheel of CUDA 13's runtime)."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    wheels = [pathlib.Path(p) for p in spec.submodule_search_locations] if spec else []
    if not wheels:
        sys.exit("paper GPU: no nvidia-* wheels beside PyTorch: install a CUDA build of it")
    found = sorted(f for w in wheels for f in w.glob("*/include"))
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    return [f"-I{f}" for f in found if f.parent.name not in ("cudnn", "nvshmem")] + ["-idirafter", str(toolkit)]


def library():
    """Path of the folder with the library, under its name and the driver's."""
    sources = sorted(HERE.glob("*.cpp")) + sorted(HERE.glob("*.h"))
    flags = include_folders()
    key = hashlib.sha256(b"".join(s.read_bytes() for s in sources) + " ".join(flags).encode()).hexdigest()[:16]
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "rehearse" / f"paper-gpu-{key}"
    target = folder / "libpaper_gpu.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{os.getpid()}.so"
        subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", *flags, f"-I{HERE.parent.parent}", *map(str, sources[: len(list(HERE.glob("*.cpp")))]), "-ldl", "-o", str(unfinished)], check=True)
        unfinished.rename(target)
        for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):  # Triton links its launchers to the first, PyTorch loads the others
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target.name)
    return folder


def main():
    parser = argparse.ArgumentParser(description="Runs a Python script over a GPU on paper.")
    parser.add_argument("--card", choices=["a100", "h100", "h200", "b200"], default="a100")
    parser.add_argument("--gib", type=float, default=80, help="memory that cudaMalloc can hand out")
    parser.add_argument("--trace", help="file of all calls, a line each")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    folder = library()
    environment = os.environ | {
        "LD_PRELOAD": str(folder / "libpaper_gpu.so"),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
        "PAPER_GPU_CARD": options.card,
        "PAPER_GPU_GIB": str(options.gib),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if options.trace:
        environment["PAPER_GPU_TRACE"] = os.path.abspath(options.trace)
    os.execve(sys.executable, [sys.executable, options.script, *options.arguments], environment)


if __name__ == "__main__":
    main()
