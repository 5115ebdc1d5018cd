# SPDX-License-Identifier: Apache-2.0
"""Every function against NumPy in float64: its arguments arrive where they belong."""

import math

import numpy as np
import pytest

import keyfold
import reference
from keyfold import Rope
from reference import close, make, values

SHAPES = {"mha": (2, 4, 4, 9, 9, 64, 64), "gqa": (1, 6, 2, 5, 17, 32, 48), "decode": (2, 8, 2, 1, 300, 64, 64)}


def qkv(rng, shape, dtype):
    B, H, Hkv, Nq, Nk, D, Dv = shape
    return [make(rng.standard_normal(s), dtype) for s in ((B, H, Nq, D), (B, Hkv, Nk, D), (B, Hkv, Nk, Dv))]


@pytest.mark.parametrize("n", [1, 7, 64, 1000])
def test_softmax(rng, dtype, n):
    x, exact = make(3 * rng.standard_normal((3, 5, n)), dtype)
    y, lse = keyfold.softmax(x, return_lse=True)
    expected, expected_lse = reference.softmax(exact)
    close(y, expected, dtype)
    close(lse, expected_lse, "fp32")
    assert lse.dtype == np.float32 and lse.shape == (3, 5)


def test_softmax_into_given_arrays_and_in_place(rng):
    x = rng.standard_normal((4, 33)).astype(np.float32)
    expected, expected_lse = reference.softmax(x.astype(np.float64))
    y, lse = np.empty((4, 33), np.float16), np.empty(4, np.float32)
    result = keyfold.softmax(x, out=y, lse=lse)
    assert result[0] is y and result[1] is lse
    close(y, expected, "fp16")
    close(lse, expected_lse, "fp32")
    assert keyfold.softmax(x, out=x) is x
    close(x, expected, "fp32")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(rng, dtype, shape, causal):
    (q, q_), (k, k_), (v, v_) = qkv(rng, SHAPES[shape], dtype)
    o, lse = keyfold.attention(q, k, v, causal=causal, return_lse=True)
    expected, expected_lse = reference.attention(q_, k_, v_, causal=causal)
    # p is rounded to the dtype of v before its product in some kernels
    close(o, expected, dtype, sums=1e-5 if dtype == "fp32" else reference.ULP[dtype])
    close(lse, expected_lse, "fp32", sums=1e-4)


