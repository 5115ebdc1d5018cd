# SPDX-License-Identifier: Apache-2.0
"""One exception for each status of the library. The message is the library's own sentence (kf_last_error)."""

from __future__ import annotations

__all__ = ["Error", "InvalidArgument", "Unsupported", "OutOfMemory", "NoDevice", "DeviceError"]


class Error(Exception):
    """Whatever keyfold refuses. ``status`` is the C library's kf_status."""

    status: int = 0


class InvalidArgument(Error, ValueError):
    """The call can never be right: shapes disagree, a value is out of range, an output is read-only."""

    status = 1


class Unsupported(Error, NotImplementedError):
    """The call makes sense; this build, device or version cannot do it."""

    status = 2


class OutOfMemory(Error, MemoryError):
    """An allocation of the library failed; nothing was lost."""

    status = 3


class NoDevice(Error):
    """The device asked for is not there."""

    status = 4


class DeviceError(Error, RuntimeError):
    """The device's driver reported an error."""

    status = 5


BY_STATUS: dict[int, type[Error]] = {
    kind.status: kind for kind in (InvalidArgument, Unsupported, OutOfMemory, NoDevice, DeviceError)
}
