# SPDX-License-Identifier: Apache-2.0
"""The recurrence in plain Python: against float64 sums by math.fsum, against torch where it is there, against keyfold's C
through the package; hostile rows; and the numbers of docs/01_online_softmax.md."""

import math
import random
import re

import pytest

from studies.conftest import ROOT
from studies.online_softmax.online import (
    add, add_tile, attention, dot, empty, example, exact, finish, fold, merge, rounded, softmax,
)  # fmt: skip

TOLERANCE = 1e-6  # the seeds', absolute, in fp32
INF = math.inf


def rows():
    """name: a row. fp32 values, so that every library sees the same."""
    rng = random.Random(1)
    plain = [rng.gauss(0, 4) for _ in range(300)]
    found = {
        "plain": plain,
        "one element": [3.5],
        "one large": [rng.gauss(0, 1) for _ in range(99)] + [1e5],
        "spread of 1e5": [1e5 * (i / 63 - 0.5) for i in range(64)],
        "rising": [0.5 * i for i in range(100)],
        "falling": [-0.5 * i for i in range(100)],
        "equal": [7.0] * 100,
        "near exp's limit": [88.7, 88.6, -88.7],
        "-inf first": [-INF] * 10 + plain[:20],
        "-inf last": plain[:20] + [-INF] * 10,
        "only one key": [-INF] * 7 + [2.0] + [-INF] * 8,
        "all -inf": [-INF] * 16,
    }
    return {name: [rounded(x) for x in row] for name, row in found.items()}


ROWS = rows()


def reference(row):
    top = max(row)
    if top == -INF:
        return [0.0] * len(row)
    e = [math.exp(x - top) for x in row]
    total = math.fsum(e)
    return [x / total for x in e]


def close(a, b, tolerance=TOLERANCE):
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("tile", [1, 3, 16, 1000])
@pytest.mark.parametrize("to", [exact, rounded], ids=["float64", "fp32"])
def test_softmax(name, tile, to):
    assert close(softmax(ROWS[name], tile, to), reference(ROWS[name]), 1e-15 if to is exact else TOLERANCE)


