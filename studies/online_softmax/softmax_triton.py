# SPDX-License-Identifier: Apache-2.0
"""Softmax in Triton, one row a program: y_j = e^(x_j - m) / d, where m and d come from one pass by the online recurrence.

x [rows, N] of fp32, fp16 or bf16, any row stride. A row that fits a block stays in registers between the two uses. A longer one
is taken block by block: the state (m, d) of a block of columns is merged into the row's, and a second pass reads it again and
writes. Bytes: x once, twice where a long row exceeds the cache; y once.
"""

import triton
import triton.language as tl

LARGEST_ROW = 8192  # columns that stay in registers: 16 of fp32 a thread at 512 threads
BLOCK = 4096  # columns of a longer row at a time: 16 a thread at 256


@triton.jit
def columns(X, first, N, BLOCK: tl.constexpr):
    j = first + tl.arange(0, BLOCK)
    return tl.load(X + j, mask=j < N, other=float("-inf")).to(tl.float32)


@triton.jit
def merge(m, d, x):
    """The state with one more block of columns."""
    top = tl.maximum(m, tl.max(x, 0))
    origin = tl.where(top == float("-inf"), 0.0, top)  # nothing but -inf so far: no -inf - (-inf)
    return top, d * tl.exp(m - origin) + tl.sum(tl.exp(x - origin), 0)


@triton.jit
def write(Y, x, origin, whole, first, N, BLOCK: tl.constexpr):
    j = first + tl.arange(0, BLOCK)
    tl.store(Y + j, (tl.exp(x - origin) / whole).to(Y.dtype.element_ty), mask=j < N)


@triton.jit
def softmax_kernel(X, Y, LSE, x_row, y_row, N, BLOCK: tl.constexpr, FITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    X += row * x_row
    Y += row * y_row
    x = columns(X, 0, N, BLOCK)
    m, d = merge(float("-inf"), 0.0, x)
    if not FITS:
        for first in range(BLOCK, N, BLOCK):
            m, d = merge(m, d, columns(X, first, N, BLOCK))
    empty = d == 0.0
    whole = tl.where(empty, 1.0, d)
    origin = tl.where(empty, 0.0, m)
    write(Y, x, origin, whole, 0, N, BLOCK)
    if not FITS:
        for first in range(BLOCK, N, BLOCK):
            write(Y, columns(X, first, N, BLOCK), origin, whole, first, N, BLOCK)
    tl.store(LSE + row, tl.where(empty, float("-inf"), m + tl.log(whole)))


def softmax(x, *, out=None, dtype=None, block=None):
    """(y, lse) of x [rows, N]; y in x's dtype, or in `dtype`. A row of -inf gives zeros and lse = -inf."""
    import torch

    rows, N = x.shape
    if x.stride(1) != 1:
        raise ValueError("the last stride must be 1")
    y = torch.empty((rows, N), dtype=dtype or x.dtype, device=x.device) if out is None else out
    lse = torch.empty(rows, dtype=torch.float32, device=x.device)
    if block is None:
        block = triton.next_power_of_2(N) if N <= LARGEST_ROW else BLOCK
    warps = 16 if block > BLOCK else 8 if block >= 2048 else 4
    softmax_kernel[(rows,)](
        x, y, lse, x.stride(0), y.stride(0), N, BLOCK=block, FITS=N <= block, num_warps=warps
    )  # fmt: skip
    return y, lse
