#!/usr/bin/env python3
"""Times operators of PyTorch that no published table covers: how clocks fall under sustained loads, additions at repeated indices,
grouped products, FlexAttention, copies from and to memory that is not pinned, and AdamW on the host.

  operators.py --out FILE [--budget SECONDS] [--only PATTERN] [--list]     needs PyTorch 2.8 or later and one NVIDIA GPU
  operators.py --out FILE --device cpu --tiny                              the same code on small shapes, as a test

FILE has a JSON line per series: group, name, parameters, seconds of one execution (median) and their spread, and what the group
adds. A run that was cut off goes on in the same file. Exit codes: 0 done or out of time, 2 bad arguments, 3 no PyTorch or no GPU."""

import argparse
import fnmatch
import json
import statistics
import sys
import time
from pathlib import Path


class Bench:
    """Where the series go, and how long an operator takes on the device."""

    def __init__(self, torch, options):
        self.torch, self.options, self.tiny = torch, options, options.tiny
        self.cuda = options.device == "cuda"
        self.device = torch.device(options.device)
        self.begin = time.monotonic()
        self.done = set()
        if options.out.exists():
            self.done = self.take_up(options.out)
        self.nvml = None
        if self.cuda:
            try:
                import pynvml
                pynvml.nvmlInit()
                self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
            except Exception:  # noqa: BLE001  no nvidia-ml-py: clocks and power are left out
                pass

    @staticmethod
    def take_up(path):
        """Series of an earlier run. A last line that was cut off is taken away; anything else that is no series of ours is refused: ValueError."""
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        done = set()
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                series = json.loads(line)
                done.add((series["group"], series["name"]))
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}:{number}: is no series of this program; name another file by --out") from None
        if whole != text:
            path.write_text(whole)
        return done

    def left(self):
        return self.options.budget - (time.monotonic() - self.begin)

    def wanted(self, group, name):
        if self.options.only and not fnmatch.fnmatch(f"{group} {name}", f"*{self.options.only}*"):
            return False
        if self.options.list:
            print(group, name)
            return False
        return (group, name) not in self.done and self.left() > 0

    def write(self, group, name, parameters, samples, **more):
        line = {"group": group, "name": name, "parameters": parameters, "torch": self.torch.__version__}
        if samples:
            line |= {"median_s": statistics.median(samples), "min_s": min(samples), "max_s": max(samples), "samples": len(samples)}
        with self.options.out.open("a") as f:
            f.write(json.dumps(line | more) + "\n")
        print(group, name, f"{line['median_s'] * 1e6:.1f} us" if samples else "", more or "", flush=True)

    def synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def state(self):
        """MHz and W, now."""
        if not self.nvml:
            return {}
        n = self.nvml
        return {"sm_clock_mhz": n.nvmlDeviceGetClockInfo(self.handle, n.NVML_CLOCK_SM), "power_w": n.nvmlDeviceGetPowerUsage(self.handle) / 1000,
                "reasons": n.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle), "temperature_c": n.nvmlDeviceGetTemperature(self.handle, n.NVML_TEMPERATURE_GPU)}

    def events(self, act, repeats):
        """Seconds of one of `repeats` executions in a row, by the device's clock."""
        if not self.cuda:
            begin = time.perf_counter()
            for _ in range(repeats):
                act()
            return (time.perf_counter() - begin) / repeats
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            act()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3 / repeats

    def device_times(self, act, samples=7, seconds=0.1):
        """As often in a row as takes a few milliseconds, so that the host's speed does not show."""
        act()
        self.synchronize()
        one = max(self.events(act, 2), 1e-6)
        repeats = max(1, min(200, round(seconds / samples / one)))
        return [self.events(act, repeats) for _ in range(samples)]

    def host_times(self, act, samples=5, most_s=2.0):
        """Seconds by the host's clock until the device is idle again, one at a time."""
        act()
        self.synchronize()
        out, begin = [], time.perf_counter()
        while len(out) < samples and (len(out) < 2 or time.perf_counter() - begin < most_s):
            now = time.perf_counter()
            act()
            self.synchronize()
            out.append(time.perf_counter() - now)
        return out


