# SPDX-License-Identifier: Apache-2.0
"""What is asked of keyfold's speed beside its peers on CUDA, and whether a run's rows show it::

    python -m keyfold.peers --asked --reports reports/h200             # measures everything below, then prints the table
    python -m keyfold.peers --asked --reports reports/h200 --rounds 0  # prints the table of the reports that are there

A demand is a ratio to the fastest of some peers: "1.0 times the fastest of cudnn and flashinfer". It holds where the lower
quartile of the paired rounds' ratios does (the package's first lines). A peer that was not there leaves its demand open.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional

from .cases import DECODE, FP32, RMSNORM, ROPE_ATTENTION, ROPE_DECODE, SWIGLU, Case, defaults, expand, one_query, square
from .measure import OPERATIONS, Row
from .report import title


def usual(op: str) -> list[Case]:
    """An operation's usual cases in bf16; RoPE's with q alone rotated, then with both."""
    ways = ("q", "qk") if op == "rope_attention" else ("q",)
    return [case for way in ways for case in expand(op, defaults("cuda")[op], "bf16", None, ["dense"], way)]


def rotating_decode() -> list[Case]:
    return list(expand("rope_attention", one_query(ROPE_DECODE), "bf16", None, [], "qk"))


# The reports: their cases, and the peers of each operation.
REPORTS: dict[str, tuple[list[Case], list[str]]] = {
    "peers-decode.json": (usual("decode"), ["cudnn", "flash2", "flashinfer", "flashinfer_tc"]),
    "peers-unsplit.json": (usual("decode"), ["prefill"]),
    "peers-rows.json": (
        [case for op in ("rmsnorm", "swiglu", "softmax", "kv_append") for case in usual(op)],
        ["eager", "compile", "flashinfer"],
    ),
    "peers-rope.json": (usual("rope_attention"), ["eager", "compile"]),
    "peers-rope-decode.json": (rotating_decode(), ["eager", "compile"]),
    "peers-attention.json": (usual("attention"), ["cudnn", "flash2", "efficient", "flashinfer", "fa4"]),
    "peers-fp32.json": (list(expand("attention", square(FP32), "fp32", None, [], "q")), ["efficient"]),
}


def peers_of(name: str, op: str) -> list[str]:
    """Of a report's peers those that the operation has a call for."""
    return [peer for peer in REPORTS[name][1] if peer in OPERATIONS[op].peers]


# Of scripts/gpu_linear.py, which has the read kernels.
LINEAR_REPORT = "peers-linear.json"

COPY_BOUND = 0.95  # of the copy rate: a peer above it leaves nothing to be faster by ...
COPY_BOUND_RATIO = 0.98  # ... and this is asked


@dataclass(frozen=True)
class Demand:
    case: Case
    ratio: float
    peers: tuple[str, ...]  # the fastest of them counts
    eased: bool = False  # COPY_BOUND_RATIO where the peer is above COPY_BOUND


@dataclass(frozen=True)
class Verdict:
    demand: Demand
    reached: Optional[float]  # None: not measured
    asked: float
    beside: str  # the peer that was the fastest

    @property
    def holds(self) -> str:
        return "not measured" if self.reached is None else "yes" if self.reached >= self.asked else "NO"


SEEDS = [(1, 8, 8, 512, 64), (1, 8, 8, 2048, 64), (4, 32, 32, 4096, 128), (1, 8, 8, 8192, 128), (2, 16, 16, 16384, 64)]


def demands() -> Iterator[Demand]:
    for shape in square(SEEDS):
        for causal in (False, True):
            yield Demand(Case("attention", shape, "bf16", causal), 1.0, ("flash2",))
    yield Demand(Case("attention", square([(2, 16, 16, 4096, 64)])[0], "bf16", True), 1.0, ("flash2",))
    decode = [Case("decode", shape, "bf16") for shape in one_query(DECODE)]
    for case in REPORTS["peers-fp32.json"][0]:
        yield Demand(case, 1.0, ("efficient",))
    yield Demand(decode[0], 3.0, ("prefill",))
    yield Demand(decode[0], 1.0, ("cudnn",))
    for case in decode[1:4]:
        yield Demand(case, 1.0, ("cudnn", "flashinfer", "flashinfer_tc"))
    yield Demand(decode[4], 0.98, ("cudnn",))
    for op, shapes, eager in (("rmsnorm", RMSNORM, 1.8), ("swiglu", SWIGLU[1:], 1.5)):
        for rows in shapes:
            case = Case(op, rows, "bf16")
            yield Demand(case, eager, ("eager",))
            yield Demand(case, 1.0, ("compile",), eased=True)
            yield Demand(case, 1.0, ("flashinfer",), eased=True)
    for shape in square(ROPE_ATTENTION):
        for rotated in ("q", "qk"):
            case = Case("rope_attention", shape, "bf16", True, rotated=rotated)
            yield Demand(case, 1.05, ("eager",))
            yield Demand(case, 1.0, ("compile",))
    for case in REPORTS["peers-rope-decode.json"][0]:
        yield Demand(case, 1.05, ("eager",))
        yield Demand(case, 1.0, ("compile",))


