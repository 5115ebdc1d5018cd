# SPDX-License-Identifier: Apache-2.0
"""What follows from a model's times, and the table of its README."""

import re

HELD = ("tokens_per_s", "step_us", "replay_us", "kernels", "kernel_us", "share_of_limit")


def held(name):
    """A way's or a kernel's name as a document's mark can say it (scripts/figures.py)."""
    return re.sub(r"\W+", "_", name)


def finish(row, copy):
    """What follows from the times."""
    found = row["ways"]
    limit = row["bytes"] / copy / 1e6
    for way in found.values():
        way["tokens_per_s"] = round(1e6 / way["step_us"], 1)
        way["share_of_limit"] = round(limit / way["step_us"], 4)
    row["limit_us"] = round(limit, 1)
    for what in HELD:
        row[what] = {held(name): way[what] for name, way in found.items() if what in way}
    for at, what in enumerate(("heaviest_count", "heaviest_us")):
        row[what] = {
            held(name): {held(kernel): pair[at] for kernel, pair in way["heaviest"].items()}
            for name, way in found.items()
            if "heaviest" in way
        }
    for prefix, eager, graph in (("torch", "eager", "graph"), ("keyfold", "keyfold", "keyfold, dependent graph")):
        if eager in found and graph in found:
            whole = found[eager]["step_us"]
            row[f"{prefix}_launch_share"] = round(1 - found[graph]["replay_us"] / whole, 4)
            if "kernel_us" in found[eager]:
                row[f"{prefix}_launch_share_by_kernels"] = round(1 - found[eager]["kernel_us"] / whole, 4)
    return row


def show(row):
    """In Markdown."""
    lines = [
        f"**{row['model']}**, {row['weights']} weights: {row['bytes'] / 1e6:.0f} MB a step, limit {row['limit_us']} us"
    ]
    lines += ["| way | tokens/s | step, us | replay, us | kernels | their time, us | of the limit |", "|---" * 7 + "|"]
    for name, way in row["ways"].items():
        kernels, us, replay = (way.get(key, "") for key in ("kernels", "kernel_us", "replay_us"))
        lines.append(f"| {name} | {way['tokens_per_s']:.0f} | {way['step_us']} | {replay} | {kernels} | {us} | "
                     f"{100 * way['share_of_limit']:.0f} % |")  # fmt: skip
    shares = {key: value for key, value in row.items() if "launch_share" in key}
    return "\n".join([*lines, *(f"{key}: {100 * value:.0f} %" for key, value in shares.items())])
