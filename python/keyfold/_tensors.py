# SPDX-License-Identifier: Apache-2.0
"""Tensor: a view of NumPy's, torch's, CuPy's, JAX's or anybody's memory, as the library takes it. Nothing is copied."""

from __future__ import annotations

import array as arrays
import functools
import sys
from typing import Any, Optional, Sequence, Union

from . import _dlpack
from ._abi import kf_tensor
from ._errors import InvalidArgument

# Names of dtypes, with DLPack's code and bits.
DTYPES: dict[str, tuple[int, int]] = {
    "fp32": (2, 32),
    "fp16": (2, 16),
    "bf16": (4, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "bool": (6, 8),
    # Known by name so that a refusal can name them, and for bytes.
    "fp64": (2, 64),
    "int8": (0, 8),
    "int16": (0, 16),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
}
NAMES = {value: name for name, value in DTYPES.items()}
ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float64": "fp64", "float": "fp32"}

DEVICES = {1: "cpu", 2: "cuda"}
FRAMEWORKS = {"numpy": "numpy", "torch": "torch", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}


def dtype_name(dtype: Any) -> str:
    """``"bf16"`` of ``"bf16"``, ``"bfloat16"``, ``torch.bfloat16``, ``ml_dtypes.bfloat16``, a NumPy dtype."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__
    else:
        name = getattr(dtype, "name", None) or str(dtype)
    name = name.rpartition(".")[2]
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        raise InvalidArgument(f"dtype is {dtype!r}, must be one of {', '.join(DTYPES)}")
    return name


def device_pair(device: Any) -> tuple[int, int]:
    """DLPack's (type, id) of ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or of such a pair."""
    if isinstance(device, str):
        name, _, index = device.partition(":")
        kinds = [number for number, known in DEVICES.items() if name == known and (index or "0").isdecimal()]
        if not kinds:
            raise InvalidArgument(f"device is {device!r}, must be 'cpu', 'cuda' or 'cuda:INDEX'")
        pair = kinds[0], int(index or 0)
    else:
        pair = int(device[0]), int(device[1])
    if not all(-(2**31) <= number < 2**31 for number in pair):  # ctypes would take its lowest 32 bits
        raise InvalidArgument(f"device is {device!r}; its numbers must fit 32 bits")
    return pair


def framework_of(array: Any) -> Optional[str]:
    """Whose array this is, by the modules of its class and that class's bases; None for anybody else's."""
    kind: Any = type(array)
    return framework_of_class(kind)


@functools.lru_cache(maxsize=256)
def framework_of_class(kind: Any) -> Optional[str]:
    for base in kind.__mro__:
        found = FRAMEWORKS.get(base.__module__.partition(".")[0])
        if found:
            return found
    return None


@functools.lru_cache(maxsize=64)
def device_name(kind: int, index: int) -> str:
    """``"cpu"``, ``"cuda:1"``; ``"device8:0"`` of what is not known here."""
    return "cpu" if kind == 1 else f"{DEVICES.get(kind, f'device{kind}')}:{index}"


def compact(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(int(size), 1)
    return tuple(reversed(strides))


class Tensor:
    """A view of an array of any framework, which it keeps alive.

    Every function takes arrays as they are; this class is for what an array cannot say by itself::

        keyfold.Tensor(x_uint16, dtype="bf16")    # bf16 in a framework that has no such dtype

    Parameters
    ----------
    array
        NumPy (or anything with ``__array_interface__``), torch, CuPy, JAX (or anything with ``__dlpack__``), anything
        with the buffer protocol (``bytes``, ``memoryview``, ``array.array``), or a flat list of ints (int64) or floats
        (fp32).
    dtype
        Reads the elements as another dtype of the same width.
    """

    __slots__ = (
        "array",
        "shape",
        "dtype",
        "device",
        "readonly",
        "framework",
        "struct",
        "_strides",
        "_owner",
        "__weakref__",
    )

    array: Any  # what was given
    shape: tuple[int, ...]
    dtype: str  # "bf16", ...
    device: str  # "cpu", "cuda:0"
    readonly: bool
    framework: Optional[str]  # "numpy", "torch", "cupy", "jax"
    struct: kf_tensor

    def __init__(self, array: Any, dtype: Any = None) -> None:
        if isinstance(array, Tensor):
            raw, array = array._raw(), array.array
        elif isinstance(array, (list, tuple)):
            raw = _dlpack.from_buffer(listed(array))
        else:
            raw = read(array)
        self._fill(array, raw, dtype)

    def _fill(self, array: Any, raw: _dlpack.Raw, dtype: Any) -> None:
        code, bits = raw.code, raw.bits
        if dtype is not None:
            code, bits = DTYPES[dtype_name(dtype)]
            if bits != raw.bits:
                raise InvalidArgument(
                    f"dtype {dtype_name(dtype)} has {bits} bits, the array's elements have {raw.bits}"
                )
        self.array = array
        self.shape = raw.shape
        self._strides = raw.strides
        self.dtype = NAMES.get((code, bits), f"code{code}x{bits}")
        self.device = device_name(*raw.device)
        self.framework = framework_of(array)
        self.readonly = raw.readonly or self.framework == "jax"
        self.struct = kf_tensor(
            raw.data or None,
            raw.device,
            len(raw.shape),
            (code, bits, raw.lanes),
            _dlpack.pointer(raw.shape),
            None if raw.strides is None else _dlpack.pointer(raw.strides),
            0,
        )
        self._owner = raw.owner

    def _raw(self) -> _dlpack.Raw:
        s = self.struct
        return _dlpack.Raw(
            data=s.data or 0,
            device=(s.device.type, s.device.id),
            code=s.dtype.code,
            bits=s.dtype.bits,
            lanes=s.dtype.lanes,
            shape=self.shape,
            strides=self._strides,
            readonly=self.readonly,
            owner=self._owner,
        )

    @classmethod
    def placeholder(
        cls,
        shape: Sequence[int],
        dtype: Any = "fp32",
        *,
        strides: Optional[Sequence[int]] = None,
        device: Union[str, tuple[int, int]] = "cpu",
    ) -> "Tensor":
        """A tensor without data, to plan an Op with. ``op.bind`` must give it data before the op runs."""
        code, bits = DTYPES[dtype_name(dtype)]
        tensor = cls.__new__(cls)
        raw = _dlpack.Raw(
            data=0,
            device=device_pair(device),
            code=code,
            bits=bits,
            lanes=1,
            shape=tuple(shape),
            strides=None if strides is None else tuple(strides),
            readonly=False,
            owner=None,
        )
        tensor._fill(None, raw, None)
        return tensor

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return compact(self.shape) if self._strides is None else self._strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.struct.dtype.bits) // 8

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last one in memory, strides being positive."""
        if 0 in self.shape:
            return 0
        return self.itemsize * (1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides)))

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.struct.data or 0

    def __repr__(self) -> str:
        return f"keyfold.Tensor({self.dtype}{list(self.shape)}, {self.device}, {self.framework or 'no framework'})"


def current_stream(tensor: Tensor) -> int:
    """The address of the cudaStream_t that the tensor's framework works on now; 0 where it is the default stream, does
    not say, or there are no streams."""
    if tensor.device == "cpu":
        return 0
    if tensor.framework == "torch":
        return int(sys.modules["torch"].cuda.current_stream(tensor.struct.device.id).cuda_stream)
    if tensor.framework == "cupy":
        cupy: Any = sys.modules["cupy"]
        with cupy.cuda.Device(tensor.struct.device.id):
            return int(cupy.cuda.get_current_stream().ptr)
    return 0


def read(array: Any) -> _dlpack.Raw:
    """By the first of three protocols that the array has. NumPy's says "read-only" and bf16 in every version."""
    if isinstance(array, type):
        raise TypeError(f"expected an array, got the class {array.__name__}")
    framework = framework_of(array)
    if framework == "numpy":
        return _dlpack.from_array_interface(
            sys.modules["numpy"].asarray(array)
        )  # a scalar of NumPy's has no memory to hold
    if framework is None and hasattr(array, "__array_interface__"):
        return _dlpack.from_array_interface(array)
    if hasattr(array, "__dlpack__"):
        if framework == "jax":
            array.block_until_ready()
        elif framework == "torch":
            return read_torch(array)
        return _dlpack.from_dlpack(array)
    try:
        return _dlpack.from_buffer(array)
    except TypeError as error:
        raise TypeError(
            f"expected an array (__dlpack__, __array_interface__ or the buffer protocol), "
            f"got {type(array).__name__}: {error}"
        ) from None


def read_torch(array: Any) -> _dlpack.Raw:
    """torch exports a tensor of the current device alone, and no bool."""
    torch: Any = sys.modules["torch"]
    if array.is_cuda and array.device.index != torch.cuda.current_device():
        with torch.cuda.device(array.device):
            return read_torch(array)
    if array.dtype is torch.bool:
        return _dlpack.from_dlpack(array.view(torch.uint8))._replace(code=DTYPES["bool"][0])
    return _dlpack.from_dlpack(array)


def listed(values: Sequence[Any]) -> "arrays.array[Any]":
    """A flat list of numbers as an array of int64 or fp32."""
    if all(isinstance(value, int) for value in values):
        return arrays.array("q", values)
    if all(isinstance(value, (int, float)) for value in values):
        return arrays.array("f", values)
    raise TypeError("a list must be flat and of numbers; give an array instead")
