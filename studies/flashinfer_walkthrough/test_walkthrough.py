# SPDX-License-Identifier: Apache-2.0
"""The walkthrough's steps on a GPU where FlashInfer is; what its modules are named after, wherever it is."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
flashinfer = pytest.importorskip("flashinfer", reason="flashinfer is not installed", exc_type=ImportError)

from studies.flashinfer_walkthrough import walkthrough  # noqa: E402

BOUND = 1e-2  # relative, of two kernels in bf16


def test_modules_are_named_after_what_is_compiled_in():
    assert walkthrough.modules(flashinfer)["a name for each"]


def test_decode(gpu, keyfold):
    found = walkthrough.decode(flashinfer)
    assert found["relative difference from keyfold"] < BOUND
    assert abs(found["lse / keyfold's lse"] - found["1 / ln 2"]) < 1e-3


def test_prefill(gpu, keyfold):
    assert walkthrough.prefill(flashinfer)["relative difference from keyfold, causal from the bottom right"] < BOUND


def test_a_plan_holds_for_its_lengths_alone(gpu, keyfold):
    found = walkthrough.stale(flashinfer)
    assert found["difference with the plan of these lengths"] < BOUND and found["planned again"] < BOUND
    assert found["a key more each, old plan"] > BOUND
    assert found["the same plan, another layer's pages"] < BOUND
