"""What routing tokens to experts and back costs the host thread in Megatron-Core, next to a plain layer: router, all-to-all dispatcher, its own synchronisation.

Needs a CUDA build of torch, transformers and the Python files of Megatron-LM on PYTHONPATH, but no GPU (calibrate/paper_gpu): narrow MoE layers whose experts give back
what they get. Transformer Engine's fused kernels (router, permutation) are replaced by functions that only make their outputs: their own Python is counted elsewhere
(megatron-bridge.yaml, triton_host), as are the products of experts (grouped_host). Prints what a layer takes, as a multiple of the plain forward too, and the calls made
for it. What strategies/framework/data/megatron-core.yaml and megatron-bridge.yaml hold (exchange_host, exchange_backward_host) takes its sum from runs of Megatron-LM's CI;
from here, as multiples of a layer's forward less the launches and collectives that the simulator counts, how it parts into forward and backward, and what fusing saves.

    PYTHONPATH=Megatron-LM python calibrate/paper_gpu/run.py calibrate/ground_truth/megatron_experts_host.py [--repeats N] [--ranks N] [--experts N] [--unfused]
"""

from paper_layers import TOKENS, WIDTH, command_line, llama, loss_of, per_layer, start, tokens, torch

DEPTHS = 2, 8
TOP_K = 4


class Made(torch.autograd.Function):
    """A kernel of Transformer Engine's as far as autograd sees it: `shapes` are made, gradients of the inputs too."""

    @staticmethod
    def forward(ctx, shapes, *inputs):
        ctx.save_for_backward(*inputs)
        return tuple(torch.empty(shape, dtype=inputs[0].dtype, device="cuda") for shape in shapes)

    @staticmethod
    def backward(ctx, *gradients):
        return None, *(torch.empty_like(x) for x in ctx.saved_tensors)


def fused(utils):
    """Stand-ins for transformer_engine.pytorch's permutation and router."""

    def topk(logits, **_):
        (probs,) = Made.apply([logits.shape], logits)
        return probs, torch.empty(logits.shape, dtype=torch.bool, device="cuda")

    def scores(logits, **_):
        return torch.empty(logits.shape, dtype=torch.bool, device="cuda"), Made.apply([logits.shape], logits)[0]

    def permute(inp, probs, routing_map, num_out_tokens):
        out, permuted = Made.apply([(num_out_tokens, inp.shape[1]), (num_out_tokens,)], inp, probs)
        return out, permuted, routing_map

    def chunks(inp, probs, split_sizes, sorted_index):
        return Made.apply([inp.shape, probs.shape], inp, probs)

    utils.HAVE_TE = True
    utils.fused_permute = utils.fused_permute_with_probs = permute
    utils.fused_topk_with_score_function = topk
    utils.fused_compute_score_for_moe_aux_loss = scores
    utils.fused_moe_aux_loss = lambda probs, **_: Made.apply([()], probs)[0]
    utils.fused_unpermute = lambda inp, row_id_map, restore_shape=None, **_: Made.apply([restore_shape], inp)[0]
    utils.fused_sort_chunks_by_index_with_probs = chunks
    utils.fused_sort_chunks_by_index = lambda inp, split_sizes, sorted_index: Made.apply([inp.shape], inp)[0]


def balanced(dispatchers):
    """The GPU on paper has no values, so that counts of tokens that come to the host are zeros: every rank gets as many instead."""
    exchange = dispatchers.all_to_all

    def even(group, tokens_, *_):
        splits = [tokens_.shape[0] // group.size()] * group.size()
        return exchange(group, tokens_, splits, splits)

    dispatchers.all_to_all = even


class Nothing(torch.nn.Module):
    """Experts that give back as many tokens as they get."""

    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, hidden, tokens_per_expert, probs):
        return Made.apply([hidden.shape], hidden, probs)[0], None


def layers_of(count, experts, fuse):
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe_utils.te_general_gemm = None  # the gate's product, counted with its launches
    if fuse:
        fused(moe_utils)
    config = TransformerConfig(num_layers=count, hidden_size=WIDTH, num_attention_heads=2, num_moe_experts=experts, moe_router_topk=TOP_K, moe_token_dispatcher_type="alltoall",
                               moe_aux_loss_coeff=1e-3, moe_router_load_balancing_type="aux_loss", moe_router_dtype="fp32", expert_model_parallel_size=torch.distributed.get_world_size(),
                               moe_permute_fusion=fuse, moe_router_fusion=fuse, bf16=True, params_dtype=torch.bfloat16, add_bias_linear=False, moe_grouped_gemm=False)
    made = [MoELayer(config, MoESubmodules(experts=ModuleSpec(module=Nothing)), layer_number=n + 1).to("cuda").train() for n in range(count)]
    return torch.nn.ModuleList(made)


def passes(kind, count, experts):
    if kind == "plain":
        model, batch = llama(count), tokens()
        return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())
    layers = layers_of(count, experts, kind == "experts")
    hidden = torch.zeros(TOKENS, 1, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)

    def forward():
        out = hidden
        for layer in layers:
            out, _ = layer(out)
        return out.sum()

    return forward, (lambda loss: loss.backward())


def main(repeats, ranks, experts, unfused):
    start(ranks)
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe import token_dispatcher

    balanced(token_dispatcher)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=ranks, create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    kinds = ["plain", "unfused" if unfused else "experts"]
    times = per_layer(lambda kind, layers: passes(kind, layers, experts), kinds, DEPTHS, repeats)
    print(f"torch {torch.__version__}, {ranks} ranks, {experts} experts: plain forward {times['plain'][0]:.3f} ms, backward {times['plain'][1]:.3f} ms")
    for which, name in enumerate(("forward", "backward")):
        took, calls = times[kinds[1]][which], times[kinds[1]][2 + which]
        print(f"{kinds[1]}, {name}: {took:.3f} ms, {took / times['plain'][0]:.2f} plain forwards; calls { {call: round(n, 2) for call, n in calls.items() if n} }")


if __name__ == "__main__":
    parser = command_line(20, 8)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--unfused", action="store_true", help="Megatron's own router and permutation")
    options = parser.parse_args()
    main(options.repeats, options.ranks, options.experts, options.unfused)
