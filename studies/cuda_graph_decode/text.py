# SPDX-License-Identifier: Apache-2.0
"""The same text from torch and from keyfold, of SmolLM2's own weights:

    python -m studies.cuda_graph_decode.text --model FILE.gguf --keyfold build/keyfold [--device cuda] --json FILE
    ... --parts keyfold (1 and 2) or --parts ways (3), else both; rows of a part that is left out stay in the file

1 in fp32 on both sides (torch: blocks to fp32; keyfold: the blocks themselves, fp32 activations and cache): the same
  tokens.
2 in bf16 (weights, activations that products read, cache): the same up to a token where two were as good as equal; how
  equal, by the logits in fp32.
3 every way of decode.py against eager, bf16: a captured graph must give the same tokens; a compiled step may round
  elsewhere.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from keyfold.peers.place import Place
from keyfold.peers.report import commit, write_json

from .decode import WAYS, Decoder, common, margin
from .models import model_of_file

PARTS = ["keyfold", "ways"]
PROMPTS = [
    "The history of computing began",
    "Attention in C is a fold over keys. In other words,",
    "Once upon a time, in a small town by the sea, there lived",
]


def keyfold_text(command, model, prompt, count, device, types):
    """(ids of the prompt, ids that follow, text)."""
    what = ["-m", model, "-p", prompt, "-n", str(count), "--ignore-end", "--device", device, "--json", *types]
    said = subprocess.run([command, "generate", *what], capture_output=True, text=True, timeout=200, check=True)
    found = json.loads(said.stdout)
    return found["prompt_ids"], found["ids"], found["text"]


def prompt_ids(command, model, prompt):
    what = ["tokenize", "-m", model, "-p", prompt, "--json"]
    return json.loads(subprocess.run([command, *what], capture_output=True, text=True, check=True).stdout)


def compare(exact, ids, mine, theirs):
    """Where two continuations part, and by how much the fp32 model prefers one there."""
    same = common(mine, theirs)
    row = {"tokens": len(mine), "same": same}
    if same < min(len(mine), len(theirs)):
        row["margin"] = round(margin(exact, ids + mine[:same], theirs[same], mine[same]), 4)
    return row


class Rows:
    """What was compared, in the file after each comparison; rows that another call made of other parts stay."""

    def __init__(self, path, source, tokens, parts):
        self.path, self.source, self.tokens, self.bad = path, source, tokens, 0
        there = json.loads(Path(path).read_text()) if path and Path(path).exists() else []
        self.kept = [row for row in there if part_of(row) not in parts]
        self.rows = []

    def add(self, must, **row):
        self.bad += must and row["same"] < self.tokens
        self.rows.append({"op": "text", "beside": "eager" if "way" in row else "keyfold", **row, **self.source})
        print(row, flush=True)
        if self.path:
            write_json(self.path, sorted([*self.kept, *self.rows], key=lambda row: PARTS.index(part_of(row))))


def part_of(row):
    return "ways" if "way" in row else "keyfold"  # what is held beside eager, or torch beside keyfold


def beside_keyfold(options, exact, rounded, rows):
    decoders = {"fp32": Decoder(exact), "bf16": Decoder(rounded)}
    types = {"fp32": ["--cache", "fp32"], "bf16": ["--weights", "bf16", "--rows", "bf16", "--cache", "bf16"]}
    for prompt in PROMPTS:
        for name, decoder in decoders.items():
            ids, theirs, text = keyfold_text(
                options.keyfold, options.model, prompt, options.tokens, options.device, types[name]
            )
            found = compare(exact, ids, decoder.generate(ids, options.tokens), theirs)
            rows.add(name == "fp32", prompt=prompt, dtype=name, **found, text=text)


def beside_eager(options, exact, rounded, rows):
    """Of every prompt by every way; a way is made once, so a later prompt costs its steps alone."""
    decoder = Decoder(rounded)
    prompts = {prompt: prompt_ids(options.keyfold, options.model, prompt) for prompt in PROMPTS}
    eager = {prompt: decoder.generate(ids, options.tokens) for prompt, ids in prompts.items()}
    for way in WAYS[1:]:
        start = time.perf_counter()
        step = decoder.step(way)
        for prompt, ids in prompts.items():
            found = compare(exact, ids, decoder.generate(ids, options.tokens, step), eager[prompt])
            rows.add(way == "graph", prompt=prompt, dtype="bf16", way=way, **found)
        print(f"    {way}: {time.perf_counter() - start:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("model", None), ("keyfold", "keyfold"), ("device", "cuda"), ("json", "")):
        parser.add_argument(f"--{name}", default=value, required=value is None)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args()
    parts = [part for part in options.parts.split(",") if part == "keyfold" or options.device == "cuda"]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._inductor.config.fx_graph_cache = True
    place = Place("cuda" if options.device == "cuda" else "cpu")
    source = {"machine": place.machine, "commit": commit(),
              "command": "python -m studies.cuda_graph_decode.text " + " ".join(sys.argv[1:])}  # fmt: skip
    exact = model_of_file(options.model, options.device, torch.float32)[1]
    rounded = model_of_file(options.model, options.device, torch.bfloat16)[1]
    rows = Rows(options.json, source, options.tokens, parts)
    if "keyfold" in parts:
        beside_keyfold(options, exact, rounded, rows)
    if "ways" in parts:
        beside_eager(options, exact, rounded, rows)
    print(f"{len(rows.rows)} comparisons, {rows.bad} that should be equal are not")
    return 1 if rows.bad else 0


if __name__ == "__main__":
    sys.exit(main())
