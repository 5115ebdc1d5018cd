# SPDX-License-Identifier: Apache-2.0
"""What each refinement of the prefill kernel is worth: its time with that one taken back, beside the kernel as it is.

    python -m studies.lineage.variants FOLDER
    python -m studies.lineage.bench --builds FOLDER --json reports/h200/studies/lineage.json

A row's `costs` are medians of a variant's time over the unchanged kernel's, round by round.
"""

import ctypes
import statistics
import sys

from keyfold.peers import Case, report
from keyfold.peers.attention import OPERATIONS
from keyfold.peers.measure import current, prepared, sets_of
from keyfold.peers.timing import Timer, rounds

from ..benching import begin
from .variants import VARIANTS, library

SHAPES = [
    (1, 8, 8, 8192, 128),
    (2, 16, 16, 4096, 64),
    (32, 16, 16, 512, 128),
    (4, 32, 32, 4096, 128),
    (2, 16, 16, 16384, 64),
]
SECTION_BYTES = 40 << 20  # as src/cuda/attention.c: keys and values of lists that run side by side


def section(name, B, H, Hkv, N, D):
    if name == "serial":
        return B * H
    return min(B * H, max(H // Hkv, SECTION_BYTES // (N * 2 * D * 2) * (H // Hkv)))


def variant(name, run):
    def make(case, place, x):
        B, H, Hkv, N, _, D = case.shape
        o = place.torch.full_like(x.q, float("nan"))

        def call():
            stream = place.torch.cuda.current_stream().cuda_stream
            pointers = [t.data_ptr() for t in (x.q, x.k, x.v, o)]
            side_by_side = section(name, B, H, Hkv, N, D)
            status = run(
                *map(ctypes.c_void_p, pointers),
                B,
                H,
                Hkv,
                N,
                D,
                int(case.causal),
                side_by_side,
                ctypes.c_void_p(stream),
            )
            if status:
                raise RuntimeError(f"CUDA error {status}")
            return o

        return call

    return make


def main():
    options, place, source = begin("studies.lineage.bench", "", "--builds")
    makers = {name: variant(name, ctypes.CDLL(str(library(options.builds, name))).lineage_run) for name in VARIANTS}
    operation, rows = OPERATIONS["attention"], []
    for B, H, Hkv, N, D in SHAPES:
        for causal in (False, True):
            case, left_out = Case("attention", (B, H, Hkv, N, N, D), "bf16", causal), {}
            with current(place):
                sets = [operation.inputs(case, place) for _ in range(sets_of(operation, case, place))]
                calls, errors, failed = prepared(operation, case, place, makers, sets, left_out)
                timer = Timer(place)
                pieces = {name: timer.piece(own, timer.estimate(own), "stream") for name, own in calls.items()}
                times = rounds(pieces, options.rounds)
            own = times["unchanged"]
            row = {
                "op": "attention",
                "shape": list(case.shape),
                "dtype": "bf16",
                "causal": causal,
                "times_us": {name.replace(" ", "_"): round(statistics.median(t), 3) for name, t in times.items()},
                "costs": {
                    name.replace(" ", "_"): round(statistics.median(a / b for a, b in zip(t, own)), 4)
                    for name, t in times.items()
                    if name != "unchanged"
                },
                "timing": "stream",
                "rounds": options.rounds,
                "errors": errors,
                "left_out": left_out,
                "failed": failed,
                "flops": operation.flops(case),
                "bytes": operation.bytes(case),
                **source,
            }
            rows.append(row)
            print(case.title, row["costs"], errors, failed, left_out, flush=True)
            if options.json:
                report.write_json(options.json, rows)
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
