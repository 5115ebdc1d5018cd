# SPDX-License-Identifier: Apache-2.0
"""The operations as functions. include/keyfold.h has the exact contract of each; shapes and names are the same here.

Arrays may be NumPy's, torch's, CuPy's, JAX's, or any with ``__dlpack__`` or the buffer protocol; they are not copied.
Inputs may have any strides but the last, which is 1. Outputs are made in the first input's framework, or are what
``out`` and its like give. "float" is fp32, fp16 or bf16; "integer" is int32 or int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from . import _abi
from ._call import Call, chosen, operation, trailing
from ._context import Context
from ._errors import InvalidArgument
from ._tensors import Tensor
from ._weights import DTYPE_OF, Weight

PAIRINGS = {"off": 0, "neox": 1, "gptj": 2}
SCALINGS = {"none": 0, "linear": 1, "llama3": 2, "yarn": 3}
CASTS = {"end": 0, "sum": 1, "llama": 2}
ACTIVATIONS = {"exact": 0, "int8": 1}

CAUSAL, WINDOW_LEFT, WINDOW_RIGHT, ROPE_Q, ROPE_K = (1 << bit for bit in range(5))


def number(what: str, name: str, table: dict[str, int]) -> int:
    try:
        return table[name]
    except (KeyError, TypeError):
        raise InvalidArgument(f"{what} is {name!r}, must be one of {', '.join(table)}") from None


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of each head's first ``dims`` elements: pair c turns by position · base^(−2c/dims).

    ``pairing``: ``"neox"`` pairs (c, c + dims/2), ``"gptj"`` pairs (2c, 2c + 1). ``scaling``: ``"none"``, ``"linear"``,
    ``"llama3"``, ``"yarn"``. A zero means the default that is written beside it.
    """

    pairing: str = "neox"
    dims: int = 0  # all of the head
    scaling: str = "none"
    base: float = 10000.0
    factor: float = 0.0  # of linear, llama3 and YaRN; must be given where used
    low_freq_factor: float = 0.0  # llama3: 1
    high_freq_factor: float = 0.0  # llama3: 4
    original_context: float = 0.0  # llama3 and YaRN; must be given where used
    beta_fast: float = 0.0  # YaRN: 32
    beta_slow: float = 0.0  # YaRN: 1
    attention_factor: float = 0.0  # YaRN: 0.1 ln(factor) + 1

    def struct(self) -> _abi.kf_rope_params:
        return _abi.kf_rope_params(
            pairing=number("rope pairing", self.pairing, PAIRINGS),
            dims=self.dims,
            scaling=number("rope scaling", self.scaling, SCALINGS),
            base=self.base,
            factor=self.factor,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
            original_context=self.original_context,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            attention_factor=self.attention_factor,
        )


