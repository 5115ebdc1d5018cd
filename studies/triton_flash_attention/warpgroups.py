# SPDX-License-Identifier: Apache-2.0
"""The forward pass for Hopper's warp groups, in Gluon, Triton's lower level: what FlashAttention-3 adds, in one page.

    O[b, h] = softmax(Q[b, h] K[b, h / group]^T scale) V[b, h / group],   lse = ln sum e^score,   causal or not

The state (m, d, o) and its update are those of state.py. Where Triton decides who loads and when a product is waited for,
here it is written down:

  fetch     one warp asks for tiles by TMA into a ring of STAGES places, each with two barriers: `ready` (the bytes are
            there) and `free` (every warp group is done with it).
  compute   GROUPS warp groups, 64 rows each. Tile t's Q K^T is sent before tile t - 1's P V; then the state takes in tile
            t's scores while P V still runs. So exp2 runs beside this group's own product and beside the others'.

Keys are walked from the last tile to the first, so that the causal edge is the first tile, outside the loop.
q, k, v bf16, contiguous, D 64, 128 or 256; Nq a multiple of 64, Nk one of BLOCK_N; causal: Nq = Nk.
Bytes and products: as in forward.py. Shared memory: 2 D (64 GROUPS + 2 STAGES BLOCK_N) bytes. Registers of a thread: D / 2
for o, 3 BLOCK_N / 4 for s and p: three groups have room at D = 64, where exponentials take as long as products.
"""

import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS = gl.constexpr(64)  # of a warp group: the smallest product's
LOG2E = 1.4426950408889634


