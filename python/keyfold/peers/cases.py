# SPDX-License-Identifier: Apache-2.0
"""What is compared where nothing is asked for: shapes that models have, per operation and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional


@dataclass(frozen=True)
class Case:
    """One call. What the numbers of a shape are, by operation, is in SHAPES."""

    op: str
    shape: tuple[int, ...]
    dtype: str = "bf16"
    causal: bool = False
    weight: Optional[str] = None  # linear: "bf16", "q4_0", ...
    rotated: Optional[str] = None  # rope_attention: "q", or "qk" where the keys turn in the call, too

    @property
    def title(self) -> str:
        return " ".join(
            [self.op, ",".join(map(str, self.shape)), self.dtype]
            + ([f"weights {self.weight}"] if self.weight else [])
            + ([f"rotates {self.rotated}"] if self.rotated else [])
            + (["causal"] if self.causal else [])
        )


SHAPES = {
    "attention": "B, H, Hkv, Nq, Nk, D",
    "decode": "B, H, Hkv, Nq, Nk, D",
    "rope_attention": "B, H, Hkv, Nq, Nk, D",
    "rmsnorm": "rows, N",
    "swiglu": "rows, N",
    "softmax": "rows, N",
    "linear": "rows of x, outputs, inputs",
    "kv_append": "B, Hkv, N, D",
}

# The five shapes of every FlashAttention test, then what the published tables have.
ATTENTION = [
    (1, 8, 8, 512, 64),
    (1, 8, 8, 2048, 64),
    (4, 32, 32, 4096, 128),
    (1, 8, 8, 8192, 128),
    (2, 16, 16, 16384, 64),
    (2, 16, 16, 4096, 64),
    (1, 16, 16, 16384, 128),
    (32, 16, 16, 512, 128),
    (2, 32, 8, 8192, 128),
    (1, 8, 8, 16384, 256),
]
DECODE = [
    (1, 32, 32, 8192, 128),
    (1, 32, 8, 8192, 128),
    (1, 32, 8, 1024, 128),
    (16, 32, 8, 8192, 128),
    (64, 32, 8, 8192, 128),
    (1, 32, 8, 131072, 128),
]
ROPE_ATTENTION = [(2, 32, 8, 4096, 128), (1, 32, 32, 8192, 128), (2, 16, 16, 4096, 64)]
ROPE_DECODE = [(1, 32, 8, 8192, 128), (16, 32, 8, 8192, 128), (1, 32, 8, 1024, 128)]
FP32 = [(1, 8, 8, 2048, 64), (2, 16, 16, 4096, 64), (1, 8, 8, 8192, 128), (4, 16, 16, 2048, 128), (1, 8, 8, 4096, 256)]
RMSNORM = [(1, 4096), (64, 4096), (4096, 4096), (16384, 2048), (8192, 8192), (32768, 4096)]
SWIGLU = [(1, 11008), (4096, 11008), (8192, 14336), (32768, 5632)]
SOFTMAX = [(32768, 1024), (4096, 8192), (64, 128256), (1, 128256)]
SOFTMAX += [(4096, 16384), (2048, 32768), (1024, 65536), (256, 131072), (64, 262144)]  # a row in several blocks
LINEAR = [(1, 2048, 2048), (1, 256, 2048), (1, 5632, 2048), (1, 2048, 5632), (1, 32000, 2048), (512, 5632, 2048)]
KV_APPEND = [(1, 8, 1, 128), (64, 8, 1, 128), (2, 8, 4096, 128), (1, 32, 8192, 128)]

# Small enough for a processor of two cores.
CPU_ATTENTION = [(1, 8, 8, 512, 64), (1, 8, 8, 2048, 64), (1, 32, 8, 1024, 128)]
CPU_DECODE = [(1, 32, 8, 4096, 128)]
CPU_ROWS = [(64, 4096), (1024, 4096)]
CPU_LINEAR = [(1, 2048, 2048), (64, 2048, 2048)]


def square(shapes: list[tuple[int, int, int, int, int]]) -> list[tuple[int, ...]]:
    return [(b, h, hkv, n, n, d) for b, h, hkv, n, d in shapes]


def one_query(shapes: list[tuple[int, int, int, int, int]]) -> list[tuple[int, ...]]:
    return [(b, h, hkv, 1, n, d) for b, h, hkv, n, d in shapes]


def defaults(device: str) -> dict[str, list[tuple[int, ...]]]:
    if device == "cpu":
        rows: list[tuple[int, ...]] = [*CPU_ROWS]
        return {
            "attention": square(CPU_ATTENTION),
            "decode": one_query(CPU_DECODE),
            "rope_attention": square(CPU_ATTENTION[1:]),
            **{op: rows for op in ("rmsnorm", "swiglu", "softmax")},
            "linear": [*CPU_LINEAR],
            "kv_append": [*KV_APPEND[:2]],
        }
    return {
        "attention": square(ATTENTION),
        "decode": one_query(DECODE),
        "rope_attention": square(ROPE_ATTENTION),
        "rmsnorm": [*RMSNORM],
        "swiglu": [*SWIGLU],
        "softmax": [*SOFTMAX],
        "linear": [*LINEAR],
        "kv_append": [*KV_APPEND],
    }


CASES = {device: defaults(device) for device in ("cpu", "cuda")}


def expand(
    op: str, shapes: list[tuple[int, ...]], dtype: str, causal: Optional[bool], weights: list[str], rotated: str
) -> Iterator[Case]:
    """The cases of an operation's shapes: attention full and causal, linear for each type of weight."""
    for shape in shapes:
        if op == "attention":
            for masked in (False, True) if causal is None else (causal,):
                yield Case(op, shape, dtype, masked)
        elif op == "rope_attention":
            yield Case(op, shape, dtype, causal is not False, rotated=rotated)
        elif op == "linear":
            for weight in weights:
                yield Case(op, shape, dtype, False, dtype if weight == "dense" else weight)
        else:
            yield Case(op, shape, dtype)
