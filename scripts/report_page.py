#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reports/index.html, one page that needs nothing beside it, and docs/pictures/glance.svg out of the JSON under reports/.

    python3 scripts/report_page.py [--check]       --check: writes nothing, fails where the files are not what it would write

Every JSON file is a section: what it is, its table, its plots, and with them unit, machine, commit and command. What a row has decides how
it is shown (`kind`): the same call on several implementations, a bench row with a ceiling, a sweep, tokens a second, anything else as it is.
Text reports are named at the end. No dependency; the page has no script.
"""

import argparse
import base64
import html
import json
import math
import pathlib
import statistics
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPORTS = ROOT / "reports"

MACHINES = {"h200": "GPU: NVIDIA H200", "zen4": "CPU: two cores of AMD Zen 4"}
# What is known of a file: its title and a line on how to read it. A file that is not named here is shown under its name.
TITLES = {
    "h200/peers-attention.json": (
        "Prefill beside torch's backends",
        "Useful operations a second, bf16; flash2 is torch's FlashAttention-2 backend, fa4 flash-attn-4.",
    ),
    "h200/peers-decode.json": ("Decode beside torch's backends", "One query a sequence; K and V read a second, bf16."),
    "h200/peers-unsplit.json": (
        "Decode beside the prefill kernel on the same keys, not split",
        "What splitting brings.",
    ),
    "h200/peers-rows.json": ("Norms, activations, softmax, append", "Bytes that must move, a second."),
    "h200/peers-linear.json": ("Linear layers", "read: a kernel that only reads the same bytes; shape N x K."),
    "h200/peers-linear-types.json": ("Linear layers, other types of weights", "One row of x; shape N x K."),
    "h200/peers-rope.json": ("Attention that rotates at load", ""),
    "h200/peers-rope-decode.json": (
        "Decode that rotates queries and keys at load",
        "The cache holds keys as they were projected.",
    ),
    "h200/peers-fp32.json": (
        "Prefill in fp32",
        "Useful operations a second; efficient is torch's memory-efficient backend.",
    ),
    "h200/bench.json": ("keyfold bench on the GPU", "Share of the machine's own ceilings."),
    "h200/studies/triton_flash_attention.json": ("Study: FlashAttention-2 in Triton", ""),
    "h200/studies/triton_flash_attention_ncu.json": (
        "Study: counters of every forward kernel",
        "SM and tensor pipe, % of their peaks; a row is a launch.",
    ),
    "h200/studies/triton_decode.json": ("Study: split decode in Triton", "The sweep over G, the number of splits."),
    "h200/studies/cuda_graph_decode.json": ("Study: a decode step as a CUDA graph", "Tokens a second of one stream."),
    "h200/studies/cuda_graph_text.json": (
        "Study: the same text on both sides",
        "SmolLM2's tokens in torch and in keyfold.",
    ),
    "h200/decode-ways.json": ("Ways of merging decode's splits", "Experiments behind docs/03."),
    "h200/decode-variants.json": (
        "Decode's rings, tiles and merges beside each other",
        "Experiments behind docs/cuda_notes.md; a column is a build of the kernel, or a peer. 275a542+: that commit with what `what` names.",
    ),
    "h200/studies/online_softmax.json": (
        "Study: softmax in Triton",
        "One row a program, long rows by the online loop.",
    ),
    "h200/studies/flashinfer_walkthrough.json": (
        "Study: FlashInfer, step by step",
        "What each step of the walkthrough found.",
    ),
    "h200/studies/flashinfer_walkthrough_first.json": (
        "Study: FlashInfer, its first run",
        "With nothing compiled before.",
    ),
    "h200/studies/lineage.json": (
        "Study: what each refinement is worth",
        "Time with one refinement taken back, over the kernel as it is.",
    ),
    "zen4/speed.json": (
        "The speed table",
        "Share of the ceiling that binds, measured turn by turn in the same process.",
    ),
    "zen4/decode.json": ("Decode, the machine in its slower state", "Medians of repeated runs."),
    "zen4/decode-faster.json": ("Decode, the machine in its faster state", "Medians of repeated runs."),
    "zen4/rows.json": ("Operations on rows, slower state", "Medians of repeated runs."),
    "zen4/rows-faster.json": ("Operations on rows, faster state", "Medians of repeated runs."),
    "zen4/llama.json": ("SmolLM2-135M beside llama.cpp", "Tokens a second, taking turns in one run."),
    "zen4/logits.json": ("Rounding of logits", "Root mean square over all logits, each against its own fp32."),
    "zen4/throughput.json": ("Cycles of instructions", "What the row kernels' vectors need, counted on one core."),
    "zen4/fa4-exp2.json": ("Study: exp2 by a polynomial", "Largest relative errors over [0, 1)."),
    "zen4/fa4-rescale.json": (
        "Study: how often a maximum rises",
        "Share of (rows, tile) steps that rescale, on the demo model's scores.",
    ),
}
COLOURS = {
    "keyfold": "#c0392b", "unchanged": "#c0392b", "triton": "#8e44ad", "cudnn": "#27ae60", "flash2": "#2980b9", "efficient": "#16a085",
    "sdpa": "#7f8c8d", "compile": "#d68910", "eager": "#95a5a6", "flashinfer": "#d35400", "flashinfer_tc": "#e59866", "fa4": "#34495e", "naive": "#95a5a6",
    "torch": "#2980b9", "read": "#bdc3c7", "read_dependent": "#a6b1b8", "llama_cpp": "#2980b9",
}  # fmt: skip
OTHERS = ["#2c7a7b", "#805ad5", "#b7791f", "#4a5568", "#9b2c2c", "#2b6cb0", "#276749", "#97266d"]
WIDTH, BAR, GAP = 380, 11, 7  # of a plot, in its own units: about a phone's pixels


def escape(value):
    return html.escape(str(value), quote=True)


def number(value):
    """Three significant digits, or all of a whole number's."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10000 else str(value)
    if not isinstance(value, float):
        return str(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 4)}f}"


