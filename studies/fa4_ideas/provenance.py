# SPDX-License-Identifier: Apache-2.0
"""A report's frame: command, commit, machine, rows."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def write(path, command, rows):
    if path:
        report = {"command": f"{command} --json {path}", "commit": commit(), "machine": "any: arithmetic", "rows": rows}
        pathlib.Path(path).write_text(json.dumps(report, indent=1) + "\n")
