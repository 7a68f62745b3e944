# SPDX-License-Identifier: BSD-3-Clause
"""Which formats' pairs narrow to codes in one go, and the text of the instructions."""

import re

import pytest

from blockscale.core.parse import parse
from blockscale.kernels.cuda.device import lanes_asm
from blockscale.kernels.cuda.device.lanes_asm import Narrowing, narrowing
from blockscale.kernels.cuda.spec import spec


@pytest.mark.parametrize(
    ("fmt", "how"),
    [
        ("mxfp4", "bytes"), ("mxfp6", "word"), ("mxfp6_e2m3", "word"),
        ("log4:group32:fp32", "powers"), ("log4:group32:bf16", "powers"),
        ("log4:group32:e8m0/floor", ""), ("e2m1:group32:fp32", ""), ("mxfp8", ""), ("mxint8", ""),
        ("e2m1:group32:e8m0/floor:stochastic", ""), ("nvfp4", ""),
        ("binary", ""), ("log4:group32:fp32:recip", ""), ("log3:group32:fp32", ""),
    ],
)  # fmt: skip
def test_what_narrows(fmt: str, how: str) -> None:
    assert narrowing(spec(str(parse(fmt)))).how == how


@pytest.mark.parametrize(
    ("fmt", "arguments"), [("mxfp4", 8), ("mxfp6", 2), ("log4:group32:fp32", 12)]
)
def test_instructions_name_all_that_they_are_given(fmt: str, arguments: int) -> None:
    """And write their result once."""
    ptx = narrowing(spec(str(parse(fmt)))).ptx
    used = [int(n) for n in re.findall(r"\$(\d+)", ptx)]
    assert set(used) == set(range(arguments + 1))
    assert used.count(0) == 1
    assert ptx.startswith("{ .reg")
    assert ptx.endswith("}")
    assert ptx.count("{") == ptx.count("}") == 1
    assert "{second}" not in ptx
    assert "{third}" not in ptx


def test_a_number_twice() -> None:
    assert lanes_asm.both(1.0) == "0x3F803F80"
    assert lanes_asm.both(-2.0) == "0xC000C000"


def test_no_way_is_the_default() -> None:
    assert Narrowing() == Narrowing("", "")
