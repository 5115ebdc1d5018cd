# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2's forward pass in Triton, a twin of src/cuda/prefill.cuh.

    O[b, h] = softmax(Q[b, h] K[b, h / group]^T scale + bias, over the visible keys) V[b, h / group],   lse = ln sum e^score

q [B, H, Nq, D], k and v [B, Hkv, Nk, D], last stride 1, D a power of two from 16 to 256. One program computes BLOCK_M
query rows of one head: it keeps q, and a state (m, d, o) in fp32, and goes once over the keys that its rows see, BLOCK_N
at a time. Tiles that every row sees entirely run in a loop without masks; those at the mask's edges before and behind it.

Bytes: q and o once; k and v once for each tile of rows, out of L2 where programs of a head run side by side. Products:
2 of 2 BLOCK_M BLOCK_N D operations a tile.
"""

import math
import os

import torch
import triton
import triton.language as tl

from .mask import alibi_bias, mask_full, mask_keys, mask_visible
from .state import state_add, state_finish

LOG2E = 1.4426950408889634
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def key_tiles(
    m, d, o, q, c, slope, p, K, V, k_row, v_row, first, last, Nk,
    D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr,
    MASKED: tl.constexpr, MAY_BE_EMPTY: tl.constexpr,
):  # fmt: skip
    """The state after the keys first ... last - 1, whole tiles; masks are looked at where MASKED says so."""
    column = tl.arange(0, D)
    for start in tl.range(first, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_at, v_at = K + j[:, None] * k_row + column[None, :], V + j[:, None] * v_row + column[None, :]
        if MASKED:  # beyond the last key: zeros, for 0 x NaN would be NaN
            k = tl.load(k_at, mask=j[:, None] < Nk, other=0.0)
        else:
            k = tl.load(k_at)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if ALIBI:
            s = s * c + alibi_bias(slope, p[:, None], j[None, :])
        if MASKED:
            s = tl.where(mask_visible(p[:, None], j[None, :], Nk, CAUSAL, WINDOW), s, float("-inf"))
            v = tl.load(v_at, mask=j[:, None] < Nk, other=0.0)
        else:
            v = tl.load(v_at)
        m, d, o = state_add(m, d, o, s, 1.0 if ALIBI else c, v, MAY_BE_EMPTY)
    return m, d, o


@triton.jit
def forward_kernel(
    Q, K, V, O, LSE, slopes, c,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    H, GROUP, Nq, Nk,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, ALIBI: tl.constexpr, MAY_BE_EMPTY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Tiles with the most keys first: the last wave is then made of short ones.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    Q += b * q_batch + h * q_head
    K += b * k_batch + h // GROUP * k_head
    V += b * v_batch + h // GROUP * v_head
    i = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, D)
    q = tl.load(Q + i[:, None] * q_row + column[None, :], mask=i[:, None] < Nq, other=0.0)
    slope = tl.load(slopes + h) * 1.4426950408889634 if ALIBI else 0.0  # to units of log2
    p = i + (Nk - Nq)

    p_min, p_max = tile * BLOCK_M + Nk - Nq, tl.minimum((tile + 1) * BLOCK_M, Nq) - 1 + Nk - Nq
    lo, hi = mask_keys(p_min, p_max, Nk, CAUSAL, WINDOW)
    full_lo, full_hi = mask_full(p_min, p_max, Nk, CAUSAL, WINDOW)
    begin, end = lo // BLOCK_N * BLOCK_N, tl.cdiv(hi, BLOCK_N) * BLOCK_N
    full_begin = tl.minimum(tl.maximum(tl.cdiv(full_lo, BLOCK_N) * BLOCK_N, begin), end)
    full_end = tl.maximum(tl.minimum(full_hi // BLOCK_N * BLOCK_N, end), full_begin)

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    d = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, D], tl.float32)
    if WINDOW > 0:
        m, d, o = key_tiles(m, d, o, q, c, slope, p, K, V, k_row, v_row, begin, full_begin, Nk,
                            D, BLOCK_N, CAUSAL, WINDOW, ALIBI, True, MAY_BE_EMPTY)  # fmt: skip
    m, d, o = key_tiles(m, d, o, q, c, slope, p, K, V, k_row, v_row, full_begin, full_end, Nk,
                        D, BLOCK_N, CAUSAL, WINDOW, ALIBI, False, False)  # fmt: skip
    m, d, o = key_tiles(m, d, o, q, c, slope, p, K, V, k_row, v_row, full_end, end, Nk,
                        D, BLOCK_N, CAUSAL, WINDOW, ALIBI, True, MAY_BE_EMPTY)  # fmt: skip

    o, lse = state_finish(m, d, o)
    O += b * o_batch + h * o_head
    tl.store(O + i[:, None] * o_row + column[None, :], o.to(O.dtype.element_ty), mask=i[:, None] < Nq)
    tl.store(LSE + tl.program_id(1).to(tl.int64) * Nq + i, lse, mask=i < Nq)


# ------------------------------------------------------------------------------------------------------------- autotuning


def config(block_m: int, block_n: int, warps: int, stages: int) -> triton.Config:
    return triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=warps, num_stages=stages)


# A warp group of four warps computes 64 rows of a product at least: 128 rows for four warps keep two products a fragment
# of k, for eight warps one; more stages keep more of k and v on the way, fewer leave shared memory for a second program.
CONFIGS = [
    config(128, 128, 8, 2),
    config(128, 64, 8, 3),
    config(128, 64, 4, 3),
    config(64, 64, 4, 3),
    config(64, 128, 4, 2),
    config(128, 128, 8, 3),
]
SHARED_LIMIT = 227 << 10  # bytes a block of Hopper may have


def shared_bytes(block_m: int, block_n: int, stages: int, D: int) -> int:
    return 2 * D * (block_m + 2 * stages * block_n)


def fitting(configs, arguments, **keywords):
    """Those whose tiles fit into shared memory; at D = 256 also into the registers: o alone is 256 columns of fp32."""
    D = {**arguments, **keywords}["D"]
    fits = [
        x for x in configs
        if shared_bytes(x.kwargs["BLOCK_M"], x.kwargs["BLOCK_N"], x.num_stages, D) <= SHARED_LIMIT
        and (D < 256 or x.kwargs["BLOCK_M"] * D <= 128 * 32 * x.num_warps)
    ]  # fmt: skip
    return fits or [config(64, 32, 4, 2)]


tuned_kernel = triton.autotune(
    configs=CONFIGS,
    key=["Nq", "Nk", "D", "CAUSAL", "WINDOW", "ALIBI"],
    prune_configs_by={"early_config_prune": fitting},
)(forward_kernel)

# Without a device there is nothing to tune by: the interpreter takes this.
INTERPRETER_CONFIG = {"BLOCK_M": 16, "BLOCK_N": 16}


def forward(q, k, v, *, causal=False, window=0, slopes=None, scale=None, blocks=None, out=None, lse=None):
    """(o, lse). window: tokens, the query's own among them; 0: no window. slopes: ALiBi's, fp32 [H].

    blocks: a dict of BLOCK_M, BLOCK_N, num_warps, num_stages, to go around the tuner.
    """
    B, H, Nq, D = q.shape
    Hkv, Nk = k.shape[1], k.shape[2]
    if D not in (16, 32, 64, 128, 256) or k.shape != (B, Hkv, Nk, D) or v.shape != k.shape or H % Hkv:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: not of one D of 16 to 256, or H is no multiple of Hkv"
        )
    if any(t.stride(-1) != 1 for t in (q, k, v)):
        raise ValueError("the last stride must be 1")
    scale = 1.0 / math.sqrt(D) if scale is None else scale
    if scale <= 0:
        raise ValueError("scale must be positive: the largest score is sought before it is scaled")
    o = torch.empty((B, H, Nq, D), dtype=q.dtype, device=q.device) if out is None else out
    lse = torch.empty((B, H, Nq), dtype=torch.float32, device=q.device) if lse is None else lse
    arguments = (
        q, k, v, o, lse, slopes if slopes is not None else lse, scale * LOG2E,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3], H, H // Hkv, Nq, Nk,
    )  # fmt: skip
    options = {"D": D, "CAUSAL": causal, "WINDOW": window, "ALIBI": slopes is not None}
    options["MAY_BE_EMPTY"] = window > 0 or (causal and Nq > Nk)

    def grid(chosen):
        return triton.cdiv(Nq, chosen["BLOCK_M"]), B * H

    if blocks is None and INTERPRETED:
        blocks = INTERPRETER_CONFIG
    if blocks is None:
        tuned_kernel[grid](*arguments, **options)
    else:
        forward_kernel[grid](*arguments, **options, **blocks)
    return o, lse
