# SPDX-License-Identifier: BSD-3-Clause
"""What the command export gives a target: options, recipes, sizes."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.cli.exporting import Sizes, check_recipe, graph_for, options, reads_sentences

EXAMPLE = {"input_ids": torch.zeros(8, 9, dtype=torch.int64)}


def test_options():
    sizes = Sizes(None, 16, "net", 1000)
    given = options(bs.export.c, EXAMPLE, sizes)
    assert given.pop("example")["input_ids"].shape == (1, 16)
    assert given == {"overwrite": True, "name": "net", "max_bytes": 1000}
    assert options(bs.export.program, EXAMPLE, sizes) == {"overwrite": True}
    assert options(bs.export.c, EXAMPLE, Sizes(3, 5))["example"]["input_ids"].shape == (3, 5)
    assert Sizes(None, 16).most == 8 and Sizes(2, 16).most == 2


def test_options_of_another_target():
    Sizes(1, 2, "net").check("c")
    Sizes(1, 2).check("onnx")
    for odd in (Sizes(1, 2, "net"), Sizes(1, 2, max_bytes=5)):
        with pytest.raises(ValueError, match="are only for --to c"):
            odd.check("onnx")


def test_recipes():
    check_recipe(None, False, needed=False)
    with pytest.raises(ValueError, match="no recipe: pass one, such as"):
        check_recipe(None, False)
    with pytest.raises(ValueError, match="quantized already"):
        check_recipe(bs.Recipe("int8"), True, needed=False)


def test_targets_that_read_sentences():
    """Scales of inputs and outputs may be static, and C needs them all."""
    for recipe in (None, bs.Recipe("int8"), bs.Recipe(rules={"a": "int4"})):
        assert reads_sentences("c", recipe) and not reads_sentences("onnx", recipe)
    for recipe in (
        bs.Recipe("int8", "int8"),
        bs.Recipe(output="int8"),
        bs.Recipe("int8", rules={"a": {"input": "int8"}}),
    ):
        assert reads_sentences("onnx", recipe)


def test_quantized_weights_are_not_enough_for_integers():
    with pytest.raises(ValueError, match="name the float model's directory"):
        graph_for("c", (nn.Linear(2, 2), True), None, EXAMPLE, "min_max", Sizes(1, 2))
