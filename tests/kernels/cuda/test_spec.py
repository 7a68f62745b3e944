# SPDX-License-Identifier: BSD-3-Clause
"""What CUDA kernels are compiled for: the numbers of every backend, and a few of their own."""

import math
import struct
from dataclasses import fields, replace

import pytest

from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.cuda.spec import Spec, known, of_gradient, spec
from blockscale.kernels.numbers import FormatNumbers, lowered
from tests.kernels.codebook import registered

FORMATS = (
    *CATALOG,
    "int4:group16:(uint6:group4:fp32):asym",
    "binary:token:fp32",
    "ternary:token:bf16",
)


def float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<i", bits))[0])


@pytest.mark.some(4)
@pytest.mark.parametrize("name", FORMATS)
def test_the_numbers_are_those_of_every_backend(name: str) -> None:
    numbers, found = lowered(name), spec(name)
    other = ("scale", "inner") if "code" in numbers.features else ()
    for field in fields(FormatNumbers):
        if field.name in other:
            continue
        assert getattr(found, field.name) == getattr(numbers, field.name), field.name
    assert spec(name) is found


@pytest.mark.some(4)
@pytest.mark.parametrize("name", FORMATS)
def test_magnitudes_whose_steps_are_ordinary(name: str) -> None:
    """Above `least` a step is more than 2^-38, up to `most` it is at most 1."""
    found = spec(name)
    least, most = float_of(found.least), float_of(found.most)
    mean = 2.0**-15 if found.element.bits <= 2 else 1.0  # of the largest magnitude, the least mean
    assert least * mean / max(found.levels, 1.0) > 2.0**-38
    assert most / found.levels <= 1
    assert 0 < least < most


@pytest.mark.some(4)
@pytest.mark.parametrize("name", FORMATS)
def test_the_inverse_of_the_levels_is_rounded_once(name: str) -> None:
    levels = spec(name).levels
    nearest = struct.unpack("<f", struct.pack("<f", 1 / levels))[0]
    assert spec(name).per_level == nearest
    assert abs(nearest * levels - 1) <= 2.0**-24 or math.log2(levels).is_integer()


def test_a_gradient_is_not_drawn() -> None:
    drawn, plain = spec("int8:token:fp32:stochastic"), spec("int8:token:fp32")
    assert of_gradient(drawn) == plain and of_gradient(plain) is plain
    assert of_gradient(spec("int8:token:fp32:down")).rounding == "down"


def test_the_hash_is_of_all_fields_and_kept() -> None:
    """Triton asks for it at each launch."""
    found = spec("e2m1:group16:e4m3")
    copy = Spec(**{field.name: getattr(found, field.name) for field in fields(Spec)})
    assert copy == found and hash(copy) == hash(found)
    assert "_hash" in vars(copy)
    assert hash(replace(found, rounding="up")) != hash(found)


def test_an_element_without_numbers_is_an_error() -> None:
    with registered(), pytest.raises(TypeError, match="no kernel supports the elements of made4"):
        spec("made4:tensor:fp32")


@pytest.mark.parametrize("element", ["nf4", "book(-1,1)", "book(0,1)", "uapot4"])
def test_tables_with_and_without_negative_values_have_kernels(element: str) -> None:
    assert known((parse(f"{element}:group32:bf16"),), ())
