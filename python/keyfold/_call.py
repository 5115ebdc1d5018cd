# SPDX-License-Identifier: Apache-2.0
"""Call: one operation's args struct being filled, with all that it points to kept alive."""

from __future__ import annotations

import ctypes
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from . import _abi, _allocate
from ._context import Context, default_context
from ._errors import InvalidArgument
from ._library import ARGS_DEFAULTS, check, lib
from ._tensors import Tensor, current_stream, dtype_name
from ._weights import Weight, as_weight

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")


class Call:
    """The args of one operation. Field names are the struct's."""

    def __init__(self, name: str, context: Optional[Context]) -> None:
        self.name = name
        self.given_context = context
        self.args: Any = _abi.OPERATIONS[name].from_buffer_copy(ARGS_DEFAULTS[name])
        self.tensors: dict[str, Tensor] = {}
        self.weight: Optional[Weight] = None
        self.results: list[Callable[[bool], Any]] = []  # what the caller gets, one function each

    def set(self, **options: Any) -> None:
        for field, value in options.items():
            setattr(self.args, field, value)

    def input(self, field: str, value: Any) -> Optional[Tensor]:
        """A tensor that is read; None leaves it out."""
        return None if value is None else self._hold(field, value if isinstance(value, Tensor) else Tensor(value))

    def inputs(self, **values: Any) -> None:
        for field, value in values.items():
            self.input(field, value)

    def inout(self, field: str, value: Any) -> Tensor:
        """A tensor that is written, given by the caller."""
        tensor = value if isinstance(value, Tensor) else Tensor(value)
        if tensor.readonly or isinstance(value, (list, tuple)):
            raise InvalidArgument(f"{self.name}: {field} is read-only, an output must be writable")
        return self._hold(field, tensor)

    def output(self, field: str, given: Any, like: Optional[Tensor], shape: Sequence[int], dtype: Any) -> None:
        """A result: the caller's, or a new one in the framework of `like`."""
        if given is not None:
            self.inout(field, given)
            self.results.append(lambda again: given)
            return
        if like is None:
            raise InvalidArgument(f"{self.name}: {field} cannot be made, its input is None")
        new = _allocate.empty(like, shape, dtype)
        self._hold(field, new.tensor)
        self.results.append(new.result)

    def wanted(self, field: str, given: Any, asked: bool, like: Optional[Tensor], shape: Sequence[int], dtype: Any) -> None:
        """A second result, which is there where the caller gives its place or asks for it."""
        if asked or given is not None:
            self.output(field, given, like, shape, dtype)

    def weights(self, field: str, value: Any) -> Weight:
        self.weight = as_weight(value)
        setattr(self.args, field, ctypes.pointer(self.weight.struct))
        return self.weight

    def _hold(self, field: str, tensor: Tensor) -> Tensor:
        setattr(self.args, field, ctypes.pointer(tensor.struct))
        self.tensors[field] = tensor
        return tensor

    def context(self) -> Context:
        """The caller's, or the default one of the first tensor's device and of its framework's current stream."""
        if self.given_context is not None:
            return self.given_context
        first = next(iter(self.tensors.values()), None)
        return default_context() if first is None else default_context(first.device, current_stream(first))

    def result(self, again: bool) -> Any:
        made = [result(again) for result in self.results]
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    def run(self) -> Any:
        check(getattr(lib, f"kf_{self.name}")(self.context().handle, ctypes.byref(self.args)))
        return self.result(again=False)


def operation(build: "Callable[P, Call]") -> "Callable[P, Any]":
    """The function that runs the call that `build` makes. Op plans with `build` itself, its attribute."""

    @functools.wraps(build)
    def call(*args: Any, **keywords: Any) -> Any:
        return build(*args, **keywords).run()

    call.build = build  # type: ignore[attr-defined]
    call.__signature__ = inspect.signature(build).replace(return_annotation="Any")  # type: ignore[attr-defined]
    return call


def trailing(tensor: Optional[Tensor]) -> int:
    """The last dimension, or 0 of a tensor that has none: the library says what is wrong with it."""
    return tensor.shape[-1] if tensor is not None and tensor.shape else 0


def chosen(dtype: Any, otherwise: Optional[Tensor]) -> str:
    if dtype is not None:
        return dtype_name(dtype)
    return otherwise.dtype if otherwise is not None else "fp32"
