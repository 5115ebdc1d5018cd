# SPDX-License-Identifier: Apache-2.0
"""keyfold on a CUDA device beside torch's own operations: what models' code has, at the seeds' shapes and tolerances.

`keyfold verify --backend cuda` holds every operation against float64; this holds the meaning of masks, slopes and cast
points against the libraries that a user comes from.
"""

import math

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("a CUDA device is needed", allow_module_level=True)

import keyfold as kf  # noqa: E402

SEEDS = [(1, 8, 512, 64), (1, 8, 2048, 64), (4, 32, 4096, 128), (1, 8, 8192, 128), (2, 16, 16384, 64)]
HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def plain(q, k, v, bias=None, rows=slice(None)):
    """The textbook's attention in float64, of some rows of q."""
    q, k, v = (t.double() for t in (q[:, :, rows], k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(s if bias is None else s + bias.double(), -1) @ v


def close(got, want, tolerance=1e-2):
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SEEDS, ids=str)
def test_the_seeds_shapes(shape, causal):
    """Against torch's own kernel, every element; and its last 256 rows against float64."""
    q, k, v = (normal(*shape) for _ in range(3))
    o = torch.full_like(q, float("nan"))
    kf.attention(q, k, v, causal=causal, out=o)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION]):
        close(o, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal))
    n = shape[2]
    rows = torch.arange(n - 256, n, device="cuda")
    bias = torch.where(torch.arange(n, device="cuda")[None] <= rows[:, None], 0.0, -math.inf) if causal else None
    head = slice(0, 1)
    close(o[head, :2, n - 256 :], plain(q[head, :2], k[head, :2], v[head, :2], bias, slice(n - 256, n)))


@pytest.mark.parametrize("dtype", HALF)
def test_the_decode_shape(dtype):
    q, k, v = normal(1, 32, 1, 128, dtype=dtype), normal(1, 32, 8192, 128, dtype=dtype), normal(1, 32, 8192, 128, dtype=dtype)
    close(kf.attention(q, k, v), plain(q, k, v))


@pytest.mark.parametrize("queries", [300, 1])
def test_a_window_is_mistrals(queries):
    """W tokens, the query's own among them: i - W < j <= i."""
    window, keys = 64, 300
    q, k, v = normal(2, 4, queries, 64), normal(2, 4, keys, 64), normal(2, 4, keys, 64)
    i = torch.arange(keys - queries, keys, device="cuda")[:, None]
    j = torch.arange(keys, device="cuda")[None]
    bias = torch.where((j <= i) & (j > i - window), 0.0, -math.inf)
    close(kf.attention(q, k, v, causal=True, window_left=window - 1), plain(q, k, v, bias))


def bloom_slopes(heads):
    """As transformers' build_alibi_tensor has them."""
    power = 2 ** math.floor(math.log2(heads))
    base = 2 ** (-(2 ** -(math.log2(power) - 3)))
    slopes = [base ** (n + 1) for n in range(power)]
    if power != heads:
        extra = 2 ** (-(2 ** -(math.log2(2 * power) - 3)))
        slopes += [extra ** (2 * n + 1) for n in range(heads - power)]
    return torch.tensor(slopes, device="cuda")


@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("queries", [200, 1])
def test_alibi_is_blooms(heads, queries):
    """With the bias in fp32: in bf16 neighbouring positions would share values."""
    keys = 200
    q, k, v = normal(1, heads, queries, 64), normal(1, heads, keys, 64), normal(1, heads, keys, 64)
    slopes = bloom_slopes(heads)
    i = torch.arange(keys - queries, keys, device="cuda")[:, None]
    j = torch.arange(keys, device="cuda")[None]
    bias = slopes[:, None, None].double() * (j - i) + torch.where(j <= i, 0.0, -math.inf)
    close(kf.attention(q, k, v, causal=True, alibi_slopes=slopes), plain(q, k, v, bias[None]))


def same_bits(got, want, share):
    """All but a share of the elements; those, where fp32 sums in another order fell to the other side of a tie, by one step."""
    differ = (got != want).sum().item() / got.numel()
    assert differ <= share, f"{differ:.2%} of the elements have other bits"
    close(got, want, 1e-2)


