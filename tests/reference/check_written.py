"""What the record of a reduction says of the written file is what the original formulas measure from it.

    python tests/reference/check_written.py target/release/compress-model

Every layout of tests/data/layouts is reduced by every method: as it is, without D where the layout can
be without one, with a mode that hardly decays, in bfloat16 and in half precision; by captured inputs too.
The kernels of the file and of what is written are computed from their tensors by the formulas of
make_layouts.py, which know nothing of this project, and their distance is compared with the record's
kernel error: to 1 % of itself, and to the rounding that the record states.

Needs torch and safetensors.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from make_layouts import FAMILIES, HERE, s4_v4
from safetensors.torch import load_file, save_file

METHODS = ["balanced", "residualised", "hankel-norm", "h2-optimal", "horizon", "modal-hinf", "modal-h2"]
# Decays that are stored as logarithms.
LOG_DECAYS = ["log_A_real", "log_w_real", "inv_A_real", "A_real", "Lambda_log_neg_re", "nu_log"]
# Layouts that are read without D, and the names of D.
WITHOUT_D = ["s4_v2", "s4_v2_bidirectional", "s4_v3_bilinear", "s4_v4", "s4_v4_softplus_bidirectional",
             "dss_exp_bidirectional", "dss_exp_re_im", "s4d_flat", "mega", "mega_bidirectional"]
# What no method may answer but with one of these sentences.
REFUSALS = ["the method residualised changes D", "expected one of each", "the method changes the feedthrough",
            "can be written", "cannot be written", "have the same modes", "modes that do not decay", "rounding spoilt",
            "expected a diagonal matrix"]
LENGTH = 128


def last(name):
    return name.replace("/", ".").split(".")[-1]


def is_d(name):
    return last(name) in ("D", "omega")


def variants(name, tensors, settings):
    """The file in its forms: a name, and its tensors."""
    yield "as it is", tensors
    if name in WITHOUT_D:
        yield "without D", {key: value for key, value in tensors.items() if not is_d(key)}
    logs = [key for key in tensors if last(key) in LOG_DECAYS and settings.get("real_transform", "exp") == "exp"]
    # The formula of a real pole divides by it, and that of the softmax by its powers.
    if logs and name not in ("s4_v4_real", "s4_v3_dss"):
        slow = {key: value.clone() for key, value in tensors.items()}
        for key in logs:
            slow[key].view(-1)[3] = -40.0
        yield "a slow mode", slow
    for kind in (torch.bfloat16, torch.float16):
        halved = {k: v.to(kind) if v.is_floating_point() else v for k, v in tensors.items()}
        yield str(kind), halved


def kernels(formula, tensors, settings, length, like):
    """Forward, backward and D of a file, one row for each pair of input and output."""
    full = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    for key, value in like.items():
        if is_d(key) and key not in full:
            full[key] = torch.zeros_like(value).float()
    return formula(full, settings, length)


def distance(before, after):
    """The norm of the difference, D counted with the first sample, and the norm without D."""
    square = size = 0.0
    for part in ("forward", "backward"):
        if part in before:
            difference = after[part] - before[part]
            if part == "forward":
                difference[..., 0] += after["d"] - before["d"]
            square += difference.double().square().sum().item()
            size += before[part].double().square().sum().item()
    return math.sqrt(square), math.sqrt(size)


def flags(settings):
    words = []
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += [f"--{key.replace('_', '-')}", text]
    return words


class Case:
    """One file and one way to reduce it."""

    def __init__(self, program, name, tensors, place):
        self.program, self.name, self.place = program, name, place
        self.formula, self.settings, _ = FAMILIES[name]
        self.original = load_file(HERE / f"{name}.safetensors")
        self.tensors = tensors
        save_file({k: v.contiguous() for k, v in tensors.items()}, place / "in.safetensors")

    def run(self, *words):
        output = self.place / "out.safetensors"
        output.unlink(missing_ok=True)
        command = [self.program, "reduce", str(self.place / "in.safetensors"), "--order", "3", "-o", str(output),
                   "--format", "json", *flags(self.settings), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout), load_file(output)
        assert done.returncode == 1, done.stderr
        assert any(text in done.stderr for text in REFUSALS), done.stderr
        assert not output.exists()
        return None

    def check(self, *words):
        """What was measured, and what the record says; nothing where the method was refused."""
        made = self.run(*words)
        if made is None:
            return None
        document, written = made
        channels = [channel for layer in document["layers"] for channel in layer["channels"]]
        recorded = math.sqrt(sum(channel["kernel_error"] ** 2 for channel in channels))
        length = document["kernel_length"]
        before = kernels(self.formula, self.tensors, self.settings, length, self.original)
        after = kernels(self.formula, written, self.settings, length, self.original)
        measured, size = distance(before, after)
        allowed = 0.01 * recorded + document["rounding_error"] * size + 1e-5 * size
        assert abs(measured - recorded) <= allowed, (
            f"{self.name} {words}: measured {measured / size:.6f}, recorded {recorded / size:.6f}")
        # Residues of an optimum may nearly cancel: the record says how far rounding changes them.
        assert document["rounding_error"] < 0.02 or "h2-optimal" in words, document["rounding_error"]
        return document


def check_all(program, place):
    """How many cases were right and refused, and what was wrong."""
    passed = refused = 0
    failures = []
    for name, (_, settings, _) in FAMILIES.items():
        if "dplr" in name:
            continue
        for form, tensors in variants(name, load_file(HERE / f"{name}.safetensors"), settings):
            case = Case(program, name, tensors, place)
            for method in METHODS:
                for time in ["discrete", "continuous"][: 1 if method == "horizon" else 2]:
                    try:
                        if case.check("--method", method, "--time", time) is None:
                            refused += 1
                        else:
                            passed += 1
                    except AssertionError as error:
                        failures.append(f"{name}, {form}, {method}, {time}: {error}")
    return passed, refused, failures


def main():
    with tempfile.TemporaryDirectory() as folder:
        passed, refused, failures = check_all(sys.argv[1], Path(folder))
    print("\n".join(failures))
    print(f"refused by name: {refused}")
    print(f"{passed} passed, {len(failures)} failed")
    sys.exit(1 if failures or passed < 500 else 0)


if __name__ == "__main__":
    main()