def shape_text(shape):
    if isinstance(shape, dict):
        shape = list(shape.values())
    return ",".join(map(str, shape)) if isinstance(shape, (list, tuple)) else str(shape)


def label(row):
    """A row's name in a table and a plot, beside its operation."""
    parts = [shape_text(row["shape"])] if "shape" in row else []
    if row.get("tokens") is not None and row.get("op") == "linear":
        parts.insert(0, f"T={row['tokens']}")
    parts += [str(row[name]) for name in ("weight", "type", "model", "work", "name") if row.get(name)]
    if row.get("rotated"):
        parts.append(f"rotates {row['rotated']}")
    if row.get("causal") and row.get("op") in ("attention", "rope_attention"):
        parts.append("causal")
    return " ".join(parts)


def colour(name, names):
    return COLOURS.get(name) or OTHERS[[n for n in names if n not in COLOURS].index(name) % len(OTHERS)]


# --- plots


def svg(height, parts, title):
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
        + "".join(parts)
        + "</svg>"
    )


def text(x, y, words, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'


def legend(names, y):
    parts, x = [], 0.0
    for name in names:
        width = 16 + 6.1 * len(name)
        if x and x + width > WIDTH:
            x, y = 0.0, y + 15
        parts.append(f'<rect x="{x:.1f}" y="{y - 8:.1f}" width="9" height="9" fill="{colour(name, names)}"/>')
        parts.append(text(x + 12, y, name))
        x += width
    return parts, y


def bars(title, unit, groups, mark=None, alone=False):
    """groups: [(label, {name: value})]; a line at `mark` (a limit of what is drawn). alone: each group has its own scale."""
    names = list(dict.fromkeys(name for _, values in groups for name in values))
    most = max([value for _, values in groups for value in values.values()] + [mark or 0]) or 1.0
    room = WIDTH - 56
    parts = [text(0, 12, title, kind="t"), text(WIDTH, 12, unit, "end")]
    found, y = legend(names, 30) if len(names) > 1 else ([], 16)
    parts += found
    top = y + 8
    y = top
    for name, values in groups:
        parts.append(text(0, y + 10, name))
        y += 14
        scale = max(values.values(), default=1.0) if alone else most
        for key, value in values.items():
            width = max(1.0, value / scale * room)
            parts.append(
                f'<rect x="0" y="{y:.1f}" width="{width:.1f}" height="{BAR - 1}" fill="{colour(key, names)}"/>'
            )
            parts.append(text(width + 4, y + 9, number(float(value))))
            y += BAR
        y += GAP
    if mark:
        x = mark / most * room
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{y - GAP}" class="m"/>')
    return svg(y + 2, parts, f"{title}, {unit}")


def lines(title, across, unit, series):
    """series: {name: [(x, y)]}, both axes logarithmic."""
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    low, high = math.log(min(ys) * 0.9), math.log(max(ys) * 1.1)
    left, right, head, foot = 34, WIDTH - 8, 22, 210
    position = {x: left + (right - left) * i / max(1, len(xs) - 1) for i, x in enumerate(xs)}

    def place(y):
        return foot - (math.log(y) - low) / (high - low) * (foot - head)

    names = list(series)
    parts = [text(0, 12, title, kind="t"), text(WIDTH, 12, unit, "end")]
    tick = 10 ** math.floor(math.log10(min(ys)))
    ticks = [tick * step for tick in (tick, tick * 10, tick * 100) for step in (1, 2, 5)]
    for value in ticks:
        if low <= math.log(value) <= high:
            parts.append(f'<line x1="{left}" x2="{right}" y1="{place(value):.1f}" y2="{place(value):.1f}" class="g"/>')
            parts.append(text(left - 4, place(value) + 4, f"{value:g}", "end"))
    for x in xs:
        parts.append(text(position[x], foot + 14, x, "middle"))
    parts.append(text((left + right) / 2, foot + 28, across, "middle"))
    for name, points in series.items():
        path = " ".join(f"{position[x]:.1f},{place(y):.1f}" for x, y in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour(name, names)}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{position[x]:.1f}" cy="{place(y):.1f}" r="3" fill="{colour(name, names)}"/>'
            for x, y in points
        ]
    found, y = legend(names, foot + 46)
    return svg(y + 6, parts + found, f"{title}, {unit}")


