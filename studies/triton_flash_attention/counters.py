# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute over every forward kernel there is here: which shape lets which kernel reach 70 % of the SM, 50 % of the tensor pipe?

    python -m studies.triton_flash_attention.counters --json reports/h200/studies/triton_flash_attention_ncu.json

Runs itself under ncu, once for each group of kernels: there each call is made three times, and once more with the
profiler on, behind a fill of one element that parts the calls in the profile. Counters are per launch and relative to
the device's peak over the launch's whole time, so clocks and cold code are no matter. `SM` (sm__throughput) is the
busiest of the SM's units; which one that was is printed beside it.
"""

import argparse
import csv
import functools
import io
import json
import re
import subprocess
import sys
import traceback

import torch

PEAK = ".avg.pct_of_peak_sustained_elapsed"
SM, TENSOR, DRAM = "sm__throughput" + PEAK, "sm__pipe_tensor_cycles_active" + PEAK, "dram__throughput" + PEAK
OTHERS = {
    "l2_hits": "lts__t_sector_hit_rate.pct",
    "warp_slots": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_bytes": "dram__bytes.sum",
    "ns": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "shared": "launch__shared_mem_per_block_dynamic",
}
METRICS = ["breakdown:" + SM, SM, TENSOR, DRAM, *OTHERS.values()]

SHAPES = [  # B, H, N, D; causal or not
    ((1, 16, 16384, 32), (False,)),
    ((2, 16, 4096, 64), (True, False)),
    ((2, 16, 16384, 64), (False,)),
    ((4, 32, 4096, 128), (True, False)),
    ((1, 16, 16384, 128), (True, False)),
    ((1, 8, 16384, 256), (True, False)),
]
TILES = {  # of forward.py at each D: BLOCK_M, BLOCK_N, warps, stages
    32: [(64, 64, 4, 3), (128, 64, 4, 3)],
    64: [(64, 64, 4, 3), (128, 64, 8, 3)],
    128: [(64, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 3)],
    256: [(64, 64, 4, 2), (128, 64, 8, 2)],
}
ROLES = {32: (128, 2), 64: (128, 2), 128: (128, 2), 256: (64, 2)}  # BLOCK_N, stages
WARPGROUPS = {64: [(2, 128), (3, 128)], 128: [(2, 128)], 256: [(2, 64)]}  # warp groups, BLOCK_N


# ----------------------------------------------------------------------------------------------------- calls of a kernel


def of_triton(q, k, v, causal):
    from .forward import forward

    for tile in TILES[q.shape[-1]]:
        blocks = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), tile))
        yield (
            "x".join(map(str, tile[:2])) + f", {tile[2]} warps, {tile[3]} stages",
            functools.partial(forward, q, k, v, causal=causal, blocks=blocks),
        )


def of_roles(q, k, v, causal):
    from .roles import forward

    if not causal:
        block_n, stages = ROLES[q.shape[-1]]
        yield f"128x{block_n}, {stages} stages", functools.partial(forward, q, k, v, block_n=block_n, stages=stages)


def of_warpgroups(q, k, v, causal):
    from .warpgroups import forward

    for groups, block_n in WARPGROUPS.get(q.shape[-1], []):
        yield (
            f"{64 * groups}x{block_n}, 2 stages",
            functools.partial(forward, q, k, v, causal=causal, block_n=block_n, groups=groups),
        )


def of_torch(backend, q, k, v, causal):
    def call():
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    yield "", call


def of_keyfold(dtype, q, k, v, causal):
    import keyfold

    q, k, v = (x.to(dtype) for x in (q, k, v))
    yield "", functools.partial(keyfold.attention, q, k, v, causal=causal, out=torch.empty_like(q))


KERNELS = {
    "triton": of_triton,
    "triton, warp_specialize": of_roles,
    "gluon, warp groups": of_warpgroups,
    "cudnn": functools.partial(of_torch, "CUDNN_ATTENTION"),
    "flash2": functools.partial(of_torch, "FLASH_ATTENTION"),
    "keyfold": functools.partial(of_keyfold, torch.bfloat16),
    "keyfold fp32": functools.partial(of_keyfold, torch.float32),
}
GROUPS = [  # each in a process of its own
    "gluon, warp groups;triton, warp_specialize",
    "cudnn;flash2",
    "keyfold;keyfold fp32",
    "triton",
]


def calls(names):
    """Makes every call of these kernels; one line of JSON for each that was profiled, in order."""
    mark, profiler = torch.empty(1, device="cuda"), torch.cuda.cudart()
    for shape, masks in SHAPES:
        B, H, N, D = shape
        q, k, v = (torch.randn(B, H, N, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        for name in names:
            for causal in masks:
                if name == "keyfold fp32" and N > 4096:
                    continue
                for tile, call in KERNELS[name](q, k, v, causal):
                    try:
                        for _ in range(3):
                            call()
                        torch.cuda.synchronize()
                    except Exception as error:  # does not fit, is not supported
                        print("left out:", name, shape, causal, tile, " ".join(str(error).split())[:120], flush=True)
                        continue
                    profiler.cudaProfilerStart()
                    mark.fill_(1.0)
                    call()
                    torch.cuda.synchronize()
                    profiler.cudaProfilerStop()
                    print(json.dumps({"kernel": name, "shape": shape, "causal": causal, "tile": tile}), flush=True)


# ------------------------------------------------------------------------------------------------- what ncu made of them


def profile(names, ncu, limit, metrics):
    """The rows of one process under ncu."""
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw", "--print-units",
               "base", "--metrics", ",".join(metrics), sys.executable, "-m", __spec__.name, "--calls", names]  # fmt: skip
    with subprocess.Popen(["timeout", "-s", "INT", str(limit), *command], stdout=subprocess.PIPE, text=True) as child:
        text = child.stdout.read()
    made = [json.loads(line) for line in text.splitlines() if line.startswith('{"kernel"')]
    print(
        "\n".join(line for line in text.splitlines() if line.startswith(("left out", "==ERROR", "==WARN"))), flush=True
    )
    table = [line for line in text.splitlines() if line.startswith('"')]
    launches = list(csv.DictReader(io.StringIO("\n".join(table))))[1:]  # the first row has the units
    return [reduced(call, group) for call, group in zip(made, grouped(launches))]


def grouped(launches):
    groups = []
    for launch in launches:
        if "FillFunctor" in launch["Kernel Name"]:
            groups.append([])
        elif groups:
            groups[-1].append(launch)
    return groups


def number(launch, name):
    text = launch.get(name, "").replace(",", "")
    return float(text) if re.fullmatch(r"[-+.0-9eE]+", text) else 0.0


def reduced(call, launches):
    """The longest launch of a call stands for it; what share of the call's time it is, is said."""
    if not launches:
        return {**call, "failed": "no launch was profiled"}
    longest = max(launches, key=lambda x: number(x, OTHERS["ns"]))
    units = {
        name.removesuffix(PEAK): round(number(longest, name), 2)
        for name in longest
        if name.endswith(PEAK) and name not in (SM, DRAM) and number(longest, name) > 0
    }
    busiest = sorted(units, key=units.get, reverse=True)[:6]
    return {
        **call,
        "function": re.sub(r"[<(].*", "", longest["Kernel Name"]).split("::")[-1],
        "sm": round(number(longest, SM), 2),
        "tensor": round(number(longest, TENSOR), 2),
        "dram": round(number(longest, DRAM), 2),
        "units": {name: units[name] for name in busiest},
        **{name: number(longest, metric) for name, metric in OTHERS.items()},
        "launches": len(launches),
        "of_the_time": round(
            number(longest, OTHERS["ns"]) / max(1.0, sum(number(x, OTHERS["ns"]) for x in launches)), 3
        ),
    }


