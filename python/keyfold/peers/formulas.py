# SPDX-License-Identifier: Apache-2.0
"""The operations as a textbook has them, on arrays of NumPy or torch (`xp` is the module), in the precision of the input.

In float64 they are what every implementation is held against; in fp32 they are the peer "numpy".
"""

from __future__ import annotations

import math
from typing import Any

EPS = 1e-5  # of RMSNorm, in all of these comparisons
ROPE_BASE = 10000.0


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.amax(x, -1)[..., None])
    return e / e.sum(-1)[..., None]


def scores(xp: Any, q: Any, k: Any, causal: bool, rows: Any, keys: Any) -> Any:
    """[*, Nq, Nk], -inf where the mask hides the key. rows and keys are 0 ... Nq - 1 and 0 ... Nk - 1, as arrays."""
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = xp.where(keys[None, :] <= rows[:, None] + (k.shape[-2] - q.shape[-2]), s, -math.inf)
    return s


def attention(xp: Any, q: Any, k: Any, v: Any, causal: bool, rows: Any, keys: Any) -> Any:
    return softmax(xp, scores(xp, q, k, causal, rows, keys)) @ v


def rmsnorm(xp: Any, x: Any, residual: Any, weight: Any) -> Any:
    s = x + residual
    return s / xp.sqrt((s * s).mean(-1) + EPS)[..., None] * weight


def swiglu(xp: Any, gate: Any, up: Any) -> Any:
    return gate / (1 + xp.exp(-gate)) * up


def rope(xp: Any, x: Any, angles: Any) -> Any:
    """[*, N, D] turned by angles [N, D/2], pairs (c, c + D/2)."""
    half = x.shape[-1] // 2
    a, b, cos, sin = x[..., :half], x[..., half:], xp.cos(angles), xp.sin(angles)
    return xp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def linear(xp: Any, x: Any, weight: Any) -> Any:
    return x @ weight.T
