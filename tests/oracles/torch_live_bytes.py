"""Asks PyTorch how many bytes live during one training step; writes data/torch_live_bytes.json.

One step is `loss = model(ids, labels=ids).loss; loss.backward()` on one device, gradients absent before.  The models
run on the meta device, made to issue CUDA's operators (helpers/cuda_on_meta.py); helpers/live_bytes.py counts.
Before anything is written the tracker is checked against a hand calculation, against PyTorch's own profiler
on real tensors, and the meta device against real tensors.

Every figure named *_bytes below counts what the step creates; parameters, buffers and token ids are apart.
"""

import torch
import transformers
from torch import nn

from helpers import answers
from helpers.cuda_on_meta import CudaAutocastOnMeta, CudaOnMeta, backward
from helpers.live_bytes import LiveBytes, saved_tensors
from helpers.plain_models import PlainGpt, PlainLlama, Shape

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}
LLAMA_7B = dict(
    hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000
)
LLAMA_8B = dict(
    hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
)
GPT2_SMALL = dict(hidden=768, heads=12, kv_heads=12, ffn=3072)
TINY = dict(hidden=64, heads=4, vocabulary=96, positions=32)


# ---- one step ----


def step(model, ids, precision="bf16", keep_operators=False) -> LiveBytes:
    """The tracker after one step on the meta device, with marks "forward" and "backward" at the end of each."""
    model.train()
    tracker = LiveBytes(keep_operators=keep_operators)
    tracker.ignore([*model.parameters(), *model.buffers(), ids])
    with CudaOnMeta(), tracker:
        if precision == "autocast":
            with CudaAutocastOnMeta():
                loss = loss_of(model, ids)
        else:
            loss = loss_of(model, ids)
        tracker.mark("forward")
        backward(loss)
        tracker.mark("backward")
    tracker.gradient_bytes = tracker.bytes_of([p.grad for p in model.parameters()])
    return tracker


def loss_of(model, ids):
    output = model(ids, labels=ids)
    return output if isinstance(output, torch.Tensor) else output.loss


def figures(model, tracker, largest=0) -> dict:
    row = dict(
        parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        buffer_bytes=sum(b.numel() * b.element_size() for b in model.buffers()),
        after_forward_bytes=tracker.at("forward"),
        forward_peak_bytes=tracker.peak(before="forward"),
        step_peak_bytes=tracker.peak(),
        after_backward_bytes=tracker.at("backward"),
        gradient_bytes=tracker.gradient_bytes,
        attention={n: c for n, c in tracker.calls.items() if "scaled_dot_product" in n and "backward" not in n},
    )
    if largest:
        row["largest_at_peak"] = tracker.largest_at_peak(largest)
    return row


def case(facts: dict, build, largest=0) -> dict:
    """One row: the facts, the figures, and by how much one more layer raises the live bytes after forward."""
    results = []
    for layers in (facts["layers"], facts["layers"] + 1):
        with torch.device("meta"):
            model = build(layers)
            ids = torch.zeros(facts["batch"], facts["sequence"], dtype=torch.long)
        results.append(figures(model, step(model, ids, facts["precision"]), largest))
    row = facts | results[0]
    row["after_forward_bytes_per_layer"] = results[1]["after_forward_bytes"] - row["after_forward_bytes"]
    return row


# ---- Hugging Face models ----


def hugging_face(model_class, config_class, facts, shape, largest=0):
    def build(layers):
        config = config_class(
            **shape,
            num_hidden_layers=layers,
            attn_implementation=facts["attention_implementation"],
            use_cache=facts["use_cache"],
        )
        model = model_class(config).to(DTYPES[facts["precision"]])
        if facts["checkpointing"]:
            model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        return model

    return case(facts, build, largest)


