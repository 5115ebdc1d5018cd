# SPDX-License-Identifier: Apache-2.0
"""The header and its ctypes twin cannot drift: a generated C program prints what the compiler made of the header."""

import ctypes
import os
import re
import shutil
import subprocess
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import pytest

from keyfold import _abi, _library

from conftest import ROOT

HEADER = ROOT / "include" / "keyfold.h"

pytestmark = pytest.mark.skipif(not HEADER.is_file(), reason="no source tree: include/keyfold.h is not here")


@pytest.fixture(scope="module")
def header():
    """The header without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def structs_of(header):
    """{struct: [field, ...]}"""
    found = {}
    for name, body in re.findall(r"typedef struct (kf_\w+) \{(.*?)\} \1;", header, flags=re.S):
        found[name] = [
            re.search(r"(\w+)(\[\w+\])?$", field.strip()).group(1) for field in body.split(";") if field.strip()
        ]
    return found


def constants_of(header):
    """Every enumerator, and the plain numbers among the macros."""
    found = []
    for body in re.findall(r"enum(?: \w+)? \{(.*?)\}", header, flags=re.S):
        found += re.findall(r"\bKF_\w+", body)
    return found


def functions_of(header):
    """{function: (result, [parameter type, ...])}, as C text."""
    found = {}
    for result, name, parameters in re.findall(r"KF_API ([\w ]+?[ *]+)(kf_\w+)\(([^)]*)\);", header):
        types = [re.sub(r"\w+$", "", parameter.strip()).strip() for parameter in parameters.split(",")]
        found[name] = (result.strip(), [] if parameters.strip() == "void" else types)
    return found


@pytest.fixture(scope="module")
def compiled(header, tmp_path_factory):
    """What the compiler says: {"struct": size, "struct.field": (offset, size), "CONSTANT": value}."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for struct, fields in structs_of(header).items():
        lines.append(f'printf("{struct} %zu 0\\n", sizeof({struct}));')
        for field in fields:
            lines.append(
                f'printf("{struct}.{field} %zu %zu\\n", offsetof({struct}, {field}), sizeof((({struct} *)0)->{field}));'
            )
    for constant in constants_of(header):
        lines.append(f'printf("{constant} %lld 0\\n", (long long){constant});')
    folder = tmp_path_factory.mktemp("abi")
    source, program = folder / "abi.c", folder / "abi"
    source.write_text(
        "#include <stdio.h>\n#include <keyfold.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run([compiler, "-std=c11", "-I", str(HEADER.parent), str(source), "-o", str(program)], check=True)
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: (int(first), int(second)) for name, first, second in (line.split() for line in output.splitlines())}


def test_every_struct_is_bound(header):
    assert set(structs_of(header)) == set(_abi.STRUCTS)


@pytest.mark.parametrize("name", sorted(_abi.STRUCTS))
def test_struct_layout(name, header, compiled):
    struct = _abi.STRUCTS[name]
    assert [field for field, _ in struct._fields_] == structs_of(header)[name]
    assert ctypes.sizeof(struct) == compiled[name][0]
    for field, _ in struct._fields_:
        member = getattr(struct, field)
        assert (member.offset, member.size) == compiled[f"{name}.{field}"], field


def test_constants(header, compiled):
    assert {name: compiled[name][0] for name in constants_of(header)} == _abi.CONSTANTS


def test_dlpack_codes_and_flags_in_use():
    from keyfold import _operations, _tensors, _weights, _context

    constants = _abi.CONSTANTS
    for name, (code, _) in _tensors.DTYPES.items():
        kind = {"fp": "FLOAT", "bf": "BFLOAT", "in": "INT", "ui": "UINT", "bo": "BOOL"}[name[:2]]
        assert code == constants[f"KF_CODE_{kind}"]
    assert {name: constants[f"KF_WEIGHT_{name.upper()}"] for name in _weights.TYPES} == _weights.TYPES
    assert [constants[f"KF_ISA_{name.upper()}"] for name in _context.ISAS] == list(range(len(_context.ISAS)))
    for prefix, table in (
        ("KF_ROPE_", _operations.PAIRINGS),
        ("KF_ROPE_SCALING_", _operations.SCALINGS),
        ("KF_CAST_", _operations.CASTS),
        ("KF_ACTIVATIONS_", _operations.ACTIVATIONS),
    ):
        assert {name: constants[prefix + name.upper()] for name in table} == table
    for name in ("CAUSAL", "WINDOW_LEFT", "WINDOW_RIGHT", "ROPE_Q", "ROPE_K"):
        assert getattr(_operations, name) == constants[f"KF_ATTENTION_{name}"]


VALUES = {
    "void": None,
    "int": c_int,
    "kf_status": c_int,
    "kf_isa": c_int,
    "int32_t": c_int32,
    "uint32_t": c_uint32,
    "int64_t": c_int64,
    "size_t": c_size_t,
}
OPAQUE = ("kf_context", "kf_op", "kf_sequence")


def ctypes_of(text):
    """ctypes' type for a C type's text."""
    base = text.replace("const", "").replace("*", "").strip()
    stars = text.count("*")
    if base == "char" and stars == 1:
        return c_char_p
    if base == "void" and stars == 1 or base in OPAQUE and stars == 1:
        return c_void_p
    if (base == "void" or base in OPAQUE) and stars == 2:
        return POINTER(c_void_p)
    if stars == 0:
        return VALUES[base]
    assert stars == 1, text
    return POINTER(_abi.STRUCTS.get(base) or VALUES[base])


def test_every_function_is_bound_with_its_types(header):
    functions = functions_of(header)
    assert len(functions) == header.count("KF_API kf_") + header.count("KF_API void") + header.count(
        "KF_API const char"
    )
    assert set(functions) == set(_abi.FUNCTIONS)
    for name, (result, parameters) in functions.items():
        assert ctypes_of(result) is _abi.FUNCTIONS[name][0], name
        assert [ctypes_of(parameter) for parameter in parameters] == _abi.FUNCTIONS[name][1], name
        assert getattr(_library.lib, name).argtypes == _abi.FUNCTIONS[name][1]


def test_init_functions_and_our_sizes_agree():
    for name, struct in _abi.OPERATIONS.items():
        args = struct.from_buffer_copy(_library.ARGS_DEFAULTS[name])
        assert args.head.size == ctypes.sizeof(struct)
        assert args.head.kind == _abi.CONSTANTS[f"KF_OP_{name.upper()}"]
        assert _library.lib.kf_op_kind_string(args.head.kind).decode() == name


def test_a_library_with_shorter_structs_is_refused():
    class Older:
        @staticmethod
        def kf_softmax_args_init(room):
            room.contents.head.size = ctypes.sizeof(_abi.kf_softmax_args) - 8

        @staticmethod
        def kf_version_string():
            return b"0.0.9"

    with pytest.raises(
        ImportError, match=r"old.so \(version 0.0.9\) has kf_softmax_args of 24 bytes, this package of 32"
    ):
        _library.initial(Older, "old.so", "kf_softmax_args_init", _abi.kf_softmax_args)


def test_a_library_with_longer_structs_is_taken_at_our_size():
    class Later:
        @staticmethod
        def kf_softmax_args_init(room):
            room.contents.head.size = ctypes.sizeof(_abi.kf_softmax_args) + 64
            room.contents.head.kind = 1

    defaults = _library.initial(Later, "new.so", "kf_softmax_args_init", _abi.kf_softmax_args)
    assert len(defaults) == ctypes.sizeof(_abi.kf_softmax_args)
    assert _abi.kf_args.from_buffer_copy(defaults[:8]).size == len(defaults)
