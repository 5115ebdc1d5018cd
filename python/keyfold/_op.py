# SPDX-License-Identifier: Apache-2.0
"""Op: an operation that is planned once and run often. Sequence: a list of ops on one team of threads."""

from __future__ import annotations

import ctypes
import inspect
import threading
import weakref
from contextlib import ExitStack
from typing import Any, Callable, Iterable, Optional, Union

from . import _allocate
from ._call import Call
from ._context import Context, default_context
from ._errors import InvalidArgument
from ._library import check, lib
from ._tensors import Tensor


class DeviceMemory:
    """`size` bytes of a CUDA context's device."""

    def __init__(self, context: Context, size: int) -> None:
        made = ctypes.c_void_p()
        check(lib.kf_memory_allocate(context.handle, size, ctypes.byref(made)))
        self.size, self.address = size, made.value
        # The context is held until then.
        weakref.finalize(self, free_memory, context, self.address).atexit = False


def free_memory(context: Context, address: Optional[int]) -> None:
    lib.kf_context_synchronize(context.handle)  # what is enqueued may still use it
    lib.kf_memory_free(context.handle, address)


class Workspace:
    """The caller's workspace, or our own, made at first need and kept: a captured CUDA graph goes on using it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.own: Union[_allocate.Memory, DeviceMemory, None] = None

    def get(self, given: Any, size: int) -> tuple[Optional[int], int]:
        if given is not None:
            tensor = given if isinstance(given, Tensor) else Tensor(given)
            if tensor.readonly:
                raise InvalidArgument("workspace is read-only")
            return tensor.struct.data, tensor.nbytes
        if size == 0:
            return None, 0
        if self.own is None or self.own.size < size:
            self.own = _allocate.Memory(size) if self.context.device == "cpu" else DeviceMemory(self.context, size)
        return self.own.address, self.own.size


def workspace_size(query: Callable[..., int], handle: ctypes.c_void_p) -> int:
    size = ctypes.c_size_t()
    check(query(handle, ctypes.byref(size)))
    return size.value


class Op:
    """An operation planned for its shapes: checked here, then run any number of times::

        op = keyfold.Op(keyfold.attention, q, k, v, causal=True, key_lengths=lengths)
        o = op.run()            # the same array at every run
        lengths[0] += 1         # key lengths, positions, slots and ids are read at each run
        op.run()
        op.bind(q=q2, out=o2)   # other arrays of the same shapes and dtypes

    Parameters
    ----------
    operation
        One of keyfold's functions; the rest is what that function takes. Arrays may be ``Tensor.placeholder(shape,
        dtype)`` if ``bind`` gives them data before the first run.

    One thread at a time uses an op: others wait. ``run_items`` is the exception.
    """

    def __init__(self, operation: Callable[..., Any], *args: Any, **keywords: Any) -> None:
        build = getattr(operation, "build", None)
        if build is None:
            raise TypeError(f"Op plans keyfold's operations, not {operation!r}")
        self._build: Callable[..., Call] = build
        self._signature = inspect.signature(build)
        self._given = self._signature.bind(*args, **keywords).arguments
        self._call: Call = build(*args, **keywords)
        self.context: Context = self._call.context()
        made = ctypes.c_void_p()
        check(lib.kf_op_create(self.context.handle, ctypes.byref(self._call.args.head), ctypes.byref(made)))
        self.handle = made
        # The context is an argument so that it lives until the op is destroyed.
        weakref.finalize(self, destroy, lib.kf_op_destroy, made, self.context).atexit = False
        self._workspace = Workspace(self.context)
        self._lock = threading.Lock()
        self._items_running = 0

    @property
    def kind(self) -> str:
        """``"attention"``, …"""
        return self._call.name

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that a run needs."""
        return workspace_size(lib.kf_op_workspace_size, self.handle)

    @property
    def phases(self) -> int:
        """Phases of a run; see run_items."""
        count = ctypes.c_int32()
        check(lib.kf_op_phase_count(self.handle, ctypes.byref(count)))
        return count.value

    def items(self, phase: int) -> int:
        """Work items of a phase; see run_items."""
        count = ctypes.c_int64()
        check(lib.kf_op_item_count(self.handle, phase, ctypes.byref(count)))
        return count.value

    def bind(self, *args: Any, **keywords: Any) -> None:
        """Puts other arrays in the place of those that are named, as the function names them; the rest stays.

        Same dtypes, shapes and options as planned, else InvalidArgument, and the binding stays as it was.
        """
        given = {**self._given, **self._signature.bind_partial(*args, **keywords).arguments}
        call = self._build(**given)
        with self._idle():
            check(lib.kf_op_bind(self.handle, ctypes.byref(call.args.head)))
            self._given, self._call = given, call

    def run(self, workspace: Any = None) -> Any:
        """Runs, and returns what the function returns. The workspace is any writable array; None: the op's own."""
        with self._idle():
            memory, size = self._workspace.get(workspace, self.workspace_size)
            check(lib.kf_op_run(self.handle, memory, size))
            return self._call.result(again=True)

    def prepare(self, workspace: Any = None) -> None:
        """Begins a run for run_items, with the same workspace."""
        with self._idle():
            check(lib.kf_op_prepare(self.handle, *self._workspace.get(workspace, self.workspace_size)))

    def run_items(
        self, worker: int, phase: int, first: int = 0, count: Optional[int] = None, workspace: Any = None
    ) -> None:
        """For callers with threads of their own: items first … first + count − 1 of a phase.

        A run is: ``prepare`` once; then for each phase in order, every item of the phase, in any order and by any
        threads, all of one phase finished before the next begins. ``worker`` is 0 … context.threads − 1, and not used
        by two threads at the same time. Then ``result()``.
        """
        with self._lock:
            self._items_running += 1
        try:
            memory, size = self._workspace.get(workspace, self.workspace_size)
            count = self.items(phase) - first if count is None else count
            check(lib.kf_op_run_items(self.handle, memory, size, worker, phase, first, count))
        finally:
            with self._lock:
                self._items_running -= 1

    def result(self) -> Any:
        """What the last run wrote, as ``run`` returns it."""
        return self._call.result(again=True)

    def _idle(self) -> "Idle":
        return Idle(self)

    def __repr__(self) -> str:
        return f"keyfold.Op({self.kind}, {self.context.isa}, {self.phases} phases, {self.workspace_size} bytes)"


