# SPDX-License-Identifier: Apache-2.0
"""python -m keyfold.peers: see the package's first lines. Exit status 0 only if keyfold ran, and was right, everywhere."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Collection, Iterable, Iterator, Optional

from . import asked, cases, report
from .cases import Case
from .measure import DEFAULT_PEERS, OPERATIONS, Row, measure
from .operation import WIDTH, missing
from .place import Place, load_build
from .timing import ceilings

ISOLATED_S = 600  # a case in a process of its own may take this long


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m keyfold.peers", description="The same call on keyfold and on its peers."
    )
    parser.add_argument("--op", default=",".join(OPERATIONS), help="operations, separated by commas (default: all)")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        help="instead of the usual ones; may be given often; "
        + "; ".join(f"{op}: {s}" for op, s in cases.SHAPES.items()),
    )
    parser.add_argument("--match", default="", help="only cases whose title contains this, such as '8192,128'")
    parser.add_argument("--dtype", choices=list(WIDTH), help="default: bf16 with torch, else fp32")
    parser.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, help="only so (default: attention both ways)"
    )
    parser.add_argument("--weights", default="dense,q4_0", help="linear's types of weights: dense, q4_0, q8_0")
    parser.add_argument(
        "--rotated",
        choices=["q", "qk", "q,qk"],
        default="q",
        help="rope_attention: q (k turned as it was appended), both, or the one and the other",
    )
    parser.add_argument("--peers", help="names, separated by commas (default: all that can be imported)")
    parser.add_argument("--library", action="append", default=[], help="NAME=PATH: a further build of libkeyfold")
    parser.add_argument("--rounds", type=int, default=15, help="paired rounds (default and least of a claim: 15)")
    parser.add_argument(
        "--timing", choices=["auto", "stream", "graph", "none"], default="auto", help="on CUDA; none: results alone"
    )
    parser.add_argument("--asked", action="store_true", help="what is asked of keyfold's speed on CUDA, line by line")
    parser.add_argument("--reports", help="with --asked: the folder of its reports")
    parser.add_argument("--do-bench", action="store_true", help="Triton's do_bench too")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--json", help="write the rows there, after each case")
    parser.add_argument("--plot", help="write PLOT.svg and PLOT.png")
    parser.add_argument("--isolate", action="store_true", help="a process for each case: a crash costs that case alone")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def check(options: argparse.Namespace) -> None:
    """What would otherwise fail in the middle of a run, or be left out in silence."""

    def must_be_of(option: str, given: str, allowed: Collection[str]) -> None:
        for name in given.split(","):
            if name not in allowed:
                raise SystemExit(f"keyfold.peers: --{option} is {name}, must be of {', '.join(allowed)}")

    must_be_of("op", options.op, OPERATIONS)
    must_be_of("weights", options.weights, ["dense", "q4_0", "q8_0"])
    if options.peers:
        must_be_of("peers", options.peers, dict.fromkeys(peer for op in OPERATIONS.values() for peer in op.peers))
    if options.rounds < (0 if options.asked else 1):
        raise SystemExit(f"keyfold.peers: --rounds is {options.rounds}, must be 1 or more")
    for shape in options.shape:
        if not all(n.isascii() and n.isdigit() and int(n) > 0 for n in shape.split(",")):
            raise SystemExit(f"keyfold.peers: --shape is {shape}, must be whole numbers above 0 with commas between")
        for op in options.op.split(","):
            if len(shape.split(",")) != len(cases.SHAPES[op].split(",")):
                raise SystemExit(f"keyfold.peers: a shape of {op} is {cases.SHAPES[op]}; {shape} is given")
    for library in options.library:
        name, _, path = library.partition("=")
        if not (name.isidentifier() and os.path.isfile(path)):
            raise SystemExit(f"keyfold.peers: --library is {library}, must be NAME=PATH with a file at PATH")


def wanted(options: argparse.Namespace, device: str, dtype: str) -> Iterator[Case]:
    for op in options.op.split(","):
        shapes = [tuple(int(n) for n in shape.split(",")) for shape in options.shape] or cases.CASES[device][op]
        for rotated in options.rotated.split(",") if op == "rope_attention" else "q":
            for case in cases.expand(op, shapes, dtype, options.causal, options.weights.split(","), rotated):
                if options.match in case.title:
                    yield case


def isolated(case: Case, options: argparse.Namespace) -> Row:
    """The same command for one case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "row.json")
        command = [sys.executable, "-m", "keyfold.peers", "--op", case.op, "--shape", ",".join(map(str, case.shape))]
        command += ["--dtype", case.dtype, "--causal" if case.causal else "--no-causal", "--json", path]
        command += ["--weights", case.weight if case.weight != case.dtype else "dense"] if case.weight else []
        command += ["--rotated", case.rotated] if case.rotated else []
        command += ["--rounds", str(options.rounds), "--timing", options.timing, "--device", options.device]
        command += ["--seed", str(options.seed)] + (["--do-bench"] if options.do_bench else [])
        command += ["--peers", options.peers] if options.peers is not None else []
        for library in options.library:
            command += ["--library", library]
        try:
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=ISOLATED_S
            )
            with open(path) as file:
                return json.load(file)[0]  # type: ignore[no-any-return]
        except subprocess.TimeoutExpired:
            reason = f"no end after {ISOLATED_S} s"
        except (OSError, ValueError, IndexError):
            reason = f"ended with {done.returncode}: {' '.join(done.stderr.split())[-200:]}"
    return lost(case, reason)


