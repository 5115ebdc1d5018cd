# SPDX-License-Identifier: Apache-2.0
"""GGUF files in torch: the reader (twin of src/model/gguf.c), the blocks' values (twin of src/math/blocks.h), and a
writer of bf16 models without a vocabulary.

    "GGUF", u32 version, u64 tensors, u64 keys; each key: text, u32 type, value; each tensor: text, u32 dims, u64
    dim[dims] with the contiguous one first, u32 type, u64 offset; the data begins at the next multiple of the
    alignment.

    block of 32  bytes  layout                 value
    Q8_0         34     fp16 d, int8 q[32]     d q
    Q4_0         18     fp16 d, nibbles[16]    d (q - 8)
    Q4_1         20     fp16 d, m, nibbles[16] d q + m
A nibbles' byte i holds values i (low half) and i + 16.
"""

import struct
from dataclasses import dataclass

import torch

ALIGNMENT = 32  # where the file does not say general.alignment
BLOCK = 32
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", UINT32: "I", 5: "i", FLOAT32: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
PLAIN = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
BLOCK_BYTES = {Q4_0: 18, Q4_1: 20, Q8_0: 34}


@dataclass
class Tensor:
    shape: tuple  # rows first, as torch has it
    type: int
    data: memoryview

    def values(self, device="cpu"):
        """fp32, exactly what the blocks stand for."""
        raw = torch.frombuffer(self.data, dtype=torch.uint8).to(device)
        if self.type in PLAIN:
            return raw.view(PLAIN[self.type]).reshape(self.shape).float()
        blocks = raw.reshape(-1, BLOCK_BYTES[self.type])
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        if self.type == Q8_0:
            return (scale * blocks[:, 2:].contiguous().view(torch.int8).float()).reshape(self.shape)
        head = 4 if self.type == Q4_1 else 2
        nibbles = blocks[:, head:]
        q = torch.cat((nibbles & 15, nibbles >> 4), 1).float()
        if self.type == Q4_0:
            return (scale * (q - 8)).reshape(self.shape)
        return (scale * q + blocks[:, 2:4].contiguous().view(torch.float16).float()).reshape(self.shape)


class Reader:
    """keys: {name: value}, tensors: {name: Tensor} of a file that is trusted to be one."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = memoryview(bytearray(file.read()))
        self.at = 4
        version, tensors, keys = self.take("I"), self.take("Q"), self.take("Q")
        if bytes(self.bytes[:4]) != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        self.keys = {self.text(): self.value(self.take("I")) for _ in range(keys)}
        entries = []
        for _ in range(tensors):
            name = self.text()
            shape = tuple(self.take("Q") for _ in range(self.take("I")))[::-1]
            entries.append((name, shape, self.take("I"), self.take("Q")))
        begin = aligned(self.at, self.keys.get("general.alignment", ALIGNMENT))
        self.tensors = {name: self.tensor(shape, kind, begin + at) for name, shape, kind, at in entries}

    def take(self, code):
        value = struct.unpack_from("<" + code, self.bytes, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        length = self.take("Q")
        self.at += length
        return bytes(self.bytes[self.at - length : self.at]).decode()

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, count = self.take("I"), self.take("Q")
            return [self.value(kind) for _ in range(count)]
        return self.take(SCALARS[kind])

    def tensor(self, shape, kind, begin):
        if kind not in PLAIN and kind not in BLOCK_BYTES:
            raise ValueError(f"a tensor of GGUF's type {kind} is not read here")
        count = 1
        for extent in shape:
            count *= extent
        size = count * PLAIN[kind].itemsize if kind in PLAIN else count // BLOCK * BLOCK_BYTES[kind]
        return Tensor(shape, kind, self.bytes[begin : begin + size])


def aligned(at, alignment=ALIGNMENT):
    return (at + alignment - 1) // alignment * alignment


def write(path, keys, tensors):
    """keys: {name: int, float or text}; tensors: {name: (shape, GGUF's type, bytes)}."""

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def key(name, value):
        kind, code = (
            (STRING, None) if isinstance(value, str) else (FLOAT32, "f") if isinstance(value, float) else (UINT32, "I")
        )
        return text(name) + struct.pack("<I", kind) + (text(value) if code is None else struct.pack("<" + code, value))

    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
        file.write(b"".join(key(*item) for item in keys.items()))
        at = 0
        for name, (shape, kind, data) in tensors.items():
            file.write(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, at))
            at = aligned(at + len(data))
        for _, _, data in tensors.values():
            file.write(bytes(aligned(file.tell()) - file.tell()))
            file.write(data)