# --- what rows there are


def rate(row):
    """(useful work of a microsecond, unit) of a row that says its operations or bytes."""
    flops, moved = row.get("flops"), row.get("bytes")
    shape = row.get("shape")
    if flops is None and row.get("op") in ("attention", "decode") and isinstance(shape, list) and len(shape) == 6:
        B, H, Hkv, Nq, Nk, D = shape
        flops = 4 * B * H * Nq * Nk * D / (2 if row.get("causal") else 1)
        moved = {"fp32": 4}.get(row.get("dtype"), 2) * 2 * B * D * (H * Nq + Hkv * Nk)
    if flops and flops > 32 * (moved or 1):
        return flops / 1e6, "TFLOP/s"
    return (moved / 1e6, "TB/s") if moved else (None, "µs")


def of_implementations(rows):
    """The same call, several implementations: a plot an operation, a table of times and of how many times as long each takes."""
    plots, tables = [], {}
    for row in rows:
        amount, unit = rate(row)
        what = row.get("op", "")
        if what == "linear":
            what = f"linear, {row.get('type') or row.get('weight') or row.get('dtype')}, T = {row.get('tokens') or shape_text(row['shape']).split(',')[0]}"
        tables.setdefault((what, unit), []).append((row, amount))
    for (op, unit), found in tables.items():
        groups = [
            (label(row), {name: (amount / us if amount else us) for name, us in row["times_us"].items() if us})
            for row, amount in found
        ]
        plots.append(
            bars(op, unit, groups) if unit != "µs" else bars(op, "µs, each group to its own scale", groups, alone=True)
        )
    names = list(dict.fromkeys(name for row in rows for name in row["times_us"]))
    head = ["op", "shape", "dtype"] + names

    def times(row, name):
        """Behind a time, in brackets: over keyfold's, the lower quartile of the rounds."""
        us, ratio = number(row["times_us"].get(name)), row.get("ratios", {}).get(name)
        return f"{us} ({ratio:.2f})" if us and ratio is not None else us

    body = [
        [row.get("op", ""), label(row), row.get("dtype", "")] + [times(row, name) for name in names] for row in rows
    ]
    sweeps = {
        label(row): [(int(name[2:]), us) for name, us in row["sweep_us"].items() if name[2:].isdigit() and us]
        for row in rows
        if row.get("sweep_us")
    }
    if sweeps:
        plots.append(lines("Time by number of splits", "G", "µs", sweeps))
    costs = [
        (label(row), {name.replace("_", " "): value for name, value in row["costs"].items()})
        for row in rows
        if row.get("costs")
    ]
    if costs:
        plots = [bars("Time over the unchanged kernel's", "times", costs, mark=1.0)]
        names = list(dict.fromkeys(name for _, values in costs for name in values))
        head, body = (
            ["shape"] + names,
            [[shape] + [number(values.get(name)) for name in names] for shape, values in costs],
        )
    return plots, head, body


