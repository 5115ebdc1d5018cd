# SPDX-License-Identifier: Apache-2.0
"""The plots of made-up rows: every kind of table becomes an SVG and a PNG that say unit, machine and commit."""

import json

import pytest

from studies.plots.__main__ import main, work

SOURCE = {"machine": "a machine of tests", "commit": "abc1234", "command": "none"}
ATTENTION = {"op": "attention", "shape": [1, 8, 8, 512, 512, 64], "dtype": "bf16", "causal": True,
             "times_us": {"keyfold": 10.0, "cudnn": 12.5}, "flops": 2.7e8, "bytes": 2e6, **SOURCE}  # fmt: skip
DECODE = {"op": "decode", "shape": [1, 32, 8, 1, 8192, 128], "dtype": "bf16", "causal": False,
          "times_us": {"keyfold": 14.3, "triton": 20.0}, "sweep_us": {"G=1": 90.0, "G=8": 25.0, "G=16 64/4/3": 21.0},
          "flops": 1.3e8, "bytes": 3.4e7, **SOURCE}  # fmt: skip
OLD = {
    "op": "decode",
    "shape": [1, 32, 8, 1, 8192, 128],
    "dtype": "bf16",
    "causal": False,
    "times_us": {"keyfold": 14.3},
}
TOKENS = {"op": "step", "model": "a model", "tokens_per_s": {"keyfold": 1000.0, "eager": 40.0}, **SOURCE}
COUNTERS = {
    "op": "ncu",
    "kernel": "triton",
    "shape": [1, 8, 4096, 64],
    "causal": True,
    "tensor": 40.0,
    "sm": 50.0,
    **SOURCE,
}
STEPS = [
    {"op": "flashinfer", "step": step, "found": found, **SOURCE}
    for step, found in {
        "decode": {"plan, later, us": 300.0, "run, later, us": 30.0},
        "compiled": {"modules before": 1, "a window": {"modules": 2}},
        "stale": {"the old plan": 0.1},
        "workspace": {"one sequence": {"bytes after run": 1000}},
    }.items()
]
EXP2 = {
    "rows": [{"degree": 3, "largest_error": 1e-4, "bf16_largest_error": 4e-3, "bf16_rounding_alone": 4e-3}],
    **SOURCE,
}


def test_draws(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    reports, out = tmp_path / "reports", tmp_path / "plots"
    (reports / "studies").mkdir(parents=True)
    (reports / "studies" / "triton.json").write_text(json.dumps([ATTENTION, DECODE]))
    (reports / "steps.json").write_text(json.dumps([TOKENS]))
    (reports / "counters.json").write_text(json.dumps([COUNTERS]))
    (reports / "walk.json").write_text(json.dumps(STEPS))
    (tmp_path / "zen4").mkdir()
    (tmp_path / "zen4" / "fa4-exp2.json").write_text(json.dumps(EXP2))
    (reports / "other.json").write_text('{"not": "rows"}')
    assert main(["--reports", str(reports), "--out", str(out)]) == 0
    names = {path.name for path in out.iterdir()}
    stems = ["studies-triton-attention-tflop", "studies-triton-decode-tb", "studies-triton-sweep", "steps-tokens"]
    stems += ["counters-counters", "walk-steps", "fa4-exp2-error"]
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")}
    for path in out.glob("*.svg"):
        assert path.read_text().lstrip().startswith("<?xml")


def test_tables(tmp_path, capsys):
    (tmp_path / "rows.json").write_text(json.dumps([ATTENTION, DECODE]))
    assert main(["--reports", str(tmp_path), "--tables"]) == 0
    printed = capsys.readouterr().out
    assert "| 1,8,8,512,512,64 causal | 10 | 12.5 | 27 TFLOP/s |" in printed
    assert "| 1,32,8,1,8192,128 | 14.3 | 20 | 1.7 TB/s |" in printed


def test_nothing_to_draw(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert main(["--reports", str(tmp_path), "--out", str(tmp_path / "out")]) == 1


def test_work():
    assert work(ATTENTION)[1] == "TFLOP/s" and work(DECODE)[1] == "TB/s"
    assert work(OLD)[0] == pytest.approx(33.57, rel=1e-3)