class Idle:
    """Holds an op for one thread. Refuses while items of it run: their memory would be pulled away."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def __enter__(self) -> None:
        self.op._lock.acquire()
        if self.op._items_running:
            self.op._lock.release()
            raise RuntimeError("run_items of this op is at work in another thread")

    def __exit__(self, *_: Any) -> None:
        self.op._lock.release()


class Sequence:
    """Ops that run one after another on one team of threads, with barriers between them::

        step = keyfold.Sequence([norm, project, append, attend])
        step.run()

    Ops may be bound anew between runs, and may stand in it more than once. Key lengths, positions, slots and ids of all
    ops are read before the first one runs.
    """

    def __init__(self, ops: Iterable[Op] = (), *, context: Optional[Context] = None) -> None:
        waiting = list(ops)
        self.context: Context = context or (waiting[0].context if waiting else default_context())
        made = ctypes.c_void_p()
        check(lib.kf_sequence_create(self.context.handle, ctypes.byref(made)))
        self.handle = made
        self._ops: list[Op] = []
        # The list is an argument so that the ops live until the sequence is destroyed.
        weakref.finalize(self, destroy, lib.kf_sequence_destroy, made, (self.context, self._ops)).atexit = False
        self._workspace = Workspace(self.context)
        self._lock = threading.Lock()
        for op in waiting:
            self.add(op)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self._ops)

    def add(self, op: Op) -> None:
        """Puts an op, of the same context, behind the others."""
        with self._lock:
            check(lib.kf_sequence_add(self.handle, op.handle))
            self._ops.append(op)

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that a run needs."""
        return workspace_size(lib.kf_sequence_workspace_size, self.handle)

    def run(self, workspace: Any = None) -> None:
        """Runs all ops in order. The workspace is any writable array; None: the sequence's own."""
        with self._lock, ExitStack() as held:
            # In one order everywhere, so that no two sequences wait for each other.
            for op in sorted(set(self._ops), key=id):
                held.enter_context(op._idle())
            check(lib.kf_sequence_run(self.handle, *self._workspace.get(workspace, self.workspace_size)))

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"keyfold.Sequence({len(self._ops)} ops, {self.workspace_size} bytes)"


def destroy(function: Callable[..., None], handle: ctypes.c_void_p, keep: Any) -> None:
    """Destroys an op or a sequence while `keep`, what it stands on, is still alive."""
    function(handle)
