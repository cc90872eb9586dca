"""Trains one model for a few steps and prints one JSON line: step times, memory, allocator statistics. One process per
case, so that no case finds the caches of another. Called by measure.py:  train_case.py CASE_JSON"""

import ctypes
import gc
import json
import signal
import statistics
import sys
import time

# Ends with measure.py, however that ends: a run that is left behind would disturb the next one's times.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

CASE = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
if CASE.get("expandable_segments"):
    import os
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # read when torch is loaded
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch  # noqa: E402

from models import SHAPES, Model, add_lora  # noqa: E402

STATISTICS = ["allocated_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.peak", "requested_bytes.all.peak",
              "inactive_split_bytes.all.peak", "segment.all.peak", "allocation.all.peak", "num_alloc_retries", "num_ooms",
              "allocated_bytes.all.current", "reserved_bytes.all.current"]


class HostAdamW:
    """AdamW on the host, as ZeRO-Offload does it for one GPU: gradients go to pinned memory, new parameters come back."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        pin = self.parameters[0].is_cuda
        self.master = [p.detach().float().cpu().requires_grad_(True) for p in self.parameters]
        self.staging = [torch.empty(p.shape, dtype=p.dtype, pin_memory=pin) for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-4, fused=True)

    def step(self):
        for p, s in zip(self.parameters, self.staging):
            s.copy_(p.grad, non_blocking=True)
        if self.parameters[0].is_cuda:
            torch.cuda.synchronize()
        for m, s in zip(self.master, self.staging):
            m.grad = s.float() if s.dtype != torch.float32 else s
        self.optimizer.step()
        for p, m, s in zip(self.parameters, self.master, self.staging):
            s.copy_(m.detach())
            p.data.copy_(s, non_blocking=True)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def make_optimizer(kind, model):
    trained = [p for p in model.parameters() if p.requires_grad]
    if kind == "adamw-host":
        return HostAdamW(trained)
    if kind == "sgd":
        return torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(trained, lr=1e-4, fused=kind == "adamw-fused", foreach=kind == "adamw-foreach")


def sm_clock():
    """MHz; none where PyTorch cannot ask NVML (it needs nvidia-ml-py)."""
    try:
        return torch.cuda.clock_rate()
    except Exception:  # noqa: BLE001  a missing package, an old driver: the times are good without it
        return None


def run(case):
    device = torch.device(case["device"])
    cuda = device.type == "cuda"
    shape = SHAPES[case["model"]]
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = case["precision"] == "tf32"
    weights = torch.bfloat16 if case["parameters"] == "bf16" else torch.float32
    with device:
        model = Model(shape, case["recompute"]).to(weights)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters(), "parameter count"
    if case["lora_rank"]:
        add_lora(model, case["lora_rank"])
    optimizer = make_optimizer(case["optimizer"], model)
    forward = torch.compile(model) if case["compile"] else model
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=case["precision"] == "bf16" and case["parameters"] == "fp32")
    ids = torch.randint(shape.vocab, (case["micro_batch"], case["seq_len"] + 1), device=device)

    def step():
        for _ in range(case["grad_accum"]):
            with autocast:
                loss = forward(ids[:, :-1], ids[:, 1:].contiguous()) / case["grad_accum"]
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def timed():
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step()
        enqueued = time.perf_counter() - begin
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin, enqueued, float(loss)

    if cuda:
        # What making the model in another type left behind is not of the training step.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    first = timed()[0]
    if cuda:
        after_first, peak_first = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    for _ in range(case["warm_up"] - 1):
        timed()
    times, hosts, clocks, begin = [], [], [], time.perf_counter()
    while len(times) < case["steps"] and (len(times) < 3 or time.perf_counter() - begin < case["most_s"]):
        total, host, loss = timed()
        times.append(total)
        hosts.append(host)
        clocks.append(sm_clock() if cuda else None)
    answer = {"step_time_s": statistics.median(times), "step_times_s": times, "host_s": statistics.median(hosts), "first_step_s": first,
              "sm_clocks_mhz": clocks, "loss": loss, "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    if cuda:
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        answer |= {"statistics": {k: stats.get(k, 0) for k in STATISTICS}, "device_used_bytes": total - free, "device_total_bytes": total,
                   "allocated_before_bytes": before, "allocated_between_steps_bytes": after_first, "peak_of_first_step_bytes": peak_first}
        if case.get("kernels_file"):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
                timed()
            rows = [{"name": e.key[:160], "count": e.count, "device_us": e.self_device_time_total, "host_us": e.self_cpu_time_total}
                    for e in profile.key_averages() if e.self_device_time_total > 0 or e.self_cpu_time_total > 200]
            with open(case["kernels_file"], "w") as out:
                json.dump(sorted(rows, key=lambda r: -r["device_us"])[:150], out, indent=0)
        if case.get("snapshot_file"):
            torch.cuda.memory._record_memory_history(max_entries=200000, stacks="python")
            timed()
            torch.cuda.memory._dump_snapshot(case["snapshot_file"])
    return answer


def main():
    try:
        answer = run(CASE)
    except torch.OutOfMemoryError as e:
        answer = {"oom": str(e)[:300]}
        if torch.cuda.is_available():
            stats = torch.cuda.memory_stats()
            answer["statistics"] = {k: stats.get(k, 0) for k in STATISTICS}
    answer["torch"] = torch.__version__
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
