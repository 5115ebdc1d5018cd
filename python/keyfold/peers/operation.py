# SPDX-License-Identifier: Apache-2.0
"""What an operation must say to be compared: its inputs, its cost, its answer, and how each peer is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Callable, Iterable

from .cases import Case
from .place import Place, importable, not_importable

Call = Callable[[], Any]  # one call of one implementation on one set of inputs; returns what it wrote

# keyfold and the peers take a case, a place and one set of inputs, and give a call. A layout of its own belongs into the
# maker, where it is not timed; a plan or a compilation likewise, by place.once, as one serves all sets.
Maker = Callable[[Case, Place, Any], Call]


@dataclass(frozen=True)
class Operation:
    inputs: Callable[[Case, Place], SimpleNamespace]  # one set
    bytes: Callable[[Case], float]  # that a call must move
    flops: Callable[[Case], float]  # useful ones; 0: the operation is of memory
    expected: Callable[
        [Case, Place, Any], tuple[Callable[[Any], Any], Any]
    ]  # what to take of a result, and its float64
    keyfold: Callable[[Any, Case, Place, Any], Call]  # the package comes first, so that several builds can be compared
    peers: dict[str, Maker] = field(default_factory=dict)


class LeftOut(Exception):
    """A peer that cannot take part in a case; the sentence says why."""


WIDTH = {"fp32": 4, "fp16": 2, "bf16": 2}


def needs_torch(place: Place) -> Any:
    if place.torch is None:
        raise LeftOut(not_importable("torch"))
    return place.torch


def needs_cuda(place: Place) -> Any:
    torch = needs_torch(place)
    if place.device != "cuda":
        raise LeftOut("it runs on CUDA alone")
    return torch


# The modules of peers that are no part of torch.
LIBRARIES = {
    "flashinfer": "flashinfer",
    "flashinfer_tc": "flashinfer",
    "fa4": "flash_attn.cute.interface",
}


def needs_library(place: Place, peer: str, part: str = "") -> Any:
    """A peer's module, or one of its parts."""
    needs_cuda(place)
    name = LIBRARIES[peer] + part
    module = importable(name)
    if module is None:
        raise LeftOut(not_importable(name))
    return module


def missing(place: Place, peers: Iterable[str]) -> dict[str, str]:
    """Those of the peers that no case can have here, and why."""
    found = {}
    for peer in peers:
        try:
            if peer in LIBRARIES:
                needs_library(place, peer)
            elif peer not in ("numpy", "prefill"):
                needs_torch(place)
        except LeftOut as reason:
            found[peer] = str(reason)
    return found


def compiled(case: Case, place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile for this case's shapes. Each case compiles anew: dynamo keeps few shapes of one function."""
    torch = needs_torch(place)

    def compile_it() -> Any:
        torch._dynamo.reset()
        return torch.compile(function, dynamic=False)

    made: Callable[..., Any] = place.once(case, "compiled", compile_it)
    return made
