# SPDX-License-Identifier: BSD-3-Clause
"""How weights are read: which codes lie in words, and where scales go."""

import dataclasses

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.cuda.matmul import reading as module
from blockscale.kernels.cuda.matmul.reading import is_bfloat16, reading, significand
from blockscale.kernels.numbers import lower


def test_what_is_read() -> None:
    """The tests of products would pass with everything dequantized to float32."""
    fmts = [parse(f) for name, f in CATALOG.items() if name != "nvfp4_e5m3"]  # which is restated
    assert all(reading(str(fmt), 4096) for fmt in fmts if fmt.bits in (1, 4))
    assert reading("e4m3:group32:e8m0/floor", 4096).fold == "bytes"
    assert reading("e2m1:group16:e4m3", 4096).fold == "codes"
    assert reading("int4:group128:fp32", 4096).per_block
    assert reading("int4:group128:fp32", 128).words == 0  # one block is all of a row
    assert reading("int16:tensor:fp32", 4096) is None
    assert reading("uint4:group32:e8m0/floor:asym", 4096).planes == 0
    assert reading("int8:group16:(uint8:tensor:fp32)", 4096) is None
    assert reading("int8:group16:e4m3", 4096) is None  # 7 + 4 bits are no bfloat16
    assert reading("e3m4:group16:e4m3", 4096) is None


def test_small_blocks_and_six_bits() -> None:
    for fmt, small, six in (
        ("int4:group32:fp32", True, False), ("int4:group128:fp32", False, False),
        ("mxfp4", False, False), ("mxfp6", False, True), ("int6:token:fp32", False, True),
        ("e3m2:group16:e8m0/floor", False, False),
    ):  # fmt: skip
        r = reading(str(parse(fmt)), 4096)
        assert (r.small_blocks, r.six_bits) == (small, six), fmt


@pytest.mark.parametrize("name", ["int8", "uint8", "e4m3", "e1m6", "binary", "ternary", "log8"])
def test_the_bits_of_every_value(name: str) -> None:
    """Against the element's own values: odd whole numbers times powers of two."""
    element = parse(f"{name}:tensor:fp32").element
    values = (
        element.values()
        if isinstance(element, Minifloat)
        else element.limits(True)
        if (name in ("int8", "uint8"))
        else (-1.0, 1.0)
    )
    bits = 0
    for value in values:
        if value == value and abs(value) not in (0.0, float("inf")):
            whole = abs(value).as_integer_ratio()[0]
            bits = max(bits, (whole // (whole & -whole)).bit_length())
    assert bits <= max(significand(element.numbers(True)), 1) <= 8


@pytest.mark.parametrize("family", ["unheard", None])
def test_elements_that_nothing_here_knows(
    family: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many bits as known ones: no reading, so that they are dequantized; never integers."""
    fmt = parse("int4:channel0:fp32")
    assert is_bfloat16(fmt)
    numbers = lower(fmt)
    other = None
    if family is not None:
        other = dataclasses.replace(
            numbers, element=dataclasses.replace(numbers.element, family=family)
        )
    monkeypatch.setattr(module, "lower", lambda fmt: other)
    assert not is_bfloat16(fmt)
    assert reading.__wrapped__("int4:channel0:fp32", 4096) is None  # past what others asked before