OPTIONS = {
    "scale": dict(scale=0.25),
    "softcap": dict(softcap=5.0, scale=1.0),
    "window": dict(causal=True, window_left=3),
    "both windows": dict(window_left=2, window_right=1),
    "window of nothing": dict(window_left=0, window_right=0),
    "key lengths": dict(key_lengths=np.array([17, 4], np.int32), causal=True),
    "key lengths as a list": dict(key_lengths=[17, 0]),
    "positions": dict(positions=np.array([[0, 3, 5, 16, 2], [1, 1, 1, 9, 0]]), causal=True),
    "alibi": dict(alibi_slopes=np.array([0.5, 0.25, 0.125, 0.0625, 0.1, 0.2], np.float32), causal=True),
    "sinks": dict(sinks=np.array([0.0, 1.0, -1.0, 3.0, 0.5, 2.0], np.float32)),
    "rope": dict(rope=Rope()),
    "rope of a part, gptj": dict(rope=Rope(pairing="gptj", dims=16, base=500.0)),
    "rope scaled": dict(rope=Rope(scaling="linear", factor=4.0), causal=True),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_options(rng, name):
    (q, q_), (k, k_), (v, v_) = qkv(rng, (2, 6, 2, 5, 17, 32, 32), "fp32")
    o, lse = keyfold.attention(q, k, v, return_lse=True, **OPTIONS[name])
    expected, expected_lse = reference.attention(q_, k_, v_, **OPTIONS[name])
    close(o, expected, "fp32")
    close(lse, expected_lse, "fp32")


def test_attention_bias_and_mask(rng):
    (q, q_), (k, k_), (v, v_) = qkv(rng, (2, 6, 2, 5, 17, 32, 32), "fp32")
    mask = rng.random((2, 1, 5, 17)) < 0.5
    mask[0, 0, 1] = False
    bias = rng.standard_normal((6, 1, 17)).astype(np.float32)[None]
    bias[0, 2, 0, 5] = -np.inf
    o, lse = keyfold.attention(q, k, v, mask=mask, bias=bias, return_lse=True)
    expected, expected_lse = reference.attention(q_, k_, v_, mask=mask, bias=bias.astype(np.float64))
    close(o, expected, "fp32")
    close(lse, expected_lse, "fp32")
    assert np.all(o[0, :, 1] == 0) and np.all(lse[0, :, 1] == -np.inf)


def test_attention_rope_of_q_alone(rng):
    (q, q_), (k, k_), (v, v_) = qkv(rng, (1, 2, 2, 4, 4, 32, 32), "fp32")
    kr = np.stack([reference.rotate(k_[0, h], np.arange(4), Rope()) for h in range(2)])[None].astype(np.float32)
    o = keyfold.attention(q, kr, v, rope=Rope(), rope_k=False)
    close(o, reference.attention(q_, k_, v_, rope=Rope())[0], "fp32")


def test_attention_of_strided_views(rng):
    """[B, N, H, D] as most models hold it, keys backwards, and an output between other data."""
    qn = rng.standard_normal((2, 5, 6, 32)).astype(np.float32)
    kn, vn = rng.standard_normal((2, 2, 17, 2, 64)).astype(np.float32)
    q, k, v = qn.transpose(0, 2, 1, 3), kn.transpose(0, 2, 1, 3)[:, :, ::-1, :32], vn.transpose(0, 2, 1, 3)[..., 32:]
    room = np.full((2, 5, 6, 40), 7.0, np.float32)
    o = keyfold.attention(q, k, v, out=room[..., 4:36].transpose(0, 2, 1, 3))
    close(o, reference.attention(*(a.astype(np.float64) for a in (q, k, v)))[0], "fp32")
    assert np.all(room[..., :4] == 7) and np.all(room[..., 36:] == 7)


def test_attention_dtype_of_the_output(rng):
    (q, q_), (k, k_), (v, v_) = qkv(rng, SHAPES["gqa"], "fp16")
    o = keyfold.attention(q, k, v, dtype="fp32")
    assert o.dtype == np.float32
    close(o, reference.attention(q_, k_, v_)[0], "fp32", sums=2e-3)


def test_attention_of_nothing():
    for B, Nq, Nk in ((0, 3, 4), (1, 0, 4), (1, 3, 0)):
        q, k = np.ones((B, 2, Nq, 32), np.float32), np.ones((B, 2, Nk, 32), np.float32)
        o, lse = keyfold.attention(q, k, k, return_lse=True)
        assert o.shape == (B, 2, Nq, 32) and np.all(o == 0) and np.all(lse == -np.inf)


def test_bf16_as_uint16_gives_uint16(rng):
    bits = reference.to_bf16_bits(rng.standard_normal((1, 2, 8, 64)))
    q = keyfold.Tensor(bits, dtype="bf16")
    o = keyfold.attention(q, q, q)
    assert o.dtype == np.uint16
    x = reference.from_bf16_bits(bits).astype(np.float64)
    close(o, reference.attention(x, x, x)[0], "bf16", sums=reference.ULP["bf16"])


def test_merge_states_is_attention_over_all_keys(rng):
    (q, q_), (k, k_), (v, v_) = qkv(rng, (2, 4, 2, 3, 40, 32, 32), "fp32")
    cuts = [(0, 7), (7, 7), (7, 40)]
    parts = [keyfold.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in cuts]
    o, lse = keyfold.merge_states(np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts]), return_lse=True)
    expected, expected_lse = reference.attention(q_, k_, v_)
    close(o, expected, "fp32")
    close(lse, expected_lse, "fp32")


def test_merge_states_dtypes(rng, dtype):
    parts, exact = make(rng.standard_normal((3, 4, 8)), dtype)
    lse = rng.standard_normal((3, 4)).astype(np.float32)
    close(keyfold.merge_states(parts, lse), reference.merge_states(exact, lse.astype(np.float64))[0], dtype)


@pytest.mark.parametrize("n", [8, 33, 576])
def test_rmsnorm(rng, dtype, n):
    (x, x_), (w, w_) = make(rng.standard_normal((5, n)), dtype), make(rng.standard_normal(n), dtype)
    close(keyfold.rmsnorm(x, w, eps=1e-3), reference.rmsnorm(x_, w_, eps=1e-3), dtype)
    close(keyfold.rmsnorm(x), reference.rmsnorm(x_), dtype)
    close(keyfold.rmsnorm(x, w, weight_offset=1.0), reference.rmsnorm(x_, w_, weight_offset=1.0), dtype)


def test_rmsnorm_with_residual(rng):
    x, residual = rng.standard_normal((2, 5, 64)).astype(np.float32)
    w = rng.standard_normal(64).astype(np.float32)
    s = x.astype(np.float64) + residual
    y, total = keyfold.rmsnorm(x, w, residual=residual, return_sum=True)
    close(y, reference.rmsnorm(s, w.astype(np.float64)), "fp32")
    close(total, s, "fp32")
    y, total = keyfold.rmsnorm(x, w, residual=residual, sum=residual, out=x)
    assert y is x and total is residual
    close(x, reference.rmsnorm(s, w.astype(np.float64)), "fp32")
    close(residual, s, "fp32")


