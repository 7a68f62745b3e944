# SPDX-License-Identifier: BSD-3-Clause
"""What awq itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.awq import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("awq")}
    assert {profile.name for profile in PROFILES} == {f"awq.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("awq"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    block = ":group64"
    for kind in KINDS:
        found = differing("awq", name, dtype, kind, block)
        assert found == dict.fromkeys(found, 0), kind


def test_arithmetic_is_that_of_float16() -> None:
    x = torch.randn(4, 128).bfloat16()
    q = bs.quantize(x, bs.profile("awq.uint4"))
    same = bs.quantize(x.half(), bs.profile("awq.uint4"))
    assert q.scale.dtype == torch.float16
    assert torch.equal(q.packed, same.packed) and torch.equal(q.scale, same.scale)


def test_a_zero_point_is_cut_off() -> None:
    """A range far from 0 is not widened, so no code can mean its numbers."""
    q = bs.quantize(torch.linspace(3, 4, 128).reshape(1, 128), bs.profile("awq.uint4"))
    assert q.zero_point.item() == 0 and q.codes.unique().tolist() == [15]
