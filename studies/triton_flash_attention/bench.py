# SPDX-License-Identifier: Apache-2.0
"""Times the Triton kernel, and the one for warp groups in Gluon, beside torch's SDPA (its choice, its flash backend, cuDNN)
and keyfold's CUDA kernel, and prints what the tuner chose and why.

    python -m studies.triton_flash_attention.bench --json reports/h200/studies/triton_flash_attention.json
"""

import sys

from keyfold.peers import Case, measure, report

from ..benching import begin
from . import forward as study
from . import warpgroups

SHAPES = [
    (2, 16, 4096, 64),
    (1, 8, 512, 64),
    (1, 8, 2048, 64),
    (4, 32, 4096, 128),
    (1, 8, 8192, 128),
    (2, 16, 16384, 64),
]


def twin_call(forward, case, place, x):
    lse = place.torch.empty(x.q.shape[:3], dtype=place.torch.float32, device=x.q.device)
    o = place.torch.full_like(x.q, float("nan"))

    def call():
        forward(x.q, x.k, x.v, causal=case.causal, out=o, lse=lse)
        return o

    return call


def triton_call(case, place, x):
    return twin_call(study.forward, case, place, x)


def gluon_call(case, place, x):
    return twin_call(warpgroups.forward, case, place, x)


def tuning(case):
    """The tuner's times of every configuration for its last shape, the best first, with what each one occupies."""
    rows = []
    for chosen, times in study.tuned_kernel.configs_timings.items():
        us = (times[0] if isinstance(times, (list, tuple)) else times) * 1e3
        row = {**chosen.kwargs, "warps": chosen.num_warps, "stages": chosen.num_stages, "us": round(us, 2)}
        rows.append({**row, **occupied(row, case)})
    return sorted(rows, key=lambda row: row["us"])


def occupied(row, case):
    """Registers a thread, spills and shared memory, of the kernel that was compiled with this configuration, D and mask."""
    found = {}
    for caches in study.forward_kernel.device_caches.values():
        for kernel in caches[0].values():
            named = {study.forward_kernel.arg_names[path[0]]: value for path, value in kernel.src.constants.items()}
            wanted = {"BLOCK_M": row["BLOCK_M"], "BLOCK_N": row["BLOCK_N"], "D": case.shape[-1], "CAUSAL": case.causal}
            same = all(named.get(name) == value for name, value in wanted.items())
            if same and (kernel.metadata.num_warps, kernel.metadata.num_stages) == (row["warps"], row["stages"]):
                found = {"registers": kernel.n_regs, "spills": kernel.n_spills, "shared": kernel.metadata.shared}
    return found


def main():
    options, place, source = begin("studies.triton_flash_attention.bench", "sdpa,flash2,cudnn", "--plot", "--match")
    rows, kernels = [], {"triton": triton_call}
    if place.torch.cuda.get_device_capability()[0] == 9:
        kernels["gluon"] = gluon_call
    for B, H, N, D in SHAPES:
        for causal in (True, False):
            case = Case("attention", (B, H, H, N, N, D), "bf16", causal)
            if options.match not in case.title:
                continue
            row = measure(case, place, peers=options.peers.split(","), extra=kernels, count=options.rounds)
            row = {**row, "tuning": tuning(case), **source}
            triton_us = row["times_us"].get("triton")
            row["triton_speed"] = (
                {n: round(t / triton_us, 4) for n, t in row["times_us"].items() if n != "triton"} if triton_us else {}
            )
            rows.append(row)
            print(
                report.line(row),
                "\n    triton's speed by:",
                row["triton_speed"],
                "\n    tuned:",
                row["tuning"][:6],
                flush=True,
            )
            if options.json:
                report.write_json(options.json, rows)
            place.torch.cuda.empty_cache()
    if options.plot:
        print("plot:", report.plot(options.plot, rows))
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
