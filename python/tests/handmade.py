# SPDX-License-Identifier: Apache-2.0
"""A DLPack producer made by hand, which counts what it gave and got back: the protocol's test without a framework."""

import ctypes
from ctypes import PYFUNCTYPE, c_char_p, c_int, c_int64, c_void_p, py_object

import numpy as np

from keyfold import _abi, _dlpack

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
# In a destructor the capsule is an address: as an object it would be brought back to life.
is_valid = PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
get_pointer = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

NAMES = (b"dltensor", b"dltensor_versioned")
alive = {}  # address of the managed tensor: what it holds


@PYFUNCTYPE(None, c_void_p)
def give_back(capsule):
    for name in NAMES:
        if is_valid(capsule, name):
            del alive[get_pointer(capsule, name)]


class Handmade:
    """float32 memory that is offered through __dlpack__ alone."""

    def __init__(self, values, versioned=True, readonly=False, byte_offset=0, device=(1, 0), major=1, strides=True):
        self.memory = np.ascontiguousarray(values, np.float32)
        self.versioned, self.readonly, self.byte_offset = versioned, readonly, byte_offset
        self.device, self.major, self.strides = device, major, strides
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def tensor(self):
        m = self.memory
        shape = (c_int64 * m.ndim)(*m.shape)
        strides = (c_int64 * m.ndim)(*(s // m.itemsize for s in m.strides)) if self.strides else None
        tensor = _abi.kf_tensor(
            m.ctypes.data - self.byte_offset,
            _abi.kf_device(*self.device),
            m.ndim,
            _abi.kf_dtype(2, 32, 1),
            shape,
            strides,
            self.byte_offset,
        )
        return tensor, (self.memory, shape, strides)

    def __dlpack__(self, **keywords):
        self.streams.append(keywords.get("stream"))
        tensor, keep = self.tensor()
        if self.versioned:
            managed = _dlpack.ManagedTensorVersioned(self.major, 0, None, None, int(self.readonly), tensor)
        else:
            if "max_version" in keywords:
                raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
            managed = _dlpack.ManagedTensor(tensor, None, None)
        alive[ctypes.addressof(managed)] = (managed, keep)
        return new_capsule(ctypes.addressof(managed), NAMES[self.versioned], ctypes.cast(give_back, c_void_p))
