# SPDX-License-Identifier: Apache-2.0
"""Context: a device, its kernels and its team of threads; and what they can do (support)."""

from __future__ import annotations

import ctypes
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _abi
from ._errors import InvalidArgument
from ._library import OPTIONS_DEFAULTS, check, lib
from ._tensors import device_name, device_pair

ISAS = ("auto", "scalar", "avx2", "avx512", "avx512bf16")


class Context:
    """A device, the kernels of one instruction set, and a team of threads. Immutable; threads may share one.

    Parameters
    ----------
    threads
        How many work on a call, the caller among them. 0: as many as the process may run on.
    isa
        The highest instruction set to use: ``"scalar"``, ``"avx2"``, ``"avx512"``, ``"avx512bf16"``. ``"auto"``: the
        best that the CPU has, lowered by the environment variable KEYFOLD_ISA. On CUDA: ``"auto"``, or a compute
        capability times ten, such as 80, to which the kernels are held.
    device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or DLPack's pair.
    fixed_split
        One split length for all shapes, so that a sequence's bits do not depend on the batch either.
    stream
        On CUDA: the address of a cudaStream_t.

    A context is destroyed when nothing holds it, nor any Op or Sequence of it, any longer.
    """

    def __init__(
        self,
        threads: int = 0,
        *,
        isa: Union[str, int] = "auto",
        device: Union[str, tuple[int, int]] = "cpu",
        fixed_split: bool = False,
        stream: Optional[int] = None,
    ) -> None:
        if isa not in ISAS and not isinstance(isa, int):
            raise InvalidArgument(f"isa is {isa!r}, must be one of {', '.join(ISAS)}")
        options = _abi.kf_context_options.from_buffer_copy(OPTIONS_DEFAULTS)
        options.threads = threads
        options.isa = isa if isinstance(isa, int) else ISAS.index(isa)
        options.device.type, options.device.id = device_pair(device)
        options.fixed_split = int(fixed_split)
        options.stream = stream
        made = ctypes.c_void_p()
        check(lib.kf_context_create(ctypes.byref(options), ctypes.byref(made)))
        self.handle = made
        # Not at exit: a daemon thread may still be at work then.
        weakref.finalize(self, lib.kf_context_destroy, made).atexit = False
        info = _abi.kf_context_info(size=ctypes.sizeof(_abi.kf_context_info))
        check(lib.kf_context_get_info(made, ctypes.byref(info)))
        self.threads: int = info.threads
        self.device: str = device_name(info.device.type, info.device.id)
        self.isa: str = lib.kf_isa_string(info.isa).decode() if self.device == "cpu" else f"sm_{info.isa}"
        self.fixed_split: bool = bool(info.fixed_split)
        self.name: str = info.name.decode("utf-8", "replace")

    def __repr__(self) -> str:
        split = ", fixed_split" if self.fixed_split else ""
        return f"keyfold.Context({self.device}, {self.isa}, {self.threads} threads{split}, {self.name!r})"

    def synchronize(self) -> None:
        """Waits until everything enqueued on the context's stream is done. On the CPU nothing is ever pending."""
        check(lib.kf_context_synchronize(self.handle))


_chosen: dict[str, Context] = {}  # by set_default_context
_default: dict[tuple[str, int], Context] = {}
_default_lock = threading.Lock()


def default_context(device: str = "cpu", stream: int = 0) -> Context:
    """The context that calls without ``context=`` use: made at the first of them, with all threads and the best ISA.

    On CUDA there is one for each stream that a framework has made its current one.
    """
    context = _chosen.get(device) or _default.get((device, stream))
    if context is None:
        with _default_lock:
            context = _default.get((device, stream))
            if context is None:
                context = _default[device, stream] = Context(device=device, stream=stream or None)
    return context


def set_default_context(context: Context) -> None:
    """From now on, calls without ``context=`` on tensors of this context's device use it, whatever the stream."""
    _chosen[context.device] = context


@dataclass(frozen=True)
class Support:
    """One row of the table of what this build can do."""

    operation: str  # "attention", ...
    backend: str  # "cpu"
    isa: str  # "avx512"; "auto" where it does not apply
    available: bool  # this machine can run it
    dtypes: tuple[str, ...]
    notes: str  # the kernel's description


def support() -> list[Support]:
    """The table of what this build can do, from the tables that the kernels stand in."""
    table: list[Support] = []
    row: Any = _abi.kf_support_row(size=ctypes.sizeof(_abi.kf_support_row))
    while lib.kf_support(len(table), ctypes.byref(row)) == 0:
        table.append(
            Support(
                operation=lib.kf_op_kind_string(row.kind).decode(),
                backend=(row.backend or b"").decode(),
                isa=lib.kf_isa_string(row.isa).decode(),
                available=bool(row.available),
                dtypes=tuple((row.dtypes or b"").decode().split()),
                notes=(row.notes or b"").decode(),
            )
        )
    return table
