# SPDX-License-Identifier: Apache-2.0
"""Makes the package of this source tree importable, unless an installed one is meant (KEYFOLD_TEST_INSTALLED)."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not os.environ.get("KEYFOLD_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))

np = pytest.importorskip("numpy")


@pytest.fixture
def rng():
    return np.random.default_rng(20260)


@pytest.fixture(params=["fp32", "fp16", "bf16"])
def dtype(request):
    return request.param
