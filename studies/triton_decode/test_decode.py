# SPDX-License-Identifier: Apache-2.0
"""Split attention in Triton against float64: the seeds' shape on a GPU, tiny ones by the interpreter."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from studies import reference  # noqa: E402
from studies.triton_decode.decode import decode, splits_for  # noqa: E402
from studies.triton_flash_attention.forward import forward  # noqa: E402

TINY = [(1, 4, 2, 100, 16), (2, 2, 2, 16, 32), (1, 6, 2, 65, 16), (1, 2, 2, 1, 16)]
LARGE = [
    (1, 32, 32, 8192, 128),
    (1, 32, 8, 8192, 128),
    (1, 32, 8, 1000, 128),
    (3, 16, 2, 4097, 64),
    (2, 40, 1, 333, 128),
]


def held(device, dtype, shape, G, **options):
    B, H, Hkv, Nk, D = shape
    q = torch.randn(B, H, 1, D, device=device).to(dtype)
    k, v = (torch.randn(B, Hkv, Nk, D, device=device).to(dtype) for _ in range(2))
    o, lse = torch.full_like(q, math.nan), torch.full((B, H, 1), math.nan, device=device)
    decode(q, k, v, G=G, out=o, lse=lse, **options)
    return reference.check(o, lse, q, k, v), o


@pytest.mark.parametrize("G", [None, 1, 2, 3, 7, 9])
@pytest.mark.parametrize("shape", TINY, ids=str)
def test_tiny(device, dtypes, shape, G):
    """Splits that divide the keys, that do not, and more of them than there are tiles: empty ones."""
    for dtype in dtypes:
        held(device, dtype, shape, G)


@pytest.mark.parametrize("G", [None, 1, 4, 5, 16, 64, 128])
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large(gpu, dtypes, shape, G):
    for dtype in dtypes:
        held(gpu, dtype, shape, G)


@pytest.mark.parametrize("block,warps,stages", [(32, 4, 4), (64, 2, 4), (64, 4, 3), (128, 4, 2)])
def test_tiles(gpu, block, warps, stages):
    held(gpu, torch.bfloat16, (1, 32, 8, 8000, 128), 16, block=block, warps=warps, stages=stages)


def test_the_seeds_shape(gpu):
    """(1, 32, 1, 128) x (1, 32, 8192, 128) against scaled_dot_product_attention."""
    q = torch.randn(1, 32, 1, 128, device=gpu, dtype=torch.bfloat16)
    k, v = (torch.randn(1, 32, 8192, 128, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    o, _ = decode(q, k, v)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(o, theirs, atol=reference.SEEDS_TOLERANCE, rtol=reference.SEEDS_TOLERANCE)


@pytest.mark.parametrize("shape", [(1, 32, 32, 8192, 128), (1, 32, 8, 8192, 128)], ids=str)
def test_the_prefill_kernel_with_one_query(gpu, shape):
    """What the study calls "naive"."""
    B, H, Hkv, Nk, D = shape
    q = torch.randn(B, H, 1, D, device=gpu, dtype=torch.bfloat16)
    k, v = (torch.randn(B, Hkv, Nk, D, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    o, lse = forward(q, k, v)
    reference.check(o, lse, q, k, v)


def test_number_of_splits():
    assert splits_for(1, 32, 8192, 132, 64) == 4
    assert splits_for(1, 8, 8192, 132, 64) == 16
    assert splits_for(64, 8, 8192, 132, 64) == 1
    assert splits_for(1, 8, 100, 132, 64) == 1
