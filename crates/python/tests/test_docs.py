"""Every example of the package and of its documentation runs."""

import doctest
import importlib
import pkgutil
import re
import sys
import types

import numpy as np
import pytest
from conftest import ROOT, WAVES, need

import hankelite

MODULES = ["hankelite"] + [
    f"hankelite.{info.name}" for info in pkgutil.iter_modules(hankelite.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_doctests_of(name):
    library = {"torch": "torch", "_fit": "torch", "_held": "torch", "_live": "torch", "jax": "jax"}.get(name.rpartition(".")[2])
    if library:
        need(library)
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs={"example": str(WAVES)})
    assert found.failed == 0


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)


PAGES = ["docs/python.md", "docs/python-tutorial.md", "docs/train-a-live-network.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, request):
    need("torch")
    request.getfixturevalue("one_thread")
    monkeypatch.chdir(tmp_path)
    # What a page needs of Lightning is a class to inherit from.
    monkeypatch.setitem(sys.modules, "lightning", types.SimpleNamespace(Callback=object))
    found = blocks(ROOT / page)
    assert found
    names = {"example": str(WAVES), "np": np}
    for number, code in enumerate(found):
        if "import jax" in code:
            need("jax")
        exec(compile(code, f"{page}, block {number}", "exec"), names)


def test_every_public_name_is_described():
    text = (ROOT / "docs/python.md").read_text()
    for name in hankelite.__all__:
        thing = getattr(hankelite, name)
        if callable(thing) and name not in ("LayerStatistics", "Spectra", "Spectrum", "System"):
            assert f"{name}" in text, name
        if not name.startswith("__"):
            assert thing.__doc__, name
