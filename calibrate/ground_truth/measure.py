#!/usr/bin/env python3
"""Trains small real models on one GPU and writes what they took, in the columns of a table of measured runs
(`rehearse validate` reads it).

  measure.py --out DIR [--budget SECONDS] [--only PATTERN] [--list]     needs PyTorch 2.5 or later and one NVIDIA GPU
  measure.py --out DIR --device cpu --tiny                               the same code on two toy models, as a test

DIR/runs.csv grows by a row per case (an interrupted run goes on from it); DIR/details.jsonl has every step time and the
allocator's statistics; *.kernels.json and *.snapshot.pickle beside them, or in --details, the kernels and allocations of one
step of a few cases.
Exit codes: 0 done or out of time, 2 bad arguments, 3 no PyTorch or no GPU."""

import argparse
import contextlib
import csv
import fnmatch
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent

COLUMNS = ("row_id,task,framework,model,layers,hidden,heads,kv_heads,ffn_hidden,vocab,gated_mlp,n_experts,top_k,moe_ffn_hidden,"
           "shared_expert_ffn,head_dim,tie_embeddings,seq_len,params,gpu,n_gpus,gpus_per_node,interconnect,tp,sp,pp,vpp,pp_schedule,dp,"
           "cp,ep,etp,sharding,micro_batch,global_batch,grad_accum,precision,recompute,attention,optimizer,offload,lora_rank,"
           "lora_targets,torch_compile,cuda_graph,step_time_s,tokens_per_s_per_gpu,peak_mem_gib,peak_mem_kind,outcome,derived,source,note,"
           "max_mem_allocated_bytes,peak_reserved_gib,device_used_gib,host_time_s,step_time_spread,num_alloc_retries").split(",")

GPUS = {"NVIDIA H200": "h200-sxm", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
        "NVIDIA A100-SXM4-40GB": "a100-40gb-sxm", "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "NVIDIA B200": "b200-sxm",
        "NVIDIA L40S": "l40s", "NVIDIA A10G": "a10g", "NVIDIA GeForce RTX 4090": "rtx-4090"}

DEFAULTS = {"framework": "plain", "float8": "no", "zero": 0, "offload": "none", "pin_memory": True, "precision": "bf16", "parameters": "fp32", "recompute": "none", "compile": False, "optimizer": "adamw-fused", "lora_rank": 0,
            "grad_accum": 1, "expandable_segments": False, "warm_up": 3, "warm_s": 1.0, "steps": 8, "most_s": 6.0}


