"""Networks around S4D layers that are not quite the one of example.py, and tensors that share storage.

    python tests/reference/make_trees.py

Everything is seeded. The layers are those of `make_fixtures.py`, and so are their sizes.
"""

import collections

import torch
from safetensors.torch import save_file

from make_fixtures import CLASSES, DATA, H, classifier, copy_of, golden, s4d

TREES = DATA / "trees"


def saved(state, name):
    torch.save({"model": collections.OrderedDict(state)}, TREES / f"{name}.pth")


def main():
    TREES.mkdir(exist_ok=True)
    model = classifier(s4d, 10)
    state = copy_of(model.state_dict())
    g = torch.Generator().manual_seed(11)

    def randn(*shape):
        return torch.randn(*shape, generator=g)

    saved({**state, "aux_decoder.weight": randn(2, H), "aux_decoder.bias": randn(2)}, "decoder_added")
    without = {k: v for k, v in state.items() if not k.startswith("encoder.")}
    convolutions = {
        "encoder.0.weight": randn(H, 2, 5),
        "encoder.0.bias": randn(H),
        "encoder.2.weight": randn(H, H, 3),
        "encoder.2.bias": randn(H),
    }
    saved({**convolutions, **without}, "convolutions")
    # One convolution under the names of a linear map.
    saved({**without, "encoder.weight": randn(H, 2, 5), "encoder.bias": randn(H)}, "convolution")
    # A layer that is none, between layers that are.
    other = {"s4_layers.2.conv.weight": randn(H, H, 3), "norms.2.weight": randn(H), "norms.2.bias": randn(H)}
    saved({**state, **other}, "other_layer")

    # The same modules under two names: torch keeps one storage, other containers have equal tensors.
    twice = {**{f"backbone.{k}": v for k, v in state.items()}, **state}
    saved(twice, "two_names")
    save_file({k: v.clone() for k, v in twice.items()}, TREES / "two_names.safetensors")
    layers = {f"backbone.{k.replace('s4_layers', 'blocks')}": v for k, v in state.items() if "s4_layers" in k}
    saved({**layers, **state}, "layers_twice")

    # One layer that is applied twice.
    tied = classifier(s4d, 30)
    tied.s4_layers[1] = tied.s4_layers[0]
    saved(tied.state_dict(), "tied_layers")
    golden(tied, TREES / "tied_layers_golden.safetensors")

    # A table of tokens that is the map of the decoder, too.
    table = randn(CLASSES, H)
    embedded = {k: v for k, v in state.items() if not k.startswith("encoder.")}
    saved({**embedded, "encoder.weight": table, "decoder.weight": table}, "tied_ends")

    # Views of one storage that overlap: along other axes, and in part.
    base = state["s4_layers.0.output_linear.0.weight"][..., 0].clone()
    views = {**state, "head.weight": base.T, "head.rows": base[1:3], "zero": base}
    saved(views, "views")


if __name__ == "__main__":
    main()
