# SPDX-License-Identifier: Apache-2.0
"""New arrays in the framework of an input, for outputs that the caller does not give, and workspaces."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, NamedTuple, Optional, Sequence

from ._tensors import DTYPES, Tensor

NUMPY_NAMES = {"fp32": "float32", "fp16": "float16", "fp64": "float64"}
TORCH_NAMES = {**NUMPY_NAMES, "bf16": "bfloat16"}
FORMATS = {"fp32": "f", "int32": "i", "int64": "q", "bool": "?", "uint8": "B"}


class New(NamedTuple):
    """A fresh output: its view, and what turns it into what the caller gets, which must be called after each run."""

    tensor: Tensor
    result: Callable[[bool], Any]  # result(again): whether the memory will be written again


def empty(like: Tensor, shape: Sequence[int], dtype: str) -> New:
    """An array without values, on the device and in the framework of `like`.

    A dtype that is none of ours falls back to fp32: the library is about to refuse the input that has it, in its own
    words.
    """
    if dtype not in DTYPES:
        dtype = "fp32"
    if like.framework == "torch":
        return from_torch(like, shape, dtype)
    if like.framework == "cupy":
        return from_cupy(like, shape, dtype)
    if like.framework == "jax":
        return from_jax(shape, dtype)
    if like.device != "cpu":
        raise TypeError(f"no framework to make an output on {like.device}; give out=")
    numpy = import_numpy()
    if numpy is not None:
        return from_numpy(numpy, like, shape, dtype)
    return from_buffer(shape, dtype)


def import_numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def from_numpy(numpy: Any, like: Tensor, shape: Sequence[int], dtype: str) -> New:
    array = numpy.empty(shape, numpy_dtype(numpy, dtype, like))
    return New(Tensor(array, dtype=dtype), lambda again: array)


def numpy_dtype(numpy: Any, dtype: str, like: Optional[Tensor] = None) -> Any:
    """NumPy has no bf16: ml_dtypes' where it is installed, else uint16. What the input has comes first."""
    if like is not None and like.dtype == dtype and like.framework == "numpy":
        return like.array.dtype
    if dtype == "bf16":
        if like is not None and like.framework == "numpy" and like.array.dtype.name == "bfloat16":
            return like.array.dtype
        try:
            import ml_dtypes
        except ImportError:
            return numpy.dtype("uint16")
        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(NUMPY_NAMES.get(dtype, dtype))


def from_torch(like: Tensor, shape: Sequence[int], dtype: str) -> New:
    torch: Any = sys.modules["torch"]
    array = torch.empty(tuple(shape), dtype=getattr(torch, TORCH_NAMES.get(dtype, dtype)), device=like.device)
    return New(Tensor(array), lambda again: array)


def from_cupy(like: Tensor, shape: Sequence[int], dtype: str) -> New:
    cupy: Any = sys.modules["cupy"]
    import numpy  # CuPy needs it

    with cupy.cuda.Device(like.struct.device.id):
        array = cupy.empty(tuple(shape), numpy_dtype(numpy, dtype))
    return New(Tensor(array, dtype=dtype), lambda again: array)


def from_jax(shape: Sequence[int], dtype: str) -> New:
    """JAX's arrays do not change: the output is NumPy's memory, and becomes JAX's array after the run."""
    jax: Any = sys.modules["jax"]
    import numpy  # JAX needs both
    import ml_dtypes  # noqa: F401

    array = numpy.empty(shape, numpy_dtype(numpy, dtype))
    return New(Tensor(array, dtype=dtype), lambda again: jax.numpy.array(array, copy=again))


def from_buffer(shape: Sequence[int], dtype: str) -> New:
    """Without any framework: a memoryview, which has a shape and the common dtypes."""
    if dtype not in FORMATS or 0 in shape:
        raise TypeError(f"no framework to make an output of {dtype}{list(shape)}; give out=")
    count = 1
    for size in shape:
        count *= size
    flat: Any = memoryview(bytearray(count * DTYPES[dtype][1] // 8))
    array = flat.cast(FORMATS[dtype], tuple(shape))
    return New(Tensor(array), lambda again: array)


class Memory:
    """`size` bytes on the CPU that start at a multiple of 64."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.room = (ctypes.c_uint8 * (size + 63))()
        self.address = (ctypes.addressof(self.room) + 63) & ~63

    def view(self) -> memoryview:
        """Its bytes, to read and write."""
        start = self.address - ctypes.addressof(self.room)
        return memoryview(self.room).cast("B")[start : start + self.size]
