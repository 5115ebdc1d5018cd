# SPDX-License-Identifier: Apache-2.0
"""Where the studies' tests run: on a GPU; without one, Triton's kernels by its interpreter on tiny shapes, where torch and
Triton are installed. What cannot run is skipped with the name of what is missing."""

import importlib
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))


def find(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch = find("torch")
CUDA = torch is not None and torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # is read when a kernel is defined


def pytest_configure(config):
    # The interpreter's own, once for every loop of a kernel.
    config.addinivalue_line("filterwarnings", "ignore:Conversion of an array with ndim > 0:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:All-NaN slice encountered:RuntimeWarning")


def missing_for_triton():
    if torch is None:
        return "torch is not installed"
    if find("triton") is None:
        return "triton is not installed"
    if not CUDA and tuple(int(n) for n in find("numpy").__version__.split(".")[:2]) >= (2, 4):
        return "Triton's interpreter needs NumPy below 2.4"
    return None


@pytest.fixture(scope="session")
def device():
    """Of a test of a Triton kernel: "cuda", or "cpu" for the interpreter."""
    reason = missing_for_triton()
    if reason:
        pytest.skip(reason)
    torch.manual_seed(0)
    return "cuda" if CUDA else "cpu"


@pytest.fixture(scope="session")
def gpu(device):
    if device != "cuda":
        pytest.skip("no CUDA device")
    return device


@pytest.fixture(scope="session")
def keyfold():
    """The package over a built library."""
    try:
        return importlib.import_module("keyfold")
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def dtypes(device):
    """The interpreter multiplies bf16 by its bits, as whole numbers; so bf16 is left to the GPU."""
    return [torch.bfloat16, torch.float16] if device == "cuda" else [torch.float32, torch.float16]
