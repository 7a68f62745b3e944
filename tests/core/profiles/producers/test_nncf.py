# SPDX-License-Identifier: BSD-3-Clause
"""What NNCF itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.nncf import PROFILES
from tests.core.profiles.recorded import FOLDER, differing, profiles
from tests.core.profiles.table import block_of
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("nncf")}
    assert {profile.name for profile in PROFILES} == {f"nncf.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("nncf"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("nncf", name, dtype, kind, block_of("nncf", name))
        assert found == dict.fromkeys(found, 0), kind


def test_the_end_of_larger_magnitude_is_the_lowest_code() -> None:
    x = torch.zeros(3, 128)
    x[0, :2], x[1, :2] = torch.tensor([3.0, -2.0]), torch.tensor([-3.0, 2.0])
    x[2, :2] = torch.tensor([2.0, -2.0])  # of both ends the negative one
    q = bs.quantize(x, bs.profile("nncf.int4_sym"))
    assert q.scale.tolist() == [[-0.375], [0.375], [0.25]]
    assert q.codes[:, :2].tolist() == [[-8, 5], [-8, 5], [7, -8]]


def test_codes_are_those_of_the_scale_before_it_is_float16() -> None:
    x = torch.full((1, 128), 3e-7)
    q = bs.quantize(x, bs.profile("nncf.int4_asym"))
    assert q.scale.item() == 2.0**-23 and q.codes.unique().tolist() == [3]


def test_a_file_of_nncf_reads_as_the_same_format() -> None:
    for profile in PROFILES:
        name = profile.name.removeprefix("nncf.")
        [found] = bs.checkpoint(FOLDER / "openvino" / f"{name.upper()}.xml").values()
        assert isinstance(found, bs.QTensor)
        group = "" if "int8" in name or name == "nvfp4" else ":group32"
        assert found.format == bs.profile(profile.name + group).format, name
