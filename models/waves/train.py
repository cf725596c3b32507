"""Train the checkpoint `model.safetensors` on the generated task "waves".

    python models/waves/train.py              # about three minutes on one core

The task. A sequence of 256 samples holds one tone in noise. The class, one of
ten, is its waveform (sine, triangle, square, sawtooth, pulse train) and
whether its pitch is constant or glides: class = waveform + 5 * glides. Pitch,
phase, amplitude, envelope, glide and noise are random, so the class shows
neither in the level nor in any short stretch: timbre takes a few periods, and
a glide the whole sequence. Classes are balanced and every seed is fixed.

The model is the `S4Model` of state-spaces/s4 with S4D layers (post-norm, mean
pooling): 1 input, 16 channels, 2 layers, 32 stored modes, 10 outputs.

Writes, beside this file,
    model.safetensors        the state dict, float32
    test.safetensors         inputs (400, 256, 1), labels (400)
    calibration.safetensors  inputs (64, 256, 1) of the training distribution
"""

import os
import pathlib
import sys
import time

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, os.fspath(HERE.parents[1] / "tests" / "reference"))
from s4_torch import S4D, S4Model  # noqa: E402

LENGTH, CLASSES, CHANNELS, MODES, LAYERS = 256, 10, 16, 32, 2
STEPS, BATCH, RATE, RATE_SSM = 6000, 64, 4e-3, 1e-3
SEED_TRAIN, SEED_TEST, SEED_HELD_OUT, SEED_CALIBRATION = 1, 2, 3, 4


def waveform(kind, phase):
    """One of five shapes of period 1, each of mean 0 and mean square 1."""
    t = phase % 1.0
    if kind == 0:  # sine
        return np.sqrt(2) * np.sin(2 * np.pi * t)
    if kind == 1:  # triangle
        return np.sqrt(3) * (4 * np.abs(t - 0.5) - 1)
    if kind == 2:  # square
        return np.where(t < 0.5, 1.0, -1.0)
    if kind == 3:  # sawtooth
        return np.sqrt(3) * (2 * t - 1)
    duty = 0.15  # pulse train
    return (np.where(t < duty, 1.0, 0.0) - duty) / np.sqrt(duty * (1 - duty))


def waves(count, rng):
    """Inputs (count, 256, 1) float32 and labels; `count` is a multiple of 10."""
    labels = rng.permutation(np.arange(count) % CLASSES)
    time_axis = np.linspace(-0.5, 0.5, LENGTH)
    inputs = np.empty((count, LENGTH, 1), np.float32)
    for row, label in enumerate(labels):
        kind, glides = label % 5, label >= 5
        periods = np.exp(rng.uniform(np.log(6), np.log(24)))  # in the sequence
        octaves = rng.choice([-1, 1]) * rng.uniform(1.0, 2.0) if glides else 0.0
        rate = periods / LENGTH * 2.0 ** (octaves * time_axis)
        phase = rng.uniform() + np.cumsum(rate)
        tilt, bump, place = rng.uniform(-0.6, 0.6), rng.uniform(0, 0.6), rng.uniform(-0.5, 0.5)
        envelope = 1 + tilt * time_axis - bump * np.exp(-(((time_axis - place) / 0.15) ** 2))
        amplitude = np.exp(rng.uniform(np.log(0.5), np.log(2)))
        tone = amplitude * envelope * waveform(kind, phase)
        noise = rng.uniform(0.1, 0.45) * amplitude * rng.standard_normal(LENGTH)
        inputs[row, :, 0] = tone + noise
    return torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64))


def generator(seed):
    return np.random.Generator(np.random.PCG64(seed))


def build():
    torch.manual_seed(0)
    return S4Model(1, CLASSES, CHANNELS, [S4D(CHANNELS, MODES) for _ in range(LAYERS)])


def optimizer_for(model):
    """AdamW; the parameters of the SSM kernels have a rate of their own and no decay."""
    ssm = [p for name, p in model.named_parameters() if ".kernel." in name]
    rest = [p for name, p in model.named_parameters() if ".kernel." not in name]
    groups = [{"params": rest}, {"params": ssm, "lr": RATE_SSM, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, weight_decay=0.01)


@torch.no_grad()
def accuracy(model, inputs, labels):
    """Percentage of right answers."""
    model.eval()
    right = sum((model(x).argmax(-1) == y).sum() for x, y in zip(inputs.split(200), labels.split(200)))
    return 100 * right.item() / len(labels)


def train(model, inputs, labels, rng):
    optimizer = optimizer_for(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    start, seen = time.time(), 0.0
    model.train()
    for step in range(1, STEPS + 1):
        batch = torch.from_numpy(rng.choice(len(labels), BATCH, replace=False))
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        seen += loss.item() / 250
        if step % 250 == 0:
            print(f"step {step}: loss {seen:.3f}, {time.time() - start:.0f} s", flush=True)
            seen = 0.0


def main():
    torch.set_num_threads(1)
    rng = generator(SEED_TRAIN)
    model = build()
    train(model, *waves(20000, rng), rng)

    test = waves(400, generator(SEED_TEST))
    held_out = waves(4000, generator(SEED_HELD_OUT))
    calibration, _ = waves(70, generator(SEED_CALIBRATION))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters; accuracy {accuracy(model, *test):.2f} % on the 400 of test.safetensors, "
          f"{accuracy(model, *held_out):.2f} % on 4000 others")

    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, HERE / "model.safetensors")
    save_file({"inputs": test[0], "labels": test[1]}, HERE / "test.safetensors")
    save_file({"inputs": calibration[:64].contiguous()}, HERE / "calibration.safetensors")


if __name__ == "__main__":
    main()
