# SPDX-License-Identifier: BSD-3-Clause
"""What quanto itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.quanto import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("quanto")}
    assert {profile.name for profile in PROFILES} == {f"quanto.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("quanto"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("quanto", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def test_ranges_are_not_widened() -> None:
    q = bs.quantize(torch.linspace(5, 8, 128).reshape(1, 128), bs.profile("quanto.qint2"))
    assert (q.qparams.offset.item(), q.scale.item()) == (5.0, 1.0)
    assert q.codes.unique().tolist() == [0, 1, 2, 3]


def test_rows_of_zeros_have_no_scale() -> None:
    q = bs.quantize(torch.zeros(2, 64), bs.profile("quanto.qint8"))
    assert not q.scale.any() and not q.codes.any()
