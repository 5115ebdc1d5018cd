# SPDX-License-Identifier: Apache-2.0
"""Where a comparison runs: torch on a CUDA device or on the CPU, or NumPy alone; its arrays, and how a result is read."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Optional

CPU_CACHE = 64 << 20  # bytes that no last-level cache of a machine's own exceeds by much
COLD = 5  # the sets of a rotation together are this many times the last-level cache


_reasons: dict[str, str] = {}


def importable(name: str) -> Any:
    """A module, or None: it may be absent, or present and unable to load."""
    try:
        return importlib.import_module(name)
    except Exception as reason:  # an extension module may raise anything
        _reasons[name] = " ".join(str(reason).split())[:120] or type(reason).__name__
        return None


def not_importable(name: str) -> str:
    """The sentence that says so, once importable() has given None."""
    return f"{name.partition('.')[0]} cannot be imported ({_reasons.get(name, 'not tried')})"


class Place:
    """A device and the framework whose arrays are used there."""

    def __init__(self, device: str = "auto", seed: int = 0) -> None:
        self.torch: Any
        self.numpy: Any
        self.torch, self.numpy = importable("torch"), importable("numpy")
        cuda = self.torch is not None and self.torch.cuda.is_available()
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {device!r}, must be auto, cpu or cuda")
        if device == "cuda" and not cuda:
            raise ValueError("device is cuda: torch with a CUDA device is needed")
        if self.torch is None and self.numpy is None:
            raise ValueError("neither torch nor NumPy can be imported")
        self.device = ("cuda" if cuda else "cpu") if device == "auto" else device
        self.xp: Any = self.torch if self.torch is not None else self.numpy
        self.cache = CPU_CACHE
        self.stream: Any = None
        self.made: dict[Any, Any] = {}
        if self.torch is not None:
            self.torch.manual_seed(seed)
        else:
            self.random = self.numpy.random.default_rng(seed)
        if self.device == "cuda":
            self.cache = self.torch.cuda.get_device_properties(0).L2_cache_size
            self.stream = self.torch.cuda.Stream()

    def once(self, case: Any, what: str, make: Callable[[], Any]) -> Any:
        """What all sets of a case share, such as a plan or a compiled function: made at the first need, kept for this
        case alone."""
        if self.made.get("case") is not case:
            self.made = {"case": case}
        if what not in self.made:
            self.made[what] = make()
        return self.made[what]

    # -------------------------------------------------------------------------------------------------------- arrays

    def dtype(self, name: str) -> Any:
        if self.torch is not None:
            return {"fp32": self.torch.float32, "fp16": self.torch.float16, "bf16": self.torch.bfloat16}[name]
        known = {"fp32": self.numpy.float32, "fp16": self.numpy.float16}
        if name not in known:
            raise ValueError(f"{name} needs torch")
        return known[name]

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        if self.torch is not None:
            return self.torch.randn(shape, device=self.device).to(self.dtype(dtype))
        return self.random.standard_normal(shape, dtype=self.numpy.float32).astype(self.dtype(dtype))

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Any:
        """NaN everywhere: what a call does not write is found."""
        if self.torch is not None:
            return self.torch.full(shape, float("nan"), dtype=self.dtype(dtype), device=self.device)
        return self.numpy.full(shape, float("nan"), dtype=self.dtype(dtype))

    def of_bytes(self, data: bytes) -> Any:
        """A new uint8 array with these bytes."""
        if self.torch is not None:
            return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).to(self.device, copy=True)
        return self.numpy.frombuffer(bytearray(data), dtype=self.numpy.uint8)

    def from_numpy(self, array: Any) -> Any:
        return array if self.torch is None else self.torch.from_numpy(array).to(self.device)

    def arange(self, count: int) -> Any:
        return self.numpy.arange(count) if self.torch is None else self.torch.arange(count, device=self.device)

    def exact(self, array: Any) -> Any:
        """In float64."""
        return array.double() if self.torch is not None else array.astype(self.numpy.float64)

    def to_numpy(self, array: Any) -> Any:
        """In fp32, without a copy where it is fp32 on the CPU already."""
        return array.float().cpu().numpy() if self.torch is not None else array.astype(self.numpy.float32, copy=False)

    def finish(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    # ------------------------------------------------------------------------------------------------------ provenance

    @property
    def machine(self) -> str:
        versions = f"torch {self.torch.__version__}" if self.torch is not None else f"NumPy {self.numpy.__version__}"
        if self.device == "cuda":
            return f"{self.torch.cuda.get_device_name(0)}, {versions}"
        return f"{processor()}, {len(os.sched_getaffinity(0))} threads, {versions}"


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def load_build(name: str, path: str) -> ModuleType:
    """This package once more, over another build of the library, so that two builds stand in one table."""
    import keyfold

    alias = f"keyfold_{name}"
    spec = importlib.util.spec_from_file_location(alias, keyfold.__file__, submodule_search_locations=keyfold.__path__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = os.environ.get("KEYFOLD_LIBRARY")
    os.environ["KEYFOLD_LIBRARY"] = path
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del os.environ["KEYFOLD_LIBRARY"]
        else:
            os.environ["KEYFOLD_LIBRARY"] = before
    return module
