"""Seeds for the fuzz targets, from tests/data: one folder for each in fuzz/corpora.

Those of `image` are packed where it is among the arguments.
"""

import io
import json
import os
import subprocess
import sys
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


def images():
    """Small models as images, by the program."""
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    program = HERE.parent / target / "release" / "compress-model"
    folder = HERE / "corpora" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    if not program.exists():
        sys.exit(f"no {program}, which packs the seeds of `image`: cargo build --release makes it")
    for model in ["s4d_classifier", "flax/s5_gelu", "flax/lru_tokens"]:
        for maps in ["full", "bf16", "int8", "int4", "int3"]:
            for numbers in ["f32", "f16"]:
                place = folder / f"{Path(model).name}-{maps}-{numbers}"
                arguments = ["--mixing", maps, "--numbers", numbers, "--output", place, "--quiet"]
                subprocess.run([program, "pack", DATA / f"{model}.safetensors", *arguments], check=True)


archives()
if "image" in sys.argv[1:]:
    images()
