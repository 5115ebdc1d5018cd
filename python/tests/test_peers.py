# SPDX-License-Identifier: Apache-2.0
"""keyfold.peers on the CPU: every operation against its peers, and that a wrong result, a refusal, a cold rotation and
the quartile come out as said."""

import json
from pathlib import Path

import numpy as np
import pytest

import keyfold
from keyfold.peers import Case, Place, asked, formulas, measure, report, timing
from keyfold.peers.__main__ import main
from keyfold.peers.measure import OPERATIONS
from keyfold.peers.operation import WIDTH, LeftOut, missing
from keyfold.peers.place import importable

TINY = {
    "attention": "1,4,2,8,8,16",
    "decode": "2,4,2,1,24,16",
    "rope_attention": "1,4,2,8,8,16",
    "rmsnorm": "3,64",
    "swiglu": "3,64",
    "softmax": "3,64",
    "linear": "2,24,64",
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """One set of inputs and short pieces: what is timed here does not matter."""
    monkeypatch.setattr("keyfold.peers.place.CPU_CACHE", 1)
    monkeypatch.setattr("keyfold.peers.timing.PIECE_US", 1.0)


@pytest.fixture
def place():
    return Place("cpu")


def run(tmp_path, *options):
    path = tmp_path / "rows.json"
    status = main(["--device", "cpu", "--rounds", "2", "--json", str(path), *options])
    return status, json.loads(path.read_text())


@pytest.mark.parametrize("op", TINY)
def test_rows(tmp_path, op):
    status, rows = run(tmp_path, "--op", op, "--shape", TINY[op], "--dtype", "fp32", "--peers", "sdpa,eager,numpy")
    assert status == 0
    assert len(rows) == {"attention": 2, "linear": 2}.get(op, 1)
    for row in rows:
        assert row["op"] == op and row["shape"] == [int(n) for n in TINY[op].split(",")]
        assert {"keyfold", "numpy"} <= row["times_us"].keys() and "numpy" in row["ratios"], row["left_out"]
        assert row["failed"] == [] and row["errors"]["keyfold"] < 1e-5
        assert row["command"].startswith("python -m keyfold.peers --device cpu") and row["machine"] and row["commit"]
        torch_ran = importable("torch") is not None
        assert ("eager" in row["times_us"]) == torch_ran, row["left_out"]


def lacking(row):
    """What a row of a report ought to say and does not."""
    shape, times, causal = row.get("shape"), row.get("times_us"), row.get("causal", "absent")
    sizes = shape.split("x") if isinstance(shape, str) else shape  # linear: outputs x inputs, or all products of a step
    said = {
        "op": row.get("op") in OPERATIONS,
        "shape": shape == "step" or (bool(sizes) and all(int(n) > 0 for n in sizes)),
        "dtype": row.get("dtype") in WIDTH,
        "causal": isinstance(causal, bool) and not (causal and row["op"] not in ("attention", "rope_attention")),
        "times_us": isinstance(times, dict) and times.get("keyfold", 0) > 0 and all(t > 0 for t in times.values()),
        "ratios": isinstance(row.get("ratios"), dict) and row["ratios"].keys() <= (times or {}).keys() - {"keyfold"},
        "commit": row.get("commit", "unknown") != "unknown",
        "machine": bool(row.get("machine")),
        "command": bool(row.get("command")),
    }
    return [name for name, is_there in said.items() if not is_there]


def test_the_rows_of_reports_say_what_they_are():
    reports = sorted((Path(__file__).resolve().parents[2] / "reports").glob("*/peers-*.json"))
    if not reports:
        pytest.skip("the reports are not beside the package's tests here")
    for path in reports:
        rows = json.loads(path.read_text())
        assert rows, path.name
        for row in rows:
            assert lacking(row) == [], f"{path.name}: {row}"


def test_a_row_that_lacks_a_field_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYFOLD_COMMIT", "0123abc")
    row = run(tmp_path, "--op", "softmax", "--shape", "3,64", "--dtype", "fp32", "--peers", "numpy")[1][0]
    assert lacking(row) == []
    for name in ("op", "shape", "dtype", "causal", "times_us", "ratios", "commit", "machine", "command"):
        assert name in lacking({key: value for key, value in row.items() if key != name})
    for name, value in (
        ("causal", None),
        ("causal", True),
        ("shape", [3, 0]),
        ("shape", []),
        ("times_us", {"numpy": 1.0}),
    ):
        assert name in lacking({**row, name: value}), (name, value)


def test_bf16(tmp_path):
    pytest.importorskip("torch")
    options = ("--shape", "1,4,2,8,8,16", "--dtype", "bf16", "--match", "causal", "--peers", "sdpa,eager")
    status, rows = run(tmp_path, "--op", "attention,rope_attention", *options)
    assert len(rows) == 2
    assert status == 0 and all("eager" in row["times_us"] for row in rows)


def test_rope_of_q_alone_and_of_both(tmp_path):
    for ways, options in ((["q"], []), (["qk"], ["--rotated", "qk"]), (["q", "qk"], ["--rotated", "q,qk"])):
        status, rows = run(tmp_path, "--op", "rope_attention", "--shape", "1,4,2,8,8,16", "--dtype", "fp32", *options)
        assert status == 0 and [row["rotated"] for row in rows] == ways
        for way, row in zip(ways, rows):
            assert row["errors"]["keyfold"] < 1e-5 and f"rotates {way}" in report.title(row)


def test_a_wrong_result_fails_the_row(place):
    case = Case("softmax", (3, 64), "fp32")
    row = measure(case, place, peers=["numpy"], count=2, extra={"ours": lambda case, place, x: lambda: 0 * x.x})
    assert "ours" not in row["times_us"] and "off" in row["left_out"]["ours"]
    assert [reason for reason in row["failed"] if reason.startswith("ours")]


def test_nan_is_wrong(place):
    case, nan = Case("softmax", (3, 64), "fp32"), place.poisoned((3, 64), "fp32")
    row = measure(case, place, peers=[], count=2, extra={"ours": lambda case, place, x: lambda: nan})
    assert row["failed"]


def test_a_peer_that_refuses_is_left_out_by_name(place):
    def refuse(case, place, x):
        raise LeftOut("no such thing here")

    row = measure(Case("softmax", (3, 64), "fp32"), place, peers=["numpy", "fa4"], count=2, extra={"other": refuse})
    assert row["left_out"]["other"] == "no such thing here" and "softmax" in row["left_out"]["fa4"]
    assert row["failed"] == [] and "numpy" in row["ratios"]
    assert "without other: no such thing here" in report.line(row)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--op", "sort"], "--op is sort"),
        (["--op", "softmax", "--shape", "1,2,3"], "softmax is rows, N"),
        (["--op", "softmax", "--shape", "3,x"], "--shape is 3,x"),
        (["--op", "softmax", "--shape", "0,4"], "--shape is 0,4"),
        (["--op", "linear", "--weights", "q9_9"], "--weights is q9_9"),
        (["--op", "softmax", "--peers", "numpy,nobody"], "--peers is nobody"),
        (["--op", "softmax", "--rounds", "0"], "--rounds is 0"),
        (["--op", "softmax", "--library", "other=/nowhere/libkeyfold.so"], "--library is other=/nowhere"),
        (["--asked"], "--asked needs --reports"),
    ],
)
def test_bad_options(tmp_path, options, said):
    with pytest.raises(SystemExit, match=f"^keyfold.peers: .*{said}"):
        run(tmp_path, *options)


