"""One call: any model, any data, a size that is named or found."""

import warnings

import numpy as np
import pytest
from conftest import need

import hankelite as hk


@pytest.fixture(scope="module")
def labelled():
    """Sequences of the shipped model's task, with their classes."""
    x, y, _ = hk._core.read_data("waves:held_out=600")
    return x, y


@pytest.fixture(scope="module")
def sized(waves, labelled):
    return hk.compress(waves, labelled, times=6)


def test_a_size_by_times_fits_and_is_measured(waves, labelled, sized):
    full = hk.read(waves)
    assert full.bytes / 6.5 < sized.bytes <= full.bytes / 6
    assert len(sized.image) == sized.choice["size"]["weights"]
    choice = sized.choice
    assert choice["scored"] == 500 and choice["bytes"] == sized.bytes
    assert choice["full_accuracy"] > 97 and choice["accuracy"] > choice["full_accuracy"] - 2
    assert 0 < choice["standard_error"] < 1 and 0 < choice["change"] < 0.3
    assert [row["bytes"] for row in choice["tried"]] == [sized.bytes]
    x, y = labelled
    right = (sized.logits(x).argmax(axis=1) == y).mean()
    assert abs(100 * right - choice["accuracy"]) < 1


def test_without_a_size_the_smallest_is_taken_that_keeps_the_accuracy(waves, labelled):
    small = hk.compress(waves, labelled, within=1.5, only="all")
    tried = small.choice["tried"]
    for row, wanted in zip(tried, [2, 3, 4, 6, 8, 12, 16, 24]):
        assert wanted <= row["times"] < 1.1 * wanted
    full = small.choice["full_accuracy"]
    kept = [row["bytes"] for row in tried if row["accuracy"] >= full - 1.5]
    assert small.bytes == min(kept) == small.choice["bytes"]


def test_few_sequences_are_said_not_to_tell_sizes_apart(waves, labelled):
    x, y = labelled
    with pytest.warns(UserWarning, match="15 scored sequences tell differences of"):
        hk.compress(waves, (x[:60], y[:60]), within=2)


def test_without_labels_the_change_of_the_logits_decides(waves, labelled):
    x, _ = labelled
    small = hk.compress(waves, x[:200, :, 0])
    assert small.choice["accuracy"] is None and small.choice["full_accuracy"] is None
    assert small.choice["change"] <= 0.05 and small.choice["scored"] == 100
    more = [row for row in small.choice["tried"] if row["bytes"] < small.bytes]
    assert all(row["change"] > 0.05 for row in more)


@pytest.mark.parametrize("kind", ["dictionary", "pair", "batches", "unlabelled", "named", "file"])
def test_data_come_in_any_form(waves, labelled, sized, tmp_path, kind):
    x, y = labelled
    np.savez(tmp_path / "data.npz", x=x, y=y)
    data = {
        "dictionary": {"inputs": x, "labels": y},
        "pair": [x, y],
        "batches": [(x[:300], y[:300]), (x[300:], y[300:])],
        "unlabelled": iter([x[:300], x[300:]]),
        "named": [{"x": x[:7], "y": y[:7]}, {"x": x[7:], "y": y[7:]}],
        "file": tmp_path / "data.npz",
    }[kind]
    cases = hk._data.gather(data, seed=0)
    order = np.random.default_rng(0).permutation(600) if kind == "file" else np.arange(600)
    np.testing.assert_array_equal(cases.x, x[order])
    if kind == "unlabelled":
        assert cases.y is None
    else:
        np.testing.assert_array_equal(cases.y, y[order])


def test_no_sequence_that_calibrates_is_scored(labelled):
    x = np.concatenate([labelled[0], labelled[0]])
    used, scored = hk._data.gather(x, seed=0).split(seed=3)
    assert len(used.x) == 100
    rows = {row.tobytes() for row in used.x}
    assert not any(row.tobytes() in rows for row in scored.x)


def test_an_order_keeps_the_bits(waves, labelled):
    small = hk.compress(waves, labelled, order=8)
    assert small.states == 256 and small.image is None
    assert small.choice["accuracy"] > 95 and small.choice["times"] > 1


def test_a_score_of_ones_own_takes_any_labels(waves, labelled):
    x, y = labelled
    small = hk.compress(waves, (x, 1.0 * y), times=4, score=lambda z, y: z.argmax(axis=1) == y)
    assert small.choice["accuracy"] > 95
    with pytest.raises(hk.InvalidSetting, match=r"score= gave shape \(\), expected one number for each"):
        hk.compress(waves, labelled, times=4, score=lambda z, y: 1.0)


