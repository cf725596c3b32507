"""What a PyTorch user would do to make the public S4D classifiers smaller: dynamic int8 of every
`nn.Linear`, and magnitude pruning of maps and modes.

    python torch_compression.py CKPT mnist:FOLDER|FILE.safetensors

Needs torch 2.15 (its eager quantisation is marked as deprecated) and safetensors. The network is
that of example.py of state-spaces/s4 with post-norm and mean pooling. Prints accuracies on all
sequences, and bytes of what would be stored; places of pruned numbers are not counted.
"""

import gzip
import sys

import numpy as np
import torch
from torch import nn

BATCH = 50


def linear(weight, bias):
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    return layer


class Layer(nn.Module):
    """y = k * u + D u, GELU, and a gated map between the channels."""

    def __init__(self, state, index):
        super().__init__()
        prefix = f"s4_layers.{index}."
        names = ["D", "kernel.C", "kernel.log_dt", "kernel.log_A_real", "kernel.A_imag"]
        self.numbers = {name: state[prefix + name].clone() for name in names}
        weight = state[prefix + "output_linear.0.weight"][:, :, 0]
        self.map = linear(weight, state[prefix + "output_linear.0.bias"])
        self.spectrum = None

    def kernel(self, length):
        numbers = {name: value.double() for name, value in self.numbers.items()}
        poles = -numbers["kernel.log_A_real"].exp() + 1j * numbers["kernel.A_imag"]
        steps = poles * numbers["kernel.log_dt"].exp()[:, None]
        residues = torch.view_as_complex(numbers["kernel.C"].contiguous())
        residues = residues * (steps.exp() - 1) / poles
        powers = (steps[:, :, None] * torch.arange(length)).exp()
        return 2 * torch.einsum("hn,hnl->hl", residues, powers).real.float()

    def forward(self, x):
        length = x.shape[1]
        if self.spectrum is None:
            self.spectrum = torch.fft.rfft(self.kernel(length), n=2 * length)
        u = x.transpose(1, 2)
        spectrum = torch.fft.rfft(u, n=2 * length) * self.spectrum
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        y = nn.functional.gelu(y + u * self.numbers["D"][:, None]).transpose(1, 2)
        values, gates = self.map(y).chunk(2, -1)
        return values * torch.sigmoid(gates)


class Network(nn.Module):
    def __init__(self, state):
        super().__init__()
        self.encoder = linear(state["encoder.weight"], state["encoder.bias"])
        self.decoder = linear(state["decoder.weight"], state["decoder.bias"])
        count = len([name for name in state if name.endswith("kernel.C")])
        self.layers = nn.ModuleList(Layer(state, index) for index in range(count))
        self.norms = nn.ModuleList()
        for index in range(count):
            norm = nn.LayerNorm(self.encoder.out_features)
            norm.weight.data = state[f"norms.{index}.weight"].clone()
            norm.bias.data = state[f"norms.{index}.bias"].clone()
            self.norms.append(norm)

    def forward(self, u):
        x = self.encoder(u)
        for layer, norm in zip(self.layers, self.norms):
            x = norm(x + layer(x))
        return self.decoder(x.mean(1))


def weights(path):
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=False)["model"]


def read(source):
    if source.startswith("mnist:"):
        folder = source.removeprefix("mnist:")
        images = gzip.open(f"{folder}/t10k-images-idx3-ubyte.gz").read()[16:]
        labels = gzip.open(f"{folder}/t10k-labels-idx1-ubyte.gz").read()[8:]
        inputs = np.frombuffer(images, np.uint8).reshape(-1, 784, 1) / 255.0
        labels = np.frombuffer(labels, np.uint8)
    else:
        from safetensors import safe_open

        arrays = safe_open(source, "np")
        inputs, labels = arrays.get_tensor("inputs"), arrays.get_tensor("labels")
    return torch.tensor(inputs.astype(np.float32)), torch.tensor(labels.astype(np.int64))


@torch.no_grad()
def accuracy(network, inputs, labels):
    correct = 0
    for first in range(0, len(inputs), BATCH):
        part = slice(first, first + BATCH)
        correct += (network(inputs[part]).argmax(-1) == labels[part]).sum().item()
    return 100 * correct / len(inputs)


def prune(network, share):
    """Keeps this share of the entries of every map, and of the modes of every layer."""
    for layer in network.layers:
        weight, weights = layer.map.weight.data, layer.numbers["kernel.C"]
        for values, sizes in [(weight, weight.abs()), (weights, weights.pow(2).sum(-1))]:
            least = sizes.flatten().kthvalue(int((1 - share) * sizes.numel())).values
            values[sizes < least] = 0


def main():
    path, source = sys.argv[1:3]
    state = weights(path)
    inputs, labels = read(source)
    fresh = lambda: Network(state).eval()
    numbers = sum(value.numel() for value in state.values())
    entries = sum(m.weight.numel() for m in fresh().modules() if isinstance(m, nn.Linear))
    print(f"full, f32: {4 * numbers} bytes, {accuracy(fresh(), inputs, labels):.2f} %")
    quantised = torch.ao.quantization.quantize_dynamic(fresh(), {nn.Linear}, dtype=torch.qint8)
    size = 4 * (numbers - entries) + entries
    print(f"dynamic int8: {size} bytes, {accuracy(quantised, inputs, labels):.2f} %")
    for parts in (2, 4, 8):
        network = fresh()
        prune(network, 1 / parts)
        print(f"maps and modes pruned to 1/{parts}: {accuracy(network, inputs, labels):.2f} %")


if __name__ == "__main__":
    main()
