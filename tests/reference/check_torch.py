"""Load a checkpoint into the original PyTorch modules and check its logits.

    python tests/reference/check_torch.py load REDUCED.pth
    python tests/reference/check_torch.py load REDUCED.safetensors \\
        --inputs TEST.safetensors --logits LOGITS.safetensors

`load` builds the S4Model of `s4_torch.py` with the state sizes found in the
file and calls `load_state_dict(strict=True)`: no tensor may be missing or left
over. With `--inputs` (tensor `inputs`, perhaps `labels`) the model is run in
float32 and float64. With `--logits` (tensor `logits`, or `--key`) the largest
differences are printed; the exit code is 1 if one is above `--tolerance` times
the largest logit (or 1, if that is more).

S4D files go into the module as it is published. DSS files too, while all
channels share their poles; a reduced DSS file has poles per channel, and the
lines of the original module that change for them are listed in the docstring
of `s4_torch.DSSKernel`. The DSS version, pre-norm and pooling are not in a
file and must be told.
"""

import argparse
import os
import pathlib
import re
import sys

import torch
from safetensors.torch import load_file

sys.path.insert(0, os.fspath(pathlib.Path(__file__).parent))
from s4_torch import DSS, S4D, DSSKernel, S4Model  # noqa: E402

torch.set_num_threads(1)


def read_state(path):
    """The tensors under their plain names, without wrapper key and prefix."""
    if path.endswith(".safetensors"):
        state = load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
        for key in ("model", "state_dict", "model_state_dict"):
            if isinstance(state.get(key), dict):
                state = state[key]
                break
    (encoder,) = [name for name in state if name.endswith("encoder.weight")]
    prefix = encoder.removesuffix("encoder.weight")
    assert all(name.startswith(prefix) for name in state), f"not every name starts with `{prefix}`"
    return {name.removeprefix(prefix): value for name, value in state.items()}


def build_layer(state, prefix, dss_version):
    """An S4D or DSS layer of the shapes found under `prefix`, and a word about it."""
    shapes = {name.removeprefix(prefix): tuple(t.shape) for name, t in state.items() if name.startswith(prefix)}
    if "kernel.log_A_real" in shapes:
        channels, modes = shapes["kernel.log_A_real"]
        return S4D(channels, modes), f"S4D, {channels} channels, {modes} modes"
    poles = shapes["kernel.Lambda"][:-1] if "kernel.Lambda" in shapes else shapes["kernel.Lambda_log_neg_re"]
    _, channels, modes, _ = shapes["kernel.W"]
    glu = "output_linear.0.weight" in shapes
    sep = len(shapes["kernel.log_dt"]) == 2
    layer = DSS(channels, modes, glu, version=dss_version, sep_dt_re_im=sep, per_channel=len(poles) == 2)
    return layer, f"DSS {dss_version}, {channels} channels, {modes} modes, poles {'per channel' if len(poles) == 2 else 'shared'}"


def build(state, args):
    """The model with the file's tensors in it, every one used."""
    numbers = {int(m[1]) for name in state if (m := re.match(r"s4_layers\.(\d+)\.", name))}
    layers = []
    for i in sorted(numbers):
        layer, words = build_layer(state, f"s4_layers.{i}.", args.dss_version)
        layers.append(layer)
        print(f"layer {i}: {words}")
    channels, inputs = state["encoder.weight"].shape
    classes = state["decoder.weight"].shape[0]
    model = S4Model(inputs, classes, channels, layers, prenorm=args.prenorm, pool=args.pool)
    if any(t.dtype == torch.float64 for t in state.values()):
        model = model.double()
    model.load_state_dict(state, strict=True)
    print(f"all {len(state)} tensors loaded, {sum(t.numel() for t in state.values())} numbers")
    return model.eval()


@torch.no_grad()
def run(model, inputs, dtype):
    model = model.to(dtype)
    return torch.cat([model(x.to(dtype)) for x in inputs.split(64)]).double()


def check(model, args):
    """Run in both precisions; True if every difference is within the tolerance."""
    data = load_file(args.inputs)
    wanted = load_file(args.logits)[args.key].double() if args.logits else None
    good = True
    for dtype in (torch.float64, torch.float32):  # float64 first: float32 rounds the weights
        logits = run(model, data["inputs"], dtype)
        words = [str(dtype).removeprefix("torch.")]
        if "labels" in data:
            words.append(f"accuracy {100 * (logits.argmax(-1) == data['labels']).double().mean():.2f} %")
        if wanted is not None:
            assert logits.shape == wanted.shape, f"{tuple(logits.shape)} logits, {tuple(wanted.shape)} in the file"
            difference = (logits - wanted).abs().max().item()
            limit = args.tolerance * max(1.0, wanted.abs().max().item())
            good &= difference <= limit
            words.append(f"largest difference of logits {difference:.2e}")
        print(", ".join(words))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    load = commands.add_parser("load", help="load strictly, compare logits")
    load.add_argument("checkpoint")
    load.add_argument("--inputs", help="safetensors file with `inputs` (B, L, d) and perhaps `labels` (B)")
    load.add_argument("--logits", help="safetensors file with the logits to compare with")
    load.add_argument("--key", default="logits", help="name of the tensor in --logits (default: logits)")
    load.add_argument("--tolerance", type=float, default=1e-4, help="largest difference allowed, against the largest logit (default: 1e-4)")
    load.add_argument("--dss-version", default="exp", choices=DSSKernel.VERSIONS)
    load.add_argument("--prenorm", action="store_true")
    load.add_argument("--pool", default="mean", choices=("mean", "last"))
    args = parser.parse_args()
    if args.logits and not args.inputs:
        parser.error("--logits needs --inputs")
    model = build(read_state(args.checkpoint), args)
    if args.inputs and not check(model, args):
        print(f"FAILED: a difference is above {args.tolerance:g} of the largest logit", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
