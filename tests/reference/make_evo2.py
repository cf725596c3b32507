"""A file with the names and shapes of Evo 2 7B: 32 blocks of width 4096, of which 9 have filters of 16 real poles.

    python tests/reference/make_evo2.py evo2.safetensors
    compress-model inspect evo2.safetensors
    compress-model reduce evo2.safetensors --order 4 --dry-run

Poles and residues are random. All other tensors are holes of a sparse file, 13.2 GB in its listing and 5 MB on
the disk. Names and shapes are those of Zymrael/vortex. Needs numpy.
"""

import json
import struct
import sys

import numpy as np

WIDTH, MODES, BLOCKS, HIDDEN = 4096, 16, 32, 11264
FILTERED = (2, 6, 9, 13, 16, 20, 23, 27, 30)
BYTES = {"F32": 4, "BF16": 2}


def tensors(rng):
    """Name, number format, shape, and values where there are some."""
    for i in range(BLOCKS):
        place = f"blocks.{i}."
        if i in FILTERED:
            decays = -np.exp(rng.uniform(np.log(1e-4), np.log(3), (WIDTH, MODES)))
            yield place + "filter.log_poles", "F32", (WIDTH, MODES, 1), decays
            yield place + "filter.residues", "F32", (WIDTH, MODES), 0.1 * rng.standard_normal((WIDTH, MODES))
            yield place + "filter.D", "F32", (WIDTH,), np.zeros(WIDTH)
            yield place + "filter.short_filter_weight", "BF16", (3 * WIDTH, 1, 3), None
        else:
            yield place + "filter.h", "BF16", (256, 1, 128), None
        yield place + "projections.weight", "BF16", (3 * WIDTH, WIDTH), None
        yield place + "out_filter_dense.weight", "BF16", (WIDTH, WIDTH), None
        yield place + "mlp.l1.weight", "BF16", (HIDDEN, WIDTH), None
        yield place + "mlp.l2.weight", "BF16", (HIDDEN, WIDTH), None
        yield place + "mlp.l3.weight", "BF16", (WIDTH, HIDDEN), None
    yield "embedding_layer.weight", "BF16", (512, WIDTH), None


def main(path):
    header, parts, end = {}, [], 0
    for name, kind, shape, values in tensors(np.random.default_rng(0)):
        first, end = end, end + BYTES[kind] * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [first, end]}
        if values is not None:
            parts.append((first, values.astype(np.float32).tobytes()))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for first, values in parts:
            file.seek(8 + len(text) + first)
            file.write(values)
        file.truncate(8 + len(text) + end)


main(sys.argv[1])
