# SPDX-License-Identifier: Apache-2.0
"""The attention state in Triton, a twin of src/math/state.h: m, d, o of a tile's rows, in units of log2.

    m = max_J t_j      d = sum_J 2^(t_j - m)      o = sum_J 2^(t_j - m) v_j,      t = c s,   c = scale log2(e)

Here m is kept as c times the largest score, so that a weight is one FMA and one exp2: 2^(s c - m).
"""

import triton
import triton.language as tl


@triton.jit
def state_add(m, d, o, s, c, v, MAY_BE_EMPTY: tl.constexpr):
    """The state after one more tile of keys: scores s [rows, keys], values v [keys, Dv].

    MAY_BE_EMPTY: some row may not have seen a key after this tile. Its m is -inf, and -inf - (-inf) would be NaN.
    """
    top = tl.maximum(m, tl.max(s, 1) * c)
    origin = tl.where(top == float("-inf"), 0.0, top) if MAY_BE_EMPTY else top
    p = tl.math.exp2(s * c - origin[:, None])
    w = tl.math.exp2(m - origin)
    d = d * w + tl.sum(p, 1)
    o = tl.dot(p.to(v.dtype), v, o * w[:, None], input_precision="ieee")
    return top, d, o


@triton.jit
def state_finish(m, d, o):
    """o / d, and ln of the sum of e^score. No keys: 0 and -inf."""
    empty = d == 0.0
    whole = tl.where(empty, 1.0, d)
    lse = tl.where(empty, float("-inf"), (m + tl.math.log2(whole)) * 0.6931471805599453)
    return o / whole[:, None], lse