def cases(tiny):
    """Most telling first: a run that is cut off has something of each kind."""
    out = []

    def add(model, micro_batch, seq_len, **changes):
        case = DEFAULTS | {"model": model, "micro_batch": micro_batch, "seq_len": seq_len} | changes
        parts = [model, f"b{micro_batch}", f"s{seq_len}"]
        parts += [f"{k}={v}" for k, v in changes.items() if k not in ("kernels", "snapshot", "steps", "warm_up", "warm_s") and v != DEFAULTS.get(k)]
        out.append(case | {"name": " ".join(parts)})

    if tiny:
        for model in ("tiny-gpt", "tiny-llama"):
            add(model, 2, 32, steps=3, warm_up=1)
            add(model, 2, 32, recompute="full", parameters="bf16", steps=3, warm_up=1)
        add("tiny-llama", 1, 16, recompute="selective", grad_accum=2, steps=3, warm_up=1)
        add("tiny-llama", 1, 16, lora_rank=4, steps=3, warm_up=1)
        add("tiny-gpt", 1, 16, optimizer="adamw-host", precision="fp32", steps=3, warm_up=1)
        return out
    pure = {"parameters": "bf16"}
    host = {"framework": "deepspeed", "offload": "optimizer", "steps": 3, "warm_up": 2, **pure}
    eight = ("llama-3-8b-8-layers", 1, 8192)
    add("gpt2", 16, 1024, kernels=True, snapshot=True)
    add("llama-3.2-1b-untied", 4, 2048, kernels=True, snapshot=True)
    add("llama-3-8b", 1, 2048, kernels=True, **pure)
    add(*eight, compile="blocks", kernels=True)
    add("llama-3.2-1b-untied", 4, 2048, framework="transformers", kernels=True, snapshot=True, **pure)
    add("llama-3.2-1b-untied", 4, 2048, zero=2, grad_accum=2, **host)
    add("llama-3.2-1b-untied", 4, 2048, zero=2, grad_accum=2, pin_memory=False, **host)
    add("llama-8-layers", 4, 2048, zero=2, kernels=True, **host)
    add(*eight, compile="blocks", float8="rowwise", kernels=True)
    add("gpt2", 16, 1024, precision="fp32", kernels=True)
    add("llama-8-layers", 4, 2048, zero=3, kernels=True, **(host | {"offload": "optimizer+param"}))
    add("gpt2", 1, 1024)
    add(*eight, compile="blocks", float8="tensorwise", kernels=True)
    add(*eight, kernels=True)
    add("llama-3.2-1b-untied", 4, 2048, framework="fsdp2", offload="optimizer+param", kernels=True, steps=3)
    add("llama-3.2-1b-untied", 4, 2048, recompute="full", snapshot=True)
    add("llama-3-8b", 2, 4096, lora_rank=16, recompute="full", kernels=True, **pure)
    add("llama-3.2-1b-untied", 4, 2048, framework="fsdp2")
    add("gpt2-xl", 4, 1024, kernels=True)
    add("llama-3.2-1b-untied", 4, 2048, recompute="selective")
    add("llama-3.2-1b-untied", 4, 2048, compile=True, kernels=True)
    add("llama-8-layers", 4, 2048, zero=1, pin_memory=False, **host)
    add("llama-3.2-1b-untied", 4, 2048, expandable_segments=True)
    add("llama-3.2-1b-untied", 4, 2048, optimizer="adamw-host", steps=3)
    add("gpt2-medium", 16, 1024)
    add("gpt2", 16, 1024, compile=True)
    add("llama-3-8b", 1, 8192, recompute="full", **pure)
    add("llama-3-8b", 1, 2048)  # 16 bytes of state per parameter: 128 GB before the first activation
    add("llama-3.2-3b-untied", 2, 2048, **pure)
    add("gpt2", 4, 1024)
    add("gpt2", 64, 1024)
    add("llama-3.2-1b-untied", 1, 8192)
    add("llama-3.2-1b-untied", 8, 2048)
    add("llama-3.2-1b-untied", 1, 512)
    add("llama-3.2-3b-untied", 2, 4096)
    add("llama-3.2-3b-untied", 2, 4096, recompute="full")
    add("gpt2-large", 8, 1024)
    add("gpt2-xl", 8, 1024, recompute="full")
    add("gpt2-xl", 8, 1024, **pure)
    add("gpt2", 16, 1024, precision="tf32")
    add("gpt2", 16, 1024, optimizer="adamw-foreach")
    add("gpt2", 16, 1024, optimizer="adamw-loop")
    add("gpt2", 16, 1024, optimizer="sgd")
    add("gpt2", 4, 1024, grad_accum=4)
    add("llama-3-8b", 1, 4096, compile=True, **pure)
    add("llama-3-8b", 4, 2048, **pure)
    add("llama-3-8b", 1, 2048, lora_rank=64, **pure)
    add("gpt2-xl", 4, 1024, expandable_segments=True)
    add("gpt2-xl", 4, 1024, optimizer="adamw-host")
    add("gpt2", 128, 1024)
    return out


