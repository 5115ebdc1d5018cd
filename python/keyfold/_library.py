# SPDX-License-Identifier: Apache-2.0
"""Finds libkeyfold, loads it, and holds its struct sizes against ours before anything is called.

Looked for, in this order: the file that KEYFOLD_LIBRARY names (and then nothing else); beside this package, where a
wheel has it; build/ of the source tree that this package stands in; the system's libraries.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from pathlib import Path

from . import _abi, _errors

FILE_NAME = "libkeyfold.dylib" if sys.platform == "darwin" else "libkeyfold.so"

# Init functions write a whole struct of the library's size, which may be a later and longer one than ours.
INIT_ROOM = 4096


def candidates() -> list[str]:
    """Where the library may lie, the likeliest first."""
    chosen = os.environ.get("KEYFOLD_LIBRARY")
    if chosen:
        return [chosen]
    here = Path(__file__).resolve().parent
    folders = [here] + [Path(folder) for folder in getattr(sys.modules[__package__], "__path__", [])]
    found = [str(folder / FILE_NAME) for folder in dict.fromkeys(folders)]
    source_tree = here.parent.parent
    if (source_tree / "include" / "keyfold.h").is_file():
        found.append(str(source_tree / "build" / FILE_NAME))
    system = ctypes.util.find_library("keyfold")
    return found + [system] if system else found


def open_library() -> tuple[ctypes.CDLL, str]:
    """The first candidate that is there. One that is there and does not load is an error, not a reason to go on."""
    tried = candidates()
    for path in tried:
        if os.path.dirname(path) and not os.path.exists(path):
            continue
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            raise ImportError(f"keyfold: {path} does not load: {error}") from error
    raise ImportError(
        f"keyfold: no {FILE_NAME}; looked at {', '.join(tried)}. Build it (make), or set KEYFOLD_LIBRARY to its path"
    )


def declare(library: ctypes.CDLL, path: str) -> None:
    """Gives every function of the header its result and parameter types."""
    for name, (result, parameters) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"keyfold: {path} has no {name}: it is older than this package") from None
        function.restype = result
        function.argtypes = parameters


def initial(library: ctypes.CDLL, path: str, init: str, struct: type[ctypes.Structure]) -> bytes:
    """What the library's init function writes into `struct`, cut to the size that we know.

    A later library has longer structs and still takes ours; a shorter one means an older library, which would not see
    all of ours.
    """
    room = ctypes.create_string_buffer(INIT_ROOM)
    getattr(library, init)(ctypes.cast(room, ctypes.POINTER(struct)))
    ours, theirs = ctypes.sizeof(struct), ctypes.c_uint32.from_buffer(room).value
    if theirs < ours:
        version = library.kf_version_string().decode()
        raise ImportError(
            f"keyfold: {path} (version {version}) has {struct.__name__} of {theirs} bytes, this package of {ours}: "
            f"the library is older than the package"
        )
    ctypes.c_uint32.from_buffer(room).value = ours
    return room.raw[:ours]


lib, library_path = open_library()
declare(lib, library_path)

OPTIONS_DEFAULTS = initial(lib, library_path, "kf_context_options_init", _abi.kf_context_options)
ARGS_DEFAULTS: dict[str, bytes] = {
    name: initial(lib, library_path, f"kf_{name}_args_init", struct) for name, struct in _abi.OPERATIONS.items()
}


def check(status: int) -> None:
    """Raises the exception of a status that is not KF_OK, with this thread's last sentence."""
    if status != 0:
        raise _errors.BY_STATUS.get(status, _errors.Error)(lib.kf_last_error().decode("utf-8", "replace"))


def version() -> str:
    """The version of the library that is loaded, ``"MAJOR.MINOR.PATCH"``."""
    return str(lib.kf_version_string(), "ascii")


def cpu_isa() -> str:
    """The highest instruction set that this CPU and the library have, such as ``"avx512"``. KEYFOLD_ISA has no say."""
    return str(lib.kf_isa_string(lib.kf_cpu_isa()), "ascii")
