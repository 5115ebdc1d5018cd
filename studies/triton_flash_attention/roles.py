# SPDX-License-Identifier: Apache-2.0
"""The forward pass with warps of two roles, by Triton's own warp specialisation: one warp group fetches tiles, two compute.

    O[b, h] = softmax(Q[b, h] K[b, h / group]^T scale) V[b, h / group],   lse = ln sum e^score

The loop is forward.py's, with its state, without a mask; what differs is `warp_specialize=True` and that tiles are fetched
through tensor descriptors (TMA), which is what Triton 3.6 can split into roles on Hopper. It gives each computing warp
group 64 of the 128 rows and a barrier for each place of a tile, so that the two need not go in step: one's exp2 runs
beside the other's products. q, k, v contiguous, Nq a multiple of 128, Nk one of BLOCK_N. At most two stages: with three the
loop that Triton 3.6.0 makes of it left NaN in some rows on an H200.
"""

import math

import torch
import triton
import triton.language as tl

from .forward import LOG2E
from .state import state_add, state_finish

BLOCK_M = 128  # two warp groups of 64 rows


@triton.jit
def roles_kernel(Q, K, V, O, LSE, c, H, GROUP, Nq, Nk, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    kv_head = head // H * (H // GROUP) + head % H // GROUP
    q_tiles = tl.make_tensor_descriptor(Q + head * Nq * D, [Nq, D], [D, 1], [BLOCK_M, D])
    k_tiles = tl.make_tensor_descriptor(K + kv_head * Nk * D, [Nk, D], [D, 1], [BLOCK_N, D])
    v_tiles = tl.make_tensor_descriptor(V + kv_head * Nk * D, [Nk, D], [D, 1], [BLOCK_N, D])

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    d = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, D], tl.float32)
    q = q_tiles.load([tile * BLOCK_M, 0])
    for start in tl.range(0, Nk, BLOCK_N, warp_specialize=True):
        k = k_tiles.load([start, 0])
        s = tl.dot(q, k.T)
        v = v_tiles.load([start, 0])
        m, d, o = state_add(m, d, o, s, c, v, False)
    o, lse = state_finish(m, d, o)
    row = head * Nq + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(O + row[:, None] * D + tl.arange(0, D)[None, :], o.to(O.dtype.element_ty))
    tl.store(LSE + row, lse)


def forward(q, k, v, *, block_n, stages, out=None, lse=None):
    """(o, lse), every key visible."""
    B, H, Nq, D = q.shape
    Hkv, Nk = k.shape[1], k.shape[2]
    if Nq % BLOCK_M or Nk % block_n or not all(t.is_contiguous() for t in (q, k, v)):
        raise ValueError(f"Nq = {Nq}, Nk = {Nk}: not multiples of {BLOCK_M} and {block_n}, or not contiguous")
    if stages > 2:
        raise ValueError(f"{stages} stages: at most 2")
    o = torch.empty_like(q) if out is None else out
    lse = torch.empty((B, H, Nq), dtype=torch.float32, device=q.device) if lse is None else lse
    # Triton keeps the descriptors that a program makes in global memory.
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=q.device))
    roles_kernel[(Nq // BLOCK_M, B * H)](
        q, k, v, o, lse, LOG2E / math.sqrt(D), H, H // Hkv, Nq, Nk,
        D=D, BLOCK_M=BLOCK_M, BLOCK_N=block_n, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return o, lse
