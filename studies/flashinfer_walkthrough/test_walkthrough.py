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


def test_the_workspace_holds_the_parts(gpu, keyfold):
    """Where sequences are cut it is written, and too small a one is refused by plan; where none is cut it stays as it was."""
    found = walkthrough.workspace(flashinfer)
    one, many = found["one sequence of 8192 keys"], found["256 sequences of 64 keys"]
    part = found["bytes of a part: heads x (D + 1) x 4"]
    assert one["bytes after plan"] == many["bytes after plan"] == many["bytes after run"] == 0
    assert one["bytes after run"] > part and one["smallest that plan takes, KiB"] << 10 >= 2 * part
    assert "overflow" in one["a smaller one"] and one["difference with that"] < BOUND
    assert many["difference with that"] < BOUND
