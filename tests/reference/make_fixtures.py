"""Write the checkpoints of tests/data with PyTorch.

    python tests/reference/make_fixtures.py

Everything is seeded: the same versions of torch and safetensors write the same
bytes. Golden values are computed in float64 from the tensors as stored.
"""

import collections
import io
import math
import os
import pathlib
import sys
import zipfile

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.fspath(pathlib.Path(__file__).parent))
from s4_torch import DSS, S4D, S4Model  # noqa: E402

torch.set_num_threads(1)

H, N, L, INPUTS, CLASSES, LAYERS = 4, 6, 48, 2, 3, 2
DATA = pathlib.Path(__file__).parents[1] / "data"
BAD = DATA / "bad"


# --- models ------------------------------------------------------------------


def scatter(module, seed):
    """Move the weights away from their initial values, as training does."""
    g = torch.Generator().manual_seed(seed)

    def noise(p):
        return torch.randn(p.shape, generator=g)

    with torch.no_grad():
        for name, p in module.named_parameters():
            last = name.rsplit(".", 1)[-1]
            if last in ("A_imag", "Lambda_im"):
                p += 0.4 * noise(p)  # the mode at 0 may become negative
            elif last in ("log_A_real", "Lambda_log_neg_re", "log_dt"):
                p += 0.4 * noise(p)
            elif last == "Lambda":
                p[..., 0] *= torch.exp(0.4 * noise(p[..., 0]))
                p[..., 1] += 0.4 * noise(p[..., 1])
            elif "norms" in name:
                p += 0.2 * noise(p)
    return module.eval()


def classifier(layer, seed):
    """An S4Model of `LAYERS` layers, each made by `layer()`."""
    torch.manual_seed(seed)
    model = S4Model(INPUTS, CLASSES, H, [layer() for _ in range(LAYERS)])
    return scatter(model, seed + 1)


def s4d():
    return S4D(H, N, dt_min=1e-2, dt_max=2e-1)


def dss(**options):
    return lambda: DSS(H, N, dt_min=1e-2, dt_max=2e-1, **options)


def golden(model, path):
    """Inputs, labels and float64 logits and kernels.

    The labels are the classes the post-norm model finds, but for the last one,
    so its accuracy is 80 %.
    """
    inputs = torch.randn(5, L, INPUTS, generator=torch.Generator().manual_seed(99))
    model = model.double()
    out = {"inputs": inputs}
    with torch.no_grad():
        for name, prenorm, pool in (
            ("logits_postnorm", False, "mean"),
            ("logits_prenorm", True, "mean"),
            ("logits_postnorm_last", False, "last"),
        ):
            model.prenorm, model.pool = prenorm, pool
            out[name] = model(inputs.double())
        model.prenorm, model.pool = False, "mean"
        out["kernels"] = torch.stack([layer.kernel(L) for layer in model.s4_layers])
    labels = out["logits_postnorm"].argmax(-1)
    labels[-1] = (labels[-1] + 1) % CLASSES
    out["labels"] = labels
    save_file(out, path)


def golden_layer(layer, path, versions):
    """Kernels and outputs of a lone layer, in float64, for each version of it."""
    inputs = torch.randn(3, L, H, generator=torch.Generator().manual_seed(98))
    layer = layer.double()
    out = {"inputs": inputs}
    with torch.no_grad():
        for suffix, version in versions.items():
            layer.kernel.version = version
            out["kernel" + suffix] = layer.kernel(L).contiguous()
            out["outputs" + suffix] = layer(inputs.double().transpose(1, 2)).transpose(1, 2).contiguous()
    save_file(out, path)


def copy_of(state):
    """A state dict of its own tensors; keeps `_metadata`, which PyTorch pickles with it."""
    copy = collections.OrderedDict((k, v.detach().clone()) for k, v in state.items())
    if hasattr(state, "_metadata"):
        copy._metadata = state._metadata
    return copy


def wrapped(state):
    return {"model": state, "acc": 80.0, "epoch": 7}


# --- the good files ----------------------------------------------------------


