#!/usr/bin/env python3
"""Reference logits, gradients and ten steps of AdamW of small trainable networks, by PyTorch.

    python3 tests/reference/make_training.py

needs torch and safetensors, and writes tests/data/training.safetensors. Everything runs in double
precision. The formulas are those of the public layers (state-spaces/s4 models/s4/s4d.py; ag1988/dss
dss.py), with poles of its own for every channel: kernels by the complex exponential of an
H x N x L tensor, convolution by FFT, gradients by autograd.
"""
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

H, N, L, BATCH, LAYERS, CLASSES, VOCABULARY = 5, 6, 27, 4, 2, 3, 7
STEPS, RATE, DECAY = 10, 0.01, 0.01

# Name, layer, norm, placement, gated, bidirectional, pooling, tokens.
NETWORKS = [
    ("s4d", "s4d", "layer", "pre", True, False, "mean", False),
    ("exp", "dss-exp", "batch", "post", False, True, "last", False),
    ("softmax", "dss-softmax", "layer", "post", True, False, "mean", True),
]


def kernel(parameters, prefix, layer):
    """K[h, l], l = 0..L-1."""
    step = parameters[prefix + "log_step"].exp()[:, None]
    weights = torch.view_as_complex(parameters[prefix + "weights"])
    if layer == "dss-softmax":
        real = parameters[prefix + "decay"]
    else:
        real = -parameters[prefix + "log_decay"].exp()
    pole = torch.complex(real, parameters[prefix + "frequency"])
    z = pole * step
    shift = torch.zeros_like(z)
    if layer == "s4d":
        weights = 2 * weights * (z.exp() - 1) / pole
    elif layer == "dss-exp":
        weights = weights * (z.exp() - 1) * pole.conj() / (pole * pole.conj()).real.clamp(1e-7)
    else:
        growing = (pole.real > 0).to(torch.float64)
        down = z * (1 - 2 * growing)
        x = ((down * L).exp() - 1) * pole
        weights = weights * (down.exp() - 1) * x.conj() / (x * x.conj() + 1e-7)
        shift = growing * (L - 1)
    exponent = z[..., None] * (torch.arange(L) - shift.real[..., None])
    return torch.einsum("hn,hnl->hl", weights, exponent.exp()).real


def normalised(parameters, prefix, norm, x):
    weight, bias = parameters[prefix + "norm.weight"], parameters[prefix + "norm.bias"]
    if norm == "layer":
        return F.layer_norm(x, (H,), weight, bias)
    return F.batch_norm(x.transpose(1, 2), None, None, weight, bias, True).transpose(1, 2)


def forward(parameters, description, steps):
    _, layer, norm, placement, gated, bidirectional, pooling, tokens = description
    if tokens:
        x = F.embedding(steps, parameters["encoder.table"])
    else:
        x = F.linear(steps, parameters["encoder.weight"], parameters["encoder.bias"])
    for index in range(LAYERS):
        prefix = f"blocks.{index}."
        z = normalised(parameters, prefix, norm, x) if placement == "pre" else x
        u = z.transpose(1, 2)
        both = F.pad(kernel(parameters, prefix, layer), (0, L))
        if bidirectional:
            both = both + F.pad(kernel(parameters, prefix + "backward.", layer).flip(-1), (L, 0))
        y = torch.fft.irfft(torch.fft.rfft(u, 2 * L) * torch.fft.rfft(both, 2 * L), 2 * L)[..., :L]
        y = F.gelu(y + u * parameters[prefix + "feedthrough"][:, None]).transpose(1, 2)
        y = F.linear(y, parameters[prefix + "output.weight"], parameters[prefix + "output.bias"])
        x = x + (F.glu(y) if gated else y)
        if placement == "post":
            x = normalised(parameters, prefix, norm, x)
    pooled = x.mean(1) if pooling == "mean" else x[:, -1]
    return F.linear(pooled, parameters["head.weight"], parameters["head.bias"])


def start(description):
    _, layer, _, _, gated, bidirectional, _, tokens = description
    made = {}
    if tokens:
        made["encoder.table"] = torch.randn(VOCABULARY, H)
    else:
        made["encoder.weight"], made["encoder.bias"] = torch.randn(H, 2), torch.randn(H)
    rows = 2 * H if gated else H
    for index in range(LAYERS):
        prefix = f"blocks.{index}."
        for direction in [prefix] + [prefix + "backward."] * bidirectional:
            made[direction + "log_step"] = torch.rand(H) * math.log(100) + math.log(1e-3)
            if layer == "dss-softmax":
                # Some modes grow.
                made[direction + "decay"] = torch.randn(H, N)
            else:
                made[direction + "log_decay"] = math.log(0.5) + 0.3 * torch.randn(H, N)
            made[direction + "frequency"] = math.pi * torch.arange(N) + torch.randn(H, N)
            made[direction + "weights"] = torch.randn(H, N, 2)
        made[prefix + "feedthrough"] = torch.randn(H)
        made[prefix + "output.weight"] = torch.randn(rows, H) / math.sqrt(H)
        made[prefix + "output.bias"] = 0.1 * torch.randn(rows)
        made[prefix + "norm.weight"] = 1 + 0.1 * torch.randn(H)
        made[prefix + "norm.bias"] = 0.1 * torch.randn(H)
    made["head.weight"], made["head.bias"] = torch.randn(CLASSES, H), torch.randn(CLASSES)
    return made


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    saved = {}
    for description in NETWORKS:
        name, tokens = description[0], description[-1]
        parameters = {key: value.clone().requires_grad_() for key, value in start(description).items()}
        steps = torch.randint(0, VOCABULARY, (BATCH, L)) if tokens else torch.randn(BATCH, L, 2)
        labels = torch.randint(0, CLASSES, (BATCH,))
        optimiser = torch.optim.AdamW(parameters.values(), lr=RATE, weight_decay=DECAY)
        saved[f"{name}/steps"] = steps.to(torch.uint32) if tokens else steps
        saved[f"{name}/labels"] = labels.to(torch.uint32)
        saved |= {f"{name}/before/{key}": p.detach().clone() for key, p in parameters.items()}
        losses = []
        for step in range(STEPS):
            optimiser.zero_grad()
            logits = forward(parameters, description, steps)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            if step == 0:
                saved[f"{name}/logits"] = logits.detach().clone()
                saved |= {f"{name}/gradient/{key}": p.grad.clone() for key, p in parameters.items()}
            losses.append(loss.item())
            optimiser.step()
        saved[f"{name}/losses"] = torch.tensor(losses)
        saved |= {f"{name}/after/{key}": p.detach().clone() for key, p in parameters.items()}
        print(name, losses[0], losses[-1])
    path = Path(__file__).parent.parent / "data" / "training.safetensors"
    save_file(saved, path)


if __name__ == "__main__":
    main()
