# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/blocks.h: random blocks of GGUF's quantised types and what the gguf package (a second opinion on the formats)
dequantises them to.    pip install gguf && python tests/make_blocks.py > tests/data/blocks.h"""
import gguf
import numpy as np

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def lines(values, form, per_line):
    text = [form.format(v) for v in values]
    return ",\n    ".join(", ".join(text[i : i + per_line]) for i in range(0, len(text), per_line))


def main():
    random = np.random.default_rng(20)
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Made by tests/make_blocks.py: random blocks, and their values by the gguf package.")
    print("// clang-format off")
    for name in TYPES:
        kind = getattr(gguf.GGMLQuantizationType, name)
        values, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = 2 if values == 32 else 1
        data = random.integers(0, 256, (blocks, size), dtype=np.uint8)
        for offset in SCALES[name]:
            scales = random.normal(0, 0.05, blocks).astype(np.float16)
            data[:, offset : offset + 2] = scales.view(np.uint8).reshape(blocks, 2)
        decoded = gguf.quants.dequantize(data, kind).reshape(-1)
        print(f"static const unsigned char {name}_BYTES[] = {{\n    {lines(data.reshape(-1), '{}', 24)}}};")
        print(f"static const double {name}_VALUES[] = {{\n    {lines(decoded, '{:.9g}', 10)}}};")
    print("// clang-format on")


main()