def models():
    """The classifiers and the lone layers, each with its golden file."""
    model = classifier(s4d, 10)
    state = copy_of(model.state_dict())
    save_file(dict(state), DATA / "s4d_classifier.safetensors")
    torch.save(wrapped(state), DATA / "s4d_classifier.pth")
    golden(model, DATA / "s4d_classifier_golden.safetensors")

    exp = classifier(dss(version="exp"), 20)
    torch.save(wrapped(copy_of(exp.state_dict())), DATA / "dss_exp_classifier.pth")
    golden(exp, DATA / "dss_exp_classifier_golden.safetensors")

    softmax = classifier(dss(version="softmax"), 30)
    torch.save(wrapped(copy_of(softmax.state_dict())), DATA / "dss_softmax_classifier.pth")
    assert all((layer.kernel.Lambda[:, 0] < 0).all() for layer in softmax.s4_layers)
    golden(softmax, DATA / "dss_softmax_classifier_golden.safetensors")

    unstable = classifier(dss(version="softmax"), 40)
    with torch.no_grad():
        for layer in unstable.s4_layers:
            layer.kernel.Lambda[1, 0] = 0.3
            layer.kernel.Lambda[4, 0] = 0.05
    torch.save(wrapped(copy_of(unstable.state_dict())), DATA / "dss_softmax_unstable.pth")
    golden(unstable, DATA / "dss_softmax_unstable_golden.safetensors")

    torch.manual_seed(50)
    layer = scatter(dss(version="exp", sep_dt_re_im=False, glu=True)(), 51)
    save_file(dict(copy_of(layer.state_dict())), DATA / "dss_exp_layer.safetensors")
    versions = {"_exp": "exp", "_exp_no_scale": "exp-no-scale"}
    golden_layer(layer, DATA / "dss_exp_layer_golden.safetensors", versions)

    torch.manual_seed(60)
    layer = scatter(s4d(), 61)
    save_file(dict(copy_of(layer.state_dict())), DATA / "s4d_layer.safetensors")
    golden_layer(layer, DATA / "s4d_layer_golden.safetensors", {"": None})


def containers(state):
    """The S4D classifier in other wrappings and other storage."""
    model = classifier(s4d, 10)
    parallel = torch.nn.DataParallel(model)
    torch.save(wrapped(copy_of(parallel.state_dict())), DATA / "dataparallel.pth")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(1, L, INPUTS)).square().sum().backward()
    optimizer.step()
    lightning = {
        "epoch": 3,
        "global_step": 120,
        "pytorch-lightning_version": "2.2.0",
        "state_dict": collections.OrderedDict((f"model.{k}", v) for k, v in state.items()),
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hyper_parameters": {"d_model": H, "n_layers": LAYERS, "prenorm": False, "lr": 1e-3},
    }
    torch.save(lightning, DATA / "lightning_like.ckpt")
    torch.save(copy_of(state), DATA / "flat_state_dict.pt")

    views = copy_of(state)
    shared = torch.cat([state[f"s4_layers.{i}.kernel.log_A_real"].flatten() for i in range(LAYERS)])
    for i in range(LAYERS):
        c = state[f"s4_layers.{i}.kernel.C"]
        views[f"s4_layers.{i}.kernel.C"] = c.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        views[f"s4_layers.{i}.D"] = torch.tensor([0.5 - i]).expand(H)
        views[f"s4_layers.{i}.kernel.log_A_real"] = shared[i * H * N : (i + 1) * H * N].view(H, N)
    torch.save(wrapped(views), DATA / "noncontiguous.pth")
    golden(loaded(views), DATA / "noncontiguous_golden.safetensors")

    mixed = copy_of(state)
    g = torch.Generator().manual_seed(70)
    for name, value in mixed.items():
        if ".kernel.log_dt" in name or ".kernel.C" in name:
            continue  # stays float32
        if ".kernel." in name or name.endswith(".D"):  # float64, with digits that float32 has not
            mixed[name] = value.double() * (1 + 1e-9 * torch.randn(value.shape, generator=g).double())
        else:
            mixed[name] = value.to(torch.float16 if "output_linear" in name else torch.bfloat16)
    torch.save(wrapped(mixed), DATA / "mixed_dtypes.pth")
    golden(loaded(mixed), DATA / "mixed_dtypes_golden.safetensors")


def loaded(state):
    """A float64 model with the tensors of `state`, which may be of any type."""
    model = S4Model(INPUTS, CLASSES, H, [s4d() for _ in range(LAYERS)]).double()
    model.load_state_dict({k: v.double() for k, v in state.items()}, strict=True)
    return model.eval()


def every_dtype():
    """One small tensor of each storage type, and the same values as float64."""
    torch.manual_seed(80)
    tensors = {
        "complex64": torch.randn(3, 4, dtype=torch.complex64),
        "complex64_transposed": torch.randn(2, 5, dtype=torch.complex64).T,
        "complex128": torch.randn(3, dtype=torch.complex128),
        "float64": torch.randn(2, 3, dtype=torch.float64),
        "float32": torch.randn(2, 3),
        "float16": torch.randn(5).half(),
        "bfloat16": torch.randn(5).bfloat16(),
        "int64": torch.tensor([-(2**40), -1, 0, 2**40]),
        "int32": torch.tensor([[-(2**31), -1], [0, 2**31 - 1]], dtype=torch.int32),
        "int16": torch.tensor([-32768, -1, 0, 32767], dtype=torch.int16),
        "int8": torch.tensor([-128, -1, 0, 127], dtype=torch.int8),
        "uint8": torch.tensor([0, 1, 128, 255], dtype=torch.uint8),
        "bool": torch.tensor([[True, False, True]]),
        "scalar_int64": torch.tensor(42),
        "scalar_float32": torch.tensor(0.25),
        "empty_float32": torch.zeros(0, 3),
    }
    torch.save(tensors, DATA / "complex_int_bool.pth")
    values = {}
    for name, t in tensors.items():
        values[name] = torch.view_as_real(t.to(torch.complex128)).contiguous() if t.is_complex() else t.double()
    save_file(values, DATA / "complex_int_bool_golden.safetensors")


