# SPDX-License-Identifier: Apache-2.0
"""docs/06_numerics_discipline.md shows what the smells print, and the formats round as the formats do."""

import random
import struct
from pathlib import Path

import pytest

from .formats import bf16, e4m3, e5m2, fp16, fp32
from .smells import SMELLS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "06_numerics_discipline.md"


@pytest.mark.parametrize("smell", SMELLS, ids=lambda smell: smell.__name__)
def test_the_document_shows_what_is_printed(smell):
    assert "```\n" + "\n".join(smell()) + "\n```" in DOCUMENT.read_text()


def values():
    rng = random.Random(0)
    return [rng.choice((-1, 1)) * 2.0 ** rng.uniform(-30, 15) for _ in range(2000)] + [0.0, 1.0, 65504.0]


def test_fp32_and_fp16_are_the_machines():
    for x in values():
        assert fp32(x) == struct.unpack("f", struct.pack("f", x))[0]
        assert fp16(x) == struct.unpack("e", struct.pack("e", x))[0]
    assert fp16(70000.0) == float("inf")


def test_bf16_is_the_upper_half_of_fp32():
    for x in values():
        bits = struct.unpack("I", struct.pack("f", x))[0]
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        if fp32(x) == x:
            assert bf16(x) == struct.unpack("f", struct.pack("I", bits))[0]


def test_fp8():
    assert [e4m3(x) for x in (448.0, 1000.0, 2.0**-9, 2.0**-10, 1.0625, 17.0)] == [
        448.0,
        448.0,
        2.0**-9,
        0.0,
        1.0,
        16.0,
    ]
    assert [e5m2(x) for x in (57344.0, 65536.0, 2.0**-16, 2.0**-17, 1.125)] == [
        57344.0,
        float("inf"),
        2.0**-16,
        0.0,
        1.0,
    ]
