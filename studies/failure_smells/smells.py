# SPDX-License-Identifier: Apache-2.0
"""The ways in which attention goes wrong, each made on purpose in a few lines, with what one sees of it.

    python -m studies.failure_smells.smells [NAME ...]

docs/06_numerics_discipline.md shows these printouts and says what each means; a test holds the two together.
"""

import math
import random
import sys

from .formats import bf16, e4m3, e5m2, flushed, fp16, fp32

INF = math.inf


def exp(x):
    """e^x as hardware has it: no exception, NaN stays."""
    return INF if x > 709 else math.exp(x)


def softmax(s):
    m = max(s)
    p = [math.exp(x - m) for x in s]
    return [x / sum(p) for x in p]


def scores(n, seed=1, spread=1.0):
    rng = random.Random(seed)
    return [rng.gauss(0, spread) for _ in range(n)]


def attention(s, v):
    return sum(p * x for p, x in zip(softmax(s), v))


def overflow():
    s = [88.0, 89.0, 90.0]
    sums = fp32(sum(fp32(exp(x)) for x in s))
    yield f"e^s without the maximum: {[f'{fp32(exp(x)):.3g}' for x in s]}, sum {sums:g}, weights {[fp32(exp(x)) / sums for x in s]}"
    yield f"e^(s - m):               weights {[round(p, 3) for p in softmax(s)]}"


def nan_row():
    """A window hides the row's first tile: m = -inf there, and the rescale is e^(-inf - -inf)."""
    tiles = [[-INF, -INF], [1.0, 2.0]]
    for guard in (False, True):
        m, d = -INF, 0.0
        for s in tiles:
            new = max(m, max(s))
            origin = 0.0 if guard and new == -INF else new
            d = d * exp(m - origin) + sum(exp(x - origin) for x in s)
            m = new
        yield f"{'origin 0 while m = -inf' if guard else 'origin m              '}: d = {d:.4f}"


def nan_behind_mask():
    """A masked key's weight is 0, and 0 times what stands in its value is not."""
    s, v = [1.0, 2.0, -INF], [1.0, 1.0, math.nan]
    p = softmax(s)
    yield f"sum of p v over all keys:   {sum(a * b for a, b in zip(p, v))}"
    yield f"over the keys that are seen: {sum(a * b for a, b in zip(p, v) if a > 0):.4f}"


def zero_row():
    """The guard for rows without keys hides an inverted mask: only the LSE tells a row that may be zero from one that may not."""
    s, v = scores(4), [1.0, 2.0, 3.0, 4.0]
    for name, sees in (
        ("row of a causal mask that sees keys 0-1", lambda j: j < 2),
        ("the same mask upside down, row without keys", lambda j: j < 0),
    ):
        seen = [j for j in range(4) if sees(j)]
        d = sum(math.exp(s[j]) for j in seen)
        o = sum(math.exp(s[j]) * v[j] for j in seen) / d if d else 0.0
        yield f"{name}: o = {o:.3f}, lse = {math.log(d) if d else -INF:.3f}"


def not_rescaled():
    """d is rescaled when the maximum rises, o is forgotten: right while the first tile holds the maximum."""
    v = [float(j % 7) for j in range(256)]
    for n in (64, 128, 256):
        s = [0.02 * j for j in range(n)]
        m, d, right, wrong = -INF, 0.0, 0.0, 0.0
        for t in range(0, n, 64):
            tile = s[t : t + 64]
            new = max(m, max(tile))
            w, p = exp(m - new), [math.exp(x - new) for x in tile]
            products = sum(a * b for a, b in zip(p, v[t:]))
            d, right, wrong, m = d * w + sum(p), right * w + products, wrong + products, new
        yield f"{n:3} keys in tiles of 64: right {right / d:.4f}, o not rescaled {wrong / d:.4f}"


def wrong_temperature():
    s, d = scores(64, spread=8.0), 64
    scale = d**-0.5
    for name, factor in (
        ("scale once", scale),
        ("scale twice", scale * scale),
        ("no scale", 1.0),
        ("exp2 without log2 e", scale * math.log(2)),
    ):
        p = softmax([x * factor for x in s])
        yield f"{name:19}: largest of 64 weights {max(p):.3f}, as if {math.exp(-sum(x * math.log(x) for x in p if x)):.1f} keys were seen"


