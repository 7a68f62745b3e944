# SPDX-License-Identifier: BSD-3-Clause
"""Inputs at which rounding and random numbers turn over: codes are the reference's."""

import math

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import DTYPES as BY_NAME
from tests.support.cpu_primitives import ROUNDINGS
from tests.support.cpu_quantize import FLT_MAX, ODD, SMALL, edges

DTYPES = list(BY_NAME.values())
ODD += [math.inf, -math.inf, math.nan, 3e38, -1e-40, 2.0**22, 2.0**23 + 1, 2.0**24, -(2.0**31)]


def check_rounding(element: str, scale: float, rounding: str) -> None:
    fmt = f"{element}:tensor:fp32" + rounding
    given = QParams(torch.full((1,), scale))
    x = edges(element) * scale
    assert wrong(x, fmt, torch.tensor([5, 0]), qparams=given) == []


@pytest.mark.some(4)
@pytest.mark.parametrize("element", SMALL)
def test_every_midpoint(element: str) -> None:
    for rounding in ("", *ROUNDINGS):
        if not rounding or parse(f"{element}:tensor:fp32").element.roundings_matter:
            check_rounding(element, 1.0, rounding and f":{rounding}")


@pytest.mark.parametrize("element", ["int8", "e4m3", "e2m1", "ternary", "log8", "uint16"])
@pytest.mark.parametrize("scale", [2.0**-126, 3 * 2.0**-140, 2.0**100])
def test_midpoints_of_very_small_and_large_steps(element: str, scale: float) -> None:
    check_rounding(element, scale, "")


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["", *ROUNDINGS])
@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16", "int12"])
def test_every_midpoint_of_wide_integers(element: str, rounding: str) -> None:
    check_rounding(element, 1.0, rounding and f":{rounding}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "fmt", ["e4m3:token:fp32", "int8:channel0:fp16:asym", "e2m1:group16:e4m3", "int4:tensor:fp32"]
)
def test_every_16_bit_input(fmt: str, dtype: torch.dtype) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(64, 1024)
    assert wrong(x, fmt) == []
    assert wrong(x.nan_to_num(0, 0, 0), fmt) == []


ANY = [-0.5, 0.0, -0.0, 2.0**-149, -(2.0**-140), 3e38, -FLT_MAX, 1.0, -1.0, 2.0**-126, 0.3]
GIVEN = (
    *("int4:group16:fp32", "uint4:group16:fp32:asym", "int8:group16:fp32:recip"),
    *("e2m1:group16:fp32", "e4m3:group16:fp32:recip", "nf4:group16:fp32", "log8f3:group16:fp32"),
    *("fp4:group16:fp32:recip", "binary:group16:fp32", "int12:group16:fp32", "int8:group1:fp32"),
    *("uint4:group16:fp32:offset", "nf4:group16:fp32:recip:offset", "e2m1:group16:pow2/floor"),
    *("int8:group16:pow2/ceil", "fp4:group16:pow2/even:offset(fp32)", "int3:group7:fp32:half"),
    *("int4:group16:fp32:stochastic", "e4m3:group16:fp32:up", "uint16:group5:fp32:offset:down"),
    "book(1,2,5):group16:fp32",
)


@pytest.mark.parametrize("fmt", GIVEN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_given_scales_of_any_sign_and_size(fmt: str, dtype: torch.dtype) -> None:
    """Subnormal and 0, too, as files have them; offsets likewise."""
    form = parse(fmt)
    x = torch.cat([torch.randn(13, 170) * 3, torch.tensor(ODD).repeat(11)[:170].expand(13, 170)])
    x = x.to(dtype)
    stored = form.stored(x.shape)
    places = torch.arange(math.prod(stored["scale"][1])).reshape(stored["scale"][1])
    parts = {"scale": torch.tensor(ANY)[places % len(ANY)]}
    if form.asym:
        parts["zero_point"] = (places % 16).int()
    if form.offset is not None:
        parts["offset"] = torch.tensor([*ANY, 7.0])[places % (len(ANY) + 1)]
    assert wrong(x, fmt, qparams=QParams(**parts)) == []


@pytest.mark.some(3)
@pytest.mark.parametrize("inner", ["e4m3:token", "e5m2:tensor", "uint8:group3", "e3m2r1:tensor"])
@pytest.mark.parametrize("rest", ["", ":recip"])
def test_given_scales_of_two_levels(inner: str, rest: str) -> None:
    """Every code, signs, 0 and NaN among them, under outer scales of any sign."""
    x = torch.cat([torch.randn(40, 256 * 4), torch.tensor(ODD).repeat(64).expand(2, 1024)])
    for element in ("int4", "e2m1", "nf4", "e4m3"):
        fmt = f"{element}:group4:({inner}:fp32){rest}"
        form = parse(fmt)
        bits = form.scale.inner.bits
        codes = (torch.arange(42 * 256) % 2**bits).to(torch.uint8).reshape(42, 256)
        shape = form.stored(x.shape)["outer"][1]
        for first in range(0, len(ANY), 3):
            count = math.prod(shape)
            outer = torch.tensor(ANY).roll(-first).repeat(count)[:count]
            given = QParams(codes, outer.reshape(shape))
            assert wrong(x, fmt, qparams=given) == [], (fmt, first)


SEEDS = [(0, 0), (-1, 1), (2**32, 2), (2**63 - 1, 3), (-(2**63), 2**32 - 5), (7, 2**34 - 70)]


@pytest.mark.parametrize("seed", [*SEEDS, (7, 2**34 - 1), (3, 2**62)], ids=str)
def test_random_numbers(seed: tuple[int, int]) -> None:
    """Around 2^34 elements the counter's second word begins; chunks start anywhere in a block."""
    x = torch.randn(3, 4099)
    for fmt in ("int8:token:fp32:stochastic", "e2m1:group7:e8m0/floor:stochastic"):
        assert wrong(x, fmt, torch.tensor(seed)) == []


@pytest.mark.parametrize(
    "seed", [torch.tensor([7, 99, 3, 5])[::2], torch.tensor(5).expand(2), torch.tensor([9])]
)
def test_seeds_in_any_memory(seed: Tensor) -> None:
    assert wrong(torch.randn(4, 40), "int8:token:fp32:stochastic", seed) == []


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "e4m3:tensor:fp32"])
def test_numbers_that_lie_channels_first(fmt: str) -> None:
    """Under one scale bytes are turned in their place: the same codes, in order; others are not."""
    for shape in ((2, 5, 7, 3), (1, 64, 33), (2, 3, 4, 5, 6), (0, 3, 4, 5)):
        x = torch.randn(shape).movedim(1, -1)
        scale = torch.full((1,) * x.ndim, 0.02)
        zero = torch.full(scale.shape, 100, dtype=torch.int32) if "asym" in fmt else None
        by = Quantizer(scale, zero, None, fmt)
        for given in (x, x.to(torch.bfloat16), x[..., ::2], x.transpose(0, 1)):
            with bs.use("reference"):
                expected = P.quantize(given, by)
            with bs.use("cpu"):
                codes = P.quantize(given, by)
            assert codes.is_contiguous() and codes.dtype == expected.dtype
            assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))
