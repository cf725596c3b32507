#!/usr/bin/env python3
"""Builds the firmware, runs it in an emulator, and compares its outputs with this computer's.

    run.py                                            the shipped model, on every board
    run.py small.edge --data mnist:data/mnist         another model, checkpoint or image
    run.py --boards m4f,rv32 --languages c --mixing int8

Every build reads the same sequences. Its last outputs have to be those of device/hankelite.c on this
computer bit for bit, and those of `compress-model stream` within the bound that is printed. Prints a
table of bytes and instructions. Needs Python 3.9, `compress-model`, and for the boards what
examples/firmware/README.md lists.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")).resolve()
WAVES = TOP / "models/waves/model.safetensors"
C = "-std=c99 -Wall -Wextra -Werror -O2 -ffp-contract=off -fno-math-errno".split()
BARE = ["-nostdlib", "-nostartfiles", "-ffunction-sections", "-Wl,--gc-sections"]
ARM = ["arm-none-eabi-gcc", "-mthumb", "-mfloat-abi=hard", "-DHK_DSP", "-Tmps2.ld"]
RISCV = ["riscv64-unknown-elf-gcc", "-ffreestanding", "-DHK_NO_MATH", "-Tvirt.ld"]
QEMU = "-display none -monitor none -serial none -chardev stdio,id=out -semihosting-config enable=on,target=native,chardev=out -icount shift=0 -kernel".split()
# For each board its compiler, its emulator, and Rust's name.
BOARDS = {
    "m4f": (ARM + ["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16"], ["qemu-system-arm", "-M", "mps2-an386"], "thumbv7em-none-eabihf"),
    "m7": (ARM + ["-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16"], ["qemu-system-arm", "-M", "mps2-an500"], "thumbv7em-none-eabihf"),
    "rv32": (RISCV + ["-misa-spec=2.2", "-march=rv32imac", "-mabi=ilp32"], ["qemu-system-riscv32", "-M", "virt", "-bios", "none"], "riscv32imac-unknown-none-elf"),
    "rv32f": (RISCV + ["-misa-spec=2.2", "-march=rv32imafc", "-mabi=ilp32f"], ["qemu-system-riscv32", "-M", "virt", "-bios", "none"], None),
}
# How far vector units and fused products may move an output, relative to outputs above 1.
APART = {"full": 2e-5, "bf16": 2e-5, "int8": 2e-2, "int4": 2e-2, "int3": 2e-2, "int2": 2e-2, "image": 2e-2}


def run(command, **options):
    """The output of a command, which has to succeed."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def sequences_of(settings, place):
    """The first sequences of a data set, and the numbers of a step."""
    file = place / "data.safetensors"
    # A file of sequences is one set.
    split = [] if Path(settings.data).is_file() else ["--split", "test"]
    run([settings.program, "--quiet", "data", settings.data, *split, "--output", file])
    with file.open("rb") as data:
        header = json.loads(data.read(struct.unpack("<Q", data.read(8))[0]))
        start = data.tell()
        tensor = header["inputs"]
        count, steps, *width = tensor["shape"]
        assert tensor["dtype"] == "F32" and count >= settings.sequences, tensor
        width = width[0] if width else 1
        kept = min(steps, settings.steps or steps)
        found = []
        for index in range(settings.sequences):
            data.seek(start + tensor["data_offsets"][0] + 4 * index * steps * width)
            found.append(data.read(4 * kept * width))
    return found, kept


def write_samples(place, sequences, steps):
    """The sequences as C, and as bytes one after the other."""
    (place / "samples.f32").write_bytes(b"".join(sequences))
    rows = []
    for sequence in sequences:
        numbers = struct.unpack(f"<{len(sequence) // 4}f", sequence)
        rows.append("{" + ",\n".join(f"{number.hex()}f" for number in numbers) + "}")
    numbers = len(sequences[0]) // 4
    (place / "samples.h").write_text(
        f"#define SEQUENCES {len(sequences)}u\n#define STEPS {steps}u\n"
        f"static const float samples[SEQUENCES][{numbers}] = {{\n" + ",\n".join(rows) + "};\n"
    )


def c_files(board):
    return [HERE / "c/main.c", HERE / "c" / board, TOP / "device/hankelite.c"]


def include(place):
    return [f"-I{place}", f"-I{TOP / 'device'}", f"-I{HERE / 'c'}"]


def build_c(board, place, _sequences):
    file = place / f"{board}.elf"
    flags = [*C, *BARE, *include(place), f"-L{HERE / 'c'}"]
    run([*BOARDS[board][0], *flags, *c_files("semihosting.c"), "-lgcc", "-o", file])
    return file


def build_rust(board, place, sequences):
    target = BOARDS[board][2]
    kept = TARGET / "firmware"
    variables = {"MODEL": place / "model.edge", "SAMPLES": place / "samples.f32", "SEQUENCES": sequences}
    variables = {f"FIRMWARE_{name}": str(value) for name, value in variables.items()}
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target", target, "--target-dir", kept]
    run(command, cwd=HERE / "rust", env={**os.environ, **variables})
    return kept / target / "release/firmware"


def on_host(place):
    file = place / "host"
    run([os.environ.get("CC", "cc"), *C, *include(place), *c_files("host.c"), "-lm", "-o", file])
    return read(run([file]))


def emulated(board, file):
    return read(run([*BOARDS[board][1], *QEMU, file], timeout=600))


def read(text):
    """What a program says: a word and hexadecimal numbers on each line."""
    said = {}
    for line in text.splitlines():
        word, *numbers = line.split()
        said.setdefault(word, []).append([int(number, 16) for number in numbers])
    return said


