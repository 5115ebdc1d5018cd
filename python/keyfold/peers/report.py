# SPDX-License-Identifier: Apache-2.0
"""What is shown of rows: a line of the table each, JSON, a plot."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Iterable

from .measure import Row
from .place import importable


def commit() -> str:
    """Of the tree that this package stands in, "+" behind it where that has changes; or what KEYFOLD_COMMIT says."""
    given = os.environ.get("KEYFOLD_COMMIT")
    if given:
        return given
    here = str(Path(__file__).resolve().parent)
    try:
        answer = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--exclude", "*", "--dirty=+"], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"


def title(row: Row) -> str:
    weight = f" weights {row['weight']}" if row.get("weight") else ""
    rotated = f" rotates {row['rotated']}" if row.get("rotated") else ""
    causal = " causal" if row["causal"] else ""
    return f"{row['op']} {','.join(map(str, row['shape']))} {row['dtype']}{weight}{rotated}{causal}"


def rate(row: Row, us: float) -> str:
    """Useful work a second: FLOPs where a call has many for its bytes, else bytes."""
    if row["flops"] > 32 * row["bytes"]:
        return (
            f"{row['flops'] / us / 1e6:.1f} TFLOP/s"
            if row["flops"] / us > 1e6
            else f"{row['flops'] / us / 1e3:.0f} GFLOP/s"
        )
    return f"{row['bytes'] / us / 1e6:.2f} TB/s" if row["bytes"] / us > 1e6 else f"{row['bytes'] / us / 1e3:.1f} GB/s"


def line(row: Row, known: Iterable[str] = ()) -> str:
    """`keyfold 14.3 us 2.34 TB/s | cudnn 15.5 us, x1.06 | …`; what was left out follows, a line each, but what is known."""
    times, found = row["times_us"], []
    for name, us in times.items():
        ratio = f", x{row['ratios'][name]:.2f}" if name in row["ratios"] else f" {rate(row, us)}"
        found.append(f"{name} {us:.1f} us{ratio}")
    lines = [f"{title(row)} [{row['timing']}]: " + (" | ".join(found) or "nothing was timed")]
    if row.get("do_bench_us"):
        lines.append("    do_bench: " + ", ".join(f"{name} {us} us" for name, us in row["do_bench_us"].items()))
    lines += [f"    without {name}: {reason}" for name, reason in row["left_out"].items() if name not in known]
    return "\n".join(lines)


def table(rows: list[Row]) -> list[str]:
    """A Markdown table: a row for each case, keyfold's time and rate, then how many times as long each peer takes."""
    timed = [row for row in rows if row["times_us"]]
    peers = list(dict.fromkeys(name for row in timed for name in row["ratios"]))
    if not peers:
        return []
    lines = ["| case | keyfold, us | rate | " + " | ".join(peers) + " |", "|---|---|---|" + "---|" * len(peers)]
    for row in timed:
        us = row["times_us"].get("keyfold")
        own = f"{us:.1f} | {rate(row, us)}" if us else " | "
        lines.append(
            f"| {title(row)} | {own} | "
            + " | ".join(f"{row['ratios'][p]:.2f}" if p in row["ratios"] else "" for p in peers)
            + " |"
        )
    return lines + ["(peers: their time by keyfold's, lower quartile of the rounds; above 1, keyfold is faster)"]


def write_json(path: str, rows: list[Row]) -> None:
    """A row a line, so that a report's differences can be read."""
    text = "[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n"
    Path(path).write_text(text)


def plot(path: str, rows: list[Row]) -> list[str]:
    """Times of the peers by keyfold's, a group of bars for each row, as SVG and PNG. Without matplotlib: nothing."""
    matplotlib = importable("matplotlib")
    rows = [row for row in rows if row["ratios"]]
    if matplotlib is None or not rows:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    height = 0.8 / len(names)
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + len(rows) * (0.2 + 0.13 * len(names))))
    for number, name in enumerate(names):
        drawn = [(i + number * height, row["ratios"][name]) for i, row in enumerate(rows) if name in row["ratios"]]
        axes.barh([y for y, _ in drawn], [x for _, x in drawn], height, label=name, align="edge")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks([i + 0.4 for i in range(len(rows))], [title(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes.set_xlabel("time of the peer / time of keyfold, lower quartile of paired rounds")
    axes.set_title(f"{rows[0].get('machine', '')}, commit {rows[0].get('commit', '')}", fontsize=9)
    axes.legend(fontsize=8)
    figure.tight_layout()
    stem = str(Path(path).with_suffix("")) if Path(path).suffix in (".svg", ".png") else path
    written = [f"{stem}.svg", f"{stem}.png"]
    for name in written:
        figure.savefig(name, dpi=120)
    pyplot.close(figure)
    return written


def provenance(machine: str, command: str, found: dict[str, float], commit_: str) -> dict[str, Any]:
    """What every row says of where it comes from."""
    return {"commit": commit_, "machine": machine, "command": command, **found}
