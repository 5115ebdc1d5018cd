# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2 in Triton against float64: on a GPU the seeds' five shapes at full size and ragged ones, else tiny ones."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from studies import reference  # noqa: E402
from studies.triton_flash_attention.forward import CONFIGS, fitting, forward  # noqa: E402

FIVE = [(1, 8, 512, 64), (1, 8, 2048, 64), (4, 32, 4096, 128), (1, 8, 8192, 128), (2, 16, 16384, 64)]
MASKS = [(False, 0), (True, 0), (True, 5), (True, 18), (True, 64)]
FIXED = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}  # no tuning for shapes that are run once


def random(device, dtype, B, H, Hkv, Nq, Nk, D):
    make = lambda *shape: torch.randn(shape, device=device).to(dtype)  # noqa: E731
    return make(B, H, Nq, D), make(B, Hkv, Nk, D), make(B, Hkv, Nk, D)


def poisoned(q):
    return torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan, device=q.device)


def run(device, q, k, v, **options):
    o, lse = poisoned(q)
    blocks = FIXED if device == "cuda" else None
    forward(q, k, v, out=o, lse=lse, blocks=blocks, **options)
    return o, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", FIVE, ids=str)
def test_five_shapes(gpu, shape, causal):
    """Autotuned, every element; and the seeds' own rule against scaled_dot_product_attention."""
    B, H, N, D = shape
    q, k, v = random(gpu, torch.bfloat16, B, H, H, N, N, D)
    o, lse = poisoned(q)
    forward(q, k, v, causal=causal, out=o, lse=lse)
    reference.check(o, lse, q, k, v, causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(o, theirs, atol=reference.SEEDS_TOLERANCE, rtol=reference.SEEDS_TOLERANCE)


@pytest.mark.parametrize("causal,window", MASKS)
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 33, 33, 16), (1, 3, 3, 20, 50, 32), (2, 1, 1, 40, 17, 16), (1, 4, 2, 1, 37, 16)], ids=str
)
def test_masks(device, dtypes, shape, causal, window, alibi):
    for dtype in dtypes:
        q, k, v = random(device, dtype, *shape)
        slopes = torch.tensor(reference.alibi_slopes(shape[1]), device=device) if alibi else None
        o, lse = run(device, q, k, v, causal=causal, window=window, slopes=slopes)
        reference.check(o, lse, q, k, v, causal, window, slopes)


