# SPDX-License-Identifier: Apache-2.0
"""How often does a running maximum rise, and how often by more than a threshold, on the scores of a real model?

    python -m studies.fa4_ideas.rescale MODEL.gguf --keyfold build/keyfold [--json reports/zen4/fa4-rescale.json]

The demo's model reads the first TOKENS tokens of LICENSE; every layer's and head's causal scores go through the kernel's loop: tiles of
KEYS keys, a row's origin moves where a score of the tile passes it by more than the threshold (in powers of two; 0 is the loop of
FlashAttention-2). A tile's first sight of a row is a start, not a rescale. Counted for rows, and for groups of rows that decide together, as
a warp of 32 and a tile of 128 do. Beside it scores of random queries and keys. Needs torch.
"""

import argparse
import json
import pathlib
import subprocess

import torch

from ..cuda_graph_decode import gguf
from . import provenance

TOKENS, KEYS, GROUPS = 2048, 128, (1, 32, 128)
THRESHOLDS = (0, 1, 2, 4, 8)
LOG2E = 1.4426950408889634


def tokens(command, model):
    text = (provenance.ROOT / "LICENSE").read_text()
    done = subprocess.run(
        [command, "tokenize", "-m", model, "-p", text, "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    return (found["ids"] if isinstance(found, dict) else found)[:TOKENS]


def rotated(x, base):
    """RoPE on neighbouring pairs, as GGUF's llama has them."""
    _, n, d = x.shape
    angles = torch.arange(n, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    turn = torch.polar(torch.ones_like(angles), angles)
    return (
        torch.view_as_real(torch.view_as_complex(x.double().reshape(*x.shape[:-1], d // 2, 2)) * turn)
        .reshape(x.shape)
        .float()
    )


def norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def queries_and_keys(path, ids):
    """(layer, q [H, N, D], k [Hkv, N, D]) after RoPE, in fp32, layer by layer."""
    file = gguf.Reader(path)
    keys = file.keys
    heads, kv = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
    eps, base = keys["llama.attention.layer_norm_rms_epsilon"], keys.get("llama.rope.freq_base", 10000.0)

    def weight(name):
        return file.tensors[name + ".weight"].values()

    x = weight("token_embd")[torch.tensor(ids)]
    n, width = x.shape
    hidden = torch.full((n, n), float("-inf")).triu(1)
    for layer in range(keys["llama.block_count"]):
        at = f"blk.{layer}."
        h = norm(x, weight(at + "attn_norm"), eps)
        q, k, v = (
            (h @ weight(at + name).T).reshape(n, count, -1).transpose(0, 1)
            for name, count in (("attn_q", heads), ("attn_k", kv), ("attn_v", kv))
        )
        q, k = rotated(q, base), rotated(k, base)
        yield layer, q, k
        grouped = k.repeat_interleave(heads // kv, 0), v.repeat_interleave(heads // kv, 0)
        weights = torch.softmax(q @ grouped[0].transpose(1, 2) * q.shape[-1] ** -0.5 + hidden, -1)
        x = x + (weights @ grouped[1]).transpose(0, 1).reshape(n, width) @ weight(at + "attn_output").T
        h = norm(x, weight(at + "ffn_norm"), eps)
        gate, up = h @ weight(at + "ffn_gate").T, h @ weight(at + "ffn_up").T
        x = x + (torch.nn.functional.silu(gate) * up) @ weight(at + "ffn_down").T


def tile_maxima(q, k):
    """[H, rows, tiles] of a causal layer's scores in powers of two; -inf where a row sees nothing of a tile."""
    heads, n, d = q.shape
    s = q @ k.repeat_interleave(heads // len(k), 0).transpose(1, 2) * (d**-0.5 * LOG2E)
    s += torch.full((n, n), float("-inf")).triu(1)
    return s.reshape(heads, n, n // KEYS, KEYS).amax(-1)


def count(maxima, threshold, from_right):
    """moved [H, rows, tiles]: whether the row's origin moves at that tile; seen: whether it had one already and sees the tile."""
    order = range(maxima.shape[-1])
    origin = torch.full(maxima.shape[:-1], float("-inf"))
    moved, seen = [], []
    for t in reversed(order) if from_right else order:
        top = maxima[..., t]
        old = origin > float("-inf")
        rises = top > origin + threshold
        moved.append(rises & old)
        seen.append(old & (top > float("-inf")))
        origin = torch.where(rises | ~old, torch.maximum(top, origin), origin)
    return torch.stack(moved, -1), torch.stack(seen, -1)


def rates(maxima, threshold, from_right):
    """By number of rows that decide together: steps that rescale, steps, and of those that rescale the ones at the tile of key 0."""
    moved, seen = count(maxima, threshold, from_right)
    found = {}
    for rows in GROUPS:
        together = [x.reshape(x.shape[0], -1, rows, x.shape[-1]).any(2).float() for x in (moved, seen)]
        found[rows] = [float(x.sum()) for x in (*together, together[0][..., -1 if from_right else 0])]
    return found


def study(name, layers):
    totals = {}
    for q, k in layers:
        maxima = tile_maxima(q, k)
        for threshold in THRESHOLDS:
            for from_right in (True, False):
                for rows, counts in rates(maxima, threshold, from_right).items():
                    key = (threshold, from_right, rows)
                    totals[key] = [a + b for a, b in zip(totals.get(key, (0.0, 0.0, 0.0)), counts)]
    return [
        {
            "scores": name,
            "threshold": threshold,
            "order": "right to left" if from_right else "left to right",
            "rows_together": rows,
            "keys_of_a_tile": KEYS,
            "tokens": TOKENS,
            "steps": int(seen),
            "rescales": int(moved),
            "share": moved / seen,
            "share_at_first_keys": first / moved if moved else 0.0,
        }
        for (threshold, from_right, rows), (moved, seen, first) in totals.items()
    ]


def main():
    parser = argparse.ArgumentParser(prog="python -m studies.fa4_ideas.rescale")
    parser.add_argument("model")
    parser.add_argument("--keyfold", default="build/keyfold")
    parser.add_argument("--json")
    options = parser.parse_args()
    with torch.no_grad():
        ids = tokens(options.keyfold, options.model)
        rows = study("model", ((q, k) for _, q, k in queries_and_keys(options.model, ids)))
        torch.manual_seed(0)
        rows += study("random", ((torch.randn(9, TOKENS, 64), torch.randn(3, TOKENS, 64)) for _ in range(4)))
    for row in rows:
        print(
            "{scores:7} threshold {threshold}, {order}, {rows_together:3} rows: {rescales} of {steps}, {share:.4f}".format(
                **row
            )
        )
    name = pathlib.Path(options.model).name
    provenance.write(options.json, f"python -m studies.fa4_ideas.rescale {name} --keyfold {options.keyfold}", rows)


if __name__ == "__main__":
    main()