def lse_base():
    s = [1.0, 2.0, 3.0]
    natural, base2 = math.log(sum(math.exp(x) for x in s)), math.log2(sum(math.exp(x) for x in s))
    share = 1 / (1 + math.exp(natural - base2))
    yield f"natural {natural:.4f}, base 2 {base2:.4f}: {natural / base2:.3f} of it"
    yield f"two equal halves merged: weights 0.5 and 0.5; with one LSE in base 2 {share:.2f} and {1 - share:.2f}"


def ragged_tail():
    """Places of the last tile past the sequence score 0 instead of -inf: their values are zero, their weights are not."""
    for n in (64, 100):
        s = [-2.0 + x for x in scores(n)]
        padded = s + [0.0] * (-n % 64)
        v = [1.0] * n + [0.0] * (-n % 64)
        yield f"{n:3} keys, tiles of 64: o = {attention(padded, v):.4f} of 1"


def sums_in_16_bits():
    for name, form in (("bf16", bf16), ("fp16", fp16), ("fp32", fp32)):
        line = []
        for n in (256, 2048, 16384):
            d = 0.0
            for _ in range(n):
                d = form(d + 1.0)
            line.append(f"{d:g} of {n}")
        yield f"ones added up in {name}: {', '.join(line)}"


def cut_off_sums():
    """Sums that are cut off instead of rounded, as a tensor core's are: the error has one sign and grows with the chain."""
    rng = random.Random(3)
    for n in (16, 256, 4096):
        x = [rng.random() for _ in range(n)]
        exact, cut, near = math.fsum(x), 0.0, 0.0
        for a in x:
            total = cut + a
            spacing = 2.0 ** (math.frexp(total)[1] - 24)
            cut = math.floor(total / spacing) * spacing
            near = fp32(near + a)
        yield f"{n:4} numbers: cut off {(cut - exact) / exact * 2**24:+8.1f}, rounded {(near - exact) / exact * 2**24:+6.1f} (in 2^-24 of the sum)"


def narrow_offsets():
    B, H, N, D = 64, 32, 32768, 128
    last = B * H * N * D - 1
    yield f"last element of ({B},{H},{N},{D}): {last}; as int32 {(last + 2**31) % 2**32 - 2**31}"


def order_of_sums():
    """The same numbers in another order have another sum: what finishes first must not decide."""
    x = [fp32(a) for a in scores(4096, seed=6)]
    found = []
    for seed in range(3):
        order = list(range(0, 4096, 256))
        random.Random(seed).shuffle(order)
        total = 0.0
        for begin in order:
            part = 0.0
            for a in x[begin : begin + 256]:
                part = fp32(part + a)
            total = fp32(total + part)
        found.append(f"{total:.9g}")
    yield f"16 parts, added as they finish: {', '.join(found)}"


def subnormal_weights():
    """One key 18 above a hundred thousand others: each of those weighs e^-18, together 0.15 %."""
    p, n = math.exp(-18.0), 100000
    yield f"e^-18 = {p:.3g}; in fp16 {fp16(p):.3g}, where numbers below {2**-25:.2g} are 0"
    yield f"share of the many keys: exact {n * p / (1 + n * p):.5f}, weights in fp16 {n * fp16(p) / (1 + n * fp16(p)):.5f}, times 2^8 first {n * fp16(256 * p) / (256 + n * fp16(256 * p)):.5f}"
    q, r = math.exp(-87.0), math.exp(-88.0)
    yield f"e^-87 = {q:.3g} is a normal fp32; e^-88 = {r:.3g} is not, and {flushed(r):g} where subnormals are flushed"


def subnormal_squares():
    """RMSNorm of small numbers: the squares vanish before the mean is taken."""
    x = [1e-4, -2e-4, 1.5e-4, -1e-4]
    exact = math.sqrt(sum(a * a for a in x) / 4)
    half = math.sqrt(sum(fp16(fp16(a) ** 2) for a in x) / 4)
    yield f"root of the mean square: {exact:.3e}; with squares in fp16 {half:.3e}; so a norm is off by {exact / half if half else INF:.2f} times"