def test_a_wrong_assumption_is_corrected_by_labels(waves, labelled):
    state = hk.read(waves).state_dict()
    cases = hk._data.gather(labelled, seed=0).split(seed=0)[0]
    assumed = hk.read(state, norm="pre")
    with pytest.warns(UserWarning, match="norm='post', pooling='mean' suits the labels"):
        better = hk._compress._suiting(state, assumed, cases, {})
    assert (better.logits(cases.x).argmax(axis=1) == cases.y).mean() > 0.95
    # What was declared stays.
    declared = {"norm": "pre", "pooling": "mean"}
    assert hk._compress._suiting(state, assumed, cases, declared) is assumed


def test_errors_say_what_was_found_and_what_to_do(waves, labelled, tmp_path):
    x, y = labelled
    with pytest.raises(hk.InvalidSetting, match="times=6 and order=4, expected one of them"):
        hk.compress(waves, x, times=6, order=4)
    with pytest.raises(hk.InvalidSetting, match="times=0.5, expected a number above 1"):
        hk.compress(waves, x, times=0.5)
    with pytest.raises(hk.InvalidSetting, match="transpose the last two axes"):
        hk.compress(waves, x.transpose(0, 2, 1), times=6)
    with pytest.raises(hk.InvalidSetting, match=r"flatten each sequence with x.reshape\(600, -1, 1\)"):
        hk.read(waves).logits(x.reshape(600, 16, 16))
    with pytest.raises(hk.InvalidSetting, match=r"this model takes \(sequences, steps, 1\)"):
        hk.read(waves).logits(x[:, 0, 0])
    with pytest.raises(hk.InvalidSetting, match="within=1 without labels"):
        hk.compress(waves, x, within=1)
    with pytest.raises(hk.CalibrationError, match="labels from 0 to 90, expected 0 to 9"):
        hk.compress(waves, (x, 10 * y), times=6)
    with pytest.raises(hk.CalibrationError, match="600 sequences and 599 labels"):
        hk.compress(waves, (x, y[1:]), times=6)
    with pytest.raises(hk.CalibrationError, match="sequence 1 holds NaN"):
        hk.compress(waves, np.stack([x[0], x[1] * np.nan]), times=6)
    with pytest.raises(hk.CalibrationError, match=r"\(96, 1\), \(256, 1\), expected one"):
        hk.compress(waves, [x[:4], x[4:8, :96]], times=6)
    with pytest.raises(hk.CalibrationError, match=r"inputs of shape \(0, 256, 1\)"):
        hk.compress(waves, x[:0], times=6)
    with pytest.raises(hk.CalibrationError, match="no sequence is left to measure on"):
        hk.compress(waves, x[:10])
    assert hk.compress(waves, x[:10], times=6).choice["change"] is None
    with pytest.raises(hk.CalibrationError, match="data of type int"):
        hk.compress(waves, 5, times=6)
    with pytest.raises(hk.CalibrationError, match="a dictionary with a, expected `inputs`"):
        hk.compress(waves, {"a": x}, times=6)
    with pytest.raises(hk.CalibrationError, match="nothing.npy.*No such file"):
        hk.compress(waves, tmp_path / "nothing.npy", times=6)
    with pytest.raises(hk.CheckpointError, match="nothing.pth.*No such file"):
        hk.inspect(tmp_path / "nothing.pth")
    with pytest.raises(hk.InvalidSetting, match="forward= without a live torch module"):
        hk.compress(waves, x, times=6, forward=lambda module, x: module(x))
    with pytest.raises(hk.CalibrationError, match="sizes lose .* points or more, expected at most -100"):
        hk.compress(waves, labelled, within=-100)


