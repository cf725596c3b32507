"""One training step of stacked recurrent cells in PyTorch: the counterpart of benches/cells.rs.

    python3 benches/cells_torch.py --cell lstm --hidden 256 --threads 1
"""

import argparse
import json
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--cell", default="lstm", choices=["rnn", "lstm", "gru"])
for name, default in [("inputs", 51), ("hidden", 256), ("layers", 3), ("len", 20)]:
    parser.add_argument(f"--{name}", type=int, default=default)
for name, default in [("batch", 32), ("steps", 10), ("threads", 1)]:
    parser.add_argument(f"--{name}", type=int, default=default)
given = parser.parse_args()
torch.set_num_threads(given.threads)
torch.manual_seed(0)
kind = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[given.cell]
cell = kind(given.inputs, given.hidden, num_layers=given.layers, batch_first=True)
head = torch.nn.Linear(given.hidden, 1)
parameters = list(cell.parameters()) + list(head.parameters())
optimiser = torch.optim.AdamW(parameters, lr=4e-6)
x = torch.rand(given.batch, given.len, given.inputs) - 0.5
whole, forward, backward = [], [], []
for step in range(given.steps + 2):
    if step == 2:
        cpu = time.process_time()
    start = time.perf_counter()
    out, _ = cell(x)
    loss = head(out.mean(1)).square().mean()
    forward.append(time.perf_counter() - start)
    optimiser.zero_grad()
    loss.backward()
    backward.append(time.perf_counter() - start - forward[-1])
    optimiser.step()
    whole.append(time.perf_counter() - start)
cpu = 1e3 * (time.process_time() - cpu) / given.steps
whole, forward, backward = [sorted(times[2:]) for times in (whole, forward, backward)]
print(
    json.dumps(
        {
            "cell": given.cell,
            "hidden": given.hidden,
            "len": given.len,
            "ms": round(1e3 * whole[0], 2),
            "median": round(1e3 * whole[len(whole) // 2], 2),
            "cpu": round(cpu, 2),
            "forward": round(1e3 * forward[0], 2),
            "backward": round(1e3 * backward[0], 2),
        }
    )
)
