"""Live PyTorch modules: found in any network, listened to, made smaller in place."""

import copy

import numpy as np
import pytest
from conftest import need

import hankelite as hk

torch = need("torch")
from s4_torch import S4D, S4Model  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Other(nn.Module):
    """A network that the library does not know: a convolution, two S4D blocks with BatchNorm."""

    def __init__(self, channels=8, modes=16):
        super().__init__()
        self.front = nn.Conv1d(1, channels, 5, padding=2)
        self.first = S4D(channels, modes)
        self.first_norm = nn.BatchNorm1d(channels)
        self.second = S4D(channels, modes)
        self.second_norm = nn.BatchNorm1d(channels)
        self.head = nn.Sequential(nn.Linear(2 * channels, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, u):
        x = self.front(u.transpose(1, 2))
        x = self.first_norm(x + self.first(x))
        x = self.second_norm(x + self.second(x))
        return self.head(torch.cat([x.mean(-1), x.amax(-1)], dim=-1))


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def signals(count=12, length=96, seed=0):
    rng = np.random.default_rng(seed)
    u = np.cumsum(rng.normal(size=(count, length, 1)), axis=1) / length**0.5
    return torch.tensor(u, dtype=torch.float32)


@torch.no_grad()
def run(module, u):
    return module(u)


def test_layers_are_found_by_their_parameters_wherever_they_stand():
    model = seeded(Other)
    spectra = hk.inspect(model)
    assert list(spectra) == ["first", "second"]
    assert spectra["first"].hankel.shape == (8, 32)
    small = hk.reduce(model, order=4)
    state = small.state_dict()
    assert list(state) == list(model.state_dict())
    assert state["first.kernel.C"].shape == (8, 4, 2)
    assert state["first.kernel.C"].dtype == torch.float32
    assert torch.equal(state["front.weight"], model.front.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_and_kind_stay(dtype):
    model = seeded(Other).to(dtype)
    state = hk.reduce(model.state_dict(), order=4).state_dict()
    # A layer that half precision would change too much comes in single precision, as a whole.
    for layer in ("first", "second"):
        own = {t.dtype for n, t in state.items() if n.startswith(f"{layer}.kernel.") and "dt" not in n}
        assert len(own) == 1 and own <= {dtype, torch.float32}
    assert state["front.weight"].dtype == dtype
    parameters = dict(model.named_parameters())
    parameters["first.kernel.C"].requires_grad_(False)
    out = hk.reduce(parameters, order=4).state_dict()
    assert isinstance(out["second.kernel.C"], nn.Parameter) and out["second.kernel.C"].requires_grad
    assert not out["first.kernel.C"].requires_grad


def test_wrappers_make_no_difference():
    model = seeded(Other)
    plain = hk.inspect(model)["first"].hankel
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        np.testing.assert_array_equal(hk.inspect(wrapped)["first"].hankel, plain)
    # A state dict that was saved from inside of one keeps its names.
    prefixed = {f"module.{name}": value for name, value in model.state_dict().items()}
    assert "module.first.kernel.C" in hk.reduce(prefixed, order=4).state_dict()


def test_parametrised_tensors_of_a_layer_are_named_and_refused():
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    model = seeded(Other)
    nn.utils.parametrize.register_parametrization(model.head[0], "weight", Twice())
    hk.inspect(model)
    nn.utils.parametrize.register_parametrization(model.first.kernel, "log_dt", Twice())
    with pytest.raises(hk.CheckpointError, match="`first.kernel.log_dt` is parametrised"):
        hk.inspect(model)


def inputs_of(model, u):
    """The inputs of both layers, (sequences, steps, channels), by hooks of the test itself."""
    kept = {"first": [], "second": []}
    handles = [
        getattr(model, name).register_forward_pre_hook(
            lambda _, args, name=name: kept[name].append(args[0].transpose(1, 2).double().numpy())
        )
        for name in kept
    ]
    run(model, u)
    for handle in handles:
        handle.remove()
    return {name: np.concatenate(parts) for name, parts in kept.items()}


@pytest.mark.parametrize("products", [False, True])
def test_listening_adds_up_what_the_layers_get(products):
    model, u = seeded(Other), signals()
    with hk.torch.listen(model, products=products) as statistics:
        for part in u.split(5):
            run(model, part)
    kept = inputs_of(model, u)
    run(model, u)  # no longer counted
    for name, inputs in kept.items():
        own, direct = statistics[name], hk.LayerStatistics.of(inputs, products=products)
        assert own.sequences == len(u) and own.length == 96
        scale = np.abs(direct.lags).max()
        np.testing.assert_allclose(own.lags, direct.lags, atol=2e-5 * scale)
        np.testing.assert_allclose(own.total, direct.total, rtol=1e-4, atol=1e-3)
        if products:
            np.testing.assert_allclose(own.products, direct.products, atol=2e-5 * scale)
        else:
            assert own.products is None
    assert statistics.sequences == len(u)


def test_listening_takes_sequences_of_any_length_and_both_orders_of_axes():
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = S4D(6, 8)

        def forward(self, x):
            return self.inner(x)

    model = seeded(Transposed)
    with hk.torch.listen(model) as statistics, torch.no_grad():
        model(torch.randn(2, 6, 40))
        model(torch.randn(3, 6, 24))
    one = statistics["layer"]  # nothing stands around it
    assert (one.sequences, one.length, one.channels) == (5, 40, 6)
    with hk.torch.listen(model) as statistics, torch.no_grad(), pytest.raises(hk.CalibrationError, match="channels"):
        model(torch.randn(2, 7, 40))
    # The hooks are gone, also after an error.
    assert not model.inner._forward_pre_hooks
    with pytest.raises(hk.CalibrationError, match="no sequence went through"):
        hk.reduce(model, order=2, statistics=statistics)


def test_a_reduction_by_hooks_is_better_than_one_for_white_noise():
    model, u, fresh = seeded(Other), signals(24), signals(24, seed=1)
    with hk.torch.listen(model) as statistics:
        run(model, u)
    white, calibrated = hk.reduce(model, order=3), hk.reduce(model, order=3, statistics=statistics)
    full = run(model, fresh)
    changes = []
    for small in (white, calibrated):
        other = copy.deepcopy(model)
        hk.torch.apply_(other, small)
        changes.append(float((run(other, fresh) - full).norm() / full.norm()))
    assert changes[1] < 0.5 * changes[0], changes


def test_apply_keeps_objects_flags_attributes_and_ties():
    model = seeded(Other)
    model.second.kernel.log_dt = model.first.kernel.log_dt
    model.first.kernel.A_imag.requires_grad_(False)
    model.first.kernel.C._optim = {"lr": 0.001, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    u = signals()
    model(u).square().mean().backward()
    optimizer.step()
    before = {name: parameter for name, parameter in model.named_parameters()}
    small = hk.reduce(model, order=4)
    expected = run(_loaded(small, modes=4, tie=True), u)
    applied = small.apply_()
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert model.first.kernel.C.shape == (8, 4, 2) and model.first.kernel.C.grad is None
    assert model.first.kernel.C._optim == {"lr": 0.001, "weight_decay": 0.0}
    assert not model.first.kernel.A_imag.requires_grad
    assert model.second.kernel.log_dt is model.first.kernel.log_dt
    assert sorted(applied.parameters) == sorted(
        f"{layer}.kernel.{name}" for layer in ("first", "second") for name in ("C", "log_A_real", "A_imag")
    )
    assert applied.before - applied.after == 2 * 8 * 12 * 4
    torch.testing.assert_close(run(model, u), expected)
    # The optimiser goes on, with the state of what did not change.
    kept = optimizer.state[model.front.weight]["exp_avg"].clone()
    reset = hk.torch.rebuild_optimizer(optimizer)
    assert len(reset) == 5  # A_imag of the first layer had no gradient, so no state
    torch.testing.assert_close(optimizer.state[model.front.weight]["exp_avg"], kept)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(u).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def _loaded(small, modes, tie=False):
    """A fresh network of the smaller size, loaded as any user would."""
    fresh = seeded(lambda: Other(modes=modes))
    if tie:
        fresh.second.kernel.log_dt = fresh.first.kernel.log_dt
    fresh.load_state_dict(small.state_dict())
    return fresh.eval()


def test_apply_refuses_another_module_and_leaves_it_as_it_was():
    small = hk.reduce(seeded(Other), order=4)
    other = seeded(lambda: nn.Sequential(S4D(8, 16)))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(hk.CheckpointError, match="first"):
        small.apply_(other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_apply_refuses_a_module_of_another_width_and_leaves_it_as_it_was():
    small = hk.reduce(seeded(lambda: nn.Sequential(S4D(8, 16))), order=4)
    other = seeded(lambda: nn.Sequential(S4D(12, 16)))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(hk.CheckpointError, match=r"has shape \(12,\) in the module, expected \(8,\)"):
        small.apply_(other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_logits_of_the_live_module_are_those_of_the_library(data):
    path = data / "s4d_classifier.pth"
    checkpoint = torch.load(path, weights_only=True)["model"]
    model = S4Model(2, 3, 4, [S4D(4, 6), S4D(4, 6)]).eval()
    model.load_state_dict(checkpoint)
    u = torch.randn(5, 48, 2, generator=torch.Generator().manual_seed(3))
    with hk.torch.listen(model) as statistics:
        run(model, u)
    small = hk.reduce(model, order=3, statistics=statistics)
    ours = small.logits(u.numpy())
    small.apply_(model)
    np.testing.assert_allclose(run(model, u).numpy(), ours, rtol=2e-4, atol=2e-5)


def test_a_sharded_or_empty_tensor_is_refused():
    model = seeded(Other)
    state = {name: value.to("meta") for name, value in model.state_dict().items()}
    with pytest.raises(hk.CheckpointError, match="meta device"):
        hk.inspect(state)


def _gather(rank, port, out):
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model, u = seeded(Other), signals()
    own = u[:7] if rank == 0 else u[7:]
    with hk.torch.listen(nn.parallel.DistributedDataParallel(model)) as statistics:
        run(model, own)
    statistics.all_reduce().save(f"{out}/{rank}.npz")
    # The first process keeps the store that the other one still reads: both end together.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # DistributedDataParallel keeps Gloo's threads, one of which may abort while Python ends.
    os._exit(0)


def test_two_processes_gather_what_one_does(tmp_path):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_gather, (port, str(tmp_path)), nprocs=2)
    model, u = seeded(Other), signals()
    with hk.torch.listen(model) as whole:
        run(model, u)
    ranks = [hk.Statistics.load(tmp_path / f"{rank}.npz") for rank in (0, 1)]
    for name in whole:
        np.testing.assert_array_equal(ranks[0][name].lags, ranks[1][name].lags)
        assert ranks[0][name].sequences == len(u)
        scale = np.abs(whole[name].lags).max()
        np.testing.assert_allclose(ranks[0][name].lags, whole[name].lags, atol=1e-5 * scale)


def _torchrun(out, waves, *more):
    import os
    import subprocess
    import sys

    from conftest import ROOT

    script = ROOT / "examples" / "python" / "retrain_ddp.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(script), "--checkpoint", str(waves), "--output", str(out), "--steps", "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += ["--save-every", "3", *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_distributed_example_ends_with_the_same_weights_after_a_stop(waves, tmp_path):
    said = _torchrun(tmp_path / "through", waves)
    assert "32 -> 8 states, 128 sequences" in said
    _torchrun(tmp_path / "stopped", waves, "--stop-at", "4")
    assert not (tmp_path / "stopped" / "small.safetensors").exists()
    _torchrun(tmp_path / "stopped", waves)
    runs = [tmp_path / "through", tmp_path / "stopped"]
    ranks = [torch.load(run / f"rank{rank}.pt", weights_only=True) for run in runs for rank in (0, 1)]
    for name, value in ranks[0].items():
        assert all(torch.equal(value, other[name]) for other in ranks[1:]), name
    assert hk.read(runs[0] / "small.safetensors").states == 256


def test_a_fit_brings_the_logits_of_any_network_nearer():
    model, u, fresh = seeded(Other), signals(64, 48), signals(64, 48, seed=1)
    before = copy.deepcopy(model.state_dict())
    with hk.torch.listen(model) as statistics:
        run(model, u)
    # At one pole for each channel the fit finds a step in some draws only.
    small = hk.reduce(model, order=3, statistics=statistics)
    seen = []
    fitted = hk.torch.fit(model, small, u, statistics, progress=lambda *one: seen.append(one))
    record = fitted.choice["fit"]
    assert record["steps"] == len(seen) >= 1 and record["after"] < 0.98 * record["before"]
    assert record["parameters"] == 2 * 8 * 7
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    full, changes = run(model, fresh), []
    for one in (small, fitted):
        other = copy.deepcopy(model)
        one.apply_(other)
        changes.append(float((run(other, fresh) - full).norm() / full.norm()))
    assert changes[1] < changes[0], changes
    # Only output weights and feedthroughs moved.
    a, b = small.state_dict(), fitted.state_dict()
    moved = {name for name in a if not torch.equal(a[name], b[name])}
    assert moved == {f"{layer}.{name}" for layer in ("first", "second") for name in ("kernel.C", "D")}
    with pytest.raises(hk.CalibrationError, match="expected at least 8"):
        hk.torch.fit(model, small, u[:5], statistics)


def test_calibrating_leaves_the_module_as_it_was():
    model, u = seeded(Other), signals(24, 48)
    model.train()
    model.second_norm.eval()  # frozen, as in a fine-tuning
    before = copy.deepcopy(model.state_dict())
    flags = [part.training for part in model.modules()]
    small = hk.torch.calibrate(model, u, budget=0.25)
    assert small.states <= 0.25 * 2 * 8 * 16 and small.choice["fit"]["steps"] >= 0
    assert small.choice["weight"] == "moments"
    assert small.choice["importance"] in ("equal", "root", "gradient")
    assert [part.training for part in model.modules()] == flags
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


class S5(nn.Module):
    """The layer of s5-pytorch: the whole set of modes, complex64, zero-order hold."""

    def __init__(self, width, modes):
        super().__init__()
        normal = torch.randn
        self.Lambda = nn.Parameter(torch.complex(-0.1 - torch.rand(modes), 3 * normal(modes)))
        self.B = nn.Parameter(normal(modes, width, 2) / width**0.5)
        self.C = nn.Parameter(torch.view_as_complex(normal(width, modes, 2) / modes**0.5))
        self.D = nn.Parameter(normal(width))
        self.log_step = nn.Parameter(-3.5 + 1.5 * torch.rand(modes))

    def forward(self, u):
        a = torch.exp(self.Lambda * self.log_step.exp())
        b = ((a - 1) / self.Lambda)[:, None] * torch.view_as_complex(self.B)
        x, y = torch.zeros(len(u), len(a), dtype=a.dtype), []
        for step in range(u.shape[1]):
            x = a * x + u[:, step].to(a) @ b.T
            y.append((x @ self.C.T).real)
        return torch.stack(y, dim=1) + self.D * u


class Several(nn.Module):
    """A network of layers with several inputs and outputs that the library does not know."""

    def __init__(self, width=5, modes=8):
        super().__init__()
        self.front = nn.Linear(1, width)
        self.first, self.second = S5(width, modes), S5(width, modes)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, u):
        x = self.front(u)
        x = x + torch.tanh(self.first(x))
        x = x + torch.tanh(self.second(x))
        return self.head(torch.cat([x.mean(dim=1), x[:, -1]], dim=-1))


def test_layers_with_several_inputs_are_reduced_for_captured_inputs(tmp_path):
    model, u = seeded(Several), signals(40, 48)
    captured = hk.torch.capture(model, u, combinations=6)
    assert captured.inputs["first"].shape == (40, 48, 5)
    assert captured.gradients["second"].shape == (40, 6, 48, 5)
    kept = {}
    handle = model.second.register_forward_pre_hook(lambda _, args: kept.update(u=args[0]))
    full = run(model, u)
    handle.remove()
    np.testing.assert_allclose(captured.inputs["second"], kept["u"].numpy(), atol=1e-6)

    def apart(**known):
        small = copy.deepcopy(model)
        hk.reduce(small, order=4, **known).apply_()
        assert small.first.C.shape == (5, 4) and small.first.C.dtype == torch.complex64
        return float((run(small, u) - full).norm() / full.norm()), known

    white = apart()[0]
    inputs = apart(captured=hk.Captured(captured.inputs))[0]
    slopes = apart(captured=captured)[0]
    assert slopes < 0.5 * white and inputs < white
    small = hk.torch.calibrate(copy.deepcopy(model), u, order=4)
    assert small.choice["known"] == "inputs-and-gradients"
    assert hk.torch.calibrate(copy.deepcopy(model), u, budget=0.5).states == 8
    captured.save(tmp_path / "captured.npz")
    assert apart(captured=tmp_path / "captured.npz")[0] == pytest.approx(slopes, rel=1e-9)
    with pytest.raises(hk.InvalidSetting, match="one of statistics"):
        hk.reduce(model, order=4, captured=captured, statistics=captured.statistics())


def test_captured_gradients_are_those_of_differences():
    model, u = seeded(Several), signals(3, 32)
    captured = hk.torch.capture(model, u, combinations=1)
    drawn = torch.Generator().manual_seed(0)
    signs = 2.0 * torch.randint(0, 2, (1, 4), generator=drawn) - 1.0
    signs -= signs.mean()
    # Feedthroughs that are larger by a step move the outputs by a step times the input.
    moved = []
    for step in (1e-2, -1e-2):
        other = copy.deepcopy(model)
        other.first.D.data += step
        moved.append(run(other, u) @ signs[0])
    expected = (moved[0] - moved[1]) / 2e-2
    found = (captured.gradients["first"][:, 0] * captured.inputs["first"]).sum(axis=(1, 2))
    np.testing.assert_allclose(found, expected, rtol=2e-2)


def test_capturing_says_what_it_lacks():
    with pytest.raises(hk.CalibrationError, match="gradients=False"):
        hk.torch.capture(seeded(Other), signals())
    model, u = seeded(Other), signals()
    inputs = hk.torch.capture(model, u, gradients=False)
    assert inputs.inputs["first"].shape == (12, 96, 8) and not inputs.gradients
    sums, direct = inputs.statistics(), hk.torch.listen(model)
    with direct as statistics:
        run(model, u)
    np.testing.assert_allclose(sums["second"].lags, statistics["second"].lags, rtol=1e-4, atol=1e-4)
    ragged = [signals(8, 64), signals(8, 96)]
    with pytest.raises(hk.CalibrationError, match="sequences of one length"):
        hk.torch.capture(model, ragged, gradients=False)


def test_listening_with_a_score_gathers_importances():
    model, u = seeded(Other), signals(20)
    with hk.torch.listen(model, score=True) as statistics:
        model(u)
    with hk.torch.listen(model) as plain:
        run(model, u)
    expected = hk.torch.importance(model, hk.read(model), u, plain)
    for name, own in statistics.importance.items():
        np.testing.assert_allclose(own, expected[name], rtol=1e-4)
    hk.reduce(model, budget=0.25, importance="gradient", statistics=statistics)
    assert plain.importance == {}
    with pytest.raises(hk.CalibrationError, match="no_grad"):
        with hk.torch.listen(model, score=True):
            run(model, u)
    with hk.torch.listen(model, score=lambda z: z[:, :2]) as two:
        model(u)
    assert set(two.importance) == {"first", "second"}


def test_arrays_are_taken_where_they_are():
    from hankelite._arrays import _host

    tensor = torch.randn(4, 3)
    assert _host("x", tensor)[1].ctypes.data == tensor.data_ptr()

    class Foreign:
        """An array of a library that only has DLPack."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **kwargs):
            return self.tensor.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    assert _host("x", Foreign(tensor))[1].ctypes.data == tensor.data_ptr()
    model = seeded(Other)
    foreign = {name: Foreign(value) for name, value in model.state_dict().items()}
    small = hk.reduce(foreign, order=4).state_dict()
    expected = hk.reduce(model.state_dict(), order=4).state_dict()
    np.testing.assert_array_equal(small["first.kernel.C"], expected["first.kernel.C"].numpy())
