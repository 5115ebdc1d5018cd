# SPDX-License-Identifier: Apache-2.0
"""Rounding to the number formats that attention meets, in plain Python: every function takes a float and gives the nearest number of
the format as a float, ties to even.

    format   exponent, fraction bits   largest         smallest normal   smallest subnormal
    fp32     8, 23                     3.4e38          2^-126            2^-149
    bf16     8, 7                      3.4e38          2^-126            2^-133
    fp16     5, 10                     65504           2^-14             2^-24
    E4M3     4, 3                      448, no inf     2^-6              2^-9
    E5M2     5, 2                      57344           2^-14             2^-16
"""

import math


def to(bits, smallest_exponent, largest, x, overflow=math.inf):
    """Nearest number with `bits` fraction bits; exponents below the smallest normal one share its spacing."""
    if x == 0 or math.isnan(x) or math.isinf(x):
        return x
    spacing = 2.0 ** (max(math.frexp(x)[1] - 1, smallest_exponent) - bits)
    value = round(x / spacing) * spacing  # Python rounds ties to even
    return value if abs(value) <= largest else math.copysign(overflow, x)


def fp32(x):
    return to(23, -126, (2 - 2**-23) * 2.0**127, x)


def bf16(x):
    return to(7, -126, (2 - 2**-7) * 2.0**127, x)


def fp16(x):
    return to(10, -14, 65504.0, x)


def e4m3(x):
    """Saturating, as conversions for machine learning are; the format itself has NaN above 448."""
    return to(3, -6, 448.0, x, overflow=448.0)


def e5m2(x):
    return to(2, -14, 57344.0, x)


def flushed(x, smallest=2.0**-126):
    """What a unit makes of a subnormal fp32 that treats it as zero."""
    return 0.0 if abs(x) < smallest else x
