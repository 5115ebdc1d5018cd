# SPDX-License-Identifier: Apache-2.0
"""Sweeps the number of splits G, and times the best beside the unsplit kernel ("naive"), cuDNN, flash, FlashInfer and
keyfold's CUDA kernel: all in one row, so every ratio is of one run.

    python -m studies.triton_decode.bench --json reports/h200/studies/triton_decode.json
"""

import sys

from keyfold.peers import Case, measure, report

from ..benching import begin
from ..triton_flash_attention.forward import forward
from .decode import decode, workspace

SHAPES = [(1, 32, 32, 8192, 128), (1, 32, 8, 8192, 128), (1, 32, 8, 1024, 128), (16, 32, 8, 8192, 128)]
SWEEP = [1, 2, 4, 8, 16, 32, 64]
TILES = [(32, 4, 4), (64, 4, 3), (64, 2, 4), (128, 4, 2)]  # keys, warps, stages


def split_into(G, block=64, warps=4, stages=3):
    """A call with so many splits; None: as decode chooses. Nothing is allocated in it."""

    def make(case, place, x):
        torch = place.torch
        o, lse = torch.full_like(x.q, float("nan")), torch.empty(x.q.shape[:3], dtype=torch.float32, device=x.q.device)
        parts = workspace(x.q, G)

        def call():
            decode(x.q, x.k, x.v, G=G, out=o, lse=lse, parts=parts, block=block, warps=warps, stages=stages)
            return o

        return call

    return make


# What the tuner takes for a prefill of 8192 keys at D = 128 (reports/h200/studies/triton_flash_attention.json).
PREFILL_TILE = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}


def naive(blocks):
    """The prefill kernel with one query row: B x H programs, each over all keys. None: tuned anew for one row."""

    def make(case, place, x):
        torch = place.torch
        o, lse = torch.full_like(x.q, float("nan")), torch.empty(x.q.shape[:3], dtype=torch.float32, device=x.q.device)

        def call():
            forward(x.q, x.k, x.v, out=o, lse=lse, blocks=blocks)
            return o

        return call

    return make


NAIVE = {"naive": naive(PREFILL_TILE), "naive, tuned": naive(None)}


def main():
    options, place, source = begin("studies.triton_decode.bench", "cudnn,flash2,flashinfer,flashinfer_tc", "--match")
    rows = []
    for B, H, Hkv, N, D in SHAPES:
        case = Case("decode", (B, H, Hkv, 1, N, D), "bf16")
        if options.match not in case.title:
            continue
        extra = {f"G={G}": split_into(G) for G in SWEEP if G * 64 <= N}
        first = measure(case, place, peers=[], extra=extra, count=options.rounds)
        swept = {name: us for name, us in first["times_us"].items() if name.startswith("G=")}
        G = int(min(swept, key=swept.get)[2:])
        tiles = {f"G={G} {k}/{w}/{s}": split_into(G, k, w, s) for k, w, s in TILES}
        row = measure(case, place, peers=options.peers.split(","), extra={**NAIVE, **tiles}, count=options.rounds)
        best = min(tiles, key=lambda name: row["times_us"].get(name, float("inf")))
        for name in tiles:  # one of them stands for the study; the others remain in the sweep
            us = row["times_us"].pop(name, None)
            ratio = row["ratios"].pop(name, None)
            swept[name] = us
            if name == best:
                row["times_us"]["triton"], row["ratios"]["triton"] = us, ratio
        row = {**row, "G": G, "tile": best, "sweep_us": swept, **source}
        row["triton_speed"] = {n: round(t / row["times_us"]["triton"], 4) for n, t in row["times_us"].items()}
        rows.append(row)
        print(report.line(row), "\n    sweep:", swept, "\n    triton's speed by:", row["triton_speed"], flush=True)
        if options.json:
            report.write_json(options.json, rows)
        place.torch.cuda.empty_cache()
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