def lost(case: Case, reason: str) -> Row:
    return {"op": case.op, "shape": list(case.shape), "dtype": case.dtype, "causal": case.causal, "weight": case.weight,
            "rotated": case.rotated,
            "times_us": {}, "ratios": {}, "timing": "none", "left_out": {}, "failed": [reason], "bytes": 0, "flops": 0}  # fmt: skip


def main(given: Optional[list[str]] = None) -> int:
    options = arguments().parse_args(given)
    check(options)
    if options.asked and not options.reports:
        raise SystemExit("keyfold.peers: --asked needs --reports FOLDER")
    if options.asked and options.rounds == 0:
        return print_asked(Path(options.reports))
    try:
        place = Place(options.device, options.seed)
    except ValueError as refusal:
        raise SystemExit(f"keyfold.peers: {refusal}") from None
    builds = {}
    for library in options.library:
        name, _, path = library.partition("=")
        builds[name] = load_build(name, path)
    command = "python -m keyfold.peers " + " ".join(sys.argv[1:] if given is None else given)
    measured = {} if options.isolate or options.timing == "none" else ceilings(place)
    source = report.provenance(place.machine, command.strip(), measured, report.commit())
    print(", ".join(f"{key}: {value}" for key, value in source.items()), flush=True)
    for peer, reason in missing(place, beside(options, place.device)).items():
        print(f"without {peer}: {reason}", flush=True)
    if options.asked:
        rows = measure_asked(place, builds, options, source)
        print_asked(Path(options.reports))
    else:
        dtype = options.dtype or ("bf16" if place.torch is not None else "fp32")
        rows = measure_all(wanted(options, place.device, dtype), place, builds, options, source, options.json)
        print("\n".join(report.table(rows)))
    if options.plot:
        written = report.plot(options.plot, rows)
        print("plot: " + (", ".join(written) or "not drawn: matplotlib is missing, or no two times"))
    failed = sum(bool(row["failed"]) for row in rows)
    without = sum("keyfold" in row["left_out"] and not row["failed"] for row in rows)
    print(f"peers: {len(rows)} cases, {failed} failed, {without} without keyfold")
    return 1 if failed or without or not rows else 0


def beside(options: argparse.Namespace, device: str) -> list[str]:
    """The peers that this run is to have."""
    if options.peers is not None:
        return [name for name in options.peers.split(",") if name]
    if options.asked:
        return list(dict.fromkeys(peer for _, peers in asked.REPORTS.values() for peer in peers))
    return DEFAULT_PEERS[device]


def measure_all(
    chosen: Iterable[Case],
    place: Place,
    builds: dict[str, Any],
    options: argparse.Namespace,
    source: dict[str, Any],
    path: Optional[str],
    before: Iterable[Row] = (),
) -> list[Row]:
    """A row for each case, printed as it comes; the file at `path` has all of them after each, behind those `before`."""
    rows: list[Row] = []
    known = missing(place, beside(options, place.device))
    for case in chosen:
        row = one(case, place, builds, options)
        row = {**source, **row} if "commit" in row else {**row, **source}
        rows.append(row)
        print(report.line(row, known), flush=True)
        for reason in row["failed"]:
            print(f"    FAILED: {reason}", flush=True)
        if path:
            report.write_json(path, [*before, *rows])
    return rows


def measure_asked(
    place: Place, builds: dict[str, Any], options: argparse.Namespace, source: dict[str, Any]
) -> list[Row]:
    """The reports of asked.py, of the operations in --op, beside the peers in --peers or the usual ones of each."""
    rows: list[Row] = []
    given = options.peers
    for name, (chosen, _) in asked.REPORTS.items():
        chosen = [case for case in chosen if case.op in options.op.split(",") and options.match in case.title]
        done: list[Row] = []
        for op in dict.fromkeys(case.op for case in chosen):
            options.peers = given if given is not None else ",".join(asked.peers_of(name, op))
            of_op = [case for case in chosen if case.op == op]
            done += measure_all(of_op, place, builds, options, source, str(Path(options.reports) / name), done)
        rows += done
    options.peers = given
    return rows


def print_asked(folder: Path) -> int:
    rows, linear = asked.read_reports(folder)
    lines = asked.table(rows) + asked.linear_table(linear)
    print("\n".join(lines))
    print(f"asked: {asked.summary(lines)}")
    print("\n".join(asked.absent(rows) + asked.nodes(rows)))
    return 0


def one(case: Case, place: Place, builds: dict[str, Any], options: argparse.Namespace) -> Row:
    if options.isolate:
        return isolated(case, options)
    peers = None if options.peers is None else [name for name in options.peers.split(",") if name]
    try:
        return measure(
            case,
            place,
            peers=peers,
            builds=builds,
            count=options.rounds,
            timing=options.timing,
            do_bench=options.do_bench,
        )
    except Exception as reason:  # such as: too little memory for the inputs
        return lost(case, f"{type(reason).__name__}: {' '.join(str(reason).split())[:200]}")
    finally:
        if place.device == "cuda":
            place.torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
