# SPDX-License-Identifier: Apache-2.0
"""attention, decode, rope_attention: O[b, h] = softmax(Q[b, h] K[b, h / group]^T / sqrt(D)) V[b, h / group].

A shape is (B, H, Hkv, Nq, Nk, D). Useful FLOPs are 4 B H Nq Nk D, half of that if causal; bytes are Q, K, V and O once.
Each peer gets the layout that it likes best, made outside the timing.
"""

from __future__ import annotations

import math
import os
from types import SimpleNamespace
from typing import Any

from . import formulas
from .cases import Case
from .operation import WIDTH, Call, LeftOut, Maker, Operation, compiled, needs_cuda, needs_library, needs_torch
from .place import Place

CHECKED_HEADS = 8  # of all B x H, held against float64
EAGER_BYTES = 8 << 30  # the score matrix that the eager peer may write
FLASHINFER_WORKSPACE = 128 << 20  # what its documentation advises
PAGE = 16  # keys of a page, for FlashInfer's paged decode
# Of FlashInfer's prefill: "auto" takes its FlashAttention-3 kernel on Hopper, which wants CUTLASS's headers to compile.
FLASHINFER_BACKEND = os.environ.get("KEYFOLD_FLASHINFER_BACKEND", "auto")


def inputs(case: Case, place: Place) -> SimpleNamespace:
    b, h, hkv, nq, nk, d = case.shape
    return SimpleNamespace(
        q=place.normal((b, h, nq, d), case.dtype),
        k=place.normal((b, hkv, nk, d), case.dtype),
        v=place.normal((b, hkv, nk, d), case.dtype),
        o=place.poisoned((b, h, nq, d), case.dtype),
    )


def moved(case: Case) -> float:
    b, h, hkv, nq, nk, d = case.shape
    return WIDTH[case.dtype] * 2.0 * b * d * (h * nq + hkv * nk)


def flops(case: Case) -> float:
    b, h, _, nq, nk, d = case.shape
    return 4.0 * b * h * nq * nk * d / (2 if case.causal else 1)