def gpt2(batch, sequence, precision, dropout=0.0, attention="sdpa", checkpointing=False, use_cache=False, largest=0):
    facts = dict(
        model="hf-gpt2-small", layers=12, batch=batch, sequence=sequence, precision=precision, dropout=dropout,
        attention_implementation=attention, checkpointing=checkpointing, use_cache=use_cache,
    )  # fmt: skip
    shape = dict(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    return hugging_face(transformers.GPT2LMHeadModel, transformers.GPT2Config, facts, shape, largest)


def llama(
    name,
    shape,
    layers,
    batch,
    sequence,
    attention="sdpa",
    checkpointing=False,
    precision="bf16",
    use_cache=False,
    largest=0,
):
    facts = dict(
        model=name, layers=layers, batch=batch, sequence=sequence, precision=precision,
        attention_implementation=attention, checkpointing=checkpointing, use_cache=use_cache,
    )  # fmt: skip
    return hugging_face(transformers.LlamaForCausalLM, transformers.LlamaConfig, facts, shape, largest)


def hugging_face_cases():
    for precision in ("fp32", "bf16"):
        for dropout in (0.0, 0.1):
            for batch in (2, 8):
                for sequence in (512, 1024):
                    yield gpt2(batch, sequence, precision, dropout, largest=20 if (batch, sequence) == (2, 1024) else 0)
    for precision in ("fp32", "bf16"):
        for dropout in (0.0, 0.1):
            yield gpt2(2, 1024, precision, dropout, attention="eager", largest=20)
        yield gpt2(2, 1024, precision, checkpointing=True, largest=20)
        yield gpt2(2, 1024, precision, use_cache=True)
    yield gpt2(2, 1024, "autocast", largest=20)
    yield gpt2(2, 1024, "autocast", dropout=0.1)
    yield gpt2(2, 1024, "autocast", attention="eager")
    for name, shape in (("hf-llama-7b", LLAMA_7B), ("hf-llama-8b", LLAMA_8B)):
        for layers in (2, 4):
            for batch in (1, 2):
                for sequence in (1024, 2048):
                    for attention in ("sdpa", "eager"):
                        for checkpointing in (False, True):
                            largest = 20 if (layers, batch, sequence) == (4, 1, 2048) else 0
                            yield llama(name, shape, layers, batch, sequence, attention, checkpointing, largest=largest)
        yield llama(name, shape, 2, 1, 1024, use_cache=True)
        yield llama(name, shape, 2, 1, 1024, precision="fp32")
        yield llama(name, shape, 2, 1, 1024, precision="autocast", largest=20)
        yield llama(name, shape, 2, 1, 1024, "eager", precision="autocast")


# ---- plain models (helpers/plain_models.py) ----


def plain(name, model_class, batch, precision, largest=0, **shape):
    facts = dict(model=name, batch=batch, sequence=shape["positions"], precision=precision, **shape)
    per_layer = {k: v for k, v in shape.items() if k != "layers"}
    return case(facts, lambda layers: model_class(Shape(layers=layers, **per_layer)).to(DTYPES[precision]), largest)


def plain_cases():
    for precision in ("fp32", "bf16", "autocast"):
        yield plain("plain-llama", PlainLlama, 2, precision, layers=1, kv_heads=2, ffn=160, **TINY)
        yield plain(
            "plain-llama",
            PlainLlama,
            1,
            precision,
            20,
            layers=2,
            hidden=4096,
            heads=32,
            kv_heads=32,
            ffn=11008,
            vocabulary=32000,
            positions=1024,
        )
        yield plain(
            "plain-llama",
            PlainLlama,
            2,
            precision,
            layers=2,
            hidden=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            vocabulary=128256,
            positions=2048,
        )
        for dropout in (0.0, 0.1):
            yield plain("plain-gpt", PlainGpt, 2, precision, layers=1, kv_heads=4, ffn=256, dropout=dropout, **TINY)
            shape = dict(layers=12, **GPT2_SMALL, vocabulary=50257, positions=1024, dropout=dropout)
            yield plain("plain-gpt", PlainGpt, 8, precision, 20, **shape)
        shape = dict(layers=2, **GPT2_SMALL, vocabulary=8192, positions=1024, spelled=True)
        yield plain("plain-gpt", PlainGpt, 2, precision, 20, **shape)


def operator_lists():
    """One layer of the tiny shape, batch 2: each operator with its outputs, the live bytes after it, what is saved."""
    for name, model_class, ffn, dropout in (
        ("plain-llama", PlainLlama, 160, 0.0),
        ("plain-gpt", PlainGpt, 256, 0.0),
        ("plain-gpt", PlainGpt, 256, 0.1),
    ):
        for precision in ("fp32", "bf16", "autocast"):
            kv_heads = 2 if model_class is PlainLlama else 4
            with torch.device("meta"):
                model = model_class(Shape(1, kv_heads=kv_heads, ffn=ffn, dropout=dropout, **TINY)).to(DTYPES[precision])
                ids = torch.zeros(2, TINY["positions"], dtype=torch.long)
            tracker = step(model, ids, precision, keep_operators=True)
            live = tracker.live_at_operators()
            forward = [event for event in tracker.events if event[0] == 0].index((0, "forward"))
            yield dict(
                model=name, layers=1, batch=2, sequence=TINY["positions"], kv_heads=kv_heads, ffn=ffn,
                dropout=dropout, precision=precision, **{k: v for k, v in TINY.items() if k != "positions"},
                forward_operators=tracker.operators[:forward], forward_live_bytes=live[:forward],
                backward_operators=tracker.operators[forward:], backward_live_bytes=live[forward:],
                saved=saved_by(model, ids, precision),
            )  # fmt: skip


def saved_by(model, ids, precision):
    model.zero_grad()
    with CudaOnMeta():
        if precision == "autocast":
            with CudaAutocastOnMeta():
                loss = model(ids, ids)
        else:
            loss = model(ids, ids)
    known = {"parameter": list(model.parameters()), "buffer": list(model.buffers()), "input": [ids]}
    return saved_tensors(loss, known)


# ---- checks of the tracker ----


def mlp():
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))


