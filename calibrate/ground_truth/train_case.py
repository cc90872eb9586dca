"""Trains one model for a few steps: step times, what its phases take, memory, allocator statistics. measure.py runs each case in a
process of its own (a fork of one that has loaded PyTorch and not touched the GPU), so that no case finds the caches of another."""

import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import time

import torch

from models import SHAPES, Model, add_lora

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


class Training:
    """One model, its optimizer, and a step of them in three phases."""

    def __init__(self, case, device):
        self.case = case
        shape = SHAPES[case["model"]]
        weights = torch.bfloat16 if case["parameters"] == "bf16" else torch.float32
        with device:
            self.model = self.make(shape).to(weights)
        if case["framework"] == "plain":
            assert sum(p.numel() for p in self.model.parameters()) == shape.parameters(), "parameter count"
        if case["lora_rank"]:
            add_lora(self.model, case["lora_rank"])
        if case["float8"] != "no":
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            recipe = {"tensorwise": "tensorwise", "rowwise": "rowwise"}[case["float8"]]
            convert_to_float8_training(self.model, config=Float8LinearConfig.from_recipe_name(recipe), module_filter_fn=lambda m, name: name != "head")
        self.run = self.model
        self.wrap()
        if case["compile"] == "blocks":
            for block in self.model.blocks:
                block.compile()
        elif case["compile"]:
            self.run = torch.compile(self.model)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=case["precision"] == "bf16" and case["parameters"] == "fp32" and case["framework"] == "plain")

    def make(self, shape):
        return Model(shape, self.case["recompute"])

    def wrap(self):
        self.optimizer = make_optimizer(self.case["optimizer"], self.model)

    def loss(self, ids, labels):
        return self.run(ids, labels)

    def forward(self, ids, labels):
        with self.autocast:
            return self.loss(ids, labels) / self.case["grad_accum"]

    def backward(self, loss):
        loss.backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Fsdp2(Training):
    """fully_shard on each block and the whole, parameters fp32 and products bf16; one rank, so that its collectives are copies."""

    def wrap(self):
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
        alone()
        how = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
               "offload_policy": CPUOffloadPolicy(pin_memory=self.case["pin_memory"]) if "param" in self.case["offload"] else OffloadPolicy()}
        for block in self.model.blocks:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        super().wrap()


class Transformers(Training):
    """The library's own Llama, in a loop of ours: its attention through scaled_dot_product_attention."""

    def make(self, shape):
        from transformers import LlamaConfig, LlamaForCausalLM
        model = LlamaForCausalLM(LlamaConfig(
            hidden_size=shape.hidden, num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
            intermediate_size=shape.ffn, vocab_size=shape.vocab, max_position_embeddings=shape.positions, tie_word_embeddings=False,
            use_cache=False, attn_implementation="sdpa"))
        if self.case["recompute"] == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model.train()

    def loss(self, ids, labels):
        return self.run(input_ids=ids, labels=ids).loss


class DeepSpeed(Transformers):
    """transformers' Llama under DeepSpeed's ZeRO: the optimizer on the host where the case says so."""

    def wrap(self):
        import deepspeed
        alone()
        case = self.case
        zero = {"stage": case["zero"], "overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True, "reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8}
        if case["offload"] != "none":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": case["pin_memory"]}
        if "param" in case["offload"]:
            zero["offload_param"] = {"device": "cpu", "pin_memory": case["pin_memory"]}
        self.run, *_ = deepspeed.initialize(model=self.model, model_parameters=self.model.parameters(), config={
            "train_micro_batch_size_per_gpu": case["micro_batch"], "gradient_accumulation_steps": case["grad_accum"], "bf16": {"enabled": True},
            "gradient_clipping": 1.0, "zero_optimization": zero, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "steps_per_print": 10**9})

    def forward(self, ids, labels):
        return self.run(input_ids=ids, labels=ids).loss

    def backward(self, loss):
        self.run.backward(loss)

    def update(self):
        self.run.step()


FRAMEWORKS = {"plain": Training, "fsdp2": Fsdp2, "transformers": Transformers, "deepspeed": DeepSpeed}


