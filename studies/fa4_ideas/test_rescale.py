# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from . import rescale  # noqa: E402

REPORT = Path(__file__).resolve().parents[2] / "reports" / "zen4" / "fa4-rescale.json"
INF = float("inf")


@pytest.mark.parametrize(
    "tops, threshold, from_right, moves",
    [
        ([0.0, 5.0, 4.0], 0, False, [False, True, False]),
        ([0.0, 5.0, 4.0], 8, False, [False, False, False]),
        ([0.0, 5.0, 9.0], 8, False, [False, False, True]),  # relative to the origin, which is still the first tile's
        ([9.0, 5.0, 0.0], 8, True, [False, False, True]),  # in the order of the walk
        ([0.0, 5.0, -INF], 0, True, [False, False, False]),  # a first sight is no rescale
    ],
)
def test_when_an_origin_moves(tops, threshold, from_right, moves):
    moved, _ = rescale.count(torch.tensor([[tops]]), threshold, from_right)
    assert moved[0, 0].tolist() == moves


def test_tiles_that_a_row_does_not_see_are_no_steps():
    _, seen = rescale.count(torch.tensor([[[0.0, 1.0, -INF]]]), 0, False)
    assert seen[0, 0].tolist() == [False, True, False]


def test_tile_maxima_are_those_of_causal_scores_in_powers_of_two():
    q, k = torch.randn(2, 256, 8), torch.randn(1, 256, 8)
    s = q @ k.transpose(1, 2) * 8**-0.5
    for row in (0, 127, 128, 255):
        for tile in range(2):
            keys = s[:, row, tile * 128 : min(row + 1, (tile + 1) * 128)]
            want = keys.amax(-1) * rescale.LOG2E if keys.numel() else torch.full((2,), -INF)
            assert torch.allclose(rescale.tile_maxima(q, k)[:, row, tile], want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not REPORT.exists(), reason=f"no report here: reports/zen4/{REPORT.name}")
def test_the_reports_shares_are_its_counts():
    for row in json.loads(REPORT.read_text())["rows"]:
        assert row["share"] == pytest.approx(row["rescales"] / row["steps"])
