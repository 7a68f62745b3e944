# SPDX-License-Identifier: BSD-3-Clause
"""What gptq itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.gptq import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("gptq")}
    assert {profile.name for profile in PROFILES} == {f"gptq.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("gptq"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    block = ":group64"
    for kind in KINDS:
        found = differing("gptq", name, dtype, kind, block)
        assert found == dict.fromkeys(found, 0), kind


def test_a_group_without_negative_numbers_is_cut_off() -> None:
    """Its range is [0, largest], and 0 stays in the middle: the upper half is lost."""
    x = torch.linspace(0, 15, 64).reshape(1, 64)
    q = bs.quantize(x, bs.profile("gptq.int4:group64"))
    assert q.scale.item() == 1.0 and q.zero_point.item() == 8
    assert q.dequantize().max().item() == 7.0
    x[0, 0] = -15.0
    assert bs.quantize(x, bs.profile("gptq.int4:group64")).dequantize().max().item() == 14.0


def test_zeros() -> None:
    for name, zero in (("int4", 8), ("uint4", 7), ("int2", 2)):
        q = bs.quantize(torch.zeros(1, 128), bs.profile(f"gptq.{name}"))
        assert q.zero_point.item() == zero and not q.dequantize().any()
        assert q.scale.item() == pytest.approx(2 / (2**q.format.bits - 1), rel=1e-3)
