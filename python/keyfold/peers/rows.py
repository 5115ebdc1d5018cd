# SPDX-License-Identifier: Apache-2.0
"""rmsnorm (with its residual), swiglu, softmax: one row after another; linear: y = x W^T over dense or quantised weights.

A shape is (rows, N), or (rows of x, outputs, inputs) of linear. Bytes are every input and output once.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

from . import formulas
from .cases import Case
from .operation import WIDTH, Call, LeftOut, Maker, Operation, compiled, needs_library, needs_torch
from .place import Place

BLOCK = 32  # values of a block of q4_0 and q8_0
SCALE = 0.01  # of random quantised weights


def no_flops(case: Case) -> float:
    return 0.0


def by_numpy(arguments: Callable[[Any], tuple[Any, ...]], formula: Callable[..., Any]) -> Maker:
    """The textbook's formula on NumPy arrays in fp32."""

    def make(case: Case, place: Place, x: Any) -> Call:
        if place.device != "cpu" or place.numpy is None:
            raise LeftOut("it runs on the CPU, with NumPy")
        arrays = [place.to_numpy(t) for t in arguments(x)]
        return lambda: place.from_numpy(formula(place.numpy, *arrays))

    return make


def by_torch(arguments: Callable[[Any], tuple[Any, ...]], build: Callable[[Any], Any], compile_it: bool) -> Maker:
    """What a model's code has in torch, as it stands or compiled. `build` takes torch and gives the function."""

    def make(case: Case, place: Place, x: Any) -> Call:
        function = build(needs_torch(place))
        run = compiled(case, place, function) if compile_it else function
        arrays = arguments(x)
        return lambda: run(*arrays)

    return make


def both(arguments: Callable[[Any], tuple[Any, ...]], build: Callable[[Any], Any], formula: Any) -> dict[str, Maker]:
    return {
        "eager": by_torch(arguments, build, False),
        "compile": by_torch(arguments, build, True),
        "numpy": by_numpy(arguments, formula),
    }


# -------------------------------------------------------------------------------------------------------------- RMSNorm


def rmsnorm_inputs(case: Case, place: Place) -> SimpleNamespace:
    rows, n = case.shape
    x, residual = (place.normal((rows, n), case.dtype) for _ in range(2))
    y, s = (place.poisoned((rows, n), case.dtype) for _ in range(2))
    return SimpleNamespace(x=x, residual=residual, weight=place.normal((n,), case.dtype), y=y, sum=s)


def rmsnorm_arguments(x: Any) -> tuple[Any, ...]:
    return x.x, x.residual, x.weight


def llama_rmsnorm(torch: Any) -> Any:
    """As transformers' LlamaRMSNorm behind a residual addition: the sum in the inputs' dtype, then three casts."""

    def function(x: Any, residual: Any, weight: Any) -> Any:
        s = x + residual
        wide = s.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + formulas.EPS)
        return weight * wide.to(s.dtype), s

    return function


def rmsnorm_keyfold(kf: Any, case: Case, place: Place, x: Any) -> Call:
    op = kf.Op(kf.rmsnorm, x.x, x.weight, residual=x.residual, out=x.y, sum=x.sum, eps=formulas.EPS, cast="llama")
    run: Call = op.run
    return run


def rmsnorm_flashinfer(case: Case, place: Place, x: Any) -> Call:
    """It writes over its inputs, so it has copies; both results are in them."""
    norm = needs_library(place, "flashinfer", ".norm")
    y, s = x.x.clone(), x.residual.clone()

    def call() -> Any:
        norm.fused_add_rmsnorm(y, s, x.weight, formulas.EPS)
        return y, s

    return call


def rmsnorm_expected(case: Case, place: Place, x: Any) -> tuple[Any, Any]:
    exact = [place.exact(t) for t in rmsnorm_arguments(x)]
    return first, formulas.rmsnorm(place.xp, *exact)


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


# --------------------------------------------------------------------------------------------------------------- SwiGLU


def swiglu_inputs(case: Case, place: Place) -> SimpleNamespace:
    gate, up = (place.normal(case.shape, case.dtype) for _ in range(2))
    return SimpleNamespace(gate=gate, up=up, y=place.poisoned(case.shape, case.dtype))


def swiglu_arguments(x: Any) -> tuple[Any, ...]:
    return x.gate, x.up


def swiglu_torch(torch: Any) -> Any:
    return lambda gate, up: torch.nn.functional.silu(gate) * up


def swiglu_keyfold(kf: Any, case: Case, place: Place, x: Any) -> Call:
    run: Call = kf.Op(kf.swiglu, x.gate, x.up, out=x.y).run
    return run


def swiglu_flashinfer(case: Case, place: Place, x: Any) -> Call:
    """Its rows are [gate | up]."""
    activation = needs_library(place, "flashinfer", ".activation")
    packed = place.torch.cat((x.gate, x.up), -1)
    return lambda: activation.silu_and_mul(packed)


def swiglu_expected(case: Case, place: Place, x: Any) -> tuple[Any, Any]:
    return first, formulas.swiglu(place.xp, place.exact(x.gate), place.exact(x.up))


# -------------------------------------------------------------------------------------------------------------- softmax


def softmax_inputs(case: Case, place: Place) -> SimpleNamespace:
    return SimpleNamespace(x=place.normal(case.shape, case.dtype), y=place.poisoned(case.shape, case.dtype))


def softmax_keyfold(kf: Any, case: Case, place: Place, x: Any) -> Call:
    run: Call = kf.Op(kf.softmax, x.x, out=x.y).run
    return run


