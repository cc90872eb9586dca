"""What Megatron-FSDP costs the host thread per layer, next to the layers that it shards.

Needs a CUDA build of torch, transformers and the Python files of megatron-fsdp, but no GPU (calibrate/paper_gpu): narrow Llama layers run plain and as units of
Megatron-FSDP that shards everything, gradients reduced in every micro-batch, main gradients and the end of each micro-batch synchronised or not. Prints what a layer
takes more, in milliseconds and as a multiple of the plain forward, and the calls made for it. What strategies/framework/data/megatron-core.yaml holds
(megatron_unit_host, megatron_unit_backward_host) is that multiple times the host time of a layer's forward (huggingface.yaml, layer_host), 7/9 of it for the host (torchtitan.yaml, unit_host),
less the launches that the simulator counts.

    python calibrate/paper_gpu/run.py calibrate/ground_truth/megatron_fsdp_host.py [--repeats N] [--ranks N]
"""

from paper_layers import command_line, llama, loss_of, per_layer, start, tell_more, tokens, torch
from torch.distributed.device_mesh import init_device_mesh
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

DEPTHS = 2, 8
KINDS = "plain", "units", "units, synchronised"


def gather_objects(gathered, mine, group=None):
    """torch.distributed.all_gather_object: pickles do not arrive over the GPU on paper, where every rank is this one."""
    gathered[:] = [mine] * len(gathered)


def passes(kind, layers, mesh):
    from megatron_fsdp import fully_shard  # behind the start: it looks at the device

    model, batch = llama(layers), tokens()
    if kind != "plain":
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model, _ = fully_shard(model, optimizer, device_mesh=mesh, dp_shard_dim="data", fsdp_unit_modules=[LlamaDecoderLayer], zero_dp_strategy=3, sync_model_each_microbatch=kind != "units")
    return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())


def main(repeats, ranks):
    start(ranks)
    torch.distributed.all_gather_object = gather_objects
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("data",))
    times = per_layer(lambda kind, layers: passes(kind, layers, mesh), KINDS, DEPTHS, repeats)
    print(f"torch {torch.__version__}, {ranks} ranks: plain forward {times['plain'][0]:.3f} ms, backward {times['plain'][1]:.3f} ms")
    tell_more(times, KINDS[1:])


if __name__ == "__main__":
    options = command_line(20, 8).parse_args()
    main(options.repeats, options.ranks)
