"""Small networks of the full state-spaces/s4 repository, with their logits.

    python tests/reference/make_repository.py    # writes tests/data/repository/

`forward` is written after SequenceModel, SequenceResidualBlock, S4Block, FFTConv, Normalization and
SequenceDecoder of v4 and takes nothing from this project; the kernels are those of
`make_layouts.py`. The truth is kept in truth.safetensors, in double precision: NAME/inputs and
NAME/POOLING, the logits.

Needs torch and safetensors.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from make_layouts import discretised, make_v4, normal, r2c, transform

HERE = Path(__file__).resolve().parent.parent / "data" / "repository"
H, N, CLASSES, LENGTH, SEQUENCES = 4, 6, 3, 20, 3
torch.manual_seed(11)


def kernel(t, k, dt_transform, length):
    """SSMKernelDiag, disc zoh."""
    dt = transform(t[k + "inv_dt"], dt_transform)
    a = -transform(t[k + "A_real"], "exp") - 1j * t[k + "A_imag"].double()
    copies = dt.shape[0] // a.shape[0]
    a, b = a.repeat(copies, 1), r2c(t[k + "B"]).repeat(1, copies, 1)
    return discretised(r2c(t[k + "C"]) * b, a, dt, "zoh", length)


def fft_conv(t, place, x, dt_transform, bidirectional):
    """FFTConv.forward: x is (B, H, L)."""
    length = x.shape[-1]
    k = kernel(t, place + "kernel.", dt_transform, length)
    if bidirectional:
        k0, k1 = k.view(2, -1, *k.shape[1:])
        k = F.pad(k0, (0, length)) + F.pad(k1.flip(-1), (length, 0))
    n = 2 * length
    y = torch.einsum("bhl,chl->bchl", torch.fft.rfft(x, n=n), torch.fft.rfft(k, n=n))
    y = torch.fft.irfft(y, n=n)[..., :length]
    y = y + torch.einsum("bhl,ch->bchl", x, t[place + "D"].double())
    return F.gelu(y.flatten(1, 2))


def s4_block(t, place, x, *settings):
    y = fft_conv(t, place + "layer.", x.transpose(1, 2), *settings).transpose(1, 2)
    weight, bias = (t[place + "output_linear.0." + name].double() for name in ("weight", "bias"))
    return F.glu(F.linear(y, weight, bias), dim=-1)


def norm(t, place, x):
    weight, bias = t[place + "weight"].double(), t[place + "bias"].double()
    if place + "running_mean" not in t:
        return F.layer_norm(x, (H,), weight, bias)
    mean, variance = t[place + "running_mean"].double(), t[place + "running_var"].double()
    return F.batch_norm(x.transpose(1, 2), mean, variance, weight, bias).transpose(1, 2)


def forward(t, inputs, prenorm, *settings):
    """Everything before the decoder: (B, L, H)."""
    weight = t["encoder.0.weight"].double()
    if "encoder.0.bias" in t:
        x = F.linear(inputs, weight, t["encoder.0.bias"].double())
    else:
        x = F.embedding(inputs.long(), weight)
    for i in range(2):
        place = f"model.layers.{i}."
        y = norm(t, place + "norm.norm.", x) if prenorm else x
        x = x + s4_block(t, place + "layer.", y, *settings)
        x = x if prenorm else norm(t, place + "norm.norm.", x)
    return norm(t, "model.norm.norm.", x) if prenorm else x


def decoder(t, x, mode):
    x = x[:, -1] if mode == "last" else x.mean(1)
    head = "decoder.0.output_transform."
    return F.linear(x, t[head + "weight"].double(), t[head + "bias"].double())


def make_norm(place, batch):
    t = {place + "weight": 1 + 0.3 * normal(H), place + "bias": 0.3 * normal(H)}
    if batch:
        t[place + "running_mean"] = 0.3 * normal(H)
        t[place + "running_var"] = 0.5 + torch.rand(H)
        t[place + "num_batches_tracked"] = torch.tensor(7)
    return t


def make(encoder, channels, rows, dt_transform, batch, prenorm):
    t = dict(encoder)
    for i in range(2):
        place = f"model.layers.{i}."
        layer = make_v4(H, N, channels, rows, 1 + i, dt=dt_transform)
        for name, value in layer.items():
            if ".layer.layer." in name:
                t[name.replace("model.layers.0.", place)] = value
        t[place + "layer.output_linear.0.weight"] = normal(2 * H, rows * H)
        t[place + "layer.output_linear.0.bias"] = normal(2 * H)
        t |= make_norm(place + "norm.norm.", batch)
    if prenorm:
        t |= make_norm("model.norm.norm.", batch)
    t["decoder.0.output_transform.weight"] = normal(CLASSES, H)
    t["decoder.0.output_transform.bias"] = normal(CLASSES)
    return t


def save(name, tensors, dt_transform, bidirectional, prenorm, batch, mode, prefix=""):
    layer = {
        "_name_": "s4",
        "mode": "diag",
        "disc": "zoh",
        "dt_transform": dt_transform,
        "activation": "gelu",
        "final_act": "glu",
        "bidirectional": bidirectional,
    }
    settings = {
        "model": {
            "prenorm": prenorm,
            "norm": "batch" if batch else "layer",
            "layer": layer,
            "pool": {"_name_": "pool", "stride": 1},
        },
        "decoder": {"_name_": "sequence", "mode": mode},
    }
    state = {prefix + key: value for key, value in tensors.items()}
    torch.save({"epoch": 3, "state_dict": state, "hyper_parameters": settings}, HERE / f"{name}.ckpt")


def main():
    HERE.mkdir(exist_ok=True)
    truth = {}
    embedding = {"encoder.0.weight": normal(7, H)}
    post = make(embedding, 4, 2, "softplus", True, False)
    tokens = torch.randint(7, (SEQUENCES, LENGTH)).double()
    x = forward(post, tokens, False, "softplus", True)
    truth |= {"post/inputs": tokens, "post/mean": decoder(post, x, "pool")}
    save("post", post, "softplus", True, False, True, "pool")

    linear = {"encoder.0.weight": normal(H, 2), "encoder.0.bias": normal(H)}
    pre = make(linear, 1, 1, "exp", False, True)
    values = normal(SEQUENCES, LENGTH, 2).double()
    x = forward(pre, values, True, "exp", False)
    truth["pre/inputs"] = values
    truth |= {"pre/last": decoder(pre, x, "last"), "pre/mean": decoder(pre, x, "pool")}
    save("pre", pre, "exp", False, True, False, "last", "net.")

    # Networks that are another than the known one: by a tensor, and by a setting.
    more = post | {"encoder.1.weight": normal(LENGTH, H)}
    save("positional", more, "softplus", True, False, True, "pool")
    save("sum", pre, "exp", False, True, False, "sum")
    save_file({key: value.contiguous() for key, value in truth.items()}, HERE / "truth.safetensors")


if __name__ == "__main__":
    main()