def sustained(b):
    """Each load alone for seconds: its first milliseconds, its last second, and the clock and power of then."""
    torch = b.torch
    n = 256 if b.tiny else 8192
    half = torch.bfloat16

    def product():
        x, w = torch.randn(n, n, device=b.device, dtype=half), torch.randn(n, n, device=b.device, dtype=half)
        out = torch.empty(n, n, device=b.device, dtype=half)
        return lambda: torch.mm(x, w.t(), out=out), 2 * n**3

    def product_of_8_bits(rowwise):
        def make():
            x, w = (torch.randn(n, n, device=b.device).to(torch.float8_e4m3fn) for _ in range(2))
            scale = (torch.ones(n, 1, device=b.device), torch.ones(1, n, device=b.device)) if rowwise else (torch.ones((), device=b.device),) * 2
            return lambda: torch._scaled_mm(x, w.t(), *scale, out_dtype=half, use_fast_accum=True), 2 * n**3
        return make

    def attention(backend, backward):
        def make():
            from torch.nn.attention import SDPBackend, sdpa_kernel
            batch, heads, t, d = (1, 2, 64, 16) if b.tiny else (2, 32, 8192, 128)
            q, k, v = (torch.randn(batch, heads, t, d, device=b.device, dtype=half, requires_grad=backward) for _ in range(3))
            kind = [getattr(SDPBackend, backend)] if b.cuda else [SDPBackend.MATH]

            def forward():
                with sdpa_kernel(kind):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            flops = 2 * batch * heads * t * t * d
            if not backward:
                return forward, flops
            out = forward()
            grad = torch.randn_like(out)
            return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), 2.5 * flops
        return make

    def copy():
        x = torch.randn((1 if b.tiny else 1024) * 2**18, device=b.device)
        y = torch.empty_like(x)
        return lambda: y.copy_(x), 0

    def adam():
        p = torch.randn((1 if b.tiny else 512) * 2**18, device=b.device, requires_grad=True)
        p.grad = torch.randn_like(p)
        return torch.optim.AdamW([p], lr=1e-4, fused=True).step, 0

    def mixture():
        """A layer's proportions: a product, then what reads and writes its result a few times."""
        act, flops = product()
        x = torch.randn(n, n, device=b.device, dtype=half)
        y = torch.empty_like(x)

        def both():
            act()
            torch.mul(x, 1.01, out=y)
            torch.add(y, x, out=y)
        return both, flops

    loads = {"bf16 product": product, "fp8 product, scales of rows": product_of_8_bits(True), "fp8 product, one scale": product_of_8_bits(False),
             "cuDNN attention": attention("CUDNN_ATTENTION", False), "its backward": attention("CUDNN_ATTENTION", True),
             "FlashAttention 2": attention("FLASH_ATTENTION", False), "its backward 2": attention("FLASH_ATTENTION", True),
             "copy": copy, "AdamW": adam, "bf16 product and two passes": mixture}
    for name, make in loads.items():
        if not b.wanted("sustained", name) or (name.startswith("fp8") and not b.cuda):
            continue
        act, flops = make()
        act()
        b.synchronize()
        if b.cuda:
            time.sleep(0.5)  # from a cool clock
        first = b.events(act, 3)
        lasts, states, begin = [], [], time.perf_counter()
        repeats = max(1, round(0.1 / max(first, 1e-6)))
        seconds = 0.1 if b.tiny else 3
        while time.perf_counter() - begin < seconds:
            lasts.append(b.events(act, min(repeats, 2000)))
            states.append(b.state())
        late = lasts[-max(1, len(lasts) // 3):]
        b.write("sustained", name, {"flops": flops}, late, first_s=first, early_s=lasts[0], over_time_s=lasts, states=states[::3])
        del act
        if b.cuda:
            torch.cuda.empty_cache()


def indices(b):
    """Additions at repeated indices: gradients of experts' biases and of embeddings, tokens put together again."""
    torch = b.torch
    tokens, hidden = (256, 64) if b.tiny else (32768, 2880)
    for dtype in (torch.bfloat16, torch.float32):
        for experts in (8, 32, 128):
            for order in ("sorted", "random"):
                name = f"index_add {experts} rows {order} {str(dtype)[6:]}"
                if b.wanted("indices", name):
                    x = torch.randn(tokens, hidden, device=b.device).to(dtype)
                    index = torch.randint(experts, (tokens,), device=b.device)
                    index = index.sort().values if order == "sorted" else index
                    out = torch.zeros(experts, hidden, device=b.device, dtype=dtype)
                    b.write("indices", name, {"tokens": tokens, "hidden": hidden, "rows": experts}, b.device_times(lambda: out.index_add_(0, index, x)))
    for dtype in (torch.bfloat16, torch.float32):
        # Tokens of k experts each, added to where they came from.
        k, t = 4, tokens // 4
        name = f"index_add {t} rows of {k} {str(dtype)[6:]}"
        if b.wanted("indices", name):
            x = torch.randn(tokens, hidden, device=b.device).to(dtype)
            index = torch.randperm(tokens, device=b.device) // k
            out = torch.zeros(t, hidden, device=b.device, dtype=dtype)
            b.write("indices", name, {"tokens": tokens, "hidden": hidden, "rows": t}, b.device_times(lambda: out.index_add_(0, index, x)))
        name = f"scatter_add {t} rows of {k} {str(dtype)[6:]}"
        if b.wanted("indices", name):
            x = torch.randn(tokens, hidden, device=b.device).to(dtype)
            index = (torch.randperm(tokens, device=b.device) // k)[:, None].expand(-1, hidden)
            out = torch.zeros(t, hidden, device=b.device, dtype=dtype)
            b.write("indices", name, {"tokens": tokens, "hidden": hidden, "rows": t}, b.device_times(lambda: out.scatter_add_(0, index, x)))
        name = f"index_select {str(dtype)[6:]}"
        if b.wanted("indices", name):
            x = torch.randn(t, hidden, device=b.device).to(dtype)
            index = torch.randperm(tokens, device=b.device) // k
            b.write("indices", name, {"tokens": tokens, "hidden": hidden}, b.device_times(lambda: x.index_select(0, index)))
        name = f"index_put_accumulate {str(dtype)[6:]}"
        if b.wanted("indices", name):
            x = torch.randn(tokens, hidden, device=b.device).to(dtype)
            index = torch.randperm(tokens, device=b.device) // k
            out = torch.zeros(t, hidden, device=b.device, dtype=dtype)
            b.write("indices", name, {"tokens": tokens, "hidden": hidden, "rows": t}, b.device_times(lambda: out.index_put_((index,), x, accumulate=True)))
        vocab, width, length = (512, 64, 128) if b.tiny else (128256, 4096, 8192)
        for sequences in (1, 4):
            name = f"embedding backward {sequences}x{length} {str(dtype)[6:]}"
            if b.wanted("indices", name):
                grad = torch.randn(sequences * length, width, device=b.device).to(dtype)
                index = torch.randint(vocab, (sequences * length,), device=b.device)
                b.write("indices", name, {"tokens": sequences * length, "hidden": width, "rows": vocab},
                        b.device_times(lambda: torch.ops.aten.embedding_dense_backward(grad, index, vocab, -1, False)))
    routed, experts = (256, 16) if b.tiny else (16384, 128)
    scores = torch.randn(routed, experts, device=b.device)
    chosen = scores.topk(8, dim=1).indices
    for name, act in {"topk 8 of 128": lambda: scores.topk(8, dim=1), "softmax of 128": lambda: scores.softmax(1), "stable argsort of chosen": lambda: chosen.view(-1).argsort(stable=True),
                      "histc of chosen": lambda: torch.histc(chosen.view(-1).float(), experts, 0, experts), "bincount of chosen": lambda: torch.bincount(chosen.view(-1), minlength=experts),
                      "one_hot of chosen": lambda: torch.nn.functional.one_hot(chosen, experts)}.items():
        if b.wanted("indices", name):
            b.write("indices", name, {"tokens": routed, "experts": experts, "k": 8}, b.device_times(act))


def grouped(b):
    """torch._grouped_mm as torchtitan and transformers call it: forward, gradient of the tokens, gradient of the weights."""
    torch = b.torch
    shapes = [(256, 4, 64, 32)] if b.tiny else [(65536, 64, 2048, 1408), (65536, 64, 1408, 2048), (16384, 8, 4096, 14336), (65536, 128, 2048, 768), (32768, 32, 2880, 5760), (8192, 128, 2048, 768)]
    for tokens, experts, k, n in shapes:
        for spread in ("even", "uneven"):
            if not b.wanted("grouped", f"forward {tokens}x{k}x{n} of {experts} {spread}"):
                continue
            share = torch.ones(experts) if spread == "even" else torch.rand(experts, generator=torch.Generator().manual_seed(1)) + 0.2
            counts = (share / share.sum() * tokens / 16).floor().int() * 16
            counts[-1] += tokens - int(counts.sum())
            ends = counts.cumsum(0).int().to(b.device)
            x = torch.randn(tokens, k, device=b.device, dtype=torch.bfloat16)
            w = torch.randn(experts, n, k, device=b.device, dtype=torch.bfloat16)  # as torchtitan keeps it; forward takes its transpose
            dy = torch.randn(tokens, n, device=b.device, dtype=torch.bfloat16)
            where = {"tokens": tokens, "experts": experts, "k": k, "n": n, "largest": int(counts.max())}
            for role, act in {"forward": lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends), "dgrad": lambda: torch._grouped_mm(dy, w, offs=ends),
                              "wgrad": lambda: torch._grouped_mm(dy.t(), x, offs=ends)}.items():
                b.write("grouped", f"{role} {tokens}x{k}x{n} of {experts} {spread}", where, b.device_times(act))


def flex(b):
    """FlexAttention, compiled, beside FlashAttention 2 of the same shape."""
    torch = b.torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    batch, heads, kv_heads, t, d = (1, 4, 2, 128, 16) if b.tiny else (2, 32, 8, 8192, 128)
    q, k, v = (torch.randn(batch, h, t, d, device=b.device, dtype=torch.bfloat16, requires_grad=b.cuda) for h in (heads, kv_heads, kv_heads))
    document = (torch.arange(t, device=b.device) // (t // 8)).int()
    masks = {"causal": lambda _b, _h, i, j: i >= j, "causal in eighths": lambda _b, _h, i, j: (i >= j) & (document[i] == document[j]),
             "causal window of 1024": lambda _b, _h, i, j: (i >= j) & (i - j < 1024)}
    compiled = torch.compile(flex_attention) if b.cuda else flex_attention
    for name, mask in masks.items():
        if not b.wanted("flex", name):
            continue
        block_mask = create_block_mask(mask, None, None, t, t, device=b.device)
        where = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "length": t, "head_dim": d}
        act = lambda block_mask=block_mask: compiled(q, k, v, block_mask=block_mask, enable_gqa=True)  # noqa: E731
        b.write("flex", name, where, b.device_times(act))
        if b.cuda:
            out = act()
            grad = torch.randn_like(out)
            b.write("flex", f"{name}, backward", where, b.device_times(lambda out=out, grad=grad: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)))


def copies(b):
    """Between device and host: pinned, not pinned but touched before, and fresh memory at every copy."""
    torch = b.torch
    for mib in ([1] if b.tiny else [1, 16, 128, 1024, 4096]):
        n = mib * 2**20 // 4
        x = torch.randn(n, device=b.device)
        where = {"bytes": 4 * n}
        if mib <= 1024:
            pinned = torch.empty(n, pin_memory=b.cuda)
            touched = torch.zeros(n)
            acts = {"to pinned": lambda: pinned.copy_(x, non_blocking=True), "from pinned": lambda: x.copy_(pinned, non_blocking=True),
                    "to touched": lambda: touched.copy_(x), "from touched": lambda: x.copy_(touched)}
        else:
            acts = {}
        acts |= {"to fresh": lambda: x.to("cpu", copy=True), "fresh and written": lambda: torch.full((n,), 1.0), "pinned anew": lambda: fresh_pinned(n)}

        def fresh_pinned(n):
            out = torch.empty(n, pin_memory=b.cuda)
            del out
            if b.cuda:
                torch._C._host_emptyCache()
        for name, act in acts.items():
            if b.wanted("copies", f"{name} {mib} MiB"):
                b.write("copies", f"{name} {mib} MiB", where, b.host_times(act))


def host(b):
    """What an optimizer step on the host is made of."""
    torch = b.torch
    n = 2**12 if b.tiny else 2**28
    threads = torch.get_num_threads()
    x, y, z = torch.randn(n), torch.zeros(n), torch.zeros(n, dtype=torch.bfloat16)
    for name, act in {"copy fp32": lambda: y.copy_(x), "fp32 to bf16": lambda: z.copy_(x), "bf16 to fp32": lambda: y.copy_(z), "add bf16": lambda: z.add_(z),
                      "add fp32": lambda: y.add_(x), "norm fp32": lambda: x.norm(), "divide fp32": lambda: y.mul_(0.999)}.items():
        if b.wanted("host", name):
            b.write("host", name, {"elements": n, "threads": threads}, b.host_times(act))
    del y, z
    p = x.requires_grad_(True)
    p.grad = torch.randn(n)
    if b.wanted("host", "AdamW fused"):
        optimizer = torch.optim.AdamW([p], lr=1e-4, fused=True)
        b.write("host", "AdamW fused", {"elements": n, "threads": threads}, b.host_times(optimizer.step))
        del optimizer
    if b.wanted("host", "DeepSpeed's CPU AdamW"):
        try:
            from deepspeed.ops.adam import DeepSpeedCPUAdam
            optimizer = DeepSpeedCPUAdam([p], lr=1e-4)
        except Exception as e:  # noqa: BLE001  not there, or it does not build
            print("operators.py: DeepSpeed's CPU AdamW:", str(e)[-300:], file=sys.stderr)
        else:
            b.write("host", "DeepSpeed's CPU AdamW", {"elements": n, "threads": threads}, b.host_times(optimizer.step))


def mixtures(b):
    """Products in a step that also does other things: each period has both, and the clock follows the power of the whole."""
    torch = b.torch
    n = 256 if b.tiny else 8192
    x, w, out = (torch.randn(n, n, device=b.device, dtype=torch.bfloat16) for _ in range(3))
    y = torch.randn((1 if b.tiny else 1024) * 2**18, device=b.device)
    z = torch.empty_like(y)
    q = torch.randn(1 if b.tiny else 2, 2 if b.tiny else 32, 64 if b.tiny else 8192, 128, device=b.device, dtype=torch.bfloat16)

    def product():
        torch.mm(x, w.t(), out=out)

    others = {"copies": lambda: z.copy_(y), "attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)}
    if b.cuda:
        others["nothing"] = lambda: torch.cuda._sleep(1000000)
    for what, share in (("copies", 0.2), ("copies", 0.4), ("copies", 0.6), ("copies", 0.8), ("nothing", 0.25), ("nothing", 0.5), ("attention", 0.3), ("attention", 0.6)):
        name = f"{share:.0%} {what}"
        if what not in others or not b.wanted("mixtures", name):
            continue
        other = others[what]
        period = 0.01 if b.tiny else 0.06
        one, two = (statistics.median(b.device_times(act, 3, 0.02)) for act in (product, other))
        products, rest = max(1, round(period * (1 - share) / one)), max(1, round(period * share / two))
        if b.cuda:
            time.sleep(0.3)
        periods, states, begin = [], [], time.perf_counter()
        while time.perf_counter() - begin < (0.05 if b.tiny else 2.0):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if b.cuda else []
            for mark, act, count in zip(marks or (None, None), (product, other), (products, rest)):
                if mark:
                    mark.record()
                for _ in range(count):
                    act()
            if marks:
                marks[2].record()
            periods.append(marks)
            if b.cuda and len(periods) > 2:
                periods[-3][2].synchronize()  # two periods ahead, no more
                states.append(b.state())
        b.synchronize()
        if b.cuda:
            late = periods[len(periods) // 2:]
            b.write("mixtures", name, {"products": products, "others": rest, "n": n}, [m[0].elapsed_time(m[1]) / 1e3 / products for m in late],
                    other_s=statistics.median(m[1].elapsed_time(m[2]) / 1e3 / rest for m in late), states=states[-1:], clock_mhz=statistics.mean(s.get("sm_clock_mhz", 0) for s in states[len(states) // 2:]))


def passes(b):
    """Softmax over a vocabulary, and optimizers over a model's worth of tensors."""
    torch = b.torch
    rows = 64 if b.tiny else 8192
    for vocab in ((512,) if b.tiny else (32000, 50304, 65536, 100352, 128256, 151936)):
        for dtype in (torch.float32, torch.bfloat16):
            name = f"log_softmax {vocab} {str(dtype)[6:]}"
            if b.wanted("passes", name):
                x = torch.randn(rows, vocab, device=b.device, dtype=dtype)
                y = torch.log_softmax(x, 1)
                g = torch.randn_like(x)
                where = {"rows": rows, "row": vocab, "bytes": x.element_size()}
                b.write("passes", name, where, b.device_times(lambda: torch.log_softmax(x, 1)))
                b.write("passes", f"{name}, backward", where, b.device_times(lambda: torch.ops.aten._log_softmax_backward_data(g, y, 1, dtype)))
                del x, y, g
    width, tensors = (256, 4) if b.tiny else (4096, 32)
    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("fused", "foreach"):
            name = f"AdamW {kind} {str(dtype)[6:]}"
            if b.wanted("passes", name):
                p = [torch.randn(width, width, device=b.device, dtype=dtype, requires_grad=True) for _ in range(tensors)]
                for t in p:
                    t.grad = torch.randn_like(t)
                optimizer = torch.optim.AdamW(p, lr=1e-4, fused=kind == "fused", foreach=kind == "foreach")
                b.write("passes", name, {"elements": width * width * tensors, "tensors": tensors}, b.device_times(optimizer.step))
                del p, optimizer
    tokens, width = (64, 64) if b.tiny else (8192, 4096)
    for dtype in (torch.float32, torch.bfloat16):
        for name, norm in {"rms_norm": torch.nn.RMSNorm, "layer_norm": torch.nn.LayerNorm}.items():
            name = f"{name} {str(dtype)[6:]}"
            if b.wanted("passes", name):
                x = torch.randn(tokens, width, device=b.device, dtype=dtype, requires_grad=True)
                module = norm(width, device=b.device, dtype=dtype)
                y = module(x)
                g = torch.randn_like(y)
                b.write("passes", name, {"rows": tokens, "row": width}, b.device_times(lambda: module(x)))
                b.write("passes", f"{name}, backward", {"rows": tokens, "row": width}, b.device_times(lambda: torch.autograd.grad(y, (x, *module.parameters()), g, retain_graph=True)))


GROUPS = [sustained, mixtures, passes, indices, grouped, flex, copies, host]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--budget", type=float, default=300, help="seconds; no series begins after it (default 300)")
    parser.add_argument("--only", help="series whose group and name match this pattern (* for anything)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes: a test of this program")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("operators.py: this Python has no PyTorch; install it, or run another Python", file=sys.stderr)
        return 3
    if options.device == "cuda" and not torch.cuda.is_available():
        print("operators.py: PyTorch sees no GPU", file=sys.stderr)
        return 3
    try:
        b = Bench(torch, options)
    except (ValueError, OSError) as e:
        print(f"operators.py: {e}", file=sys.stderr)
        return 2
    for group in GROUPS:
        try:
            group(b)
        except Exception as e:  # noqa: BLE001  one group must not cost the others
            print(f"operators.py: {group.__name__}: {type(e).__name__}: {str(e)[-400:]}", file=sys.stderr, flush=True)
        if b.cuda:
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
