#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures this machine's reports: the speed table, and where a model and llama-cpp-python are there, the model beside llama.cpp. Every file
names its command, commit and machine.

    python3 scripts/measure.py --bench "softmax --dtype fp32,bf16" --name rows [--times 5]      some rows, several times, instead of the table
    python3 scripts/measure.py [--model FILE] [--keyfold build/keyfold] [--seconds 2] [--out reports/NAME]

Run it on a machine that does nothing else. It prints the tables that it wrote."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from compare_llama import commit, machine


def run(command):
    print("$ " + " ".join(command), file=sys.stderr)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def write(path, command, rows):
    report = {"command": " ".join(command), "commit": commit(), "machine": machine(), "rows": rows}
    path.write_text(json.dumps(report, indent=1) + "\n")


def shape_text(shape):
    return ",".join(str(v) for v in shape.values())


def table(rows):
    lines = ["| op | dtype | ISA | shape | time, us | GFLOP/s | GB/s | share of the roofline |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        causal = " causal" if r["causal"] and r["op"] == "attention" else ""
        lines.append(f"| {r['op']}{causal} | {r['dtype']} | {r['isa']} | {shape_text(r['shape'])} | {r['time_us']:.0f} "
                     f"({r['time_us_min']:.0f}-{r['time_us_max']:.0f}) | {r['gflops']:.0f} | {r['gbps']:.1f} | {100 * r['share']:.0f} % of {r['ceiling_name']} |")
    return "\n".join(lines) + "\n"


def repeat(o, out):
    """Each --bench, o.times times in turn; the file has all rows, the table the median and best share of each."""
    commands = [[o.keyfold, "bench", *text.split(), "--seconds", o.seconds, "--json"] for text in o.bench]
    rows = [row for _ in range(o.times) for command in commands for row in json.loads(run(command))]
    report = {"commands": [" ".join(c) for c in commands], "times": o.times, "commit": commit(), "machine": machine(), "rows": rows}
    (out / f"{o.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = ["| op | dtype | shape | GB/s: median | ceiling: median | share: median | lowest | highest |", "|---|---|---|---|---|---|---|---|"]
    groups = {}
    for r in rows:
        groups.setdefault((r["op"], r["dtype"], shape_text(r["shape"])), []).append(r)
    for key, group in groups.items():
        shares = sorted(100 * r["share"] for r in group)
        middle = [statistics.median(r[name] for r in group) for name in ("gbps", "ceiling")]
        lines.append(f"| {' | '.join(key)} | {middle[0]:.1f} | {middle[1]:.1f} {group[0]['ceiling_name']} | {statistics.median(shares):.0f} % "
                     f"| {shares[0]:.0f} % | {shares[-1]:.0f} % |")
    text = "\n".join(lines) + "\n"
    (out / f"{o.name}.md").write_text(text)
    print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--keyfold", default="build/keyfold")
    parser.add_argument("--seconds", default="2")
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has llama-cpp-python")
    parser.add_argument("--out", default="reports/local")
    parser.add_argument("--bench", action="append", help="arguments of keyfold bench, instead of the speed table")
    parser.add_argument("--name", default="bench", help="of the files that --bench writes")
    parser.add_argument("--times", type=int, default=5)
    o = parser.parse_args()
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    if o.bench:
        repeat(o, out)
        return
    command = [o.keyfold, "bench", "--seconds", o.seconds, "--json"]
    rows = json.loads(run(command))
    write(out / "speed.json", command, rows)
    (out / "speed.md").write_text(table(rows))
    print(table(rows))
    if o.model:
        here = os.path.dirname(os.path.abspath(__file__))
        print(run([o.python, os.path.join(here, "compare_llama.py"), o.model, "--keyfold", o.keyfold, "--rounds", o.rounds, "--json", str(out / "llama.json")]))


if __name__ == "__main__":
    main()
