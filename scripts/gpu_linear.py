# SPDX-License-Identifier: Apache-2.0
"""Times keyfold's linear layer on CUDA beside a kernel that only reads the same bytes and beside torch's matrix product.

Each implementation's calls over a ring of weights (together well past the L2 cache) are captured into one CUDA graph, one after
another as in a model's step; a round replays every implementation's graph once; a row's time is the median over the rounds of a
graph's time a call. `read` is the best of several read kernels, each with and without dependent launch. `ratios`
are the lower quartiles of the rounds' ratios to the first library's time.

    python3 gpu_linear.py --library libkeyfold.so [--library NAME=other.so ...] --read libread.so --out peers-linear.json
                          [--models tinyllama,llama32,smollm2] [--types bf16,q4_0] [--tokens 1,4,8,512] [--rounds 15] [--step]
"""
import argparse
import ctypes
import json
import math
import os
import statistics
import sys

import torch

P, I64, I32, U32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint32
LAYOUT, HEADER = 0x4B460002, 128  # of packed weights; src/cuda/fragments.h


class Tensor(ctypes.Structure):
    _fields_ = [("data", P), ("device_type", I32), ("device_id", I32), ("ndim", I32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", P), ("strides", P), ("byte_offset", ctypes.c_uint64)]


class Weight(ctypes.Structure):
    _fields_ = [("type", I32), ("packed", I32), ("rows", I64), ("cols", I64), ("data", P), ("bytes", ctypes.c_size_t),
                ("row_bytes", I64), ("device_type", I32), ("device_id", I32)]


class Linear(ctypes.Structure):
    _fields_ = [("size", U32), ("kind", U32), ("x", ctypes.POINTER(Tensor)), ("weight", ctypes.POINTER(Weight)),
                ("bias", P), ("y", ctypes.POINTER(Tensor)), ("activations", I32), ("reserved", I32)]


TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24),
         "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "bf16": (30, 1, 2)}
MODELS = {"tinyllama": [(2048, 2048), (256, 2048), (5632, 2048), (2048, 5632), (32000, 2048)],
          "llama32": [(2048, 2048), (512, 2048), (8192, 2048), (2048, 8192), (128256, 2048)],
          "smollm2": [(576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576)]}
# One layer's products as a model fuses them, the number of layers, the head.
STEPS = {"tinyllama": ([(2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)], 22, (32000, 2048)),
         "llama32": ([(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)], 16, (128256, 2048)),
         "smollm2": ([(960, 576), (576, 576), (3072, 576), (576, 1536)], 30, (49152, 576))}


def tensor(t, keep):
    shape, strides = (I64 * t.dim())(*t.shape), (I64 * t.dim())(*t.stride())
    code = {torch.bfloat16: (4, 16), torch.float16: (2, 16), torch.float32: (2, 32)}[t.dtype]
    keep += [shape, strides]
    return Tensor(t.data_ptr(), 2, 0, t.dim(), code[0], code[1], 1, ctypes.cast(shape, P), ctypes.cast(strides, P), 0)


def load(path):
    return ctypes.CDLL(os.path.abspath(path))  # the loader looks for a bare name in the system's folders alone


class Keyfold:
    def __init__(self, path, stream):
        self.lib, self.options = load(path), (ctypes.c_char * 256)()
        self.lib.kf_last_error.restype = ctypes.c_char_p
        self.lib.kf_context_options_init(ctypes.byref(self.options))
        ctypes.cast(ctypes.byref(self.options, 8), ctypes.POINTER(I32))[0] = 2  # device.type
        ctypes.cast(ctypes.byref(self.options, 24), ctypes.POINTER(P))[0] = stream.cuda_stream
        self.context = P()
        self.check(self.lib.kf_context_create(ctypes.byref(self.options), ctypes.byref(self.context)))

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.kf_last_error().decode())

    def plan(self, x, weight, kind, N, K, y, int8=False):
        args, keep = Linear(), []
        self.lib.kf_linear_args_init(ctypes.byref(args))
        dense = kind in ("f32", "f16", "bf16")
        w = Weight(TYPES[kind][0], 0 if dense else LAYOUT, N, K, weight.data_ptr(), weight.numel() * weight.element_size(), 0, 2, 0)
        args.x, args.y, args.weight = ctypes.pointer(tensor(x, keep)), ctypes.pointer(tensor(y, keep)), ctypes.pointer(w)
        args.activations = int(int8)
        op, size = P(), ctypes.c_size_t()
        self.check(self.lib.kf_op_create(self.context, ctypes.byref(args), ctypes.byref(op)))
        self.check(self.lib.kf_op_workspace_size(op, ctypes.byref(size)))
        workspace = torch.empty(size.value + 64, dtype=torch.uint8, device="cuda")
        return lambda: self.check(self.lib.kf_op_run(op, P(workspace.data_ptr()), ctypes.c_size_t(size.value + 64)))


