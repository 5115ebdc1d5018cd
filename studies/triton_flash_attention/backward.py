# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2's backward pass in Triton, from the stored log-sum-exp: no scores are kept, each tile's are made again.

    P = e^(S - lse)          dV = P^T dO          dP = dO V^T          delta = rowsum(dO o O)
    dS = P o (dP - delta)    dQ = scale dS K      dK = scale dS^T Q

(S are the scores with scale and bias; o is the product element by element.) Two kernels, so that no sum is shared between
programs and the result is the same at every run: one program of the first owns a tile of keys and goes over the queries that
see them, of every head of its group; one of the second owns a tile of queries and goes over the keys that they see.
"""

import math

import torch
import triton
import triton.language as tl

from .forward import INTERPRETED, LOG2E, forward
from .mask import alibi_bias, mask_keys, mask_queries, mask_visible

# Tiles of rows and of keys; both kernels hold two accumulators, or one and two operands, of a tile by D.
BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16} if INTERPRETED else {"BLOCK_M": 64, "BLOCK_N": 64}


@triton.jit
def delta_kernel(
    O, DO, DELTA, o_batch, o_head, o_row, do_batch, do_head, do_row, H, Nq, D: tl.constexpr, BLOCK_M: tl.constexpr
):
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, D)
    live = i[:, None] < Nq
    o = tl.load(O + b * o_batch + h * o_head + i[:, None] * o_row + column[None, :], mask=live, other=0.0)
    do = tl.load(DO + b * do_batch + h * do_head + i[:, None] * do_row + column[None, :], mask=live, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + tl.program_id(1).to(tl.int64) * Nq + i, delta, mask=i < Nq)


@triton.jit
def weights(q, k, lse, slope, c, p, j, Nk, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr):
    """P of a tile, [rows, keys], in fp32. lse in units of log2; +inf for rows that do not exist or see no key."""
    t = tl.dot(q, tl.trans(k), input_precision="ieee") * c
    if ALIBI:
        t += alibi_bias(slope, p[:, None], j[None, :])
    t = tl.where(mask_visible(p[:, None], j[None, :], Nk, CAUSAL, WINDOW), t, float("-inf"))
    return tl.math.exp2(t - lse[:, None])


@triton.jit
def load_rows(Q, DO, LSE, DELTA, q_row, do_row, i, Nq, D: tl.constexpr):
    """A tile of queries: q, dO, lse in units of log2, delta."""
    column = tl.arange(0, D)
    live = i[:, None] < Nq
    q = tl.load(Q + i[:, None] * q_row + column[None, :], mask=live, other=0.0)
    do = tl.load(DO + i[:, None] * do_row + column[None, :], mask=live, other=0.0)
    lse = tl.load(LSE + i, mask=i < Nq, other=float("inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)  # log2(e)
    return q, do, lse, tl.load(DELTA + i, mask=i < Nq, other=0.0)


@triton.jit
def keys_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV, slopes, scale, c,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, do_batch, do_head, do_row,
    dk_batch, dk_head, dk_row, H, GROUP, Nq, Nk,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys: over the heads of the group, over the query tiles that see some of them."""
    first = tl.program_id(0) * BLOCK_N
    b, kv = (tl.program_id(1) // (H // GROUP)).to(tl.int64), (tl.program_id(1) % (H // GROUP)).to(tl.int64)
    j = first + tl.arange(0, BLOCK_N)
    column = tl.arange(0, D)
    live = j[:, None] < Nk
    k = tl.load(K + b * k_batch + kv * k_head + j[:, None] * k_row + column[None, :], mask=live, other=0.0)
    v = tl.load(V + b * v_batch + kv * v_head + j[:, None] * v_row + column[None, :], mask=live, other=0.0)
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    p_first = Nk - Nq
    lo, hi = mask_queries(first, tl.minimum(first + BLOCK_N, Nk), p_first, Nk - 1, CAUSAL, WINDOW)
    begin = tl.maximum(lo - p_first, 0) // BLOCK_M * BLOCK_M
    for member in range(0, GROUP):
        h = kv * GROUP + member
        slope = tl.load(slopes + h) * 1.4426950408889634 if ALIBI else 0.0
        rows = (b * H + h) * Nq
        for start in range(begin, hi - p_first, BLOCK_M):
            i = start + tl.arange(0, BLOCK_M)
            q, do, lse, delta = load_rows(Q + b * q_batch + h * q_head, DO + b * do_batch + h * do_head,
                                          LSE + rows, DELTA + rows, q_row, do_row, i, Nq, D)  # fmt: skip
            p = weights(q, k, lse, slope, c, i + p_first, j, Nk, CAUSAL, WINDOW, ALIBI)
            dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None])
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    place = b * dk_batch + kv * dk_head + j[:, None] * dk_row + column[None, :]
    tl.store(DK + place, (dk * scale).to(DK.dtype.element_ty), mask=live)
    tl.store(DV + place, dv.to(DV.dtype.element_ty), mask=live)