def is_of(row: Row, case: Case) -> bool:
    same = row["op"] == case.op and tuple(row["shape"]) == case.shape and row["dtype"] == case.dtype
    return same and bool(row["causal"]) == case.causal and row.get("rotated") == case.rotated


def judge(demand: Demand, rows: list[Row]) -> Verdict:
    found = [row for row in rows if is_of(row, demand.case)]
    # A case may stand in two reports, beside other peers in each.
    row = next((row for row in found if row.get("ratios", {}).keys() & set(demand.peers)), None)
    there = [name for name in demand.peers if row is not None and name in row["ratios"]]
    if row is None or not there:
        return Verdict(demand, None, demand.ratio, ", ".join(demand.peers))
    beside = min(there, key=lambda name: row["times_us"][name])
    reached = min(row["ratios"][name] for name in there)
    asked = demand.ratio
    if demand.eased and row.get("copy_TB_s"):
        if row["bytes"] / row["times_us"][beside] / 1e6 > COPY_BOUND * row["copy_TB_s"]:
            asked = COPY_BOUND_RATIO
    missing = [name for name in demand.peers if name not in there]
    return Verdict(demand, reached, asked, beside + (f" (without {', '.join(missing)})" if missing else ""))


def cut(ratio: float) -> str:
    """Three decimals, not rounded: what is shown as 1.000 has reached it."""
    return f"{math.floor(ratio * 1000) / 1000:.3f}"


def table(rows: list[Row]) -> list[str]:
    lines = ["| work | asked | times | reached | holds |", "|---|---|---|---|---|"]
    for demand in demands():
        v = judge(demand, rows)
        reached = "" if v.reached is None else cut(v.reached)
        lines.append(f"| {demand.case.title} | {v.asked:g} | {v.beside} | {reached} | {v.holds} |")
    return lines


FEW = 4  # cases that are named one by one
READ_SHARE = 0.85  # of what the best read kernel takes for the same bytes


def linear_table(rows: list[Any]) -> list[str]:
    """Of rows of scripts/gpu_linear.py: one row of x, TinyLlama's products."""
    lines = []
    for row in rows:
        times = row["times_us"]
        if row.get("tokens") != 1 or row["model"] != "tinyllama" or row["shape"] == "step" or "read" not in times:
            continue
        reached = row.get("ratios", {}).get("read", times["read"] / times["keyfold"])
        holds = "yes" if reached >= READ_SHARE else "NO"
        lines.append(
            f"| linear {row['shape']} {row['type']}, one row | {READ_SHARE:g} | read | {cut(reached)} | {holds} |"
        )
    return lines


def summary(lines: list[str]) -> str:
    ends = [line.rstrip(" |").rpartition("| ")[2] for line in lines]
    return f"{ends.count('yes')} hold, {ends.count('NO')} don't, {ends.count('not measured')} are not measured"


def absent(rows: list[Row]) -> list[str]:
    """Peers that rows are without, a line for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for peer, reason in row["left_out"].items():
            found.setdefault((peer, reason), []).append(title(row))
    return [
        f"without {peer}: {', '.join(titles) if len(titles) < FEW else f'{len(titles)} cases'}: {reason}"
        for (peer, reason), titles in found.items()
    ]


def nodes(rows: list[Row]) -> list[str]:
    """timing.ceilings' last, of every process that measured: where they are not the same, short times are not either."""
    times = sorted({row["node_us"] for row in rows if "node_us" in row})
    if not times:
        return []
    return [f"a graph's node that does nothing, without dependent launch: {', '.join(map(str, times))} us"]


def read_reports(folder: Path) -> tuple[list[Row], list[Any]]:
    rows: list[Row] = []
    for name in REPORTS:
        if (folder / name).exists():
            rows += json.loads((folder / name).read_text())
    linear = folder / LINEAR_REPORT
    return rows, json.loads(linear.read_text()) if linear.exists() else []