def test_a_result_is_kept_until_its_set_comes_again():
    class Output:
        alive = 0

        def __init__(self):
            Output.alive += 1

        def __del__(self):
            Output.alive -= 1

    rotation = timing.Rotation([Output, Output, Output])
    rotation.run(2)
    assert Output.alive == 2
    rotation.run(5)
    assert Output.alive == 3


def test_rotation_goes_round():
    seen = []
    rotation = timing.Rotation([lambda n=n: seen.append(n) for n in range(3)])
    rotation.run(2)
    rotation.run(5)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_every_round_begins_with_another():
    order = []
    pieces = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    times = timing.rounds(pieces, 1)
    assert order == list("abcbcacab") and {len(t) for t in times.values()} == {1}


def test_lower_quartile():
    assert timing.lower_quartile([1.0, 2.0, 3.0, 4.0, 5.0]) == 1.5
    assert timing.lower_quartile([7.0]) == 7.0


def test_cold_sets_exceed_the_cache(place, monkeypatch):
    place.cache = 10_000
    row = measure(Case("softmax", (3, 64), "fp32"), place, peers=[], count=2)
    assert row["sets"] * row["bytes"] >= 5 * place.cache


def test_another_build(tmp_path, place):
    from keyfold.peers.place import load_build

    other = load_build("other", keyfold.library_path)
    assert other.Op is not keyfold.Op
    row = measure(Case("softmax", (3, 64), "fp32"), place, peers=[], count=2, builds={"other": other})
    assert set(row["times_us"]) == {"keyfold", "other"} and "other" in row["ratios"]


