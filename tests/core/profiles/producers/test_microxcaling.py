# SPDX-License-Identifier: BSD-3-Clause
"""What microxcaling's own functions gave (tests/recorded/record_profiles.py): 0 values differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.microxcaling import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("microxcaling")}
    assert {profile.name for profile in PROFILES} == {f"microxcaling.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("microxcaling"))
def test_values(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("microxcaling", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def bytes_of(x: list[float], name: str, dtype: torch.dtype = torch.float32) -> list[int]:
    rows = torch.tensor(x).to(dtype).reshape(-1, 1).expand(-1, 32)
    scale: list[int] = (
        bs.quantize(rows, bs.profile(f"microxcaling.{name}")).scale.flatten().tolist()
    )
    return scale


def test_exponents_just_below_powers_of_two_are_those_above() -> None:
    below = torch.tensor([256.0, 2.0, 4.0, 2.0**-3, 2.0**100]).view(torch.int32) - 1
    x = below.view(torch.float32).tolist()
    assert bytes_of(x, "fp8_e4m3") == [127 + 0, 127 - 8, 127 + 1 - 8, 127 - 3 - 8, 127 + 100 - 8]
    assert bytes_of(x, "fp8_e4m3")[0] == bs.quantize(torch.full((1, 32), 256.0), "mxfp8").scale + 0
    assert bytes_of([254.0, 253.0], "fp8_e4m3", torch.bfloat16) == [127, 126]  # by 8 bits


def test_scales_at_the_ends() -> None:
    assert bytes_of([0.0], "int8") == [1]  # 2^-126 in the place of 0
    assert bytes_of([0.0], "fp4_e2m1") == [0]
    largest = torch.finfo(torch.float32).max
    assert bytes_of([largest], "int8") == [255]  # rounded to 2^128
    assert bytes_of([largest], "fp4_e2m1") == [127 + 128 - 2]


def test_the_last_number_below_one_half_is_one() -> None:
    below = (torch.tensor([0.5]).view(torch.int32) - 1).view(torch.float32) / 64
    x = torch.cat([torch.ones(1), below, torch.zeros(30)]).reshape(1, 32)
    for name, code in (("int8", 1), ("int8_even", 1), ("int8_floor", 0)):
        assert bs.quantize(x, bs.profile(f"microxcaling.{name}")).codes[0, 1] == code


def test_roundings() -> None:
    x = torch.tensor([[1.0, 2.5 / 64, -2.5 / 64, 1.5 / 64] + [0.0] * 28])
    found = {
        ending: bs.quantize(x, bs.profile(f"microxcaling.int8{ending}")).codes[0, 1:4].tolist()
        for ending in ("", "_even", "_floor")
    }
    assert found == {"": [3, -3, 2], "_even": [2, -2, 2], "_floor": [2, -2, 1]}


def test_float16_is_widened() -> None:
    x = torch.randn(4, 64, dtype=torch.float16)
    for name in ("microxcaling.fp6_e2m3", "microxcaling.int4_floor"):
        q, wide = (bs.quantize(each, bs.profile(name)) for each in (x, x.float()))
        assert torch.equal(q.packed, wide.packed) and torch.equal(q.scale, wide.scale)
