# SPDX-License-Identifier: BSD-3-Clause
"""What a profile is: a frozen value whose rules fit its format."""

import dataclasses
import inspect
import pickle

import pytest
import torch

import blockscale as bs
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams


def made(spelling: str = "int8:group32:fp16", **rules: object) -> Profile:
    return Profile(name="mine.int8", version="1", format=parse(spelling), **rules)  # type: ignore[arg-type]


def nothing(x: torch.Tensor, fmt: Format) -> tuple[torch.Tensor, QParams]:
    raise AssertionError("not called")


def test_a_frozen_value() -> None:
    profile = bs.profile("torchao.int8")
    assert profile == bs.profile("torchao.int8") == pickle.loads(pickle.dumps(profile))
    assert hash(profile) == hash(bs.profile("torchao.int8"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.levels = 127.0  # type: ignore[misc]


def test_every_rule_is_documented() -> None:
    text = inspect.getdoc(Profile) or ""
    for each in dataclasses.fields(Profile):
        assert f"\n{each.name}:" in text, each.name


def test_without_rules_it_is_the_contract() -> None:
    assert made().contract
    assert not made(search="nearest_away").contract
    assert not bs.profile("torchao.int8").contract


@pytest.mark.parametrize(
    ("spelling", "rules", "reason"),
    [
        (
            "int8",
            {"search": "nearest"},
            "unknown search 'nearest'; choose from format, nearest_even",
        ),
        (
            "int8",
            {"scale_arithmetic": "bf16"},
            "unknown scale_arithmetic 'bf16'; choose from fp32, input",
        ),
        ("int8", {"least": "eps"}, "least must be 'normal'"),
        ("mxfp4", {"levels": 6.0}, "levels is only for float scales, got e8m0/floor"),
        ("int8", {"smallest_divisor": 1.0}, "smallest_divisor is only for e8m0 scales, got fp32"),
        ("int8", {"outer": 1.0}, "outer is only for two-level scales, got fp32"),
        ("nvfp4_e5m3", {"levels": 5.0}, "a profile has no rules for scales in ue5m3"),
        ("mxfp4", {"search": "half_up_add"}, "half_up_add is only for integer elements"),
        ("int16", {"search": "first_nearest"}, "at most 256 values"),
        (
            "e2m1:group32:e8m0/given",
            {"search": "first_nearest"},
            "cannot be chosen by a profile's rules",
        ),
        ("int4:group32:fp16:stochastic", {"least": 0.0}, "cannot be chosen by a profile's rules"),
        ("uint4:group32:fp16:offset", {"least": 0.0}, "no rules for the scales"),
        (
            "int8:group32:fp16:recip",
            {"least": 0.0},
            "or reciprocal=True instead of an option of the format",
        ),
        ("int8:group32:fp16:signed", {"least": 0.0}, "write sign='largest'"),
        ("ternary", {"least": 0.0}, "no rules for the scales"),
        ("ternary", {"least": 0.0, "encoder": nothing}, "its encoder .* least has no effect"),
    ],
)
def test_rules_that_do_not_fit(spelling: str, rules: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^profile mine.int8: .*{reason}"):
        made(spelling, **rules)


def test_another_block_is_part_of_the_name() -> None:
    profile = bs.profile("torchao.intx4:group64")
    assert (profile.name, str(profile.format)) == (
        "torchao.intx4:group64",
        "int4:group64:fp32:full",
    )
    assert profile.with_block("group32").format == bs.profile("torchao.intx4").format
    assert bs.profile("torchao.intx4:group32") == bs.profile("torchao.intx4")
    assert profile.with_block("group64") is profile
    with pytest.raises(ValueError, match="its block must be group16, it has no other, got group32"):
        bs.profile("torchao.nvfp4:group32")
    with pytest.raises(
        ValueError, match="its block must be group32, it also has group, got tensor"
    ):
        bs.profile("torchao.mxfp8:tensor")
    with pytest.raises(ValueError, match="unknown block 'rows'"):
        bs.profile("torchao.int8:rows")


def test_the_format_of_a_dtype() -> None:
    intx, int8 = bs.profile("torchao.intx4"), bs.profile("torchao.int8")
    assert str(intx.result(torch.bfloat16)) == "int4:group32:bf16:full"
    assert str(intx.result(torch.float32)) == str(intx.format) == "int4:group32:fp32:full"
    assert int8.result(torch.bfloat16) == int8.format
