"""What AutoGPTQ's linear layers cost the host thread, next to torch.nn.Linear.

Needs a CUDA build of torch, transformers and AutoGPTQ's Python parts, but no GPU (calibrate/paper_gpu): narrow Llama layers of frozen weights run with all
seven linear layers as they are and as QuantLinear of qlinear_cuda_old.py, which is what transformers takes for 4 bits in groups without its kernels of
few tokens. Prints what a layer takes more, in milliseconds and as a multiple of the plain forward, and the calls made for it. What
strategies/framework/data/huggingface.yaml holds (unpack_host) is a seventh of that multiple times the host time of a layer's forward, less the launches
that the simulator counts.

    python calibrate/paper_gpu/run.py --card a100 calibrate/ground_truth/gptq_host.py FOLDER [--repeats N]    FOLDER: that has auto_gptq in it, unpacked from its wheel
"""

import importlib.util
import pathlib

from paper_layers import LINEAR, command_line, llama, loss_of, per_layer, start, tell_more, tokens, torch

DEPTHS = 2, 8
GROUP = 32
KINDS = "plain", "gptq"


def quantised_linear(folder):
    """The class, from its file: its package wants kernels that are not there."""
    spec = importlib.util.spec_from_file_location("qlinear_cuda_old", pathlib.Path(folder) / "auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.QuantLinear


def passes(quantised, kind, layers):
    model, batch = llama(layers, frozen=True), tokens()
    if kind == "gptq":
        for layer in model.model.layers:
            for parent in (layer.self_attn, layer.mlp):
                for name, child in list(parent.named_children()):
                    if name in LINEAR:
                        setattr(parent, name, quantised(4, GROUP, child.in_features, child.out_features, False, weight_dtype=torch.bfloat16).to("cuda"))
    return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())


def main(folder, repeats):
    start()
    quantised = quantised_linear(folder)
    times = per_layer(lambda kind, layers: passes(quantised, kind, layers), KINDS, DEPTHS, repeats)
    print(f"torch {torch.__version__}: plain forward {times['plain'][0]:.3f} ms, backward of frozen weights {times['plain'][1]:.3f} ms")
    tell_more(times, KINDS[1:])


if __name__ == "__main__":
    parser = command_line(40)
    parser.add_argument("folder")
    options = parser.parse_args()
    main(options.folder, options.repeats)
