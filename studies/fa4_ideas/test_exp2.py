# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from . import exp2  # noqa: E402

REPORT = Path(__file__).resolve().parents[2] / "reports" / "zen4" / "fa4-exp2.json"


def test_the_cubic_is_equioscillating_and_far_under_bf16s_own_error():
    c = exp2.remez(3)
    f = np.linspace(0, 1, 100001)
    error = np.polynomial.polynomial.polyval(f, c) / 2.0**f - 1
    assert abs(error).max() < 1e-4
    assert np.isclose(error.max(), -error.min(), rtol=1e-3)  # no cubic has a smaller largest error
    assert exp2.study(3)["bf16_largest_error"] < 1.02 * exp2.study(3)["bf16_rounding_alone"]


@pytest.mark.skipif(not REPORT.exists(), reason=f"no report here: reports/zen4/{REPORT.name}")
def test_the_report_is_what_the_program_finds():
    for row in json.loads(REPORT.read_text())["rows"]:
        for name, value in exp2.study(row["degree"]).items():
            assert row[name] == pytest.approx(value, rel=1e-6), (row["degree"], name)
