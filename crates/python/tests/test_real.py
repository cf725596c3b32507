"""Real data: a public checkpoint in its own PyTorch module, and a network the library cannot run.

They need the data beside the project, which must be there in CI.
"""

import copy
import gzip
import os

import numpy as np
import pytest
from conftest import SHARED, need

import hankelite as hk

torch = need("torch")
from s4_torch import S4D, S4Model  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.skipif(
    not SHARED.is_dir() and not os.environ.get("CI"), reason="the data are not beside the project"
)


def mnist(part, count):
    """Images (count, 784) in 0..1, and their labels."""
    folder = SHARED / "mnist"
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784)[:count]
    labels = np.frombuffer(labels, np.uint8, offset=8)[:count]
    return torch.tensor(images / np.float32(255.0)), torch.tensor(labels.astype(np.int64))


@torch.no_grad()
def logits(model, inputs):
    return torch.cat([model(part) for part in inputs.split(50)])


def accuracy(model, inputs, labels):
    return 100 * float((logits(model, inputs).argmax(-1) == labels).double().mean())


@pytest.fixture(scope="module")
def public():
    """The S4D of somebody else on sequential MNIST, and its checkpoint."""
    path = SHARED / "checkpoints" / "gevorgyg" / "ckpt.pth"
    model = S4Model(1, 10, 16, [S4D(16, 32) for _ in range(4)]).eval()
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return path, model


def applied(model, small):
    other = copy.deepcopy(model)
    hk.torch.apply_(other, small)
    return other


def test_a_public_checkpoint_by_hooks_is_as_good_as_by_the_library(public):
    path, model = public
    images, labels = mnist("t10k", 500)
    images = images.unsqueeze(-1)
    train = mnist("train10k", 100)[0].unsqueeze(-1)
    by_hooks = hk.torch.calibrate(model, train, order=4)
    by_library = hk.reduce(path, order=4, calibrate=train.numpy(), norm="post")
    print(by_hooks.choice["fit"], by_library.choice["fit"])
    live = applied(model, by_hooks)
    found = accuracy(live, images, labels), accuracy(applied(model, by_library), images, labels)
    full = accuracy(model, images, labels)
    print("full", full, "hooks, library", found)
    # 500 images: one wrong answer is 0.2 points.
    assert abs(found[0] - found[1]) <= 1.0 and found[0] > full - 3.0
    # The same fit, but for the noise of what is tried: what is left of the logits' change.
    assert by_hooks.choice["fit"]["after"] < 1.1 * by_library.choice["fit"]["after"]
    # The reduced module gives what the library gives, up to single precision.
    ours = by_hooks.logits(images[:20].numpy())
    scale = np.abs(ours).max()
    np.testing.assert_allclose(logits(live, images[:20]).numpy(), ours, atol=5e-4 * scale)


class Own(nn.Module):
    """A network that the library cannot run: a convolution in front, S4D blocks with BatchNorm."""

    def __init__(self, channels=12, modes=16):
        super().__init__()
        self.front = nn.Conv1d(1, channels, 9, stride=4, padding=4)
        self.layers = nn.ModuleList(S4D(channels, modes) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(2 * channels, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, u):
        x = self.front(u.unsqueeze(1))
        for layer, norm in zip(self.layers, self.norms):
            x = norm(x + layer(x))
        return self.head(torch.cat([x.mean(-1), x[..., -1]], dim=-1))


@pytest.fixture(scope="module")
def own():
    """A trained one, with the sequences it was trained on, and others with their classes."""
    torch.manual_seed(0)
    images, labels = mnist("train10k", 4000)
    model = Own()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=6 * 80)
    for _ in range(6):
        for rows in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval(), images, *mnist("t10k", 2000)


def test_a_network_of_ones_own_keeps_its_accuracy_at_half_its_states(own):
    model, images, fresh, truth = own
    full = accuracy(model, fresh, truth)
    rows = []
    for order in (8, 4, 2):
        calibrated = hk.torch.calibrate(model, images[:200], order=order)
        white = hk.reduce(model, order=order)
        pair = [accuracy(applied(model, small), fresh, truth) for small in (calibrated, white)]
        rows.append((order, *pair))
    print("full", full, "order, calibrated, white noise", rows)
    assert full > 85
    # Half the states: no loss beyond the noise of 2,000 images (0.2 points a standard error).
    assert rows[0][1] > full - 0.5
    assert all(calibrated > white - 0.2 for _, calibrated, white in rows)
    assert rows[-1][1] > rows[-1][2] + 5


def test_a_network_of_ones_own_keeps_its_accuracy_in_a_quarter_of_its_bytes(own):
    model, images, fresh, truth = own
    full = accuracy(model, fresh, truth)
    rows = []
    for seed in range(3):
        small = hk.compress(model, images[:200], times=4, seed=seed)
        assert 4 * small.choice["bytes"] <= small.choice["full_bytes"]
        rows.append(accuracy(applied(model, small), fresh, truth))
    print("full", full, "a quarter of the bytes", rows)
    # The mean of three draws, 0.2 points a standard error. What the network learns depends on the
    # machine's rounding: two trainings of it lost 0.4 and 0.8 points.
    assert np.mean(rows) > full - 1.2
