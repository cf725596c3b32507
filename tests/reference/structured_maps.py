"""Maps of a checkpoint at equal bytes: rounded to 4 and 3 bits, of low rank, with inputs left out.

    python tests/reference/structured_maps.py ckpt.pth [ckpt.pth ...]

Prints ||W - W'|| / ||W|| (Frobenius) of every map `output_linear` for
  integers of 4 and 3 bits with a scale of 16 bits for each row and 32 inputs (the best of nine
  scales, to the nearest);
  W' = U V of the largest rank whose factors, 8 bits each and a scale of 16 bits for each row of U
  and V^T, take as many bytes (truncated singular value decomposition, the factors unrounded:
  the least error of any factors of that rank);
  the inputs of least energy left out, the others in 8 bits, at as many bytes (unrounded).
"""

import sys

import numpy as np
import torch

GROUP = 32


def rounded(weight, bits):
    most, out = 2 ** (bits - 1) - 1, np.zeros_like(weight)
    for start in range(0, weight.shape[1], GROUP):
        block = weight[:, start : start + GROUP]
        tries = []
        for share in np.linspace(0.6, 1.0, 9):
            scale = share * np.abs(block).max(axis=1, keepdims=True) / most
            tries.append(np.clip(np.round(block / scale), -most - 1, most) * scale)
        errors = [((one - block) ** 2).sum(axis=1) for one in tries]
        best = np.argmin(errors, axis=0)
        out[:, start : start + GROUP] = np.array(tries)[best, np.arange(len(best))]
    return out


def errors(weight, bits):
    outputs, inputs = weight.shape
    scales = 2 * outputs * -(-inputs // GROUP)
    size = outputs * inputs * bits / 8 + scales
    whole = np.linalg.norm(weight)
    singular = np.linalg.svd(weight, compute_uv=False)
    rank = int((size - 2 * (outputs + inputs)) // (outputs + inputs))
    kept = int((size - 2 * outputs) // outputs)
    energies = np.sort((weight**2).sum(axis=0))
    return (
        np.linalg.norm(rounded(weight, bits) - weight) / whole,
        np.sqrt((singular[rank:] ** 2).sum()) / whole,
        np.sqrt(energies[: inputs - kept].sum()) / whole,
        rank,
        kept,
    )


def main():
    print("| map | bits | rounded | low rank | inputs left out |\n|---|---|---|---|---|")
    for path in sys.argv[1:]:
        state = torch.load(path, map_location="cpu", weights_only=False)
        state = state.get("model", state)
        for name, value in state.items():
            if "output_linear" not in name or not name.endswith("weight"):
                continue
            weight = value.double().numpy().reshape(value.shape[0], value.shape[1])
            for bits in (4, 3):
                by_bits, by_rank, by_inputs, rank, kept = errors(weight, bits)
                print(
                    f"| {name}, {weight.shape[0]} x {weight.shape[1]} | {bits} | {by_bits:.3f} "
                    f"| {by_rank:.3f} (rank {rank}) | {by_inputs:.3f} ({kept} kept) |"
                )


main()
