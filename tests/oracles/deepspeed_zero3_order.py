"""Asks DeepSpeed's ZeRO-3 which parameters it gathers together, which it lets go, and when; writes data/deepspeed_zero3_order.json.

A Llama whose widths, and DeepSpeed's limits in elements, are those of Llama-3-70B under DeepSpeed's defaults divided by 16384
(hidden size by 128). One process on the CPU, which gathers nothing but decides as if there were others. Of one micro-batch, once
DeepSpeed has recorded the order of modules, a row has in order:

    gather NAMES   __all_gather_params: parameters that come in one all-gather
    run NAME, back NAME
                   the module with this weight has been fetched for its forward (or recomputation), for its backward
    release NAMES  release_sub_module: what goes with one module

Small parameters, which stay on every rank, are left out. Adapters are of rank 1, so that only those of the wide MLP are not small. About half a minute.
"""

import os

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29534", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")

import deepspeed
import peft
import torch
import transformers
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

from helpers import answers

SCALE = 16384
LAYERS, HIDDEN, FFN, HEADS, KEY_HEADS, VOCABULARY, TOKENS = 6, 64, 224, 8, 1, 1002, 16
LIMITS = {"prefetch_bucket": 50_000_000 // SCALE, "max_live_parameters": 1_000_000_000 // SCALE, "max_reuse_distance": 1_000_000_000 // SCALE, "persistence_threshold": 100}
STEPS = 4  # one that records nothing, one that records, one that follows the record, and the one that is written down
PRIVATE = "_PartitionedParameterCoordinator"


class Stream:
    """The CPU's stream is None, which DeepSpeed waits for."""

    def synchronize(self):
        pass

    def wait_stream(self, *_):
        pass


class Watch:
    """Hooks on the coordinator that write down what it does while `events` is a list."""

    def __init__(self):
        self.events, self.names = None, {}
        self.original = {name: getattr(Coordinator, name) for name in ("fetch_sub_module", "release_sub_module", PRIVATE + "__all_gather_params_", PRIVATE + "__release_param")}
        watch = self

        def fetch(coordinator, module, forward):
            watch.call("fetch_sub_module", coordinator, module, forward)
            watch.note("run" if forward else "back", module.parameters(recurse=False))

        def gather(coordinator, params, *rest, **named):
            watch.note("gather", [p for p in params if p.ds_status.name == "NOT_AVAILABLE"])
            watch.call(PRIVATE + "__all_gather_params_", coordinator, params, *rest, **named)

        def release(coordinator, module, **named):
            watch.gone = []
            watch.call("release_sub_module", coordinator, module, **named)
            watch.note("release", watch.gone)

        def release_one(coordinator, param, *rest):
            before = param.ds_status.name
            watch.call(PRIVATE + "__release_param", coordinator, param, *rest)
            if before == "AVAILABLE" and param.ds_status.name == "NOT_AVAILABLE" and watch.events is not None:
                watch.gone.append(param)

        self.gone = []
        Coordinator.fetch_sub_module, Coordinator.release_sub_module = fetch, release
        setattr(Coordinator, PRIVATE + "__all_gather_params_", gather)
        setattr(Coordinator, PRIVATE + "__release_param", release_one)

    def call(self, name, *arguments, **named):
        return self.original[name](*arguments, **named)

    def note(self, what, params):
        names = sorted(self.names[p.ds_id] for p in params if not p.ds_persist) if self.events is not None else []
        if names:
            self.events.append(" ".join([what, *names]))


def short(name):
    """model.layers.3.self_attn.q_proj.weight: 3.q_proj"""
    parts = [part for part in name.split(".") if part not in ("base_model", "model", "layers", "self_attn", "mlp", "weight", "base_layer", "default")]
    return ".".join(parts)


def llama(recompute, adapters):
    config = transformers.LlamaConfig(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS,
                                      vocab_size=VOCABULARY, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    if not adapters:
        return model
    if recompute:
        model.enable_input_require_grads()  # which reentrant checkpoints of frozen layers need
    linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=adapters, target_modules=linear, task_type="CAUSAL_LM")).to(torch.bfloat16)


def settings(micro_batches):
    zero = {"stage": 3, "stage3_prefetch_bucket_size": LIMITS["prefetch_bucket"], "stage3_max_live_parameters": LIMITS["max_live_parameters"],
            "stage3_max_reuse_distance": LIMITS["max_reuse_distance"], "stage3_param_persistence_threshold": LIMITS["persistence_threshold"]}
    return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": micro_batches, "bf16": {"enabled": True}, "zero_optimization": zero,
            "zero_allow_untested_optimizer": True, "steps_per_print": 10**9}


def case(watch, recompute, adapters=0, micro_batches=1):
    """The last micro-batch of a step."""
    model = llama(recompute, adapters)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    engine, *_ = deepspeed.initialize(model=model, config=settings(micro_batches), optimizer=optimizer, dist_init_required=False)
    watch.names = {p.ds_id: short(name) for name, p in engine.module.named_parameters()}
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    for micro_batch in range(STEPS * micro_batches):
        watch.events = [] if micro_batch + 1 == STEPS * micro_batches else None
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        events, watch.events = watch.events, None
        engine.step()
    return {"recompute": recompute, "adapters": adapters, "micro_batches": micro_batches, "events": events}


def main():
    torch.set_num_threads(1)
    get_accelerator().device_count = lambda: 1  # which else asks numactl
    get_accelerator().current_stream = lambda *_: Stream()
    torch.distributed.init_process_group("gloo")
    watch = Watch()
    rows = [case(watch, True), case(watch, False), case(watch, True, micro_batches=2), case(watch, True, adapters=1), case(watch, False, adapters=1)]
    shape = {"layers": LAYERS, "hidden": HIDDEN, "ffn": FFN, "heads": HEADS, "kv_heads": KEY_HEADS, "vocabulary": VOCABULARY, "tokens": TOKENS}
    answers.write("deepspeed_zero3_order.json", {"deepspeed": deepspeed.__version__, "peft": peft.__version__, "torch": torch.__version__, "transformers": transformers.__version__, "shape": shape, "limits": LIMITS}, cases=rows)


if __name__ == "__main__":
    main()
