"""Written ONNX files are valid, and ONNX Runtime gives the logits of this project from them.

    python tests/reference/check_onnx.py target/release/compress-model

For each kind of network that is run: the graph of a whole sequence and, where the layers are causal,
that of a step, both checked by onnx.checker with shapes inferred, run on random inputs, and compared with
`evaluate --logits` in double precision: to 1e-5 of the largest logit. Graphs with few bits are compared
with the same graph in single precision whose weights are computed here from the integers and scales.

Needs onnx, onnxruntime, numpy and safetensors.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).parents[1] / "data"
WAVES = Path(__file__).parents[2] / "models/waves/model.safetensors"
BOUND = 1e-5
# Model, what no tensor of it records, whether its layers run in one direction.
CASES = [
    (WAVES, [], True),
    (DATA / "s4d_classifier.pth", [], True),
    (DATA / "s4d_classifier.pth", ["--norm", "pre"], True),
    (DATA / "s4d_classifier.pth", ["--pooling", "last"], True),
    (DATA / "dss_exp_classifier.pth", [], True),
    (DATA / "dss_softmax_classifier.pth", ["--length", "48"], True),
    (DATA / "repository/pre.ckpt", [], True),
    (DATA / "repository/post.ckpt", [], False),
    (DATA / "stacks/dlru.pth", ["--pooling", "mean"], True),
    (DATA / "stacks/lru_gelu", ["--pooling", "last"], True),
    (DATA / "stacks/lru_tokens.safetensors", ["--gelu", "tanh"], True),
    (DATA / "stacks/s5_full_glu.pth", [], True),
    (DATA / "stacks/s5_half_glu2.safetensors", ["--norm", "post", "--half-gate", "half-glu2"], True),
    (DATA / "flax/lru_half_glu1.safetensors", [], True),
    (DATA / "flax/s5_full_glu.safetensors", [], True),
    (DATA / "flax/s5_gelu.safetensors", [], True),
]


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def run(self, *arguments):
        """What the program prints as JSON; the end of what it says where it fails."""
        words = [self.path, *map(str, arguments), "--format", "json"]
        done = subprocess.run(words, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def export(self, model, declared, *options):
        """A checked file with what the program says of it, or why there is none."""
        file = self.folder / "model.onnx"
        file.unlink(missing_ok=True)
        made = self.run("export", model, "--onnx", file, *declared, *options)
        if isinstance(made, str):
            return None, made
        loaded = onnx.load(str(file))
        onnx.checker.check_model(loaded, full_check=True)
        assert made["bytes"] == file.stat().st_size
        given = [[value.name for value in ports] for ports in (loaded.graph.input, loaded.graph.output)]
        assert given == [[port["name"] for port in made[side]] for side in ("inputs", "outputs")]
        keys = {entry.key for entry in loaded.metadata_props}
        assert "hankelite.source" in keys, keys
        return loaded, made

    def logits(self, model, declared, inputs):
        arrays, out = self.folder / "inputs.safetensors", self.folder / "logits.safetensors"
        save_file({"inputs": inputs, "labels": np.zeros(len(inputs), dtype=np.int64)}, arrays)
        done = self.run("evaluate", model, "--data", arrays, "--precision", "double", "--logits", out, *declared)
        assert isinstance(done, dict), done
        return load_file(out)["logits"]


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Else ONNX Runtime rounds what it multiplies integers with to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def by_steps(model, made, inputs):
    """The outputs of the last step."""
    running = session(model)
    states = {}
    for port in made["inputs"][1:]:
        states[port["name"]] = np.zeros([len(inputs), *map(int, port["shape"][1:])], dtype=np.float32)
    first = made["inputs"][0]["name"]
    for step in range(inputs.shape[1]):
        given = running.run(None, {first: inputs[:, step], **states})
        names = [port["name"] for port in made["outputs"][1:]]
        states = {name.removeprefix("new_"): state for name, state in zip(names, given[1:])}
    return given[0]


def drawn(made, steps):
    """Two sequences that the model takes."""
    random = np.random.default_rng(2026)
    port = made["inputs"][0]
    if port["entries"] == "int64":
        return random.integers(1, 5, (2, steps))
    return random.standard_normal((2, steps, int(port["shape"][-1]))).astype(np.float32)


def apart(found, expected):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return np.abs(found - expected).max() / np.abs(expected).max()


def in_single_precision(whole, few):
    """The graph of single precision with the numbers of few bits of the other."""
    stored = {tensor.name: tensor for tensor in few.graph.initializer}
    replaced = 0
    for tensor in whole.graph.initializer:
        rounded = stored[tensor.name]
        if rounded.data_type == tensor.data_type:
            continue
        weight = numpy_helper.to_array(rounded).astype(np.float32)
        scales = stored.get(f"{tensor.name}.scales")
        if scales is not None:
            scales = np.atleast_2d(numpy_helper.to_array(scales).astype(np.float32))
            group = len(weight) if len(scales) == 1 else block_size(few, tensor.name)
            weight *= np.repeat(scales, group, axis=0)[: len(weight)]
        tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
        replaced += 1
    assert replaced > 0
    return whole


def block_size(model, weight):
    (node,) = [node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] == weight]
    return next(attribute.i for attribute in node.attribute if attribute.name == "block_size")


def check(program, model, declared, causal):
    name = f"{model.parent.name}/{model.name} {' '.join(declared)}"
    whole, made = program.export(model, declared, "--sequence")
    assert whole is not None, made
    inputs = drawn(made, 48)
    expected = program.logits(model, declared, inputs)
    found = session(whole).run(None, {made["inputs"][0]["name"]: inputs})[0]
    errors = {"sequence": apart(found, expected)}
    step, made = program.export(model, declared)
    assert (step is not None) == causal, made
    if step is not None:
        errors["step"] = apart(by_steps(step, made, inputs), expected)
    else:
        assert "bidirectional" in made, made
    for mixing in ("bf16", "int8", "int4", "int3", "int2"):
        few, made = program.export(model, declared, "--sequence", "--mixing", mixing, "--group", "16")
        same, _ = program.export(model, declared, "--sequence")
        first = {made["inputs"][0]["name"]: inputs}
        expected = session(in_single_precision(same, few)).run(None, first)[0]
        errors[mixing] = apart(session(few).run(None, first)[0], expected)
    print(name, " ".join(f"{key} {error:.1e}" for key, error in errors.items()), flush=True)
    assert max(errors.values()) < BOUND, name


def wide(folder):
    """A classifier of 40 channels, so that a row of a map has several scales: that of 4, tiled."""
    random = np.random.default_rng(40)
    tensors = load_file(DATA / "s4d_classifier.safetensors")
    for name, tensor in tensors.items():
        shape = [40 * size // 4 if size in (4, 8) else size for size in tensor.shape]
        tiled = np.tile(tensor, [new // old for new, old in zip(shape, tensor.shape)])
        if tensor.ndim > 1 and "kernel" not in name:
            tiled = random.standard_normal(shape) / np.sqrt(shape[1])
        tensors[name] = np.ascontiguousarray(tiled, dtype=np.float32)
    save_file(tensors, folder / "wide.safetensors")
    return folder / "wide.safetensors"


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = Program(sys.argv[1], Path(folder))
        for case in [*CASES, (wide(program.folder), [], True)]:
            check(program, *case)


if __name__ == "__main__":
    main()
