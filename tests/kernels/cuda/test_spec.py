"""What kernels are told beside a format's numbers, against the reference's own steps."""

import struct

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.kernels.cuda.spec import of_gradient, spec


def number(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<i", bits))[0]
    return value


def step(fmt: str, x: torch.Tensor) -> float:
    form = parse(fmt)
    return float(reference.step_of(reference.choose_qparams(x, form), form).max())


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "int4:tensor:bf16", "e4m3:tensor:fp32"])
def test_magnitudes_that_bound_a_step(fmt: str) -> None:
    """`most` makes a step of at most 1, `least` one that is more than 2^-38."""
    x = torch.zeros(16)
    x[3] = number(spec(fmt).most)
    assert step(fmt, x) <= 1
    x[3] = number(spec(fmt).least)
    assert step(fmt, x) > 2.0**-38


def test_the_straight_through_mask_is_not_drawn() -> None:
    drawn, plain = spec("int8:token:fp32:stochastic"), spec("int8:token:fp32")
    assert of_gradient(drawn) == plain
    assert of_gradient(drawn) is not drawn
    assert of_gradient(plain) is plain
    assert of_gradient(spec("int8:token:fp32:up")).rounding == "up"


def test_specs_are_compared_by_value() -> None:
    one, other = spec("mxfp4"), spec(str(parse("mxfp4")))
    assert one == other
    assert hash(one) == hash(other)
    assert one != spec("mxfp6")
