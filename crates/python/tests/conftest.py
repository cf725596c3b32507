"""What all tests share. The package must be installed; nothing is imported from the sources."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"
WAVES = ROOT / "models" / "waves" / "model.safetensors"
SHARED = ROOT.parent / "shared" / "data"

# The networks of the reference scripts: S4Model with the public formulas.
sys.path.insert(0, str(ROOT / "tests" / "reference"))
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def waves() -> Path:
    """The shipped model: S4D, 2 layers of 16 channels, 32 modes each."""
    return WAVES


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def shared() -> Path:
    """The data sets and checkpoints beside the project."""
    return SHARED


@pytest.fixture
def one_thread():
    """Small tensors: threads of torch would wait for each other, where cores are shared for long."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def need(library: str):
    """A library that must be there in CI, and is skipped elsewhere."""
    import importlib
    import os

    try:
        return importlib.import_module(library)
    except ImportError:
        if os.environ.get("HANKELITE_NEEDS", "").split().count(library):
            raise
        pytest.skip(f"{library} is not installed", allow_module_level=True)