def expected(case: Case, place: Place, x: Any) -> tuple[Any, Any]:
    """Some heads, spread over all."""
    b, h, hkv, nq, nk, d = case.shape
    count = min(b * h, CHECKED_HEADS)
    pairs = [divmod(i * (b * h - 1) // max(count - 1, 1), h) for i in range(count)]
    rows, keys = place.arange(nq), place.arange(nk)
    answers = []
    for sequence, head in pairs:
        q, k, v = (
            place.exact(t)
            for t in (x.q[sequence, head], x.k[sequence, head * hkv // h], x.v[sequence, head * hkv // h])
        )
        if case.op == "rope_attention":
            q, k = turned(place, q, nk - nq), turned(place, k, 0) if case.rotated == "qk" else k
        answers.append(formulas.attention(place.xp, q, k, v, case.causal, rows, keys))
    return lambda o: place.xp.stack([o[pair] for pair in pairs]), place.xp.stack(answers)


def turned(place: Place, x: Any, first: int) -> Any:
    angles = place.from_numpy(rope_angles(place, first, x.shape[-2], x.shape[-1]))
    return formulas.rope(place.xp, x, angles)


def rope_angles(place: Place, first: int, count: int, dims: int) -> Any:
    """[N, D/2] in float64: position times base^(-2c/D)."""
    numpy = place.numpy
    return numpy.outer(
        numpy.arange(first, first + count), formulas.ROPE_BASE ** (-2.0 * numpy.arange(dims // 2) / dims)
    )


def keyfold(kf: Any, case: Case, place: Place, x: Any) -> Call:
    if case.op == "rope_attention":
        rope = {"rope": kf.Rope(), "rope_k": case.rotated == "qk"}
    else:
        rope = {}
    run: Call = kf.Op(kf.attention, x.q, x.k, x.v, out=x.o, causal=case.causal, **rope).run
    return run


# --------------------------------------------------------------------------------------------------------------- torch


def sdpa(backend: str) -> Maker:
    """torch's scaled_dot_product_attention held to one backend; "" leaves the choice to torch."""

    def make(case: Case, place: Place, x: Any) -> Call:
        torch = needs_torch(place) if not backend else needs_cuda(place)
        b, h, hkv, nq, nk, d = case.shape
        if case.causal and nq != nk:
            raise LeftOut("its causal mask begins at the upper left")
        if h != hkv and backend == "EFFICIENT_ATTENTION":
            raise LeftOut("it takes no grouped queries")
        function = torch.nn.functional.scaled_dot_product_attention
        grouped = {"enable_gqa": True} if h != hkv else {}

        def call() -> Any:
            return function(x.q, x.k, x.v, is_causal=case.causal, **grouped)

        if not backend:
            return call
        attention = torch.nn.attention
        chosen = getattr(attention.SDPBackend, backend)

        def held() -> Any:
            with attention.sdpa_kernel([chosen]):
                return call()

        return held

    return make


def eager(case: Case, place: Place, x: Any) -> Call:
    """Scores and probabilities as arrays in the inputs' dtype, the softmax in fp32, as models' code without SDPA has it."""
    torch = needs_torch(place)
    b, h, hkv, nq, nk, d = case.shape
    if b * h * nq * nk * 4 > EAGER_BYTES:
        raise LeftOut(f"its scores would take {b * h * nq * nk * 4 / 2**30:.0f} GiB")

    def upper() -> Any:
        return torch.ones(nq, nk, dtype=torch.bool, device=place.device).triu(1 + nk - nq) if case.causal else None

    hidden = place.once(case, "hidden", upper)

    def call() -> Any:
        k, v = (t if h == hkv else t.repeat_interleave(h // hkv, 1) for t in (x.k, x.v))
        s = x.q @ k.transpose(-1, -2) / math.sqrt(d)
        if hidden is not None:
            s = s.masked_fill(hidden, -math.inf)
        return torch.softmax(s, -1, dtype=torch.float32).to(x.q.dtype) @ v

    return call


def numpy_attention(case: Case, place: Place, x: Any) -> Call:
    numpy = place.numpy
    if place.device != "cpu" or numpy is None:
        raise LeftOut("it runs on the CPU, with NumPy")
    b, h, hkv, nq, nk, d = case.shape
    q, k, v = (place.to_numpy(t) for t in (x.q, x.k, x.v))
    group = [head * hkv // h for head in range(h)]
    rows, keys = numpy.arange(nq), numpy.arange(nk)
    angles = [rope_angles(place, first, n, d).astype(numpy.float32) for first, n in ((nk - nq, nq), (0, nk))]

    def call() -> Any:
        left, right = q, k
        if case.op == "rope_attention":
            left = formulas.rope(numpy, q, angles[0])
            right = formulas.rope(numpy, k, angles[1]) if case.rotated == "qk" else k
        o = formulas.attention(numpy, left, right[:, group], v[:, group], case.causal, rows, keys)
        return place.from_numpy(o)

    return call


# ---------------------------------------------------------------------------------------------- FlashInfer, flash-attn-4


def flashinfer(case: Case, place: Place, x: Any) -> Call:
    """Its ragged prefill. It compiles a kernel at its first call of a head dim."""
    library = needs_library(place, "flashinfer")
    b, h, hkv, nq, nk, d = case.shape
    q, k, v = (t.transpose(1, 2).reshape(-1, t.shape[1], d).contiguous() for t in (x.q, x.k, x.v))

    def planned() -> Any:
        workspace = place.torch.empty(FLASHINFER_WORKSPACE, dtype=place.torch.uint8, device="cuda")
        wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=FLASHINFER_BACKEND)
        starts = [every(place, b, n) for n in (nq, nk)]
        wrapper.plan(*starts, h, hkv, d, causal=case.causal, q_data_type=q.dtype, kv_data_type=k.dtype)
        return wrapper

    prefill = place.once(case, "flashinfer", planned)
    return lambda: prefill.run(q, k, v).view(b, nq, h, d).transpose(1, 2)


def every(place: Place, count: int, step: int) -> Any:
    return place.torch.arange(0, (count + 1) * step, step, dtype=place.torch.int32, device="cuda")


def flashinfer_decode(peer: str, tensor_cores: bool) -> Maker:
    """Its decode over pages of 16 keys. It has two kernels, and leaves the choice to its user."""

    def make(case: Case, place: Place, x: Any) -> Call:
        library = needs_library(place, peer)
        b, h, hkv, _, nk, d = case.shape
        if nk % PAGE:
            raise LeftOut(f"Nk = {nk} is no multiple of its pages of {PAGE} keys")
        pages = b * nk // PAGE
        q = x.q.view(b, h, d)

        def as_pages() -> Any:
            return tuple(t.transpose(1, 2).reshape(pages, PAGE, hkv, d).contiguous() for t in (x.k, x.v))

        def planned() -> Any:
            torch = place.torch
            workspace = torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device="cuda")
            wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=tensor_cores)
            ids = torch.arange(pages, dtype=torch.int32, device="cuda")
            full = torch.full((b,), PAGE, dtype=torch.int32, device="cuda")
            starts = every(place, b, nk // PAGE)
            wrapper.plan(starts, ids, full, h, hkv, d, PAGE, q_data_type=q.dtype, kv_data_type=x.k.dtype)
            return wrapper

        decode = place.once(case, peer, planned)
        cache = place.once(case, f"pages of {id(x)}", as_pages)
        return lambda: decode.run(q, cache).view(b, h, 1, d)

    return make


UNSPLIT_ROWS = 128  # more than decode takes; a tile of prefill


def unsplit_prefill(case: Case, place: Place, x: Any) -> Call:
    """keyfold's prefill in decode's place: the keys in one piece, the tile that many rows get. Its one row of queries is
    there UNSPLIT_ROWS times, which costs a tile nothing; a context with one split length for all shapes neither cuts the
    keys nor takes a smaller tile."""
    torch = needs_cuda(place)
    import keyfold as kf

    b, h, hkv, nq, nk, d = case.shape
    if nq != 1:
        raise LeftOut("it stands beside decode alone")
    stream = int(torch.cuda.current_stream().cuda_stream)
    context = place.once(case, "unsplit", lambda: kf.Context(device="cuda:0", stream=stream, fixed_split=True))
    q = x.q.expand(b, h, UNSPLIT_ROWS, d).contiguous()
    op = kf.Op(kf.attention, q, x.k, x.v, out=torch.empty_like(q), context=context)
    return lambda: op.run()[:, :, :1]


def fa4(case: Case, place: Place, x: Any) -> Call:
    library = needs_library(place, "fa4")
    if case.shape[3] == 1:
        raise LeftOut("it has no split over the keys on this architecture")
    q, k, v = (t.transpose(1, 2).contiguous() for t in (x.q, x.k, x.v))

    def call() -> Any:
        result = library.flash_attn_func(q, k, v, causal=case.causal)
        return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

    return call


# ---------------------------------------------------------------------------------------------------- RoPE in attention


def rotate_then(compile_it: bool) -> Maker:
    """RoPE on q (or q and k) as transformers' Llama writes it, tables in the inputs' dtype, then keyfold's attention."""

    def make(case: Case, place: Place, x: Any) -> Call:
        torch = needs_torch(place)
        import keyfold as kf

        b, h, hkv, nq, nk, d = case.shape

        def tables() -> Any:
            angles = torch.from_numpy(rope_angles(place, 0, nk, d)).repeat(1, 2)
            return [t.to(x.q.dtype).to(place.device) for t in (angles.cos(), angles.sin())]

        cos, sin = place.once(case, "tables", tables)

        def rotate(x: Any, cos: Any, sin: Any) -> Any:
            return x * cos + torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1) * sin

        def only_q(q: Any, k: Any, cos: Any, sin: Any) -> Any:
            return rotate(q, cos[nk - nq :], sin[nk - nq :])

        def both(q: Any, k: Any, cos: Any, sin: Any) -> Any:
            return only_q(q, k, cos, sin), rotate(k, cos, sin)

        chosen = both if case.rotated == "qk" else only_q
        turn = compiled(case, place, chosen) if compile_it else chosen

        def run() -> Any:
            return turn(x.q, x.k, cos, sin) if case.rotated == "qk" else (turn(x.q, x.k, cos, sin), x.k)

        op = kf.Op(kf.attention, *run(), x.v, out=torch.empty_like(x.o), causal=case.causal)

        def call() -> Any:
            q, k = run()
            op.bind(q=q, k=k)
            return op.run()

        return call

    return make


COMMON: dict[str, Any] = {"inputs": inputs, "bytes": moved, "flops": flops, "expected": expected, "keyfold": keyfold}
SDPA: dict[str, Maker] = {
    "sdpa": sdpa(""),
    "cudnn": sdpa("CUDNN_ATTENTION"),
    "flash2": sdpa("FLASH_ATTENTION"),
    "efficient": sdpa("EFFICIENT_ATTENTION"),
}

PLAIN: dict[str, Maker] = {**SDPA, "eager": eager, "flashinfer": flashinfer, "fa4": fa4, "numpy": numpy_attention}
DECODE: dict[str, Maker] = {
    **PLAIN,
    "flashinfer": flashinfer_decode("flashinfer", tensor_cores=False),
    "flashinfer_tc": flashinfer_decode("flashinfer_tc", tensor_cores=True),
    "prefill": unsplit_prefill,
}

OPERATIONS = {
    "attention": Operation(**COMMON, peers=PLAIN),
    "decode": Operation(**COMMON, peers=DECODE),
    "rope_attention": Operation(
        **COMMON, peers={"eager": rotate_then(False), "compile": rotate_then(True), "numpy": numpy_attention}
    ),
}
