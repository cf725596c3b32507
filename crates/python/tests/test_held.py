"""Live networks trained at the bits that were chosen for them."""

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, need
from test_docs import blocks

import hankelite as hk

torch = need("torch")
from s4_torch import S4D, S4Model  # noqa: E402
from test_round import wide  # noqa: E402
from test_torch import Other, run, seeded, signals  # noqa: E402
from torch import nn  # noqa: E402

from hankelite._held import _Integers  # noqa: E402
from hankelite._round import KINDS  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

#: With a scale of 1/8 and 3 bits, levels -4 to 3: for each weight its level, and the slopes of its
#: rounded value by the weight and by the scale. Those of crates/train/src/nn/straight.rs.
CASES = [
    (0.1, 1, 1, 0.2),
    (-0.26, -2, 1, 0.08),
    (0.375, 3, 1, 0.0),
    (0.5, 3, 0, 3.0),
    (-0.54, -4, 1, 0.32),
    (-0.9, -4, 0, -4.0),
]


def rounded():
    model, u = wide()
    small = hk.compress(model, u, times=2.2)
    return model, u, small


@pytest.fixture(scope="module")
def made():
    return rounded()


@pytest.fixture
def applied(made):
    """A network with its smaller tensors, sequences, and a record of its own."""
    model, u, small = made
    other, own = copy.deepcopy(model), copy.copy(small)
    own.apply_(other)
    return other, u, own


def steps(model, u, optimizer, count=5):
    """Steps of a user's own: towards classes that have nothing to do with the start."""
    y = torch.arange(len(u)) % 4
    for _ in range(count):
        nn.functional.cross_entropy(model(u), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def is_on_its_grid(model, small):
    for name, own in small.storage.items():
        weight = model.get_parameter(name).detach().numpy()
        np.testing.assert_array_equal(weight.reshape(own.levels.shape), own.scales.repeat(
            own.group, axis=1)[:, : own.levels.shape[1]] * own.levels.astype(np.float32))
        most = 2 ** (int(own.entries[3:]) - 1)
        assert own.levels.dtype == np.int8 and -most <= own.levels.min() and own.levels.max() < most
        scales = torch.from_numpy(own.scales)
        assert torch.equal(scales, scales.bfloat16().float())


def test_slopes_pass_within_the_levels_and_go_to_the_scale():
    held = _Integers("int3", 16, torch.tensor([[0.125], [-0.25]]), torch.zeros(1, dtype=torch.float64, requires_grad=True))
    weight = torch.zeros(2, 16, dtype=torch.float64)
    for at, (w, *_) in enumerate(CASES):
        weight[0, at], weight[1, at] = w, -2 * w
    weight.requires_grad_(True)
    slopes = 1.0 + torch.arange(32, dtype=torch.float64).reshape(2, 16)
    found = held(weight)
    (found * slopes).sum().backward()
    for output, scale in enumerate((0.125, -0.25)):
        by_range = 0.0
        for at, (_, level, by_weight, by_scale) in enumerate(CASES):
            assert found[output, at] == scale * level
            assert weight.grad[output, at] == by_weight * slopes[output, at]
            by_range -= by_scale * float(slopes[output, at]) / 4
        # The parameter is the weight of the lowest level, -4 scales.
        assert held.range[output, 0].item() == -4 * scale
        assert abs(float(held.range.grad[output, 0]) - by_range) < 1e-12


def test_a_group_of_zeros_keeps_its_slopes():
    held = _Integers("int4", 16, torch.zeros(1, 1), torch.zeros(1, requires_grad=True))
    weight = torch.full((1, 16), 0.3, requires_grad=True)
    found = held(weight)
    found.sum().backward()
    assert not found.any() and (weight.grad == 1).all() and not held.range.grad.any()


def test_levels_are_those_of_the_library():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(48, 6))
    moments = (48.0, np.zeros(48), np.zeros(48), 48 * np.eye(48), 48 * np.eye(48))
    for kind, entries in KINDS.items():
        _, _, (integers, _), _ = hk._core.rounded_map(weight, None, moments, kind, 16)
        scales = torch.from_numpy(hk._core.best_scales(weight, entries.bits, 16).T.copy())
        held = _Integers(kind, 16, scales, torch.zeros(1, dtype=torch.float64, requires_grad=True))
        own = held.rounded(torch.from_numpy(weight.T.copy()))
        assert own.levels.min() == integers.min() >= entries.lowest and own.levels.max() <= entries.highest
        # In scales: half a step, and what the ends cut off, of two bits on purpose.
        error = np.abs(own.weight - weight.T).max()
        assert error <= (2.0 if kind == "int2" else 0.75) * float(scales.abs().max())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_training_ends_on_the_levels_that_the_record_has(applied, when):
    model, u, small = applied
    keys, objects = list(model.state_dict()), dict(model.named_parameters())
    start = {name: own.scales.copy() for name, own in small.storage.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3) if when == "before" else None
    with hk.torch.hold(model, small) as held:
        if optimizer is None:
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        else:
            optimizer.add_param_group({"params": held.scales, "weight_decay": 0.0})
        steps(model, u, optimizer)
        last = run(model, u)
    # The last forward pass was that of the weights that stay.
    assert torch.equal(run(model, u), last)
    assert list(model.state_dict()) == keys
    assert all(model.get_parameter(name) is p for name, p in objects.items())
    is_on_its_grid(model, small)
    state = small.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name
        if name in small.choice["halves"]:
            assert torch.equal(value, value.half().float())
    assert any((own.scales != start[name]).any() for name, own in small.storage.items())
    # What the record says of its size stays, counted again.
    integers = sum(own.levels.size for own in small.storage.values())
    halves = sum(state[name].numel() for name in small.choice["halves"])
    packed = sum(own.bytes for own in small.storage.values())
    rest = sum(t.numel() for t in state.values()) - integers - halves
    assert packed + 2 * halves + 4 * rest == small.choice["bytes"]


