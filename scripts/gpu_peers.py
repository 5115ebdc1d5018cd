# SPDX-License-Identifier: Apache-2.0
"""Times keyfold's attention on CUDA beside torch's backends: one process, interleaved, random data.

Each implementation's calls over a ring of inputs (together well past the L2 cache for decode) are captured into one CUDA
graph; a round replays every implementation's graph once; the median over the rounds is a row's time, and a ratio is the
median of the rounds' ratios. Results are compared before anything is timed.

    python3 gpu_peers.py --library libkeyfold.so [--library NAME=other.so ...] --out peers.json [--cases prefill|decode|all] [--rounds 15]
"""
import argparse
import ctypes
import json
import math
import statistics
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

P, I64, I32, U32, F32, F64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_double


class Tensor(ctypes.Structure):
    _fields_ = [("data", P), ("device_type", I32), ("device_id", I32), ("ndim", I32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", P), ("strides", P), ("byte_offset", ctypes.c_uint64)]


class Options(ctypes.Structure):
    _fields_ = [("size", U32), ("threads", I32), ("device_type", I32), ("device_id", I32), ("isa", I32), ("fixed_split", I32), ("stream", P)]


class Rope(ctypes.Structure):
    _fields_ = [(n, I32) for n in ("pairing", "dims", "scaling", "reserved")] + [(f"d{i}", F64) for i in range(8)]


class Attention(ctypes.Structure):
    _fields_ = [("size", U32), ("kind", U32)] + [(n, ctypes.POINTER(Tensor)) for n in (
        "q", "k", "v", "o", "lse", "key_lengths", "positions", "alibi_slopes", "sinks", "bias", "mask")] + [
        ("scale", F32), ("softcap", F32), ("flags", U32), ("reserved", U32), ("window_left", I64), ("window_right", I64),
        ("rope", Rope)] + [(f"later{i}", P) for i in range(5)]


def tensor(t, keep):
    shape, strides = (I64 * t.dim())(*t.shape), (I64 * t.dim())(*t.stride())
    code = {torch.bfloat16: (4, 16), torch.float16: (2, 16), torch.float32: (2, 32)}[t.dtype]
    keep += [shape, strides]
    return Tensor(t.data_ptr(), 2, t.device.index or 0, t.dim(), code[0], code[1], 1, ctypes.cast(shape, P), ctypes.cast(strides, P), 0)


class Keyfold:
    def __init__(self, path, stream):
        self.lib = ctypes.CDLL(path)
        self.lib.kf_last_error.restype = ctypes.c_char_p
        options = Options()
        self.lib.kf_context_options_init(ctypes.byref(options))
        options.device_type, options.stream = 2, stream.cuda_stream
        self.context = P()
        self.check(self.lib.kf_context_create(ctypes.byref(options), ctypes.byref(self.context)))

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.kf_last_error().decode())

    def plan(self, q, k, v, o, causal):
        args, keep = Attention(), []
        self.lib.kf_attention_args_init(ctypes.byref(args))
        for name, t in zip("qkvo", (q, k, v, o)):
            setattr(args, name, ctypes.pointer(tensor(t, keep)))
        args.flags = 1 if causal else 0
        op, size = P(), ctypes.c_size_t()
        self.check(self.lib.kf_op_create(self.context, ctypes.byref(args), ctypes.byref(op)))
        self.check(self.lib.kf_op_workspace_size(op, ctypes.byref(size)))
        workspace = torch.empty(size.value + 64, dtype=torch.uint8, device="cuda")
        return lambda: self.check(self.lib.kf_op_run(op, P(workspace.data_ptr()), ctypes.c_size_t(size.value + 64)))


def sdpa(backend, q, k, v, causal):
    with sdpa_kernel([backend]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


PREFILL = [(1, 8, 8, 512, 64), (1, 8, 8, 2048, 64), (4, 32, 32, 4096, 128), (1, 8, 8, 8192, 128), (2, 16, 16, 16384, 64),
           (2, 16, 16, 4096, 64), (1, 16, 16, 16384, 128), (32, 16, 16, 512, 128), (2, 32, 8, 8192, 128), (1, 8, 8, 16384, 256)]
DECODE = [(1, 32, 32, 8192, 128), (1, 32, 8, 8192, 128), (1, 32, 8, 1024, 128), (16, 32, 8, 8192, 128), (64, 32, 8, 8192, 128),
          (1, 32, 8, 131072, 128)]


def capture(stream, calls, repeats):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                for call in calls:
                    call()
    return graph, repeats * len(calls)


def measure(builds, stream, shape, nq, causal, rounds, only):
    B, H, Hkv, N, D = shape
    bytes_per = 2 * B * Hkv * N * D * 2
    flops = 4 * B * H * nq * N * D / (2 if causal else 1)
    ring = 1 if nq > 1 else max(1, min(16, math.ceil(300e6 / bytes_per)))
    sets = []
    for _ in range(ring):
        q = torch.randn(B, H, nq, D, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(B, Hkv, N, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        sets.append((q, k, v, torch.full_like(q, float("nan"))))
    torch.cuda.synchronize()
    names = {**builds, "cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
    graphs, alive = {}, []
    repeats = max(1, int(300e-6 / max(flops / 4e14, bytes_per / 3e12, 5e-6) / ring))
    reference = None
    for name, backend in names.items():
        if only and name not in only and not isinstance(backend, Keyfold):
            continue
        try:
            if isinstance(backend, Keyfold):
                calls = [backend.plan(*s, causal) for s in sets]
            else:
                calls = [lambda s=s, b=backend: sdpa(b, *s[:3], causal) for s in sets]
            alive.append(calls)  # a graph keeps no workspace alive
            graphs[name] = capture(stream, calls, repeats)
            torch.cuda.synchronize()
            out = sets[0][3] if isinstance(backend, Keyfold) else sdpa(backend, *sets[0][:3], causal)
            torch.cuda.synchronize()
            if reference is None:
                reference = out.float()
            elif not torch.allclose(reference, out.float(), atol=2e-2, rtol=2e-2):
                print("DIFFERS", shape, causal, name, (reference - out.float()).abs().max().item(), flush=True)
        except Exception as error:  # a backend that refuses the shape
            print("left out", name, shape, str(error)[:150], flush=True)
    times = {name: [] for name in graphs}
    with torch.cuda.stream(stream):
        for r in range(rounds + 2):
            for name, (graph, count) in graphs.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                if r >= 2:
                    times[name].append(begin.elapsed_time(end) * 1e3 / count)
    row = {"op": "attention" if nq > 1 else "decode", "shape": [B, H, Hkv, nq, N, D], "dtype": "bf16", "causal": bool(causal),
           "times_us": {n: round(statistics.median(t), 3) for n, t in times.items()},
           "ratio_lower_quartile": {n: round(statistics.quantiles([a / b for a, b in zip(times[n], times["keyfold"])], n=4)[0], 4)
                                    for n in times if n != "keyfold" and "keyfold" in times}}
    scale, unit = (flops / 1e6, "TFLOP/s") if nq > 1 else (bytes_per / 1e6, "TB/s")
    print(f"{'prefill' if nq > 1 else 'decode':8}{str(shape):26}{'causal' if causal else 'full':7}" + "".join(
        f"{n} {t:8.1f} us {scale / t:6.1f} {unit}   " for n, t in row["times_us"].items()) + str(row["ratio_lower_quartile"]), flush=True)
    return row


def ceilings(stream):
    """Copy and matrix product in this process, for the roofline."""
    a, b = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"), torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = {}
    for name, call in (("copy", lambda: b.copy_(a)), ("product", lambda: x @ y)):
        for _ in range(3):
            call()
        t = []
        for _ in range(10):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(), call(), end.record(), end.synchronize()
            t.append(begin.elapsed_time(end) * 1e3)
        found[name] = statistics.median(t)
    return {"copy_TB_s": 2 * (1 << 30) / found["copy"] / 1e6, "product_TFLOP_s": 2 * 8192**3 / found["product"] / 1e6}


def isolate(options):
    rows = []
    for cases, shapes in (("prefill", PREFILL), ("decode", DECODE)):
        for shape in shapes:
            if options.cases not in ("all", cases) or options.match not in str(shape):
                continue
            command = [sys.executable, __file__, "--cases", cases, "--match", str(shape), "--out", options.out + ".part",
                       "--rounds", str(options.rounds), "--only", options.only, "--commit", options.commit]
            for library in options.library:
                command += ["--library", library]
            if subprocess.run(command).returncode == 0:
                with open(options.out + ".part") as file:
                    rows += json.load(file)
            with open(options.out, "w") as file:
                json.dump(rows, file, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True, action="append", help="a build of keyfold, or NAME=path; the first is keyfold")
    parser.add_argument("--out", default="peers.json")
    parser.add_argument("--cases", default="all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="peers to run, separated by commas")
    parser.add_argument("--isolate", action="store_true", help="a process for each shape")
    parser.add_argument("--match", default="", help="shapes to run: a part of their text, such as '8, 8192, 128'")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    if options.isolate:
        return isolate(options)
    stream = torch.cuda.Stream()
    builds = {}
    for place in options.library:
        name, _, path = place.rpartition("=")
        builds[name or "keyfold"] = Keyfold(path, stream)
    rows = []
    found = ceilings(stream)
    machine = torch.cuda.get_device_name(0) + ", torch " + torch.__version__
    print(machine, found, flush=True)
    only = [n for n in options.only.split(",") if n]
    jobs = []
    if options.cases in ("all", "prefill"):
        jobs += [(s, s[3], causal) for s in PREFILL for causal in (False, True)]
    if options.cases in ("all", "decode"):
        jobs += [(s, 1, False) for s in DECODE]
    for shape, nq, causal in jobs:
        if options.match not in str(shape):
            continue
        row = measure(builds, stream, shape, nq, causal, options.rounds, only)
        row.update(commit=options.commit, machine=machine, **found)
        rows.append(row)
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
