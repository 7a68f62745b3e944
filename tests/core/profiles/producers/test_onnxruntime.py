# SPDX-License-Identifier: BSD-3-Clause
"""What onnxruntime itself gave (tests/recorded/record_profiles.py): 0 codes and scales differ."""

import pytest
import torch

import blockscale as bs
from blockscale.core.profiles.producers.onnxruntime import PROFILES
from tests.core.profiles.recorded import differing, profiles
from tests.support.profile_inputs import KINDS


def test_every_profile_was_recorded() -> None:
    names = {name for name, _ in profiles("onnxruntime")}
    assert {profile.name for profile in PROFILES} == {f"onnxruntime.{name}" for name in names}


@pytest.mark.parametrize(("name", "dtype"), profiles("onnxruntime"))
def test_codes_and_scales(name: str, dtype: str) -> None:
    for kind in KINDS:
        found = differing("onnxruntime", name, dtype, kind)
        assert found == dict.fromkeys(found, 0), kind


def test_the_end_of_larger_magnitude_is_the_lowest_code() -> None:
    x = torch.zeros(2, 32)
    x[0, :2], x[1, :2] = torch.tensor([3.0, -2.0]), torch.tensor([-3.0, 2.0])
    q = bs.quantize(x, bs.profile("onnxruntime.matmul_int4"))
    assert q.codes[:, 0].tolist() == [-8, -8] and q.scale.tolist() == [[-0.375], [0.375]]


def test_rows_of_zeros() -> None:
    q = bs.quantize(torch.zeros(2, 8), bs.profile("onnxruntime.qdq_int8"))
    assert q.scale.unique().tolist() == [1.0] and not q.codes.any()


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_a_block_of_zeros_has_the_sign_of_the_first(first: float) -> None:
    x = torch.tensor([first] + [-first] * 31).reshape(1, 32)
    scale = bs.quantize(x, bs.profile("onnxruntime.matmul_int4")).scale
    assert scale.item() == 0.0 and scale.signbit().item() == (str(first) == "0.0")