def random_weight(kind, N, K):
    if kind == "bf16":
        return torch.randn(N, K, device="cuda").to(torch.bfloat16)
    if kind in ("f16", "f32"):
        return torch.randn(N, K, device="cuda").to(torch.float16 if kind == "f16" else torch.float32)
    size = N * K // TYPES[kind][1] * TYPES[kind][2] + HEADER
    return torch.randint(0, 59, (size,), dtype=torch.uint8, device="cuda")  # bytes that are no fp16 NaN


def capture(stream, calls):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    return graph


def replay(stream, graphs, rounds):
    times = {name: [] for name in graphs}
    with torch.cuda.stream(stream):
        for r in range(rounds + 2):
            for name, graph in graphs.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(stream)
                graph.replay()
                end.record(stream)
                end.synchronize()
                if r >= 2:
                    times[name].append(begin.elapsed_time(end) * 1e3)
    return times


def lower_quartile(values):
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def read_calls(library, stream, weights, sink):
    calls = {}
    for blocks, threads, unroll in ((132, 512, 8), (264, 256, 8), (264, 512, 4), (264, 512, 8), (528, 256, 4), (528, 256, 8), (1056, 256, 4)):
        for dependent in (0, 1):
            name = f"read{'+' if dependent else ''} {blocks}x{threads}x{unroll}"
            calls[name] = [lambda w=w, b=blocks, t=threads, u=unroll, d=dependent: library.read_launch(
                P(w.data_ptr()), ctypes.c_size_t(w.numel() * w.element_size() // 16 * 16), P(sink.data_ptr()),
                P(stream.cuda_stream), b, t, u, d) for w in weights]
    return calls


def measure(libraries, read, stream, kind, shapes, T, dtype, rounds, peers, int8=False):
    """shapes: of the products in a row (repeated over a ring where it is one). Returns microseconds of all, by name."""
    N, K = shapes[0]
    total = sum(N * K for N, K in shapes) * TYPES[kind][2] / TYPES[kind][1]
    ring = max(1, min(256, math.ceil(250e6 / total))) if len(shapes) == 1 else 1
    shapes = shapes * ring
    repeats = max(1, int(24 / len(shapes)))
    weights = [random_weight(kind, N, K) for N, K in shapes]
    xs = {K: torch.randn(T, K, device="cuda").to(dtype) for _, K in shapes}
    ys = {N: torch.empty(T, N, device="cuda", dtype=dtype) for N, _ in shapes}
    sink = torch.zeros(4, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    calls = {}
    for name, library in libraries.items():
        try:
            calls[name] = [library.plan(xs[K], w, kind, N, K, ys[N], int8) for w, (N, K) in zip(weights, shapes)]
        except Exception as error:
            print("left out", name, kind, N, K, T, str(error)[:150], flush=True)
    if T <= 8 and read:
        calls.update(read_calls(read, stream, weights, sink))
    if peers and dtype == torch.bfloat16:
        dense = weights if kind == "bf16" else None
        if dense:
            calls["torch"] = [lambda w=w, K=K: torch.matmul(xs[K], w.t()) for w, (N, K) in zip(dense, shapes)]
    graphs = {name: capture(stream, c * repeats) for name, c in calls.items()}
    torch.cuda.synchronize()
    count = ring * repeats
    rounds_of = replay(stream, graphs, rounds)
    times = {name: statistics.median(t) / count for name, t in rounds_of.items()}
    if "torch" in calls and libraries:
        with torch.cuda.stream(stream):
            y = torch.matmul(xs[K], weights[0].t()).float()
            calls[next(iter(libraries))][0]()
            stream.synchronize()
        if len(shapes) == ring and not torch.allclose(ys[N].float(), y, atol=0.02 * math.sqrt(K), rtol=2e-2):
            print("DIFFERS", kind, N, K, T, (ys[N].float() - y).abs().max().item(), flush=True)
    out = {name: t for name, t in times.items() if not name.startswith("read")}
    for prefix in ("read ", "read+ "):
        best = [(t, name) for name, t in times.items() if name.startswith(prefix)]
        if best:
            out[prefix.strip()] = min(best)[0]
            out[prefix.strip() + "_kernel"] = min(best)[1].split()[1]
            rounds_of[prefix.strip()] = rounds_of[min(best)[1]]
    first = next((name for name in libraries if name in rounds_of), None)
    others = [name for name in out if first and name != first and name in rounds_of]
    ratios = {name: lower_quartile([a / b for a, b in zip(rounds_of[name], rounds_of[first])]) for name in others}
    return out, total, ratios


def named(key):
    """In the report."""
    return key.replace("read+", "read_dependent")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", action="append", required=True)
    parser.add_argument("--read")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="")
    parser.add_argument("--models", default="tinyllama")
    parser.add_argument("--types", default="bf16,q4_0")
    parser.add_argument("--tokens", default="1")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--step", action="store_true", help="all products of a model's step in a row")
    parser.add_argument("--int8", action="store_true")
    options = parser.parse_args()
    stream = torch.cuda.Stream()
    libraries = {}
    for item in options.library:
        name, path = item.split("=", 1) if "=" in item else ("keyfold", item)
        libraries[name] = Keyfold(path, stream)
    read = load(options.read) if options.read else None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[options.dtype]
    rows = []
    for model in options.models.split(","):
        for kind in options.types.split(","):
            for T in map(int, options.tokens.split(",")):
                cases = [[shape] for shape in MODELS[model]]
                if options.step:
                    layer, layers, head = STEPS[model]
                    cases = [layer * layers + [head]]
                for shapes in cases:
                    N, K = shapes[0]
                    if kind.endswith("_k") and any(K % 256 for _, K in shapes):
                        continue
                    times, total, ratios = measure(libraries, read, stream, kind, shapes, T, dtype, options.rounds, True, options.int8)
                    torch.cuda.empty_cache()
                    name = f"{N}x{K}" if not options.step else "step"
                    numbers = {k: v for k, v in times.items() if not k.endswith("_kernel")}
                    shares = " ".join(f"{k} {numbers[r] / v:.2f}" for r in ("read", "read+") if r in numbers
                                      for k, v in numbers.items() if k in libraries)
                    rate = f"{total / min(numbers[k] for k in libraries if k in numbers) / 1e6:.2f} TB/s"
                    flops = sum(2 * N * K * T for N, K in shapes)
                    if T > 8:
                        rate = f"{flops / min(numbers[k] for k in libraries if k in numbers) / 1e6:.0f} TFLOP/s"
                    print(f"{model} {kind} {name} T={T} {options.dtype}:", " ".join(f"{k} {v:.2f}" for k, v in numbers.items()), "|", shares, "|", rate,
                          flush=True)
                    rows.append({"op": "linear", "model": model, "type": kind, "shape": name, "tokens": T, "dtype": options.dtype, "causal": False, "int8": options.int8,
                                 "bytes": total, "times_us": {named(k): round(v, 3) for k, v in numbers.items()},
                                 "ratios": {named(k): round(v, 4) for k, v in ratios.items()}, "rounds": options.rounds,
                                 "read_kernel": times.get("read_kernel"), "read_dependent_kernel": times.get("read+_kernel"),
                                 "commit": options.commit, "machine": torch.cuda.get_device_name(), "command": " ".join(sys.argv)})
                    if options.out:  # all that there are after each row: a run cut off has what it measured
                        with open(options.out, "w") as f:
                            f.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
