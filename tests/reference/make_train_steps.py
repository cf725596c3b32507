"""Ten steps of torch.optim.AdamW on a small classifier: losses, gradient norms and weights.

    python tests/reference/make_train_steps.py > tests/reference/train_steps.json

The network is the one of `tests/train.rs`: mean over time of tanh(d * (x W1 + b)), then W2. `d`
has a rate of its own and no decay, `b` no decay. Gradients are clipped; the rate warms up over
three steps and then follows a cosine. Double precision, PyTorch 2.
"""

import json
import math

import torch

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
BATCH, LENGTH, WIDTH, HIDDEN, CLASSES, STEPS = 4, 3, 2, 5, 3, 10
LR, LR_DYNAMICS, DECAY, CLIP, SMOOTHING, WARMUP, FLOOR = 0.05, 0.02, 0.1, 0.4, 0.1, 3, 0.1

x = torch.randn(BATCH, LENGTH, WIDTH)
labels = torch.tensor([0, 2, 1, 2])
p = {
    "d": torch.rand(HIDDEN) + 0.5,
    "w1": torch.randn(WIDTH, HIDDEN),
    "b": torch.randn(HIDDEN),
    "w2": torch.randn(HIDDEN, CLASSES),
}
start = {name: value.flatten().tolist() for name, value in p.items()}
p = {name: torch.nn.Parameter(value) for name, value in p.items()}
optimiser = torch.optim.AdamW(
    [
        {"params": [p["d"]], "lr": LR_DYNAMICS, "weight_decay": 0.0},
        {"params": [p["w1"], p["w2"]], "weight_decay": DECAY},
        {"params": [p["b"]], "weight_decay": 0.0},
    ],
    lr=LR,
)


def factor(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done))


schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
losses, norms = [], []
for _ in range(STEPS):
    logits = torch.tanh(p["d"] * (x @ p["w1"] + p["b"])).mean(1) @ p["w2"]
    loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
    optimiser.zero_grad()
    loss.backward()
    norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
    optimiser.step()
    schedule.step()
    losses.append(loss.item())

print(json.dumps({
    "torch": torch.__version__,
    "x": x.flatten().tolist(),
    "labels": labels.tolist(),
    "start": start,
    "losses": losses,
    "norms": norms,
    "end": {name: value.flatten().tolist() for name, value in p.items()},
}, indent=1))
