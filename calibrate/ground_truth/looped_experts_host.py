"""What an expert costs the host thread where modelling code loops over experts, next to a plain layer, and the launches that it takes.

Needs a CUDA build of torch and a transformers whose Mixtral loops (4.x), but no GPU (calibrate/paper_gpu): narrow layers of Mixtral with four and with eight
experts. The GPU on paper has no values, so torch.where, which tells the host which tokens an expert has, is answered with four
of them and its own launches are left out. Prints, per expert more, what strategies/framework/data/huggingface.yaml holds (grouped_host), as a
multiple of a plain Llama layer's forward, and the launches that strategies/layer/expert_dispatch.cpp writes.

    python calibrate/paper_gpu/run.py calibrate/ground_truth/looped_experts_host.py [--repeats N]
"""

from paper_layers import VOCABULARY, WIDTH, command_line, llama, loss_of, per_layer, tokens, torch
from transformers import MixtralConfig, MixtralForCausalLM

DEPTHS = 2, 8
LAUNCHES = "kernel", "product", "copy", "fill"


def mixtral(layers, experts):
    config = MixtralConfig(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=2, vocab_size=VOCABULARY,
                           num_local_experts=experts, num_experts_per_tok=2, attn_implementation="sdpa")
    return MixtralForCausalLM(config).to("cuda", torch.bfloat16).train()


def passes(experts, layers):
    model, batch = (mixtral(layers, experts) if experts else llama(layers)), tokens()

    def backward(loss):
        loss.backward()
        model.zero_grad()

    return (lambda: loss_of(model, batch)), backward


def main(repeats):
    of_expert = torch.zeros(4, dtype=torch.long, device="cuda"), torch.arange(4, device="cuda")
    where = torch.where
    torch.where = lambda *arguments: of_expert if len(arguments) == 1 else where(*arguments)
    times = per_layer(passes, [0, 4, 8], DEPTHS, repeats)
    plain = times[0][0]
    print(f"torch {torch.__version__}: plain forward {plain:.3f} ms")
    for which, name in enumerate(("forward", "backward")):
        more = (times[8][which] - times[4][which]) / 4
        launches = sum(times[8][2 + which][call] - times[4][2 + which][call] for call in LAUNCHES) / 4
        print(f"an expert, {name}: {more * 1e3:.0f} us, {more / plain:.3f} plain forwards, {launches:.1f} launches")


if __name__ == "__main__":
    main(command_line(20).parse_args().repeats)
