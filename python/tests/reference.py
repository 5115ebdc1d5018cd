# SPDX-License-Identifier: Apache-2.0
"""The operations in NumPy and float64, from their definitions, and what an answer in each dtype may differ by."""

import math

import numpy as np

import keyfold

try:
    import ml_dtypes

    BF16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BF16 = None

# Unit of the last place of a number near 1: half of it is what one rounding may do.
ULP = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}


def to_bf16_bits(x):
    """uint16: float32's upper half, rounded to the nearest even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def make(x, dtype):
    """x in a dtype of keyfold: (what is given to keyfold, its exact values in float64)."""
    if dtype == "fp32":
        a = np.asarray(x, np.float32)
        return a, a.astype(np.float64)
    if dtype == "fp16":
        a = np.asarray(x, np.float16)
        return a, a.astype(np.float64)
    bits = to_bf16_bits(x)
    values = from_bf16_bits(bits).astype(np.float64)
    return (bits.view(BF16) if BF16 is not None else keyfold.Tensor(bits, dtype="bf16")), values


def values(a):
    """float64 of a result."""
    if isinstance(a, keyfold.Tensor):
        a = a.array
    if a.dtype == np.uint16:
        return from_bf16_bits(a).astype(np.float64)
    return a.astype(np.float64)


def close(got, expected, dtype, sums=1e-5):
    """One rounding to dtype, and an fp32 sum's error."""
    got, expected = values(got), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    scale = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    np.testing.assert_allclose(got, expected, rtol=ULP[dtype], atol=sums * scale)


def softmax(x):
    with np.errstate(invalid="ignore", divide="ignore"):
        m = x.max(-1, keepdims=True, initial=-np.inf)
        e = np.where(m == -np.inf, 0.0, np.exp(x - np.where(m == -np.inf, 0.0, m)))
        d = e.sum(-1, keepdims=True)
        lse = np.where(d > 0, np.log(d) + m, -np.inf)
        return np.where(d > 0, e / np.where(d > 0, d, 1), 0.0), lse[..., 0]


def attention(
    q,
    k,
    v,
    causal=False,
    window_left=None,
    window_right=None,
    scale=None,
    softcap=0.0,
    key_lengths=None,
    positions=None,
    alibi_slopes=None,
    sinks=None,
    bias=None,
    mask=None,
    rope=None,
):
    """(o, lse) of float64 arrays."""
    B, H, Nq, D = q.shape
    _, Hkv, Nk, Dv = v.shape
    scale = 1 / math.sqrt(D) if scale is None else scale
    o, lse = np.zeros((B, H, Nq, Dv)), np.full((B, H, Nq), -np.inf)
    for b in range(B):
        length = Nk if key_lengths is None else int(key_lengths[b])
        p = np.arange(Nq) + length - Nq if positions is None else np.asarray(positions[b], np.int64)
        j = np.arange(length)
        for h in range(H):
            kh, vh, qh = k[b, h // (H // Hkv), :length], v[b, h // (H // Hkv), :length], q[b, h]
            if rope is not None:
                qh, kh = rotate(qh, p, rope), rotate(kh, j, rope)
            s = qh @ kh.T * scale
            if softcap:
                s = softcap * np.tanh(s / softcap)
            if alibi_slopes is not None:
                s = s - float(alibi_slopes[h]) * np.abs(p[:, None] - j[None, :])
            if bias is not None:
                s = s + np.broadcast_to(bias, (B, H, Nq, Nk))[b, h, :, :length]
            seen = np.ones((Nq, length), bool)
            if causal:
                seen &= j[None, :] <= p[:, None]
            if window_left is not None:
                seen &= j[None, :] >= p[:, None] - window_left
            if window_right is not None:
                seen &= j[None, :] <= p[:, None] + window_right
            if mask is not None:
                seen &= np.broadcast_to(mask, (B, H, Nq, Nk))[b, h, :, :length]
            s = np.where(seen, s, -np.inf)
            if sinks is not None:
                s = np.concatenate([s, np.full((Nq, 1), float(sinks[h]))], axis=1)
            weights, lse[b, h] = softmax(s)
            o[b, h] = weights[:, :length] @ vh
    return o, lse


def rotate(x, positions, rope):
    """x [N, D] at positions [N]."""
    dims = rope.dims or x.shape[-1]
    c = np.arange(dims // 2)
    angle = np.asarray(positions, np.float64)[:, None] * rope.base ** (-2.0 * c / dims)
    if rope.scaling == "linear":
        angle = angle / rope.factor
    first, second = (c, c + dims // 2) if rope.pairing == "neox" else (2 * c, 2 * c + 1)
    y = x.copy()
    y[:, first] = x[:, first] * np.cos(angle) - x[:, second] * np.sin(angle)
    y[:, second] = x[:, first] * np.sin(angle) + x[:, second] * np.cos(angle)
    return y


def merge_states(o_parts, lse_parts):
    weights, _ = softmax(np.moveaxis(lse_parts, 0, -1))
    with np.errstate(divide="ignore"):
        lse = np.logaddexp.reduce(lse_parts, axis=0)
    return np.einsum("...s,s...d->...d", weights, np.where(np.isneginf(lse_parts)[..., None], 0.0, o_parts)), lse


def rmsnorm(s, weight=None, eps=1e-5, weight_offset=0.0):
    y = s / np.sqrt((s**2).mean(-1, keepdims=True) + eps)
    return y * (weight_offset + (1.0 if weight is None else weight))


def swiglu(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def q8_0(x):
    """GGUF's Q8_0 of x [N, K]: (bytes [N, K/32 · 34], the values they mean)."""
    blocks = x.reshape(x.shape[0], -1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        quants = np.where(scale > 0, np.rint(blocks / scale.astype(np.float64)), 0).clip(-127, 127).astype(np.int8)
    raw = np.concatenate([scale.view(np.uint8), quants.view(np.uint8)], axis=-1)
    return raw.reshape(x.shape[0], -1), (scale.astype(np.float64) * quants).reshape(x.shape)


def q4_0(x):
    """GGUF's Q4_0 of x [N, K]: a scale in fp16, then elements c (low half) and c + 16 (high) of byte c, each + 8."""
    blocks = x.reshape(x.shape[0], -1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 7).astype(np.float16)
    quants = (np.rint(blocks / scale.astype(np.float64)).clip(-8, 7) + 8).astype(np.uint8)
    raw = np.concatenate([scale.view(np.uint8), quants[..., :16] | quants[..., 16:] << 4], axis=-1)
    return raw.reshape(x.shape[0], -1), (scale.astype(np.float64) * (quants.astype(np.float64) - 8)).reshape(x.shape)
