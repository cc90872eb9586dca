"""Asks torchtitan's own ChunkedLossWrapper how many bytes live per logit; writes data/paper_chunked_loss.json.

By hand: wants torchtitan 0.3.0, with spmd_types, tyro and torchdata, and a PyTorch of its time (2.14.1).
    python tests/oracles/paper_chunked_loss.py

An output layer and its loss on the meta device, nothing sharded.  What grows with tokens times vocabulary is the mixed
second difference over both: the loss alone does.
"""

import torch

from helpers import answers
from helpers.live_bytes import LiveBytes
from torchtitan.components.loss import ChunkedLossWrapper

WIDTH, TOKENS, VOCABULARY = 256, 2048, 32768


class Head(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)


def step(tokens, vocabulary, chunks, batch):
    with torch.device("meta"):
        head = Head(WIDTH, vocabulary, bias=False).to(torch.bfloat16)
        leaf = torch.zeros(batch, tokens // batch, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(batch, tokens // batch, dtype=torch.long)
        valid = torch.ones(())
    loss = ChunkedLossWrapper.Config(num_chunks=chunks).build(compile_config=None)
    loss.set_lm_head(head)
    tracker = LiveBytes()
    tracker.ignore([head.weight, leaf, labels, valid])
    with tracker:
        hidden = leaf * 1
        value, _ = loss(hidden, labels, valid)
        tracker.mark("forward")
        value.backward()
        del value, hidden
        tracker.mark("backward")
    return {"after_forward": tracker.at("forward"), "forward_peak": tracker.peak(before="forward"), "step_peak": tracker.peak()}


def case(chunks, batch):
    grid = {(t, v): step(t * TOKENS, v * VOCABULARY, chunks, batch) for t in (1, 2) for v in (1, 2)}
    per_logit = {
        name: (grid[2, 2][name] - grid[2, 1][name] - grid[1, 2][name] + grid[1, 1][name]) / (TOKENS * VOCABULARY)
        for name in grid[1, 1]
    }
    return dict(chunks=chunks, batch=batch) | per_logit


if __name__ == "__main__":
    answers.write(
        "paper_chunked_loss.json",
        {"torch": torch.__version__, "torchtitan": "0.3.0"},
        cases=[case(chunks, batch) for chunks in (1, 4, 8) for batch in (1, 2)],
    )
