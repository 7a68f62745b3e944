# SPDX-License-Identifier: BSD-3-Clause
"""What dmx-compressor itself gave (tests/recorded/record_profiles.py): 0 values differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.dmx import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("dmx")}
    assert {profile.name for profile in PROFILES} == {f"dmx.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("dmx"))
def test_values(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("dmx", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def quantized(x: list[float], name: str) -> bs.QTensor:
    padded = torch.nn.functional.pad(torch.tensor([x]), (0, 32 - len(x)))
    return bs.quantize(padded, bs.profile(f"dmx.{name}"))


def test_a_mantissa_is_rounded_twice() -> None:
    tie = 0.5 / 64 + 2.0**-25  # above 1/2 of a step; 6 + tie is a tie, and goes to the even code
    assert quantized([1.0, tie], "mxint8").codes[0, :2].tolist() == [64, 0]
    assert bs.quantize(torch.tensor([[1.0, tie] + [0.0] * 30]), "mxint8").codes[0, 1] == 1


def test_the_lowest_code_is_that_of_a_tie_where_it_is() -> None:
    x = [1.0, -1.9921875, -1.990, -1.5]
    assert quantized(x, "bfp16a").codes[0, :4].tolist() == [64, -128, -127, -96]
    assert quantized(x, "bfp16").codes[0, :4].tolist() == [64, -127, -127, -96]


def test_all_codes_of_elements_are_numbers() -> None:
    q = quantized([480.0, -470.0], "mxfp8_e4m3")
    assert q.dequantize()[0, :2].tolist() == [480.0, -480.0]


def test_blocks_of_zeros() -> None:
    assert bool(quantized([0.0], "mxfp4_e2m1").dequantize().signbit().all())
    assert not quantized([0.0], "bfp16").codes.any()


def test_blocks_beyond_what_dmx_can() -> None:
    largest = torch.finfo(torch.float32).max
    for size in (2.0**126, largest):
        value = quantized([size, -size], "mxint8").dequantize()
        assert bool((value[0, :2].abs() >= size * 0.99).all())
    assert not quantized([2.0**-127], "mxint8").dequantize().any()


def test_rows_that_blocks_do_not_divide() -> None:
    x = torch.randn(3, 100)
    whole = torch.nn.functional.pad(x, (0, 28))
    for name in ("dmx.bfp16", "dmx.mxfp6_e3m2"):
        values = bs.quantize(whole, bs.profile(name)).dequantize()[:, :100]
        assert torch.equal(bs.quantize(x, bs.profile(name)).dequantize(), values)
