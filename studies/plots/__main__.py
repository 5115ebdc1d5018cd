# SPDX-License-Identifier: Apache-2.0
"""Draws every table that keyfold.peers or a study wrote, as SVG and PNG, with unit, machine and commit:

    python -m studies.plots [--reports reports/h200] [--out reports/h200/plots]

A file is an array of rows. What a row has decides what is drawn of it: times of several implementations (bars of useful work a
second, or of microseconds), a sweep over the number of splits (lines), tokens a second (bars), counters of a launch (points), what
FlashInfer's walkthrough found (bars). What fa4_ideas computed lies under reports/zen4 and is drawn with them.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from ..cuda_graph_decode.table import show

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {
    "keyfold": "#c0392b",
    "triton": "#8e44ad",
    "gluon": "#c39bd3",
    "cudnn": "#27ae60",
    "flash2": "#2980b9",
    "efficient": "#16a085",
    "sdpa": "#7f8c8d",
    "compile": "#f39c12",
    "eager": "#bdc3c7",
    "flashinfer": "#d35400",
    "flashinfer_tc": "#e59866",
    "fa4": "#2c3e50",
    "naive": "#95a5a6",
    "torch": "#2980b9",
    "read": "#bdc3c7",
    "read_dependent": "#95a5a6",
    "prefill": "#2c7a7b",
}
GAP = 0.8  # between groups of bars, in bars
WIDTH = {"fp32": 4, "fp16": 2, "bf16": 2}


def label(row):
    """A shape is a list of numbers, or the words of one: 2048x5632, "step"."""
    shape = row["shape"] if isinstance(row["shape"], str) else ",".join(map(str, row["shape"]))
    words = [
        row.get("experiment"),
        shape,
        row.get("type") or row.get("weight"),
        f"rotates {row['rotated']}" if row.get("rotated") else None,
    ]
    return " ".join(word for word in [*words, "causal" if row.get("causal") else None] if word)


def work(row):
    """(amount of a microsecond's worth, unit): TFLOP of a product-bound call, else TB; None where the row does not say."""
    flops, moved, shape = row.get("flops"), row.get("bytes"), row.get("shape")
    if flops is None and row["op"] in ("attention", "decode"):  # written before rows said so
        B, H, Hkv, Nq, Nk, D = shape if len(shape) == 6 else (*shape[:3], shape[3], *shape[3:])
        flops = 4 * B * H * Nq * Nk * D / (2 if row.get("causal") else 1)
        moved = WIDTH[row["dtype"]] * 2 * B * D * (H * Nq + Hkv * Nk)
    if flops is None and row["op"] == "linear" and re.fullmatch(r"\d+x\d+", str(shape)):
        N, K = map(int, shape.split("x"))
        flops = 2.0 * row["tokens"] * N * K
    if flops and flops > 32 * (moved or 1):
        return flops / 1e6, "TFLOP/s"
    return (moved / 1e6, "TB/s") if moved else None


def origin(rows):
    commits = ", ".join(dict.fromkeys(str(row.get("commit", "unknown")) for row in rows))
    return f"{rows[0].get('machine', 'machine unknown')}; commit {commits}"


def groups(rows):
    """Rows of one operation and one unit make one plot; of a linear layer those of as many rows of x."""
    found = {}
    for row in rows:
        if row.get("times_us"):
            amount = work(row)
            what = row["op"] + (f", T = {row['tokens']}" if row["op"] == "linear" and "tokens" in row else "")
            found.setdefault((what, amount[1] if amount else "us"), []).append(row)
    return found


def bars(axes, rows, values, unit):
    """One group of bars a row, below each other; values(row): {name: number}."""
    names = list(dict.fromkeys(name for row in rows for name in values(row)))
    drawn, ticks, y = {name: [] for name in names}, [], 0.0
    for row in rows:
        found = values(row)
        ticks.append(y + (len(found) - 1) / 2)
        for name in (name for name in names if name in found):
            drawn[name].append((y, found[name]))
            y += 1
        y += GAP
    for name, places in drawn.items():
        axes.barh([y for y, _ in places], [x for _, x in places], 1.0, label=name, color=COLOURS.get(name))
        for y, x in places:
            axes.text(x, y, f" {x:.4g}", va="center", fontsize=6)
    axes.set_yticks(ticks, [label(row) for row in rows], fontsize=8)
    axes.set_xlabel(unit)
    axes.margins(x=0.1, y=0.01)
    axes.invert_yaxis()
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the bars, not over them


def height(rows, field):
    """Of a plot of bars, in inches."""
    return 1.4 + 0.16 * sum(len(row[field]) + GAP for row in rows)


def draw_times(pyplot, rows, op, unit):
    def values(row):
        amount = work(row)
        return {name: amount[0] / us if amount else us for name, us in row["times_us"].items()}

    figure, axes = pyplot.subplots(figsize=(9, height(rows, "times_us")))
    bars(axes, rows, values, unit)
    axes.set_title(f"{op}, {rows[0]['dtype']}: {unit}\n{origin(rows)}", fontsize=9)
    return figure


def draw_sweep(pyplot, rows):
    """Time by number of splits, a line a shape, and the unsplit kernel as a point at its left."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for row in rows:
        points = sorted(
            (int(name[2:]), us) for name, us in row["sweep_us"].items() if re.fullmatch(r"G=\d+", name) and us
        )
        (drawn,) = axes.plot([g for g, _ in points], [us for _, us in points], marker="o", label=label(row))
        for name, style in (("keyfold", "--"), ("cudnn", ":")):
            if name in row["times_us"]:
                axes.axhline(row["times_us"][name], color=drawn.get_color(), linestyle=style, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("G, splits of the keys")
    axes.set_ylabel("us a call (dashed: keyfold's CUDA kernel; dotted: cuDNN)")
    axes.set_title(f"decode in Triton by number of splits\n{origin(rows)}", fontsize=9)
    axes.legend(fontsize=8)
    axes.grid(True, which="both", linewidth=0.3)
    return figure


def draw_tokens(pyplot, rows):
    figure, axes = pyplot.subplots(figsize=(9, height(rows, "tokens_per_s")))
    bars(axes, [{**row, "shape": [row.get("model", "")]} for row in rows], lambda row: row["tokens_per_s"], "tokens/s")
    axes.set_title(f"decode at batch 1: tokens/s\n{origin(rows)}", fontsize=9)
    return figure


def draw_counters(pyplot, rows):
    """A point a launch: tensor pipe across, the SM's busiest unit upwards; the lines are what the seeds ask for."""
    figure, axes = pyplot.subplots(figsize=(9, 7))
    markers = {32: "v", 64: "o", 128: "s", 256: "D"}
    for name in dict.fromkeys(row["kernel"] for row in rows):
        for D, marker in markers.items():
            some = [row for row in rows if row["kernel"] == name and row["shape"][3] == D]
            colour = COLOURS.get(name.split(",")[0], "#34495e") if name != "triton, warp_specialize" else "#e84393"
            axes.scatter(
                [row["tensor"] for row in some], [row["sm"] for row in some], s=28, marker=marker, alpha=0.8,
                color=colour, label=f"{name}, D = {D}" if some else None,
            )  # fmt: skip
    axes.axhline(70, color="#c0392b", linewidth=0.8, linestyle="--")
    axes.axvline(50, color="#c0392b", linewidth=0.8, linestyle="--")
    axes.set_xlabel("tensor pipe, % of its peak over the launch's whole time")
    axes.set_ylabel("SM throughput (its busiest unit), %")
    axes.set_title(f"Nsight Compute: every kernel, shape and tile\n{origin(rows)}", fontsize=9)
    axes.legend(fontsize=6, loc="lower right", ncols=2)
    axes.grid(True, linewidth=0.3)
    return figure


def draw_walkthrough(pyplot, rows):
    """What each experiment found, as bars: times of plan and run, modules, differences, the workspace's bytes."""
    found = {row["step"]: row["found"] for row in rows}
    panels = [
        ("plan and run, later calls, us", {f"{step}: {what}": found[step][f"{what}, later, us"]
                                           for step in ("decode", "prefill") if step in found for what in ("plan", "run")}),
        ("decode modules after a change", {name: value["modules"] for name, value in found.get("compiled", {}).items()
                                           if isinstance(value, dict)}),
        ("relative difference from keyfold", found.get("stale", {})),
        ("bytes of the workspace that a run writes", {name: value["bytes after run"] for name, value in
                                                      found.get("workspace", {}).items() if isinstance(value, dict)}),
    ]  # fmt: skip
    figure, axes = pyplot.subplots(4, 1, figsize=(9, 9))
    for place, (title, values) in zip(axes, panels):
        place.barh(list(values), list(values.values()), color=COLOURS["flashinfer"])
        place.bar_label(place.containers[0], fmt=" %.4g", fontsize=7)
        place.invert_yaxis()
        place.tick_params(labelsize=7)
        place.margins(x=0.1)
        place.set_title(title, fontsize=8)
    figure.suptitle(f"FlashInfer, step by step\n{origin(rows)}", fontsize=9)
    return figure


def draw_exp2(pyplot, rows):
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    degrees = [row["degree"] for row in rows]
    axes.plot(degrees, [row["largest_error"] for row in rows], marker="o", label="the polynomial, fp32")
    axes.plot(degrees, [row["bf16_largest_error"] for row in rows], marker="s", label="rounded to bf16")
    axes.axhline(rows[0]["bf16_rounding_alone"], linestyle="--", color="#7f8c8d", label="bf16's rounding alone")
    axes.set_yscale("log")
    axes.set_xticks(degrees)
    axes.set_xlabel("degree")
    axes.set_ylabel("largest relative error over [0, 1)")
    axes.set_title(f"exp2 by a polynomial\n{origin(rows)}", fontsize=9)
    axes.legend(fontsize=8)
    return figure


def draw_rescale(pyplot, rows):
    """Share of the steps at which an origin moves, by threshold, a line for each walk and group of rows."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for key in dict.fromkeys((row["scores"], row["order"], row["rows_together"]) for row in rows):
        some = [row for row in rows if (row["scores"], row["order"], row["rows_together"]) == key]
        tiles = dict.fromkeys(row["keys_of_a_tile"] for row in some)
        for tile in tiles:
            points = sorted((row["threshold"], 100 * row["share"]) for row in some if row["keys_of_a_tile"] == tile)
            axes.plot([t for t, _ in points], [share for _, share in points], marker="o", markersize=3, linewidth=0.9,
                      label=f"{key[0]}, {key[1]}, {key[2]} rows, {tile} keys")  # fmt: skip
    axes.set_xlabel("threshold, powers of two")
    axes.set_ylabel("% of the steps that rescale")
    axes.set_title(f"how often o is rescaled\n{origin(rows)}", fontsize=9)
    axes.legend(fontsize=5, ncols=2)
    return figure


def figures(pyplot, name, rows):
    """(file stem, figure) of everything that a file's rows have."""
    for (op, unit), some in groups(rows).items():
        stem = re.sub(r"\W+", "", op.replace(", T =", "_t"))
        yield f"{name}-{stem}-{unit.split('/')[0].lower()}", draw_times(pyplot, some, op, unit)
    swept = [row for row in rows if row.get("sweep_us")]
    if swept:
        yield f"{name}-sweep", draw_sweep(pyplot, swept)
    for kind, draw, field in (
        ("counters", draw_counters, "sm"),
        ("steps", draw_walkthrough, "step"),
        ("error", draw_exp2, "bf16_largest_error"),
        ("share", draw_rescale, "rescales"),
    ):
        some = [row for row in rows if field in row]
        if some:
            yield f"{name}-{kind}", draw(pyplot, some)
    told = [row for row in rows if isinstance(row.get("tokens_per_s"), dict)]
    if told:
        yield f"{name}-tokens", draw_tokens(pyplot, told)


def reports(folder):
    """(name, rows) of every file under the folder that is such an array; of fa4_ideas' files in the folder beside it."""
    for path in [*sorted(folder.rglob("*.json")), *sorted((folder.parent / "zen4").glob("fa4-*.json"))]:
        rows = json.loads(path.read_text())
        if isinstance(rows, dict) and path.name.startswith("fa4-"):
            source = {name: value for name, value in rows.items() if name != "rows"}
            rows = [{**row, **source} for row in rows["rows"]]
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            inside = path.is_relative_to(folder)
            yield "-".join(path.relative_to(folder).with_suffix("").parts) if inside else path.stem, rows


def table(rows):
    """The rows in Markdown: microseconds, and useful work a second of the first implementation that is "triton" or keyfold."""
    names = list(dict.fromkeys(name for row in rows for name in row["times_us"]))
    shown = "triton" if "triton" in names else names[0]
    lines = [f"| shape | {', us | '.join(names)}, us | {shown} |", "|---" * (len(names) + 2) + "|"]
    for row in rows:
        amount, us = work(row), row["times_us"].get(shown)
        rate = f"{amount[0] / us:.3g} {amount[1]}" if amount and us else ""
        cells = [f"{row['times_us'][name]:.4g}" if name in row["times_us"] else "" for name in names]
        lines.append(f"| {label(row)} | {' | '.join(cells)} | {rate} |")
    return "\n".join(lines)


def main(given=None):
    parser = argparse.ArgumentParser(prog="python -m studies.plots")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports" / "h200")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "h200" / "plots")
    parser.add_argument("--tables", action="store_true", help="print them in Markdown, draw nothing")
    options = parser.parse_args(given)
    if options.tables:
        for name, rows in reports(options.reports):
            for (op, _), some in groups(rows).items():
                print(f"{name}, {op}: {origin(some)}\n\n{table(some)}\n")
            for row in rows:
                if row.get("ways"):
                    print(f"{name}: {origin([row])}\n\n{show(row)}\n")
        return 0
    try:
        import matplotlib
    except ImportError:
        sys.exit("studies.plots: matplotlib is not installed")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "keyfold"  # the same rows give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: a quarter of the size
    from matplotlib import pyplot

    options.out.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, rows in reports(options.reports):
        for stem, figure in figures(pyplot, name, rows):
            figure.tight_layout()
            figure.savefig(options.out / f"{stem}.svg", metadata={"Date": None})
            figure.savefig(options.out / f"{stem}.png", dpi=110)
            pyplot.close(figure)
            print(options.out / f"{stem}.svg")
            count += 1
    print(f"{count} plots")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
