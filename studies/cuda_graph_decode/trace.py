# SPDX-License-Identifier: Apache-2.0
"""What the device did in a step: how many kernels, their time together, and which take the most. Of torch from a trace
of its profiler; of keyfold, another process, from Nsight Compute, which runs the kernels one by one."""

import csv
import io
import json
import tempfile
from collections import Counter
from pathlib import Path

import torch

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
DURATION = "gpu__time_duration.sum"
LARGEST = 0.8  # of the longest kernel: one of the same product in another step
NAME = 60  # characters of a kernel's name that are kept


def record(step, steps):
    """The trace's events of some steps."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


def short(name):
    """A kernel's name without its types and arguments."""
    name = name.removeprefix("void ")
    for mark in ("<", "("):
        if name.find(mark) > 0:
            name = name[: name.find(mark)]
    return name.rpartition("::")[2][:NAME]


def on_device(events):
    """(name, us) of every kernel, copy and fill of a trace."""
    return [(e["name"], e["dur"]) for e in events if e.get("ph") == "X" and e.get("cat") in ON_DEVICE]


def seen(text):
    """(name, us) of every kernel in what `ncu --csv --page raw --metrics gpu__time_duration.sum` says."""
    begin = text.find('"ID"')
    rows = list(csv.DictReader(io.StringIO(text[max(begin, 0) :])))
    unit = {"us": 1, "ns": 1e-3, "ms": 1e3}[rows[0][DURATION]] if rows else 1
    return [(row["Kernel Name"], float(row[DURATION].replace(",", "")) * unit) for row in rows[1:] if row.get(DURATION)]


def one_step(text, first="kf_embedding"):
    """The kernels of one step: from one that begins a step to the next. None where two such were not seen."""
    found = seen(text)
    starts = [i for i, (name, _) in enumerate(found) if first in name]
    return found[starts[-2] : starts[-1]] if len(starts) > 1 else None


def step_between_largest(text):
    """The kernels from behind a step's largest one, the product of the vocabulary which ends it, to the next such one.
    For steps that no kernel's name begins. None where two were not seen."""
    found = seen(text)
    most = max((us for _, us in found), default=0)
    ends = [i for i, (_, us) in enumerate(found) if us > LARGEST * most]
    return found[ends[-2] + 1 : ends[-1] + 1] if len(ends) > 1 else None


def summary(found, steps, most=8):
    """Of one step: kernels, their microseconds, and the heaviest by name: [count, us]. found: (name, us) of each."""
    counts, times = Counter(), Counter()
    for name, us in found:
        counts[short(name)] += 1
        times[short(name)] += us
    return {
        "kernels": round(len(found) / steps, 1),
        "kernel_us": round(sum(times.values()) / steps, 1),
        "heaviest": {
            name: [round(counts[name] / steps, 1), round(us / steps, 1)] for name, us in times.most_common(most)
        },
    }
