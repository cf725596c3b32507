"""Reduce a checkpoint and retrain it in your own distributed trainer.

    torchrun --nproc-per-node 2 retrain_ddp.py --checkpoint model.safetensors --output run
    torchrun ... retrain_ddp.py --checkpoint model.safetensors --output run --backend nccl

Every process gathers the statistics of its own share of the data; they are added up by
torch.distributed, so that all processes reduce to the same weights. A run that was killed goes on
where its last checkpoint was made. The network is the S4Model of example.py; put your own in
`build`, and your data in `batches`.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

import hankelite as hk

# The public formulas of S4D, as this repository keeps them for its tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "reference"))
from s4_torch import S4D, S4Model  # noqa: E402


def build(state, order):
    """The network of a state dict with layers of so many modes."""
    layers = sum(name.endswith("kernel.log_dt") for name in state)
    channels, inputs = state["encoder.weight"].shape
    outputs = state["decoder.weight"].shape[0]
    model = S4Model(inputs, outputs, channels, [S4D(channels, order) for _ in range(layers)])
    return model


def batches(step, rank, world, count=16, steps=128):
    """Waves of ten frequencies, and which; another share on every process."""
    random = torch.Generator().manual_seed(step * world + rank)
    labels = torch.randint(0, 10, (count,), generator=random)
    phase = 6.3 * torch.rand(count, 1, generator=random)
    waves = torch.sin(torch.arange(steps) * 0.05 * (1 + labels[:, None]) + phase)
    noise = 0.3 * torch.randn(count, steps, generator=random)
    return (waves + noise)[..., None], labels


def reduced(options, device, rank, world):
    """The checkpoint with fewer states, the same on all ranks."""
    state = {n: torch.as_tensor(t) for n, t in hk.read(options.checkpoint).state_dict().items()}
    modes = state["s4_layers.0.kernel.C"].shape[1]
    model = build(state, modes).to(device).eval()
    model.load_state_dict(state)
    with torch.no_grad(), hk.torch.listen(model) as statistics:
        for step in range(options.calibrate):
            model(batches(step, rank, world)[0].to(device))
    small = hk.reduce(model, order=options.order, statistics=statistics.all_reduce())
    small.apply_()
    if rank == 0:
        print(f"{modes} -> {options.order} states, {statistics.sequences * world} sequences")
    return model


def save(path, content):
    """Whole or not at all."""
    torch.save(content, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--order", type=int, default=8)
    parser.add_argument("--calibrate", type=int, default=4, help="batches on every process")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--stop-at", type=int, help="stop there, as a kill would")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    options = parser.parse_args()
    distributed.init_process_group(options.backend)
    rank, world = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    options.output.mkdir(parents=True, exist_ok=True)
    kept, start = options.output / "last.pt", 0
    known = torch.load(kept, map_location=device, weights_only=True) if kept.exists() else None
    if known is None:
        model = reduced(options, device, rank, world)
    else:
        model, start = build(known["model"], options.order).to(device), known["step"]
        model.load_state_dict(known["model"])
    model.train()
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if known is not None:
        optimizer.load_state_dict(known["optimizer"])
    for step in range(start, options.steps):
        if step == options.stop_at:
            distributed.barrier()
            distributed.destroy_process_group()
            return
        inputs, labels = batches(1000 + step, rank, world)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(inputs.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            if rank == 0:
                save(kept, content)
                print(f"step {step + 1}: loss {loss.item():.4f}")
            save(options.output / f"rank{rank}.pt", content["model"])
    if rank == 0:
        hk.write(model, options.output / "small.safetensors")
    # The first process keeps the store that the others still read: all end together.
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # DistributedDataParallel keeps Gloo's threads, one of which may abort while Python ends.
    sys.stdout.flush()
    os._exit(0)
