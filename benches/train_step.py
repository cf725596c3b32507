#!/usr/bin/env python3
"""One training step of hankelite against PyTorch on the same processor, taking turns.

    cargo bench -p hankelite-train --bench train_step --no-run     # prints the path of the program
    python3 benches/train_step.py PROGRAM [--rounds 3] [--threads 1] [--cuda]

needs torch. With --cuda the program, built with that feature, and PyTorch run on the first GPU,
PyTorch with torch.compile, or without where that fails, which is printed; then seconds are of the wall
clock. Every round runs, for each setting, our program, PyTorch with the kernel as the public layers form
it (a complex exponential of an H x N x L tensor), and PyTorch with the two-level kernel (powers as two
short tables and one real matrix product). Prints, as Markdown, the CPU seconds of a step (the median of
the rounds' medians) and the largest peak of resident memory.
"""
import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time

SETTINGS = [
    ("dss_exp", 16, 16, 2048, 16),
    ("dss_exp", 16, 128, 2048, 16),
    ("s4d", 128, 64, 1024, 32),
]
LAYERS, CLASSES = 4, 10


def network(torch, family, h, n, two_level):
    """The public S4D and DSS-exp layers, pre-norm, plain output, mean pooling."""
    nn, functional = torch.nn, torch.nn.functional
    modes = n // 2 if family == "s4d" else n

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            low, high = math.log(1e-3), math.log(1e-1)
            self.log_step = nn.Parameter(low + torch.rand(h) * (high - low))
            rows = h if family == "s4d" else 1
            self.log_decay = nn.Parameter(torch.full((rows, modes), math.log(0.5)))
            self.frequency = nn.Parameter(math.pi * torch.arange(modes).float().repeat(rows, 1))
            self.weights = nn.Parameter(torch.randn(h, modes, 2))
            self.feedthrough = nn.Parameter(torch.randn(h))
            self.norm = nn.LayerNorm(h)
            self.out = nn.Conv1d(h, h, 1)

        def kernel(self, length):
            pole = -self.log_decay.exp() + 1j * self.frequency
            z = pole * self.log_step.exp()[:, None]
            weights = torch.view_as_complex(self.weights) * (z.exp() - 1) / pole
            weights = 2 * weights if family == "s4d" else weights
            if not two_level:
                powers = (z[..., None] * torch.arange(length, device=z.device)).exp()
                return torch.einsum("hn,hnl->hl", weights, powers).real
            short = math.ceil(math.sqrt(length))
            far = weights[..., None] * (z[..., None] * short * torch.arange(-(-length // short), device=z.device)).exp()
            near = (z[..., None] * torch.arange(short, device=z.device)).exp()
            far = torch.cat([far.real, -far.imag], 1).transpose(1, 2)
            return (far @ torch.cat([near.real, near.imag], 1)).reshape(h, -1)[:, :length]

        def forward(self, x):
            u = self.norm(x.transpose(1, 2)).transpose(1, 2)
            length = u.shape[-1]
            spectra = torch.fft.rfft(u, 2 * length) * torch.fft.rfft(self.kernel(length), 2 * length)
            y = torch.fft.irfft(spectra, 2 * length)[..., :length] + u * self.feedthrough[:, None]
            return x + self.out(functional.gelu(y))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(1, h), nn.Linear(h, CLASSES)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, steps):
            x = self.encoder(steps).transpose(1, 2)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(-1))

    return Network()


def compiled(torch, net, steps):
    """The network compiled, or as it is where its forward and backward pass do not compile."""
    forward = torch.compile(net)
    try:
        forward(steps).sum().backward()
        return forward
    except Exception as error:  # of the compiler's many kinds
        lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
        print("torch.compile failed, run without:", *filter(None, lines[:12]), file=sys.stderr)
        return net


def worker(family, h, n, length, batch, two_level, threads, cuda):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if cuda:
        torch.set_default_device("cuda")
    net = network(torch, family, h, n, two_level)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    steps = torch.rand(batch, length, 1) - 0.5
    labels = torch.randint(0, CLASSES, (batch,))
    forward = compiled(torch, net, steps) if cuda else net
    cpu, wall = [], []
    for step in range(12 if cuda else 7):
        start = time.perf_counter(), time.process_time()
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(forward(steps), labels).backward()
        optimiser.step()
        if cuda:
            torch.cuda.synchronize()
        if step >= 2:
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    median = statistics.median
    print(json.dumps({"cpu": {"median": median(cpu)}, "wall": {"median": median(wall)},
                      "rss_train_mib": peak}))


def run(command, threads):
    names = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | {name: str(threads) for name in names}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    failures = [line for line in done.stderr.splitlines() if line.startswith("torch.compile failed")]
    print(*failures[:1], sep="\n", end="\n" if failures else "", file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compare(program, setting, threads, rounds, cuda):
    family, h, n, length, batch = setting
    ours = [program, "--family", family, "--h", h, "--n", n, "--len", length, "--batch", batch]
    ours = list(map(str, ours + ["--layers", LAYERS, "--classes", CLASSES]))
    ours += ["--cuda"] if cuda else []
    torch = [[sys.executable, __file__, "--worker", json.dumps([*setting, two_level, threads, cuda])]
             for two_level in (False, True)]
    results = [[], [], []]
    for _ in range(rounds):
        for place, command in zip(results, [ours, *torch]):
            place.append(run(command, threads))
    key = "cpu" if threads == 1 and not cuda else "wall"
    time_of = [statistics.median(r[key]["median"] for r in each) for each in results]
    peaks = [max(r["rss_train_mib"] for r in each) for each in results]
    name = f"{family} H {h} N {n} L {length} batch {batch}"
    print(f"| {name} | {threads} | {time_of[0]:.4f} s, {peaks[0]:.0f} MiB |", end="")
    for seconds, peak in zip(time_of[1:], peaks[1:]):
        print(f" {seconds:.4f} s ({seconds / time_of[0]:.1f}x), {peak:.0f} MiB |", end="")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?")
    parser.add_argument("--worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--cuda", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(*json.loads(arguments.worker))
    print("| setting | threads | hankelite | PyTorch as published | PyTorch, two-level kernel |")
    print("|---|---|---|---|---|")
    for threads in arguments.threads:
        for setting in SETTINGS:
            compare(arguments.program, setting, threads, arguments.rounds, arguments.cuda)


if __name__ == "__main__":
    main()