def check_by_hand():
    """y = W2 relu(W1 x), loss = sum(y); fp32, x is [5, 8], W1 [16, 8], W2 [4, 16]; bytes = 4 x elements.

    forward          a = W1 x   [5,16]  320   live 320
                     r = relu a [5,16]  320   live 640, then a has no user (relu keeps its result): 320
                     y = W2 r   [5,4]    80   live 400
                     loss               4     live 404, then y has no user (sum keeps only its shape): 324
    backward         seed gradient      4     live 328, until backward() returns: its caller holds it; the gradient
                                              of y is a view of it
                     dW2        [4,16]  256   live 584
                     dr         [5,16]  320   live 904
                     da         [5,16]  320   live 1224, the peak of the step; then dr and r die: 584
                     dW1        [16,8]  512   live 1096; then da and the seed die: 772 = dW1 + dW2 + loss
    """
    for device in ("meta", "cpu"):
        model = mlp().to(device)
        x = torch.ones(5, 8, device=device)
        tracker = LiveBytes(device)
        tracker.ignore([*model.parameters(), x])
        with tracker:
            loss = model(x).sum()
            tracker.mark("forward")
            loss.backward()
            tracker.mark("backward")
        found = (tracker.peak(before="forward"), tracker.at("forward"), tracker.peak(), tracker.at("backward"))
        assert found == (640, 324, 1224, 772), (device, found)


def profiled(run):
    """(peak, final) bytes allocated by `run`, from the profiler's record of PyTorch's CPU allocator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del kept
    return peak, live


def check_by_profiler():
    """On real tensors, without the tracker, PyTorch's own allocator reports the same bytes.

    The multilayer perceptron agrees at the peak too.  In the transformers some CPU kernels borrow memory inside an
    operator, so there the profiler's peak may only be higher.
    """
    x = torch.ones(64, 128)
    ids = torch.zeros(2, TINY["positions"], dtype=torch.long)
    perceptron = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 32))
    gpt = PlainGpt(Shape(2, kv_heads=4, ffn=256, **TINY))
    llama_model = PlainLlama(Shape(2, kv_heads=4, ffn=160, **TINY))
    for name, model, forward in (
        ("perceptron", perceptron, lambda: perceptron(x).sum()),
        ("gpt", gpt, lambda: gpt(ids, ids)),
        ("llama", llama_model, lambda: llama_model(ids, ids)),
    ):

        def whole(forward=forward):
            loss = forward()
            loss.backward()
            return loss

        forward().backward()  # libraries allocate their own once
        model.zero_grad()
        _, after_forward = profiled(forward)
        peak, after_backward = profiled(whole)
        model.zero_grad()
        tracker = LiveBytes("cpu")
        tracker.ignore([*model.parameters(), *model.buffers(), ids, x])
        with tracker:
            loss = forward()
            tracker.mark("forward")
            loss.backward()
            tracker.mark("backward")
        found = (tracker.at("forward"), tracker.at("backward"), tracker.peak())
        print(
            f"tracker {name}: after forward, after backward, peak {found};"
            f" profiler {(after_forward, after_backward, peak)}"
        )
        assert found[:2] == (after_forward, after_backward), name
        assert found[2] == peak if name == "perceptron" else found[2] <= peak, name


def check_meta_against_real_tensors():
    """Strides decide which reshapes copy.  Hugging Face models with eager attention, where both devices run the same
    operators, leave the same curve of bytes on the meta device as on real tensors."""
    gpt2_shape = dict(n_embd=64, n_head=4, vocab_size=96, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    llama_shape = dict(
        hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, vocab_size=96
    )
    common = dict(num_hidden_layers=2, attn_implementation="eager", use_cache=False)
    for model_class, config in (
        (transformers.GPT2LMHeadModel, transformers.GPT2Config(**gpt2_shape, **common)),
        (transformers.LlamaForCausalLM, transformers.LlamaConfig(**llama_shape, **common)),
    ):
        found = []
        for device in ("meta", "cpu"):
            with torch.device(device):
                model = model_class(config)
                ids = torch.zeros(2, 32, dtype=torch.long)
            tracker = LiveBytes(device)
            tracker.ignore([*model.parameters(), *model.buffers(), ids])
            with CudaOnMeta(), tracker:
                loss = model(ids, labels=ids).loss
                tracker.mark("forward")
                backward(loss)
                tracker.mark("backward")
            found.append(
                (tracker.at("forward"), tracker.peak(before="forward"), tracker.peak(), tracker.at("backward"))
            )
        print(f"tracker {model_class.__name__}: meta {found[0]}, real tensors {found[1]}")
        assert found[0] == found[1], model_class.__name__


def main():
    check_by_hand()
    check_by_profiler()
    check_meta_against_real_tensors()
    answers.write(
        "torch_live_bytes.json",
        {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "largest_at_peak": ["times", "shape", "created by", "bytes each"],
            "saved": ["autograd node", "name", "shape", "storage bytes", "note"],
        },
        hugging_face=hugging_face_cases(),
        plain=plain_cases(),
        operators=operator_lists(),
    )


if __name__ == "__main__":
    main()
