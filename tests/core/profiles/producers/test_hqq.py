# SPDX-License-Identifier: BSD-3-Clause
"""What hqq itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.hqq import PROFILES
from tests.core.profiles.recorded import differing, profiles, recorded
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("hqq")}
    assert {profile.name for profile in PROFILES} == {f"hqq.{name}" for name in names}


@pytest.mark.parametrize(
    ("name", "dtype"), [each for each in profiles("hqq") if each[0].endswith("_rtn")]
)
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("hqq", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_its_search(bits: int, kind: str) -> None:
    """Means and powers are torch's, so that last bits of zero points depend on the processor."""
    known, name = recorded("hqq"), f"uint{bits}"
    q = bs.quantize(known[f"x.{kind}"], bs.profile(f"hqq.{name}"))
    start = f"{name}.fp32.{kind}."
    assert torch.equal(q.scale, known[f"{start}scale"])
    torch.testing.assert_close(q.zero_point, known[f"{start}zero_point"], rtol=1e-5, atol=1e-5)
    off = (q.codes.int() - known[f"{start}codes"].int()).abs()
    assert int(off.max()) <= 1 and int((off > 0).sum()) <= 4  # where a number lies at a tie


def test_the_search_leaves_fewer_large_errors() -> None:
    x = torch.randn(16, 128) ** 3
    both = [bs.quantize(x, bs.profile(f"hqq.uint2{ending}")) for ending in ("", "_rtn")]
    assert torch.equal(both[0].scale, both[1].scale)
    means = [float((q.dequantize() - x).abs().mean()) for q in both]
    assert means[0] < 0.98 * means[1]


def test_ranges_that_are_too_small() -> None:
    q = bs.quantize(torch.full((1, 64), 3.0), bs.profile("hqq.uint4_rtn"))
    assert (q.scale.item(), q.zero_point.item()) == (1.0, -3.0) and not q.codes.any()
