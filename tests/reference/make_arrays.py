"""Data as `numpy.save`, `numpy.savez` and `torch.save` write them without a name of ours.

    python tests/reference/make_arrays.py

Four sequences of three steps of two numbers, number k of them k / 4, with the classes 0, 2, 1, 2.
"""

import numpy as np
import torch

from make_fixtures import DATA

ARRAYS = DATA / "arrays"


def main():
    ARRAYS.mkdir(exist_ok=True)
    x = np.arange(24, dtype=np.float64).reshape(4, 3, 2) / 4
    y = np.array([0, 2, 1, 2])
    torch_x, torch_y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    np.save(ARRAYS / "x.npy", x)
    np.save(ARRAYS / "fortran.npy", np.asfortranarray(x))
    np.savez(ARRAYS / "xy.npz", x=x, y=y)
    torch.save(torch_x, ARRAYS / "tensor.pt")
    torch.save((torch_x, torch_y), ARRAYS / "tuple.pt")
    torch.save([torch_x, torch_y], ARRAYS / "list.pt")
    torch.save({"x": torch_x, "y": torch_y}, ARRAYS / "dict.pt")
    torch.save({"signal": torch_x}, ARRAYS / "one.pt")
    torch.save({"a": torch_x, "b": torch_x}, ARRAYS / "two.pt")


if __name__ == "__main__":
    main()