@pytest.mark.parametrize("causal,window", [(False, 0), (True, 0), (True, 100), (True, 1000)])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(2, 8, 2, 777, 777, 64), (1, 4, 4, 300, 1111, 128), (1, 4, 1, 1111, 300, 64), (1, 2, 2, 200, 200, 256)],
    ids=str,
)
def test_masks_on_the_gpu(gpu, dtypes, shape, causal, window, alibi):
    for dtype in dtypes:
        q, k, v = random(gpu, dtype, *shape)
        slopes = torch.tensor(reference.alibi_slopes(shape[1]), device=gpu) if alibi else None
        blocks = FIXED if shape[-1] < 256 else {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
        o, lse = poisoned(q)
        forward(q, k, v, causal=causal, window=window, slopes=slopes, out=o, lse=lse, blocks=blocks)
        reference.check(o, lse, q, k, v, causal, window, slopes)


@pytest.mark.parametrize("number", range(len(CONFIGS)))
@pytest.mark.parametrize("D", [64, 128])
def test_every_configuration(gpu, number, D):
    chosen = CONFIGS[number]
    if chosen not in fitting(CONFIGS, {"D": D}):
        pytest.skip(f"{chosen} does not fit at D = {D}")
    q, k, v = random(gpu, torch.bfloat16, 1, 2, 1, 600, 700, D)
    o, lse = poisoned(q)
    blocks = {**chosen.kwargs, "num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    forward(q, k, v, causal=True, out=o, lse=lse, blocks=blocks)
    reference.check(o, lse, q, k, v, True)


def test_window_is_mistrals(device, dtypes):
    """W keys, the query's own among them: with all scores equal, each row is the mean of its last W values."""
    N, D, W = 40, 16, 7
    q, k = (
        torch.zeros(1, 1, N, D, device=device, dtype=dtypes[-1]),
        torch.zeros(1, 1, N, D, device=device, dtype=dtypes[-1]),
    )
    v = (
        torch.arange(N, device=device, dtype=torch.float32)[:, None]
        .expand(N, D)
        .to(dtypes[-1])[None, None]
        .contiguous()
    )
    o, lse = run(device, q, k, v, causal=True, window=W)
    for i in range(N):
        seen = range(max(0, i - W + 1), i + 1)
        assert abs(float(o[0, 0, i, 0]) - sum(seen) / len(seen)) < 0.05
        assert abs(float(lse[0, 0, i]) - math.log(len(seen))) < 1e-4


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_is_blooms(device, dtypes, heads):
    """BLOOM adds slope x j, j the key's position, to causal scores: another constant a row than slope (j - p), the same
    softmax. The bias in fp32: BLOOM's own code has it in the model's dtype."""
    q, k, v = random(device, dtypes[-1], 1, heads, heads, 48, 48, 16)
    slopes = torch.tensor(blooms_slopes(heads), device=device)
    assert blooms_slopes(heads) == pytest.approx(reference.alibi_slopes(heads))
    o, _ = run(device, q, k, v, causal=True, slopes=slopes)
    s = q.double() @ k.double().transpose(-1, -2) / 4 + slopes.double()[:, None, None] * torch.arange(48, device=device)
    s = s.masked_fill(reference.hidden_pairs(48, 48, True, 0, device), -math.inf)
    theirs = torch.softmax(s, -1) @ v.double()
    assert (o.double() - theirs).norm() / theirs.norm() < reference.RELATIVE_L2[q.dtype]


def blooms_slopes(n):
    """As transformers' build_alibi_tensor computes them, by powers of a base."""
    closest = 2 ** math.floor(math.log2(n))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = [base**i for i in range(1, closest + 1)]
    if closest != n:
        extra = 2.0 ** (-(2.0 ** -(math.log2(2 * closest) - 3)))
        slopes += [extra**i for i in range(1, 1 + 2 * min(closest, n - closest), 2)]
    return slopes


def test_window_is_that_of_transformers_mistral(device, dtypes):
    """The mask that transformers gives Mistral's attention, in scaled_dot_product_attention."""
    masks = pytest.importorskip("transformers.masking_utils", reason="transformers is not installed")
    N, W = 40, 7
    q, k, v = random(device, dtypes[-1], 1, 4, 2, N, N, 16)
    i, j = torch.arange(N, device=device)[:, None], torch.arange(N, device=device)[None, :]
    visible = masks.sliding_window_overlay(W)(0, 0, i, j) & masks.causal_mask_function(0, 0, i, j)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), attn_mask=visible, enable_gqa=True
    )
    o, _ = run(device, q, k, v, causal=True, window=W)
    torch.testing.assert_close(o.float(), theirs, atol=reference.SEEDS_TOLERANCE, rtol=reference.SEEDS_TOLERANCE)


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_is_that_of_transformers_bloom(device, dtypes, heads):
    """BLOOM's own build_alibi_tensor, in fp32, added to causal scores."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="transformers is not installed")
    N = 48
    q, k, v = random(device, dtypes[-1], 1, heads, heads, N, N, 16)
    bias = bloom.build_alibi_tensor(torch.ones(1, N, device=device), heads, torch.float32).view(1, heads, 1, N)
    bias = bias.masked_fill(reference.hidden_pairs(N, N, True, 0, device), -math.inf)
    theirs = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=bias)
    slopes = torch.tensor(reference.alibi_slopes(heads), device=device)
    o, _ = run(device, q, k, v, causal=True, slopes=slopes)
    torch.testing.assert_close(o.float(), theirs, atol=reference.SEEDS_TOLERANCE, rtol=reference.SEEDS_TOLERANCE)


def test_strides(device, dtypes):
    """[B, N, H, D] as models hold it, and keys that are a slice of a longer cache."""
    B, H, N, D = 2, 2, 24, 16
    q = torch.randn(B, N, H, D, device=device).to(dtypes[-1]).transpose(1, 2)
    cache = torch.randn(2, B, H, 64, D, device=device).to(dtypes[-1])
    k, v = cache[0][:, :, 8 : 8 + N], cache[1][:, :, 8 : 8 + N]
    o, lse = run(device, q, k, v, causal=True)
    reference.check(o, lse, q, k, v, True)


def test_what_the_mask_hides(device, dtypes):
    """NaN in keys and values past the causal edge reaches no row that does not see them."""
    q, k, v = random(device, dtypes[-1], 1, 1, 1, 32, 32, 16)
    clean, _ = run(device, q[:, :, :16], k[:, :, :16], v[:, :, :16], causal=True)
    k[:, :, 16:] = math.nan
    o, _ = run(device, q, k, v, causal=True)
    torch.testing.assert_close(o[:, :, :16], clean)


def test_bad_input(device):
    x = torch.zeros(1, 2, 4, 16, device=device)
    for q, k, v in ((x, x[:, :, :, :8], x), (x, x[:, :1].expand(1, 3, 4, 16), x), (x, x, x.transpose(2, 3))):
        with pytest.raises(ValueError):
            forward(q, k, v)
    with pytest.raises(ValueError):
        forward(x, x, x, scale=-1.0)
