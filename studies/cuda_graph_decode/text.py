# SPDX-License-Identifier: Apache-2.0
"""The same text from torch and from keyfold, of SmolLM2's own weights:

    python -m studies.cuda_graph_decode.text --model FILE.gguf --keyfold build/keyfold [--device cuda] --json FILE

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

import torch

from keyfold.peers.place import Place
from keyfold.peers.report import commit, write_json

from .decode import WAYS, Decoder, common, margin
from .models import model_of_file

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


def compare(exact, ids, mine, theirs):
    """Where two continuations part, and by how much the fp32 model prefers one there."""
    same = common(mine, theirs)
    row = {"tokens": len(mine), "same": same}
    if same < min(len(mine), len(theirs)):
        row["margin"] = round(margin(exact, ids + mine[:same], theirs[same], mine[same]), 4)
    return row


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("model", None), ("keyfold", "keyfold"), ("device", "cuda"), ("json", "")):
        parser.add_argument(f"--{name}", default=value, required=value is None)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    place = Place("cuda" if options.device == "cuda" else "cpu")
    source = {"machine": place.machine, "commit": commit(),
              "command": "python -m studies.cuda_graph_decode.text " + " ".join(sys.argv[1:])}  # fmt: skip
    exact = model_of_file(options.model, options.device, torch.float32)[1]
    rounded = model_of_file(options.model, options.device, torch.bfloat16)[1]
    decoders = {"fp32": Decoder(exact), "bf16": Decoder(rounded)}
    types = {"fp32": ["--cache", "fp32"], "bf16": ["--weights", "bf16", "--rows", "bf16", "--cache", "bf16"]}
    rows, bad = [], 0

    def told(must, **row):
        nonlocal bad
        bad += must and row["same"] < options.tokens
        rows.append({"op": "text", **row, **source})
        print(row, flush=True)
        if options.json:
            write_json(options.json, rows)

    for prompt in PROMPTS:
        mine = {}
        for name, decoder in decoders.items():
            ids, theirs, text = keyfold_text(
                options.keyfold, options.model, prompt, options.tokens, options.device, types[name]
            )
            mine[name] = decoder.generate(ids, options.tokens)
            found = compare(exact, ids, mine[name], theirs)
            told(name == "fp32", prompt=prompt, dtype=name, **found, text=text)
    for way in WAYS[1:] if options.device == "cuda" else []:
        found = decoders["bf16"].generate(ids, options.tokens, decoders["bf16"].step(way))
        told(way == "graph", prompt=prompt, dtype="bf16", way=way, **compare(exact, ids, found, mine["bf16"]))
    print(f"{len(rows)} comparisons, {bad} that should be equal are not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
