"""Files and dictionaries of NumPy arrays: read, inspect, reduce, write, convert, stream."""

import json
import threading
import time

import numpy as np
import pytest
from conftest import need

import hankelite as hk


def arrays(path):
    return hk.read(path).state_dict()


def test_a_dictionary_and_its_file_are_the_same_model(waves):
    state = arrays(waves)
    from_file, from_memory = hk.inspect(waves), hk.inspect(state)
    for name, one in from_file.items():
        np.testing.assert_array_equal(one.hankel, from_memory[name].hankel)
        assert one.hankel.shape == (16, 64) and one.hankel.dtype == np.float64
        assert (np.diff(one.hankel, axis=1) <= 0).all() and one.stable.all()


def test_hankel_values_of_a_layer_are_those_of_its_systems(waves):
    model = hk.read(waves)
    spectrum = hk.inspect(model)["s4_layers.1"]
    for channel, system in enumerate(model.systems("s4_layers.1")):
        values = hk.control.hankel_values(system.poles, system.b, system.c, system.step)
        np.testing.assert_array_equal(spectrum.hankel[channel], values)


#: What no tensor of these records.
DECLARED = {
    "s4_v4_bandlimit": {"dt_transform": "exp", "bandlimit": 0.5},
    "annotated_dss": {"length": 48},
}


@pytest.mark.parametrize(
    "name",
    [
        "s4d_flat", "s4_v2", "s4_v3_zoh_channels", "s4_v3_dss", "s4_v4_bandlimit", "dss_exp_re_im",
        "s4_v2_bidirectional", "annotated_s4d", "annotated_dss", "mega", "lru", "s5", "h3",
    ],
)
def test_every_family_goes_through_memory_as_through_a_file(data, tmp_path, name):
    path = data / "layouts" / f"{name}.safetensors"
    given = DECLARED.get(name, {})
    declared = json.loads(hk.read(path, **given)._core.declared)
    state = hk.read(path, **given).state_dict()
    memory = hk.reduce(dict(state), order=2, **declared).state_dict()
    file = hk.reduce(path, order=2, **given)
    file.write(tmp_path / "small.safetensors")
    written = arrays(tmp_path / "small.safetensors")
    assert list(memory) == list(state)
    changed = 0
    for key, value in memory.items():
        assert value.dtype == state[key].dtype, key
        np.testing.assert_array_equal(value, written[key], err_msg=key)
        changed += value is not state[key]
    assert 0 < changed < len(state) or name in ("lru", "s5", "mega")


