# SPDX-License-Identifier: Apache-2.0
"""include/keyfold.h for ctypes: its constants, structs and functions, under their C names and in its order.

python/tests/test_abi.py compiles the header and holds every constant, offset, size and parameter here against it.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

# ------------------------------------------------------------------------------------------------------------ constants

CONSTANTS: dict[str, int] = {
    "KF_OK": 0,
    "KF_INVALID_ARGUMENT": 1,
    "KF_UNSUPPORTED": 2,
    "KF_OUT_OF_MEMORY": 3,
    "KF_NO_DEVICE": 4,
    "KF_DEVICE_ERROR": 5,
    "KF_DEVICE_CPU": 1,
    "KF_DEVICE_CUDA": 2,
    "KF_CODE_INT": 0,
    "KF_CODE_UINT": 1,
    "KF_CODE_FLOAT": 2,
    "KF_CODE_BFLOAT": 4,
    "KF_CODE_BOOL": 6,
    "KF_MAX_NDIM": 6,
    "KF_ISA_AUTO": 0,
    "KF_ISA_SCALAR": 1,
    "KF_ISA_AVX2": 2,
    "KF_ISA_AVX512": 3,
    "KF_ISA_AVX512BF16": 4,
    "KF_OP_NONE": 0,
    "KF_OP_SOFTMAX": 1,
    "KF_OP_ATTENTION": 2,
    "KF_OP_MERGE_STATES": 3,
    "KF_OP_RMSNORM": 4,
    "KF_OP_SWIGLU": 5,
    "KF_OP_ROPE": 6,
    "KF_OP_KV_APPEND": 7,
    "KF_OP_EMBEDDING": 8,
    "KF_OP_LINEAR": 9,
    "KF_OP_COUNT": 10,
    "KF_ROPE_OFF": 0,
    "KF_ROPE_NEOX": 1,
    "KF_ROPE_GPTJ": 2,
    "KF_ROPE_SCALING_NONE": 0,
    "KF_ROPE_SCALING_LINEAR": 1,
    "KF_ROPE_SCALING_LLAMA3": 2,
    "KF_ROPE_SCALING_YARN": 3,
    "KF_LAUNCH_NO_GRAPH": 1 << 0,
    "KF_LAUNCH_NO_DEPENDENT": 1 << 1,
    "KF_ATTENTION_CAUSAL": 1 << 0,
    "KF_ATTENTION_WINDOW_LEFT": 1 << 1,
    "KF_ATTENTION_WINDOW_RIGHT": 1 << 2,
    "KF_ATTENTION_ROPE_Q": 1 << 3,
    "KF_ATTENTION_ROPE_K": 1 << 4,
    "KF_CAST_END": 0,
    "KF_CAST_SUM": 1,
    "KF_CAST_LLAMA": 2,
    "KF_WEIGHT_F32": 0,
    "KF_WEIGHT_F16": 1,
    "KF_WEIGHT_Q4_0": 2,
    "KF_WEIGHT_Q4_1": 3,
    "KF_WEIGHT_Q5_0": 6,
    "KF_WEIGHT_Q5_1": 7,
    "KF_WEIGHT_Q8_0": 8,
    "KF_WEIGHT_Q4_K": 12,
    "KF_WEIGHT_Q5_K": 13,
    "KF_WEIGHT_Q6_K": 14,
    "KF_WEIGHT_BF16": 30,
    "KF_ACTIVATIONS_EXACT": 0,
    "KF_ACTIVATIONS_INT8": 1,
}

# -------------------------------------------------------------------------------------------------------------- structs


class kf_device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class kf_dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class kf_tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", kf_device),
        ("ndim", c_int32),
        ("dtype", kf_dtype),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class kf_context_options(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("threads", c_int32),
        ("device", kf_device),
        ("isa", c_int32),
        ("fixed_split", c_int32),
        ("stream", c_void_p),
        ("launch", c_uint32),
        ("reserved", c_uint32),
    ]


class kf_context_info(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("threads", c_int32),
        ("device", kf_device),
        ("isa", c_int32),
        ("fixed_split", c_int32),
        ("name", c_char * 64),
    ]


class kf_args(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("kind", c_uint32)]


class kf_rope_params(ctypes.Structure):
    _fields_ = [
        ("pairing", c_int32),
        ("dims", c_int32),
        ("scaling", c_int32),
        ("reserved", c_int32),
        ("base", c_double),
        ("factor", c_double),
        ("low_freq_factor", c_double),
        ("high_freq_factor", c_double),
        ("original_context", c_double),
        ("beta_fast", c_double),
        ("beta_slow", c_double),
        ("attention_factor", c_double),
    ]


tensor_p = POINTER(kf_tensor)


class kf_softmax_args(ctypes.Structure):
    _fields_ = [("head", kf_args), ("x", tensor_p), ("y", tensor_p), ("lse", tensor_p)]


class kf_attention_args(ctypes.Structure):
    _fields_ = [
        ("head", kf_args),
        ("q", tensor_p),
        ("k", tensor_p),
        ("v", tensor_p),
        ("o", tensor_p),
        ("lse", tensor_p),
        ("key_lengths", tensor_p),
        ("positions", tensor_p),
        ("alibi_slopes", tensor_p),
        ("sinks", tensor_p),
        ("bias", tensor_p),
        ("mask", tensor_p),
        ("scale", c_float),
        ("softcap", c_float),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("rope", kf_rope_params),
        ("query_offsets", tensor_p),
        ("key_offsets", tensor_p),
        ("page_table", tensor_p),
        ("k_scale", tensor_p),
        ("v_scale", tensor_p),
    ]


class kf_merge_states_args(ctypes.Structure):
    _fields_ = [("head", kf_args), ("o_parts", tensor_p), ("lse_parts", tensor_p), ("o", tensor_p), ("lse", tensor_p)]


class kf_rmsnorm_args(ctypes.Structure):
    _fields_ = [
        ("head", kf_args),
        ("x", tensor_p),
        ("residual", tensor_p),
        ("weight", tensor_p),
        ("y", tensor_p),
        ("sum", tensor_p),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("cast", c_int32),
        ("reserved", c_int32),
    ]


class kf_swiglu_args(ctypes.Structure):
    _fields_ = [("head", kf_args), ("gate", tensor_p), ("up", tensor_p), ("gate_up", tensor_p), ("y", tensor_p)]


class kf_rope_args(ctypes.Structure):
    _fields_ = [
        ("head", kf_args),
        ("x", tensor_p),
        ("y", tensor_p),
        ("positions", tensor_p),
        ("position_offset", c_int64),
        ("rope", kf_rope_params),
    ]


class kf_kv_append_args(ctypes.Structure):
    _fields_ = [
        ("head", kf_args),
        ("k", tensor_p),
        ("v", tensor_p),
        ("k_cache", tensor_p),
        ("v_cache", tensor_p),
        ("slots", tensor_p),
        ("positions", tensor_p),
        ("rope", kf_rope_params),
    ]


class kf_weight(ctypes.Structure):
    _fields_ = [
        ("type", c_int32),
        ("packed", c_int32),
        ("rows", c_int64),
        ("cols", c_int64),
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("row_bytes", c_int64),
        ("device", kf_device),
    ]


weight_p = POINTER(kf_weight)


class kf_embedding_args(ctypes.Structure):
    _fields_ = [
        ("head", kf_args),
        ("table", weight_p),
        ("ids", tensor_p),
        ("y", tensor_p),
        ("scale", c_float),
        ("reserved", c_int32),
    ]


class kf_linear_args(ctypes.Structure):
    _fields_ = [
        ("head", kf_args),
        ("x", tensor_p),
        ("weight", weight_p),
        ("bias", tensor_p),
        ("y", tensor_p),
        ("activations", c_int32),
        ("reserved", c_int32),
    ]


class kf_support_row(ctypes.Structure):
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_int32),
        ("backend", c_char_p),
        ("isa", c_int32),
        ("available", c_int32),
        ("dtypes", c_char_p),
        ("notes", c_char_p),
    ]


# The operations, by name: the struct that kf_<name> takes and kf_<name>_args_init fills.
OPERATIONS: dict[str, type[ctypes.Structure]] = {
    "softmax": kf_softmax_args,
    "attention": kf_attention_args,
    "merge_states": kf_merge_states_args,
    "rmsnorm": kf_rmsnorm_args,
    "swiglu": kf_swiglu_args,
    "rope": kf_rope_args,
    "kv_append": kf_kv_append_args,
    "embedding": kf_embedding_args,
    "linear": kf_linear_args,
}

# ------------------------------------------------------------------------------------------------------------ functions
# Results and parameters. kf_context, kf_op and kf_sequence are opaque: void *.

handle = c_void_p
handle_p = POINTER(c_void_p)
size_p = POINTER(c_size_t)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kf_status_string": (c_char_p, [c_int]),
    "kf_last_error": (c_char_p, []),
    "kf_version_string": (c_char_p, []),
    "kf_context_options_init": (None, [POINTER(kf_context_options)]),
    "kf_context_create": (c_int, [POINTER(kf_context_options), handle_p]),
    "kf_context_destroy": (None, [handle]),
    "kf_context_get_info": (c_int, [handle, POINTER(kf_context_info)]),
    "kf_memory_allocate": (c_int, [handle, c_size_t, handle_p]),
    "kf_memory_free": (None, [handle, c_void_p]),
    "kf_memory_allocate_host": (c_int, [handle, c_size_t, handle_p]),
    "kf_memory_free_host": (None, [handle, c_void_p]),
    "kf_memory_copy": (c_int, [handle, c_void_p, c_void_p, c_size_t]),
    "kf_context_synchronize": (c_int, [handle]),
    "kf_isa_string": (c_char_p, [c_int]),
    "kf_cpu_isa": (c_int, []),
    "kf_op_kind_string": (c_char_p, [c_int]),
    "kf_weight_type_string": (c_char_p, [c_int]),
    "kf_weight_block": (c_int, [c_int, POINTER(c_int32), POINTER(c_int32)]),
    "kf_pack_weight_size": (c_int, [handle, weight_p, size_p]),
    "kf_pack_weight": (c_int, [handle, weight_p, c_void_p, c_size_t, weight_p]),
    **{f"kf_{name}_args_init": (None, [POINTER(struct)]) for name, struct in OPERATIONS.items()},
    **{f"kf_{name}": (c_int, [handle, POINTER(struct)]) for name, struct in OPERATIONS.items()},
    "kf_op_create": (c_int, [handle, POINTER(kf_args), handle_p]),
    "kf_op_bind": (c_int, [handle, POINTER(kf_args)]),
    "kf_op_workspace_size": (c_int, [handle, size_p]),
    "kf_op_run": (c_int, [handle, c_void_p, c_size_t]),
    "kf_op_phase_count": (c_int, [handle, POINTER(c_int32)]),
    "kf_op_item_count": (c_int, [handle, c_int32, POINTER(c_int64)]),
    "kf_op_prepare": (c_int, [handle, c_void_p, c_size_t]),
    "kf_op_run_items": (c_int, [handle, c_void_p, c_size_t, c_int32, c_int32, c_int64, c_int64]),
    "kf_op_destroy": (None, [handle]),
    "kf_sequence_create": (c_int, [handle, handle_p]),
    "kf_sequence_add": (c_int, [handle, handle]),
    "kf_sequence_workspace_size": (c_int, [handle, size_p]),
    "kf_sequence_run": (c_int, [handle, c_void_p, c_size_t]),
    "kf_sequence_destroy": (None, [handle]),
    "kf_support": (c_int, [c_int32, POINTER(kf_support_row)]),
}

STRUCTS: dict[str, type[ctypes.Structure]] = {
    name: value
    for name, value in list(globals().items())
    if name.startswith("kf_") and isinstance(value, type) and issubclass(value, ctypes.Structure)
}
