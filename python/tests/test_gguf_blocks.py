# SPDX-License-Identifier: Apache-2.0
"""Block formats: the gguf package's NumPy dequantisation as a second opinion on ours.

An embedding of every row of a table dequantises the table; random bytes are valid blocks as long as their fp16 scales are finite. The linear
layer, packed and not, is held against the product of the same dequantised values.
"""

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf", reason="the PyPI package gguf is not installed: no second opinion on block formats")

import keyfold  # noqa: E402

ROWS, COLS = 37, 768
# Where a block's fp16 numbers stand, in bytes.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def random_blocks(rng, name):
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    assert keyfold.weight_block(name.lower()) == (values, size)
    blocks = rng.integers(0, 256, (ROWS, COLS // values, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.normal(0, 0.05, (ROWS, COLS // values)).astype(np.float16)
        blocks[:, :, at : at + 2] = halves[..., None].view(np.uint8)
    data = blocks.reshape(ROWS, -1)
    return data, gguf.quants.dequantize(data, kind)


@pytest.mark.parametrize("name", sorted(HALVES))
def test_embedding_dequantises_as_gguf_does(rng, name):
    data, expected = random_blocks(rng, name)
    ids = np.arange(ROWS, dtype=np.int32)[::-1].copy()
    ours = keyfold.embedding(keyfold.Weight(data, name), ids, dtype="fp32")
    np.testing.assert_array_equal(ours, expected[ids])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", sorted(HALVES))
def test_linear_multiplies_what_gguf_dequantises(rng, name, packed):
    data, expected = random_blocks(rng, name)
    weight = keyfold.Weight(data, name)
    x = rng.normal(0, 1, (9, COLS)).astype(np.float32)
    ours = keyfold.linear(x, keyfold.pack_weight(weight) if packed else weight)
    exact = x.astype(np.float64) @ expected.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(expected).astype(np.float64).T
    assert np.max(np.abs(ours - exact) / size) < 1e-6
