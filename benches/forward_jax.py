"""Forward passes of an S5 classifier in JAX on one core, beside `compress-model evaluate --threads 1`.

    python benches/forward_jax.py MODEL.safetensors DATA.safetensors [--limit 256]

MODEL has the names of lindermanlab/S5's flax tree, as tests/reference/train_s5.py and make_s5.py write them
(pre-norm, half_glu1, mean pooling); DATA holds `inputs` (B, L, d) and may hold `labels`. Compiled, in float32,
with the parallel scan of the public module and with one step after the other, at several batch sizes. Prints
sequences a CPU second of each, and the accuracy. Needs jax, numpy and safetensors.
"""

import argparse
import os
import pathlib
import sys
import time
from functools import partial

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "reference"))
from train_s5 import network, parallel  # noqa: E402


def tree(path):
    made = {}
    for name, value in load_file(path).items():
        *folders, last = name.removeprefix("params/").split("/")
        at = made
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = jnp.asarray(value, jnp.float32)
    return made


def stepwise(a, driven):
    def step(x, u):
        x = a * x + u
        return x, x

    return jax.lax.scan(step, jnp.zeros_like(a), driven)[1]


@partial(jax.jit, static_argnums=2)
@partial(jax.vmap, in_axes=(None, 0, None))
def logits(params, u, scan):
    return network(params, u, scan)


def timed(params, inputs, labels, batch, scan):
    logits(params, inputs[:batch], scan).block_until_ready()
    start, answers = time.process_time(), []
    for first in range(0, len(inputs) - batch + 1, batch):
        answers.append(np.asarray(logits(params, inputs[first : first + batch], scan).argmax(1)))
    answers = np.concatenate(answers)
    return len(answers) / (time.process_time() - start), np.mean(answers == labels[: len(answers)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, default=256)
    given = parser.parse_args()
    params, data = tree(given.model), load_file(given.data)
    inputs = jnp.asarray(data["inputs"][: given.limit], jnp.float32)
    labels = data.get("labels", np.zeros(len(inputs)))[: len(inputs)]
    for scan in (parallel, stepwise):
        for batch in (1, 4, 16, 64):
            rate, accuracy = timed(params, inputs, labels, batch, scan)
            print(f"{scan.__name__:8} batch {batch:3}: {rate:7.1f} sequences a CPU second, accuracy {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()
