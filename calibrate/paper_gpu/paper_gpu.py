"""For scripts that run under run.py: how many calls of each kind there were, marks in the trace, several ranks as one process.

Importing it changes how tensors are printed: by their shape, since there are no values.
"""

import ctypes
import sys

import torch

KINDS = ["kernel", "product", "collective", "copy", "fill", "event", "stream_wait", "host_wait", "allocation", "release"]

_library = ctypes.CDLL(None)
if not hasattr(_library, "paper_gpu_calls"):
    sys.exit(f"{sys.argv[0]} runs over the GPU on paper: python calibrate/paper_gpu/run.py {sys.argv[0]} ...")
_library.paper_gpu_calls.restype = ctypes.c_int64
torch.Tensor.__repr__ = lambda self, **_: f"tensor{tuple(self.shape)}"
torch.nn.Parameter.__repr__ = torch.Tensor.__repr__


def calls():
    """How often each kind of call has been made in this process."""
    return {kind: _library.paper_gpu_calls(kind.encode()) for kind in KINDS}


def mark(text):
    """A line in the trace."""
    _library.paper_gpu_mark(text.encode())


def start(ranks):
    """torch.distributed as rank 0 of so many, over NCCL: the others exist by name alone."""
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", rank=0, world_size=ranks, store=torch.distributed.HashStore())
