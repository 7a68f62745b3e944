# SPDX-License-Identifier: BSD-3-Clause
"""What bitsandbytes itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.bnb import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("bnb")}
    assert {profile.name for profile in PROFILES} == {f"bnb.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("bnb"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("bnb", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def test_what_small_numbers_become() -> None:
    """fp4: those above 0 become -0, those below 0; and 0 is 0."""
    x = torch.zeros(1, 64)
    x[0, :4] = torch.tensor([1.0, 1e-4, -1e-4, 0.0])
    assert bs.quantize(x, bs.profile("bnb.fp4")).codes[0, :4].tolist() == [3, 8, 0, 0]


def test_blocks_of_zeros() -> None:
    for name, zero in (("nf4", 7), ("fp4", 0)):
        q = bs.quantize(torch.zeros(2, 64), bs.profile(f"bnb.{name}"))
        assert q.codes.unique().tolist() == [zero] and q.scale.tolist() == [[0.0, 0.0]]
    q = bs.quantize(torch.zeros(2, 8), bs.profile("bnb.int8"))
    assert not q.codes.any() and not q.scale.any()


def test_blocks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bnb.nf4: blocks of flat64 do not divide"):
        bs.quantize(torch.zeros(3, 50), bs.profile("bnb.nf4"))
    q = bs.quantize(torch.randn(32, 50), bs.profile("bnb.nf4:flat32"))
    assert tuple(q.scale.shape) == (1, 50)
