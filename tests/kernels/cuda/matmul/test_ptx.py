# SPDX-License-Identifier: BSD-3-Clause
"""The PTX that decodes words, run by an interpreter of PTX: every code of every element."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import ptx
from tests.kernels.cuda.matmul.ptx_machine import ELEMENTS, decoded, execute, halves


@pytest.mark.some(8)
@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_in_every_place(name: str) -> None:
    element = parse(f"{name}:tensor:fp32").element
    text = ptx.decode_words(element.numbers(True))
    count, codes = 32 // element.bits, 1 << element.bits
    expected = [decoded(name, pattern) for pattern in range(codes)]
    for start in range(codes):
        places = [[(start + i * step) % codes for i in range(count)] for step in (1, 3)]
        words = [sum(c << i * element.bits for i, c in enumerate(each)) for each in places]
        for i, register in enumerate(execute(text, count, words)):
            for got, place in zip(halves(register), places, strict=True):
                want = expected[place[i]]
                same = torch.equal(got, want) or bool(got.isnan() & want.isnan())
                assert same, (name, i, place[i], got, want)


@pytest.mark.parametrize("fraction_bits", [0, 2, 6])
def test_every_exponent_byte(fraction_bits: int) -> None:
    text = ptx.decode_exponents(fraction_bits)
    for byte in range(256):
        four = [byte, (byte + 100) % 256, 255, 0]
        word = sum(each << 8 * i for i, each in enumerate(four))
        got = torch.cat([halves(r) for r in execute(text, 2, [word])])
        bytes_ = torch.tensor(four, dtype=torch.int32)
        want = torch.where(
            bytes_ == 255, torch.nan, pow2(bytes_.clamp(max=254) - 127 - fraction_bits)
        )
        assert torch.allclose(got, want, rtol=0, atol=0, equal_nan=True), byte


@pytest.mark.slow
@pytest.mark.parametrize("lift", [0, 117])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e3m4"])
def test_every_inner_scale(name: str, lift: int) -> None:
    element = parse(f"{name}:tensor:fp32").element
    lift -= 10 if name == "e5m2" else 0  # its largest number would be infinite
    text = ptx.decode_bytes(element.numbers(False), lift)
    for code in range(256):
        four = [code, 255 - code, 127, 8]
        word = sum(each << 8 * i for i, each in enumerate(four))
        got = torch.cat([halves(r) for r in execute(text, 2, [word])])
        want = torch.stack([decoded(name, each) for each in four]) * 2.0**lift
        assert torch.allclose(got, want, rtol=0, atol=0, equal_nan=True), code


def test_an_unknown_family_is_refused() -> None:
    """Not taken for an integer of as many bits, whatever is asked of it."""
    known = parse("int4:tensor:fp32").element.numbers(True)
    other = replace(known, family="unheard")
    for only in (None, range(4)):
        with pytest.raises(ValueError, match="no PTX decodes elements of the family 'unheard'"):
            ptx.decode_words(other, None, only)
    for wrong in (other, known, replace(known, family="binary")):
        with pytest.raises(
            ValueError, match=f"inner scales that are {wrong.family}: expected mini"
        ):
            ptx.decode_bytes(wrong)
