# SPDX-License-Identifier: Apache-2.0
"""GGUF's block formats against a second opinion: the PyPI package gguf, which llama.cpp's authors publish."""

import numpy as np
import pytest

import keyfold
from reference import close

gguf = pytest.importorskip("gguf", reason="no gguf")

# Where the fp16 numbers of a block lie: random bits there would be NaN and inf.
HALVES = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
}


def blocks(rng, kind, rows, cols):
    """Random blocks: every bit of every field, but scales that are ordinary numbers."""
    values, size = keyfold.weight_block(kind)
    raw = rng.integers(0, 256, (rows, cols // values, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scale = rng.uniform(-0.02, 0.02, raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.fixture(params=HALVES)
def weight(request, rng):
    raw = blocks(rng, request.param, 40, 512)
    exact = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[request.param.upper()]).astype(np.float64)
    return keyfold.Weight(raw, gguf.GGMLQuantizationType[request.param.upper()]), exact


def test_sizes():
    for kind in HALVES:
        assert keyfold.weight_block(kind) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]


def test_values(weight):
    """Rows of a table are the values themselves, to the bit: both round d (code - offset) + m once. Only zeros may differ in their sign:
    the package's is d's where the code is the offset, keyfold's is +, for it adds m = 0."""
    w, exact = weight
    got = keyfold.embedding(w, np.arange(40))
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("t", [1, 3, 24])
def test_products(weight, rng, t):
    w, exact = weight
    x = rng.standard_normal((t, 512)).astype(np.float32)
    expected = x.astype(np.float64) @ exact.T
    plain = keyfold.linear(x, w)
    close(plain, expected, "fp32")
    packed = keyfold.pack_weight(w)
    assert packed.nbytes <= 1.1 * w.nbytes + 4096
    close(keyfold.linear(x, packed), expected, "fp32")
    rough = keyfold.linear(x, packed, activations="int8")
    assert np.linalg.norm(rough - expected) / np.linalg.norm(expected) < 0.02


def test_quantised_by_gguf(rng):
    """What the other side writes, this side reads."""
    x = rng.standard_normal((8, 64)).astype(np.float32)
    for kind in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        raw = gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind.upper()])
        y = keyfold.embedding(keyfold.Weight(raw, kind), np.arange(8))
        assert np.abs(y - x).max() < 0.5, kind
