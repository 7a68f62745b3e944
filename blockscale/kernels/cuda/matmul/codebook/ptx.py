# SPDX-License-Identifier: BSD-3-Clause
"""PTX that looks 4-bit codes up in a table of 16 bfloat16, by permuting bytes.

A permutation picks four of eight bytes by three bits each. So 16 bytes take two of them, and a
third one picks by the fourth bit; the upper and the lower bytes of the values are looked up apart.
"""

import struct
from collections.abc import Callable

from blockscale.core.element import ElementNumbers

SELECT = "0xE4"  # lop3: c ? a : b
AND_OR = "0xEA"  # lop3: (a & b) | c
REGISTERS = ".reg .b32 c0, c1, c2, c3, c4, c5;"


def is_table(e: ElementNumbers) -> bool:
    """Whether the element is a table of 16 bfloat16."""
    return e.family == "codebook" and e.bits == 4 and all(_bits(v) & 0xFFFF == 0 for v in e.values)


def looked_up(e: ElementNumbers, one: str, other: str, out: Callable[[int, int], str]) -> list[str]:
    """Codes of two registers -> the i-th of both as a pair, the first one's in the low half.

    out: (i, its half) -> the register that gets the pair i, or "" where it is not asked for; codes
        4 to 7, in the upper halves of `one` and `other`, are pairs 0 to 3 of the half 1
    """
    bits = [_bits(value) >> 16 for value in e.values]
    upper, lower = ([b >> 8 for b in bits], [b & 0xFF for b in bits])
    lines = [REGISTERS]
    for odd in range(2):
        if odd:  # codes 1 and 3 of both in turn, and in the upper half 5 and 7
            lines += [f"shr.u32 c0, {one}, 4;", f"lop3.b32 c0, {other}, c0, 0xF0F0F0F0, {SELECT};"]
        else:
            lines += [f"shl.b32 c0, {other}, 4;", f"lop3.b32 c0, c0, {one}, 0xF0F0F0F0, {SELECT};"]
        lines += [
            "shr.u32 c1, c0, 1;",
            f"lop3.b32 c1, c1, 0x44444444, 0x32103210, {AND_OR};",
            "and.b32 c0, c0, 0x77777777;",
        ]
        for half in range(2):
            first, second = out(odd, half), out(odd + 2, half)
            if half and (first or second):
                lines += ["shr.u32 c0, c0, 16;", "shr.u32 c1, c1, 16;"]
            if first or second:
                lines += [*_bytes(upper, "c2"), *_bytes(lower, "c3")]
            lines += [f"prmt.b32 {first}, c3, c2, 0x5140;"] if first else []
            lines += [f"prmt.b32 {second}, c3, c2, 0x7362;"] if second else []
    return lines


def _bytes(table: list[int], to: str) -> list[str]:
    """The bytes of a table of 16 at the four codes of c0 and c1 -> a register."""
    words = [f"0x{struct.unpack('<I', bytes(table[i : i + 4]))[0]:08X}" for i in range(0, 16, 4)]
    return [
        f"mov.b32 c4, {words[0]};",
        f"prmt.b32 c4, c4, {words[1]}, c0;",
        f"mov.b32 c5, {words[2]};",
        f"prmt.b32 c5, c5, {words[3]}, c0;",
        f"prmt.b32 {to}, c4, c5, c1;",
    ]


def _bits(value: float) -> int:
    """Of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
