"""Trains an LSTM on `waves` and writes it in int8 for CMSIS-NN: the network beside ours in docs/firmware.md.

    for part in train test; do compress-model data waves --split $part --output FOLDER/$part.safetensors; done
    python tests/reference/train_lstm.py FOLDER --units 32
    python tests/reference/train_lstm.py FOLDER --units 32 --header lstm.h --sequences 3

One layer, the mean of its outputs, one linear map. The first call trains in float32, writes
FOLDER/lstm-32.safetensors and prints the accuracy on the test part; the second reads that file. The header
holds the int8 network and the first test sequences for examples/firmware/c/lstm.c, which counts its right
answers. All scales are symmetric: their zero points are 0. Needs numpy, torch and safetensors.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

BATCH, RATE, WARMUP, CLASSES = 32, 6e-3, 400, 10
# Sequences of the training part that the scales are measured on.
MEASURED = 1000
# The scales of the numbers before a gate's function, and of what it returns.
BEFORE, AFTER = 2.0**-12, 2.0**-15


class Classifier(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.lstm = nn.LSTM(1, units, batch_first=True)
        self.decoder = nn.Linear(units, CLASSES)
        # Memories of 1 to 64 steps at the start (Tallec and Ollivier 2018).
        spans = torch.empty(units).uniform_(1, 64).log()
        with torch.no_grad():
            self.lstm.bias_hh_l0.zero_()
            self.lstm.bias_ih_l0.copy_(torch.cat([-spans, spans, torch.zeros(2 * units)]))

    def forward(self, inputs):
        return self.decoder(self.lstm(inputs)[0].mean(1))


@torch.no_grad()
def accuracy(net, part):
    """Percent of the sequences."""
    pairs = zip(part["inputs"].split(500), part["labels"].split(500))
    return 100 * sum(int((net(inputs).argmax(1) == labels).sum()) for inputs, labels in pairs) / len(part["labels"])


def train(net, part, epochs):
    """Adam with a warm-up and a cosine; gradients clipped to 1."""
    inputs, labels = part["inputs"], part["labels"]
    batches = len(inputs) // BATCH
    adam = torch.optim.Adam(net.parameters(), RATE)
    rate = lambda step: min((step + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * step / (epochs * batches))))
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, rate)
    for epoch in range(epochs):
        total = 0
        for rows in torch.randperm(len(inputs))[: batches * BATCH].view(batches, BATCH):
            loss = nn.functional.cross_entropy(net(inputs[rows]), labels[rows])
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            adam.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / batches:.4f}", flush=True)


@torch.no_grad()
def largest(net, inputs):
    """The largest absolute value of a hidden state and of a cell."""
    lstm = net.lstm
    hidden = cell = torch.zeros(len(inputs), lstm.hidden_size)
    most = [0.0, 0.0]
    for x in inputs.unbind(1):
        sums = x @ lstm.weight_ih_l0.T + hidden @ lstm.weight_hh_l0.T + lstm.bias_ih_l0 + lstm.bias_hh_l0
        i, f, g, o = sums.chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        most = [max(before, float(now.abs().max())) for before, now in zip(most, (hidden, cell))]
    return most


def factor(value):
    """The multiplier and the shift of a number: multiplier / 2^31 * 2^shift."""
    fraction, shift = math.frexp(value)
    return min(round(fraction * 2**31), 2**31 - 1), shift


def rounded(array, scale):
    return np.clip(np.rint(array / scale), -127, 127).astype(np.int64)


def integers(array):
    """Weights as int8, and their scale."""
    scale = float(np.abs(array).max()) / 127
    return rounded(array, scale), scale


def quantised(net, inputs):
    """What the header declares, by name: an integer, or a type and an array. And the scale of the inputs."""
    tensors = {name: tensor.double().numpy() for name, tensor in net.state_dict().items()}
    hidden_most, cell_most = largest(net, inputs)
    input_scale, hidden_scale = float(inputs.abs().max()) / 127, hidden_most / 127
    cell_power = math.ceil(math.log2(cell_most)) - 15
    gates = {"input_weights": [], "hidden_weights": [], "biases": [], "factors": []}
    order = [1, 0, 2, 3]  # torch has the input gate first, CMSIS-NN the forget gate
    parts = [np.split(tensors[f"lstm.{name}_l0"], 4) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    for over_input, over_hidden, *biases in (tuple(part[gate] for part in parts) for gate in order):
        over_input, first = integers(over_input)
        over_hidden, second = integers(over_hidden)
        gates["input_weights"].append(over_input.ravel())
        gates["hidden_weights"].append(over_hidden.ravel())
        gates["biases"].append(np.rint(sum(biases) / (first * input_scale)))
        gates["factors"].append([*factor(first * input_scale / BEFORE), *factor(second * hidden_scale / BEFORE)])
    decoder, scale = integers(tensors["decoder.weight"])
    steps = inputs.shape[1]
    # The sum of all hidden states stands for their mean.
    decoder_biases = np.rint(tensors["decoder.bias"] * steps / (scale * hidden_scale))
    output_multiplier, output_shift = factor(AFTER * AFTER / hidden_scale)
    declared = {
        "HIDDEN": net.lstm.hidden_size,
        "STEPS": steps,
        "CLASSES": CLASSES,
        "CELL_SCALE_POWER": cell_power,
        "OUTPUT_MULTIPLIER": output_multiplier,
        "OUTPUT_SHIFT": output_shift,
        "input_weights": ("int8_t", gates["input_weights"]),
        "hidden_weights": ("int8_t", gates["hidden_weights"]),
        "biases": ("int32_t", gates["biases"]),
        "factors": ("int32_t", gates["factors"]),
        "decoder_weights": ("int8_t", decoder),
        "decoder_biases": ("int32_t", decoder_biases),
    }
    return declared, input_scale


def declaration(name, value):
    """A line or a table of C."""
    if isinstance(value, int):
        return f"#define {name} {value}\n"
    kind, array = value
    array = np.asarray(array).astype(np.int64)
    sizes = "".join(f"[{size}]" for size in array.shape)
    rows = ["{" + ", ".join(map(str, row)) + "}" for row in array] if array.ndim > 1 else map(str, array)
    return f"static const {kind} {name}{sizes} = {{\n" + ",\n".join(rows) + "};\n"


def write_header(file, net, train_part, test, count):
    declared, scale = quantised(net, train_part["inputs"][:MEASURED])
    bytes_of = {"int8_t": 1, "int32_t": 4}
    size = sum(bytes_of[value[0]] * np.size(value[1]) for value in declared.values() if not isinstance(value, int))
    samples = rounded(test["inputs"][:count, :, 0].double().numpy(), scale)
    labels = test["labels"][:count].numpy()
    declared |= {"SEQUENCES": len(samples), "samples": ("int8_t", samples), "labels": ("uint8_t", labels)}
    file.write_text("".join(declaration(name, value) for name, value in declared.items()))
    print(f"wrote {file}: {size:,} bytes of weights, {len(samples)} sequences")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--header", type=Path)
    parser.add_argument("--sequences", type=int, default=3)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(settings.seed)
    parts = [load_file(settings.folder / f"{part}.safetensors") for part in ("train", "test")]
    net = Classifier(settings.units)
    file = settings.folder / f"lstm-{settings.units}.safetensors"
    if settings.header:
        net.load_state_dict(load_file(file))
        write_header(settings.header, net, *parts, settings.sequences)
    else:
        train(net, parts[0], settings.epochs)
        save_file(net.state_dict(), file)
    print(f"{settings.units} units: {accuracy(net, parts[1]):.2f} % of the test part in float32")


if __name__ == "__main__":
    main()