def test_rmsnorm_casts(rng):
    """The three casts differ, each as its definition says."""
    x, r, w = (a.astype(np.float16) for a in rng.standard_normal((3, 4, 256)))
    w = w[0]
    full = x.astype(np.float64) + r
    rounded = full.astype(np.float16).astype(np.float64)
    w_ = w.astype(np.float64)
    close(keyfold.rmsnorm(x, w, residual=r, cast="end"), reference.rmsnorm(full, w_), "fp16")
    close(keyfold.rmsnorm(x, w, residual=r, cast="sum"), reference.rmsnorm(rounded, w_), "fp16")
    llama = reference.rmsnorm(rounded).astype(np.float32).astype(np.float16).astype(np.float64) * w_
    close(keyfold.rmsnorm(x, w, residual=r, cast="llama"), llama, "fp16", sums=1e-3)


def test_swiglu(rng, dtype):
    (g, g_), (u, u_) = make(rng.standard_normal((3, 50)), dtype), make(rng.standard_normal((3, 50)), dtype)
    close(keyfold.swiglu(g, u), reference.swiglu(g_, u_), dtype)
    gu, gu_ = make(rng.standard_normal((3, 100)), dtype)
    close(keyfold.swiglu(gu), reference.swiglu(gu_[:, :50], gu_[:, 50:]), dtype)


ROPES = [Rope(), Rope(pairing="gptj"), Rope(dims=32, base=1e5), Rope(scaling="linear", factor=2.0)]


@pytest.mark.parametrize("rope", ROPES)
def test_rope(rng, dtype, rope):
    x, x_ = make(rng.standard_normal((2, 3, 6, 64)), dtype)
    expected = np.empty_like(x_)
    positions = np.array([[0, 5, 2, 100, 7, 8], [3, 3, 3, 4000, 1, 0]])
    for b, h in np.ndindex(2, 3):
        expected[b, h] = reference.rotate(x_[b, h], positions[b], rope)
    close(keyfold.rope(x, positions=positions, rope=rope), expected, dtype)
    for b, h in np.ndindex(2, 3):
        expected[b, h] = reference.rotate(x_[b, h], 11 + np.arange(6), rope)
    close(keyfold.rope(x, position_offset=11, rope=rope), expected, dtype)


def test_rope_struct_carries_every_field():
    rope = Rope("gptj", 16, "yarn", 1e6, 4.0, 1.5, 3.5, 8192.0, 30.0, 2.0, 1.25)
    s = rope.struct()
    assert (s.pairing, s.dims, s.scaling, s.reserved, s.base, s.factor) == (2, 16, 3, 0, 1e6, 4.0)
    assert (s.low_freq_factor, s.high_freq_factor, s.original_context) == (1.5, 3.5, 8192.0)
    assert (s.beta_fast, s.beta_slow, s.attention_factor) == (30.0, 2.0, 1.25)


def test_kv_append(rng):
    k, v = rng.standard_normal((2, 2, 3, 4, 32)).astype(np.float32)
    k_cache, v_cache = np.zeros((2, 2, 3, 20, 32), np.float16)
    slots = np.array([2, 9])
    assert keyfold.kv_append(k, v, k_cache, v_cache, slots=slots, rope=Rope()) is None
    expected_k, expected_v = np.zeros((2, 2, 3, 20, 32))
    for b, h in np.ndindex(2, 3):
        rows = slice(slots[b], slots[b] + 4)
        expected_k[b, h, rows] = reference.rotate(k[b, h].astype(np.float64), slots[b] + np.arange(4), Rope())
        expected_v[b, h, rows] = v[b, h]
    close(k_cache, expected_k, "fp16")
    close(v_cache, expected_v, "fp16")
    with pytest.raises(keyfold.InvalidArgument, match="slot"):
        keyfold.kv_append(k, v, k_cache, v_cache, slots=[0, 17])


def test_embedding(rng, dtype):
    table, exact = make(rng.standard_normal((11, 40)), dtype)
    ids = np.array([3, 0, 10, 3])
    close(keyfold.embedding(table, ids), exact[ids], dtype)
    y = keyfold.embedding(table, ids, dtype="fp32", scale=2.0)
    assert y.dtype == np.float32
    close(y, 2.0 * exact[ids], "fp32")
    assert keyfold.embedding(table, [1, 2]).shape == (2, 40)


QUANTISED = {"q8_0": reference.q8_0, "q4_0": reference.q4_0}