# --- files that must be refused ----------------------------------------------


class Evil:
    """Unpickling this runs a (harmless) command."""

    def __reduce__(self):
        return os.system, ("true",)


def refused_containers(state):
    torch.save(wrapped(state), BAD / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({**wrapped(state), "extra": Evil()}, BAD / "evil.pth")
    torch.save(classifier(s4d, 10), BAD / "whole_module.pth")
    script(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU()), BAD / "torchscript.pt")
    (BAD / "lfs_pointer.pth").write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 54817\n"
    )


def script(module, path):
    """TorchScript archive without the debug records, which name local folders."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, torch.ones(1, 2)), buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            if not entry.filename.endswith("debug_pkl"):
                name = entry.filename.replace("archive/", "torchscript/", 1)
                target.writestr(zipfile.ZipInfo(name), source.read(entry))


def refused_families(state):
    g = torch.Generator().manual_seed(90)

    def randn(*shape):
        return torch.randn(*shape, generator=g)

    dplr = {k: v for k, v in state.items() if not k.startswith("s4_layers")}
    for i in range(LAYERS):
        layer = f"s4_layers.{i}."
        kernel = layer + "layer.kernel."
        dplr |= {kernel + name: randn(1, H, N, 2) for name in "BCP"}
        dplr |= {kernel + name: randn(H, N) for name in ("A_real", "A_imag")}
        dplr[kernel + "inv_dt"] = randn(H, 1)
        dplr[kernel + "l_kernel"] = torch.tensor(L)
        dplr[layer + "layer.D"] = randn(1, H)
        dplr[layer + "output_linear.0.weight"] = randn(2 * H, H)
        dplr[layer + "output_linear.0.bias"] = randn(2 * H)
    torch.save(wrapped(dplr), BAD / "dplr.pth")

    mamba = {"embedding.weight": randn(10, H), "norm_f.weight": randn(H)}
    for i in range(LAYERS):
        mixer = f"layers.{i}.mixer."
        mamba |= {mixer + "A_log": randn(2 * H, N), mixer + "D": randn(2 * H)}
        mamba |= {mixer + "conv1d.weight": randn(2 * H, 1, 4), mixer + "conv1d.bias": randn(2 * H)}
        mamba |= {mixer + "x_proj.weight": randn(1 + 2 * N, 2 * H), mixer + "dt_proj.weight": randn(2 * H, 1)}
        mamba |= {mixer + "dt_proj.bias": randn(2 * H), mixer + "in_proj.weight": randn(4 * H, H)}
        mamba |= {mixer + "out_proj.weight": randn(H, 2 * H), f"layers.{i}.norm.weight": randn(H)}
    save_file(mamba, BAD / "mamba.safetensors")

    cnn = {"conv1.weight": randn(4, 1, 3, 3), "conv1.bias": randn(4), "fc.weight": randn(3, 16), "fc.bias": randn(3)}
    torch.save(collections.OrderedDict(cnn), BAD / "cnn.pth")


def refused_tensors(state):
    """The S4D classifier with one thing wrong in it."""
    first = {k: v for k, v in state.items() if "s4_layers.1." not in k}
    other = classifier(dss(version="exp"), 20).state_dict()
    mixed = first | {k: v for k, v in other.items() if "s4_layers.1." in k}
    save_file(mixed, BAD / "mixed_families.safetensors")

    nan = copy_of(state)
    nan["s4_layers.1.kernel.C"][2, 3, 1] = math.nan
    save_file(dict(nan), BAD / "nan.safetensors")

    save_file({k: v for k, v in state.items() if k != "s4_layers.1.kernel.log_dt"}, BAD / "missing.safetensors")
    save_file({**state, "s4_layers.1.kernel.gate": torch.ones(H)}, BAD / "extra.safetensors")
    shorter = state["s4_layers.1.kernel.C"][:, : N - 1].contiguous()
    save_file({**state, "s4_layers.1.kernel.C": shorter}, BAD / "shapes.safetensors")


def main():
    BAD.mkdir(parents=True, exist_ok=True)
    models()
    state = copy_of(classifier(s4d, 10).state_dict())
    containers(state)
    every_dtype()
    refused_containers(state)
    refused_families(state)
    refused_tensors(state)
    sizes = [p.stat().st_size for p in DATA.rglob("*") if p.is_file()]
    print(f"{len(sizes)} files, {sum(sizes)} bytes in tests/data")


if __name__ == "__main__":
    main()
