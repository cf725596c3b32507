"""What fewer modes save in one long filter of Evo 2, StripedHyena and Evo 1: bytes, milliseconds, kernel error.

    python tests/reference/prefill.py
    python tests/reference/prefill.py --program target/release/compress-model
    python tests/reference/prefill.py --write FOLDER

For 16, 8, 6 and 4 modes the script measures four parts of one layer at batch 1, by the public formulas:

    filter       K[l] = Re sum_n r_n a_n^l for l below L       ParallelHyenaFilter, HyenaCascade: compute_filter
    prefill      x_n[L-1] = sum_l a_n^(L-1-l) u[l] by FFT      HyenaInferenceEngine: prefill_via_modal_fft
    recurrence   the same state, one step for each input       prefill_via_direct_recurrence
    decoding     x_n = a_n x_n + u,  y = x2 (Re sum_n r_n x_n + D u)                      step_iir

StripedHyena and Evo 1 (togethercomputer/stripedhyena) have complex poles and a state in complex64; Evo 2
(Zymrael/vortex) has real poles, kept as logarithms, and a state in float32. u is x1 v, the first gate.
The sizes take turns within each round, and a ratio to 16 modes is one of the same round, so that other work on the
machine changes it little. The times are minima, the ratios medians with their quartiles. Inputs are in float32.
Convolution and dense maps, which do not depend on the modes, are printed for comparison.

Poles and residues are random. Those of Evo 2 are as in make_evo2.py. Those of StripedHyena have radii uniform
in 0.5 to 0.99, angles uniform on the circle and Gaussian residues, as ParallelComplexModalFilter of
Zymrael/savanna starts its training. `--write` puts one layer of each into FOLDER, and `--program` also prints
the kernel errors that this program reports for them. Before any time is taken, FFT, recurrence and single tokens
have to give the same states and outputs. Needs torch, numpy, 3 GB of memory and seven minutes for each number of
threads; more threads than free cores take much longer.
"""

import argparse
import json
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

MODES = (16, 8, 6, 4)
WIDTH, HIDDEN = 4096, 11264
FEEDTHROUGH = 0.5


def first(n, values, element):
    """The first n modes, in memory of their own: strides of 16 would slow the smaller sizes."""
    return torch.tensor(np.ascontiguousarray(values[:, :n]), dtype=element)


class Evo2:
    """Real poles as logarithms (H, N), residues (H, N), state (H, N) in float32."""

    name, file, state_bytes, element = "Evo 2", "evo2.safetensors", 4, torch.float32

    def __init__(self, channels, n):
        rng = np.random.default_rng(0)
        logarithms = -np.exp(rng.uniform(np.log(1e-4), np.log(3), (channels, MODES[0])))
        residues = 0.1 * rng.standard_normal((channels, MODES[0]))
        self.n, self.poles, self.residues = n, first(n, logarithms, torch.float32), first(n, residues, torch.float32)

    def powers(self, length):
        return (self.poles[..., None] * torch.arange(length)).exp()

    def filter(self, length):
        return (self.residues[..., None] * self.powers(length)).sum(1)

    def step_poles(self):
        # The public step takes the exponentials anew for each token.
        return self.poles.exp()

    def tensors(self):
        yield "log_poles", self.poles[..., None].numpy()
        yield "residues", self.residues.numpy()


class StripedHyena:
    """Complex poles (H, N), residues (H, N), state (H, N) in complex64."""

    name, file, state_bytes, element = "StripedHyena, Evo 1", "stripedhyena.safetensors", 8, torch.complex64

    def __init__(self, channels, n):
        rng = np.random.default_rng(0)
        radii, angles = rng.uniform((0.5, 0), (0.99, 1), (channels, MODES[0], 2)).transpose(2, 0, 1)
        real, imaginary = rng.standard_normal((2, channels, MODES[0])) / 4
        self.n, self.poles = n, first(n, radii * np.exp(2j * np.pi * angles), torch.complex64)
        self.residues = first(n, real + 1j * imaginary, torch.complex64)

    def powers(self, length):
        return self.poles[..., None] ** torch.arange(length)

    def filter(self, length):
        # The public filter takes exponentials of logarithms, the public prefill powers of the poles.
        powers = (self.poles.log()[..., None] * torch.arange(length)).exp()
        return (self.residues[..., None] * powers).real.sum(1)

    def step_poles(self):
        return self.poles

    def tensors(self):
        yield "poles", torch.view_as_real(self.poles)[:, :, None].numpy()
        yield "residues", torch.view_as_real(self.residues)[:, :, None].numpy()


