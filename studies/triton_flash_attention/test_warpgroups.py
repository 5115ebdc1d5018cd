# SPDX-License-Identifier: Apache-2.0
"""The two kernels whose warps have roles, on a GPU of Hopper's kind: every element against float64, as forward.py's."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from studies import reference  # noqa: E402
from studies.triton_flash_attention import roles, warpgroups  # noqa: E402


@pytest.fixture(scope="module")
def hopper(gpu):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no GPU of compute capability 9: wgmma and TMA as Hopper has them")
    return gpu


def made(B, H, Hkv, Nq, Nk, D):
    q, k, v = (torch.randn(B, h, n, D, device="cuda", dtype=torch.bfloat16) for h, n in ((H, Nq), (Hkv, Nk), (Hkv, Nk)))
    return q, k, v, torch.full_like(q, math.nan), torch.full((B, H, Nq), math.nan, device="cuda")


# One tile; as many tiles as places, one more, many; groups of query heads; unequal lengths without a mask.
SHAPES = [(1, 1, 1, 128, 128), (1, 2, 1, 256, 256), (2, 4, 2, 384, 384), (1, 3, 3, 1024, 1024), (1, 2, 2, 128, 1152)]


TILED = [
    (64, 128, 2, 2),
    (64, 128, 4, 3),
    (64, 128, 2, 3),
    (64, 64, 3, 2),
    (128, 128, 2, 2),
    (128, 64, 4, 2),
    (256, 64, 2, 2),
]


@pytest.mark.parametrize("D,block_n,stages,groups", TILED)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_warp_groups(hopper, shape, causal, D, block_n, stages, groups):
    q, k, v, o, lse = made(*shape, D)
    options = {"causal": causal, "block_n": block_n, "stages": stages, "groups": groups, "out": o, "lse": lse}
    if causal and shape[3] != shape[4]:
        with pytest.raises(ValueError):
            warpgroups.forward(q, k, v, **options)
        return
    warpgroups.forward(q, k, v, **options)
    reference.check(o, lse, q, k, v, causal)


@pytest.mark.parametrize(
    "D,block_n,stages", [(64, 128, 2), (64, 64, 2), (128, 128, 2), (128, 64, 2), (256, 64, 1), (256, 64, 2)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_roles(hopper, shape, D, block_n, stages):
    q, k, v, o, lse = made(*shape, D)
    roles.forward(q, k, v, block_n=block_n, stages=stages, out=o, lse=lse)
    reference.check(o, lse, q, k, v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 16, 4096, 64), (4, 32, 4096, 128), (1, 8, 4096, 256)], ids=str)
def test_full_size(hopper, shape, causal):
    B, H, N, D = shape
    q, k, v, o, lse = made(B, H, H, N, N, D)
    warpgroups.forward(q, k, v, causal=causal, out=o, lse=lse)
    reference.check(o, lse, q, k, v, causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(o, theirs, atol=reference.SEEDS_TOLERANCE, rtol=reference.SEEDS_TOLERANCE)
