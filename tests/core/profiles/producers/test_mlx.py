# SPDX-License-Identifier: BSD-3-Clause
"""What mlx itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.mlx import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("mlx")}
    assert {profile.name for profile in PROFILES} == {f"mlx.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("mlx"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("mlx", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def test_the_end_of_larger_magnitude_is_exact() -> None:
    x = torch.linspace(-1, 3, 64).reshape(1, 64)
    for sign in (1, -1):
        q = bs.quantize(sign * x, bs.profile("mlx.affine4"))
        assert q.qparams.offset.item() == 3 * sign and q.scale.item() * sign < 0
        assert q.dequantize()[0, -1].item() == 3 * sign


def test_zeros() -> None:
    q = bs.quantize(torch.zeros(1, 64), bs.profile("mlx.affine4"))
    assert abs(q.scale.item()) == pytest.approx(1e-7) and not q.dequantize().any()
    for name, byte in (("mxfp4", 127), ("mxfp8", 127), ("nvfp4", 0)):
        stored = bs.quantize(torch.zeros(1, 64), bs.profile(f"mlx.{name}")).qparams.scale
        assert stored.unique().tolist() == [byte]
