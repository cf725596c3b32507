"""One training step of an LRU in JAX on one core: forward, cross entropy, backward, AdamW.

    taskset -c 0 python benches/train_step_mimo.py --h 32 --p 32 --layers 3 --len 196 --batch 50 --steps 7

prints one line of JSON: median, least and largest wall and CPU seconds of a step, for the recurrence by
`associative_scan` (as minimal-LRU and S5 have it) and by `lax.scan`. The network is that of
`crates/train/benches/train_step_mimo.rs`: pre-norm, half_glu1 with the tanh form of GELU, mean pooling.
Needs `pip install "jax[cpu]" optax`.
"""

import argparse
import json
import os
import time

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import jax.numpy as jnp
import numpy as np
import optax


def parameters(settings):
    random = np.random.default_rng(0)
    h, p = settings.h, settings.p
    normal = lambda *shape: jnp.asarray(random.standard_normal(shape), jnp.float32)
    layers = []
    for _ in range(settings.layers):
        size = random.uniform(0.9, 0.999, p)
        layers.append(
            {
                "nu_log": jnp.asarray(np.log(-np.log(size)), jnp.float32),
                "theta_log": jnp.asarray(np.log(random.uniform(0.01, 3.14, p)), jnp.float32),
                "gamma_log": jnp.asarray(0.5 * np.log(1 - size**2), jnp.float32),
                "B_re": normal(p, h) / np.sqrt(2 * h),
                "B_im": normal(p, h) / np.sqrt(2 * h),
                "C_re": normal(h, p) / np.sqrt(p),
                "C_im": normal(h, p) / np.sqrt(p),
                "D": normal(h),
                "scale": jnp.ones(h),
                "bias": jnp.zeros(h),
                "gate": normal(h, h) / np.sqrt(h),
                "gate_bias": jnp.zeros(h),
            }
        )
    return {
        "encoder": normal(1, h),
        "encoder_bias": jnp.zeros(h),
        "layers": layers,
        "head": normal(h, 10) / np.sqrt(h),
        "head_bias": jnp.zeros(10),
    }


def combine(one, other):
    return other[0] * one[0], other[0] * one[1] + other[1]


def states(poles, inputs, way):
    if way == "associative_scan":
        repeated = jnp.broadcast_to(poles, inputs.shape)
        return jax.lax.associative_scan(combine, (repeated, inputs))[1]

    def step(state, given):
        state = poles * state + given
        return state, state

    return jax.lax.scan(step, jnp.zeros_like(inputs[0]), inputs)[1]


def layer(own, x, way):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    u = (x - mean) / jnp.sqrt(variance + 1e-6) * own["scale"] + own["bias"]
    poles = jnp.exp(-jnp.exp(own["nu_log"]) + 1j * jnp.exp(own["theta_log"]))
    b = (own["B_re"] + 1j * own["B_im"]) * jnp.exp(own["gamma_log"])[:, None]
    c = own["C_re"] + 1j * own["C_im"]
    # All sequences at once: steps first.
    driven = jnp.einsum("blh,ph->lbp", u.astype(jnp.complex64), b)
    held = states(poles, driven, way)
    y = jnp.einsum("lbp,hp->blh", held, c).real + own["D"] * u
    z = jax.nn.gelu(y)
    return x + z * jax.nn.sigmoid(z @ own["gate"] + own["gate_bias"])


def loss(all_parameters, steps, labels, way):
    x = steps @ all_parameters["encoder"] + all_parameters["encoder_bias"]
    for own in all_parameters["layers"]:
        x = layer(own, x, way)
    logits = x.mean(1) @ all_parameters["head"] + all_parameters["head_bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def timed(settings, way):
    random = np.random.default_rng(1)
    shape = (settings.batch, settings.len, 1)
    steps = jnp.asarray(random.uniform(-0.5, 0.5, shape), jnp.float32)
    labels = jnp.asarray(random.integers(0, 10, settings.batch))
    optimiser = optax.adamw(1e-3, weight_decay=0.01)
    held = parameters(settings)
    state = optimiser.init(held)

    @jax.jit
    def step(held, state):
        gradients = jax.grad(loss)(held, steps, labels, way)
        updates, state = optimiser.update(gradients, state, held)
        return optax.apply_updates(held, updates), state

    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    times = {name: [] for name in clocks}
    for index in range(2 + settings.steps):
        starts = {name: clock() for name, clock in clocks.items()}
        held, state = jax.block_until_ready(step(held, state))
        for name, clock in clocks.items():
            if index >= 2:
                times[name].append(clock() - starts[name])
    return {name: summary(own) for name, own in times.items()}


def summary(times):
    return {
        "median": round(float(np.median(times)), 5),
        "min": round(min(times), 5),
        "max": round(max(times), 5),
    }


def main():
    parser = argparse.ArgumentParser()
    for name, default in [("h", 32), ("p", 32), ("layers", 3), ("len", 196), ("batch", 50)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=7)
    settings = parser.parse_args()
    found = {way: timed(settings, way) for way in ["associative_scan", "scan"]}
    print(json.dumps({"jax": jax.__version__, **found}))


if __name__ == "__main__":
    main()
