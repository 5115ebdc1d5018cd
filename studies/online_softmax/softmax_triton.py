# SPDX-License-Identifier: Apache-2.0
"""Softmax in Triton, one row a program: y_j = e^(x_j - m) / d, where m and d come from one pass by the online recurrence.

x [rows, N] of fp32, fp16 or bf16, any row stride. A row longer than a block is taken block by block: the state (m, d) of
a block of columns is merged into the row's, and a second pass writes. Bytes: x twice where a row exceeds the cache, y once.
"""

import triton
import triton.language as tl

LARGEST_BLOCK = 4096  # columns: 16 registers of fp32 a thread at 256 threads


@triton.jit
def softmax_kernel(X, Y, LSE, x_row, y_row, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    X += row * x_row
    Y += row * y_row
    m, d = float("-inf"), 0.0
    for first in range(0, N, BLOCK):
        j = first + tl.arange(0, BLOCK)
        x = tl.load(X + j, mask=j < N, other=float("-inf")).to(tl.float32)
        top = tl.maximum(m, tl.max(x, 0))
        origin = tl.where(top == float("-inf"), 0.0, top)  # nothing but -inf so far: no -inf - (-inf)
        d = d * tl.exp(m - origin) + tl.sum(tl.exp(x - origin), 0)
        m = top
    empty = d == 0.0
    whole = tl.where(empty, 1.0, d)
    origin = tl.where(empty, 0.0, m)
    for first in range(0, N, BLOCK):
        j = first + tl.arange(0, BLOCK)
        x = tl.load(X + j, mask=j < N, other=float("-inf")).to(tl.float32)
        tl.store(Y + j, (tl.exp(x - origin) / whole).to(Y.dtype.element_ty), mask=j < N)
    tl.store(LSE + row, tl.where(empty, float("-inf"), m + tl.log(whole)))


def softmax(x, *, out=None, dtype=None, block=None):
    """(y, lse) of x [rows, N]; y in x's dtype, or in `dtype`. A row of -inf gives zeros and lse = -inf."""
    import torch

    rows, N = x.shape
    if x.stride(1) != 1:
        raise ValueError("the last stride must be 1")
    y = torch.empty((rows, N), dtype=dtype or x.dtype, device=x.device) if out is None else out
    lse = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = min(triton.next_power_of_2(N), LARGEST_BLOCK) if block is None else block
    softmax_kernel[(rows,)](x, y, lse, x.stride(0), y.stride(0), N, BLOCK=block, num_warps=8 if block >= 2048 else 4)
    return y, lse
