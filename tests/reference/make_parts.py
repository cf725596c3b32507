"""Files of torch.save with several sets of weights, made without torch.

    python tests/reference/make_parts.py       # writes tests/data/parts/NAME.pth

ema.pth holds the entries `model` and `model_ema`, a number and the state of an optimiser; halves.pth two
entries of which none has a usual name. Each entry is a network with two S4D layers and a map.

Needs numpy.
"""

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent.parent / "data" / "parts"


def stand_in(module, name):
    """A class or function that is pickled by its name in torch."""
    made = type(name, (), {"__module__": module})
    sys.modules.setdefault(module, types.ModuleType(module))
    setattr(sys.modules[module], name, made)
    return made


FloatStorage = stand_in("torch", "FloatStorage")
rebuild = stand_in("torch._utils", "_rebuild_tensor_v2")


class Tensor:
    def __init__(self, values):
        self.values = np.ascontiguousarray(values, "<f4")

    def __reduce__(self):
        strides = tuple(stride // 4 for stride in self.values.strides)
        return rebuild, (Storage(self.values), 0, self.values.shape, strides, False, OrderedDict())


class Storage:
    def __init__(self, values):
        self.values = values


class Pickler(pickle.Pickler):
    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.storages = []

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        self.storages.append(value.values)
        return ("storage", FloatStorage, str(len(self.storages) - 1), "cpu", value.values.size)


def save(path, document):
    file = io.BytesIO()
    pickler = Pickler(file)
    pickler.dump(document)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        records = [("data.pkl", file.getvalue()), ("version", b"3\n"), ("byteorder", b"little")]
        records += [(f"data/{key}", values.tobytes()) for key, values in enumerate(pickler.storages)]
        for name, data in records:
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{name}", (1980, 1, 1, 0, 0, 0)), data)


def network(rng, h=3, n=4):
    f = lambda *shape: rng.standard_normal(shape)
    out = OrderedDict({"encoder.weight": Tensor(f(h, 2))})
    for i in range(2):
        place = f"layers.{i}."
        out[place + "D"] = Tensor(f(h))
        out[place + "kernel.log_dt"] = Tensor(rng.uniform(-4, -2, h))
        out[place + "kernel.log_A_real"] = Tensor(np.full((h, n), -0.7))
        out[place + "kernel.A_imag"] = Tensor(np.tile(np.pi * np.arange(n), (h, 1)))
        out[place + "kernel.C"] = Tensor(f(h, n, 2))
    return out


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(11)
    moments = {"state": {0: {"exp_avg": Tensor(rng.standard_normal(3))}}}
    file = {"model": network(rng), "model_ema": network(rng), "epoch": 3, "optimizer": moments}
    save(HERE / "ema.pth", file)
    save(HERE / "halves.pth", {"generator": network(rng), "other": network(rng)})


if __name__ == "__main__":
    main()