def line(row):
    B, H, N, D = row["shape"]
    head = f"{row['kernel']:24} {B},{H},{N},{D} {'causal' if row['causal'] else 'full':6} {row['tile']:28}"
    if "failed" in row:
        return f"{head} {row['failed']}"
    flops = 4 * B * H * N * N * D * (0.5 if row["causal"] else 1.0)
    unit = next(iter(row["units"]), "")
    return (
        f"{head} SM {row['sm']:5.1f}  tensor {row['tensor']:5.1f}  DRAM {row['dram']:4.1f}  L2 hits {row['l2_hits']:4.1f}  "
        f"warps {row['warp_slots']:4.1f}  {row['ns'] / 1e3:9.1f} us  {flops / row['ns'] / 1e3:5.0f} TFLOP/s  {unit}"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--groups", type=int, default=len(GROUPS), help="only the first so many processes")
    parser.add_argument("--limit", type=int, default=120, help="seconds for each process")
    parser.add_argument("--calls", help="kernels, to be called under ncu")
    options = parser.parse_args()
    if options.calls:
        torch.manual_seed(0)
        return calls(options.calls.split(";"))
    from keyfold.peers.place import Place
    from keyfold.peers.report import commit

    command = "python -m studies.triton_flash_attention.counters " + " ".join(sys.argv[1:])
    source = {"machine": Place("cuda").machine, "commit": commit(), "command": command.strip()}
    print(f"{source['command']}, commit {source['commit']}, {source['machine']}", flush=True)
    rows = []
    for names in GROUPS[: options.groups]:
        try:
            found = profile(names, options.ncu, options.limit, METRICS)
            if not found:  # an ncu that does not know breakdowns
                found = profile(names, options.ncu, options.limit, METRICS[1:])
        except Exception:
            traceback.print_exc()
            found = []
        for row in found:
            print(line(row), flush=True)
            rows.append({"op": "ncu", **row, **source})
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)
    reached = [row for row in rows if row.get("sm", 0) >= 70 and row.get("tensor", 0) >= 50]
    print(f"{len(rows)} launches; SM >= 70 % and tensor pipe >= 50 %: {len(reached)}")
    for row in reached:
        print(line(row))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
