# SPDX-License-Identifier: Apache-2.0
"""Reads other libraries' memory: DLPack capsules and the buffer protocol, both through ctypes.

A capsule is never consumed. As long as somebody holds it under its first name, its memory stays; when it goes, its own
destructor gives the memory back. So holding the capsule is all that a view has to do.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int, c_int64, c_ssize_t, c_uint32, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple, Optional

from ._abi import CONSTANTS, kf_tensor

KF_MAX_NDIM = CONSTANTS["KF_MAX_NDIM"]

READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
NO_SYNCHRONISATION = -1  # a __dlpack__ stream: the consumer works on the stream that the data is ready on

# Memory that the CPU may read: kDLCPU, and pinned host memory (kDLCUDAHost, kDLROCMHost).
HOST_DEVICES = (1, 3, 11)


class Raw(NamedTuple):
    """What a tensor is, without its meaning. Strides are in elements; None: compact."""

    data: int
    device: tuple[int, int]
    code: int
    bits: int
    lanes: int
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]]
    readonly: bool
    owner: Any


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor: the first field is all that is read."""

    _fields_ = [("tensor", kf_tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class ManagedTensorVersioned(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1.x."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", kf_tensor),
    ]


# By item, not by attribute: a function object of our own, whose types nobody else sets.
capsule_name = ctypes.pythonapi["PyCapsule_GetName"]
capsule_name.restype, capsule_name.argtypes = c_char_p, [py_object]
capsule_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
capsule_pointer.restype, capsule_pointer.argtypes = c_void_p, [py_object, c_char_p]


def export(array: Any) -> Any:
    """The capsule of an object with __dlpack__, of DLPack 1.x where it has that."""
    keywords: dict[str, Any] = {}
    if hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) not in HOST_DEVICES:
        keywords["stream"] = NO_SYNCHRONISATION
    try:
        return array.__dlpack__(max_version=(1, 0), **keywords)
    except TypeError:  # made before DLPack 1.0
        return array.__dlpack__(**keywords)


def from_dlpack(array: Any) -> Raw:
    capsule = export(array)
    name = capsule_name(capsule)
    readonly = False
    if name == b"dltensor_versioned":
        managed = ManagedTensorVersioned.from_address(capsule_pointer(capsule, name))
        if managed.major != 1:
            raise BufferError(f"DLPack version {managed.major}.{managed.minor} is not known, only 0.x and 1.x")
        readonly = bool(managed.flags & READ_ONLY)
        tensor = managed.tensor
    elif name == b"dltensor":
        tensor = ManagedTensor.from_address(capsule_pointer(capsule, name)).tensor
    else:
        raise BufferError(f"__dlpack__ of {type(array).__name__} gave a capsule named {name!r}, expected b'dltensor'")
    ndim = tensor.ndim
    device = (tensor.device.type, tensor.device.id)
    return Raw(
        data=(tensor.data or 0) + tensor.byte_offset,
        device=(1, 0) if device[0] in HOST_DEVICES else device,
        code=tensor.dtype.code,
        bits=tensor.dtype.bits,
        lanes=tensor.dtype.lanes,
        shape=tuple(tensor.shape[:ndim]),
        strides=tuple(tensor.strides[:ndim]) if tensor.strides else None,
        readonly=readonly,
        owner=(array, capsule),
    )


# -------------------------------------------------------------------------------------------------------------- buffers


class PyBuffer(ctypes.Structure):
    """CPython's Py_buffer."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


RECORDS_RO = 0x4 | 0x8 | 0x10  # PyBUF_FORMAT, _ND, _STRIDES

get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
get_buffer.restype, get_buffer.argtypes = c_int, [py_object, POINTER(PyBuffer), c_int]
release_buffer = ctypes.pythonapi["PyBuffer_Release"]
release_buffer.restype, release_buffer.argtypes = None, [POINTER(PyBuffer)]

# struct's letters; "l" and "L" are as wide as the machine's long.
LONG = 8 * ctypes.sizeof(ctypes.c_long)
FORMATS = {
    **{"b": (0, 8), "h": (0, 16), "i": (0, 32), "q": (0, 64), "l": (0, LONG), "n": (0, 64)},
    **{"B": (1, 8), "H": (1, 16), "I": (1, 32), "Q": (1, 64), "L": (1, LONG), "N": (1, 64), "c": (1, 8)},
    **{"e": (2, 16), "f": (2, 32), "d": (2, 64), "?": (6, 8)},
}
NATIVE = ("", "@", "=", "<" if sys.byteorder == "little" else ">")


class Buffer:
    """Holds an object's buffer, which keeps the object from moving it, until nothing holds this."""

    def __init__(self, source: Any) -> None:
        self.view = PyBuffer()
        get_buffer(source, ctypes.byref(self.view), RECORDS_RO)  # raises BufferError or TypeError by itself

    def __del__(self) -> None:
        if self.view.obj:
            release_buffer(ctypes.byref(self.view))


def from_buffer(source: Any) -> Raw:
    owner = Buffer(source)
    view = owner.view
    text = (view.format or b"B").decode()
    order, letter = text[:-1], text[-1:]
    if order not in NATIVE or letter not in FORMATS:
        raise TypeError(f"a buffer of format {text!r} has no dtype here")
    code, bits = FORMATS[letter]
    return Raw(
        data=view.buf or 0,
        device=(1, 0),
        code=code,
        bits=bits,
        lanes=1,
        shape=tuple(view.shape[: view.ndim]),
        strides=elements(tuple(view.strides[: view.ndim]), view.itemsize),
        readonly=bool(view.readonly),
        owner=owner,
    )


# ---------------------------------------------------------------------------------------------------------------- NumPy

KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def from_array_interface(array: Any) -> Raw:
    interface = array.__array_interface__
    text = interface["typestr"]
    order, kind, size = text[0], text[1], int(text[2:] or 0)
    if order not in "|=" and order != NATIVE[-1]:
        raise TypeError(f"an array of dtype {text} has another byte order than this machine")
    if kind == "V" and getattr(getattr(array, "dtype", None), "name", "") == "bfloat16":
        code = 4
    elif kind in KINDS:
        code = KINDS[kind]
    else:
        raise TypeError(f"an array of dtype {getattr(array, 'dtype', text)} has no dtype here")
    strides = interface.get("strides")
    data, readonly = interface["data"]
    return Raw(
        data=data,
        device=(1, 0),
        code=code,
        bits=8 * size,
        lanes=1,
        shape=interface["shape"],
        strides=None if strides is None else elements(strides, size),
        readonly=readonly,
        owner=array,
    )


def elements(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Strides of bytes as strides of elements."""
    if any(stride % size for stride in strides):
        raise ValueError(f"strides of {strides} bytes are not multiples of an element's {size} bytes")
    return tuple(stride // size for stride in strides)


ARRAYS = [c_int64 * size for size in range(KF_MAX_NDIM + 1)]


def pointer(values: tuple[int, ...]) -> Any:
    """An int64 array for a shape or strides."""
    size = len(values)
    return (ARRAYS[size] if size < len(ARRAYS) else c_int64 * size)(*values)