def row_of(case, answer, gpu, number, machine="single GPU"):
    from models import SHAPES
    s = SHAPES[case["model"]]
    gib = 1 / 2**30
    oom = "oom" in answer
    stats = answer.get("statistics") or {}
    step = answer.get("step_time_s")
    tokens = case["micro_batch"] * case["seq_len"] * case["grad_accum"]
    framework = {"transformers": "hf", "deepspeed": "deepspeed"}.get(case["framework"], "plain")
    words = [f"PyTorch {answer['torch']}", f"parameters: {case['parameters']}"]
    if framework == "plain":
        if case["parameters"] == "fp32" and case["precision"] == "bf16":
            words[-1] += ", FSDP's MixedPrecisionPolicy" if case["framework"] == "fsdp2" else ", autocast"
        words.append("plain modules of calibrate/ground_truth/models.py")
    else:
        words += [f"transformers {answer.get('transformers', '')}: its Llama in a loop of ours", "sdpa"]
    if case["framework"] == "deepspeed":
        words += ["with pin_memory" if case["pin_memory"] else "without pin_memory", f"DeepSpeed {answer.get('deepspeed', '')}, buckets of 2e8, overlap_comm, gradient clipping 1.0"]
    else:
        words.append("no gradient clipping")
    if case["float8"] != "no":
        words.append(f"torchao float8 {case['float8']}, but for the output layer")
    if case["compile"] == "blocks":
        words.append("each block compiled")
    host = case["optimizer"] == "adamw-host"
    offload = "optimizer" if host else case["offload"]
    sharding = f"zero{case['zero']}" if case["zero"] else "fsdp2" if case["framework"] == "fsdp2" else "zero2" if host else "none"
    if case["expandable_segments"]:
        words.append("expandable segments")
    if case["recompute"] == "selective":
        words.append("matrix products and attention are kept")
    if oom:
        words.append(answer["oom"].replace("\n", " "))
    row = dict.fromkeys(COLUMNS, "")
    row |= {"row_id": f"ground-truth-{number:03d}", "task": "lora" if case["lora_rank"] else "pretrain", "framework": framework, "model": case["model"],
            "layers": s.layers, "hidden": s.hidden, "heads": s.heads, "kv_heads": s.kv_heads, "ffn_hidden": s.ffn, "vocab": s.vocab,
            "gated_mlp": "y" if s.family == "llama" else "n", "tie_embeddings": "y" if s.family == "gpt" else "n", "seq_len": case["seq_len"],
            "params": s.parameters(), "gpu": gpu, "n_gpus": 1, "gpus_per_node": 1, "interconnect": machine, "tp": 1, "pp": 1, "dp": 1, "cp": 1, "ep": 1,
            # ZeRO-Offload is ZeRO-2 whose optimizer lives on the host; with one GPU there is nothing else to shard.
            "sharding": sharding, "micro_batch": case["micro_batch"], "global_batch": case["micro_batch"] * case["grad_accum"], "grad_accum": case["grad_accum"],
            "precision": {"no": case["precision"], "tensorwise": "fp8", "rowwise": "fp8 rowwise"}[case["float8"]], "recompute": case["recompute"], "attention": "flash" if gpu != "cpu" and case["precision"] == "bf16" else "sdpa",
            "optimizer": "DeepSpeed CPU Adam" if framework == "deepspeed" else case["optimizer"], "offload": offload,
            "lora_rank": case["lora_rank"] or "", "lora_targets": "all-linear" if case["lora_rank"] else "",
            "torch_compile": "y" if case["compile"] else "n", "outcome": "oom" if oom else "ok", "source": "calibrate/ground_truth: " + case["name"],
            "note": " | ".join(words)}
    if step:
        row |= {"step_time_s": f"{step:.6g}", "tokens_per_s_per_gpu": f"{tokens / step:.6g}", "derived": "tokens_per_s_per_gpu", "host_time_s": f"{answer['host_s']:.6g}",
                "step_time_spread": f"{(max(answer['step_times_s']) - min(answer['step_times_s'])) / step:.4f}"}
    if stats:
        row |= {"max_mem_allocated_bytes": stats["allocated_bytes.all.peak"], "peak_reserved_gib": f"{stats['reserved_bytes.all.peak'] * gib:.5f}",
                "num_alloc_retries": stats["num_alloc_retries"]}
        if not oom:
            row |= {"peak_mem_gib": f"{stats['allocated_bytes.all.peak'] * gib:.5f}", "peak_mem_kind": "allocated", "device_used_gib": f"{answer['device_used_bytes'] * gib:.5f}"}
    return row


def finished_cases(table):
    """Names of the cases in the table. A last line that was cut off (the machine stopped while it was written) is taken away:
    its case is measured again. Anything else that is no row of ours is refused with its line: ValueError."""
    if not table.exists():
        return set()
    text = table.read_text()
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        print(f"measure.py: {table}: the last line was cut off; its case is measured again", file=sys.stderr)
        part = table.with_suffix(".part")
        part.write_text(text)
        part.replace(table)
    if not text:
        table.unlink()
        return set()
    rows = list(csv.reader(text.splitlines()))
    if rows[0] != COLUMNS:
        raise ValueError(f"{table}:1: the columns are not this program's; name another folder by --out")
    where = COLUMNS.index("source")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(COLUMNS) or not row[where].startswith("calibrate/ground_truth: "):
            raise ValueError(f"{table}:{number}: is no row of this program; mend it or take it away")
    return {row[where].removeprefix("calibrate/ground_truth: ") for row in rows[1:]}


