#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""keyfold beside llama.cpp (through llama-cpp-python) on the same GGUF file: a prompt of 512 tokens, and tokens decoded one at a time
with 0 and with 2048 tokens before them. The two take turns, a round each, in one run; the table shows medians and the median of the
rounds' ratios.

    pip install llama-cpp-python==0.3.36
    python3 scripts/compare_llama.py MODEL.gguf [--threads 2] [--rounds 5] [--keyfold build/keyfold] [--json FILE]

llama.cpp: n_batch = n_ubatch = 512, flash attention on, f16 KV cache. keyfold: its defaults (exact activations, fp16 KV cache)."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

PROMPT, DEPTH, TOKENS = 512, 2048, 64


class Llama:
    def __init__(self, path, threads):
        import llama_cpp

        self.version = llama_cpp.__version__
        self.llm = llama_cpp.Llama(path, n_ctx=DEPTH + PROMPT, n_batch=PROMPT, n_ubatch=PROMPT, n_threads=threads, n_threads_batch=threads,
                                   flash_attn=True, verbose=False)
        vocabulary = self.llm.n_vocab()
        self.ids = [(7919 * i + 17) % (vocabulary - 100) + 50 for i in range(DEPTH + PROMPT)]

    def rate(self, depth, count, one_by_one):
        self.llm.reset()
        if depth:
            self.llm.eval(self.ids[:depth])
        start = time.perf_counter()
        if one_by_one:
            for i in range(count):
                self.llm.eval([self.ids[depth + i]])
        else:
            self.llm.eval(self.ids[depth : depth + count])
        return count / (time.perf_counter() - start)

    def round(self):
        return {"prefill": self.rate(0, PROMPT, False), "decode_0": self.rate(0, TOKENS, True), "decode_2048": self.rate(DEPTH, TOKENS, True)}


def keyfold_round(command, path, threads, seconds):
    """One pass of `keyfold bench model`: rows of op prefill and decode."""
    out = subprocess.run([command, "bench", "model", "-m", path, "--threads", str(threads), "--seconds", str(seconds), "--json"],
                         check=True, capture_output=True, text=True).stdout
    rates = {}
    for row in json.loads(out):
        name = "prefill" if row["op"] == "prefill" else f"decode_{row['shape']['depth']}"
        rates[name] = row["tokens_per_s"]
    return rates


def machine():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def commit():
    try:
        return subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of keyfold's time per row and round")
    parser.add_argument("--keyfold", default="build/keyfold")
    parser.add_argument("--json")
    o = parser.parse_args()
    try:
        llama = Llama(o.model, o.threads)
    except ImportError:
        sys.exit("llama-cpp-python is not installed: pip install llama-cpp-python==0.3.36")
    rounds = []
    for i in range(o.rounds):
        rounds.append({"llama": llama.round(), "keyfold": keyfold_round(o.keyfold, o.model, o.threads, o.seconds)})
        print(f"round {i + 1} of {o.rounds}", file=sys.stderr)
    rows = []
    print(f"tokens/s, {o.threads} threads, {machine()}; llama-cpp-python {llama.version}\n")
    print("| work | keyfold | llama.cpp | ratio (lower quartile) |\n|---|---|---|---|")
    for work in rounds[0]["llama"]:
        ours = [r["keyfold"][work] for r in rounds]
        theirs = [r["llama"][work] for r in rounds]
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        row = {"work": work, "keyfold": statistics.median(ours), "llama_cpp": statistics.median(theirs), "ratio": statistics.median(ratios),
               "ratio_lower_quartile": ratios[len(ratios) // 4], "rounds": o.rounds}
        rows.append(row)
        print(f"| {work} | {row['keyfold']:.0f} | {row['llama_cpp']:.0f} | {row['ratio']:.2f} ({row['ratio_lower_quartile']:.2f}) |")
    if o.json:
        with open(o.json, "w") as f:
            command = f"python3 scripts/compare_llama.py {os.path.basename(o.model)} --threads {o.threads} --rounds {o.rounds} --seconds {o.seconds:g}"
            json.dump({"command": command, "commit": commit(), "machine": machine(), "threads": o.threads,
                       "llama_cpp_python": llama.version, "rows": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