def bf16_positions():
    yield f"position 15962 in bf16: {bf16(15962):g}; angle of the fastest pair off by {bf16(15962) - 15962:g} rad"
    biases = {bf16(-float(j)) for j in range(8000, 8128)}
    yield f"ALiBi's distances 8000-8127 in bf16: {len(biases)} different values of 128"


def softcap_after_mask():
    cap, s = 20.0, [3.0, 4.0, -INF]
    after = [cap * math.tanh(x / cap) for x in s]
    before = [cap * math.tanh(x / cap) for x in s[:2]] + [-INF]
    yield f"mask, then cap: scores {[round(x, 2) for x in after]}, the hidden key's weight {softmax(after)[2]:.1e}"
    yield f"cap, then mask: scores {[round(x, 2) for x in before]}, the hidden key's weight {softmax(before)[2]:g}"


def finite_minus_infinity():
    """-3.4e38 for a mask: a row that is all hidden becomes an even one."""
    lowest = -3.4028234663852886e38
    s = [fp32(x + lowest) for x in (1.0, 2.0, 3.0)]
    yield f"row all at -FLT_MAX: weights {[round(p, 3) for p in softmax(s)]}; times log2 e {fp32(s[0] * 1.442695)}"


def fp8_ranges():
    for name, form in (("E4M3", e4m3), ("E5M2", e5m2)):
        tiny = next(2.0**-e for e in range(1, 40) if form(2.0 ** -(e + 1)) == 0)
        yield f"{name}: 300 -> {form(300.0):g}, 500 -> {form(500.0):g}, 1e6 -> {form(1e6):g}, 1.1 -> {form(1.1):g}; smallest {tiny:g} = 2^{int(math.log2(tiny))}"
    s = scores(4096, seed=7, spread=3.0)
    p = [math.exp(x - max(s)) for x in s]
    lost = [sum(a for a in p if e4m3(k * a) == 0) / sum(p) for k in (1.0, 256.0)]
    yield f"softmax of 4096 scores of N(0,9), p in E4M3: {100 * lost[0]:.0f} % of the sum rounds to 0; times 2^8 first {100 * lost[1]:.1f} %"


def int8(x, largest=127.0):
    return max(-largest, min(largest, float(round(x))))


def outlier():
    """One scale for all, set by the largest value, against one for each block of 32."""
    for large in (3e3, 3e5):
        x = scores(4096, seed=9)
        x[100] = large
        rest = [j for j in range(4096) if not 96 <= j < 128]

        def error(form, top, blocks):
            size = 4096 // blocks
            scales = [max(map(abs, x[b * size : (b + 1) * size])) / top for b in range(blocks)]
            wrong = sum((form(x[j] / scales[j // size]) * scales[j // size] - x[j]) ** 2 for j in rest)
            return math.sqrt(wrong / sum(x[j] ** 2 for j in rest))

        e, i = [[error(f, top, blocks) for blocks in (1, 128)] for f, top in ((e4m3, 448.0), (int8, 127.0))]
        yield f"one value of {large:g} among N(0,1), error of the others: E4M3 {e[0]:.3f}, int8 {i[0]:.3f}; a scale for each 32: {e[1]:.3f}, {i[1]:.3f}"


def zeros_pass():
    """atol = rtol = 1e-2 on outputs of 16384 keys: their spread is so small that zeros pass for most of them."""
    n, rng = 16384, random.Random(11)
    spread = math.sqrt(math.e / n)
    outputs = [rng.gauss(0, spread) for _ in range(20000)]
    passed = sum(abs(o) <= 1e-2 + 1e-2 * abs(o) for o in outputs) / len(outputs)
    yield f"N = {n}: outputs spread by {spread:.4f}; an answer of zeros passes for {100 * passed:.0f} % of the elements"


SMELLS = [
    overflow, nan_row, nan_behind_mask, zero_row, not_rescaled, wrong_temperature, lse_base, ragged_tail, sums_in_16_bits, cut_off_sums,
    narrow_offsets, order_of_sums, subnormal_weights, subnormal_squares, bf16_positions, softcap_after_mask, finite_minus_infinity,
    fp8_ranges, outlier, zeros_pass,
]  # fmt: skip


def main():
    wanted = sys.argv[1:]
    for smell in SMELLS:
        if not wanted or smell.__name__ in wanted:
            print(smell.__name__)
            for line in smell():
                print("    " + line)


if __name__ == "__main__":
    main()
