"""Capture the inputs of the layers of a flax network with the text of docs/calibrate-your-own-network.md.

    python tests/reference/check_capture_flax.py

A network of two layers is run with and without the interceptor; exit code 1 where what was captured is not
what the second layer got. Needs flax.
"""

import pathlib
import re
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "calibrate-your-own-network.md"


class Layer(nn.Module):
    @nn.compact
    def __call__(self, u):
        gain = self.param("D", nn.initializers.normal(1.0), (u.shape[-1],))
        return jnp.cumsum(u, axis=-2) * gain


class Network(nn.Module):
    def setup(self):
        self.encoder = nn.Dense(4)
        self.layers = [Layer() for _ in range(2)]

    def __call__(self, x):
        x = self.encoder(x)
        for layer in self.layers:
            x = x + nn.gelu(layer(x))
        return x.mean(-2)


def main():
    scope = {"np": np, "nn": nn}
    exec(re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)[1], scope)
    model = Network()
    batches = np.random.default_rng(0).standard_normal((3, 5, 7, 2)).astype(np.float32)
    variables = model.init(jax.random.PRNGKey(0), batches[0])
    names = {(f"layers_{i}",): f"params/layers_{i}" for i in range(2)}
    out = scope["capture"](model, variables, batches, names)
    x = nn.Dense(4).apply({"params": variables["params"]["encoder"]}, batches.reshape(15, 7, 2))
    first = Layer().apply({"params": variables["params"]["layers_0"]}, x)
    expected = {"params/layers_0": x, "params/layers_1": x + nn.gelu(first)}
    for name, value in expected.items():
        print(name, out[name].shape, float(np.abs(out[name] - value).max()))
        if out[name].shape != value.shape or np.abs(out[name] - value).max() > 1e-5:
            sys.exit(1)


if __name__ == "__main__":
    main()
