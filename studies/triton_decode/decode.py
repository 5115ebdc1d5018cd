# SPDX-License-Identifier: Apache-2.0
"""Attention for one query a sequence in Triton (FlashDecoding), a twin of src/cuda/decode.cuh and merge.cu.

    split s of G:  (m_s, d_s, o_s) over its keys;      m = max m_s,  w_s = 2^(m_s - m),  O = sum w_s o_s / sum w_s d_s

q [B, H, 1, D], k and v [B, Hkv, Nk, D]. One program of the first kernel takes the query heads of one KV head, as the rows of
one tile (16 at least, for that is a product's size), and one of G parts of the keys; it is the loop of
triton_flash_attention/forward.py with another beginning and end. The second kernel merges the G parts of a head.

Bytes: K and V once; 4 (D + 2) G a head between the two kernels.
"""

import math

import torch
import triton
import triton.language as tl

from ..triton_flash_attention.forward import INTERPRETED, LOG2E, key_tiles

ROWS = 16  # of a product, at least


@triton.jit
def split_kernel(
    Q, K, V, PART_STATE, PART_O, c, q_batch, q_head, k_batch, k_head, k_row, v_batch, v_head, v_row,
    HKV, GROUP, Nk, PART,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys of a split: PART, a multiple of BLOCK_N. Splits without keys write the empty state."""
    split, G = tl.program_id(0), tl.num_programs(0)
    b, kv = (tl.program_id(1) // HKV).to(tl.int64), (tl.program_id(1) % HKV).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.arange(0, D)
    head = kv * GROUP + row
    live = row < GROUP
    q = tl.load(Q + b * q_batch + head[:, None] * q_head + column[None, :], mask=live[:, None], other=0.0)
    first, last = split * PART, tl.minimum((split + 1) * PART, Nk)
    full = tl.maximum(last // BLOCK_N * BLOCK_N, first)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    d = tl.zeros([ROWS], tl.float32)
    o = tl.zeros([ROWS, D], tl.float32)
    K += b * k_batch + kv * k_head
    V += b * v_batch + kv * v_head
    m, d, o = key_tiles(m, d, o, q, c, 0.0, row, K, V, k_row, v_row, first, full, Nk,
                        D, BLOCK_N, False, 0, False, False, False)  # fmt: skip
    m, d, o = key_tiles(m, d, o, q, c, 0.0, row, K, V, k_row, v_row, full, last, Nk,
                        D, BLOCK_N, False, 0, False, True, False)  # fmt: skip
    place = (b * HKV * GROUP + head) * G + split
    tl.store(PART_STATE + 2 * place, m, mask=live)
    tl.store(PART_STATE + 2 * place + 1, d, mask=live)
    tl.store(PART_O + place[:, None] * D + column[None, :], o, mask=live[:, None])


@triton.jit
def merge_kernel(PART_STATE, PART_O, O, LSE, o_batch, o_head, H, G, D: tl.constexpr, PARTS: tl.constexpr):
    """One head a program; PARTS is G rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    s, column = tl.arange(0, PARTS), tl.arange(0, D)
    place = row * G + s
    m_s = tl.load(PART_STATE + 2 * place, mask=s < G, other=float("-inf"))
    d_s = tl.load(PART_STATE + 2 * place + 1, mask=s < G, other=0.0)
    o_s = tl.load(PART_O + place[:, None] * D + column[None, :], mask=(s < G)[:, None], other=0.0)
    m = tl.max(m_s, 0)
    w = tl.where(m_s == float("-inf"), 0.0, tl.math.exp2(m_s - m))  # without keys: nothing, and not 2^(-inf + inf)
    d = tl.sum(w * d_s, 0)
    empty = d == 0.0
    whole = tl.where(empty, 1.0, d)
    o = tl.sum(w[:, None] * o_s, 0) / whole
    tl.store(O + row // H * o_batch + row % H * o_head + column, o.to(O.dtype.element_ty))
    tl.store(LSE + row, tl.where(empty, float("-inf"), (m + tl.math.log2(whole)) * 0.6931471805599453))


def splits_for(B, Hkv, Nk, multiprocessors, block):
    """As many as give every multiprocessor a block, but no split below two tiles: the start of a program must pay."""
    wanted = max(1, multiprocessors // (B * Hkv))
    return max(1, min(wanted, Nk // (2 * block)))


def workspace(q, G):
    B, H, _, D = q.shape
    return (
        torch.empty((B, H, G, 2), dtype=torch.float32, device=q.device),
        torch.empty((B, H, G, D), dtype=torch.float32, device=q.device),
    )


def decode(q, k, v, *, G=None, scale=None, block=None, warps=4, stages=3, out=None, lse=None, parts=None):
    """(o, lse). G: splits of the keys; None: by the device's size. parts: workspace(q, G), to have no allocation."""
    B, H, Nq, D = q.shape
    Hkv, Nk = k.shape[1], k.shape[2]
    if Nq != 1 or H % Hkv or k.shape != (B, Hkv, Nk, D) or v.shape != k.shape or D not in (16, 32, 64, 128, 256):
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: not one query, or not of one D of 16 to 256"
        )
    group = H // Hkv
    block = (16 if INTERPRETED else 64) if block is None else block
    if G is None:
        units = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 8
        G = splits_for(B, Hkv, Nk, units, block)
    part = triton.cdiv(triton.cdiv(Nk, G), block) * block
    o = torch.empty_like(q) if out is None else out
    lse = torch.empty((B, H, 1), dtype=torch.float32, device=q.device) if lse is None else lse
    part_state, part_o = workspace(q, G) if parts is None else parts
    scale = 1.0 / math.sqrt(D) if scale is None else scale
    split_kernel[(G, B * Hkv)](
        q, k, v, part_state, part_o, scale * LOG2E, q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
        Hkv, group, Nk, part, D=D, ROWS=max(ROWS, triton.next_power_of_2(group)), BLOCK_N=block,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    merge_kernel[(B * H,)](
        part_state, part_o, o, lse, o.stride(0), o.stride(1), H, G, D=D, PARTS=triton.next_power_of_2(G), num_warps=4
    )
    return o, lse
