# SPDX-License-Identifier: BSD-3-Clause
"""A small interpreter of PTX: what the programs that decode codes make of registers.

Beside it, what every program is run on: elements, and what their codes mean by the reference.
"""

import re
import struct

import torch

from blockscale.core.parse import parse

ELEMENTS = (
    *("int8", "uint8", "int4", "uint4", "int2", "uint2", "uint1", "ternary", "binary"),
    *("e4m3", "e5m2", "e2m1", "e3m0", "e4m3r3", "e5m2r1", "e6m1", "e7m0", "e3m4", "e1m2", "log4"),
    *("log8", "log2", "e2m1r1", "e2m5"),
)


def as_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def bf16_pair(op, *registers: int) -> int:
    """One bfloat16 operation on both halves, rounded to nearest even by torch."""
    out = 0
    for shift in (0, 16):
        values = [torch.tensor(as_float((r >> shift & 0xFFFF) << 16)) for r in registers]
        rounded = op(*values).to(torch.bfloat16)
        out |= (rounded.view(torch.int16).item() & 0xFFFF) << shift
    return out


def f32_bits(value: torch.Tensor) -> int:
    return value.view(torch.int32).item() & 0xFFFFFFFF


def permute(a: int, b: int, selector: int) -> int:
    table = (a | b << 32).to_bytes(8, "little")
    picks = [selector >> 4 * i & 15 for i in range(4)]
    assert max(picks) < 8  # bit 3 would repeat a sign
    return int.from_bytes(bytes(table[p] for p in picks), "little")


OPS = {
    "mov.b32": lambda a: a,
    "prmt.b32": permute,
    "shl.b32": lambda a, n: a << n,
    "shr.u32": lambda a, n: a >> n,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "add.u32": lambda a, b: a + b,
    "mul.lo.u32": lambda a, b: a * b,
    "shf.r.wrap.b32": lambda a, b, n: (a | b << 32) >> n,
    "lop3.b32": lambda a, b, c, lut: sum(
        (lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32)
    ),
    "add.rn.bf16x2": lambda a, b: bf16_pair(torch.add, a, b),
    "mul.rn.bf16x2": lambda a, b: bf16_pair(torch.mul, a, b),
    "sub.rn.f32": lambda a, b: f32_bits(torch.tensor(as_float(a)) - torch.tensor(as_float(b))),
    "cvt.rn.f16x2.e4m3x2": lambda a: sum(
        (
            torch.tensor([a >> 8 * i & 0xFF], dtype=torch.uint8)
            .view(torch.float8_e4m3fn)
            .half()
            .view(torch.int16)
            .item()
            & 0xFFFF
        )
        << 16 * i
        for i in range(2)
    ),
    "cvt.f32.f16": lambda a: f32_bits(
        torch.tensor([a - (a >> 15 << 16)], dtype=torch.int16).view(torch.float16).float()[0]
    ),
    "cvt.rn.bf16x2.f32": lambda a, b: bf16_pair(lambda v: v, (a >> 16) << 16 | b >> 16),
}


def execute(ptx: str, outputs: int, inputs: list[int]) -> list[int]:
    registers = {f"${outputs + i}": value for i, value in enumerate(inputs)}

    def read(name: str) -> int:
        if name.startswith("0f"):
            return int(name[2:], 16)
        return registers[name] if name in registers else int(name, 0)

    body = re.sub(r"\.reg[^;]*;", "", ptx.strip()[1:-1])
    body = re.sub(r"mov.b32 \{p, q\}, (\w+);", r"and.b32 p, \1, 0xFFFF; shr.u32 q, \1, 16;", body)
    for line in filter(None, (part.strip() for part in body.split(";"))):
        op, rest = line.split(None, 1)
        target, *sources = (part.strip() for part in rest.split(","))
        registers[target] = OPS[op](*map(read, sources)) & 0xFFFFFFFF
    return [registers[f"${i}"] for i in range(outputs)]


def halves(register: int) -> torch.Tensor:
    bits = torch.tensor([register & 0xFFFF, register >> 16], dtype=torch.int32)
    return (bits << 16).view(torch.float32)


def decoded(name: str, pattern: int) -> torch.Tensor:
    element = parse(f"{name}:tensor:fp32").element
    bits = torch.tensor([pattern], dtype=torch.uint8)
    codes = element.from_bits(bits) if element.bits < 8 else bits.view(element.code_dtype)
    return element.decode(codes)[0].float()
