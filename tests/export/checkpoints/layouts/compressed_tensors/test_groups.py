# SPDX-License-Identifier: BSD-3-Clause
"""Which group of a configuration a module is of."""

import pytest

from blockscale.export.checkpoints.layouts.compressed_tensors.groups import (
    arguments,
    groups_of,
    number,
)
from blockscale.files.metadata import FileError


def config(**groups):
    keys = ("targets", "weights")
    told = {name: dict(zip(keys, each, strict=True)) for name, each in groups.items()}
    return {"config_groups": told}


def test_names_come_before_classes():
    groups = groups_of(config(
        a=(["Linear"], {"num_bits": 4}), b=(["re:.*down_proj$"], {"num_bits": 8}),
        c=(["model.head"], {"num_bits": 6}),
    ))  # fmt: skip
    assert number(arguments("m.0.down_proj", groups), "num_bits") == [8, 4]
    assert number(arguments("model.head", groups), "num_bits") == [6, 4]
    assert number(arguments("m.0.up_proj", groups), "num_bits") == [4]
    assert number([{"num_bits": True}, {"num_bits": "4"}, {}], "num_bits") == []
    assert groups_of({}) == []


@pytest.mark.parametrize(
    "found", [[], {"a": 3}, {"a": {"targets": 3}}, {"a": {"targets": [], "weights": [1]}}]
)
def test_other_json(found):
    with pytest.raises(FileError, match="of the quantization_config"):
        groups_of({"config_groups": found})


def test_a_pattern_that_takes_for_ever():
    groups = groups_of(config(a=(["re:(a+)+b(?=c)\\1"], {})))
    with pytest.raises(FileError, match="a target of the quantization_config: pattern"):
        arguments("a" * 40, groups)
