"""JAX pytrees: S5 in flax by its public formulas, LRU in plain dictionaries."""

import numpy as np
import pytest
from conftest import need

import hankelite as hk

jax = need("jax")
import jax.numpy as jnp  # noqa: E402

MODES, WIDTH, STEPS = 16, 6, 64


def s5_layer(key, modes=MODES, width=WIDTH):
    """The leaves of S5SSM, with one of each conjugate pair."""
    keys = jax.random.split(key, 4)
    return {
        "Lambda_re": jnp.full(modes, -0.5),
        "Lambda_im": jnp.pi * jnp.arange(1, modes + 1, dtype=jnp.float32),
        "B": jax.random.normal(keys[0], (modes, width, 2)) / width**0.5,
        "C": jax.random.normal(keys[1], (width, modes, 2)) / modes**0.5,
        "D": jax.random.normal(keys[2], (width,)),
        "log_step": jax.random.uniform(keys[3], (modes, 1), minval=-6.0, maxval=-2.5),
    }


def s5_apply(p, u):
    """(steps, width) to (steps, width): zero-order hold, y = 2 Re(C x) + D u."""
    lam = p["Lambda_re"] + 1j * p["Lambda_im"]
    step = jnp.exp(p["log_step"][:, 0])
    pole = jnp.exp(lam * step)
    b = ((pole - 1) / lam)[:, None] * (p["B"][..., 0] + 1j * p["B"][..., 1])
    c = p["C"][..., 0] + 1j * p["C"][..., 1]

    def one(x, v):
        x = pole * x + b @ v
        return x, 2 * (c @ x).real + p["D"] * v

    return jax.lax.scan(one, jnp.zeros(len(pole), jnp.complex64), u)[1]


def network(params, u):
    for name in ("layers_0", "layers_1"):
        u = u + jax.nn.gelu(s5_apply(params["params"][name]["seq"], u))
    return u.mean(axis=0)


@pytest.fixture
def params():
    keys = jax.random.split(jax.random.key(0), 2)
    return {"params": {f"layers_{i}": {"seq": s5_layer(key)} for i, key in enumerate(keys)}}


def test_a_pytree_comes_back_as_it_was_but_smaller(params):
    reduced = hk.jax.reduce(params, order=MODES // 2)
    small = reduced.state_dict()
    assert jax.tree_util.tree_structure(small) == jax.tree_util.tree_structure(params)
    layer = small["params"]["layers_1"]["seq"]
    assert layer["Lambda_re"].shape == (8,) and layer["B"].shape == (8, WIDTH, 2)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(small))
    assert layer["D"] is params["params"]["layers_1"]["seq"]["D"]
    u = jax.random.normal(jax.random.key(5), (STEPS, WIDTH))
    full, cut = network(params, u), network(small, u)
    apart = float(jnp.linalg.norm(full - cut) / jnp.linalg.norm(full))
    errors = [record["relative_h2_error"] for record in reduced.records]
    assert apart < 2 * max(errors) and np.isfinite(apart)
    whole = hk.jax.reduce(params, order=MODES).state_dict()
    np.testing.assert_array_equal(network(whole, u), full)


def test_the_systems_are_those_that_the_formulas_run(params):
    system = hk.jax.read(params).systems("params/layers_0/seq")[0]
    impulse = jnp.zeros((STEPS, WIDTH)).at[0, 2].set(1.0)
    ours = s5_apply(params["params"]["layers_0"]["seq"], impulse)
    powers = np.exp(np.outer(np.arange(STEPS), system.poles * system.step))
    direct = (powers * system.b[:, 2]) @ system.c.T
    direct = direct.real
    direct[0] += system.d[:, 2]
    np.testing.assert_allclose(ours, direct, atol=2e-5)


