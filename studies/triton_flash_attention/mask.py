# SPDX-License-Identifier: Apache-2.0
"""The mask as geometry in Triton, a twin of src/math/mask.h. The row at position p sees the keys of one interval:

    [lo, hi),   lo = max(0, p - WINDOW + 1) with a window, else 0;   hi = min(Nk, p + 1) if causal, else Nk

Query row i stands at p = i + Nk - Nq. A window of WINDOW tokens counts the query's own, as Mistral means it.
"""

import triton
import triton.language as tl


@triton.jit
def mask_keys(p_min, p_max, Nk, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The keys that some row at p_min ... p_max sees."""
    lo = tl.maximum(p_min - (WINDOW - 1), 0) if WINDOW > 0 else 0
    hi = tl.minimum(tl.maximum(p_max + 1, 0), Nk) if CAUSAL else Nk
    return tl.minimum(lo, hi), hi


@triton.jit
def mask_full(p_min, p_max, Nk, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The keys that every row at p_min ... p_max sees; hi < lo where there are none."""
    lo = tl.maximum(p_max - (WINDOW - 1), 0) if WINDOW > 0 else 0
    hi = tl.minimum(p_min + 1, Nk) if CAUSAL else Nk
    return lo, hi


@triton.jit
def mask_queries(k0, k1, p_first, p_last, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """The positions among p_first ... p_last that see some key of [k0, k1), as [lo, hi)."""
    lo = tl.maximum(p_first, k0) if CAUSAL else p_first
    hi = tl.minimum(p_last + 1, k1 + WINDOW - 1) if WINDOW > 0 else p_last + 1
    return lo, hi


@triton.jit
def mask_visible(p, j, Nk, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """For each pair of a position p [rows, 1] and a key j [1, keys]."""
    visible = j < Nk
    if CAUSAL:
        visible = visible & (p >= j)
    if WINDOW > 0:
        visible = visible & (p - j < WINDOW)
    return visible


@triton.jit
def alibi_bias(slope, p, j):
    """-slope |p - j|, in fp32: slope [rows, 1] or a number."""
    return -slope * tl.abs(p - j).to(tl.float32)
