"""Capture the inputs of the layers of a checkpoint with the hook of docs/calibrate-your-own-network.md.

    python tests/reference/check_capture.py MODEL.safetensors DATA.safetensors OUT_FOLDER

MODEL is an S4Model with S4D layers, post-norm; DATA holds `inputs` (B, L) or (B, L, d), as
`compress-model data NAME --output` writes them. The folder gets `renamed.safetensors`, the same tensors under
names that nobody knows, and `inputs.safetensors`, the capture under those. The hook is the text of the
document itself. The gradients are compared with differences: exit code 1 where they are wrong.

Needs torch and safetensors.
"""

import pathlib
import re
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import s4_torch  # noqa: E402

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "calibrate-your-own-network.md"
NEW = [("encoder", "front.lift"), ("decoder", "readout.map"), ("s4_layers.", "trunk.mixers."), ("norms.", "trunk.scales.")]


class S4D(s4_torch.S4D):
    """With the activation as a module, as in s4d.py."""

    def __init__(self, channels, modes):
        super().__init__(channels, modes)
        self.activation = nn.GELU()
        self.shift = None

    def forward(self, u):
        y = s4_torch.convolve(u, self.kernel(u.size(-1))) + self.D.unsqueeze(-1) * u
        if self.shift is not None:
            y = y + self.shift
        return self.output_linear(self.activation(y))


def renamed(name):
    for old, new in NEW:
        name = name.replace(old, new)
    return name


def main(checkpoint, data, folder):
    scope = {"torch": torch}
    exec(re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S).group(1), scope)
    state = load_file(checkpoint)
    channels, modes = state["s4_layers.0.kernel.A_imag"].shape
    count = sum(name.endswith("kernel.C") for name in state)
    width, classes = state["encoder.weight"].shape[1], state["decoder.weight"].shape[0]
    model = s4_torch.S4Model(width, classes, channels, [S4D(channels, modes) for _ in range(count)])
    model.load_state_dict(state)
    inputs = load_file(data)["inputs"].float()[:100]
    inputs = inputs if inputs.dim() == 3 else inputs.unsqueeze(-1)
    layers = {f"trunk.mixers.{i}": layer for i, layer in enumerate(model.s4_layers)}
    activations = {name: layer.activation for name, layer in layers.items()}
    torch.manual_seed(0)
    out = scope["capture"](model, layers, activations, inputs.split(20))
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "inputs.safetensors")
    save_file({renamed(name): tensor for name, tensor in state.items()}, folder / "renamed.safetensors")

    # The signs of the first batch again, and a small step of one output.
    torch.manual_seed(0)
    signs = torch.randint(0, 2, (10, classes)) * 2.0 - 1
    signs -= signs.mean(-1, keepdim=True)
    model = model.double()
    batch, (step, channel, eps) = inputs[:1].double(), (5, 2, 1e-4)
    for i, name in enumerate(layers):
        values = []
        for sign in (1, -1):
            shift = torch.zeros(1, channels, inputs.shape[1], dtype=torch.float64)
            shift[0, channel, step] = sign * eps
            model.s4_layers[i].shift = shift
            values.append((model(batch) * signs[3]).sum().item())
        model.s4_layers[i].shift = None
        slope = (values[0] - values[1]) / (2 * eps)
        found = out[f"{name}.output_gradient"][0, 3, step, channel].item()
        print(f"{name}: input {tuple(out[name].shape)}, gradient {found:.6e}, by differences {slope:.6e}")
        if abs(found - slope) > 1e-3 * abs(slope) + 1e-7:
            sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
