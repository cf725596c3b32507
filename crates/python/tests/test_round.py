"""Weights of few bits in networks that run by their own forward pass."""

import copy

import numpy as np
import pytest
from conftest import need

import hankelite as hk

torch = need("torch")
from s4_torch import S4D  # noqa: E402
from test_torch import Other, run, seeded, signals  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def change(full, other):
    apart, size = (z - z.mean(dim=-1, keepdim=True) for z in (full - other, full))
    return float(apart.norm() / size.norm())


class Wide(nn.Module):
    """A network of one S4D block between maps: a shared one, one that is never called, a norm."""

    def __init__(self, channels=16):
        super().__init__()
        self.front = nn.Linear(8, channels)
        self.first = S4D(channels, 8)
        self.mixed = nn.Linear(channels, channels)
        self.again = self.mixed
        self.unused = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, 4)

    def forward(self, u):
        x = self.front(u)
        x = x + self.first(x.transpose(1, 2)).transpose(1, 2)
        x = self.norm(x + self.again(x))
        return self.head(x.mean(dim=1))


def wide():
    rng = np.random.default_rng(1)
    return seeded(Wide), torch.tensor(rng.normal(size=(60, 40, 8)), dtype=torch.float32)


@pytest.fixture(scope="module")
def made():
    model, u = wide()
    return model, u, hk.compress(model, u, times=2)


def test_a_size_of_the_whole_network_is_kept(made):
    model, u, small = made
    full = 4 * hk.read(model).parameters
    assert small.choice["full_bytes"] == full
    # The bytes, counted again from what is stored.
    state = small.state_dict()
    integers = sum(one.levels.size for one in small.storage.values())
    halves = sum(state[name].numel() for name in small.choice["halves"])
    rest = sum(t.numel() for t in state.values()) - integers - halves
    packed = sum(one.bytes for one in small.storage.values())
    assert small.choice["bytes"] == packed + 2 * halves + 4 * rest <= full / 2
    assert small.choice["times"] >= 2


def test_the_tensors_hold_what_the_integers_stand_for(made):
    model, _, small = made
    state = small.state_dict()
    assert small.storage and set(small.storage) == set(small.choice["entries"])
    for name, own in small.storage.items():
        assert own.entries == small.choice["entries"][name] and own.group == 32
        most = 2 ** (int(own.entries[3:]) - 1)
        assert own.levels.min() >= -most and own.levels.max() < most
        assert state[name].dtype == torch.float32
        matrix = state[name].numpy().reshape(own.levels.shape)
        np.testing.assert_array_equal(matrix, own.weight)
    for name in small.choice["halves"]:
        assert torch.equal(state[name], state[name].half().float())
    # What the integers stand for survives the way into the module.
    other = copy.deepcopy(model)
    hk.torch.apply_(other, small)
    name = next(iter(small.storage))
    assert torch.equal(other.state_dict()[name], state[name])


def test_a_module_that_is_trained_leaves_the_model_alone(made):
    model, _, small = made
    one, other = copy.deepcopy(model), copy.deepcopy(model)
    hk.torch.apply_(one, small)
    hk.torch.apply_(other, small)
    name = next(iter(small.storage))
    kept = small.state_dict()[name].clone()
    with torch.no_grad():
        one.get_parameter(name).add_(1)
    assert torch.equal(other.state_dict()[name], kept) and torch.equal(small.state_dict()[name], kept)


def test_shared_and_uncalled_maps_stay_as_they_are(made):
    model, _, small = made
    assert not {"mixed.weight", "again.weight", "unused.weight"} & set(small.storage)
    assert {"front.weight", "first.output_linear.0.weight"} <= set(small.storage)
    state = small.state_dict()
    halves = set(small.choice["halves"])
    for name, tensor in model.state_dict().items():
        if name.startswith(("mixed", "unused")) and name not in halves:
            assert torch.equal(state[name], tensor)


def test_what_the_record_says_is_what_the_module_does(made):
    model, u, small = made
    other = copy.deepcopy(model)
    hk.torch.apply_(other, small)
    # On all sequences, those that calibrated included, close to what was measured on the others.
    found = change(run(model, u), run(other, u))
    assert 0.3 * small.choice["change"] < found < 1.5 * small.choice["change"] < 0.5


def test_maps_are_rounded_better_than_one_entry_at_a_time():
    model, u = wide()
    small = hk.compress(model, u, times=1.55, only="maps")
    plain, ours = copy.deepcopy(model), copy.deepcopy(model)
    hk.torch.apply_(ours, small)
    with torch.no_grad():
        for name, kind in small.choice["entries"].items():
            most = 2 ** (int(kind[3:]) - 1)
            weight = plain.get_parameter(name)
            flat = weight.reshape(len(weight), -1)
            scale = flat.abs().amax(dim=1, keepdim=True) / (most - 1)
            weight.copy_(((flat / scale).round().clamp(-most, most - 1) * scale).reshape(weight.shape))
    full = run(model, u)
    assert change(full, run(ours, u)) < 0.8 * change(full, run(plain, u))


def test_only_one_kind_becomes_smaller():
    model, u = wide()
    maps = hk.compress(model, u, times=1.2, only="maps")
    assert maps.states == hk.read(model).states and maps.storage
    states = hk.compress(model, u, times=1.2, only="states")
    assert states.states < hk.read(model).states and not states.storage
    assert states.choice["halves"] == []


def test_fewer_bytes_than_there_can_be_are_refused_with_the_fewest():
    model, u = wide()
    with pytest.raises(hk.CalibrationError, match=r"100 bytes, expected at least \d+: the states,"):
        hk.compress(model, u, max_bytes=100)
    with pytest.raises(hk.InvalidSetting, match="only='half', expected 'all', 'states' or 'maps'"):
        hk.compress(model, u, times=2, only="half")


def test_without_a_size_the_smallest_that_keeps_the_logits_is_taken():
    model, u = seeded(Other), signals(60)
    small = hk.compress(model, u)
    tried = small.choice["tried"]
    assert all(row["change"] <= 0.05 for row in tried[:-1])
    assert small.choice["change"] <= 0.05 and small.choice["times"] >= 2 and small.storage


def test_integers_go_to_torchao():
    """The text of the how-to."""
    packed_tensor = need("torchao.quantization").IntxUnpackedToInt8Tensor
    torch.manual_seed(0)
    linear = nn.Linear(64, 8)
    weight = linear.weight.detach().numpy().T.astype(np.float64)
    moments = (64.0, np.zeros(64), np.zeros(64), 64 * np.eye(64), 64 * np.eye(64))
    made, _, (levels, scales), error = hk._core.rounded_map(weight, None, moments, "int4", 32)
    assert 0 < error < 0.15
    packed = packed_tensor(
        qdata=torch.from_numpy(levels.T.copy()),
        scale=torch.from_numpy(scales.T.copy()),
        zero_point=torch.zeros(scales.T.shape, dtype=torch.int8),
        target_dtype=torch.int4,
        block_size=(1, 32),
        dtype=torch.float32,
        activation_quantization=None,
    )
    linear.weight = nn.Parameter(packed, requires_grad=False)
    linear.bias = None
    x = torch.randn(5, 64)
    expected = x.double() @ torch.from_numpy(made)
    torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=1e-5)