def test_lru_in_plain_dictionaries_and_in_lists():
    keys = jax.random.split(jax.random.key(1), 6)
    n, width = 8, 4
    layer = {
        "nu_log": jnp.log(-jnp.log(jax.random.uniform(keys[0], (n,), minval=0.7, maxval=0.99))),
        "theta_log": jnp.log(jax.random.uniform(keys[1], (n,), minval=0.1, maxval=3.0)),
        "gamma_log": jnp.log(jax.random.uniform(keys[2], (n,), minval=0.1, maxval=0.7)),
        "B_re": jax.random.normal(keys[3], (n, width)),
        "B_im": jax.random.normal(keys[4], (n, width)),
        "C_re": jax.random.normal(keys[5], (width, n)),
        "C_im": jax.random.normal(keys[5], (width, n)) / 2,
        "D": jnp.ones(width),
    }
    tree = [{"lru": layer}, {"lru": dict(layer)}]
    small = hk.jax.reduce(tree, order=4).state_dict()
    assert isinstance(small, list) and small[1]["lru"]["B_re"].shape == (4, width)


def test_flax_modules_are_listened_to_under_jit_and_vmap(params):
    nn = need("flax.linen")

    class S5SSM(nn.Module):
        @nn.compact
        def __call__(self, u):
            own = {
                name: self.param(name, lambda _, value=value: jnp.zeros_like(value))
                for name, value in params["params"]["layers_0"]["seq"].items()
            }
            return s5_apply(own, u)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, u):
            return u + jax.nn.gelu(S5SSM(name="seq")(u))

    class Network(nn.Module):
        @nn.compact
        def __call__(self, u):
            for name in ("layers_0", "layers_1"):
                u = Block(name=name)(u)
            return u.mean(axis=0)

    model = Network()
    u = jax.random.normal(jax.random.key(7), (5, STEPS, WIDTH))
    capture = hk.jax.Capture(params)

    @jax.jit
    def run(u):
        with nn.intercept_methods(capture.interceptor):
            return jax.vmap(lambda one: model.apply(params, one))(u)

    run(u)
    jax.effects_barrier()
    first = capture["params/layers_0/seq"]
    assert first.sequences == 5 and first.length == STEPS
    direct = hk.LayerStatistics.of(u)
    np.testing.assert_allclose(first.lags, direct.lags, rtol=1e-5, atol=1e-4)
    assert capture["params/layers_1/seq"].sequences == 5
    np.testing.assert_allclose(run(u)[0], network(params, u[0]), atol=1e-5)


def rounding_error(layer):
    """What bfloat16 for all leaves of a layer changes of its kernels, relative to them."""
    rounded = jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.bfloat16), layer)
    impulses = [jnp.zeros((2000, WIDTH)).at[0, i].set(1.0) for i in range(WIDTH)]

    def kernels(leaves):
        own = {name: leaf.astype(jnp.float32) for name, leaf in leaves.items()}
        return jnp.stack([s5_apply(own | {"D": 0 * own["D"]}, one) for one in impulses])

    full = kernels(layer)
    return jnp.linalg.norm(kernels(rounded) - full) / jnp.linalg.norm(full)


def test_bfloat16_stays_where_it_holds_the_systems(params):
    # Slow oscillations have poles that eight bits hold; at 50 radians a second they do not.
    slow, fast = (params["params"][name]["seq"] for name in ("layers_0", "layers_1"))
    slow["Lambda_im"] = slow["Lambda_im"] / 1000
    half = jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    small = hk.jax.reduce(half, order=4).state_dict()["params"]
    slow, fast = (small[name]["seq"] for name in ("layers_0", "layers_1"))
    assert {leaf.dtype for leaf in slow.values()} == {jnp.dtype(jnp.bfloat16)}
    assert {str(fast[name].dtype) for name in ("Lambda_re", "Lambda_im", "B", "C")} == {"float32"}
    assert rounding_error(fast) > 0.01


def test_complex_leaves_stay(params):
    layer = dict(params["params"]["layers_0"]["seq"])
    layer["B"] = layer["B"][..., 0] + 1j * layer["B"][..., 1]
    tree = {"params": {"layers_0": {"seq": layer}}}
    small = hk.jax.reduce(tree, order=4).state_dict()["params"]["layers_0"]["seq"]
    assert small["B"].dtype == jnp.complex64 and small["B"].shape == (4, WIDTH)
