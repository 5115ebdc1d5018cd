# SPDX-License-Identifier: Apache-2.0
"""kv_append: k is rotated and put into its cache together with v, one pass over both.

A shape is (B, Hkv, N, D): N new rows of each sequence, behind ROWS_BEFORE that are there. Bytes are k and v once, read and
written.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from . import formulas
from .attention import rope_angles
from .cases import Case
from .operation import WIDTH, Call, Maker, Operation, compiled, needs_torch
from .place import Place

ROWS_BEFORE = 64


def inputs(case: Case, place: Place) -> SimpleNamespace:
    b, h, n, d = case.shape
    cache = (b, h, ROWS_BEFORE + n, d)
    return SimpleNamespace(
        k=place.normal(case.shape, case.dtype),
        v=place.normal(case.shape, case.dtype),
        k_cache=place.poisoned(cache, case.dtype),
        v_cache=place.poisoned(cache, case.dtype),
        slots=place.arange(b) * 0 + ROWS_BEFORE,
    )


def new_rows(x: Any) -> Any:
    return x.k_cache[:, :, ROWS_BEFORE:], x.v_cache[:, :, ROWS_BEFORE:]


def keyfold(kf: Any, case: Case, place: Place, x: Any) -> Call:
    op = kf.Op(kf.kv_append, x.k, x.v, x.k_cache, x.v_cache, slots=x.slots, rope=kf.Rope())

    def call() -> Any:
        op.run()
        return new_rows(x)

    return call


def torch_append(compile_it: bool) -> Maker:
    """As transformers' Llama: tables in the inputs' dtype, then a copy into a static cache."""

    def make(case: Case, place: Place, x: Any) -> Call:
        torch = needs_torch(place)
        _, _, n, d = case.shape

        def tables() -> Any:
            angles = torch.from_numpy(rope_angles(place, ROWS_BEFORE, n, d)).repeat(1, 2)
            return [t.to(x.k.dtype).to(place.device) for t in (angles.cos(), angles.sin())]

        cos, sin = place.once(case, "tables", tables)

        def append(k: Any, v: Any, k_cache: Any, v_cache: Any, cos: Any, sin: Any) -> None:
            turned = k * cos + torch.cat((-k[..., d // 2 :], k[..., : d // 2]), -1) * sin
            k_cache[:, :, ROWS_BEFORE : ROWS_BEFORE + n] = turned
            v_cache[:, :, ROWS_BEFORE : ROWS_BEFORE + n] = v

        run = compiled(case, place, append) if compile_it else append

        def call() -> Any:
            run(x.k, x.v, x.k_cache, x.v_cache, cos, sin)
            return new_rows(x)

        return call

    return make


def expected(case: Case, place: Place, x: Any) -> tuple[Any, Any]:
    angles = place.from_numpy(rope_angles(place, ROWS_BEFORE, case.shape[2], case.shape[3]))
    return lambda result: result[0], formulas.rope(place.xp, place.exact(x.k), angles)


OPERATIONS = {
    "kv_append": Operation(
        inputs=inputs,
        bytes=lambda case: 4.0 * WIDTH[case.dtype] * case.shape[0] * case.shape[1] * case.shape[2] * case.shape[3],
        flops=lambda case: 0.0,
        expected=expected,
        keyfold=keyfold,
        peers={"eager": torch_append(False), "compile": torch_append(True)},
    )
}
