"""What Liger's fused linear cross-entropy asks of CUDA and of PyTorch's allocator, by release and shape.

Runs over the GPU on paper (calibrate/paper_gpu), so it is asked by hand, not by ask.sh, with a CUDA build of PyTorch. Releases lie in folders of
their own (pip install --no-deps --target FOLDER/0.7.0 liger-kernel==0.7.0); one is asked per run, and its answers join those that are there:

    python calibrate/paper_gpu/run.py --card h200 --gib 140 tests/oracles/paper_linear_loss.py FOLDER/0.7.0

No other release may be installed. The GPU on paper has no values: numbers that the host reads are answered with one.

Per case: products; kernels and fills; copies; times that the host waits for the device; bytes that forward leaves and its peak, less the weight and the
hidden states.
"""

import json
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "calibrate" / "paper_gpu"))
import paper_gpu

# tokens, hidden, vocabulary, whether the output layer is trained
CASES = [(4096, 4096, 128256, True), (4096, 4096, 128256, False), (1000, 1024, 32000, True), (16384, 2048, 151936, True), (300, 4096, 32000, True)]


def ask(apply, tokens, hidden, vocabulary, trained):
    weight = torch.nn.Parameter(torch.empty(vocabulary, hidden, device="cuda", dtype=torch.bfloat16), requires_grad=trained)
    states = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.long, device="cuda")
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before, calls = torch.cuda.memory_allocated(), paper_gpu.calls()
        loss = apply(states, weight, targets)
        after = paper_gpu.calls()
        answer = {kind: after[kind] - calls[kind] for kind in after}
        answer |= {"left": torch.cuda.memory_allocated() - before, "peak": torch.cuda.max_memory_allocated() - before}
        del loss
    return answer


def answered_with(one, read):
    return lambda tensor: (read(tensor), one)[1]


def main(folder):
    sys.path.insert(0, folder)
    torch.set_num_threads(1)
    paper_gpu.start(1)
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    torch.Tensor.item, torch.Tensor.__bool__ = answered_with(1, torch.Tensor.item), answered_with(True, torch.Tensor.__bool__)

    def apply(*arguments):
        loss = LigerFusedLinearCrossEntropyFunction.apply(*arguments)
        return loss[0] if isinstance(loss, tuple) else loss

    release = pathlib.Path(folder).name
    path = HERE / "data" / "paper_linear_loss.json"
    rows = [row for row in json.loads(path.read_text())["rows"] if row["release"] != release] if path.exists() else []
    for case in CASES:
        answer = ask(apply, *case)
        rows.append({"release": release, "torch": torch.__version__, **dict(zip(("tokens", "hidden", "vocabulary", "trained"), case)), "products": answer["product"],
                     "kernels": answer["kernel"] + answer["fill"], "copies": answer["copy"], "waits": answer["host_wait"], "left": answer["left"], "peak": answer["peak"]})
        print(rows[-1])
    rows.sort(key=lambda row: row["release"])
    path.write_text('{"source": "tests/oracles/paper_linear_loss.py",\n "rows": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
