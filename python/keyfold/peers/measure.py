# SPDX-License-Identifier: Apache-2.0
"""One case: make every implementation, hold its result against float64, time what is left, give a row of the report."""

from __future__ import annotations

import contextlib
import math
import statistics
from types import ModuleType
from typing import Any, Callable, Optional

import keyfold

from . import attention, cache, rows
from .cases import Case
from .operation import Call, LeftOut, Operation
from .place import COLD, Place
from .timing import GRAPH_BELOW_US, Timer, lower_quartile, rounds

OPERATIONS: dict[str, Operation] = {**attention.OPERATIONS, **rows.OPERATIONS, **cache.OPERATIONS}

# ||result - float64|| / ||float64||, docs/numerics.md. A peer is not on trial here: it only has to compute the same thing.
RELATIVE_L2 = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}
PEER_ALLOWANCE = 4.0

SETS = 256  # of a rotation, at most

# By device: what is compared where no peers are named. "sdpa" on CUDA is one of the three others.
DEFAULT_PEERS = {
    "cuda": ["cudnn", "flash2", "efficient", "compile", "eager", "flashinfer", "flashinfer_tc", "fa4"],
    "cpu": ["sdpa", "compile", "eager", "numpy"],
}

Row = dict[str, Any]


def measure(
    case: Case,
    place: Place,
    *,
    peers: Optional[list[str]] = None,
    builds: Optional[dict[str, ModuleType]] = None,
    extra: Optional[dict[str, Callable[[Case, Place, Any], Call]]] = None,
    count: int = 15,
    timing: str = "auto",
    do_bench: bool = False,
) -> Row:
    """A row: times_us, errors, ratios (lower quartiles of the peer's time by keyfold's), left_out with reasons, failed.

    `builds` are further builds of the package by name, `extra` further implementations (a study's own kernels): a
    function of the case, the place and one set of inputs that gives the call.
    """
    operation = OPERATIONS[case.op]
    left_out: dict[str, str] = {}
    wanted = DEFAULT_PEERS[place.device] if peers is None else peers
    for name in wanted:
        if peers is not None and name not in operation.peers:
            left_out[name] = f"no way to call it for {case.op}"
    makers = {"keyfold": of_build(operation, keyfold)}
    makers.update({name: of_build(operation, build) for name, build in (builds or {}).items()})
    makers.update(extra or {})
    makers.update({name: operation.peers[name] for name in wanted if name in operation.peers})

    with current(place):
        sets = [operation.inputs(case, place) for _ in range(sets_of(operation, case, place))]
        calls, errors, failed = prepared(operation, case, place, makers, sets, left_out)
        mode, times = timed(place, calls, count, timing, left_out) if timing != "none" else (timing, {})
        benched = bench(place, calls) if do_bench else {}
    row: Row = {
        "op": case.op,
        "shape": list(case.shape),
        "dtype": case.dtype,
        "causal": case.causal,
        "times_us": {name: round(statistics.median(t), 3) for name, t in times.items()},
        "ratios": ratios(times),
        "timing": mode,
        "rounds": count,
        "sets": len(sets),
        "errors": errors,
        "left_out": left_out,
        "failed": failed,
        "bytes": operation.bytes(case),
        "flops": operation.flops(case),
    }
    if case.weight:
        row["weight"] = case.weight
    if case.rotated:
        row["rotated"] = case.rotated
    if benched:
        row["do_bench_us"] = benched
    return row


def of_build(operation: Operation, build: ModuleType) -> Callable[[Case, Place, Any], Call]:
    return lambda case, place, x: operation.keyfold(build, case, place, x)


def current(place: Place) -> Any:
    """Makes the place's stream torch's current one: keyfold and every peer work on that."""
    stack = contextlib.ExitStack()
    if place.torch is not None:
        stack.enter_context(place.torch.no_grad())
    if place.stream is not None:
        stack.enter_context(place.torch.cuda.stream(place.stream))
    return stack


def sets_of(operation: Operation, case: Case, place: Place) -> int:
    return max(1, min(SETS, math.ceil(COLD * place.cache / operation.bytes(case))))


# ------------------------------------------------------------------------------------------------------------- results


def prepared(
    operation: Operation,
    case: Case,
    place: Place,
    makers: dict[str, Any],
    sets: list[Any],
    left_out: dict[str, str],
) -> tuple[dict[str, list[Call]], dict[str, float], list[str]]:
    """Every implementation's calls, one a set. Of the first one the result is looked at."""
    take, answer = operation.expected(case, place, sets[0])
    calls: dict[str, list[Call]] = {}
    errors: dict[str, float] = {}
    failed: list[str] = []
    ours = [name for name in makers if name not in operation.peers]
    for name, make in makers.items():
        try:
            first = make(case, place, sets[0])
            error = relative_l2(place, take(first()), answer)
            place.finish()
            errors[name] = float(f"{error:.3g}")
            bound = RELATIVE_L2[case.dtype] * (1.0 if name in ours else PEER_ALLOWANCE)
            if not error <= bound:
                reason = f"its result is {error:.2g} off, more than {bound:.2g}"
                left_out[name] = reason
                if name in ours:
                    failed.append(f"{name}: {reason}")
                continue
            calls[name] = [first] + [make(case, place, x) for x in sets[1:]]
        except Exception as reason:  # a peer may refuse a case in any way
            left_out[name] = brief(reason)
    return calls, errors, failed


def relative_l2(place: Place, result: Any, answer: Any) -> float:
    difference = place.exact(result) - answer
    return float(((difference * difference).sum() / (answer * answer).sum()) ** 0.5)


def brief(reason: BaseException) -> str:
    text = " ".join(str(reason).split()) or type(reason).__name__
    kind = "" if isinstance(reason, (LeftOut, keyfold.Error)) else f"{type(reason).__name__}: "
    return (kind + text)[:200]


# -------------------------------------------------------------------------------------------------------------- timing


def timed(
    place: Place, calls: dict[str, list[Call]], count: int, timing: str, left_out: dict[str, str]
) -> tuple[str, dict[str, list[float]]]:
    timer = Timer(place)
    estimates = {name: timer.estimate(own) for name, own in calls.items()}
    if place.device == "cpu":
        mode = "clock"
    elif timing != "auto":
        mode = timing
    else:
        mode = "graph" if estimates and min(estimates.values()) < GRAPH_BELOW_US else "stream"
    pieces = {}
    for name, own in calls.items():
        try:
            pieces[name] = timer.piece(own, estimates[name], mode)
        except Exception as reason:  # what cannot be captured
            left_out[name] = f"not captured: {brief(reason)}"
    return mode, rounds(pieces, count) if pieces else {}


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """The lower quartile of the rounds' ratios: how many times as long as keyfold each of the others takes."""
    own = times.get("keyfold")
    if not own:
        return {}
    return {
        name: round(lower_quartile([theirs / ours for theirs, ours in zip(t, own)]), 4)
        for name, t in times.items()
        if name != "keyfold"
    }


def bench(place: Place, calls: dict[str, list[Call]]) -> dict[str, float]:
    """Triton's do_bench, which clears the cache by writing to it: the median of plain calls, in us."""
    if place.device != "cuda":
        return {}
    from triton.testing import do_bench

    return {name: round(do_bench(own[0], return_mode="median") * 1e3, 2) for name, own in calls.items()}