@operation
def softmax(
    x: Any,
    *,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    dtype: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """Softmax over the last axis, its statistics in one pass.

    Parameters
    ----------
    x : [*, N] float
    out : [*, N] float, may be x itself
    lse : [*] fp32, where to write ln Σ exp(x)
    return_lse
        Return (y, lse), making lse where it is not given.
    dtype
        Of the output that is made; x's by default.

    Returns
    -------
    y, or (y, lse) with return_lse or where lse is given. A row that is all −inf gives zeros and lse = −inf.
    """
    call = Call("softmax", context)
    tx = call.input("x", x)
    shape = tx.shape if tx is not None else ()
    call.output("y", out, tx, shape, chosen(dtype, tx))
    call.wanted("lse", lse, return_lse, tx, shape[:-1], "fp32")
    return call


@operation
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    dtype: Any = None,
    causal: bool = False,
    window_left: Optional[int] = None,
    window_right: Optional[int] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    key_lengths: Any = None,
    positions: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    bias: Any = None,
    mask: Any = None,
    rope: Optional[Rope] = None,
    rope_q: bool = True,
    rope_k: bool = True,
    query_offsets: Any = None,
    key_offsets: Any = None,
    page_table: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """o = softmax(cap(q kᵀ scale) + alibi + bias, over the visible keys) v.

    Query row i of sequence b stands at position p = i + key_lengths[b] − Nq, unless positions are given. Query head h
    uses KV head h // (H // Hkv). A row without visible keys gives 0, and lse = −inf.

    Parameters
    ----------
    q : [B, H, Nq, D] float
    k : [B, Hkv, Nk, D] float; H is a multiple of Hkv, D of 8, up to 256
    v : [B, Hkv, Nk, Dv] of k's dtype
    out : [B, H, Nq, Dv] of q's dtype, or fp32
    lse : [B, H, Nq] fp32, where to write ln Σ exp(score)
    return_lse
        Return (o, lse), making lse where it is not given.
    dtype
        Of the output that is made: q's (default), or fp32.
    causal
        Key j is visible where j <= p.
    window_left, window_right
        Inclusive: keys from p − window_left to p + window_right. None: no limit.
    scale
        None (or 0): 1/√D.
    softcap
        > 0: score → softcap · tanh(score / softcap).
    key_lengths : [B] integer, 0 to Nk; keys past it are never read
    positions : [B, Nq] integer, the position of each query row
    alibi_slopes : [H] fp32: score − slope · |p − j|
    sinks : [H] fp32: one more logit of each head, dropped after the softmax
    bias : [B or 1, H or 1, Nq or 1, Nk] float; −inf masks
    mask : [B or 1, H or 1, Nq or 1, Nk] bool; True is visible
    rope
        Rotates q (unless rope_q=False) at its position and k (unless rope_k=False) at j, as they are loaded.
    query_offsets, key_offsets, page_table, k_scale, v_scale
        Kept for later: anything but None is Unsupported.

    Returns
    -------
    o, or (o, lse) with return_lse or where lse is given.
    """
    call = Call("attention", context)
    tq, _, tv = call.input("q", q), call.input("k", k), call.input("v", v)
    call.inputs(key_lengths=key_lengths, positions=positions, alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, mask=mask)
    call.inputs(query_offsets=query_offsets, key_offsets=key_offsets, page_table=page_table, k_scale=k_scale, v_scale=v_scale)
    rows = tq.shape[:-1] if tq is not None else ()
    call.output("o", out, tq, rows + (trailing(tv),), chosen(dtype, tq))
    call.wanted("lse", lse, return_lse, tq, rows, "fp32")
    flags = CAUSAL if causal else 0
    if window_left is not None:
        flags |= WINDOW_LEFT
        call.set(window_left=window_left)
    if window_right is not None:
        flags |= WINDOW_RIGHT
        call.set(window_right=window_right)
    if rope is not None:
        flags |= (ROPE_Q if rope_q else 0) | (ROPE_K if rope_k else 0)
        call.set(rope=rope.struct())
    call.set(flags=flags, softcap=softcap, scale=0.0 if scale is None else scale)
    return call


@operation
def merge_states(
    o_parts: Any,
    lse_parts: Any,
    *,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    dtype: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """The result over all keys from S results over disjoint sets of keys.

    o = Σ exp(lse[s] − L) o_parts[s], where L = ln Σ exp(lse[s]).

    Parameters
    ----------
    o_parts : [S, *, Dv] float
    lse_parts : [S, *] fp32, natural log; −inf: no keys, and the part is ignored
    out : [*, Dv] float
    lse : [*] fp32, where to write L
    return_lse
        Return (o, lse), making lse where it is not given.
    dtype
        Of the output that is made; o_parts' by default.

    Returns
    -------
    o, or (o, lse) with return_lse or where lse is given.
    """
    call = Call("merge_states", context)
    parts = call.input("o_parts", o_parts)
    call.input("lse_parts", lse_parts)
    shape = parts.shape[1:] if parts is not None else ()
    call.output("o", out, parts, shape, chosen(dtype, parts))
    call.wanted("lse", lse, return_lse, parts, shape[:-1], "fp32")
    return call


@operation
def rmsnorm(
    x: Any,
    weight: Any = None,
    *,
    residual: Any = None,
    out: Any = None,
    sum: Any = None,
    return_sum: bool = False,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
    cast: str = "end",
    dtype: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """y = s / √(mean(s²) + eps) · (weight_offset + weight), where s = x + residual.

    Parameters
    ----------
    x : [*, N] float
    weight : [N] float; None: ones
    residual : [*, N] float
    out : [*, N] float, may be x itself
    sum : [*, N] float, where to write s; may be residual itself or, where out is not, x itself
    return_sum
        Return (y, s), making s (in x's dtype) where it is not given.
    weight_offset
        1 for Gemma.
    cast
        Where rounding to the arrays' dtype happens. ``"end"``: once, at the end. ``"sum"``: s is rounded and that is
        normalised. ``"llama"``: as ``"sum"``, and the normalised s is rounded before the product with weight.
    dtype
        Of the output that is made; x's by default.

    Returns
    -------
    y, or (y, s) with return_sum or where sum is given.
    """
    call = Call("rmsnorm", context)
    tx = call.input("x", x)
    call.input("residual", residual)
    call.input("weight", weight)
    shape = tx.shape if tx is not None else ()
    call.output("y", out, tx, shape, chosen(dtype, tx))
    call.wanted("sum", sum, return_sum, tx, shape, chosen(None, tx))
    call.set(eps=eps, weight_offset=weight_offset, cast=number("rmsnorm: cast", cast, CASTS))
    return call


@operation
def swiglu(gate: Any, up: Any = None, *, out: Any = None, dtype: Any = None, context: Optional[Context] = None) -> Call:
    """y = gate / (1 + exp(−gate)) · up.

    Parameters
    ----------
    gate : [*, N] float; or, without up, [*, 2N], whose rows are [gate | up]
    up : [*, N] of gate's dtype
    out : [*, N] float, may be gate or up itself
    dtype
        Of the output that is made; gate's by default.
    """
    call = Call("swiglu", context)
    tensor = call.input("gate_up" if up is None else "gate", gate)
    call.input("up", up)
    shape = tensor.shape if tensor is not None else ()
    if up is None and shape:
        shape = shape[:-1] + (shape[-1] // 2,)
    call.output("y", out, tensor, shape, chosen(dtype, tensor))
    return call


@operation
def rope(
    x: Any,
    *,
    positions: Any = None,
    position_offset: int = 0,
    rope: Rope = Rope(),
    out: Any = None,
    dtype: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """Rotates row n of each head at position_offset + n, or at positions[b, n].

    Parameters
    ----------
    x : [B, H, N, D] float, D even
    positions : [B, N] integer
    out : [B, H, N, D] float, may be x itself
    dtype
        Of the output that is made; x's by default.
    """
    call = Call("rope", context)
    tx = call.input("x", x)
    call.input("positions", positions)
    call.output("y", out, tx, tx.shape if tx is not None else (), chosen(dtype, tx))
    call.set(position_offset=position_offset, rope=rope.struct())
    return call


@operation
def kv_append(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    slots: Any = None,
    positions: Any = None,
    rope: Optional[Rope] = None,
    context: Optional[Context] = None,
) -> Call:
    """cache[b, h, slots[b] + n] = new[b, h, n], in the cache's dtype.

    With rope, k is rotated at slots[b] + n, or at positions[b, n].

    Parameters
    ----------
    k : [B, Hkv, N, D] float
    v : [B, Hkv, N, Dv] float
    k_cache : [B, Hkv, capacity, D] float, written
    v_cache : [B, Hkv, capacity, Dv] float, written
    slots : [B] integer, the first slot of each sequence; None: 0
    positions : [B, N] integer
    rope
        None: k is stored as it is.

    Returns
    -------
    None. Slots that do not fit the cache are refused before anything is written.
    """
    call = Call("kv_append", context)
    call.input("k", k)
    call.input("v", v)
    call.inout("k_cache", k_cache)
    call.inout("v_cache", v_cache)
    call.input("slots", slots)
    call.input("positions", positions)
    if rope is not None:
        call.set(rope=rope.struct())
    return call


@operation
def embedding(
    table: Any,
    ids: Any,
    *,
    out: Any = None,
    scale: float = 1.0,
    dtype: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """y[t] = scale · table[ids[t]].

    Parameters
    ----------
    table : Weight [V, N] of any type, not packed; or a float array [V, N]
    ids : [T] integer
    out : [T, N] float
    dtype
        Of the output that is made: by default the table's, or fp32 for a quantised one.
    """
    call = Call("embedding", context)
    weight = call.weights("table", table)
    tids = call.input("ids", ids)
    like = weight.owner if isinstance(weight.owner, Tensor) and not isinstance(table, Weight) else tids
    own = DTYPE_OF.get(weight.type, "fp32") if dtype is None else dtype
    call.output("y", out, like, (tids.shape if tids is not None else ()) + (weight.cols,), chosen(own, None))
    call.set(scale=scale)
    return call


@operation
def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    out: Any = None,
    activations: str = "exact",
    dtype: Any = None,
    context: Optional[Context] = None,
) -> Call:
    """y = x Wᵀ + bias, the weights dequantised inside the product.

    Parameters
    ----------
    x : [T, K] float
    weight : Weight [N, K] (see pack_weight), or a float array [N, K]
    bias : [N] float
    out : [T, N] float
    activations
        ``"exact"``: x as it is. ``"int8"``: x is quantised in blocks of 32 for quantised weights.
    dtype
        Of the output that is made; x's by default.
    """
    call = Call("linear", context)
    tx = call.input("x", x)
    w = call.weights("weight", weight)
    call.input("bias", bias)
    rows = tx.shape[:-1] if tx is not None else ()
    call.output("y", out, tx, rows + (w.rows,), chosen(dtype, tx))
    call.set(activations=number("linear: activations", activations, ACTIVATIONS))
    return call