def of_bench(rows):
    """keyfold bench: one row a case, or several of which the median counts."""
    groups = {}
    for row in rows:
        groups.setdefault((row["op"], row.get("variant", ""), row["dtype"], row["isa"], label(row)), []).append(row)
    shown, body = [], []
    for (op, variant, dtype, isa, name), found in groups.items():
        middle = {
            key: statistics.median(row[key] for row in found)
            for key in ("time_us", "gflops", "gbps", "share")
            if found[0].get(key) is not None
        }
        ceiling = found[0].get("ceiling_name", "")
        if "share" in middle:
            shown.append(
                (
                    f"{op} {variant + ' ' if variant else ''}{dtype} {isa} {name}".replace("  ", " "),
                    {ceiling: 100 * middle["share"]},
                )
            )
        share = f"{100 * middle['share']:.0f} % of {ceiling}" if "share" in middle else ""
        body.append(
            [
                f"{op} {variant}".strip(),
                name,
                dtype,
                isa,
                number(middle.get("time_us")),
                number(middle.get("gflops")),
                number(middle.get("gbps")),
                share,
                len(found),
            ]
        )
    plots = [bars("Share of the ceiling", "%", shown, mark=100)] if shown else []
    head = ["op", "shape", "dtype", "ISA", "time, µs", "GFLOP/s", "GB/s", "share", "runs"]
    if all(row[-1] == 1 for row in body):
        head, body = head[:-1], [row[:-1] for row in body]
    return plots, head, body


def of_tokens(rows):
    groups = [(label(row), row["tokens_per_s"]) for row in rows]
    plot = bars("Decoding, one stream", "tokens/s", groups)
    if all("ways" in row for row in rows):
        keys = ("tokens_per_s", "step_us", "replay_us", "kernels", "kernel_us", "share_of_limit")
        body = [
            [label(row), name] + [number(way.get(key)) for key in keys]
            for row in rows
            for name, way in row["ways"].items()
        ]
        return (
            [plot],
            ["model", "way", "tokens/s", "step, µs", "replay, µs", "kernels", "their time, µs", "of the limit"],
            body,
        )
    names = list(dict.fromkeys(name for _, values in groups for name in values))
    body = [[name] + [number(values.get(key)) for key in names] for name, values in groups]
    return [plot], ["model"] + names, body


def of_findings(rows):
    """Steps of an experiment and what each found."""
    body = [
        [row.get("step", row.get("op", "")), what, textwrap.shorten(str(number(value)), 80, placeholder=" …")]
        for row in rows
        for what, value in row["found"].items()
    ]
    return [], ["step", "what", "found"], body


