# SPDX-License-Identifier: Apache-2.0
"""Online softmax and online attention in plain Python: numbers and lists, `math` and nothing else.

A state over a set of keys J with scores s_j and values v_j is

    m = max_J s_j      d = sum_J e^(s_j - m)      o = sum_J e^(s_j - m) v_j

The empty set's is (-inf, 0, 0). States of disjoint sets merge, in any order; so a row may be taken key by key (`add`), tile
by tile (`add_tile`) or in parts (`merge`), and softmax and attention are what a state's end says. The names are those of
src/math/state.h.

`rounded` rounds every result to fp32, so that the same code shows what a kernel with fp32 accumulators computes.
"""

import math
import struct
from typing import Callable, Iterable, NamedTuple, Sequence

Vector = list[float]
Round = Callable[[float], float]


class State(NamedTuple):
    m: float
    d: float
    o: Vector


def exact(x: float) -> float:
    """Python's own precision, float64."""
    return x


def rounded(x: float) -> float:
    """The nearest fp32; what is too large for one becomes infinite."""
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def empty(width: int = 0) -> State:
    return State(-math.inf, 0.0, [0.0] * width)


def weight(m_i: float, m: float, to: Round = exact) -> float:
    """What d and o of a state with maximum m_i are multiplied by where m is the maximum of all."""
    return 0.0 if m_i == -math.inf else to(math.exp(to(m_i - m)))


def add(state: State, s: float, v: Sequence[float] = (), to: Round = exact) -> State:
    """One more key: the recurrence in its scalar form."""
    m = max(state.m, s)
    if m == -math.inf:
        return state
    w, p = weight(state.m, m, to), weight(s, m, to)
    return State(m, to(to(state.d * w) + p), [to(to(o * w) + to(p * x)) for o, x in zip(state.o, v)])


def add_tile(state: State, s: Sequence[float], v: Sequence[Sequence[float]] = (), to: Round = exact) -> State:
    """One more tile of keys: the recurrence that a kernel runs. One maximum, one rescale, then sums without a branch."""
    m = max([state.m, *s])
    if m == -math.inf:
        return state
    w = weight(state.m, m, to)
    p = [weight(x, m, to) for x in s]
    d = to(state.d * w)
    for x in p:
        d = to(d + x)
    o = [to(x * w) for x in state.o]
    for x, row in zip(p, v):
        o = [to(y + to(x * z)) for y, z in zip(o, row)]
    return State(m, d, o)


def merge(a: State, b: State, to: Round = exact) -> State:
    """The state over both sets of keys."""
    m = max(a.m, b.m)
    if m == -math.inf:
        return a
    left, right = weight(a.m, m, to), weight(b.m, m, to)
    o = [to(to(x * left) + to(y * right)) for x, y in zip(a.o, b.o)]
    return State(m, to(to(a.d * left) + to(b.d * right)), o)


def finish(state: State) -> tuple[Vector, float]:
    """o / d, and ln of the sum of e^score. No keys: 0 and -inf."""
    if state.d == 0.0:
        return [0.0] * len(state.o), -math.inf
    return [x / state.d for x in state.o], state.m + math.log(state.d)


# ---------------------------------------------------------------------------------------------------- softmax, attention


def softmax(row: Sequence[float], tile: int = 1, to: Round = exact) -> Vector:
    """One pass for m and d, one to write. A row that is all -inf gives zeros."""
    state = fold(row, [[]] * len(row), 0, tile, to)
    if state.d == 0.0:
        return [0.0] * len(row)
    return [to(weight(x, state.m, to) / state.d) for x in row]


def fold(s: Sequence[float], v: Sequence[Sequence[float]], width: int, tile: int, to: Round = exact) -> State:
    state = empty(width)
    for first in range(0, len(s), tile):
        state = add_tile(state, s[first : first + tile], v[first : first + tile], to)
    return state


def attention(
    q: Sequence[Sequence[float]],
    k: Sequence[Sequence[float]],
    v: Sequence[Sequence[float]],
    *,
    causal: bool = False,
    tile: int = 4,
    scale: float = 0.0,
    to: Round = exact,
) -> tuple[list[Vector], Vector]:
    """(o, lse) of one head: q [Nq][D], k [Nk][D], v [Nk][Dv]. Row i stands at p = i + Nk - Nq and, causal, sees j <= p.

    No array of scores: a tile's are made, folded into the row's state and forgotten.
    """
    scale = scale or 1.0 / math.sqrt(len(q[0]))
    o, lse = [], []
    for i, row in enumerate(q):
        hi = min(len(k), max(0, i + len(k) - len(q) + 1)) if causal else len(k)
        state = empty(len(v[0]))
        for first in range(0, hi, tile):
            last = min(first + tile, hi)
            s = [to(dot(row, k[j], to) * scale) for j in range(first, last)]
            state = add_tile(state, s, v[first:last], to)
        answer, log_sum = finish(state)
        o.append([to(x) for x in answer])
        lse.append(to(log_sum))
    return o, lse


def dot(a: Iterable[float], b: Iterable[float], to: Round = exact) -> float:
    total = 0.0
    for x, y in zip(a, b):
        total = to(total + to(x * y))
    return total


# -------------------------------------------------------------------------------------------------------------- example

# docs/01_online_softmax.md works this one by hand: four keys in two tiles, values of two numbers.
EXAMPLE_S = [1.0, 3.0, 2.0, 4.0]
EXAMPLE_V = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]


def example() -> list[tuple[str, float]]:
    """Every number of the worked example, by the name that the document gives it."""
    first = add_tile(empty(2), EXAMPLE_S[:2], EXAMPLE_V[:2])
    second = add_tile(first, EXAMPLE_S[2:], EXAMPLE_V[2:])
    alone = add_tile(empty(2), EXAMPLE_S[2:], EXAMPLE_V[2:])
    o, lse = finish(second)
    numbers = [("m1", first.m), ("d1", first.d), ("o1[0]", first.o[0]), ("o1[1]", first.o[1])]
    numbers += [
        ("w", weight(first.m, second.m)),
        ("m2", second.m),
        ("d2", second.d),
        ("o2[0]", second.o[0]),
        ("o2[1]", second.o[1]),
    ]
    numbers += [("mB", alone.m), ("dB", alone.d), ("oB[0]", alone.o[0]), ("oB[1]", alone.o[1])]
    return numbers + [("O[0]", o[0]), ("O[1]", o[1]), ("lse", lse)]


if __name__ == "__main__":
    for name, value in example():
        print(f"{name:6}{value:10.4f}")