def prefill(layer, spectrum, length):
    """The state after `length` inputs. Their spectrum (H, 2L) is that of the convolution, which has it anyway."""
    powers = layer.powers(length)
    # The original repeats the modes over the sequences of the batch: a copy, at batch 1 too.
    modes = torch.fft.fft(powers, n=2 * length).repeat(1, 1, 1)
    states = torch.fft.ifft(spectrum[:, None] * modes, n=2 * length)[..., length - 1]
    return states if layer.element.is_complex else states.real.contiguous()


def convolution(kernel, inputs, length):
    """The outputs of the prompt, and the spectrum that `prefill` takes; no part of it depends on the modes."""
    spectrum = torch.fft.fft(inputs, n=2 * length)
    response = torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum[:, : length + 1] * response, n=2 * length)[:, :length], spectrum


def decode(layer, state, x2, x1, v):
    """One token: output and next state."""
    u = x1 * v
    state = layer.step_poles() * state + u[:, None]
    return x2 * ((layer.residues * state).sum(-1).real + FEEDTHROUGH * u), state


def recurrence(layer, inputs):
    """State and outputs of a prompt by steps, real and imaginary parts apart.

    The original has the same products, and first repeats the inputs over modes and parts. But it overwrites the real
    parts before it takes the imaginary ones, and leaves these out of the outputs: it is right for real systems only.
    """
    poles, residues = (torch.view_as_real(p.to(torch.complex64)) for p in (layer.step_poles(), layer.residues))
    drive = inputs[..., None, None].repeat(1, 1, layer.n, 2)
    drive[..., 1] = 0
    state, outputs = torch.zeros_like(poles), torch.empty_like(inputs)
    for l in range(inputs.shape[1]):
        real = poles[..., 0] * state[..., 0] - poles[..., 1] * state[..., 1] + drive[:, l, :, 0]
        imaginary = poles[..., 0] * state[..., 1] + poles[..., 1] * state[..., 0] + drive[:, l, :, 1]
        state[..., 0], state[..., 1] = real, imaginary
        outputs[:, l] = (residues[..., 0] * real - residues[..., 1] * imaginary).sum(-1)
    return torch.view_as_complex(state), outputs