@pytest.mark.parametrize("shape", [(64, 4096), (7, 640), (4096, 2048)], ids=str)
def test_rmsnorm_has_eagers_bits(shape):
    """bf16 at the cast points of transformers' LlamaRMSNorm."""
    x, residual, weight = normal(*shape), normal(*shape), normal(shape[-1])
    y, total = kf.rmsnorm(x, weight, residual=residual, return_sum=True, eps=1e-5, cast="llama")
    s = x + residual
    wide = s.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(total, s)
    same_bits(y, weight * wide.to(s.dtype), 1e-3)


def test_swiglu_has_the_formulas_bits():
    """fp32 throughout, rounded once."""
    gate, up = normal(512, 5632), normal(512, 5632)
    same_bits(kf.swiglu(gate, up), (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype), 1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_fusions_in_other_dtypes(dtype):
    x, residual, weight = normal(64, 2048, dtype=dtype), normal(64, 2048, dtype=dtype), normal(2048, dtype=dtype)
    s = x.double() + residual.double()
    want = s / (s.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    close(kf.rmsnorm(x, weight, residual=residual, eps=1e-5), want, 1e-3)
    close(kf.swiglu(x, residual), torch.nn.functional.silu(x.double()) * residual.double(), 1e-3)
    close(kf.softmax(x), torch.softmax(x.double(), -1), 1e-3)


@pytest.mark.parametrize("queries", [1, 40])
def test_rope_in_attention(queries):
    """Rotated at load, and rotated in front as Llama's code does, in float64."""
    keys, d = 150, 64
    q, k, v = normal(1, 4, queries, d), normal(1, 2, keys, d), normal(1, 2, keys, d)
    angles = torch.outer(torch.arange(keys).double(), 10000.0 ** (-torch.arange(0, d, 2).double() / d)).repeat(1, 2).cuda()

    def rotated(x, first):
        x, a = x.double(), angles[first : first + x.shape[2]]
        return x * a.cos() + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1) * a.sin()

    i = torch.arange(keys - queries, keys, device="cuda")[:, None]
    bias = torch.where(torch.arange(keys, device="cuda")[None] <= i, 0.0, -math.inf)
    o = kf.attention(q, k, v, causal=True, rope=kf.Rope())
    close(o, plain(rotated(q, keys - queries), rotated(k, 0), v, bias), 5e-3)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("queries", [1, 5, 70])
def test_addresses_of_one_element(queries, dtype):
    """Tensors that begin anywhere, whose rows lie anywhere."""

    def shifted(*shape):
        wide = normal(*shape[:-1], shape[-1] + 3, dtype=dtype)
        return wide[..., 1 : 1 + shape[-1]]

    q, k, v = shifted(2, 4, queries, 64), shifted(2, 2, 130, 64), shifted(2, 2, 130, 64)
    o = torch.full((2, 4, queries, 67), float("nan"), device="cuda", dtype=dtype)
    kf.attention(q, k, v, out=o[..., 1:65])
    close(o[..., 1:65], plain(q, k, v))
    assert o[..., 0].isnan().all() and o[..., 65:].isnan().all()
    x = shifted(9, 100)
    close(kf.softmax(x), torch.softmax(x.double(), -1))


def test_fifty_runs_have_the_same_bits():
    for queries, keys in ((1, 8192), (2048, 2048)):
        q, k, v = normal(1, 32, queries, 128), normal(1, 8, keys, 128), normal(1, 8, keys, 128)
        first = kf.attention(q, k, v)
        for _ in range(50):
            o = torch.full_like(q, float("nan"))
            kf.attention(q, k, v, out=o)
            assert torch.equal(o, first)


def test_torchs_current_stream_is_taken():
    stream = torch.cuda.Stream()
    q, k, v = normal(1, 8, 512, 64), normal(1, 8, 512, 64), normal(1, 8, 512, 64)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # cycles: whoever works on another stream is done long before
        q.zero_()
        o = kf.attention(q, k, v)
    stream.synchronize()
    close(o, plain(q, k, v))


def test_bad_input_is_refused():
    q, k, v = normal(1, 4, 8, 64), normal(1, 4, 8, 64), normal(1, 4, 8, 64)
    for given in ((q.cpu(), k, v), (q, k.cpu(), v), (q, k, v[:, :3]), (q[..., :32], k, v), (q, k[:, :, :5], v)):
        with pytest.raises(kf.Error) as refused:
            kf.attention(*given)
        assert str(refused.value)
    with pytest.raises(kf.Error):
        kf.attention(q, k, v, out=torch.empty(1, 4, 8, 64, device="cuda", dtype=torch.int32))
    torch.cuda.synchronize()
    close(kf.attention(q, k, v), plain(q, k, v))
