# SPDX-License-Identifier: BSD-3-Clause
"""Scales of profiles: each rule by arithmetic that is written out here."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from blockscale.core.parse import parse
from blockscale.core.profiles.codes import choose, rounder
from blockscale.core.profiles.knobs import Profile


def scale(x: torch.Tensor, spelling: str, **rules: object) -> list[float]:
    profile = Profile(name="a.b", version="", format=parse(spelling), **rules)  # type: ignore[arg-type]
    return choose(x, profile, profile.result(x.dtype)).qparams.scale.flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_float32_again_is_rounding_once(dtype: torch.dtype) -> None:
    """Quotients and products of the dtype's numbers, against exact rationals."""
    fl = rounder("input", dtype)
    a, b = torch.randn(400).to(dtype).float(), torch.randn(400).to(dtype).float()
    digits = {torch.bfloat16: 8, torch.float16: 11}[dtype]
    pairs = [(Fraction(p), Fraction(q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    for found, exact in [
        (fl(a / b), [p / q for p, q in pairs]),
        (fl(a * b), [p * q for p, q in pairs]),
        (fl(a - b), [p - q for p, q in pairs]),
    ]:
        for ours, value in zip(found.tolist(), exact, strict=True):
            if abs(value) < Fraction(2) ** -13:
                continue  # subnormal in float16
            unit = Fraction(2) ** (math.frexp(float(value))[1] - digits)
            assert Fraction(ours) == round(value / unit) * unit


def test_the_smallest_scale() -> None:
    x = torch.tensor([[0.0, 1e-20, 1.0]]).T.contiguous()
    rules = {"levels": 127.0}
    assert scale(x, "int8:channel0:fp32", least=2.0**-23, **rules)[:2] == [2.0**-23] * 2
    assert scale(x, "int8:channel0:fp32", least=0.0, **rules)[0] == 0.0
    assert scale(x, "int8:channel0:fp16", least=0.0, **rules)[:2] == [0.0, 0.0]  # underflow
    assert scale(x, "int8:channel0:fp32", least="normal")[0] == 2.0**-126
    half = x.half()
    found = scale(half, "int8:channel0:fp32", least="normal", scale_arithmetic="input")
    assert found[0] == 2.0**-14


def test_blocks_of_zeros() -> None:
    x = torch.tensor([[0.0, -0.0], [1.0, 2.0]])
    assert scale(x, "int8:channel0:fp32", zero_scale=1.0)[0] == 1.0
    assert scale(x, "mxfp4", zero_scale=1.0)[0] == 127
    assert scale(x, "mxfp4") == [0, 126]
    profile = Profile(
        name="a.b", version="", format=parse("uint8:channel0:fp32:asym"), zero_zero_point=7
    )
    zero = choose(x, profile, profile.format).qparams.zero_point
    assert zero is not None and zero.flatten().tolist() == [7, 0]


def test_a_range_that_is_not_widened() -> None:
    x = torch.tensor([[1.0, 4.0], [-6.0, -3.0]])
    widened = scale(x, "uint4:channel0:fp32:asym", zero_scale=9.0)
    bare = scale(x, "uint4:channel0:fp32:asym", widened=False)
    assert widened == [float(np.float32(4) / np.float32(15)), float(np.float32(6) / np.float32(15))]
    assert bare == [float(np.float32(3) / np.float32(15))] * 2


@pytest.mark.parametrize("block", ["group4", "tensor", "channel0", "tile2x3", "flat5", "flat7@0"])
def test_the_sign_of_the_first_of_the_largest(block: str) -> None:
    x = torch.randint(-3, 4, (7, 10)).float()
    found = scale(x, f"int4:{block}:fp32:full", levels=-8.0, sign="largest")
    fmt = parse(f"int4:{block}:fp32:full")
    owners = fmt.block.expand(
        torch.arange(float(len(found))).reshape(fmt.block.scale_shape(x.shape)), x.shape
    ).expand(x.shape)
    for i, ours in enumerate(found):
        own = x[owners == i].tolist()
        first = next(v for v in own if abs(v) == max(map(abs, own)))
        assert ours == first / -8 or max(map(abs, own)) == 0


def test_a_logarithm_loses_what_float32_does_not_hold() -> None:
    """Against numpy's log2 of float64, rounded to float32."""
    near = torch.arange(0, 64, dtype=torch.int32)
    bits = torch.cat([((n + 127) << 23) + near for n in range(-126, 120)])
    quotient = bits.view(torch.float32)
    with np.errstate(divide="ignore"):
        exact = np.ceil(np.float32(np.log2(quotient.numpy().astype(np.float64))))
    found = scale(quotient[:, None], "e4m3:group32:e8m0/rceil", logarithm=True)
    top = scale(quotient[:, None] * 256, "e4m3:group32:e8m0/rceil", logarithm=True)
    expected = np.clip(exact, -127, 127) + 127
    # L is 448 = 1.75 * 2^8, so only multiples of 1.75 have these quotients: compare those
    times = quotient * 448
    held = (times / 448 == quotient) & times.isfinite()
    found = scale(times[:, None], "e4m3:group32:e8m0/rceil", logarithm=True)
    assert int(held.sum()) > 2000 and top
    ours = np.array(found)[held.numpy()]
    assert (ours == expected[held.numpy()]).all()
    assert (ours != np.array(scale(times[:, None], "e4m3:group32:e8m0/rceil"))[held.numpy()]).any()


def test_a_given_outer_scale() -> None:
    x = torch.randn(4, 64)
    profile = Profile(name="a.b", version="", format=parse("nvfp4"), outer=2.0)
    qparams = choose(x, profile, profile.format).qparams
    assert qparams.outer is not None and qparams.outer.tolist() == [[2.0]]
    wanted = x.reshape(4, 4, 16).abs().amax(-1) / 6 / 2
    assert torch.equal(
        qparams.scale.view(torch.float8_e4m3fn).float(),
        wanted.clamp(2.0**-6, 448).to(torch.float8_e4m3fn).float(),
    )
