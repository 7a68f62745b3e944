# SPDX-License-Identifier: BSD-3-Clause
"""What compressed-tensors gave (tests/recorded/record_profiles.py): no code or scale differs."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.compressed_tensors import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("compressed_tensors")}
    assert {profile.name for profile in PROFILES} == {
        f"compressed_tensors.{name}" for name in names
    }


@pytest.mark.parametrize(("name", "dtype"), profiles("compressed_tensors"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    block = ":group64" if "int" in name else ""
    for kind in KINDS:
        found = differing("compressed_tensors", name, dtype, kind, block)
        assert found == dict.fromkeys(found, 0), kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_scale_of_zeros_is_eps(dtype: torch.dtype) -> None:
    for name in ("int4", "uint4", "fp8"):
        q = bs.quantize(torch.zeros(1, 128, dtype=dtype), bs.profile(f"compressed_tensors.{name}"))
        assert q.scale.dtype == dtype and q.scale.item() == torch.finfo(dtype).eps
        assert not q.dequantize().any()


def test_its_outer_scale_is_a_reciprocal() -> None:
    x = torch.randn(2, 32)
    q = bs.quantize(x, bs.profile("compressed_tensors.nvfp4"))
    assert str(q.format) == "e2m1:group16:e4m3/inv"
    assert q.qparams.outer.item() == pytest.approx(2688 / x.abs().max().item())