def softmax_expected(case: Case, place: Place, x: Any) -> tuple[Any, Any]:
    return first, formulas.softmax(place.xp, place.exact(x.x))


# --------------------------------------------------------------------------------------------------------------- linear


def linear_inputs(case: Case, place: Place) -> SimpleNamespace:
    rows, outputs, columns = case.shape
    x, y = place.normal((rows, columns), case.dtype), place.poisoned((rows, outputs), case.dtype)
    if case.weight in WIDTH:
        return SimpleNamespace(x=x, y=y, weight=place.normal((outputs, columns), case.weight or ""), raw=None)
    raw, values = place.once(case, "blocks", lambda: quantised(case.weight or "", outputs, columns, place))
    return SimpleNamespace(x=x, y=y, weight=place.from_numpy(values), raw=raw)


def quantised(kind: str, outputs: int, columns: int, place: Place) -> tuple[bytes, Any]:
    """Random blocks of GGUF's q4_0 or q8_0, and their values in fp32: a block is an fp16 scale and its integers."""
    numpy = place.numpy
    if kind not in ("q4_0", "q8_0") or columns % BLOCK:
        raise LeftOut(f"weights of type {kind} and {columns} columns are not made here")
    random = numpy.random.default_rng(1)
    blocks = outputs * columns // BLOCK
    scales = (SCALE * random.uniform(0.5, 1.5, (blocks, 1))).astype(numpy.float16)
    if kind == "q8_0":
        codes = random.integers(-127, 128, (blocks, BLOCK), dtype=numpy.int8)
        values, stored = codes.astype(numpy.float32), codes.view(numpy.uint8)
    else:
        stored = random.integers(0, 256, (blocks, BLOCK // 2), dtype=numpy.uint8)
        values = numpy.concatenate((stored & 15, stored >> 4), 1).astype(numpy.float32) - 8
    raw = numpy.concatenate((scales.view(numpy.uint8), stored), 1).tobytes()
    return raw, (values * scales.astype(numpy.float32)).reshape(outputs, columns)


def linear_arguments(x: Any) -> tuple[Any, ...]:
    return x.x, x.weight


def linear_torch(case: Case, place: Place, x: Any) -> Call:
    """torch has no such blocks: it gets their values in x's dtype."""
    torch = needs_torch(place)
    weight = x.weight.to(x.x.dtype)
    return lambda: torch.nn.functional.linear(x.x, weight)


def linear_keyfold(kf: Any, case: Case, place: Place, x: Any) -> Call:
    """Packed once for the kernels, as a model's weights are."""
    _, outputs, columns = case.shape
    context = kf.default_context(*where(kf, place))
    if x.raw is None:
        weight = kf.pack_weight(kf.Weight(x.weight.cpu() if place.torch is not None else x.weight), context=context)
    else:
        given = kf.Weight(x.raw, case.weight, rows=outputs, cols=columns)
        weight = place.once(case, f"packed by {kf.__name__}", lambda: kf.pack_weight(given, context=context))
    weight = weight.moved(place.of_bytes(weight.tobytes()))
    run: Call = kf.Op(kf.linear, x.x, weight, out=x.y, context=context).run
    return run


def where(kf: Any, place: Place) -> tuple[str, int]:
    if place.device == "cpu":
        return "cpu", 0
    return "cuda:0", int(place.torch.cuda.current_stream().cuda_stream)


def linear_expected(case: Case, place: Place, x: Any) -> tuple[Any, Any]:
    return first, formulas.linear(place.xp, place.exact(x.x), place.exact(x.weight))


def weight_bytes(case: Case) -> float:
    rows, outputs, columns = case.shape
    block = {"q4_0": 18 / BLOCK, "q8_0": 34 / BLOCK}
    weight = case.weight or case.dtype
    return outputs * columns * (WIDTH[weight] if weight in WIDTH else block[weight])


OPERATIONS = {
    "rmsnorm": Operation(
        inputs=rmsnorm_inputs,
        bytes=lambda case: 4.0 * WIDTH[case.dtype] * case.shape[0] * case.shape[1],
        flops=no_flops,
        expected=rmsnorm_expected,
        keyfold=rmsnorm_keyfold,
        peers={**both(rmsnorm_arguments, llama_rmsnorm, formulas.rmsnorm), "flashinfer": rmsnorm_flashinfer},
    ),
    "swiglu": Operation(
        inputs=swiglu_inputs,
        bytes=lambda case: 3.0 * WIDTH[case.dtype] * case.shape[0] * case.shape[1],
        flops=no_flops,
        expected=swiglu_expected,
        keyfold=swiglu_keyfold,
        peers={**both(swiglu_arguments, swiglu_torch, formulas.swiglu), "flashinfer": swiglu_flashinfer},
    ),
    "softmax": Operation(
        inputs=softmax_inputs,
        bytes=lambda case: 2.0 * WIDTH[case.dtype] * case.shape[0] * case.shape[1],
        flops=no_flops,
        expected=softmax_expected,
        keyfold=softmax_keyfold,
        peers=both(lambda x: (x.x,), lambda torch: lambda x: torch.softmax(x, -1), formulas.softmax),
    ),
    "linear": Operation(
        inputs=linear_inputs,
        bytes=lambda case: weight_bytes(case) + WIDTH[case.dtype] * case.shape[0] * (case.shape[1] + case.shape[2]),
        flops=lambda case: 2.0 * case.shape[0] * case.shape[1] * case.shape[2],
        expected=linear_expected,
        keyfold=linear_keyfold,
        peers={"eager": linear_torch, "numpy": by_numpy(linear_arguments, formulas.linear)},
    ),
}
