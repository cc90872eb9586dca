"""What the exchange of heads for tokens around a state-space scan costs the host thread in Megatron-Core, next to a plain layer: its all-to-alls, copies and slices of parameters.

Needs a CUDA build of torch, transformers, einops and the Python files of Megatron-LM on PYTHONPATH, but no GPU (calibrate/paper_gpu): narrow mixers whose convolution and
scan only make their outputs. Prints what the exchange adds to such a layer, as a multiple of the plain forward too, and the calls made for it. What
strategies/framework/data/megatron-core.yaml holds (scan_exchange_host, scan_exchange_backward_host) comes from here.

    PYTHONPATH=Megatron-LM python calibrate/paper_gpu/run.py calibrate/ground_truth/scan_context_host.py [--repeats N] [--ranks N] [--groups N]
"""

from paper_layers import TOKENS, command_line, llama, loss_of, per_layer, start, tokens, torch

DEPTHS = 2, 8
HEADS, HEAD_DIM, STATE, TAPS = 16, 4, 4, 4


class Made(torch.autograd.Function):
    """An operator as far as autograd sees it: an output of `shape` is made, gradients of the inputs too."""

    @staticmethod
    def forward(ctx, shape, *inputs):
        ctx.save_for_backward(*inputs)
        return torch.empty(shape, dtype=inputs[0].dtype, device="cuda")

    @staticmethod
    def backward(ctx, gradient):
        return None, *(torch.empty_like(x) for x in ctx.saved_tensors)


class Mixer(torch.nn.Module):
    """`exchange`: Megatron's MambaContextParallel around the scan; otherwise the scan alone."""

    def __init__(self, exchange, group, groups):
        super().__init__()
        inner = HEADS * HEAD_DIM
        self.inner, self.projected = inner, 2 * inner + 2 * groups * STATE + HEADS
        channels = inner + 2 * groups * STATE
        sizes = {"taps": (channels, 1, TAPS), "bias": (channels,), "steps": (HEADS,), "decays": (HEADS,), "skip": (HEADS,)}
        self.parameters_ = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.empty(size, dtype=torch.bfloat16, device="cuda")) for name, size in sizes.items()})
        self.exchange = None
        if exchange:
            from megatron.core.ssm.mamba_context_parallel import MambaContextParallel

            p = self.parameters_
            self.exchange = MambaContextParallel(cp_group=group, d_inner_local_tp=inner, nheads_local_tp=HEADS, ngroups_local_tp=groups, d_state=STATE, conv1d_weight_cp1=p["taps"],
                                                 conv1d_bias_cp1=p["bias"], dt_bias_cp1=p["steps"], A_log_cp1=p["decays"], D_cp1=p["skip"], D_has_hdim=False, conv1d_padding=TAPS - 1)

    def forward(self, hidden):
        p, x = self.parameters_, Made.apply((TOKENS, 1, self.projected), hidden)
        if self.exchange is None:
            y = Made.apply((TOKENS, 1, self.inner), x, *p.values())
        else:
            e = self.exchange
            x = e.pre_conv_ssm(x)
            y = Made.apply((x.shape[0], 1, e.d_inner_local_tpcp), x, e.get_conv1d_weight(), e.get_conv1d_bias(), e.get_dt_bias(), e.get_A_log(), e.get_D())
            y = e.post_conv_ssm(y)
        return y


def passes(kind, count, group, groups):
    if kind == "plain":
        model, batch = llama(count), tokens()
        return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())
    layers = torch.nn.ModuleList([Mixer(kind == "exchange", group, groups) for _ in range(count)])
    hidden = torch.zeros(TOKENS, 1, HEADS * HEAD_DIM, dtype=torch.bfloat16, device="cuda", requires_grad=True)

    def forward():
        out = hidden
        for layer in layers:
            out = layer(out)
        return out.sum()

    return forward, (lambda loss: loss.backward())


def main(repeats, ranks, groups):
    start(ranks)
    group = torch.distributed.group.WORLD
    kinds = ["plain", "scan", "exchange"]
    times = per_layer(lambda kind, layers: passes(kind, layers, group, groups), kinds, DEPTHS, repeats)
    plain, alone, exchange = (times[kind] for kind in kinds)
    print(f"torch {torch.__version__}, {ranks} ranks, {groups} groups: plain forward {plain[0]:.3f} ms, backward {plain[1]:.3f} ms")
    for which, name in enumerate(("forward", "backward")):
        more = exchange[which] - alone[which]
        extra = {call: round(n - alone[2 + which][call], 2) for call, n in exchange[2 + which].items()}
        print(f"exchange, {name}: {more:.3f} ms, {more / plain[0]:.2f} plain forwards; calls { {call: n for call, n in extra.items() if n} }")


if __name__ == "__main__":
    parser = command_line(20, 4)
    parser.add_argument("--groups", type=int, default=4)
    options = parser.parse_args()
    main(options.repeats, options.ranks, options.groups)