def alone():
    """torch.distributed with this process only."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def profiled(step, operators):
    """What ran on the device in one of several steps in a row: kernels, or PyTorch's operators by the shapes of their inputs (whose
    recording makes the host late)."""
    kinds, rows = torch.profiler.ProfilerActivity, []

    def read(profile):
        for e in profile.key_averages(group_by_input_shape=operators):
            if e.self_device_time_total > 0 or (operators and e.self_cpu_time_total > 200):
                rows.append({"name": e.key[:200], "count": e.count, "device_us": e.self_device_time_total})
                if operators:
                    rows[-1] |= {"shapes": str(e.input_shapes)[:200], "host_us": e.self_cpu_time_total}

    cuda = torch.cuda.is_available()
    with torch.profiler.profile(activities=[*([kinds.CUDA] if cuda else []), *([kinds.CPU] if operators or not cuda else [])], record_shapes=operators,
                                schedule=torch.profiler.schedule(wait=0, warmup=2, active=1, repeat=1), on_trace_ready=read) as profile:
        for _ in range(3):
            step()
            if cuda:
                torch.cuda.synchronize()
            profile.step()
    return sorted(rows, key=lambda r: -r["device_us"])[:300]


def run(case):
    device = torch.device(case["device"])
    cuda = device.type == "cuda"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = case["precision"] == "tf32"
    training = FRAMEWORKS[case["framework"]](case, device)
    shape = SHAPES[case["model"]]
    ids = torch.randint(shape.vocab, (case["micro_batch"], case["seq_len"] + 1), device=device)

    def step(tell=lambda phase: None):
        for n in range(case["grad_accum"]):
            last = n + 1 == case["grad_accum"]
            loss = training.forward(ids[:, :-1], ids[:, 1:].contiguous())
            tell("forward_last" if last else "forward")
            training.backward(loss)
            tell("backward_last" if last else "backward")
            if last or case["framework"] == "deepspeed":  # whose engine counts passes by its own step
                training.update()
                tell("update")
        return loss

    def phases():
        """Seconds of each phase, the GPU waited for after each, so that their sum is more than a step's."""
        out, now = {}, time.perf_counter()

        def tell(phase):
            nonlocal now
            if cuda:
                torch.cuda.synchronize()
            then, now = now, time.perf_counter()
            out[phase] = out.get(phase, 0) + now - then

        step(tell)
        return out

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
    begin, steps = time.perf_counter(), 1
    while steps < case["warm_up"] or (cuda and time.perf_counter() - begin < case["warm_s"]):  # until the clocks are those of this load
        timed()
        steps += 1
    times, hosts, clocks, begin, began_at = [], [], [], time.perf_counter(), time.time()
    while (len(times) < case["steps"] or (cuda and time.perf_counter() - begin < case["warm_s"])) and (len(times) < 3 or time.perf_counter() - begin < case["most_s"]):
        total, host, loss = timed()
        times.append(total)
        hosts.append(host)
        clocks.append(sm_clock() if cuda else None)
    answer = {"step_time_s": statistics.median(times), "step_times_s": times, "host_s": statistics.median(hosts), "first_step_s": first,
              "sm_clocks_mhz": clocks, "loss": loss, "trained_parameters": sum(p.numel() for p in training.model.parameters() if p.requires_grad),
              "began_at": began_at, "ended_at": time.time(), "phases_s": [phases() for _ in range(2)]}
    if cuda:
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        answer |= {"statistics": {k: stats.get(k, 0) for k in STATISTICS}, "device_used_bytes": total - free, "device_total_bytes": total,
                   "allocated_before_bytes": before, "allocated_between_steps_bytes": after_first, "peak_of_first_step_bytes": peak_first}
        if case.get("kernels_file"):
            with open(case["kernels_file"], "w") as out:
                json.dump({"kernels": profiled(step, False), "operators": profiled(step, True)}, out, indent=0)
        if case.get("snapshot_file"):
            torch.cuda.memory._record_memory_history(max_entries=200000, stacks="python")
            timed()
            torch.cuda.memory._dump_snapshot(case["snapshot_file"])
    return answer


def main(case):
    """The case's JSON line, on standard output."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with measure.py; left behind, it would disturb the next one's times
    if case["expandable_segments"]:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        answer = run(case)
    except torch.OutOfMemoryError as e:
        answer = {"oom": str(e)[:300]}
        if torch.cuda.is_available():
            stats = torch.cuda.memory_stats()
            answer["statistics"] = {k: stats.get(k, 0) for k in STATISTICS}
    answer["torch"] = torch.__version__
    for library in ("transformers", "deepspeed", "torchao"):
        if library in sys.modules:
            answer[library] = sys.modules[library].__version__
    print(json.dumps(answer), flush=True)
