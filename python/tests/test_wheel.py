# SPDX-License-Identifier: Apache-2.0
"""The wheel builds, and a fresh environment with nothing else in it computes with it. Skipped offline, and inside an
installed test.
"""

import os
import shutil
import subprocess
import sys
import venv

import pytest

from conftest import ROOT

# With nothing but the standard library: two equal logits, and the library of the wheel itself.
PROGRAM = """
import array, keyfold, os
y = keyfold.softmax(array.array("f", [1.0, 1.0]), out=array.array("f", [0.0, 0.0]))
assert y.tolist() == [0.5, 0.5], y
here, package = os.path.dirname(keyfold.library_path), os.path.dirname(os.path.realpath(keyfold.__file__))
assert here == package, keyfold.library_path
print(keyfold.__version__)
"""

OFFLINE = (
    "No matching distribution",
    "Could not find a version",
    "Temporary failure",
    "Max retries",
    "ConnectionError",
    "NewConnectionError",
)

pytestmark = [
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="no source tree"),
    pytest.mark.skipif(
        bool(os.environ.get("KEYFOLD_TEST_INSTALLED")), reason="the package under test is installed already"
    ),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake"),
]


def clean_environment():
    return {name: value for name, value in os.environ.items() if name not in ("KEYFOLD_LIBRARY", "PYTHONPATH")}


def wheel_command(folder):
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet", "--wheel-dir", str(folder)]
    # The package is under test, not its speed; and a build tree keeps the objects for the next run.
    command += ["--config-settings", "cmake.define.CMAKE_C_FLAGS_RELEASE=-O1"]
    if (ROOT / "build").is_dir():
        command += ["--config-settings", f"build-dir={ROOT / 'build' / 'wheel'}"]
    try:
        import scikit_build_core  # noqa: F401
    except ImportError:
        return command
    return command + ["--no-build-isolation"] if shutil.which("ninja") else command


def test_wheel_in_a_fresh_environment(tmp_path):
    made = subprocess.run(
        wheel_command(tmp_path), capture_output=True, text=True, env=clean_environment(), cwd=tmp_path
    )
    if made.returncode and any(words in made.stdout + made.stderr for words in OFFLINE):
        pytest.skip("scikit-build-core is not installed, and cannot be fetched")
    if "No module named pip" in made.stderr:
        pytest.skip("no pip")
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("keyfold-*.whl")
    assert "-py3-none-" in wheel.name
    try:
        venv.create(tmp_path / "fresh", with_pip=True)
    except subprocess.CalledProcessError:
        pytest.skip("no ensurepip to make an environment with")
    python = tmp_path / "fresh" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, env=clean_environment())
    ran = subprocess.run(
        [str(python), "-c", PROGRAM], capture_output=True, text=True, env=clean_environment(), cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert wheel.name.startswith(f"keyfold-{ran.stdout.strip()}-")