@pytest.mark.parametrize("kind", QUANTISED)
def test_embedding_quantised(rng, kind):
    raw, exact = QUANTISED[kind](rng.standard_normal((7, 64)))
    table = keyfold.Weight(raw, kind)
    assert (table.rows, table.cols) == (7, 64)
    y = keyfold.embedding(table, np.array([6, 2]))
    assert y.dtype == np.float32
    close(y, exact[[6, 2]], "fp32")


@pytest.mark.parametrize("t", [1, 5, 40])
def test_linear(rng, dtype, t):
    (x, x_), (w, w_) = make(rng.standard_normal((t, 96)), dtype), make(rng.standard_normal((50, 96)), dtype)
    bias = rng.standard_normal(50).astype(np.float32)
    close(keyfold.linear(x, w, bias), x_ @ w_.T + bias, dtype)
    packed = keyfold.pack_weight(w)
    assert packed.packed and (packed.rows, packed.cols) == (50, 96)
    close(keyfold.linear(x, packed, dtype="fp32"), x_ @ w_.T, "fp32")


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("t", [1, 9])
def test_linear_quantised(rng, kind, t):
    raw, exact = QUANTISED[kind](rng.standard_normal((48, 256)))
    x = rng.standard_normal((t, 256)).astype(np.float32)
    weight = keyfold.Weight(raw, kind)
    expected = x.astype(np.float64) @ exact.T
    close(keyfold.linear(x, weight), expected, "fp32")
    packed = keyfold.pack_weight(weight)
    assert packed.nbytes <= 1.1 * raw.nbytes + 4096
    close(keyfold.linear(x, packed), expected, "fp32")
    again = keyfold.Weight(packed.tobytes(), kind, rows=48, cols=256, packed=packed.layout)
    np.testing.assert_array_equal(keyfold.linear(x, again), keyfold.linear(x, packed))
    rough = keyfold.linear(x, packed, activations="int8")
    assert np.linalg.norm(rough - expected) / np.linalg.norm(expected) < 0.02


def test_weight_of_strided_rows(rng):
    room = rng.standard_normal((10, 80)).astype(np.float32)
    w = keyfold.Weight(room[::2, :64])
    assert (w.struct.row_bytes, w.rows, w.cols) == (2 * 320, 5, 64)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    close(keyfold.linear(x, w), x.astype(np.float64) @ room[::2, :64].T.astype(np.float64), "fp32")


def test_weight_block():
    assert keyfold.weight_block("q4_0") == (32, 18) and keyfold.weight_block("Q6_K") == (256, 210)
    assert keyfold.weight_block("bf16") == (1, 2) and keyfold.weight_block(8) == (32, 34)
    with pytest.raises(keyfold.InvalidArgument, match="weight type is 'q9', must be one of"):
        keyfold.weight_block("q9")


def test_buffers_in_and_out():
    """Without any framework on the input's side."""
    import array as arrays

    x = arrays.array("f", [0.0, math.log(3.0)])
    y = arrays.array("f", [9.0, 9.0])
    assert keyfold.softmax(x, out=y) is y
    assert y.tolist() == pytest.approx([0.25, 0.75])
    assert values(np.asarray(keyfold.softmax(x))) == pytest.approx([0.25, 0.75])


def test_without_numpy(monkeypatch):
    import array as arrays

    monkeypatch.setattr(keyfold._allocate, "import_numpy", lambda: None)
    y = keyfold.softmax(memoryview(arrays.array("f", [0.0, 0.0, 0.0, 0.0])).cast("B").cast("f", (2, 2)))
    assert isinstance(y, memoryview) and y.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(TypeError, match="give out="):
        keyfold.softmax(arrays.array("f", [0.0]), dtype="bf16")


def test_support_lists_what_runs():
    table = keyfold.support()
    assert {row.operation for row in table} >= {"softmax", "attention", "rmsnorm", "linear"}
    assert all(row.backend and row.dtypes for row in table)
    assert any(row.available and row.operation == "attention" for row in table)


def test_packed_weight_in_other_memory(rng):
    """What takes a packed weight to a device: a copy of its bytes, anywhere, is the same weight."""
    x = rng.standard_normal((2, 64), dtype=np.float32)
    packed = keyfold.pack_weight(rng.standard_normal((8, 64), dtype=np.float32))
    copy = np.frombuffer(packed.tobytes(), dtype=np.uint8)
    moved = packed.moved(copy)
    assert (moved.type, moved.rows, moved.cols, moved.packed) == (packed.type, packed.rows, packed.cols, True)
    np.testing.assert_array_equal(keyfold.linear(x, moved), keyfold.linear(x, packed))
    with pytest.raises(keyfold.InvalidArgument):
        packed.moved(copy[:-1])
