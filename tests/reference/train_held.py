"""What training at the chosen bits brings to a network that the library cannot run.

    python train_held.py [SEEDS]

The network of crates/python/tests/test_real.py, with 32 channels of 32 modes, on sequential MNIST: trained
for six epochs on 4,000 digits, compressed with 200 of them at several sizes, then trained for four more
epochs with its maps held at their bits (`hk.torch.hold`). For comparison the full network gets the same four
epochs, and so does the smallest one without being held, rounded at the end. Accuracies are those of 2,000
test digits. Needs the Python package, PyTorch, and MNIST beside the project.
"""

import copy
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "crates" / "python" / "tests"))
from test_real import Own, accuracy, mnist  # noqa: E402

import hankelite as hk  # noqa: E402

TIMES = (6, 8)
EPOCHS = 4


def train(model, images, labels, epochs, rate):
    """Epochs of cross-entropy; CPU seconds."""
    start = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * 80)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    return time.process_time() - start


def main():
    torch.set_num_threads(1)
    images, labels = mnist("train10k", 4000)
    fresh = mnist("t10k", 2000)
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        torch.manual_seed(seed)
        model = Own(32, 32)
        seconds = train(model, images, labels, 6, 0.01)
        size = 4 * hk.read(model).parameters
        print(seed, "full", size, accuracy(model, *fresh), f"{seconds:.0f} s", flush=True)
        longer = copy.deepcopy(model)
        seconds = train(longer, images, labels, EPOCHS, 0.005)
        print(seed, "full, trained on", size, accuracy(longer, *fresh), f"{seconds:.0f} s", flush=True)
        for times in TIMES:
            small = hk.compress(model, (images[:200].numpy(), labels[:200].numpy()), times=times, seed=seed)
            start, other = copy.copy(small), copy.deepcopy(model)
            small.apply_(other)
            before = accuracy(other, *fresh)
            with hk.torch.hold(other, small):
                seconds = train(other, images, labels, EPOCHS, 0.005)
            kinds = sorted({own.entries for own in small.storage.values()})
            after = accuracy(other, *fresh)
            found = f"{before:.2f} -> {after:.2f}, {seconds:.0f} s"
            print(seed, f"1/{times}", small.choice["bytes"], f"{small.states} states", kinds, found, flush=True)
        start.apply_(model)
        train(model, images, labels, EPOCHS, 0.005)
        with hk.torch.hold(model, start):
            pass
        print(seed, f"1/{TIMES[-1]}, not held, rounded at the end", accuracy(model, *fresh), flush=True)


main()
