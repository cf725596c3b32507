"""Seeds for the fuzz targets, from tests/data and made here: one folder for each in fuzz/corpora.

Those of `image` are packed where it is among the arguments.
"""

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import wave
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "data"
# Longer files make every execution slower and show nothing new.
LIMIT = 1 << 16


def seed(target, name, content):
    folder = HERE / "corpora" / target
    folder.mkdir(parents=True, exist_ok=True)
    if len(content) <= LIMIT:
        (folder / name).write_bytes(content)


def files():
    for path in sorted(DATA.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(DATA)).replace(os.sep, "-"), path.read_bytes()


def archives():
    for name, content in files():
        if name.endswith(".safetensors"):
            seed("safetensors", name, content)
            seed("layouts", name, described(content))
        elif name.endswith(".msgpack"):
            seed("msgpack", name, content)
        elif name.endswith(".index.json"):
            seed("sharded", name, content)
            seed("sharded", "two", json.dumps({"weight_map": {x: f"{x}.safetensors" for x in "ab"}}).encode())
        elif zipfile.is_zipfile(io.BytesIO(content)):
            seed("zip", name, content)
            with zipfile.ZipFile(io.BytesIO(content)) as file:
                for record in file.namelist():
                    if record.endswith("data.pkl"):
                        seed("pickle", name, file.read(record))
                    elif record.endswith(".npy"):
                        seed("npy", f"{name}-{record.replace('/', '-')}", file.read(record))


def described(content):
    """Names, types and shapes as lines."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    lines = [f"{name} {x['dtype']} {','.join(map(str, x['shape']))}" for name, x in header.items()]
    return "\n".join(lines).encode()


def safetensors(tensors, metadata):
    """A file of tensors of zeros: name, type, bytes of one number, shape."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, size, shape in tensors:
        start = end
        for extent in shape:
            size *= extent
        end += size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def statistics():
    seed("statistics", "python", (DATA / "statistics-from-python.safetensors").read_bytes())
    for known in ["network", "inputs", None]:
        text = {"format": "hankelite input statistics 1", "origin": "x", "sequences": 2, "layers": ["a", "b"]}
        if known:
            text["known"] = known
        if known != "inputs":
            text["fingerprint"] = "0" * 64
        arrays = []
        for layer in "01":
            arrays.append((f"{layer}.autocorrelation", "F64", 8, [2, 4]))
            arrays.append((f"{layer}.mean", "F64", 8, [2]))
            arrays.append((f"{layer}.importance", "F64", 8, [2]))
        seed("statistics", str(known), safetensors(arrays, {"hankelite": json.dumps(text)}))


SIDECAR = """norm = "post"
pooling = "mean"
per_step = true
dss_version = "exp-re-im"
length = 64
discretisation = "bilinear"
dt_transform = "softplus"
real_transform = "exp"
bandlimit = 1.0
conj_sym = true
clip_eigs = false
half_gate = "half-glu1"
gelu = "tanh"
diagonalise = 64
"""
# For the tensors of the file that `beside` reads.
LAYOUT = """axes = "channel-mode"
hold = "zoh"
factor = 2.0
weight = "C"
feedthrough = "D"
step = { name = "log_dt", transform = "exp" }
decay = { name = "log_A_real", transform = "exp" }
frequency = { name = "A_imag", sign = -1 }
"""


def beside():
    """Both files, and each key alone."""
    for first, text in (b"S", SIDECAR), (b"L", LAYOUT):
        seed("beside", first.decode(), first + text.encode())
        for line in text.splitlines():
            seed("beside", f"{first.decode()}-{line.split()[0]}", first + line.encode())


def arrays():
    labels, lengths = ("labels", "I64", 8, [3]), ("lengths", "I64", 8, [3])
    sets = {
        "values": [("inputs", "F32", 4, [3, 5, 2]), labels, lengths],
        "tokens": [("inputs", "I32", 4, [3, 5]), labels, ("vocabulary", "I64", 8, []), ("classes", "I64", 8, [])],
        "targets": [("inputs", "F32", 4, [3, 5]), ("targets", "F32", 4, [3, 5, 1]), ("mask", "U8", 1, [3, 5])],
        "steps": [("inputs", "I64", 8, [3, 5, 2]), ("labels", "I64", 8, [3, 5])],
    }
    for name, tensors in sets.items():
        seed("arrays", name, safetensors(tensors, None))


