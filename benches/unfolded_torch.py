#!/usr/bin/env python3
"""One training step of unfolded networks against PyTorch on the same processor, taking turns.

    cargo bench -p hankelite-train --bench unfolded --no-run      # prints the path of the program
    python3 benches/unfolded_torch.py PROGRAM [--rounds 3] [--hidden 256 1024]

needs torch. PyTorch runs the same network in its natural form: a loop over steps and layers, W and U
never formed (`--formed` forms them once for each batch, as equations (10) to (12) print them).
Prints, as Markdown, the CPU milliseconds of a step on one thread: the least of the rounds' medians.
"""
import argparse
import json
import os
import subprocess
import sys
import time

NETS = ["reweighted", "l1-l1", "sista"]
SIGNAL, INPUTS, LAYERS, BATCH, LENGTH = 256, 51, 3, 32, 20


def network(torch, net, hidden, formed):
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.sensing = nn.Parameter(torch.randn(INPUTS, SIGNAL) / INPUTS**0.5)
            self.dictionary = nn.Parameter(torch.randn(SIGNAL, hidden) / SIGNAL**0.5)
            size = SIGNAL if net == "sista" else hidden
            self.correlation = nn.Parameter(torch.eye(size))
            self.initial = nn.Parameter(torch.zeros(hidden))
            norm = torch.linalg.matrix_norm((self.sensing @ self.dictionary).detach(), 2)
            self.log_step = nn.Parameter(2 * norm.log())
            self.log_omegas = nn.Parameter(torch.full((2,), 0.1).log())
            if net == "reweighted":
                eye = torch.eye(hidden)
                self.reweighting = nn.ParameterList(nn.Parameter(eye.clone()) for _ in range(LAYERS))
                self.log_weights = nn.Parameter(torch.zeros(LAYERS, hidden))

        def layer_maps(self, j, step, omega2):
            """h, x, p -> u for each layer."""
            q = self.dictionary
            if formed:
                w = torch.eye(hidden) - j.T @ j / step
                if net == "sista":
                    w = w - omega2 / step * (q.T @ q)
                zs = getattr(self, "reweighting", [None] * LAYERS)
                ws = [w if z is None else z @ w for z in zs]
                us = [j.T / step if z is None else z @ j.T / step for z in zs]
                more = omega2 / step if net == "sista" else 0.0
                return [lambda h, x, p, w=w, u=u: h @ w.T + x @ u.T + more * p for w, u in zip(ws, us)]
            if net == "sista":
                def one(h, x, p, z):
                    return h - ((h @ j.T - x) @ j + omega2 * ((h @ q.T - z) @ q)) / step
                return [one] * LAYERS
            if net == "l1-l1":
                return [lambda h, x, p: h - (h @ j.T - x) @ j / step] * LAYERS
            return [lambda h, x, p, z=z: (h - (h @ j.T - x) @ j / step) @ z.T for z in self.reweighting]

        def forward(self, signals):
            x = signals @ self.sensing.T
            j, q, step = self.sensing @ self.dictionary, self.dictionary, self.log_step.exp()
            omega1, omega2 = self.log_omegas.exp()
            g = self.log_weights.exp() if net == "reweighted" else [1.0] * LAYERS
            h = self.initial.expand(len(signals), hidden)
            if net == "sista":
                p_matrix = q.T @ self.correlation @ q if formed else None
                fq = self.correlation @ q
            layers, codes = self.layer_maps(j, step, omega2), []
            for t in range(x.shape[1]):
                if net == "sista":
                    z = None if formed else h @ fq.T
                    p = h @ p_matrix.T if formed else z @ q
                    h = p
                    for layer in layers:
                        u = layer(h, x[:, t], p) if formed else layer(h, x[:, t], p, z)
                        h = soft(u, omega1 / step)
                else:
                    p = h @ self.correlation.T
                    low, high = p.clamp(max=0), p.clamp(min=0)
                    sign = torch.where(p >= 0, 1.0, -1.0)
                    h = p
                    for layer, weight in zip(layers, g):
                        u = layer(h, x[:, t], p)
                        a, b = omega1 * weight / step, omega2 * weight / step
                        middle = torch.minimum(torch.maximum(u - sign * (a - b), low), high)
                        h = middle + (u + (a + b) - low).clamp(max=0) + (u - (a + b) - high).clamp(min=0)
                codes.append(h)
            return torch.stack(codes, 1) @ q.T

    def soft(u, threshold):
        return torch.relu(u - threshold) - torch.relu(-u - threshold)

    return Net()


def worker(net, hidden, formed, threads):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = network(torch, net, hidden, formed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    signals = torch.rand(BATCH, LENGTH, SIGNAL)
    cpu = []
    for step in range(9):
        start = time.process_time()
        optimiser.zero_grad(set_to_none=True)
        (model(signals) - signals).square().mean().backward()
        optimiser.step()
        if step >= 2:
            cpu.append(1e3 * (time.process_time() - start))
    print(json.dumps({"median": sorted(cpu)[len(cpu) // 2]}))


def run(command):
    environment = os.environ | {name: "1" for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS")}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?")
    parser.add_argument("--worker")
    parser.add_argument("--formed", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 1024])
    given = parser.parse_args()
    if given.worker:
        return worker(*json.loads(given.worker))
    print("| net | n_hid | hankelite | PyTorch | ratio |")
    print("|---|---|---|---|---|")
    for net in NETS:
        for hidden in given.hidden:
            ours = [given.program, "--net", net, "--hidden", str(hidden), "--steps", "7"]
            job = json.dumps([net, hidden, given.formed, 1])
            theirs = [sys.executable, __file__, "--worker", job]
            times = [[run(ours), run(theirs)] for _ in range(given.rounds)]
            own, other = (min(column) for column in zip(*times))
            print(f"| {net} | {hidden} | {own:.1f} ms | {other:.1f} ms | {other / own:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