@gluon.jit
def fetch(Q, K, V, places, q_first, k_first, tiles):
    q, k, v, q_ready, k_ready, v_ready, k_free, v_free = places
    GROUPS: gl.constexpr = q.shape[0]
    STAGES: gl.constexpr = k.shape[0]
    BLOCK_N: gl.constexpr = k.shape[1]
    mbarrier.expect(q_ready, GROUPS * Q.block_type.nbytes)
    for g in gl.static_range(GROUPS):
        tma.async_copy_global_to_shared(Q, [q_first + g * ROWS, 0], q_ready, q.index(g))
    for t in range(tiles):
        at, parity = t % STAGES, (t // STAGES & 1) ^ 1
        row = k_first + (tiles - 1 - t) * BLOCK_N
        mbarrier.wait(k_free.index(at), parity)
        mbarrier.expect(k_ready.index(at), K.block_type.nbytes)
        tma.async_copy_global_to_shared(K, [row, 0], k_ready.index(at), k.index(at))
        mbarrier.wait(v_free.index(at), parity)
        mbarrier.expect(v_ready.index(at), V.block_type.nbytes)
        tma.async_copy_global_to_shared(V, [row, 0], v_ready.index(at), v.index(at))


@gluon.jit
def compute(O, LSE, places, head_first, p_first, Nq, c, tiles, GROUP: gl.constexpr, CAUSAL: gl.constexpr):
    q, k, v, q_ready, k_ready, v_ready, k_free, v_free = places
    STAGES: gl.constexpr = k.shape[0]
    BLOCK_N: gl.constexpr = k.shape[1]
    D: gl.constexpr = k.shape[2]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, OUTPUT, 2)
    zero = gl.full([ROWS, BLOCK_N], 0.0, gl.float32, SCORES)
    rows = q.index(GROUP)
    p0 = p_first + GROUP * ROWS
    skipped = 0
    if CAUSAL:  # the last tile may lie behind the causal edge of this group's rows, while another group needs it
        skipped = gl.maximum(tiles - 1 - (p0 + ROWS - 1) // BLOCK_N, 0)
        mbarrier.arrive(k_free.index(0), count=1, pred=skipped > 0)
        mbarrier.arrive(v_free.index(0), count=1, pred=skipped > 0)

    mbarrier.wait(q_ready, 0)
    mbarrier.wait(k_ready.index(skipped), 0)
    s = warpgroup_mma(rows, k.index(skipped).permute([1, 0]), zero, use_acc=False)
    mbarrier.arrive(k_free.index(skipped), count=1)
    if CAUSAL:
        i = p0 + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        j = (tiles - 1 - skipped) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES))
        s = gl.where(i[:, None] >= j[None, :], s, float("-inf"))
    m = gl.max(s, 1) * c
    p = gl.exp2(s * c - m[:, None])
    d = gl.sum(p, 1)
    o = gl.full([ROWS, D], 0.0, gl.float32, OUTPUT)
    a = gl.convert_layout(p.to(k.dtype), OPERAND)
    for t in range(skipped + 1, tiles):
        at, last = t % STAGES, (t - 1) % STAGES
        mbarrier.wait(k_ready.index(at), t // STAGES & 1)
        s_sent = warpgroup_mma(rows, k.index(at).permute([1, 0]), zero, use_acc=False, is_async=True)
        mbarrier.wait(v_ready.index(last), (t - 1) // STAGES & 1)
        o_sent = warpgroup_mma(a, v.index(last), o, is_async=True)
        s = warpgroup_mma_wait(1, [s_sent])
        mbarrier.arrive(k_free.index(at), count=1)

        top = gl.maximum(m, gl.max(s, 1) * c)
        p = gl.exp2(s * c - top[:, None])
        w = gl.exp2(m - top)
        d = d * w + gl.sum(p, 1)
        m = top

        o, a = warpgroup_mma_wait(0, [o_sent, a])
        mbarrier.arrive(v_free.index(last), count=1)
        o = o * gl.convert_layout(w, gl.SliceLayout(1, OUTPUT))[:, None]
        a = gl.convert_layout(p.to(k.dtype), OPERAND)
    last = (tiles - 1) % STAGES
    mbarrier.wait(v_ready.index(last), (tiles - 1) // STAGES & 1)
    o = warpgroup_mma(a, v.index(last), o)

    lse = (m + gl.log2(d)) * 0.6931471805599453
    o = o / gl.convert_layout(d, gl.SliceLayout(1, OUTPUT))[:, None]
    rows.store(o.to(rows.dtype))  # q's place: its last reader was this group
    fence_async_shared()
    if p0 < Nq:  # else a tile's end that is another head's beginning
        gl.store(LSE + head_first + p0 + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES)), lse)
        tma.async_copy_shared_to_global(O, [head_first + p0, 0], rows)
    tma.store_wait(0)


@gluon.jit
def warpgroups_kernel(
    Q, K, V, O, LSE, c, H, GROUP, Nq, Nk,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    D: gl.constexpr = Q.block_type.shape[1]
    tile, head = gl.num_programs(0) - 1 - gl.program_id(0), gl.program_id(1)
    head_first, p_first = head * Nq, tile * GROUPS * ROWS
    k_first = (head // H * (H // GROUP) + head % H // GROUP) * Nk
    tiles = Nk // BLOCK_N
    if CAUSAL:
        tiles = gl.minimum((p_first + GROUPS * ROWS + BLOCK_N - 1) // BLOCK_N, tiles)

    q = gl.allocate_shared_memory(Q.dtype, [GROUPS, ROWS, D], Q.layout)
    k = gl.allocate_shared_memory(K.dtype, [STAGES, BLOCK_N, D], K.layout)
    v = gl.allocate_shared_memory(V.dtype, [STAGES, BLOCK_N, D], V.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for n in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(n), count=1)
        mbarrier.init(v_ready.index(n), count=1)
        mbarrier.init(k_free.index(n), count=GROUPS)
        mbarrier.init(v_free.index(n), count=GROUPS)
    fence_async_shared()

    places = (q, k, v, q_ready, k_ready, v_ready, k_free, v_free)
    fetched = (Q, K, V, places, head_first + p_first, k_first, tiles)
    if GROUPS == 2:  # warps of each further role, and their registers a thread
        gl.warp_specialize(
            [
                (compute, (O, LSE, places, head_first, p_first, Nq, c, tiles, 0, CAUSAL)),
                (compute, (O, LSE, places, head_first, p_first, Nq, c, tiles, 1, CAUSAL)),
                (fetch, fetched),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (compute, (O, LSE, places, head_first, p_first, Nq, c, tiles, 0, CAUSAL)),
                (compute, (O, LSE, places, head_first, p_first, Nq, c, tiles, 1, CAUSAL)),
                (compute, (O, LSE, places, head_first, p_first, Nq, c, tiles, 2, CAUSAL)),
                (fetch, fetched),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


def forward(q, k, v, *, causal=False, block_n=0, stages=2, groups=2, out=None, lse=None):
    """(o, lse). block_n: 64 or 128, 0: the largest that fits; groups: 2, or 3 at D = 64."""
    B, H, Nq, D = q.shape
    Hkv, Nk = k.shape[1], k.shape[2]
    block_n = block_n or (64 if D == 256 else 128)
    if Nq % 64 or Nk % block_n or (causal and Nq != Nk) or not all(t.is_contiguous() for t in (q, k, v)):
        raise ValueError(
            f"Nq = {Nq}, Nk = {Nk}: no multiples of 64 and {block_n}, unequal under a causal mask, or strided"
        )
    if groups == 3 and (D != 64 or (causal and block_n != 128)):
        raise ValueError("three groups: D = 64 and, under a causal mask, 128 keys a tile")
    o = torch.empty_like(q) if out is None else out
    lse = torch.empty((B, H, Nq), dtype=torch.float32, device=q.device) if lse is None else lse

    def tiled(x, rows):  # x as one matrix of rows, read or written so many at a time
        layout = gl.NVMMASharedLayout.get_default_for([rows, D], gl.bfloat16)
        return TensorDescriptor(x, [x.numel() // D, D], [D, 1], [rows, D], layout)

    warpgroups_kernel[(math.ceil(Nq / (64 * groups)), B * H)](
        tiled(q, 64), tiled(k, block_n), tiled(v, block_n), tiled(o, 64), lse, LOG2E / math.sqrt(D), H, H // Hkv, Nq, Nk,
        BLOCK_N=block_n, STAGES=stages, GROUPS=groups, CAUSAL=causal, num_warps=4,
    )  # fmt: skip
    return o, lse