def in_child(act, folder, limit_s):
    """act() in a fork of this process, which must not have touched the GPU (transformers and torchao do as they are loaded: each case loads its own): what it printed, and what it complained about.
    TimeoutError when it took longer; RuntimeError, with the complaint, when it failed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setsid()  # with what it starts, it can be stopped as one
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.chdir(folder)
                act()
                code = 0
            except BaseException:  # noqa: BLE001  said on stderr, which the parent reads
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        end = time.monotonic() + limit_s
        done, status = 0, 0
        while not done and time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if not done:
                time.sleep(0.02)
        late = not done
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if late:
            os.waitpid(child, 0)
        printed, complained = [(f.seek(0), f.read().decode(errors="replace"))[1] for f in (out, err)]
    if late:
        raise TimeoutError(complained)
    if status != 0:
        raise RuntimeError(complained or f"ended with status {status}")
    return printed, complained


def gpu_name(device):
    if device == "cpu":
        return "cpu"

    def tell():
        import torch
        print(torch.cuda.get_device_name())

    try:
        name = in_child(tell, ".", 120)[0].strip().splitlines()[-1]
    except (RuntimeError, TimeoutError):
        print("measure.py: PyTorch sees no GPU", file=sys.stderr)
        sys.exit(3)
    return GPUS.get(name, name.lower().replace("nvidia ", "").replace(" ", "-"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--details", type=Path, help="where kernels and snapshots go (default: --out)")
    parser.add_argument("--budget", type=float, default=900, help="seconds; no case begins after it (default 900)")
    parser.add_argument("--case-limit", type=float, default=180, help="seconds after which a case is given up (default 180)")
    parser.add_argument("--machine", default="single GPU", help="what the rows say of the machine")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two toy models: a test of this program")
    parser.add_argument("--only", help="cases whose name matches this pattern (* for anything)")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    wanted = [c for c in cases(options.tiny) if not options.only or fnmatch.fnmatch(c["name"], f"*{options.only}*")]
    if options.list:
        print("\n".join(c["name"] for c in wanted))
        return 0
    begin = time.monotonic()
    try:
        import train_case  # PyTorch, once for all cases
    except ImportError:
        print("measure.py: this Python has no PyTorch; install it, or run another Python", file=sys.stderr)
        return 3
    gpu = gpu_name(options.device)
    large = options.details or options.out
    for folder in (options.out, large):
        folder.mkdir(parents=True, exist_ok=True)
    table, details = options.out / "runs.csv", options.out / "details.jsonl"
    try:
        done = finished_cases(table)
    except ValueError as e:
        print(f"measure.py: {e}", file=sys.stderr)
        return 2
    left = [c for c in wanted if c["name"] not in done]
    for number, case in enumerate(left):
        remaining = options.budget - (time.monotonic() - begin)
        if remaining <= 5:
            print(f"measure.py: out of time, {len(left) - number} cases left; run it again to go on", file=sys.stderr)
            break
        case |= {"device": options.device}
        stem = case["name"].replace(" ", "_").replace("=", "-")
        for kind, ending in (("kernels", "kernels.json"), ("snapshot", "snapshot.pickle")):
            if case.get(kind):
                case[f"{kind}_file"] = f"{stem}.{ending}"
        try:
            printed, _ = in_child(lambda case=case: train_case.main(case), large, min(options.case_limit, remaining))
            lines = [line for line in printed.splitlines() if line.startswith("{")]
            if not lines:
                raise RuntimeError("no output")
        except TimeoutError:
            print(f"measure.py: {case['name']}: given up, it took too long", file=sys.stderr)
            continue
        except RuntimeError as e:
            why = (str(e).strip().splitlines() or ["no output"])[-1]
            print(f"measure.py: {case['name']}: failed: {why}", file=sys.stderr)
            with details.open("a") as f:
                f.write(json.dumps({"case": case, "failed": str(e)[-4000:].replace(str(HERE), ".")}) + "\n")
            continue
        answer = json.loads(lines[-1])
        with details.open("a") as f:
            f.write(json.dumps({"case": case, "gpu": gpu, "answer": answer}) + "\n")
        is_new = not table.exists()
        with table.open("a", newline="") as f:
            writer = csv.DictWriter(f, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerow(row_of(case, answer, gpu, len(done) + 1, options.machine))
        done.add(case["name"])
        told = "out of memory" if "oom" in answer else f"{answer['step_time_s'] * 1e3:.1f} ms"
        print(f"measure.py: [{number + 1}/{len(left)}] {case['name']}: {told}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