def test_without_its_scales_an_optimiser_trains_the_weights(applied):
    model, u, small = applied
    start, weights = copy.copy(small), copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with hk.torch.hold(model, small):
        steps(model, u, optimizer)
    is_on_its_grid(model, small)
    for name, own in small.storage.items():
        np.testing.assert_array_equal(own.scales, start.storage[name].scales)
        assert not torch.equal(model.state_dict()[name], weights[name])


def test_a_state_kept_while_held_brings_the_start_back(applied):
    model, u, small = applied
    start, weights = copy.copy(small), copy.deepcopy(model.state_dict())
    with hk.torch.hold(model, small):
        best = copy.deepcopy(model.state_dict())
        steps(model, u, torch.optim.AdamW(model.parameters(), lr=0.1))
        model.load_state_dict(best)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    for name, own in small.storage.items():
        np.testing.assert_array_equal(own.levels, start.storage[name].levels)
        np.testing.assert_array_equal(own.scales, start.storage[name].scales)


def test_a_training_can_go_on_later(applied):
    model, u, small = applied
    for _ in range(2):
        with hk.torch.hold(model, small):
            steps(model, u, torch.optim.AdamW(model.parameters(), lr=1e-2))
        is_on_its_grid(model, small)
    assert small.orders["first"].max() == hk.read(model).orders["first"].max()


def test_an_error_in_the_loop_leaves_a_rounded_module(applied):
    model, u, small = applied
    keys = list(model.state_dict())
    with pytest.raises(KeyboardInterrupt), hk.torch.hold(model, small):
        steps(model, u, torch.optim.AdamW(model.parameters(), lr=1e-2))
        raise KeyboardInterrupt
    assert list(model.state_dict()) == keys
    is_on_its_grid(model, small)


def test_doubles_wrappers_and_mixed_precision_train_too(applied):
    model, u, small = applied
    wrapped = nn.DataParallel(model.double())
    held = hk.torch.hold(wrapped, small)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    steps(wrapped, u.double(), optimizer)
    held.finish()
    for name, own in small.storage.items():
        weight = model.get_parameter(name)
        assert weight.dtype == torch.float64
        np.testing.assert_array_equal(weight.detach().numpy().reshape(own.levels.shape), own.weight)
    # Again: nothing happens.
    assert held.finish() is small
    model.float()
    with hk.torch.hold(model, small) as held, torch.autocast("cpu", torch.bfloat16):
        steps(model, u, torch.optim.AdamW(model.parameters(), lr=1e-2))
        assert all(scale.grad is None and scale.dtype == torch.float32 for scale in held.scales)
    is_on_its_grid(model, small)


def test_the_callback_of_the_page_holds_while_a_trainer_runs(applied, monkeypatch):
    model, u, small = applied
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace(Callback=object))
    (code,) = [code for code in blocks(ROOT / "docs/train-a-live-network.md") if "Callback" in code]
    names = {"hk": hk}
    exec(code, names)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=5)
    start = {name: own.scales.copy() for name, own in small.storage.items()}
    callback = names["FewBits"](small)
    callback.on_train_start(SimpleNamespace(optimizers=[optimizer]), SimpleNamespace(net=model))
    for _ in range(4):
        steps(model, u, optimizer, 1)
        schedule.step()
    callback.on_train_end(None, None)
    is_on_its_grid(model, small)
    assert any((own.scales != start[name]).any() for name, own in small.storage.items())


