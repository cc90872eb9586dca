"""Follows every tensor storage from creation to release and says how many bytes live when.

A dispatch mode sees each operator after autograd; every storage it has not met gets a finalizer, so the release is the
moment PyTorch really lets go.  Views share a storage and count once.  Bytes are the storage's own, before an
allocator rounds them.  Left out: memory that a kernel allocates and frees inside one operator.
"""

import weakref
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def dtype_name(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def operator_name(func) -> str:
    return str(func).removesuffix(".default").removeprefix("aten.")


def shape_text(tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}".replace(" ", "")


@dataclass
class Storage:
    bytes: int
    shape: str
    operator: str


class LiveBytes(TorchDispatchMode):
    """Use: `tracker.ignore(parameters and inputs)`, `with tracker:` around the step, `tracker.mark(name)` inside."""

    def __init__(self, device="meta", keep_operators=False):
        super().__init__()
        self.device = device  # tensors elsewhere (random number states in host memory) do not count
        self.storages = []  # every storage ever met
        self.index_of = {}  # storage address -> index in storages, while it lives
        self.events = []  # (+1 or -1, index), or (0, mark), in time order
        self.operators = [] if keep_operators else None
        self.ignored = []  # held, so that their addresses stay taken
        self.calls = {}

    def ignore(self, tensors):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.index_of:
                self.index_of[storage._cdata] = None
                self.ignored.append(storage)

    def mark(self, name):
        self.events.append((0, name))

    def release(self, address, index):
        del self.index_of[address]
        self.events.append((-1, index))

    def meet(self, tensor, operator):
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self.index_of:
            return
        index = len(self.storages)
        self.storages.append(Storage(storage.nbytes(), shape_text(tensor), operator))
        self.index_of[address] = index
        self.events.append((+1, index))
        weakref.finalize(storage, self.release, address, index).atexit = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = operator_name(func)
        tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.device.type == self.device]
        if tensors:
            self.calls[name] = self.calls.get(name, 0) + 1
            for tensor in tensors:
                self.meet(tensor, name)
            if self.operators is not None:
                self.operators.append(name + " " + " ".join(shape_text(t) for t in tensors))
                self.mark("operator")
        return result

    # ---- answers, after the step ----

    def curve(self):
        """(event, live bytes after it) for every event, marks included."""
        live = 0
        for event in self.events:
            live += event[0] * self.storages[event[1]].bytes if event[0] else 0
            yield event, live

    def at(self, mark) -> int:
        return next(live for event, live in self.curve() if event == (0, mark))

    def peak(self, before=None) -> int:
        highest = 0
        for event, live in self.curve():
            if before is not None and event == (0, before):
                break
            highest = max(highest, live)
        return highest

    def bytes_of(self, tensors) -> int:
        indices = {self.index_of[t.untyped_storage()._cdata] for t in tensors}
        return sum(self.storages[i].bytes for i in indices if i is not None)

    def largest_at_peak(self, count=20):
        """What lives at the step's peak, equal (shape, operator) together: [[times, shape, operator, bytes each]]."""
        peak = self.peak()
        live = set()
        for event, bytes_now in self.curve():
            if event[0] > 0:
                live.add(event[1])
            elif event[0] < 0:
                live.discard(event[1])
            if bytes_now == peak:
                break
        groups = {}
        for index in sorted(live):
            s = self.storages[index]
            key = (s.shape, s.operator, s.bytes)
            groups[key] = groups.get(key, 0) + 1
        ordered = sorted(groups.items(), key=lambda g: -g[0][2] * g[1])
        return [[times, *key] for key, times in ordered[:count]]

    def live_at_operators(self):
        return [live for event, live in self.curve() if event == (0, "operator")]


def saved_tensors(loss, known):
    """What each autograd node keeps, in forward order: [[node, name, shape, storage bytes, note]].

    known: {"parameter": tensors, ...}, what lived before the step.  The note names that kind, or the row that already
    listed the same storage; rows with an empty note add up to what forward leaves behind.
    """
    notes = {t.untyped_storage()._cdata: kind for kind, tensors in known.items() for t in tensors}
    nodes, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [following for following, _ in node.next_functions]
    rows = []
    for node in sorted(nodes, key=lambda n: n._sequence_nr()):
        kept = [(n.removeprefix("_saved_"), getattr(node, n)) for n in dir(node) if n.startswith("_saved_")]
        kept += [(f"saved{i}", t) for i, t in enumerate(getattr(node, "saved_tensors", ()))]
        for name, tensor in kept:
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            rows.append([node.name(), name, shape_text(tensor), storage.nbytes(), notes.get(storage._cdata, "")])
            notes.setdefault(storage._cdata, f"row {len(rows) - 1}")
    return rows
