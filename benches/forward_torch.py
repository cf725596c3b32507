"""Forward passes of a published S4D classifier in PyTorch, beside `compress-model evaluate`.

    python benches/forward_torch.py CKPT DATA.safetensors [--threads 1] [--limit 1000]

CKPT is an S4Model of state-spaces/s4's example.py (post-norm), DATA holds `inputs` (B, L, d) and `labels`. The
public module in evaluation mode without gradients, kernels made in every pass as it does, at several batch
sizes; prints sequences a CPU second of each, and the accuracy. Needs torch and safetensors.
"""

import argparse
import pathlib
import sys
import time

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "reference"))
from s4_torch import S4D, S4Model  # noqa: E402


def model_of(path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("model", state)
    state = {name.removeprefix("module."): value for name, value in state.items()}
    channels, modes = state["s4_layers.0.kernel.A_imag"].shape
    count = sum(name.endswith("kernel.C") for name in state)
    width, classes = state["encoder.weight"].shape[1], state["decoder.weight"].shape[0]
    model = S4Model(width, classes, channels, [S4D(channels, modes) for _ in range(count)])
    model.load_state_dict(state)
    return model.eval()


@torch.inference_mode()
def timed(model, inputs, labels, batch):
    model(inputs[:batch])
    start, right = time.process_time(), 0
    for u, y in zip(inputs.split(batch), labels.split(batch)):
        right += int((model(u).argmax(dim=-1) == y).sum())
    return len(inputs) / (time.process_time() - start), right / len(inputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("data")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model, data = model_of(given.checkpoint), load_file(given.data)
    inputs, labels = data["inputs"][: given.limit].float(), data["labels"][: given.limit]
    for batch in (4, 16, 64, 128):
        rate, accuracy = timed(model, inputs, labels, batch)
        print(f"batch {batch:3}: {rate:7.1f} sequences a CPU second, accuracy {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()
