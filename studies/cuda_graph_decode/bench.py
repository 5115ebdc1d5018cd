# SPDX-License-Identifier: Apache-2.0
"""Times a decode step of three models at batch 1 by every way in decode.py, and the same shapes' with `keyfold bench
model`:

    python -m studies.cuda_graph_decode.bench --keyfold build/keyfold --ncu ncu --model FILE --llama-bench llama-bench \
        --folder /tmp --json reports/h200/studies/cuda_graph_decode.json

    step     microseconds from one token's id on the host to the next one's, as a loop that ends at a token needs it
    replay   the same steps enqueued one behind the other, nothing read: for a graph, what the device needs
    launch share = 1 - replay of the graph / eager step; beside it 1 - sum of eager's kernels / eager step

SmolLM2 has the weights of --model, a GGUF file, where that is given, else random ones; the two others have random
weights. With --folder the model's weights are written there in bf16, and keyfold, and llama.cpp's program where
--llama-bench names it, read that file: all ways have the same weights. --ncu names Nsight Compute, by which the kernels of
both are counted and timed.
To compile takes a minute a model: with --hold FILE nothing is timed until FILE is there (FILE.made says that all is made),
so that several models can be made side by side and timed one after the other.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from keyfold.peers import report
from keyfold.peers.timing import ceilings

from ..benching import begin
from . import trace
from .decode import WAYS, Decoder
from .models import SHAPES, model_of_file, random_model, write_file
from .table import finish, show

CACHE = 1024  # keys that torch's static cache holds
STEPS = 32  # of a timed piece, from an empty cache, as keyfold bench takes them
SLOW_STEPS = 16  # of one that takes tens of milliseconds a step
SLOW_US = 8000
TRACED = 4
NCU_S = 60  # at most, to look at the kernels of one step
FILE_SHAPE = "smollm2-135m"
NCU = "--cache-control none --clock-control none --metrics gpu__time_duration.sum --csv --page raw --kill yes"
NCU += " --launch-skip {} --launch-count {}"
# keyfold's bench begins with a prompt, a step of at least as many kernels as it has operations, then steps launched op by
# op: seen from the prompt's last kernels on, so many hold a whole step.
SEEN_STEPS, SEEN_BESIDE = 1.5, 100
# llama.cpp's steps are alike from the first one on and have at most so many kernels a layer; two are seen.
LLAMA_KERNELS = 20
# Tokens of llama-bench's runs: its own default, and as many as the other ways are timed with. The faster one is shown.
LLAMA_TOKENS = (128, STEPS)
LLAMA_RUNS = 7
LAUNCHES = {"launch per op": "keyfold", "graph": "keyfold, graph", "graph, dependent": "keyfold, dependent graph",
            "launch per op, dependent": "keyfold, dependent"}  # fmt: skip


def timed(decoder, step, read, steps):
    """us a step."""
    import torch

    decoder.rewind()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
        if read:
            int(decoder.token)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / steps


def wait(hold):
    """Until there is a file of this name; says so by one beside it."""
    if hold:
        Path(f"{hold}.made").touch()
        while not Path(hold).exists():
            time.sleep(0.05)


def measure_torch(model, ways, rounds, hold):
    """By way: step, replay, kernels; and how long each took to make."""
    decoder = Decoder(model, CACHE)
    steps, made_s, counts = {}, {}, {}
    for way in ways:
        start = time.perf_counter()
        decoder.rewind()
        steps[way] = decoder.step(way)
        for _ in range(4):
            steps[way]()
        estimate = timed(decoder, steps[way], True, 4)
        made_s[way] = round(time.perf_counter() - start, 1)
        counts[way] = STEPS if estimate < SLOW_US else SLOW_STEPS
        print(f"    {way}: made in {made_s[way]} s, about {estimate:.0f} us a step", flush=True)
    wait(hold)
    times = {what: {way: [] for way in ways} for what in ("step", "replay")}
    for number in range(1 + rounds):  # the first round warms up
        for way in ways:
            for what in times:
                us = timed(decoder, steps[way], what == "step", counts[way])
                if number:
                    times[what][way].append(us)
    found = {}
    for way in ways:
        decoder.rewind()
        found[way] = {
            "step_us": round(statistics.median(times["step"][way]), 1),
            "replay_us": round(statistics.median(times["replay"][way]), 1),
            "made_s": made_s[way],
            **trace.summary(trace.on_device(trace.record(steps[way], TRACED)), TRACED),
        }
    return found


def seen_by_nsight(ncu, skip, count, command, pick, environment=None):
    """(summary of one step's kernels, None), or ({}, why there is none)."""
    command = [*ncu.split(), *NCU.format(skip, count).split(), *command]
    try:
        said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=NCU_S,
                              env={**os.environ, **(environment or {})})  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        return {}, f"kernels: {str(error)[-200:]}"
    kernels = pick(said.stdout)
    return (trace.summary(kernels, 1), None) if kernels else ({}, f"kernels: no step seen: {said.stdout[-200:]}")


