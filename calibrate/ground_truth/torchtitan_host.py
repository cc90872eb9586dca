"""What tensor parallelism (DTensor) and activation checkpoints of torchtitan cost the host thread per layer, where nothing is compiled.

Needs a CUDA build of torch, torchtitan 0.2.0 and transformers, but no GPU (calibrate/paper_gpu): torchtitan's own Llama 3, as narrow as paper_layers' layers,
with its own apply_tp and apply_ac. Prints milliseconds that a layer takes beyond torchtitan's plain one, as multiples of a plain forward of a Llama layer of
transformers too, and the calls made for it: what strategies/framework/data holds (tensor_host, tensor_backward_host, operator_checkpoint_host, ...) is that
multiple times the host time of a layer's forward under that profile, less the launches that the simulator counts by themselves.

    python calibrate/paper_gpu/run.py calibrate/ground_truth/torchtitan_host.py [--repeats N] [--tensor N]
"""

import os

from paper_layers import TOKENS, VOCABULARY, WIDTH, command_line, llama, loss_of, per_layer, start, tell_more, tokens, torch
from torch.nn.attention import SDPBackend
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config.job_config import ActivationCheckpoint
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models.attention import ScaledDotProductAttentionWrapper
from torchtitan.models.llama3.infra.parallelize import _op_sac_save_list, apply_tp
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer

DEPTHS = 2, 8
CHECKPOINTS = {"": None, "full": ActivationCheckpoint(mode="full"), "per operator": ActivationCheckpoint(mode="selective", selective_ac_option="op")}


def titan(layers, mesh, checkpoint):
    arguments = TransformerModelArgs(dim=WIDTH, n_layers=layers, n_heads=8, n_kv_heads=4, vocab_size=VOCABULARY, multiple_of=WIDTH, max_seq_len=TOKENS)
    model = Transformer(arguments).to("cuda").train()
    model.freqs_cis = model.freqs_cis.to("cuda")
    if mesh is not None:
        apply_tp(model, mesh, loss_parallel=True, enable_float8_tensorwise_tp=False)
    if checkpoint is not None:
        apply_ac(model, checkpoint, op_sac_save_list=_op_sac_save_list)
    return model.to(torch.bfloat16)


def passes(kind, layers, mesh):
    batch = tokens()
    if kind == "plain":
        model = llama(layers)
        return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())
    base, _, checkpoint = kind.partition(", ")
    model = titan(layers, mesh if base == "tensor parallel" else None, CHECKPOINTS[checkpoint])

    def forward():
        with loss_parallel():
            return cross_entropy_loss(model(batch), batch)

    def backward(loss):
        with loss_parallel():
            loss.backward()

    return forward, backward


def main(repeats, tensor):
    start(tensor)
    ScaledDotProductAttentionWrapper.sdpa_backends = [SDPBackend.FLASH_ATTENTION]  # there is no cuDNN on paper
    os.environ["WORLD_SIZE"] = str(tensor)
    mesh = init_device_mesh("cuda", (tensor,), mesh_dim_names=("tp",))
    kinds = ["plain"] + [base + (", " + checkpoint if checkpoint else "") for base in ("torchtitan", "tensor parallel") for checkpoint in CHECKPOINTS]
    times = per_layer(lambda kind, layers: passes(kind, layers, mesh), kinds, DEPTHS, repeats)
    print(f"torch {torch.__version__}, tensor parallelism of {tensor}: transformers' plain forward {times['plain'][0]:.3f} ms, backward {times['plain'][1]:.3f} ms")
    tell_more(times, kinds[1:])


if __name__ == "__main__":
    parser = command_line(20)
    parser.add_argument("--tensor", type=int, default=2)
    options = parser.parse_args()
    main(options.repeats, options.tensor)
