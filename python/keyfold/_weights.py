# SPDX-License-Identifier: Apache-2.0
"""Weight: a matrix [N, K] of a linear layer or an embedding, dense, in GGUF's blocks, or packed for a context's
kernels.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from . import _abi
from ._allocate import Memory
from ._context import Context, default_context
from ._errors import InvalidArgument
from ._library import check, lib
from ._tensors import Tensor

TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "bf16": 30,
}
NAMES = {number: name for name, number in TYPES.items()}
DENSE = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
DTYPE_OF = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


def weight_type(kind: Any) -> str:
    """``"q4_0"`` of ``"Q4_0"``, ``"fp32"`` (→ ``"f32"``), GGUF's number, or the gguf package's GGMLQuantizationType."""
    if isinstance(kind, str):
        name = DENSE.get(kind.lower(), kind.lower())
        if name in TYPES:
            return name
    elif int(kind) in NAMES:
        return NAMES[int(kind)]
    raise InvalidArgument(f"weight type is {kind!r}, must be one of {', '.join(TYPES)}")


def weight_block(kind: Any) -> tuple[int, int]:
    """Values in a block of the type, and the block's bytes: ``(32, 18)`` for ``"q4_0"``; ``(1, 2)`` for ``"bf16"``."""
    values, size = ctypes.c_int32(), ctypes.c_int32()
    check(lib.kf_weight_block(TYPES[weight_type(kind)], ctypes.byref(values), ctypes.byref(size)))
    return values.value, size.value


class Weight:
    """A matrix of N rows (output features) and K columns (input features), which keeps its memory alive.

    Parameters
    ----------
    data
        Dense: a float array [N, K] whose last stride is 1. Quantised or packed: bytes, flat or [N, bytes of a row] (as
        the gguf package gives them), from any framework.
    type
        ``"q4_0"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"``, ``"q8_0"``, ``"q4_k"``, ``"q5_k"``, ``"q6_k"``, ``"f32"``,
        ``"f16"``, ``"bf16"``. Absent: by the array's dtype.
    rows, cols
        N and K, where the array's shape does not say them.
    packed
        data holds what ``pack_weight`` made (``packed.tobytes()``): the packed weight's ``layout`` (``True`` is that of every
        CPU form); type, rows and cols are the original's.
    """

    def __init__(
        self,
        data: Any,
        type: Any = None,
        *,
        rows: Optional[int] = None,
        cols: Optional[int] = None,
        packed: int = False,
    ) -> None:
        tensor = Tensor(data)
        if type is None and tensor.dtype not in DENSE:
            raise InvalidArgument(f"weight: dtype is {tensor.dtype}; give type=, such as 'q4_0', for bytes")
        self.type: str = DENSE[tensor.dtype] if type is None else weight_type(type)
        if tensor.ndim and tensor.shape[-1] > 1 and tensor.strides[-1] != 1:
            raise InvalidArgument(f"weight: last stride is {tensor.strides[-1]}, must be 1")
        if tensor.ndim == 2 and not packed:
            values, size = weight_block(self.type)
            rows = tensor.shape[0] if rows is None else rows
            cols = tensor.shape[1] * tensor.itemsize // size * values if cols is None else cols
        if rows is None or cols is None:
            raise InvalidArgument("weight: rows and cols must be given for flat or packed data")
        self.struct = _abi.kf_weight(
            type=TYPES[self.type],
            packed=int(packed),
            rows=rows,
            cols=cols,
            data=tensor.struct.data,
            bytes=tensor.nbytes,
            row_bytes=tensor.strides[0] * tensor.itemsize if tensor.ndim == 2 and not packed else 0,
            device=tensor.struct.device,
        )
        self.owner: Any = tensor

    @property
    def rows(self) -> int:
        return int(self.struct.rows)

    @property
    def cols(self) -> int:
        return int(self.struct.cols)

    @property
    def packed(self) -> bool:
        return bool(self.struct.packed)

    @property
    def layout(self) -> int:
        """0, or the number of the packed form, which the constructor's ``packed`` takes again."""
        return int(self.struct.packed)

    @property
    def nbytes(self) -> int:
        return int(self.struct.bytes)

    @property
    def framework(self) -> Optional[str]:
        return self.owner.framework if isinstance(self.owner, Tensor) else None

    def moved(self, data: Any) -> "Weight":
        """This weight with its bytes in other memory: ``data`` holds a copy of them, on any device.

        ``packed.moved(torch.frombuffer(packed.tobytes(), dtype=torch.uint8).cuda())`` takes a packed weight to the GPU.
        """
        tensor = Tensor(data)
        if tensor.nbytes != self.nbytes:
            raise InvalidArgument(f"weight: {tensor.nbytes} bytes are given, it has {self.nbytes}")
        other = Weight.__new__(Weight)
        other.type, other.owner = self.type, tensor
        other.struct = _abi.kf_weight.from_buffer_copy(self.struct)
        other.struct.data, other.struct.device = tensor.struct.data, tensor.struct.device
        return other

    def tobytes(self) -> bytes:
        """A copy of the bytes, to be kept and given to ``Weight(…, packed=layout)`` later."""
        return ctypes.string_at(self.struct.data, self.struct.bytes)

    def __repr__(self) -> str:
        return f"keyfold.Weight({self.type}[{self.rows}, {self.cols}]{', packed' if self.packed else ''})"


def as_weight(value: Any) -> Weight:
    return value if isinstance(value, Weight) else Weight(value)


def pack_weight(weight: Any, *, context: Optional[Context] = None) -> Weight:
    """Lays a weight out for the kernels of the context's instruction set, once; ``linear`` is faster with it. No value
    changes.

    Parameters
    ----------
    weight
        A Weight, or a float array [N, K].

    Returns
    -------
    Weight
        At most 1.1 × the bytes of the source, plus 4 KiB. It is for contexts of the same ISA; others refuse it.
    """
    source = as_weight(weight)
    context = context or default_context()
    size = ctypes.c_size_t()
    check(lib.kf_pack_weight_size(context.handle, ctypes.byref(source.struct), ctypes.byref(size)))
    memory = Memory(size.value)
    packed = Weight.__new__(Weight)
    packed.type, packed.struct, packed.owner = source.type, _abi.kf_weight(), memory
    check(
        lib.kf_pack_weight(
            context.handle, ctypes.byref(source.struct), memory.address, memory.size, ctypes.byref(packed.struct)
        )
    )
    return packed
