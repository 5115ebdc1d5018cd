# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's wrappers step by step, beside keyfold over the same pages gathered to dense keys:

    python -m studies.flashinfer_walkthrough.walkthrough --json reports/h200/studies/flashinfer_walkthrough.json

1 decode over pages, 2 ragged prefill, both planned and run, timed apart; then one experiment for each question: 3 what is
compiled anew, 4 when a plan no longer holds, 5 what the workspace is for. Each step prints what it found; one that fails
says so and the next goes on.
"""

import argparse
import json
import math
import sys
import time
import traceback

import torch

PAGE, H, HKV, D = 16, 32, 8, 128  # a toy cache: two sequences of four pages each
LENGTHS = [64, 57]  # the second's last page holds 9 keys
WORKSPACE = 128 << 20  # bytes, as FlashInfer's documentation advises
DTYPE = torch.bfloat16


def flashinfer():
    import flashinfer as library

    return library


def ms(function):
    """(result, milliseconds) on the host, the device waited for."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return result, (time.perf_counter() - begin) * 1e3


def median_us(function, count=50):
    times = sorted(ms(function)[1] for _ in range(count))
    return round(times[count // 2] * 1e3, 1)


class Cache:
    """Pages of K and V in a pool, in an order of their own, and the same keys as dense arrays."""

    def __init__(self, lengths, page=PAGE, hkv=HKV, room=0):
        self.lengths, self.page, self.hkv = list(lengths), page, hkv
        self.pages = [(length + room + page - 1) // page for length in lengths]
        count = sum(self.pages)
        self.k, self.v = (torch.randn(count, page, hkv, D, device="cuda", dtype=DTYPE) for _ in range(2))
        self.ids = torch.randperm(count, device="cuda").int()

    def table(self):
        """indptr, indices and last_page_len of FlashInfer, for the present lengths."""
        used = [(length + self.page - 1) // self.page for length in self.lengths]
        starts, owned = [0], []
        for sequence, count in enumerate(used):
            first = sum(self.pages[:sequence])
            owned.append(self.ids[first : first + count])
            starts.append(starts[-1] + count)
        last = [length - (count - 1) * self.page for length, count in zip(self.lengths, used)]
        return int32(starts), torch.cat(owned), int32(last)

    def dense(self):
        """K and V [B, Hkv, longest, D], and the lengths."""
        longest = max(self.lengths)
        k, v = (torch.zeros(len(self.lengths), self.hkv, longest, D, device="cuda", dtype=DTYPE) for _ in range(2))
        for sequence, length in enumerate(self.lengths):
            first = sum(self.pages[:sequence])
            for pool, dense in ((self.k, k), (self.v, v)):
                rows = pool[self.ids[first : first + self.pages[sequence]].long()].reshape(-1, self.hkv, D)[:length]
                dense[sequence, :, :length] = rows.transpose(0, 1)
        return k, v, int32(self.lengths)


def int32(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def ours(cache, q, **options):
    """keyfold over the dense keys: (o [B, H, D], lse [B, H], natural log)."""
    import keyfold

    k, v, lengths = cache.dense()
    o, lse = keyfold.attention(q[:, :, None], k, v, key_lengths=lengths, return_lse=True, **options)
    return o[:, :, 0], lse[:, :, 0]


def decoder(library, workspace=None, tensor_cores=False):
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda") if workspace is None else workspace
    return library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)


def plan(wrapper, cache, h=H, **options):
    wrapper.plan(*cache.table(), h, cache.hkv, D, cache.page, q_data_type=DTYPE, kv_data_type=DTYPE, **options)


def off(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


# ------------------------------------------------------------------------------------------------------------------ steps


def decode(library):
    cache, q = Cache(LENGTHS), torch.randn(2, H, D, device="cuda", dtype=DTYPE)
    wrapper = decoder(library)
    _, first_plan = ms(lambda: plan(wrapper, cache))
    (o, lse), first_run = ms(lambda: wrapper.run(q, (cache.k, cache.v), return_lse=True))
    theirs, sums = ours(cache, q)
    return {
        "plan, the first (loads or compiles the module), ms": round(first_plan, 1),
        "run, the first, ms": round(first_run, 2),
        "plan, later, us": median_us(lambda: plan(wrapper, cache)),
        "run, later, us": median_us(lambda: wrapper.run(q, (cache.k, cache.v))),
        "relative difference from keyfold": off(o, theirs),
        "lse / keyfold's lse": round(float((lse / sums).median()), 5),
        "1 / ln 2": round(1 / math.log(2), 5),
        "largest |lse ln 2 - keyfold's lse|": float((lse * math.log(2) - sums).abs().max()),
    }


def prefill(library):
    """Ragged: each sequence has its own number of queries and keys, in one array without gaps."""
    import keyfold

    queries, keys = [5, 17], LENGTHS
    q = torch.randn(sum(queries), H, D, device="cuda", dtype=DTYPE)
    k, v = (torch.randn(sum(keys), HKV, D, device="cuda", dtype=DTYPE) for _ in range(2))
    starts = [int32([0, x[0], sum(x)]) for x in (queries, keys)]
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")
    wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa2")

    def planned():
        wrapper.plan(*starts, H, HKV, D, causal=True, q_data_type=DTYPE, kv_data_type=DTYPE)

    _, first_plan = ms(planned)
    o, first_run = ms(lambda: wrapper.run(q, k, v))
    worst, at = 0.0, (0, 0)
    for n, m in zip(queries, keys):
        mine = [x[i : i + c].transpose(0, 1)[None] for x, i, c in ((q, at[0], n), (k, at[1], m), (v, at[1], m))]
        theirs = keyfold.attention(*mine, causal=True)[0].transpose(0, 1)
        worst, at = max(worst, off(o[at[0] : at[0] + n], theirs)), (at[0] + n, at[1] + m)
    return {
        "plan, the first (loads or compiles the module), ms": round(first_plan, 1),
        "run, the first, ms": round(first_run, 2),
        "plan, later, us": median_us(planned),
        "run, later, us": median_us(lambda: wrapper.run(q, k, v)),
        "relative difference from keyfold, causal from the bottom right": worst,
    }


def modules(library):
    """Names of the modules that a change would need, without compiling them: the name is what is compiled in."""
    from flashinfer.jit.attention import gen_batch_decode_module

    bf16, fp16, i32 = torch.bfloat16, torch.float16, torch.int32
    base = {
        "q": bf16,
        "kv": bf16,
        "o": bf16,
        "index": i32,
        "qk": 128,
        "vo": 128,
        "positions": 0,
        "window": False,
        "softcap": False,
    }
    changes = [
        {},
        {"q": fp16, "kv": fp16, "o": fp16},
        {"kv": torch.float8_e4m3fn},
        {"qk": 64, "vo": 64},
        {"positions": 1},
        {"window": True},
        {"softcap": True},
    ]
    named = {}
    for change in changes:
        said = ", ".join(f"{k} {v}" for k, v in change.items()) or "bf16, head dim 128"
        named[said] = gen_batch_decode_module(*{**base, **change}.values()).name
    return {"a name for each": len(set(named.values())) == len(named), **named}


def compiled(library):
    """How many decode modules there are in the cache after a change of what a plan is given: a compilation adds one."""
    from flashinfer.jit import env

    def count():
        return sum(1 for path in env.FLASHINFER_JIT_DIR.glob("batch_decode*/*.so"))

    found = {"modules before": count()}
    for name, cache, h, options in (
        ("7 sequences instead of 2", Cache([64] * 7), H, {}),
        ("lengths of 1 and 1000", Cache([1, 1000]), H, {}),
        ("pages of 8 keys", Cache(LENGTHS, page=8), H, {}),
        ("64 heads on 8", Cache(LENGTHS), 64, {}),
        ("16 KV heads", Cache(LENGTHS, hkv=16), H, {}),
        ("a window of 32 keys", Cache(LENGTHS), H, {"window_left": 31}),
        ("a window of 16 keys", Cache(LENGTHS), H, {"window_left": 15}),
    ):
        wrapper = decoder(library)
        _, took = ms(lambda: plan(wrapper, cache, h, **options))  # noqa: B023
        q = torch.randn(len(cache.lengths), h, D, device="cuda", dtype=DTYPE)
        error = off(wrapper.run(q, (cache.k, cache.v)), ours(cache, q, **options)[0])
        found[name] = {"modules": count(), "plan, ms": round(took, 2), "difference": error}
    return found


def stale(library):
    """Each sequence grows by a key past its page, and the plan stays: the new keys are not seen. Then plan again."""
    cache, q = Cache([64, 48], room=16), torch.randn(2, H, D, device="cuda", dtype=DTYPE)
    wrapper = decoder(library)
    plan(wrapper, cache)
    before = off(wrapper.run(q, (cache.k, cache.v)), ours(cache, q)[0])
    cache.lengths = [length + 1 for length in cache.lengths]
    old = off(wrapper.run(q, (cache.k, cache.v)), ours(cache, q)[0])
    plan(wrapper, cache)
    new = off(wrapper.run(q, (cache.k, cache.v)), ours(cache, q)[0])
    other = Cache(cache.lengths, room=16)
    other.ids, other.pages = cache.ids, cache.pages
    layer = off(wrapper.run(q, (other.k, other.v)), ours(other, q)[0])
    return {
        "difference with the plan of these lengths": before,
        "a key more each, old plan": old,
        "planned again": new,
        "the same plan, another layer's pages": layer,
    }


def smallest(library, cache):
    """The smallest float workspace, in KiB, that plan takes for these lengths, and what a smaller one is told."""

    def refusal(kib):
        try:
            plan(decoder(library, torch.empty(kib << 10, dtype=torch.uint8, device="cuda")), cache)
            return ""
        except Exception as error:
            return " ".join(str(error).split())[:160]

    refused, taken, said = 0, WORKSPACE >> 10, ""
    while taken - refused > 1:
        middle = (refused + taken) // 2
        answer = refusal(middle)
        refused, taken, said = (middle, taken, answer) if answer else (refused, middle, said)
    return taken, said


def workspace(library):
    """The bytes of the float workspace that a run writes: an output and an LSE for each part of a sequence; the smallest that plan takes."""
    found = {"bytes of a part: heads x (D + 1) x 4": H * (D + 1) * 4}
    for name, lengths in (
        ("one sequence of 8192 keys", [8192]),
        ("64 sequences of 512 keys", [512] * 64),
        ("256 sequences of 64 keys", [64] * 256),
        ("256 sequences of 8192 keys", [8192] * 256),
    ):
        cache = Cache(lengths)
        memory = torch.full((WORKSPACE,), 0xAB, dtype=torch.uint8, device="cuda")
        wrapper = decoder(library, memory)
        plan(wrapper, cache)
        planned = int((memory != 0xAB).sum())
        q = torch.randn(len(lengths), H, D, device="cuda", dtype=DTYPE)
        wrapper.run(q, (cache.k, cache.v))
        torch.cuda.synchronize()
        ran = int((memory != 0xAB).sum())
        kib, said = smallest(library, cache)
        wrapper = decoder(library, torch.empty(kib << 10, dtype=torch.uint8, device="cuda"))
        plan(wrapper, cache)
        error = off(wrapper.run(q, (cache.k, cache.v)), ours(cache, q)[0])
        found[name] = {"bytes after plan": planned, "bytes after run": ran, "smallest that plan takes, KiB": kib,
                       "difference with that": error, "a smaller one": said or "the least that was tried",
                       "run, us": median_us(lambda: wrapper.run(q, (cache.k, cache.v)))}  # fmt: skip  # noqa: B023
    return found


STEPS = [decode, prefill, modules, compiled, stale, workspace]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--steps", default=",".join(step.__name__ for step in STEPS))
    options = parser.parse_args()
    library = flashinfer()
    from keyfold.peers.place import Place
    from keyfold.peers.report import commit

    torch.manual_seed(0)
    source = {"machine": Place().machine, "commit": commit(), "flashinfer": library.__version__,
              "command": "python -m studies.flashinfer_walkthrough.walkthrough " + " ".join(sys.argv[1:])}  # fmt: skip
    rows, failed = [], 0
    for step in STEPS:
        if step.__name__ not in options.steps.split(","):
            continue
        if step is not modules and not torch.cuda.is_available():
            print(f"-- {step.__name__}: left out, no CUDA device")
            continue
        try:
            found = step(library)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"}
        rows.append({"op": "flashinfer", "step": step.__name__, "found": found, **source})
        print(f"-- {step.__name__}: {step.__doc__ or ''}", flush=True)
        for name, value in found.items():
            print(f"   {name}: {value}", flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)
    print(f"{len(rows)} steps, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
