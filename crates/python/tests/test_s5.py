"""An S5 by the public formulas in flax, trained here: captured inputs, and logits through JAX."""

import numpy as np
import pytest
from conftest import need

import hankelite as hk

jax = need("jax")
need("flax")
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import linen as nn  # noqa: E402

MODES, WIDTH, STEPS, CLASSES = 16, 16, 128, 4


class S5(nn.Module):
    """S5SSM of lindermanlab/S5: zero-order hold, one of each conjugate pair stored."""

    modes: int

    @nn.compact
    def __call__(self, u):
        n, h = self.modes, u.shape[-1]
        normal = nn.initializers.normal
        lam = self.param("Lambda_re", lambda key: jnp.full(n, -0.5)) + 1j * self.param(
            "Lambda_im", lambda key: jnp.pi * jnp.arange(n, dtype=jnp.float32)
        )
        b = self.param("B", normal(h**-0.5), (n, h, 2))
        c = self.param("C", normal((2 * n) ** -0.5), (h, n, 2))
        d = self.param("D", normal(1.0), (h,))
        low, high = np.log(1e-3), np.log(1e-1)
        uniform = lambda key: jax.random.uniform(key, (n, 1), minval=low, maxval=high)
        step = jnp.exp(self.param("log_step", uniform))[:, 0]
        a = jnp.exp(lam * step)
        b = ((a - 1) / lam)[:, None] * (b[..., 0] + 1j * b[..., 1])
        join = lambda left, right: (right[0] * left[0], right[0] * left[1] + right[1])
        _, x = jax.lax.associative_scan(join, (jnp.tile(a, (len(u), 1)), u @ b.T))
        return 2 * (x @ (c[..., 0] + 1j * c[..., 1]).T).real + d * u


class Classifier(nn.Module):
    """A network that the library does not know: two norms in a row, a head on mean and last step."""

    modes: int = MODES

    @nn.compact
    def __call__(self, u):
        x = nn.Dense(WIDTH)(u)
        for i in range(2):
            y = S5(self.modes, name=f"layers_{i}")(nn.LayerNorm()(x))
            x = x + nn.Dense(WIDTH)(nn.gelu(y))
        return nn.Dense(CLASSES)(jnp.concatenate([x.mean(axis=0), x[-1]]))


def waves(count, seed):
    """Sines, squares, saw-teeth and triangles of any pitch and phase, in noise."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, CLASSES, count)
    turns = random.uniform(2, 10, (count, 1)) * np.arange(STEPS) / STEPS
    place = (turns + random.uniform(0, 1, (count, 1))) % 1.0
    shapes = np.stack([
        np.sin(2 * np.pi * place),
        np.sign(place - 0.5),
        2 * place - 1,
        4 * np.abs(place - 0.5) - 1,
    ])
    clean = shapes[kinds, np.arange(count)]
    noisy = clean + 0.2 * random.standard_normal(clean.shape)
    return noisy[..., None].astype(np.float32), kinds


def logits(params, inputs, modes=MODES):
    return jax.jit(jax.vmap(lambda u: Classifier(modes).apply(params, u)))(inputs)


def accuracy(params, data, modes=MODES):
    inputs, labels = data
    return 100 * float((logits(params, inputs, modes).argmax(axis=1) == labels).mean())


@pytest.fixture(scope="module")
def trained():
    inputs, labels = waves(4000, seed=0)
    params = Classifier().init(jax.random.key(1), inputs[0])
    steps = 600
    adam = optax.adam(optax.cosine_decay_schedule(4e-3, steps))

    @jax.jit
    def step(params, state, u, y):
        def loss(p):
            z = jax.vmap(lambda x: Classifier().apply(p, x))(u)
            return optax.softmax_cross_entropy_with_integer_labels(z, y).mean()

        moves, state = adam.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, moves), state

    state, random = adam.init(params), np.random.default_rng(2)
    for _ in range(steps):
        batch = random.integers(0, len(inputs), 64)
        params, state = step(params, state, inputs[batch], labels[batch])
    return params, waves(2000, seed=3)


def test_half_and_a_quarter_of_a_trained_model(trained, capsys):
    params, data = trained
    full = accuracy(params, data)
    assert full > 90
    calls = lambda p, u: Classifier().apply(p, u)
    captured = hk.jax.capture(calls, params, waves(200, seed=4)[0])
    assert captured.gradients["params/layers_1"].shape == (200, 10, STEPS, WIDTH)
    found = {}
    for modes in (MODES // 2, MODES // 4):
        ways = {
            "white": {},
            "inputs": {"captured": hk.Captured(captured.inputs)},
            "gradients": {"captured": captured},
        }
        for name, known in ways.items():
            small = hk.jax.reduce(params, order=modes, **known)
            tree = small.state_dict()
            assert tree["params"]["layers_0"]["B"].shape == (modes, WIDTH, 2)
            found[modes, name] = accuracy(tree, data, modes)
    with capsys.disabled():
        print(f"\nS5 in flax, {MODES} modes {full:.1f} %:", found)
    assert found[8, "gradients"] > full - 0.5
    assert found[4, "gradients"] > full - 3.0
    assert found[4, "gradients"] > found[4, "white"]
    assert captured.statistics()["params/layers_0"].sequences == 200


def test_gradients_are_those_of_differences(trained):
    params, (inputs, _) = trained
    calls = lambda p, u: Classifier().apply(p, u)
    captured = hk.jax.capture(calls, params, inputs[:3], combinations=1, seed=9)
    # With other feedthroughs the outputs move by a step times the input.
    step = 1e-2
    key = jax.random.key(9)
    signs = 2.0 * jax.random.bernoulli(key, shape=(3, 1, CLASSES)) - 1.0
    signs = signs - signs.mean(axis=-1, keepdims=True)

    def moved(by):
        other = jax.tree.map(lambda leaf: leaf, params)
        other["params"]["layers_1"]["D"] = params["params"]["layers_1"]["D"] + by
        return logits(other, inputs[:3])

    change = (moved(step) - moved(-step)) / (2 * step)
    expected = (change * signs[:, 0]).sum(axis=1)
    slopes, layer_inputs = captured.gradients["params/layers_1"], captured.inputs["params/layers_1"]
    np.testing.assert_allclose((slopes[:, 0] * layer_inputs).sum(axis=(1, 2)), expected, rtol=2e-2)
