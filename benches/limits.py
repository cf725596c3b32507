"""What the program does at sizes beyond those that people publish: seconds, memory, the end.

    python3 benches/limits.py PROGRAM FOLDER [NAME ...]

Python 3.9 alone. Networks and data are made in FOLDER, which needs 36 GB for `file`, else 6; what is
made is removed again. Each row is one command as a process of its own: wall-clock seconds, largest
resident memory, exit code, and what it wrote last on stderr where the code is not 0.
"""

import array
import json
import os
import random
import struct
import subprocess
import sys
import time
from math import log, pi
from pathlib import Path

GIB = 1 << 30


def numbers(count, low, high, seed):
    """Random numbers as bytes of f32; from 2^16 on they repeat, with an odd period."""
    draw = random.Random(seed)
    block = array.array("f", (draw.uniform(low, high) for _ in range(min(count, 65537))))
    whole, rest = divmod(count, len(block)) if count else (0, 0)
    return block.tobytes() * whole + block[:rest].tobytes()


class File:
    """A safetensors file, tensor by tensor."""

    def __init__(self):
        self.header, self.parts, self.end = {}, [], 0

    def add(self, name, shape, content, dtype="F32"):
        """The content is bytes, or a number of zeros that take no room on disk."""
        length = content if isinstance(content, int) else len(content)
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [self.end, self.end + length]}
        self.parts.append(content)
        self.end += length

    def draw(self, name, shape, low=-1.0, high=1.0):
        count = 1
        for extent in shape:
            count *= extent
        self.add(name, shape, numbers(count, low, high, name))

    def write(self, path):
        text = json.dumps(self.header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for part in self.parts:
                if isinstance(part, int):
                    file.truncate(file.tell() + part)
                    file.seek(0, os.SEEK_END)
                else:
                    file.write(part)


def network(path, layers, channels, states, classes=10, carried=0):
    """An S4D classifier, initialised like S4D-Lin; `carried` GiB of tensors that no layer needs."""
    file = File()
    file.draw("encoder.weight", [channels, 1])
    file.draw("encoder.bias", [channels])
    frequencies = array.array("f", (pi * n for n in range(states))).tobytes() * channels
    decays = array.array("f", [log(0.5)] * states).tobytes() * channels
    for layer in range(layers):
        place = f"s4_layers.{layer}"
        file.draw(f"{place}.D", [channels])
        file.draw(f"{place}.kernel.log_dt", [channels], log(0.001), log(0.1))
        file.add(f"{place}.kernel.log_A_real", [channels, states], decays)
        file.add(f"{place}.kernel.A_imag", [channels, states], frequencies)
        file.draw(f"{place}.kernel.C", [channels, states, 2])
        bound = channels**-0.5
        file.draw(f"{place}.output_linear.0.weight", [2 * channels, channels, 1], -bound, bound)
        file.draw(f"{place}.output_linear.0.bias", [2 * channels])
        file.draw(f"norms.{layer}.weight", [channels], 0.9, 1.1)
        file.draw(f"norms.{layer}.bias", [channels], -0.1, 0.1)
    file.draw("decoder.weight", [classes, channels])
    file.draw("decoder.bias", [classes])
    for index in range(carried):
        # In four tensors each, in half precision: nobody's model has one of a GiB.
        for part in range(4):
            file.add(f"other.{index}.{part}", [1 << 13, 1 << 14], GIB // 4, "F16")
    file.write(path)


def data(path, count, length, classes=10):
    file = File()
    file.draw("inputs", [count, length])
    labels = struct.pack(f"<{count}q", *(i % max(classes, 2) for i in range(count)))
    file.add("labels", [count], labels, "I64")
    if classes == 1:
        file.add("classes", [], struct.pack("<q", 2), "I64")
    file.write(path)


def run(program, arguments):
    start = time.time()
    child = subprocess.Popen([program, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read().decode(errors="replace")
    _, status, used = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status >> 8
    lines = [line.strip() for line in errors.replace("\r", "\n").splitlines() if line.strip()]
    end = "" if code == 0 else lines[-1] if lines else "nothing"
    return time.time() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, code, end


# Layers, channels, states of a network; sequences and steps of its data; what is done.
CASES = {
    "states": [((1, 2, n), None, ["inspect", "reduce --order 32"]) for n in (256, 512, 1024, 2048)],
    "channels": [((1, h, 32), None, ["inspect", "reduce --order 8"]) for h in (1024, 4096, 8192)],
    "layers": [((96, 64, 32), (4, 256), ["reduce --order 8", "reduce --calibrate DATA --order 8", "evaluate --data DATA"])],
    "length": [
        ((2, 8, 16), (2, length), ["reduce --calibrate DATA --order 4", "evaluate --data DATA"])
        for length in (1 << 14, 1 << 17, 1 << 20)
    ],
    "file": [((2, 16, 32), None, ["inspect", "reduce --order 8"])],
    "classes": [((2, 16, 32), (64, 256), ["reduce --calibrate DATA --order 8", "evaluate --data DATA"])],
}


def case(program, folder, name, sizes, lengths, commands):
    model, file, output = (folder / part for part in ("model.safetensors", "data.safetensors", "out.safetensors"))
    classes = 1 if name == "classes" else 10
    network(model, *sizes, classes=classes, carried=16 if name == "file" else 0)
    if lengths:
        data(file, *lengths, classes)
    for command in commands:
        verb, *rest = command.split()
        arguments = [verb, model, *(file if word == "DATA" else word for word in rest), "--norm", "post"]
        if verb == "reduce":
            arguments += ["--output", output]
        seconds, cpu, memory, code, end = run(program, arguments)
        size = " x ".join(map(str, sizes)) + (f", {lengths[0]} of {lengths[1]:,} steps" if lengths else "")
        bytes_ = model.stat().st_size / 1e6
        print(
            f"| {name} | {size} | {bytes_:,.1f} | `{command}` | {seconds:.1f} | {cpu:.1f} | {memory:,.0f} | {code} {end} |",
            flush=True,
        )
        output.unlink(missing_ok=True)


def main():
    program, folder, *names = sys.argv[1:]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    print("| limit | layers x channels x stored states | file, MB | command | s | CPU-s | memory, MB | exit |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names or CASES:
        for sizes, lengths, commands in CASES[name]:
            case(program, folder, name, sizes, lengths, commands)
            for path in folder.iterdir():
                path.unlink()


if __name__ == "__main__":
    main()
