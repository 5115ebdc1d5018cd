# SPDX-License-Identifier: Apache-2.0
"""Paired rounds: every implementation once a round, in turn, over a rotation of inputs that exceeds the cache.

A timed piece is some calls, each on the next set of inputs. By stream: events around the
piece, behind one call that is not counted, so that the queue is not empty when the clock starts. By graph: events
around a replay of a CUDA graph that holds the piece, behind another replay. On the CPU: the clock around it.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, Callable

from .operation import Call
from .place import Place

PIECE_US = (
    600.0  # a timed piece lasts at least about this long: 1000 ticks of CUDA's events, far above a clock's own cost
)
GRAPH_NODES = 2000  # calls in one graph, at most
# A call that takes the device less than this is timed by graph replay, on all sides: a call of a peer costs 10 to 110 us of
# Python, several kernels in a row up to 400, and below that the queue runs empty and Python is what is measured.
GRAPH_BELOW_US = 1000.0
ESTIMATE_CALLS = 8
WARM_UP = 2  # rounds that are not counted

Piece = Callable[[], float]  # runs once; us a call


class Rotation:
    """An implementation's calls, one a set of inputs, from one piece to the next in a ring. What a call returned is kept
    until its set comes again: torch's allocator would give all calls of a peer the same output, which stays in the cache,
    while keyfold's go through the sets as the inputs do."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.results: list[Any] = [None] * len(calls)
        self.place = 0

    def run(self, count: int) -> None:
        calls, results, place = self.calls, self.results, self.place
        for _ in range(count):
            results[place] = calls[place]()
            place = place + 1 if place + 1 < len(calls) else 0
        self.place = place


class Timer:
    """Times pieces on a place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def estimate(self, calls: list[Call]) -> float:
        """us of one call, from a first look: of the device alone where the calls can be captured."""
        few = calls[:ESTIMATE_CALLS]
        calls[0]()
        self.place.finish()
        begin = time.perf_counter()
        for call in few:
            call()
        self.place.finish()
        whole = (time.perf_counter() - begin) * 1e6 / len(few)
        if self.place.device == "cpu" or whole > 20 * GRAPH_BELOW_US:
            return whole
        try:
            replay = self.by_graph(few, 1)
        except Exception:  # timed() will say why
            return whole
        replay()
        return replay()

    def piece(self, calls: list[Call], estimate: float, mode: str) -> Piece:
        count = max(1, math.ceil(PIECE_US / max(estimate, 1.0)))
        if mode == "clock":
            return self.by_clock(Rotation(calls), count)
        if mode == "stream":
            return self.by_stream(Rotation(calls), count)
        passes = math.ceil(count / len(calls))
        return self.by_graph(calls, max(1, min(passes, GRAPH_NODES // len(calls))))

    def by_clock(self, rotation: Rotation, count: int) -> Piece:
        def run() -> float:
            begin = time.perf_counter()
            rotation.run(count)
            return (time.perf_counter() - begin) * 1e6 / count

        return run

    def by_stream(self, rotation: Rotation, count: int) -> Piece:
        def run() -> float:
            rotation.run(1)
            begin, end = self.events()
            begin.record()
            rotation.run(count)
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e3 / count

        return run

    def by_graph(self, calls: list[Call], passes: int) -> Piece:
        torch = self.place.torch
        graph = torch.cuda.CUDAGraph()
        rotation = Rotation(calls)
        self.place.finish()
        with torch.cuda.graph(graph, stream=self.place.stream):
            rotation.run(passes * len(calls))

        def run() -> float:
            graph.replay()
            begin, end = self.events()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e3 / (passes * len(calls))

        return run

    def events(self) -> tuple[Any, Any]:
        Event = self.place.torch.cuda.Event
        return Event(enable_timing=True), Event(enable_timing=True)


def rounds(pieces: dict[str, Piece], count: int) -> dict[str, list[float]]:
    """us a call, by implementation and round."""
    names = list(pieces)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(WARM_UP + count):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took = pieces[name]()
            if number >= WARM_UP:
                times[name].append(took)
    return times


def lower_quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def ceilings(place: Place) -> dict[str, float]:
    """What the device reaches in this process: a copy, bytes read and written; a product of bf16; how far apart a graph's
    nodes are that do nothing and have no dependent launch. The last is another one from machine to machine, and a part of
    each short time."""
    torch = place.torch
    if place.device != "cuda":
        return {}
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda._sleep(0)  # loads its kernel, which a capture may not
    timer = Timer(place)
    pieces = {
        "copy": timer.by_stream(Rotation([lambda: b.copy_(a)]), 4),
        "product": timer.by_stream(Rotation([lambda: x @ y]), 4),
        "node": timer.by_graph([lambda: torch.cuda._sleep(0)], GRAPH_NODES),
    }
    found = {name: statistics.median(times) for name, times in rounds(pieces, 5).items()}
    return {
        "copy_TB_s": round(2 * (1 << 30) / found["copy"] / 1e6, 3),
        "product_TFLOP_s": round(2 * 8192**3 / found["product"] / 1e6, 1),
        "node_us": round(found["node"], 3),
    }