@pytest.mark.parametrize("name", ROWS)
def test_softmax_against_torch(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.softmax(torch.tensor(ROWS[name]), -1)
    ours = softmax(ROWS[name], 16, rounded)
    if name == "all -inf":
        assert theirs.isnan().all() and ours == [0.0] * 16  # 0 / 0 there; here a row without keys has no weights
    else:
        assert close(ours, theirs.tolist())


@pytest.mark.parametrize("name", ROWS)
def test_softmax_against_keyfold(name, keyfold):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    y, lse = keyfold.softmax(numpy.array([ROWS[name]], dtype=numpy.float32), return_lse=True)
    assert close(softmax(ROWS[name], 16, rounded), y[0].tolist())
    _, ours = finish(fold(ROWS[name], [[]] * len(ROWS[name]), 0, 16))
    assert ours == lse[0] or abs(ours - float(lse[0])) <= 1e-6 * max(1.0, abs(ours))


# --------------------------------------------------------------------------------------------------- the state's algebra


def some(n, width=3, seed=2):
    rng = random.Random(seed)
    return [rng.gauss(0, 10) for _ in range(n)], [[rng.gauss(0, 1) for _ in range(width)] for _ in range(n)]


def same(a, b):
    return a.m == b.m and math.isclose(a.d, b.d, rel_tol=1e-12) and close(a.o, b.o, 1e-12)


def direct(s, v):
    """The invariant: what a state must be at any time, from its definition."""
    m = max(s)
    p = [math.exp(x - m) for x in s]
    return m, math.fsum(p), [math.fsum(x * row[c] for x, row in zip(p, v)) for c in range(len(v[0]))]


def test_the_invariant_holds_after_every_key():
    s, v = some(50)
    state = empty(3)
    for n, (x, row) in enumerate(zip(s, v), 1):
        state = add(state, x, row)
        m, d, o = direct(s[:n], v[:n])
        assert state.m == m and math.isclose(state.d, d, rel_tol=1e-12) and close(state.o, o, 1e-12)


@pytest.mark.parametrize("tile", [1, 2, 7, 50, 64])
def test_tiles_and_keys_give_the_same_state(tile):
    s, v = some(50)
    one = empty(3)
    for x, row in zip(s, v):
        one = add(one, x, row)
    assert same(one, fold(s, v, 3, tile))


def test_merge_is_commutative_associative_and_has_a_unit():
    s, v = some(30)
    a, b, c = (fold(s[i : i + 10], v[i : i + 10], 3, 4) for i in (0, 10, 20))
    assert same(merge(a, b), merge(b, a))
    assert same(merge(merge(a, b), c), merge(a, merge(b, c)))
    assert same(merge(a, empty(3)), a) and same(merge(empty(3), a), a)
    assert merge(empty(3), empty(3)) == empty(3)
    assert same(merge(merge(c, a), b), fold(s, v, 3, 10))


def test_keys_that_are_hidden_change_nothing():
    s, v = some(10)
    state = fold(s, v, 3, 4)
    assert add(state, -INF, [1.0, 2.0, 3.0]) == state
    assert add_tile(state, [-INF] * 4, [[9.0] * 3] * 4) == state
    assert add_tile(empty(3), [-INF] * 4, [[9.0] * 3] * 4) == empty(3)
    assert finish(empty(3)) == ([0.0] * 3, -INF)


def test_without_the_rescale_it_is_wrong():
    """What the factor w is for: a sum that forgets it counts old keys by the wrong maximum."""
    s, v = [0.0, 5.0], [[1.0], [0.0]]
    forgetful = 1.0 + 1.0  # d: both keys counted as e^0, each by the maximum of its time
    assert abs(fold(s, v, 1, 1).d - forgetful) > 0.9


# ------------------------------------------------------------------------------------------------------------- attention


def naive(q, k, v, causal):
    scale, answers = 1.0 / math.sqrt(len(q[0])), []
    for i, row in enumerate(q):
        seen = [j for j in range(len(k)) if not causal or j <= i + len(k) - len(q)]
        p = reference([math.fsum(x * y for x, y in zip(row, k[j])) * scale for j in seen]) if seen else []
        answers.append([math.fsum(x * v[j][c] for x, j in zip(p, seen)) for c in range(len(v[0]))])
    return answers


SHAPES = [(1, 1, 4), (5, 5, 8), (7, 12, 8), (12, 7, 8), (1, 33, 16)]


def qkv(Nq, Nk, D):
    rng = random.Random(3)
    return [[[rounded(rng.gauss(0, 1)) for _ in range(D)] for _ in range(n)] for n in (Nq, Nk, Nk)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tile", [1, 4, 64])
def test_attention(shape, causal, tile):
    q, k, v = qkv(*shape)
    o, lse = attention(q, k, v, causal=causal, tile=tile)
    for ours, theirs in zip(o, naive(q, k, v, causal)):
        assert close(ours, theirs, 1e-12)
    single, _ = attention(q, k, v, causal=causal, tile=tile, to=rounded)
    for ours, theirs in zip(single, o):
        assert close(ours, theirs)
    assert [x == -INF for x in lse] == [causal and i + shape[1] - shape[0] < 0 for i in range(shape[0])]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] <= shape[1]], ids=str)
def test_attention_against_torch(shape, causal):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = (torch.tensor(x)[None, None] for x in qkv(*shape))
    mask = causal_lower_right(*shape[:2]) if causal else None
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0, 0]
    ours, _ = attention(*qkv(*shape), causal=causal, to=rounded)
    for row, other in zip(ours, theirs.tolist()):
        assert close(row, other)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] >= 8], ids=str)
def test_attention_against_keyfold(shape, causal, keyfold):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    q, k, v = (numpy.array(x, dtype=numpy.float32)[None, None] for x in qkv(*shape))
    theirs, sums = keyfold.attention(q, k, v, causal=causal, return_lse=True)
    ours, lse = attention(*qkv(*shape), causal=causal, to=rounded)
    for row, other in zip(ours, theirs[0, 0].tolist()):
        assert close(row, other)
    assert all(a == b or abs(a - b) <= 2e-6 for a, b in zip(lse, sums[0, 0].tolist()))


def test_the_documents_example():
    """Every number of the worked example is in the document as it is computed here, to four places."""
    text = (ROOT / "docs" / "01_online_softmax.md").read_text()
    section = text[text.index("## A worked example") :]
    found = dict(re.findall(r"`([a-zA-Z0-9\[\]]+) = (-?[0-9.]+)`", section))
    for name, value in example():
        assert name in found, f"{name} is not in the document"
        assert float(found[name]) == pytest.approx(value, abs=5e-5), name


def test_dot():
    assert dot([1.0, 2.0], [3.0, 4.0]) == 11.0