def streamed(settings, place, sequence):
    """The outputs of `compress-model stream` for a sequence."""
    (place / "one.f32").write_bytes(sequence)
    command = [settings.program, "--quiet", "stream", place / "model.edge", "--from", "f32", "--last"]
    return [float(word) for word in run([*command, "--input", place / "one.f32"]).split()]


def floats(outputs):
    return list(struct.unpack(f"<{len(outputs)}f", struct.pack(f"<{len(outputs)}I", *outputs)))


def compare(name, said, reference, expected, bound):
    """How far the outputs are from those of the program."""
    if said["outputs"] != reference["outputs"]:
        sys.exit(f"{name}: the outputs are not those of hankelite.c on this computer, bit for bit")
    apart = 0.0
    for outputs, wanted in zip(map(floats, said["outputs"]), expected, strict=True):
        scale = max(1.0, *map(abs, wanted))
        apart = max(apart, *(abs(y - z) / scale for y, z in zip(outputs, wanted, strict=True)))
    if not apart <= bound:
        sys.exit(f"{name}: {apart:.1e} from the outputs of `stream`, expected at most {bound}")
    return apart


def check_counter(name, said):
    """The loop of a known number of instructions, within what one tick and the calls add."""
    [[known, found]] = said["loop"]
    if not 0 <= found - known <= 200:
        sys.exit(f"{name}: a loop of {known} instructions was counted as {found}")


def size_of(file, board):
    """Bytes of flash and of memory, without the stack."""
    tool = BOARDS[board][0][0].removesuffix("gcc") + "size"
    text, data, bss = map(int, run([tool, file]).splitlines()[1].split()[:3])
    sections = dict(line.split()[:2] for line in run([tool, "-A", file]).splitlines() if line.startswith("."))
    # What Rust's start for RISC-V sets aside.
    room = sum(int(sections.get(name, 0)) for name in (".stack", ".heap"))
    return text + data, data + bss - room


def is_there(board, language):
    """Whether the tools are here; says what is missing."""
    compiler, emulator, target = BOARDS[board]
    needed = [emulator[0], compiler[0].removesuffix("gcc") + "size"]
    needed.append(compiler[0] if language == "c" else "cargo")
    missing = [tool for tool in needed if not shutil.which(tool)]
    if language == "rust" and not missing:
        installed = run(["rustup", "target", "list", "--installed"]) if shutil.which("rustup") else ""
        if target not in installed.split():
            missing.append(f"Rust's target {target}")
    if missing:
        print(f"not run: {board}, {language} ({', '.join(missing)} missing)")
    return not missing


def rows_of(settings, place, model, mixing, sequences):
    """Packs a model one way, runs it on every board, and gives the lines of the table."""
    how = [] if mixing == "image" else ["--mixing", mixing]
    how += ["--numbers", settings.numbers] if settings.numbers and how else []
    run([settings.program, "--quiet", "pack", model, *how, "--output", place / "model.edge", "--c-header", place / "model.h"])
    image = (place / "model.edge").stat().st_size
    reference = on_host(place)
    expected = [streamed(settings, place, sequence) for sequence in sequences]
    samples = len(sequences) * len(sequences[0])
    for board, language in settings.builds:
        name = f"{Path(model).stem}, {mixing}, {board}, {language}"
        file = (build_c if language == "c" else build_rust)(board, place, len(sequences))
        said = emulated(board, file)
        check_counter(name, said)
        apart = compare(name, said, reference, expected, APART[mixing])
        flash, memory = size_of(file, board)
        counts = [(high << 32) + low for high, low in said["instructions"]]
        # Rust does not watch its stack.
        stack = said["stack"][0][0] if "stack" in said else "–"
        cells = [mixing, board, language, flash - samples, image, memory, stack, max(counts) // settings.kept]
        yield "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + f" | {apart:.0e} |"


def builds_of(settings):
    pairs = [(board, language) for board in settings.boards.split(",") for language in settings.languages.split(",")]
    pairs = [(board, language) for board, language in pairs if language == "c" or BOARDS[board][2]]
    found = [pair for pair in pairs if is_there(*pair)]
    if settings.needed and found != pairs:
        sys.exit("boards are left out, and --needed asks for all")
    return found


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[WAVES], help="checkpoints or images")
    parser.add_argument("--program", default="compress-model")
    parser.add_argument("--data", default="waves", help="what `compress-model data` takes")
    parser.add_argument("--boards", default=",".join(BOARDS))
    parser.add_argument("--languages", default="c,rust")
    parser.add_argument("--mixing", default="full,int8,int4", help="of checkpoints")
    parser.add_argument("--numbers", help="of checkpoints: f16")
    parser.add_argument("--sequences", type=int, default=3)
    parser.add_argument("--steps", type=int, help="only the first steps of each")
    parser.add_argument("--needed", action="store_true", help="fail where a board cannot be run")
    parser.add_argument("--place", type=Path, default=TARGET / "firmware", help="where files are built")
    return parser.parse_args()


def main():
    settings = arguments()
    settings.builds = builds_of(settings)
    settings.place.mkdir(parents=True, exist_ok=True)
    sequences, settings.kept = sequences_of(settings, settings.place)
    write_samples(settings.place, sequences, settings.kept)
    for model in settings.models:
        print(f"\n{model}: {len(sequences)} sequences of {settings.kept} steps\n")
        print("| maps | board | language | flash | of it image | memory | stack | instructions a step | from `stream` |")
        print("|" + "---|" * 9)
        for mixing in ["image"] if str(model).endswith(".edge") else settings.mixing.split(","):
            for row in rows_of(settings, settings.place, model, mixing, sequences):
                print(row, flush=True)


main()