def sound(width=2, channels=1, count=24):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(8000)
        writer.writeframes(bytes(range(width * channels)) * count)
    return file.getvalue()


def sounds():
    for width in 1, 2, 3, 4:
        for channels in 1, 2:
            seed("sound", f"{width}-{channels}", sound(width, channels))
    floats = bytearray(sound(4))
    floats[20] = 3
    seed("sound", "float", bytes(floats))


def tarred():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in "recordings/1_a_0.wav", "recordings/2_b_7.wav":
            content = sound()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def data():
    arrays()
    sounds()
    labels = struct.pack(">II", 2049, 2) + b"\1\7"
    pixels = struct.pack(">IIII", 2051, 2, 2, 3) + bytes(range(12))
    seed("idx", "two", struct.pack("<H", len(labels)) + labels + pixels)
    trees = ["Source\tTarget", "( ( ( [MAX 2 ) 9 ) ] )\t9", "3\t[MED 1 [MIN 4 7 ] 3 ]", "[SM 9 5 ]\t4", "[FIRST 3 2 ]\t3"]
    seed("trees", "trees", "\n".join(trees).encode())
    seed("recordings", "two", tarred())


def reductions():
    """Settings and modes as bytes: some of each method."""
    for method in range(8):
        for start in range(4):
            content = bytes((37 * (start + 1) * i + method) % 256 for i in range(220))
            seed("reduce", f"{method}-{start}", bytes([2, start * 3, method, method, start]) + content)


def snapshots():
    """Where a training stands: as it begins, amid an epoch, behind a cut, at its end."""
    tally = {"loss": 1.5, "correct": 3, "answers": 4, "classes": True}
    start = {"tally": tally, "distances": None, "sequences": 4, "squared_errors": [0.25] * 4}
    begun = {"step": 0, "epoch": 0, "batch": 0, "tally": tally, "terms": {}, "gradient_norms": 0.0}
    begun |= {"start": None, "best": None, "waiting": 0, "stalled": 0, "halvings": 0}
    begun |= {"metrics_bytes": 0, "seconds": 0.5, "end": None}
    amid = begun | {"step": 1, "batch": 1, "start": start, "best": {"epoch": 0, "step": 0, "value": 1.5}}
    cut = {"epoch": 1, "step": 2, "orders_before": [4], "orders": [2], "loss_before": 1.0, "loss_behind": 1.5}
    cut = amid | {"cuts": [cut | {"kept": True}], "terms": {"trust_active": 0.5}, "halvings": 1}
    over = cut | {"step": 4, "epoch": 2, "batch": 0, "end": "finished", "stalled": 2}
    for name, progress in ("begun", begun), ("amid", amid), ("cut", cut), ("over", over):
        seed("snapshot", name, struct.pack("<f", 0.5) + json.dumps(progress).encode())


def images():
    """Small models as images, by the program."""
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    program = HERE.parent / target / "release" / "compress-model"
    folder = HERE / "corpora" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    if not program.exists():
        sys.exit(f"no {program}, which packs the seeds of `image`: cargo build --release makes it")
    for model in ["s4d_classifier", "flax/s5_gelu", "flax/lru_tokens"]:
        for maps in ["full", "bf16", "int8", "int4", "int3", "int2"]:
            for numbers in ["f32", "f16"]:
                place = folder / f"{Path(model).name}-{maps}-{numbers}"
                arguments = ["--mixing", maps, "--numbers", numbers, "--output", place, "--quiet"]
                subprocess.run([program, "pack", DATA / f"{model}.safetensors", *arguments], check=True)


archives()
statistics()
beside()
data()
reductions()
snapshots()
if "image" in sys.argv[1:]:
    images()