def measure_keyfold(command, name, path, ncu):
    """`keyfold bench model`'s rows by way of launch, under the names of LAUNCHES."""
    what = ["-m", str(path), "--weights", "bf16"] if path else ["--shape", name]
    bench = [command, "bench", "model", "--backend", "cuda", *what, "--rows", "bf16", "--cache", "bf16", "--json"]
    said = subprocess.run(bench, check=False, capture_output=True, text=True, timeout=100)
    if said.returncode:
        return {}, said.stderr.strip()[-200:]
    found = {
        LAUNCHES[row["launch"]]: {
            "step_us": row["step_us"],
            "replay_us": row["replay_us"],
            "operations": row["operations"],
        }
        for row in json.loads(said.stdout)
    }
    if not ncu:
        return found, None
    operations = found["keyfold"]["operations"]
    seen = operations, int(SEEN_STEPS * operations) + SEEN_BESIDE
    kernels, reason = seen_by_nsight(ncu, *seen, bench, trace.one_step)
    found["keyfold"].update(kernels)
    return found, reason


def measure_llama(command, path, layers, ncu):
    """llama-bench: a token's step ends with its logits on the host, as keyfold's does, and reads a token of no meaning."""
    bench = [command, "-m", str(path), "-p", "0", "-fa", "1", "-ngl", "99", "-o", "json"]
    timed = [*bench, "-n", ",".join(map(str, LLAMA_TOKENS)), "-r", str(LLAMA_RUNS)]
    said = subprocess.run(timed, check=False, capture_output=True, text=True, timeout=100)
    if said.returncode:
        return {}, (said.stdout + said.stderr).strip()[-300:]
    rows = json.loads(said.stdout[said.stdout.index("[") :])
    us = {row["n_gen"]: statistics.median(row["samples_ns"]) / 1e3 / row["n_gen"] for row in rows}
    best = min(us, key=us.get)
    found = {"step_us": round(us[best], 1), "tokens": best, "by_tokens": {n: round(t, 1) for n, t in us.items()},
             "build": rows[0].get("build_commit"), "on": rows[0].get("gpu_info")}  # fmt: skip
    if not ncu:
        return {"llama.cpp": found}, None
    few = [*bench, "-n", "4", "-r", "1"]
    kernels, reason = seen_by_nsight(
        ncu, 0, 2 * LLAMA_KERNELS * layers, few, trace.step_between_largest, {"GGML_CUDA_DISABLE_GRAPHS": "1"}
    )
    return {"llama.cpp": {**found, **kernels}}, reason


def measure(name, options, torch):
    """One model by every way, in one row."""
    path = options.model if name == FILE_SHAPE else ""
    shape = SHAPES[name]
    model = model_of_file(path, "cuda", torch.bfloat16)[1] if path else random_model(shape, "cuda", torch.bfloat16)
    row = {"op": "model step", "model": name, "dtype": "bf16", "weights": Path(path).name if path else "random",
           "depth": 0, "bytes": shape.step_bytes(STEPS), "ways": {}, "left_out": {}}  # fmt: skip
    others, file = [], Path(options.folder) / f"{name}.gguf" if options.folder else path
    if options.folder:
        write_file(file, shape, model)
    if options.keyfold:
        others.append(("keyfold", lambda: measure_keyfold(options.keyfold, name, file, options.ncu)))
    if options.llama_bench and options.folder:
        others.append(("llama.cpp", lambda: measure_llama(options.llama_bench, file, shape.layers, options.ncu)))
    row["ways"].update(
        measure_torch(model, options.ways.split(";") if options.ways else WAYS, options.rounds, options.hold)
    )
    for who, other in others:
        found, reason = other()
        row["ways"].update(found)
        if reason:
            row["left_out"][who] = reason
    return row


def main():
    texts = ("--keyfold", "--ncu", "--model", "--llama-bench", "--folder", "--models", "--ways", "--hold")
    options, place, source = begin("studies.cuda_graph_decode.bench", "", *texts)
    torch, rows = place.torch, []
    torch._inductor.config.fx_graph_cache = True
    for name in options.models.split(",") if options.models else SHAPES:
        print(f"-- {name}", flush=True)
        row = {**measure(name, options, torch), **source, **ceilings(place)}
        row = finish(row, row["copy_TB_s"])
        rows.append(row)
        print(show(row), row["left_out"] or "", flush=True)
        if options.json:
            report.write_json(options.json, rows)
        torch.compiler.reset()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