def of_pair(rows):
    """keyfold and llama.cpp, by what was done."""
    key = "work" if "work" in rows[0] else "what"
    groups = [
        (row[key], {name: row[name] for name in ("keyfold", "llama_cpp") if row.get(name) is not None}) for row in rows
    ]
    unit = "tokens/s" if key == "work" else "RMS of logits"
    extra = [name for name in ("ratio", "ratio_lower_quartile") if name in rows[0]]
    body = [
        [row[key], number(row["keyfold"]), number(row.get("llama_cpp"))] + [number(row[name]) for name in extra]
        for row in rows
    ]
    return [bars(unit, unit, groups)], [key, "keyfold", "llama.cpp"] + [name.replace("_", " ") for name in extra], body


def of_rescale(rows):
    groups = {}
    for row in rows:
        if row["rows_together"] == 32 and row["order"] == "right to left":
            groups.setdefault(f"threshold 2^{row['threshold']}", {})[row["scores"]] = 100 * row["share"]
    plot = bars("Warps of 32 rows, tiles right to left: steps that rescale", "%", list(groups.items()))
    return [plot], *of_anything(rows)[1:]


SAID_ONCE = ("op", "dtype", "ISA")  # columns of a table
SOURCE = ("commit", "machine", "command", "commands", "copy_TB_s", "product_TFLOP_s", "times")


def of_anything(rows):
    head = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in SOURCE]
    head = [name for name in head if not any(isinstance(row.get(name), dict) for row in rows)]

    def cell(value):
        return ", ".join(number(v) for v in value) if isinstance(value, list) else number(value)

    return [], head, [[cell(row.get(name)) for name in head] for row in rows]


def shown(rows):
    first = rows[0]
    if "times_us" in first:
        return of_implementations(rows)
    if "tokens_per_s" in first and isinstance(first["tokens_per_s"], dict):
        return of_tokens(rows)
    if "gflops" in first and "isa" in first:
        return of_bench(rows)
    if "llama_cpp" in first:
        return of_pair(rows)
    if isinstance(first.get("found"), dict):
        return of_findings(rows)
    if "rows_together" in first:
        return of_rescale(rows)
    return of_anything(rows)


# --- the page


def read(path):
    """(rows, {what the rows share}) of a report."""
    content = json.loads(path.read_text())
    rows = content if isinstance(content, list) else content.get("rows", [content])
    outer = {k: v for k, v in content.items() if k != "rows"} if isinstance(content, dict) else {}
    for row in rows:
        if "ratio_lower_quartile" in row and isinstance(row["ratio_lower_quartile"], dict):
            row.setdefault("ratios", row["ratio_lower_quartile"])
    return [row for row in rows if isinstance(row, dict)], outer


def provenance(name, rows, outer):
    def all_of(key):
        found = outer.get(key) or list(dict.fromkeys(str(row[key]) for row in rows if row.get(key)))
        return found if isinstance(found, list) else [str(found)]

    commands = all_of("command") + outer.get("commands", [])
    parts = [
        f"<b>machine</b> {escape('; '.join(all_of('machine')) or 'not named')}",
        f"<b>commit</b> {escape(', '.join(all_of('commit')) or 'not named')}",
    ]
    ceilings = [
        f"{label} {' to '.join(number(v) for v in sorted({min(values), max(values)}))} {unit}"
        for key, label, unit in (("copy_TB_s", "copy", "TB/s"), ("product_TFLOP_s", "matrix product", "TFLOP/s"))
        if (values := [row[key] for row in rows if row.get(key)])
    ]
    if ceilings:
        parts.append(f"<b>ceilings of the run</b> {escape(', '.join(ceilings))}")
    parts.append(f'<b>file</b> <a href="{escape(name)}">reports/{escape(name)}</a>')
    code = (
        "".join(f"<code>{escape(command)}</code>" for command in dict.fromkeys(commands))
        or "<code>command not named</code>"
    )
    return f'<p class="s">{" · ".join(parts)}</p><div class="c">{code}</div>'


def without_constants(head, body):
    """(head, body, words): a first column that says the same in every row is said once, over the table."""
    said = {
        name: body[0][i]
        for i, name in enumerate(head)
        if name in SAID_ONCE and body and len({row[i] for row in body}) == 1
    }
    kept = [i for i, name in enumerate(head) if name not in said]
    words = ", ".join([*(str(value) for value in said.values() if value != ""), *(["µs"] if "keyfold" in head else [])])
    return [head[i] for i in kept], [[row[i] for i in kept] for row in body], words