def test_reducing_changes_only_what_it_must(waves):
    state = arrays(waves)
    small = hk.reduce(state, order=8)
    out = small.state_dict()
    kernel = {"log_A_real": (16, 8), "A_imag": (16, 8), "C": (16, 8, 2)}
    for name, value in out.items():
        last = name.rpartition(".")[2]
        if "kernel" in name and last in kernel:
            assert value.shape == kernel[last] and value.dtype == state[name].dtype
        else:
            assert value is state[name]
    assert small.states == 256 and (small.orders["s4_layers.0"] == 8).all()
    assert [record["order"] for record in small.records] == [8, 8]
    # The kernel's error, from the tensors themselves.
    for layer, record in zip(small.layers, small.records):
        error = norm = 0.0
        for full, cut in zip(hk.read(state).systems(layer), small.systems(layer)):
            poles = np.concatenate([full.poles, cut.poles])
            b, c = np.vstack([full.b, cut.b]), np.hstack([full.c, -cut.c])
            error += hk.control.h2_norm(poles, b, c, full.step) ** 2
            norm += hk.control.h2_norm(full.poles, full.b, full.c, full.step) ** 2
        assert record["relative_h2_error"] == pytest.approx((error / norm) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes_stay(waves, dtype):
    state = {name: value.astype(dtype) for name, value in arrays(waves).items()}
    small = hk.reduce(state, order=4)
    out = small.state_dict()
    # A layer that half precision would change too much comes in single precision, as a whole.
    for name in small.layers:
        own = {out[tensor].dtype for tensor in small.tensors(name) if tensor in small.changed()}
        assert len(own) == 1 and own <= {np.dtype(dtype), np.dtype("float32")}
    same = [name for name in out if name not in small.changed()]
    assert {out[name].dtype for name in same} == {np.dtype(dtype)}
    assert out["s4_layers.0.kernel.C"].shape == (16, 4, 2)


def test_complex_arrays_stay_complex(data):
    path = data / "layouts" / "s5.safetensors"
    state = arrays(path)
    pairs = {k: v for k, v in state.items() if v.shape[-1:] == (2,)}
    assert pairs
    for kind in (np.complex64, np.complex128):
        given = {k: (v[..., 0] + 1j * v[..., 1]).astype(kind) if k in pairs else v for k, v in state.items()}
        out = hk.reduce(given, order=2).state_dict()
        small = hk.reduce(dict(state), order=2).state_dict()
        for key in pairs:
            assert out[key].dtype == kind
            expected = small[key][..., 0] + 1j * small[key][..., 1]
            np.testing.assert_allclose(out[key], expected, rtol=1e-6)


def test_strides_and_byte_order_do_not_matter(waves):
    state = arrays(waves)
    odd = {k: np.asfortranarray(v).astype(v.dtype.newbyteorder(">")) for k, v in state.items()}
    np.testing.assert_array_equal(
        hk.inspect(odd)["s4_layers.0"].hankel, hk.inspect(state)["s4_layers.0"].hankel
    )


def test_nested_dictionaries_come_back_nested(waves):
    state = arrays(waves)
    nested = {"epoch": 3, "model": {}}
    for name, value in state.items():
        inner = nested["model"]
        *path, last = name.split(".")
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    out = hk.reduce({"a": nested["model"]["s4_layers"]}, order=4).state_dict()
    assert out["a"]["0"]["kernel"]["C"].shape == (16, 4, 2)
    assert out["a"]["0"]["D"] is state["s4_layers.0.D"]


def test_written_files_are_those_of_the_program(waves, tmp_path):
    small = hk.reduce(arrays(waves), order=8)
    for ending in ("safetensors", "npz", "pth"):
        path = tmp_path / f"small.{ending}"
        hk.write(small, path)
        again = hk.read(path, norm="pre").state_dict() if ending == "x" else hk.read(path).state_dict()
        for name, value in small.state_dict().items():
            np.testing.assert_array_equal(again[name], value)


def test_conversion_keeps_the_systems(waves):
    converted = hk.convert(arrays(waves), "s4v4")
    full, other = hk.inspect(waves), hk.inspect(converted)
    for a, b in zip(full.values(), other.values()):
        np.testing.assert_allclose(a.hankel, b.hankel, rtol=1e-3, atol=1e-5 * a.hankel.max())
    assert "s4_layers.0.layer.kernel.A_real" in converted.state_dict()
    with pytest.raises(hk.CheckpointError):
        hk.convert(arrays(waves), "mega")


def test_the_library_runs_calibrates_and_streams_known_networks(waves):
    rng = np.random.default_rng(0)
    t = np.arange(256)
    tones = np.sin(0.05 * rng.uniform(0.5, 4, (24, 1)) * t + rng.uniform(0, 6, (24, 1)))
    model = hk.read(waves)
    assert model.runs
    small = hk.reduce(model, order=4, calibrate=tones)
    plain = hk.reduce(model, order=4)
    full = model.logits(tones)
    error = [np.abs(m.logits(tones) - full).max() for m in (small, plain)]
    assert error[0] < 0.5 * error[1]
    assert small.choice["weight"] == "moments" and small.choice["fit"]["steps"] >= 0
    stream = hk.stream(model)
    for sample in tones[0]:
        out = stream.step(sample)
    np.testing.assert_allclose(out, full[0], rtol=1e-3, atol=1e-3)
    stream.reset()
    first = stream.step(tones[0, 0])
    assert stream.weight_bytes > 0 and stream.state_bytes > 0
    assert not np.allclose(first, out)


def test_onnx_runtime_gives_the_logits_of_a_smaller_model(waves, tmp_path):
    onnxruntime = need("onnxruntime")
    rng = np.random.default_rng(2)
    tones = np.sin(0.05 * rng.uniform(0.5, 4, (24, 1)) * np.arange(256) + rng.uniform(0, 6, (24, 1)))
    tones = tones.astype(np.float32)
    # Integers are multiplied in single precision, as docs/onnx.md says.
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    plain = hk.reduce(waves, order=8)
    sixth = hk.reduce(waves, times=6, calibrate=tones)
    for small in (plain, sixth):
        logits = small.logits(tones)
        bound = 1e-5 * np.abs(logits).max()
        small.to_onnx(tmp_path / "whole.onnx", sequence=True)
        whole = onnxruntime.InferenceSession(str(tmp_path / "whole.onnx"), options)
        (found,) = whole.run(None, {"samples": tones[:, :, None]})
        np.testing.assert_allclose(found, logits, atol=bound)
        small.to_onnx(tmp_path / "step.onnx")
        step = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"), options)
        given = step.get_inputs()[1:]
        states = {one.name: np.zeros([24, *one.shape[1:]], np.float32) for one in given}
        names = [one.name.removeprefix("new_") for one in step.get_outputs()[1:]]
        for sample in tones.T:
            found, *new = step.run(None, {"sample": sample[:, None], **states})
            states = dict(zip(names, new))
        np.testing.assert_allclose(found, logits, atol=bound)


def test_onnx_files_hold_few_bits_and_the_record_of_their_model(waves, tmp_path):
    tones = np.sin(np.linspace(0.02, 0.3, 24)[:, None] * np.arange(256))
    sizes = {}
    for times in (1.5, 6):
        small = hk.reduce(waves, times=times, calibrate=tones)
        small.to_onnx(tmp_path / "small.onnx")
        sizes[times] = (tmp_path / "small.onnx").stat().st_size
        first = (tmp_path / "small.onnx").read_bytes()
        small.to_onnx(tmp_path / "small.onnx")
        assert (tmp_path / "small.onnx").read_bytes() == first
        assert (b"DequantizeLinear" in first) == (times == 6)
    assert sizes[6] < 0.7 * sizes[1.5]


def test_what_is_no_network_is_no_onnx_file(waves, data, tmp_path):
    unknown = {**arrays(waves), "adapter.weight": np.zeros((3, 3), np.float32)}
    file = tmp_path / "unknown.onnx"
    with pytest.raises(hk.ExportError, match="expected a whole network"):
        hk.read(unknown).to_onnx(file)
    both = hk.read(data / "repository" / "post.ckpt")
    with pytest.raises(hk.ExportError, match="bidirectional"):
        both.to_onnx(file)
    assert not file.exists()
    both.to_onnx(file, sequence=True)
    with pytest.raises(hk.CheckpointError, match="nowhere"):
        hk.read(waves).to_onnx(tmp_path / "nowhere" / "step.onnx")


def test_statistics_of_inputs_at_hand_give_the_weighted_reduction(waves):
    rng = np.random.default_rng(1)
    inputs = np.cumsum(rng.normal(size=(12, 64, 16)), axis=1) / 8
    names = hk.read(waves).layers
    whole = hk.Statistics({name: hk.LayerStatistics.of(inputs) for name in names})
    parts = [hk.Statistics({n: hk.LayerStatistics.of(p) for n in names}) for p in np.split(inputs, 3)]
    merged = parts[0] + parts[1] + parts[2]
    for refine in ["residues", "full"]:
        a = hk.reduce(waves, order=4, statistics=whole, refinement=refine)
        b = hk.reduce(waves, order=4, statistics=merged, refinement=refine)
        for x, y in zip(a.records, b.records):
            assert x["relative_weighted_error"] == pytest.approx(y["relative_weighted_error"], rel=1e-6)
    for x in a.records:
        assert x["relative_weighted_error"] < 0.5 * x["relative_h2_error"]
    # The autocorrelation as it is defined.
    r = whole[names[0]].autocorrelation
    direct = sum((inputs[:, : 64 - 5, 3] * inputs[:, 5:, 3]).sum(axis=1)) / (12 * 64)
    assert r[3, 5] == pytest.approx(direct, rel=1e-9)
    shared = hk.reduce(waves, budget=0.125, allocation="channel", statistics=whole)
    assert shared.states <= 128 and len(set(shared.orders["s4_layers.0"])) > 1
    exact = {n: hk.LayerStatistics.of(inputs, products=True) for n in names}
    exact = hk.reduce(waves, order=4, statistics=hk.Statistics(exact))
    assert exact.choice["weight"] == "moments" and a.choice["weight"] == "spectrum"
    # The weighted error by moments is the mean square of the output's error over the sequences.
    record = exact.records[0]
    error = norm = 0.0
    for h, (full, cut) in enumerate(zip(hk.read(waves).systems(names[0]), exact.systems(names[0]))):
        kernels = [kernel(system, 64) for system in (full, cut)]
        for u in inputs[:, :, h]:
            y = [np.convolve(u, k)[:64] for k in kernels]
            error += ((y[0] - y[1]) ** 2).sum()
            norm += (y[0] ** 2).sum()
    assert record["relative_weighted_error"] == pytest.approx((error / norm) ** 0.5, rel=1e-3)


def kernel(system, length):
    steps = np.arange(length)
    powers = np.exp(np.outer(steps, system.poles * system.step))
    taps = (powers @ (system.b[:, 0] * system.c[0])).real
    taps[0] += system.d[0, 0]
    return taps


@pytest.mark.parametrize("name", ["evo2", "megalodon"])
def test_statistics_reduce_within_what_a_layout_holds(data, tmp_path, name):
    rng = np.random.default_rng(4)
    source = data / "large" / f"{name}.safetensors"
    full = hk.read(source)
    channels = {layer: len(spectrum.hankel) for layer, spectrum in hk.inspect(source).items()}
    slow = {n: np.cumsum(rng.normal(size=(8, 100, h)), axis=1) for n, h in channels.items()}
    statistics = hk.Statistics({n: hk.LayerStatistics.of(u) for n, u in slow.items()})
    small = hk.reduce(source, order=3, statistics=statistics)
    for record in small.records:
        assert record["relative_weighted_error"] < 0.2 * record["relative_h2_error"]
        assert record["free_relative_weighted_error"] > 0
    small.write(tmp_path / "small.safetensors")
    assert hk.read(tmp_path / "small.safetensors").family == full.family


def test_statistics_are_kept_in_files_and_of_any_length(waves, tmp_path):
    rng = np.random.default_rng(2)
    short, long = rng.normal(size=(3, 20, 16)), rng.normal(size=(2, 32, 16))
    padded = np.concatenate([np.pad(short, ((0, 0), (0, 12), (0, 0))), long])
    of = hk.LayerStatistics.of
    merged = of(short, products=True) + of(long, products=True)
    whole = of(padded, products=True)
    for part in ("lags", "total", "products"):
        np.testing.assert_allclose(getattr(merged, part), getattr(whole, part), atol=1e-9)
    hk.Statistics({"a": merged}).save(tmp_path / "s.npz")
    again = hk.Statistics.load(tmp_path / "s.npz")["a"]
    np.testing.assert_array_equal(again.products, merged.products)
    assert again.sequences == 5
    # As the program writes them: docs/calibrate-your-own-network.md.
    weighed = hk.Statistics({"a": merged}, "here").weighed({"a": np.arange(16.0)})
    weighed.save(tmp_path / "s.stats")
    again = hk.Statistics.load(tmp_path / "s.stats")
    assert again.origin == "here" and again.sequences == 5
    np.testing.assert_allclose(again["a"].autocorrelation, merged.autocorrelation, rtol=1e-14)
    np.testing.assert_allclose(again["a"].mean, merged.mean, rtol=1e-14)
    np.testing.assert_array_equal(again.importance["a"], np.arange(16.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.npz", "s.stats"]


def test_statistics_of_the_program_and_what_is_none(tmp_path, data):
    # tests/reductions/captured.rs reads the same file. Nothing in it is rounded.
    given = data / "statistics-from-python.safetensors"
    layer = hk.LayerStatistics(np.arange(12.0, 0.0, -1.0).reshape(3, 4), np.arange(3.0), 2)
    made = hk.Statistics({"a": layer, "b": layer}, "numbers")
    made.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == given.read_bytes()
    again = hk.Statistics.load(given)
    np.testing.assert_array_equal(again["b"].lags, layer.lags)
    np.testing.assert_array_equal(again["b"].total, layer.total)
    (tmp_path / "none").write_bytes(b"no statistics, but eight bytes and more")
    with pytest.raises(ValueError, match="none"):
        hk.Statistics.load(tmp_path / "none")
    (tmp_path / "cut").write_bytes(given.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cut"):
        hk.Statistics.load(tmp_path / "cut")
    with pytest.raises(hk.CalibrationError, match="model.safetensors"):
        hk.Statistics.load(data.parent.parent / "models/waves/model.safetensors")


def test_sweep_gives_rows(waves):
    rows = hk.sweep(waves, orders=[16, 4], score=lambda small: small.states)
    assert [row["score"] for row in rows] == [512, 128]
    assert rows[0]["h2_error"] < rows[1]["h2_error"]


def test_a_report_names_every_layer(waves, tmp_path):
    hk.reduce(waves, order=8).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "s4_layers.0" in page and "s4_layers.1" in page


def test_errors_say_what_was_found_and_what_to_do(waves, data, tmp_path):
    with pytest.raises(hk.InvalidSetting, match="the order is 40, expected 1 to 32"):
        hk.reduce(waves, order=40)
    with pytest.raises(hk.InvalidSetting, match="one of order, energy and tolerance"):
        hk.reduce(waves)
    with pytest.raises(hk.InvalidSetting, match="budget=0.5 without statistics"):
        hk.reduce(waves, budget=0.5)
    with pytest.raises(hk.InvalidSetting, match="modal-h3"):
        hk.reduce(waves, order=4, method="modal-h3")
    with pytest.raises(hk.CheckpointError, match="no diagonal state space layer"):
        hk.read({"weight": np.zeros((3, 3))})
    state = arrays(waves)
    state["s4_layers.0.kernel.C"][1, 2, 0] = np.nan
    with pytest.raises(hk.CheckpointError, match="`s4_layers.0.kernel.C` holds NaN at flat index 68"):
        hk.read(state)
    with pytest.raises(hk.CheckpointError, match="nothing.safetensors"):
        hk.read(tmp_path / "nothing.safetensors")
    with pytest.raises(TypeError, match="norms"):
        hk.read(waves, norms="pre")
    unstable = data / "dss_softmax_unstable.pth"
    with pytest.raises(hk.CheckpointError, match="declare it with length=L"):
        hk.read(unstable)
    unstable = hk.read(unstable, length=48)
    with pytest.raises(hk.UnstableModes) as caught:
        hk.reduce(unstable, order=2)
    error = caught.value
    assert error.layer == "s4_layers.0" and error.channel == 0 and error.modes == [1, 4]
    np.testing.assert_allclose(error.poles.real > 0, True)
    spectra = hk.inspect(unstable)
    assert not spectra["s4_layers.0"].stable.any()
    assert np.isnan(spectra["s4_layers.0"].hankel).all()
    small = hk.reduce(unstable, order=2, unstable=True)
    assert "do not decay" in small.records[0]["channels"][0]["notes"][0]
    with pytest.raises(hk.CheckpointError) as caught:
        hk.read(data / "layouts" / "s4_dplr_v4.safetensors")
    assert "diagonalise=R reads each channel" in str(caught.value)
    assert "norm=\"pre\" overrides it" in " ".join(hk.read(data / "flat_state_dict.pt").assumptions)


def test_progress_is_reported_and_ends_the_work(waves):
    seen = []
    hk.reduce(waves, order=8, progress=lambda *report: seen.append(report))
    assert seen[0] == ("reducing layers", 0, 2) and seen[-1] == ("reducing layers", 2, 2)

    class Enough(Exception):
        pass

    def stop(stage, done, total):
        raise Enough(stage)

    with pytest.raises(Enough):
        hk.inspect(waves, progress=stop)
    hk.reduce(waves, order=8, progress=True)


def large_model(layers=12, channels=64, modes=64):
    rng = np.random.default_rng(0)
    state = {}
    for i in range(layers):
        head = f"layers.{i}.kernel."
        state[f"layers.{i}.D"] = rng.normal(size=channels).astype("f")
        state[head + "log_dt"] = rng.uniform(-6, -2, channels).astype("f")
        state[head + "log_A_real"] = rng.normal(-0.7, 0.1, (channels, modes)).astype("f")
        state[head + "A_imag"] = np.tile(np.pi * np.arange(modes), (channels, 1)).astype("f")
        state[head + "C"] = rng.normal(size=(channels, modes, 2)).astype("f")
    return state


def test_other_threads_run_and_ctrl_c_ends_the_work():
    import signal

    state = large_model(layers=60)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(time.monotonic())

    ticking = threading.Thread(target=tick)
    ticking.start()
    model = hk.read(state)
    began = time.monotonic()
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    # A shell starts programs in the background with this signal ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            hk.inspect(model)
    finally:
        done.set()
        ticking.join()
        timer.cancel()
        signal.signal(signal.SIGINT, handler)
    took = time.monotonic() - began
    # The interpreter was free all the while.
    assert len(ticks) > 0.2 * took / 0.01
    assert took < 30


def test_spectra_are_drawn(waves):
    need("matplotlib").use("Agg")
    figure = hk.inspect(waves).plot()
    assert len(figure.axes) == 2
    assert len(figure.axes[0].lines) == 17  # 16 channels and their median


def test_a_whole_model_comes_down_to_a_target(waves, tmp_path):
    turns = np.linspace(2, 20, 60)[:, None] * np.arange(256) / 256
    sequences = np.sin(2 * np.pi * turns) + 0.3 * np.random.default_rng(0).normal(size=turns.shape)
    full = hk.read(waves).logits(sequences)
    small = hk.reduce(waves, max_bytes=5000, calibrate=sequences)
    size = small.choice["size"]
    assert size["weights"] + size["state"] <= 5000 and len(small.image) == size["weights"]
    assert {layer["map"]["entries"] for layer in small.choice["plan"]["layers"]} <= {
        "int8", "int4", "int3", "int2", "bf16", "full"
    }
    near = hk.reduce(waves, max_change=0.1, calibrate=sequences)
    assert near.choice["held_out_change"] <= 0.1
    assert len(near.image) < 30000
    change = np.linalg.norm(near.logits(sequences) - full) / np.linalg.norm(full)
    assert change < 0.15
    only = hk.reduce(waves, max_bytes=12000, only="states", calibrate=sequences)
    assert {layer["map"]["entries"] for layer in only.choice["plan"]["layers"]} == {"full"}
    near.write(tmp_path / "near.safetensors")
    written = hk.read(tmp_path / "near.safetensors").logits(sequences)
    assert np.linalg.norm(written - near.logits(sequences)) < 1e-5 * np.linalg.norm(full)
    with pytest.raises(hk.InvalidSetting, match="calibrate="):
        hk.reduce(waves, max_bytes=5000, statistics=hk.Statistics({}))
    with pytest.raises(hk.InvalidSetting, match="without sequences"):
        hk.reduce(waves, max_bytes=5000)
    with pytest.raises(hk.InvalidSetting, match="expected at least"):
        hk.reduce(waves, max_bytes=50, calibrate=sequences)
    with pytest.raises(hk.InvalidSetting, match="order=4"):
        hk.reduce(waves, max_bytes=5000, order=4, calibrate=sequences)
