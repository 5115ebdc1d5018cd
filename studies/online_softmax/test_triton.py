# SPDX-License-Identifier: Apache-2.0
"""The softmax kernel in Triton: rows shorter and longer than its block, hostile rows, dtypes."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from studies.online_softmax.softmax_triton import softmax  # noqa: E402


def bf16_ulp(x):
    """The distance of bf16's numbers at x: 8 significant bits."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 8)


def hostile(rows, N, device):
    x = torch.randn(rows, N, device=device) * 4
    x[0] = -math.inf
    x[1, N // 2] = 1e5
    x[2] = torch.linspace(-5e4, 5e4, N, device=device)
    x[3, 1:] = -math.inf
    x[4] = 88.0
    return x


def exact(x):
    y = torch.softmax(x.double(), -1)
    return torch.where(torch.isneginf(x).all(-1, keepdim=True), 0.0, y)


@pytest.mark.parametrize("N,block", [(1, None), (5, None), (64, 16), (77, 16), (77, 128), (128, 128)])
def test_fp32(device, N, block):
    x = hostile(6, N, device)
    y, lse = softmax(x, block=block)
    assert (y - exact(x)).abs().max() <= 1e-6
    finite = ~torch.isneginf(x).all(-1)
    torch.testing.assert_close(lse[finite].double(), torch.logsumexp(x.double(), -1)[finite], atol=1e-5, rtol=1e-6)
    assert torch.isneginf(lse[~finite]).all()


@pytest.mark.parametrize("N", [1000, 4096, 8000, 8193, 50257, 128256])
def test_long_rows(gpu, N):
    x = hostile(64, N, gpu)
    assert (softmax(x)[0] - exact(x)).abs().max() <= 1e-6


@pytest.mark.parametrize("N", [16, 100])
def test_bf16(device, N):
    """fp32 output within 1e-3, as asked; bf16 output within one ulp: from 0.25 on 1e-3 is less than that, from 0.5 on less than half."""
    x = hostile(6, N, device).to(torch.bfloat16)
    wide = softmax(x, dtype=torch.float32, block=32)[0]
    assert (wide - exact(x)).abs().max() <= 1e-3
    narrow = softmax(x, block=32)[0]
    assert narrow.dtype == torch.bfloat16
    error = (narrow.double() - exact(x)).abs()
    assert (error <= bf16_ulp(exact(x)).clamp_min(2.0**-133)).all()
    assert bf16_ulp(torch.tensor([0.5, 0.75, 1.0])).tolist() == [2.0**-8, 2.0**-8, 2.0**-7]


def test_a_row_of_minus_infinity_differs_from_torch(device):
    x = torch.full((1, 8), -math.inf, device=device)
    assert softmax(x)[0].eq(0).all()
    assert torch.softmax(x, -1).isnan().all()
