#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cycles that 512-bit instructions take when none waits for another: alone, and in the mixes that the row kernels are made of.

    python3 scripts/throughput.py [--json reports/zen4/throughput.json]

A mix is what 32 elements need (two vectors). What a loop takes beyond it is latency. Cycles are counted by a chain of integer additions, one a cycle."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from compare_llama import commit, machine

INSTRUCTIONS = {
    "fma": "vfmadd213ps %%zmm{0},%%zmm30,%%zmm{0}",
    "mul": "vmulps %%zmm30,%%zmm31,%%zmm{0}",
    "add": "vaddps %%zmm30,%%zmm31,%%zmm{0}",
    "shift": "vpslld $16,%%zmm31,%%zmm{0}",
    "and": "vpandd %%zmm30,%%zmm31,%%zmm{0}",
    "reduce": "vreduceps $9,%%zmm31,%%zmm{0}",
    "scalef": "vscalefps %%zmm30,%%zmm31,%%zmm{0}",
    "rcp14": "vrcp14ps %%zmm31,%%zmm{0}",
    "div": "vdivps %%zmm30,%%zmm31,%%zmm{0}",
    "to bf16": "vcvtne2ps2bf16 %%zmm30,%%zmm31,%%zmm{0}",
    "permute": "vpermw %%zmm30,%%zmm31,%%zmm{0}",
    "from fp16": "vcvtph2ps %%ymm31,%%zmm{0}",
    "store": "vmovups %%zmm31,(%1)",
}
POWERS = ["shift", "and", "fma", "fma", "reduce", "reduce"] + ["fma"] * 8 + ["scalef"] * 2
MIXES = {
    "swiglu": ["shift"] * 2 + ["and"] * 2 + ["mul"] * 4 + ["reduce"] * 2 + ["fma"] * 8 + ["scalef"] * 2 + ["add"] * 2 + ["div"] * 2
              + ["to bf16", "permute", "store"],
    "softmax, sum": POWERS + ["add", "add", "store", "store"],
    "softmax, writing": ["mul", "mul", "to bf16", "permute", "store"],
    "4 rows, fp16": ["from fp16"] + ["fma"] * 4,
}
REPEATED = 8

PROGRAM = """#include <stdint.h>
#include <stdio.h>
#include <x86intrin.h>
static char memory[64] __attribute__((aligned(64)));
static double cycle(void) { // of the time stamp counter
    long n = 400000;
    uint64_t begin = __rdtsc();
    __asm__ volatile("1: add $1,%%rax; add $1,%%rax; add $1,%%rax; add $1,%%rax; dec %0; jnz 1b" : "+r"(n) : : "rax");
    return (double)(__rdtsc() - begin) / 1600000;
}
"""
FUNCTION = """static double mix{0}(void) {{
    long n = 20000;
    uint64_t begin = __rdtsc();
    __asm__ volatile("1: {1}; dec %0; jnz 1b" : "+r"(n) : "r"(memory) : "memory", {2});
    return (double)(__rdtsc() - begin) / 20000 / {3};
}}
"""
CLOBBERS = ", ".join(f'"xmm{i}"' for i in range(32))


def program(mixes):
    text, calls = PROGRAM, ""
    for number, mix in enumerate(mixes):
        body = [INSTRUCTIONS[name].format((i + j * len(mix)) % 28) for j in range(REPEATED) for i, name in enumerate(mix)]
        text += FUNCTION.format(number, "; ".join(body), CLOBBERS, REPEATED)
        calls += f"best = one = 1e9; for (int i = 0; i < 15; i++) {{ one = least(one, cycle()); best = least(best, mix{number}()); }} printf(\"%.2f\\n\", best / one);\n"
    return text + "static double least(double a, double b) { return a < b ? a : b; }\nint main(void) {\ndouble best, one;\ncycle();\n" + calls + "}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    o = parser.parse_args()
    mixes = {**{name: [name] for name in INSTRUCTIONS}, **MIXES}
    with tempfile.TemporaryDirectory() as folder:
        source, binary = pathlib.Path(folder, "mixes.c"), pathlib.Path(folder, "mixes")
        source.write_text(program(mixes.values()))
        subprocess.run(["cc", "-O1", "-mavx512f", "-o", binary, source], check=True)
        cycles = subprocess.run([binary], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    rows = [{"what": name, "cycles": float(c), "instructions": len(mix)} for (name, mix), c in zip(mixes.items(), cycles)]
    for row in rows:
        print(f"{row['what']:20} {row['cycles']:6.2f}")
    if o.json:
        report = {"command": " ".join(["python3", *sys.argv]), "commit": commit(), "machine": machine(), "rows": rows}
        pathlib.Path(o.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
