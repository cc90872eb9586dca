"""What zero2_hooks.py and zero3_hooks.py share: DeepSpeed around the layers of paper_layers.py."""

from paper_layers import LINEAR, command_line, llama, loss_of, per_layer, start, tokens, torch

import deepspeed  # behind paper_gpu: it prints parameters

PYTORCH_LINEAR = torch.nn.functional.linear


def settings(zero):
    """A DeepSpeed configuration with these settings of ZeRO, under which no optimizer step is timed."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1_000_000,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }


def passes(layers, adapters=0, config=None, attention="sdpa", frozen=False, linear=PYTORCH_LINEAR):
    """Two callables: forward to the loss, and backward from it; under DeepSpeed with a configuration. `linear` is what torch.nn.Linear calls
    without one: ZeRO-3 puts its own in the place of PyTorch's, for the whole process (runtime/zero/linear.py)."""
    model = llama(layers, adapters, attention, frozen)
    batch = tokens()
    if config is None:
        def forward():
            found = torch.nn.functional.linear
            torch.nn.functional.linear = linear or found
            loss = loss_of(model, batch)
            torch.nn.functional.linear = found
            return loss
        return forward, (lambda loss: loss.backward())
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(trained), dist_init_required=False)
    return (lambda: loss_of(engine, batch)), (lambda loss: engine.backward(loss))