def test_plot(tmp_path, place):
    pytest.importorskip("matplotlib")
    row = measure(Case("softmax", (3, 64), "fp32"), place, peers=["numpy"], count=2)
    written = report.plot(str(tmp_path / "peers.svg"), [row])
    assert [name.rpartition(".")[2] for name in written] == ["svg", "png"]
    assert all((tmp_path / name).stat().st_size > 1000 for name in written)


def test_formulas_against_the_header():
    """rope's angles and pairing, which the comparison would otherwise take from itself."""
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 8), dtype=np.float32)
    from keyfold.peers.attention import rope_angles

    theirs = formulas.rope(np, x[0, 0].astype(np.float64), rope_angles(Place("cpu"), 3, 5, 8))
    np.testing.assert_allclose(theirs, keyfold.rope(x, position_offset=3)[0, 0], atol=1e-5)


def asked_row(case, times, ratios, **more):
    return {"op": case.op, "shape": list(case.shape), "dtype": case.dtype, "causal": case.causal, "rotated": case.rotated,
            "times_us": times, "ratios": ratios, "bytes": 0, **more}  # fmt: skip


def test_asked():
    decode = Case("decode", (1, 32, 8, 1, 8192, 128), "bf16")
    demand = next(d for d in asked.demands() if d.case == decode)
    times = {"keyfold": 14.0, "cudnn": 15.0, "flashinfer": 25.0, "flashinfer_tc": 28.0}
    rows = [asked_row(decode, times, {"cudnn": 1.05, "flashinfer": 1.7, "flashinfer_tc": 1.9})]
    verdict = asked.judge(demand, rows)
    assert (verdict.reached, verdict.asked, verdict.beside, verdict.holds) == (1.05, 1.0, "cudnn", "yes")
    assert asked.judge(demand, []).holds == "not measured"
    del rows[0]["ratios"]["flashinfer"]
    assert "without flashinfer" in asked.judge(demand, rows).beside


def test_asked_beside_a_peer_at_the_copy_rate():
    case = Case("swiglu", (4096, 11008), "bf16")
    demand = next(d for d in asked.demands() if d.case == case and d.peers == ("compile",))
    row = asked_row(case, {"keyfold": 101.0, "compile": 100.0}, {"compile": 0.99}, copy_TB_s=4.0)
    assert asked.judge(demand, [{**row, "bytes": 3.9e8}]).holds == "yes"  # 97 % of the rate
    assert asked.judge(demand, [{**row, "bytes": 3.6e8}]).holds == "NO"


def test_asked_of_every_case():
    """What is asked of is measured."""
    for demand in asked.demands():
        names = [name for name, (cases, _) in asked.REPORTS.items() if demand.case in cases]
        assert any(set(demand.peers) <= set(asked.peers_of(name, demand.case.op)) for name in names), demand
    assert asked.summary(asked.table([])).endswith("are not measured")


def test_absent_peers_are_named_with_their_reason(place, monkeypatch, capsys):
    monkeypatch.setattr("keyfold.peers.operation.LIBRARIES", {"fa4": "no_such_module"})
    monkeypatch.setattr(place, "torch", np)
    monkeypatch.setattr(place, "device", "cuda")
    assert missing(place, ["numpy", "prefill", "fa4"]) == {
        "fa4": "no_such_module cannot be imported (No module named 'no_such_module')"
    }
    rows = [asked_row(Case("decode", (1, 1, 1, 1, n, 64)), {}, {}, left_out={"fa4": "why"}) for n in range(2)]
    assert asked.absent(rows) == ["without fa4: decode 1,1,1,1,0,64 bf16, decode 1,1,1,1,1,64 bf16: why"]
    assert asked.absent(2 * rows) == ["without fa4: 4 cases: why"]


def test_nodes_of_every_process():
    rows = [{"node_us": 1.172}, {"node_us": 0.991}, {"node_us": 1.172}, {}]
    assert asked.nodes(rows)[0].endswith(": 0.991, 1.172 us") and asked.nodes([{}]) == []


def test_table(place):
    row = measure(Case("softmax", (3, 64), "fp32"), place, peers=["numpy"], count=2)
    head, line, case, _ = report.table([row])
    assert head.endswith("| numpy |") and line.count("---") == 4 and case.startswith("| softmax 3,64 fp32 |")
    assert report.table([{**row, "times_us": {}}]) == []


def test_no_timing(tmp_path):
    status, rows = run(
        tmp_path, "--op", "softmax", "--shape", "3,64", "--dtype", "fp32", "--peers", "numpy", "--timing", "none"
    )
    assert status == 0 and rows[0]["times_us"] == {} and rows[0]["errors"]["keyfold"] < 1e-5
