# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/bindings.md and python/README.md are built and run, each where its compiler is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keyfold

from conftest import ROOT

DOCUMENT = ROOT / "docs" / "bindings.md"
README = ROOT / "python" / "README.md"
LIBRARY = Path(keyfold.library_path).resolve().parent

pytestmark = pytest.mark.skipif(not DOCUMENT.is_file(), reason="no source tree")


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.S | re.M)


def run(command, folder, **environment):
    # The library's file name carries its version; programs are linked by the plain name and find it by its soname.
    paths = {"LD_LIBRARY_PATH": str(folder), "LIBRARY_PATH": str(folder), "CPATH": str(ROOT / "include")}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **paths, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    for name in ("libkeyfold.so", "libkeyfold.so.0"):
        (tmp_path / name).symlink_to(keyfold.library_path)
    return tmp_path


def says_what_it_should(output):
    lines = output.strip().splitlines()
    assert lines[0] == "1.5 3.5 0.6931"
    assert lines[1].startswith("attention: softcap is -1")


def test_rust(folder):
    if shutil.which("rustc") is None:
        pytest.skip("no rustc")
    (source,) = blocks(DOCUMENT, "rust")
    (folder / "main.rs").write_text(source)
    run(["rustc", "--edition=2021", "-Adead_code", "-Dwarnings", "main.rs", "-L", f"native={folder}"], folder)
    says_what_it_should(run(["./main"], folder))


def test_go(folder):
    if shutil.which("go") is None:
        pytest.skip("no go")
    (source,) = blocks(DOCUMENT, "go")
    (folder / "main.go").write_text(source)
    settings = {"GOCACHE": str(folder / "cache"), "GO111MODULE": "off", "CGO_LDFLAGS": f"-L{folder}"}
    run(["go", "build", "-o", "main", "main.go"], folder, **settings)
    says_what_it_should(run(["./main"], folder))


def test_zig(folder):
    zig = os.environ.get("ZIG") or shutil.which("zig")
    if zig is None:
        pytest.skip("no zig")
    (source,) = blocks(DOCUMENT, "zig")
    (folder / "main.zig").write_text(source)
    caches = {"ZIG_LOCAL_CACHE_DIR": str(folder / "cache"), "ZIG_GLOBAL_CACHE_DIR": str(folder / "cache")}
    translated = run([*zig.split(), "translate-c", "-lc", str(ROOT / "include" / "keyfold.h")], folder, **caches)
    (folder / "keyfold.zig").write_text(translated)
    run([*zig.split(), "build-exe", "main.zig", f"-L{folder}", "-lkeyfold", "-lc"], folder, **caches)
    says_what_it_should(run(["./main"], folder))


def test_readme():
    """Its blocks run in one session, with the arrays that they take for granted; torch's only where torch is."""
    rng = np.random.default_rng(0)
    k_new, v_new, q = rng.standard_normal((3, 1, 2, 1, 32), dtype=np.float32)
    given = {
        "np": np,
        "keyfold": keyfold,
        "decode": dict(k_new=k_new, v_new=v_new, q=q, o=np.empty_like(q), slots=np.array([0])),
        "raw": rng.integers(0, 60, (16, 18), dtype=np.uint8),
        "x": rng.standard_normal((2, 32), dtype=np.float32),
    }
    given["decode"].update(k_cache=np.zeros((1, 2, 8, 32), np.float32), v_cache=np.zeros((1, 2, 8, 32), np.float32))
    ran = 0
    for block in blocks(README, "python"):
        if "import torch" in block:
            try:
                import torch  # noqa: F401
            except ImportError:
                continue
        names = {**given, **given["decode"]}
        exec(compile(block, str(README), "exec"), names)
        ran += 1
    assert ran >= 3 and sys.version_info >= (3, 9)
