# SPDX-License-Identifier: Apache-2.0
"""2^x on multiply-adds: how exact need a polynomial be whose result is rounded to bf16?

    python -m studies.fa4_ideas.exp2 [--json reports/zen4/fa4-exp2.json]

x = n + f with 0 <= f < 1; 2^f = c0 + f (c1 + f (c2 + f c3)) in fp32, n goes into the exponent. The coefficients are the polynomial's of
least largest relative error, found here by Remez's exchange, not taken from anyone. Every fp32 f of [0, 1) that is a multiple of 2^-22
is tried. Needs NumPy.
"""

import argparse

import numpy as np

from . import provenance

BITS = 22


def remez(degree, rounds=12):
    """Coefficients, lowest first, of the polynomial p of least max |p(f) / 2^f - 1| on [0, 1]."""
    points = (1 - np.cos(np.pi * np.arange(degree + 2) / (degree + 1))) / 2
    fine = np.linspace(0, 1, 20001)
    for _ in range(rounds):
        # p(f_i) / 2^f_i - 1 = (-1)^i e: linear in the coefficients and e
        rows = np.vander(points, degree + 1, increasing=True) / 2.0 ** points[:, None]
        signs = (-1.0) ** np.arange(degree + 2)
        solution = np.linalg.solve(np.hstack([rows, -signs[:, None]]), np.ones(degree + 2))
        error = np.polynomial.polynomial.polyval(fine, solution[:-1]) / 2.0**fine - 1
        edges = np.flatnonzero(np.diff(np.sign(error)) != 0)
        pieces = np.split(np.arange(len(fine)), edges + 1)
        if len(pieces) != degree + 2:
            break
        points = np.array([fine[piece[np.argmax(np.abs(error[piece]))]] for piece in pieces])
    return solution[:-1]


def horner(coefficients, f):
    """In fp32 with fused multiply-adds, whose product is exact in float64."""
    value = np.full(f.shape, np.float32(coefficients[-1]))
    for c in coefficients[-2::-1]:
        value = (value.astype(np.float64) * f + np.float32(c)).astype(np.float32)
    return value


def to_bf16(x):
    """Rounded to nearest, ties to even; the values still as fp32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def study(degree):
    coefficients = remez(degree)
    f = np.arange(1 << BITS, dtype=np.float64) / (1 << BITS)
    exact = 2.0**f
    value = horner(coefficients, f)
    error = np.abs(value / exact - 1)
    rounded, best = to_bf16(value), to_bf16(exact)
    return {
        "degree": degree,
        "coefficients": [float(np.float32(c)) for c in coefficients],
        "largest_error": float(error.max()),
        "bits": float(-np.log2(error.max())),
        "bf16_largest_error": float(np.abs(rounded / exact - 1).max()),
        "bf16_rounding_alone": float(np.abs(best / exact - 1).max()),
        "bf16_results_changed": float(np.mean(rounded != best)),
        "bf16_rms_error": float(np.sqrt(np.mean((rounded / exact - 1) ** 2))),
        "bf16_rms_rounding_alone": float(np.sqrt(np.mean((best / exact - 1) ** 2))),
    }


def main():
    parser = argparse.ArgumentParser(prog="python -m studies.fa4_ideas.exp2")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = [study(degree) for degree in (1, 2, 3, 4, 5)]
    for row in rows:
        print(
            f"degree {row['degree']}: largest relative error {row['largest_error']:.2e} ({row['bits']:.1f} bits); in bf16 "
            f"{row['bf16_largest_error']:.5f}, rounding alone {row['bf16_rounding_alone']:.5f}; {100 * row['bf16_results_changed']:.2f} % of the results differ"
        )
    provenance.write(options.json, "python -m studies.fa4_ideas.exp2", rows)


if __name__ == "__main__":
    main()
