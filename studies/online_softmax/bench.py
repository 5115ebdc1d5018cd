# SPDX-License-Identifier: Apache-2.0
"""Times the Triton softmax beside torch (eager and compiled) and keyfold's CUDA kernel:

python -m studies.online_softmax.bench --json reports/h200/studies/online_softmax.json
"""

import sys

from keyfold.peers import CASES, Case, measure, report

from ..benching import begin
from .softmax_triton import softmax


def triton_call(case, place, x):
    y = place.torch.full_like(x.x, float("nan"))
    return lambda: softmax(x.x, out=y)[0]


def main():
    options, place, source = begin("studies.online_softmax.bench", "eager,compile")
    rows = []
    for shape in CASES["cuda"]["softmax"]:
        case = Case("softmax", shape, "bf16")
        row = measure(case, place, peers=options.peers.split(","), extra={"triton": triton_call}, count=options.rounds)
        rows.append({**row, **source})
        print(report.line(row), flush=True)
        if options.json:
            report.write_json(options.json, rows)
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
