"""Names are taken once, equal constants are one, a function is written when it is first called."""

import numpy as np
import pytest
import torch

from blockscale.export.onnx.scope import LOWEST, File, Needs, Scope
from tests.export.onnx.running import made, run


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


def test_a_function_is_written_once_and_called_often():
    x = torch.tensor([1.0, 2.0])
    written = []

    def body(scope, inputs):
        written.append(inputs)
        return [scope.op("Mul", inputs[0], scope.floats(3.0))]

    def build(scope, names):
        first = scope.call("triple", "triple", names, body)[0]
        return scope.call("triple", "triple", [first], body)[0]

    model = made(build, x)
    assert len(written) == len(model.functions) == 1
    assert [node.domain for node in model.graph.node[:2]] == ["blockscale"] * 2
    assert torch.equal(run(build, x), 9 * x)


def test_functions_of_one_name_are_two():
    def build(scope, names):
        def double(inside, inputs):
            return [inside.op("Add", inputs[0], inputs[0])]

        def square(inside, inputs):
            return [inside.op("Mul", inputs[0], inputs[0])]

        first = scope.call(("f", 1), "f", names, double)[0]
        return scope.call(("f", 2), "f", [first], square)[0]

    assert run(build, torch.tensor([3.0])).item() == 36


@pytest.mark.parametrize("kind", ["FLOAT", "INT32", "FLOAT16"])
def test_casts(kind):
    found = run(lambda scope, names: scope.cast(names[0], kind), torch.tensor([1.75, -2.25]))
    expected = {"FLOAT": [1.75, -2.25], "INT32": [1, -2], "FLOAT16": [1.75, -2.25]}
    assert found.tolist() == expected[kind]
