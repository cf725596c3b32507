#!/usr/bin/env python3
"""One step of a classifier of example.py in real arithmetic, exported from torch to ExecuTorch and LiteRT.

    python torch_step.py small.safetensors COMPRESS_MODEL

Runs whichever of the two is installed, sample by sample, and compares the logits with `compress-model stream`.
`Step` has no complex number and no convolution, and takes and gives its states. Norm after the residual, mean
of the steps. Without either runtime it fails.
"""

import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, glu, layer_norm

SAMPLES = 256


class Step(torch.nn.Module):
    """sample (1,), states (layers, 2, H, N), steps (1,), sum (H,) -> logits and the new three."""

    def __init__(self, tensors):
        super().__init__()
        self.layers = sum(key.startswith("s4_layers.") and key.endswith(".D") for key in tensors)
        for key, tensor in tensors.items():
            self.register_buffer(key.replace(".", "_"), tensor)
        for layer in range(self.layers):
            for name, value in self.discrete(layer).items():
                self.register_buffer(f"{name}_{layer}", value)

    def of(self, layer, name):
        return getattr(self, f"s4_layers_{layer}_{name}")

    def discrete(self, layer):
        """x' = exp(dt A) x + u, y = 2 Re(C (exp(dt A) - 1) / A x), held inputs."""
        poles = -self.of(layer, "kernel_log_A_real").exp() + 1j * self.of(layer, "kernel_A_imag")
        turn = (poles * self.of(layer, "kernel_log_dt").exp()[:, None]).exp()
        out = 2 * torch.view_as_complex(self.of(layer, "kernel_C").contiguous()) * (turn - 1) / poles
        return {"turn_re": turn.real, "turn_im": turn.imag, "out_re": out.real, "out_im": out.imag}

    def forward(self, sample, states, steps, total):
        u = self.encoder_weight @ sample + self.encoder_bias
        new = []
        for layer in range(self.layers):
            of = lambda name: getattr(self, f"{name}_{layer}")  # noqa: E731
            re, im = states[layer, 0], states[layer, 1]
            next_re = of("turn_re") * re - of("turn_im") * im + u[:, None]
            next_im = of("turn_re") * im + of("turn_im") * re
            new.append(torch.stack([next_re, next_im]))
            y = (of("out_re") * next_re - of("out_im") * next_im).sum(1) + self.of(layer, "D") * u
            y = self.of(layer, "output_linear_0_weight")[:, :, 0] @ gelu(y) + self.of(layer, "output_linear_0_bias")
            norm = getattr(self, f"norms_{layer}_weight"), getattr(self, f"norms_{layer}_bias")
            u = layer_norm(u + glu(y, 0), u.shape, *norm)
        steps, total = steps + 1, total + u
        logits = self.decoder_weight @ (total / steps) + self.decoder_bias
        return logits, torch.stack(new), steps, total


def executorch(step, example, path):
    from executorch.exir import to_edge
    from executorch.runtime import Runtime

    program = to_edge(torch.export.export(step, example)).to_executorch()
    path.write_bytes(program.buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    return lambda *given: method.execute(list(given))


def litert(step, example, path):
    import litert_torch

    converted = litert_torch.convert(step, example)
    converted.export(str(path))
    return lambda *given: [torch.from_numpy(one) for one in converted(*given)]


def run(call, state, signal):
    start = time.perf_counter()
    for sample in signal:
        logits, *state = call(sample.reshape(1), *[one.clone() for one in state])
    return logits, (time.perf_counter() - start) / len(signal)


def main():
    checkpoint, program = sys.argv[1:3]
    step = Step(load_file(checkpoint)).eval()
    width, order = step.turn_re_0.shape
    state = (torch.zeros(step.layers, 2, width, order), torch.zeros(1), torch.zeros(width))
    signal = torch.sin(torch.arange(SAMPLES) / 8)
    text = "\n".join(f"{float(sample):.9g}" for sample in signal)
    said = subprocess.run([program, "--quiet", "stream", checkpoint, "--last"], input=text, text=True, check=True, capture_output=True)
    wanted = torch.tensor([float(word) for word in said.stdout.split()])
    runs = {"torch": (lambda step, *_: step, ""), "ExecuTorch": (executorch, "step.pte"), "LiteRT": (litert, "step.tflite")}
    ran = 0
    for name, (make, file) in runs.items():
        path = Path(checkpoint).with_name(file or "none")
        try:
            call = make(step, (signal[:1], *state), path)
        except ImportError as error:
            print(f"{name:11} not installed: {error.name}")
            continue
        with torch.no_grad():
            logits, seconds = run(call, state, signal)
        apart = float((logits - wanted).abs().max() / wanted.abs().max())
        size = f"{path.stat().st_size:,} bytes" if file else ""
        print(f"{name:11} {apart:.1e} from stream, {seconds * 1e6:.0f} us a step from Python {size}")
        assert apart < 1e-5, name
        ran += bool(file)
    if not ran:
        sys.exit("neither ExecuTorch nor LiteRT is installed: pip install executorch")


if __name__ == "__main__":
    main()