def is_number(cell):
    return all(part in "0123456789.,-()e " for part in str(cell))


def table(head, body):
    head, body, words = without_constants(head, body)
    left = [i == 0 or not all(map(is_number, column)) for i, column in enumerate(zip(*body))]

    def line(cells, tag):
        return "".join(f"<{tag}{' class=l' if at_left else ''}>{escape(c)}</{tag}>" for c, at_left in zip(cells, left))

    caption = f"<caption>{escape(words)}</caption>" if words else ""
    rows = "".join(f"<tr>{line(row, 'td')}</tr>" for row in body)
    return (
        f'<div class="w"><table>{caption}<thead><tr>{line(head, "th")}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def section(name):
    rows, outer = read(REPORTS / name)
    if not rows:
        return ""
    title, note = TITLES.get(name, (name, ""))
    plots, head, body = shown(rows)
    drawn = f'<div class="p">{"".join(f"<figure>{plot}</figure>" for plot in plots)}</div>' if plots else ""
    beside = " class='b'" if len(plots) == 1 else ""  # the table beside its one plot, where there is room
    return (
        f'<section id="{anchor(name)}"><h3>{escape(title)}</h3>{f"<p>{escape(note)}</p>" if note else ""}'
        f"<div{beside}>{drawn}{table(head, body)}</div>{provenance(name, rows, outer)}</section>"
    )


def anchor(name):
    return name.replace("/", "-").removesuffix(".json")


STYLE = """
:root{--ink:#1c2126;--soft:#5b6670;--line:#dde2e6;--back:#fff;--card:#f7f8f9}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#a3adb6;--line:#39424a;--back:#15191d;--card:#1d2329}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1180px;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back)}
h1{font-size:1.6rem;margin:.4em 0}h2{margin:2em 0 .4em;border-bottom:2px solid var(--line)}h3{margin:0 0 .2em}
section{margin:1.4em 0;padding:14px;background:var(--card);border:1px solid var(--line);border-radius:8px}
a{color:#2980b9}nav ul{columns:2;padding-left:1.2em}@media (max-width:640px){nav ul{columns:1}body{padding:10px}section{padding:10px}.glance{display:none}}
.p{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:18px;align-items:start}
figure{margin:8px 0;max-width:560px}svg{width:100%;height:auto;display:block}
svg text{font:10.5px system-ui,sans-serif;fill:var(--ink)}svg text.t{font-weight:600;font-size:12px}
svg .m{stroke:var(--ink);stroke-dasharray:3 3}svg .g{stroke:var(--line)}
@media (min-width:900px){.b{display:grid;grid-template-columns:minmax(0,400px) minmax(0,1fr);gap:18px;align-items:start}.b .w{max-height:none}}
.w{overflow-x:auto;max-height:34em;overflow-y:auto;border:1px solid var(--line);margin:8px 0}
table{border-collapse:collapse;font-size:13px;width:100%}th,td{padding:3px 5px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
caption{text-align:left;padding:3px 8px;color:var(--soft)}
.l{text-align:left}th{position:sticky;top:0;background:var(--card)}
.glance{width:100%;max-width:860px;border:1px solid var(--line);border-radius:8px}
.s{color:var(--soft);font-size:13px;margin:.4em 0;overflow-wrap:anywhere}.c code{display:block;font-size:12px;overflow-wrap:anywhere;color:var(--soft)}
"""


def page():
    names = sorted(str(path.relative_to(REPORTS)) for path in REPORTS.glob("**/*.json"))
    known = [name for name in TITLES if name in names]
    names = known + [name for name in names if name not in known]
    texts = sorted(str(path.relative_to(REPORTS)) for path in REPORTS.glob("**/*.txt"))
    contents, sections = [], []
    for folder, machine in MACHINES.items():
        here = [name for name in names if name.startswith(folder + "/")]
        made = [(name, section(name)) for name in here]
        made = [(name, found) for name, found in made if found]
        if not made:
            continue
        contents += [
            f'<li><a href="#{anchor(name)}">{escape(folder)}: {escape(TITLES.get(name, (name,))[0])}</a></li>'
            for name, _ in made
        ]
        sections.append(f"<h2>{escape(machine)}</h2>" + "".join(found for _, found in made))
    listed = "".join(
        f'<li><a href="{escape(name)}">{escape(name)}</a>: {escape(first_line(name))}</li>' for name in texts
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>keyfold: measured</title><style>{STYLE}</style></head><body>\n<h1>keyfold: everything measured</h1>"
        "<p>One section for each report under <code>reports/</code>, drawn from its JSON by <code>python3 scripts/report_page.py</code>. "
        "Times are medians. In brackets behind a peer's time: how many times keyfold's it is, the lower quartile of rounds in which all took turns in one process; above 1, keyfold is faster. "
        "A figure holds for the machine, commit and command under its table; two sections are two runs, and must not be compared.</p>"
        f"{at_a_glance()}<nav><ul>{''.join(contents)}</ul></nav>\n"
        + "\n".join(sections)
        + f"\n<h2>Text reports</h2><ul>{listed}</ul>\n</body></html>\n"
    )


def first_line(name):
    for line in (REPORTS / name).read_text(errors="replace").splitlines():
        if line.strip():
            return line.strip()[:140]
    return ""


def glance():
    """README's picture: prefill and decode on the GPU beside torch's backends, a model on the CPU beside llama.cpp."""
    parts = []
    for name, op, title in (
        ("h200/peers-attention.json", "attention", "Causal prefill, H200, bf16"),
        ("h200/peers-decode.json", "decode", "Decode, H200, bf16"),
    ):
        rows = [row for row in read(REPORTS / name)[0] if row.get("op") == op and row.get("dtype") == "bf16"]
        rows = [row for row in rows if row.get("causal") or op == "decode"]
        groups = [
            (
                label(row).removesuffix(" causal"),
                {
                    key: rate(row)[0] / us
                    for key, us in row["times_us"].items()
                    if us and key in ("keyfold", "cudnn", "flash2")
                },
            )
            for row in rows
        ]
        parts.append((title, rate(rows[0])[1], groups))
    rows = read(REPORTS / "zen4/llama.json")[0]
    parts.append(
        (
            "SmolLM2-135M, 2 CPU cores",
            "tokens/s",
            [
                (
                    row["work"].replace("_", " at depth ").replace("prefill", "prompt of 512"),
                    {"keyfold": row["keyfold"], "llama_cpp": row["llama_cpp"]},
                )
                for row in rows
            ],
        )
    )
    plots = [bars(*part) for part in parts]
    style = "<style>text{font:10.5px system-ui,sans-serif;fill:#1c2126}text.t{font-weight:600;font-size:12px}</style>"
    drawn, x, tallest = [], 0, 0
    columns = [[plots[0]], plots[1:]]
    for column in columns:
        y = 0
        for plot in column:
            height = float(plot.split('viewBox="0 0 ')[1].split('"')[0].split()[1])
            drawn.append(
                plot.replace("<svg ", f'<svg x="{x + 10}" y="{y + 10}" width="{WIDTH}" height="{height:.0f}" ', 1)
            )
            y += height + 18
        tallest, x = max(tallest, y), x + WIDTH + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {x - 20} {tallest:.0f}" width="{x - 20}">{style}'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


def at_a_glance():
    """The picture within the page: as data, so that its style stays its own."""
    data = base64.b64encode(glance().encode()).decode()
    return f'<img class="glance" alt="prefill, decode and a model beside their peers" src="data:image/svg+xml;base64,{data}">'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = 0
    for path, content in ((REPORTS / "index.html", page()), (ROOT / "docs" / "pictures" / "glance.svg", glance())):
        name = path.relative_to(ROOT)
        if path.exists() and path.read_text() == content:
            print(f"{name}: up to date")
        elif options.check:
            print(f"{name}: not what the reports give; python3 scripts/report_page.py")
            stale += 1
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            print(f"{name}: written")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
