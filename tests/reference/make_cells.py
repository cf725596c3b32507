"""States and gradients of torch's recurrent cells, for tests/baseline/stacked.rs.

    python3 tests/reference/make_cells.py tests/data/cells.safetensors

Two layers, 3 inputs, 5 units, 2 sequences of 4 steps, in double precision. For each cell: the input,
all parameters, the states of the last layer, and the gradients of sum(states * slopes) with respect to
the parameters (`grad.NAME`) and the input.
"""

import sys

import torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)


def main(path):
    tensors = {}
    for seed, (name, kind) in enumerate(
        [("rnn", torch.nn.RNN), ("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)]
    ):
        torch.manual_seed(seed)
        cell = kind(3, 5, num_layers=2, batch_first=True)
        x = torch.randn(2, 4, 3, requires_grad=True)
        slopes = torch.randn(2, 4, 5)
        out, _ = cell(x)
        (out * slopes).sum().backward()
        tensors |= {
            f"{name}.x": x.detach(),
            f"{name}.slopes": slopes,
            f"{name}.out": out.detach(),
            f"{name}.grad.x": x.grad,
        }
        for key, value in cell.named_parameters():
            tensors[f"{name}.{key}"] = value.detach()
            tensors[f"{name}.grad.{key}"] = value.grad
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, path)


main(sys.argv[1])