def check(family, n):
    """The parts have to agree: the state and the outputs by FFT, by recurrence and by single tokens."""
    layer, length = family(5, n), 200
    inputs, one = torch.randn(5, length), torch.ones(5)
    outputs, spectrum = convolution(layer.filter(length), inputs, length)
    state = torch.zeros(5, n, dtype=layer.element)
    for l in range(length):
        output, state = decode(layer, state, one, one, inputs[:, l])
    stepped, stepped_outputs = recurrence(layer, inputs)
    for found, expected in (
        (prefill(layer, spectrum, length), state),
        (stepped, state.to(torch.complex64)),
        (stepped_outputs, outputs),
        (output, outputs[:, -1] + FEEDTHROUGH * inputs[:, -1]),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def turns(job, sizes, repeats, within=1):
    """Seconds (repeats, sizes) of `job(n)`: the sizes take turns, each other round backwards."""
    seconds = np.zeros((repeats, len(sizes)))
    for n in sizes:
        job(n)
    for i in range(repeats):
        for k in range(len(sizes))[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            for _ in range(within):
                job(sizes[k])
            seconds[i, k] = (time.perf_counter() - start) / within
    return seconds


def line(what, seconds):
    """Least milliseconds of each size, and the time of 16 modes over its own: median and quartiles."""
    cells = [f"{1e3 * seconds[:, 0].min():9.3f}"]
    for k in range(1, len(MODES)):
        low, middle, high = np.quantile(seconds[:, 0] / seconds[:, k], (0.25, 0.5, 0.75))
        cells.append(f"{1e3 * seconds[:, k].min():9.3f} x{middle:4.2f} ({low:4.2f}-{high:4.2f})")
    print(f"  {what:44}" + " ".join(cells), flush=True)


def measure(family, options):
    """The four parts of one family."""
    length, repeats = options.length, options.repeats
    layers, wide = ({n: family(channels, n) for n in MODES} for channels in (options.channels, WIDTH))
    spectrum = torch.fft.fft(torch.randn(options.channels, length), n=2 * length)
    here = f"{options.channels} channels, L {length}"
    line(f"filter, {here}", turns(lambda n: layers[n].filter(length), MODES, repeats))
    line(f"prefill, {here}", turns(lambda n: prefill(layers[n], spectrum, length), MODES, repeats))
    if family is StripedHyena:
        # The recurrence of vortex needs poles of two parts, which Evo 2 does not have.
        prompt = torch.randn(WIDTH, options.steps)
        seconds = turns(lambda n: recurrence(wide[n], prompt), MODES, repeats)
        line(f"recurrence, {WIDTH} channels, one step", seconds / options.steps)
    gates, states = torch.randn(3, WIDTH), {n: torch.zeros(WIDTH, n, dtype=family.element) for n in MODES}

    def token(n):
        _, states[n] = decode(wide[n], states[n], *gates)

    line(f"decoding, {WIDTH} channels, one token", turns(token, MODES, 20 * repeats, within=20))


def measure_rest(options):
    """What does not depend on the modes: the convolution, and the dense maps of a block of Evo 2 7B."""
    kernel, inputs = torch.randn(2, options.channels, options.length)
    weight, token, prompt = torch.randn(3 * WIDTH, WIDTH), torch.randn(1, WIDTH), torch.randn(128, WIDTH)
    # Projections (3H, H), output (H, H) and the gated map of three matrices: one is measured, all count.
    all_maps = (4 * WIDTH + 3 * HIDDEN) / (3 * WIDTH)
    for name, factor, job in (
        (f"convolution, {options.channels} channels", 1, lambda n: convolution(kernel, inputs, options.length)),
        ("dense maps of one block, one token", all_maps, lambda n: token @ weight.T),
        ("the same, each of 128 tokens together", all_maps / 128, lambda n: prompt @ weight.T),
    ):
        seconds = factor * turns(job, (0,), options.repeats).min()
        print(f"  {name:44}{1e3 * seconds:9.3f}", flush=True)


def resident(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(row for row in status.splitlines() if row.startswith(field)).split()[1])


def print_bytes(family, options):
    """Bytes of the state, and on Linux the peak of the prefill over H N L."""
    print(f"  {f'state, {WIDTH} channels, bytes':44}" + " ".join(f"{WIDTH * n * family.state_bytes:9,}" for n in MODES))
    if not Path("/proc/self/clear_refs").exists():
        return
    spectrum, peaks = torch.randn(options.channels, 2 * options.length) + 0j, []
    for n in MODES:
        layer = family(options.channels, n)
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
        before = resident("VmRSS:")
        prefill(layer, spectrum, options.length)
        peaks.append((resident("VmHWM:") - before) / (options.channels * n * options.length))
    print(f"  {'peak of the prefill, bytes over H N L':44}" + " ".join(f"{p:9.1f}" for p in peaks))


def write(family, path, channels=256):
    """One layer of 16 modes in the public names and shapes, as safetensors."""
    header, data = {}, b""
    for name, values in [*family(channels, MODES[0]).tensors(), ("D", np.zeros(channels))]:
        end = len(data) + 4 * values.size
        header[f"blocks.2.filter.{name}"] = dict(dtype="F32", shape=values.shape, data_offsets=(len(data), end))
        data += np.ascontiguousarray(values, dtype="<f4").tobytes()
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def print_errors(program, length):
    """Relative kernel errors, ||K - K'|| over ||K|| for all channels and for the median and worst channel."""
    with tempfile.TemporaryDirectory() as folder:
        for family in (Evo2, StripedHyena):
            path = Path(folder) / family.file
            write(family, path)
            for n in MODES[1:]:
                command = [program, "reduce", str(path), "--order", str(n), "--length", str(length), "--dry-run"]
                run = subprocess.run([*command, "--format", "json", "-q"], check=True, capture_output=True)
                layer = json.loads(run.stdout)["layers"][0]
                channels = [c["kernel_error"] / c["kernel_norm"] for c in layer["channels"]]
                print(
                    f"  {family.name:20} {n:2} modes: kernels change by {layer['relative_kernel_error']:.3%}"
                    f" (channels: median {np.median(channels):.3%}, worst {max(channels):.3%})"
                )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--channels", type=int, default=256, help="channels of filter and prefill, of a layer's 4096")
    parser.add_argument("--length", type=int, default=8192, help="length of the prompt")
    parser.add_argument("--steps", type=int, default=64, help="length of the prompt that is read by steps")
    parser.add_argument("--repeats", type=int, default=9, help="rounds")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--program", help="compress-model, for the kernel errors")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the two files, and measure nothing")
    return parser.parse_args()


@torch.inference_mode()
def main():
    options = arguments()
    torch.manual_seed(0)
    if options.write:
        for family in (Evo2, StripedHyena):
            options.write.mkdir(parents=True, exist_ok=True)
            write(family, options.write / family.file)
        return
    for n in MODES:
        check(Evo2, n)
        check(StripedHyena, n)
    if options.program:
        print_errors(options.program, options.length)
    print(f"milliseconds at {MODES} modes; x: how often faster than at 16, median (quartiles)")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for family in (Evo2, StripedHyena):
            print(f"{family.name}, {threads} thread(s)", flush=True)
            print_bytes(family, options)
            measure(family, options)
        print(f"independent of the modes, {threads} thread(s)", flush=True)
        measure_rest(options)


main()
