# SPDX-License-Identifier: BSD-3-Clause
"""Two formats mean the same where the same stored parts have the same values."""

from blockscale.core.parse import parse
from blockscale.export.conversion.meaning import meaning

SAME = (
    ("int8:group32:fp16", "int8:group32:fp16:full"), ("mxfp4", "e2m1:group32:e8m0/given"),
    ("int8:group32:fp16:recip", "int8:group32:fp16"),
    ("int4:tensor:fp32:stochastic", "int4:tensor:fp32"),
)  # fmt: skip
OTHER = (
    "int8:group32:fp16", "int8:group32:bf16", "int8:group64:fp16", "int8:group32:fp16:asym",
    "int8:group32:fp16:asym(fp16)", "int8:group32:fp16:offset", "int8:group32:fp16:offset(fp32)",
    "int8:group32:pow2/floor", "int8:group32:e8m0/floor", "e2m1:group16:e4m3", "uint8:group32:fp16",
    "e2m1:group16:e4m3/inv", "int6:group16:(int8:group16:fp16)", "int6:group16:(int8:group8:fp16)",
    "uint4:group32:fp16:offset(uint6:group8:fp16)", "uint4:group32:fp16:offset(group64:fp16)",
)  # fmt: skip


def test_same() -> None:
    assert all(meaning(parse(one)) == meaning(parse(other)) for one, other in SAME)


def test_other() -> None:
    found = [meaning(parse(each)) for each in OTHER]
    assert len(set(map(str, found))) == len(OTHER)
