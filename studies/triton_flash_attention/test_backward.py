# SPDX-License-Identifier: Apache-2.0
"""dQ, dK and dV in Triton against autograd through the textbook's formula in float64."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from studies import reference  # noqa: E402
from studies.triton_flash_attention.backward import attention  # noqa: E402

# Gradients are sums of products of rounded P and dS: a few times the forward's bound.
RELATIVE_L2 = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 2e-2}
FIXED = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


def exact(q, k, v, causal, window, slopes):
    group, D = q.shape[1] // k.shape[1], q.shape[-1]
    s = q @ k.repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(D)
    p = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (p - torch.arange(k.shape[2], device=q.device)).abs()
    hidden = reference.hidden_pairs(q.shape[2], k.shape[2], causal, window, q.device)
    seen = ~hidden.all(-1)  # rows without keys give 0, and no gradient
    weights = torch.softmax(s.masked_fill(hidden & seen[:, None], -math.inf), -1) * seen[:, None]
    return weights @ v.repeat_interleave(group, 1)


def held(device, dtype, shape, causal, window, alibi):
    B, H, Hkv, Nq, Nk, D = shape
    sizes = (B, H, Nq, D), (B, Hkv, Nk, D), (B, Hkv, Nk, D)
    ours = [torch.randn(size, device=device).to(dtype).requires_grad_() for size in sizes]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    slopes = torch.tensor(reference.alibi_slopes(H), device=device) if alibi else None
    do = torch.randn((B, H, Nq, D), device=device).to(dtype)
    blocks = FIXED if device == "cuda" else None
    attention(*ours, causal=causal, window=window, slopes=slopes, blocks=blocks).backward(do)
    exact(*theirs, causal, window, slopes).backward(do.double())
    for name, a, b in zip("qkv", ours, theirs):
        error = (a.grad.double() - b.grad).norm() / b.grad.norm()
        assert error <= RELATIVE_L2[dtype], f"d{name}: {error:.3g} off"


MASKS = [(False, 0), (True, 0), (True, 7)]


@pytest.mark.parametrize("causal,window", MASKS)
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 1, 33, 33, 16), (1, 1, 1, 18, 40, 16), (2, 2, 2, 30, 17, 16)], ids=str)
def test_tiny(device, dtypes, shape, causal, window, alibi):
    for dtype in dtypes:
        held(device, dtype, shape, causal, window, alibi)


@pytest.mark.parametrize("causal,window", [(False, 0), (True, 0), (True, 100)])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 2, 512, 512, 64), (1, 4, 4, 300, 777, 128), (1, 4, 2, 700, 300, 64)], ids=str)
def test_large(gpu, dtypes, shape, causal, window, alibi):
    for dtype in dtypes:
        held(gpu, dtype, shape, causal, window, alibi)
