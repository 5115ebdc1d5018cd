# SPDX-License-Identifier: Apache-2.0
"""What the studies' attention kernels are held against: the textbook's formula in float64, each pair (i, j) decided from the
definition, head by head; and the bounds of docs/numerics.md."""

import math

import torch

RELATIVE_L2 = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
EPSILON = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
SEEDS_TOLERANCE = 1e-2  # atol and rtol for bf16 against scaled_dot_product_attention
LSE_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 1e-3}


def alibi_slopes(heads):
    """2^(-8h/n), h = 1 ... n, for a power of two; else those of the one below, then every other one of the one above."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-4.0 * h / power) for h in range(1, 2 * (heads - power), 2)]


def hidden_pairs(Nq, Nk, causal, window, device):
    """True where the query must not see the key. Query i stands at p = i + Nk - Nq; window: p - window < j <= p."""
    p = torch.arange(Nq, device=device)[:, None] + Nk - Nq
    j = torch.arange(Nk, device=device)[None, :]
    hidden = torch.zeros(Nq, Nk, dtype=torch.bool, device=device)
    if causal:
        hidden |= j > p
    if window:
        hidden |= j <= p - window
    return hidden


def head(q, k, v, hidden, slope, dtype):
    """(o, lse) of one head. dtype float64: exactly; another: S, P and O rounded to it, sums in fp32."""
    exact = dtype == torch.float64
    wide = torch.float64 if exact else torch.float32

    def rounded(x):
        return x if exact else x.to(dtype).to(wide)

    Nq, Nk = hidden.shape
    s = rounded(q.to(wide) @ k.to(wide).T) / math.sqrt(q.shape[-1])
    if slope is not None:
        p = torch.arange(Nq, device=q.device)[:, None] + Nk - Nq
        s -= slope * (p - torch.arange(Nk, device=q.device)[None, :]).abs().to(wide)
    s = rounded(s).masked_fill_(hidden, -math.inf)
    lse = torch.logsumexp(s, -1)
    s -= torch.where(torch.isinf(lse), 0.0, lse)[:, None]
    return rounded(rounded(s.exp_()) @ v.to(wide)), lse


def check(o, lse, q, k, v, causal=False, window=0, slopes=None, heads=None):
    """Holds every element of o and lse (heads: of so many heads, spread over all) against the bounds; returns the errors.

    Three rules, each of which must hold: max|o - exact| <= 2 max|naive - exact| + 2 ulp of the row's largest; relative L2;
    and poison: no NaN.
    """
    B, H, Nq, _ = q.shape
    Hkv, Nk = k.shape[1], k.shape[2]
    hidden = hidden_pairs(Nq, Nk, causal, window, q.device)
    pairs = [divmod(x, H) for x in range(B * H)]
    if heads is not None and heads < len(pairs):
        pairs = [pairs[x * (len(pairs) - 1) // (heads - 1)] for x in range(heads)]
    worst, over, under = 0.0, 0.0, 0.0
    for b, h in pairs:
        slope = None if slopes is None else float(slopes[h])
        inputs = q[b, h], k[b, h * Hkv // H], v[b, h * Hkv // H], hidden, slope
        exact, exact_lse = head(*inputs, torch.float64)
        naive, _ = head(*inputs, q.dtype)
        error = (o[b, h].double() - exact).abs()
        assert not torch.isnan(error).any(), f"head {b}, {h}: NaN at {first_of(torch.isnan(error))}"
        allowed = 2 * (naive.double() - exact).abs().max() + 2 * EPSILON[q.dtype] * exact.abs().amax(-1, keepdim=True)
        bad = error > allowed
        assert not bad.any(), (
            f"head {b}, {h}: {error.max():.3g} off, first at {first_of(bad)}: {o[b, h][bad][0]} for {exact[bad][0]}"
        )
        worst, over, under = (
            max(worst, float(error.max())),
            over + float((error**2).sum()),
            under + float((exact**2).sum()),
        )
        empty = torch.isinf(exact_lse)
        assert (torch.isinf(lse[b, h]) == empty).all(), f"head {b}, {h}: rows without keys"
        off = (lse[b, h].double() - exact_lse)[~empty].abs()
        assert off.numel() == 0 or off.max() <= LSE_TOLERANCE[q.dtype], f"head {b}, {h}: lse {off.max():.3g} off"
    relative = (over / under) ** 0.5 if under else 0.0
    assert relative <= RELATIVE_L2[q.dtype], f"relative L2 {relative:.3g}"
    return {"max": worst, "relative_l2": relative}


def first_of(mask):
    return tuple(int(x) for x in mask.nonzero()[0])
