#!/usr/bin/env python3
"""Sequential MNIST from scratch in PyTorch, with the settings of `lab/experiments/smnist-scratch.toml`.

    python3 benches/smnist_torch.py MNIST [--seeds 3] [--epochs 10] [--threads 1] [--test 10000]

needs torch and numpy. The model is the `S4Model` of state-spaces/s4 with its S4D layers (pre-norm,
GLU, mean pooling), 16 channels, 16 stored modes, 4 layers; AdamW at 0.004 (steps, poles and input
vectors at 0.001 without decay, no decay of biases and norms), 100 steps of warm-up, cosine to 0,
batches of 50. MNIST is the folder with `train10k-images-idx3-ubyte.gz` and the like. Prints, for
each seed, the test accuracy and the seconds of an epoch.
"""
import argparse
import gzip
import math
import os
import pathlib
import sys
import time

import numpy as np
import torch

sys.path.insert(0, os.fspath(pathlib.Path(__file__).parents[1] / "tests" / "reference"))
from s4_torch import S4D, S4Model  # noqa: E402

CHANNELS, MODES, LAYERS, BATCH, WARMUP = 16, 16, 4, 50, 100
RATE, RATE_DYNAMICS, DECAY = 4e-3, 1e-3, 1e-2
DYNAMICS = ("log_dt", "log_A_real", "A_imag")


def digits(folder, part):
    """Sequences (count, 784, 1) of pixels / 255, and labels."""
    def read(name, offset):
        data = gzip.decompress((pathlib.Path(folder) / name).read_bytes())
        return np.frombuffer(data, np.uint8, offset=offset)

    pixels = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784, 1)
    labels = read(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
    return torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(labels)


def groups(model):
    """Dynamics; weight matrices; biases, norms and skips."""
    dynamics, weights, others = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith(DYNAMICS):
            dynamics.append(parameter)
        elif name.endswith(("weight", "kernel.C")) and parameter.ndim > 1:
            weights.append(parameter)
        else:
            others.append(parameter)
    return [
        {"params": dynamics, "lr": RATE_DYNAMICS, "weight_decay": 0.0},
        {"params": weights, "lr": RATE, "weight_decay": DECAY},
        {"params": others, "lr": RATE, "weight_decay": 0.0},
    ]


def train(data, epochs, seed):
    """The trained model, and wall and CPU seconds of each epoch."""
    torch.manual_seed(seed)
    layers = [S4D(CHANNELS, MODES) for _ in range(LAYERS)]
    model = S4Model(1, 10, CHANNELS, layers, prenorm=True)
    optimiser = torch.optim.AdamW(groups(model))
    steps = epochs * math.ceil(len(data[1]) / BATCH)

    def factor(step):
        if step < WARMUP:
            return (step + 1) / WARMUP
        return (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    times = []
    for _ in range(epochs):
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in torch.randperm(len(data[1])).split(BATCH):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data[0][batch]), data[1][batch])
            loss.backward()
            optimiser.step()
            schedule.step()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return model, times


@torch.no_grad()
def accuracy(model, data):
    right = [(model(x).argmax(-1) == y).sum().item() for x, y in zip(data[0].split(100), data[1].split(100))]
    return sum(right) / len(data[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--test", type=int, default=10000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = digits(options.mnist, "train10k")
    test = [part[: options.test] for part in digits(options.mnist, "t10k")]
    for seed in range(options.seeds):
        model, times = train(data, options.epochs, seed)
        wall, cpu = np.median(np.array(times), axis=0)
        share = 100 * accuracy(model, test)
        print(f"seed {seed}: {share:.2f} % of {len(test[1])}; an epoch {wall:.1f} s, {cpu:.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
