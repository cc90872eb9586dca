"""What a layer's forward costs the host thread in training, next to decoding with the same layer.

Needs a CUDA build of torch and transformers (tried: 4.40), but no GPU (calibrate/paper_gpu): narrow Llama layers run a forward that records
a graph, the same without one, and one token of decoding with a cache. Published rates of decoding bound by the host tell what that takes on a real machine;
the ratio leads from there to a forward of training (strategies/framework/data/huggingface.yaml, layer_host).

    python calibrate/paper_gpu/run.py --card a100 calibrate/ground_truth/decode_host.py [--repeats N]
"""

from paper_layers import command_line, llama, loss_of, per_layer, start, tokens, torch

DEPTHS = 2, 10
KINDS = "training", "no graph", "decoding"


def passes(kind, layers):
    model, batch = llama(layers), tokens()
    if kind == "training":
        return (lambda: loss_of(model, batch)), (lambda loss: loss.backward())
    model.eval()
    cache = None
    if kind == "decoding":
        with torch.no_grad():
            cache = model(input_ids=batch, use_cache=True).past_key_values
        batch = batch[:, :1]

    def forward():
        with torch.no_grad():
            return model(input_ids=batch, past_key_values=cache, use_cache=cache is not None).logits

    return forward, (lambda logits: None)


def main(repeats):
    start()
    times = per_layer(passes, KINDS, DEPTHS, repeats)
    for kind in KINDS:
        print(f"torch {torch.__version__}, {kind}: {times[kind][0]:.3f} ms a layer, {times[kind][0] / times['training'][0]:.2f} of training's; kernels {times[kind][2]['kernel']:.0f}")


if __name__ == "__main__":
    main(command_line(40).parse_args().repeats)