def test_a_compiled_network_is_held_too(applied):
    model, u, small = applied
    compiled = torch.compile(model, backend="eager")
    full = run(compiled, u)
    with hk.torch.hold(compiled, small):
        assert torch.allclose(run(compiled, u), full, atol=1e-5)
        steps(compiled, u, torch.optim.AdamW(compiled.parameters(), lr=1e-2), 2)
        last = run(compiled, u)
    assert torch.allclose(run(model, u), last, atol=1e-5)
    is_on_its_grid(model, small)


def test_places_of_states_that_a_channel_lacks_stay_empty():
    model, u = seeded(Other), signals(40)
    with torch.no_grad(), hk.torch.listen(model) as statistics:
        model(u)
    small = hk.reduce(model, budget=0.2, allocation="channel", statistics=statistics)
    orders = small.orders
    assert any(len(set(own)) > 1 for own in orders.values())
    small.apply_()
    empty = {name: ~model.get_parameter(f"{name}.kernel.C").any(-1) for name in orders}
    with hk.torch.hold(model, small):
        y = torch.arange(len(u)) % 10
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            nn.functional.cross_entropy(model(u), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, own in orders.items():
        weights = model.get_parameter(f"{name}.kernel.C")
        assert torch.equal(~weights.any(-1), empty[name]) and empty[name].any()
        np.testing.assert_array_equal(small.orders[name], own)


def of_the_library(waves):
    model = S4Model(1, 10, 16, [S4D(16, 32), S4D(16, 32)]).eval()
    state = hk.read(waves).state_dict()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    x, y, _ = hk._core.read_data("waves:held_out=300")
    return model, torch.tensor(x), torch.tensor(y)


def test_a_network_that_the_library_runs_ends_in_its_image(waves):
    model, x, y = of_the_library(waves)
    small = hk.compress(model, (x, y), times=10)
    bits = {layer["map"]["entries"] for layer in small.choice["plan"]["layers"]}
    assert small.image is not None and "full" not in bits
    before, orders, image = small.bytes, small.orders, small.image
    small.apply_()
    with hk.torch.hold(model, small) as held:
        assert len(held.scales) >= 2
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for rows in torch.arange(300).split(50):
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        last = run(model, x[:50])
    full = run(model, x[:50])
    # Numbers beside the maps are halves in the image, and become so at the end.
    assert (full - last).norm() < 0.02 * full.norm()
    assert small.bytes == before and small.image != image and len(small.image) == len(image)
    np.testing.assert_allclose(small.logits(x[:50].numpy()), full.numpy(), atol=1e-3 * float(full.abs().max()))
    for name, own in orders.items():
        np.testing.assert_array_equal(small.orders[name], own)
    refused = copy.copy(small)
    refused.choice = copy.deepcopy(small.choice)
    refused.choice["plan"]["layers"][0]["systems"] = {"entries": "int4", "group": 16}
    with pytest.raises(hk.InvalidSetting, match="B and C of few bits, expected maps alone"):
        hk.torch.hold(model, refused)
    encoder = model.encoder.weight.detach()
    assert small.choice["plan"]["encoder"]["entries"] == "bf16" and torch.equal(encoder, encoder.bfloat16().float())
    # Packed again, nothing changes: all maps are on their levels.
    assert small._core.trained(small._core)[1].tobytes() == small.image
    for index, layer in enumerate(small.choice["plan"]["layers"]):
        weight = model.get_parameter(f"s4_layers.{index}.output_linear.0.weight")
        matrix = weight.detach()[:, :, 0].double().numpy().T.copy()
        own = layer["map"]
        scales = hk._core.best_scales(matrix, KINDS[own["entries"]].bits, own["group"])
        levels = matrix / scales.repeat(own["group"], axis=0)[: len(matrix)]
        np.testing.assert_array_equal(levels, levels.round())


def test_what_cannot_be_held_is_refused_in_a_sentence(made):
    model, u, small = made
    with pytest.raises(hk.CheckpointError, match=r"`first.kernel.*expected .*: apply_ puts it there"):
        hk.torch.hold(copy.deepcopy(model), copy.copy(small))
    other, own = copy.deepcopy(model), copy.copy(small)
    own.apply_(other)
    held = hk.torch.hold(other, own)
    with pytest.raises(hk.InvalidSetting, match="is held or parametrised, expected a plain parameter"):
        hk.torch.hold(other, own)
    with torch.no_grad():
        held.scales[0].fill_(float("nan"))
    with pytest.raises(hk.CalibrationError, match="numbers that are not finite"):
        held.finish()
    # The module is plain again, and the record that of the start.
    assert list(other.state_dict()) == list(model.state_dict())
    assert np.isfinite(next(iter(own.storage.values())).scales).all()
