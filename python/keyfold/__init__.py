# SPDX-License-Identifier: Apache-2.0
"""keyfold: attention, and the fused operations around it, on NumPy, torch, CuPy and JAX arrays.

>>> import numpy as np, keyfold
>>> q = k = v = np.random.default_rng(0).standard_normal((1, 8, 128, 64), dtype=np.float32)
>>> o = keyfold.attention(q, k, v, causal=True)

Every function takes arrays of any framework without copying them, gives its result in the same framework, and raises
``keyfold.Error`` with the library's own sentence. ``Op`` plans a function once and runs it often; ``Sequence`` runs
many ops on one team of threads; ``Context`` says which device, threads and instruction set. The C library's header,
keyfold.h, is the contract.
"""

from ._context import Context, Support, default_context, set_default_context, support
from ._errors import DeviceError, Error, InvalidArgument, NoDevice, OutOfMemory, Unsupported
from ._library import cpu_isa, library_path, version
from ._op import Op, Sequence
from ._operations import (
    Rope,
    attention,
    embedding,
    kv_append,
    linear,
    merge_states,
    rmsnorm,
    rope,
    softmax,
    swiglu,
)
from ._tensors import Tensor
from ._weights import Weight, pack_weight, weight_block

__version__ = version()

__all__ = [
    "Context",
    "DeviceError",
    "Error",
    "InvalidArgument",
    "NoDevice",
    "Op",
    "OutOfMemory",
    "Rope",
    "Sequence",
    "Support",
    "Tensor",
    "Unsupported",
    "Weight",
    "attention",
    "cpu_isa",
    "default_context",
    "embedding",
    "kv_append",
    "library_path",
    "linear",
    "merge_states",
    "pack_weight",
    "rmsnorm",
    "rope",
    "set_default_context",
    "softmax",
    "support",
    "swiglu",
    "version",
    "weight_block",
]
