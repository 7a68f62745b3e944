# SPDX-License-Identifier: BSD-3-Clause
"""What modelopt itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.modelopt import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("modelopt")}
    assert {profile.name for profile in PROFILES} == {f"modelopt.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("modelopt"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("modelopt", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def test_zeros() -> None:
    q = bs.quantize(torch.zeros(1, 32), bs.profile("modelopt.mxfp4"))
    assert q.qparams.scale.item() == 0 and q.codes.unique().tolist() == [8]  # -0
    x = torch.zeros(1, 32)
    x[0, 0] = 1.0
    q = bs.quantize(x, bs.profile("modelopt.nvfp4"))
    assert q.qparams.scale.tolist() == [[0x7E, 0x38]]  # 448, and 1 for zeros


def test_middles_go_to_zero_under_mxfp4() -> None:
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([6.0, 5.0, -0.75, 0.25])
    q = bs.quantize(x, bs.profile("modelopt.mxfp4"))
    assert q.dequantize()[0, :4].tolist() == [6.0, 4.0, -0.5, 0.0]