def test_data_that_say_little_are_warned_of(labelled):
    x, _ = labelled
    with pytest.warns(UserWarning, match="4 different sequences out of 20, expected 10 or more"):
        hk._data.gather(np.repeat(x[:4], 5, axis=0), seed=0)
    with pytest.warns(UserWarning, match="20 of 20 sequences are constant"):
        hk._data.gather(np.arange(20.0)[:, None] + np.zeros((20, 32)), seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hk._data.gather(x, seed=0)


def test_times_is_a_size_of_reduce_as_well(waves, labelled, sized):
    x, _ = labelled
    small = hk.reduce(waves, times=6, calibrate=x[:60])
    assert small.bytes <= hk.read(waves).bytes / 6
    with pytest.raises(hk.InvalidSetting, match="times=6 without sequences, expected some as calibrate=x"):
        hk.reduce(waves, times=6)
    both = hk.reduce(waves, times=2, max_bytes=small.bytes, calibrate=x[:60])
    assert both.bytes <= small.bytes
    with pytest.raises(hk.InvalidSetting, match="times fewer bytes is 0.5, expected a number above 1"):
        hk.reduce(waves, times=0.5, calibrate=x[:60])


def test_the_package_lists_what_is_public():
    assert set(dir(hk)) == set(hk.__all__) | {"torch", "jax"}


torch = need("torch")
from s4_torch import S4D, S4Model  # noqa: E402
from test_torch import Other, Several, run, seeded, signals  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def shipped(waves):
    model = S4Model(1, 10, 16, [S4D(16, 32), S4D(16, 32)]).eval()
    state = hk.read(waves).state_dict()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    return model


@pytest.mark.usefixtures("one_thread")
def test_a_live_module_that_the_library_knows_takes_its_smaller_tensors(waves, labelled):
    x, y = map(torch.as_tensor, labelled)
    model = shipped(waves)
    # Its assumptions are checked by its own forward pass, and nothing is warned of.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = hk.compress(model, DataLoader(TensorDataset(x, y), batch_size=64), times=6)
    assert small.image is not None and small.bytes <= hk.read(waves).bytes / 6
    small.apply_()
    right = float((run(model, x).argmax(dim=-1) == y).float().mean())
    assert abs(100 * right - small.choice["accuracy"]) < 1


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("make", [Other, Several])
def test_a_network_that_the_library_does_not_know_runs_itself(make):
    model, u = seeded(make), signals(80, 48)
    labels = run(model, u).argmax(dim=-1)
    before = model.first.D.detach().clone()
    small = hk.compress(model, TensorDataset(u, labels), within=20)
    tried = small.choice["tried"]
    assert small.choice["scored"] == 20 and small.choice["full_accuracy"] == 100
    assert small.choice["accuracy"] >= 80 and small.states < hk.read(model).states
    assert tried[-1]["bytes"] <= tried[0]["bytes"] and torch.equal(model.first.D, before)
    small.apply_()
    assert model(u).shape == labels.shape + (model.head.out_features,) if make is Several else True
    with pytest.raises(hk.CalibrationError, match=r"bytes, expected at least \d+: the states"):
        hk.compress(seeded(make), u, times=60)


@pytest.mark.usefixtures("one_thread")
def test_a_forward_pass_of_ones_own_and_its_failure():
    model, u = seeded(Other), signals(40, 48)
    small = hk.compress(model, u.numpy(), order=4, forward=lambda network, x: network(x)[:, :3])
    assert max(map(max, small.orders.values())) == 4 and small.choice["change"] > 0
    with pytest.raises(hk.CalibrationError, match=r"the network fails on inputs of shape \(10, 48\)"):
        hk.compress(model, u[..., 0], order=4)
    with pytest.raises(hk.CalibrationError, match="expected .outputs,.: say with forward="):
        hk.compress(model, u, order=4, forward=lambda network, x: network.front(x.transpose(1, 2)))
    with pytest.raises(hk.InvalidSetting, match="hk.compress"):
        hk.reduce(model, max_bytes=20000)


@pytest.mark.usefixtures("one_thread")
def test_calibrating_takes_loaders_and_applies_to_the_module_that_was_given():
    u = signals(24, 48)
    changes = []
    for data in (
        u,
        DataLoader(TensorDataset(u, torch.arange(24)), batch_size=8),
        TensorDataset(u),
        [{"inputs": part} for part in u.split(5)],
        u.numpy(),
    ):
        model = seeded(Other)
        small = hk.torch.calibrate(model, data, order=4, steps=1)
        small.apply_()
        assert model.first.kernel.C.shape == (8, 4, 2)
        changes.append(small.choice["fit"]["before"])
    # Batches of other sizes are summed in another order.
    assert max(changes) - min(changes) < 1e-2 * max(changes)


@pytest.fixture
def model_folder(waves, tmp_path):
    """The shipped model as `save_pretrained` would leave it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(waves.read_bytes())
    (folder / "config.json").write_text('{"d_state": 64, "d_model": 16}\n')
    (folder / "README.md").write_text("# Waves\n")
    (folder / "vocabulary.txt").write_text("a b c\n")
    return folder


def test_a_folder_is_compressed_and_written_whole(model_folder, labelled, tmp_path):
    x, y = labelled
    small = hk.compress(model_folder, (x[:120], y[:120]), order=8)
    assert [max(order) for order in small.orders.values()] == [8, 8]
    small.write(tmp_path / "small")
    written = {path.name for path in (tmp_path / "small").iterdir()}
    assert written == {"model.safetensors", "config.json", "README.md", "vocabulary.txt"}
    # The class counts both modes of each pair.
    assert (tmp_path / "small" / "config.json").read_text() == '{"d_state": 16, "d_model": 16}\n'
    card = (tmp_path / "small" / "README.md").read_text()
    assert card.startswith("# Waves\n") and "`d_state` in `config.json`: 16 instead of 64" in card
    again = hk.read(str(tmp_path / "small"))
    # The file is in single precision.
    np.testing.assert_allclose(again.logits(x[:5]), small.logits(x[:5]), atol=0.01)
    # The source stays as it was.
    assert (model_folder / "config.json").read_text() == '{"d_state": 64, "d_model": 16}\n'
