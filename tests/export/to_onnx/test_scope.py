# SPDX-License-Identifier: BSD-3-Clause
"""Names are taken once, equal constants are one, the highest need is kept."""

import numpy as np
import pytest
import torch

from blockscale.export.to_onnx.scope import LOWEST, File, Needs, Scope
from tests.export.to_onnx.running import run


def test_names_are_taken_once():
    file = File()
    file.taken(["a"])
    assert [file.name(name) for name in ("a", "a", "b", "a_1")] == ["a_1", "a_2", "b", "a_1_1"]


def test_equal_constants_are_one():
    scope = Scope(File(), "layer")
    first, same, other = scope.floats(1.0), scope.floats(1.0), scope.floats(-1.0)
    assert first == same != other
    assert first != scope.constant(np.array(1.0))  # of another type
    assert scope.floats(0.0) != scope.floats(-0.0)
    assert all(node.op_type == "Constant" for node in scope.nodes)
    assert first.startswith("layer.")


def test_the_highest_need_is_kept():
    needs = Needs()
    assert needs.opset == LOWEST
    for opset, why in ((24, "a"), (22, "b"), (24, "c")):
        needs.at_least(opset, why)
    assert (needs.opset, needs.because) == (24, "a")


@pytest.mark.parametrize("kind", ["FLOAT", "INT32", "FLOAT16"])
def test_casts(kind):
    found = run(lambda scope, names: scope.cast(names[0], kind), torch.tensor([1.75, -2.25]))
    expected = {"FLOAT": [1.75, -2.25], "INT32": [1, -2], "FLOAT16": [1.75, -2.25]}
    assert found.tolist() == expected[kind]