@triton.jit
def queries_kernel(
    Q, K, V, DO, LSE, DELTA, DQ, slopes, scale, c,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, do_batch, do_head, do_row,
    dq_batch, dq_head, dq_row, H, GROUP, Nq, Nk,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries, over the keys that they see."""
    start = tl.program_id(0) * BLOCK_M
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    i = start + tl.arange(0, BLOCK_M)
    column = tl.arange(0, D)
    slope = tl.load(slopes + h) * 1.4426950408889634 if ALIBI else 0.0
    rows = (b * H + h) * Nq
    q, do, lse, delta = load_rows(Q + b * q_batch + h * q_head, DO + b * do_batch + h * do_head,
                                  LSE + rows, DELTA + rows, q_row, do_row, i, Nq, D)  # fmt: skip
    K += b * k_batch + h // GROUP * k_head
    V += b * v_batch + h // GROUP * v_head
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    lo, hi = mask_keys(start + Nk - Nq, tl.minimum(start + BLOCK_M, Nq) - 1 + Nk - Nq, Nk, CAUSAL, WINDOW)
    for first in range(lo // BLOCK_N * BLOCK_N, hi, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)
        live = j[:, None] < Nk
        k = tl.load(K + j[:, None] * k_row + column[None, :], mask=live, other=0.0)
        v = tl.load(V + j[:, None] * v_row + column[None, :], mask=live, other=0.0)
        p = weights(q, k, lse, slope, c, i + Nk - Nq, j, Nk, CAUSAL, WINDOW, ALIBI)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    place = b * dq_batch + h * dq_head + i[:, None] * dq_row + column[None, :]
    tl.store(DQ + place, (dq * scale).to(DQ.dtype.element_ty), mask=i[:, None] < Nq)


def backward(q, k, v, o, lse, do, *, causal=False, window=0, slopes=None, scale=None):
    """(dq, dk, dv). ALiBi's slopes are constants: they get no gradient."""
    B, H, Nq, D = q.shape
    Hkv, Nk = k.shape[1], k.shape[2]
    scale = 1.0 / math.sqrt(D) if scale is None else scale
    do = do if do.stride(-1) == 1 else do.contiguous()
    delta = torch.empty((B, H, Nq), dtype=torch.float32, device=q.device)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    M, N = BLOCKS["BLOCK_M"], BLOCKS["BLOCK_N"]
    delta_kernel[(triton.cdiv(Nq, M), B * H)](o, do, delta, *o.stride()[:3], *do.stride()[:3], H, Nq, D=D, BLOCK_M=M)
    given = slopes if slopes is not None else lse
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3])
    options = {
        "D": D,
        "CAUSAL": causal,
        "WINDOW": window,
        "ALIBI": slopes is not None,
        **BLOCKS,
        "num_warps": 8,
        "num_stages": 2,
    }
    keys_kernel[(triton.cdiv(Nk, N), B * Hkv)](
        q,
        k,
        v,
        do,
        lse,
        delta,
        dk,
        dv,
        given,
        scale,
        scale * LOG2E,
        *strides,
        *dk.stride()[:3],
        H,
        H // Hkv,
        Nq,
        Nk,
        **options,
    )
    queries_kernel[(triton.cdiv(Nq, M), B * H)](
        q,
        k,
        v,
        do,
        lse,
        delta,
        dq,
        given,
        scale,
        scale * LOG2E,
        *strides,
        *dq.stride()[:3],
        H,
        H // Hkv,
        Nq,
        Nk,
        **options,
    )
    return dq, dk, dv


class Attention(torch.autograd.Function):
    """attention(q, k, v) for autograd."""

    @staticmethod
    def forward(ctx, q, k, v, causal, window, slopes, blocks):
        o, lse = forward(q, k, v, causal=causal, window=window, slopes=slopes, blocks=blocks)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = {"causal": causal, "window": window, "slopes": slopes}
        return o

    @staticmethod
    def backward(ctx, do):
        return (*backward(*ctx.saved_tensors, do, **ctx.options), None, None, None, None)


def attention(q, k, v, *, causal=False, window=0, slopes=None, blocks=None):
    """o, with gradients for q, k and v."""
    return Attention.apply(q, k, v, causal, window, slopes, blocks)
