# SPDX-License-Identifier: BSD-3-Clause
"""What torch reads once in a process of tests is what it would read each time."""

import importlib
from types import ModuleType
from typing import Any

import torch

from tests.support.read_once import _PATCHES


def patched(name: str, **attributes: Any) -> Any:
    """A module with these attributes, patched as the one of that name is."""
    module: Any = ModuleType(name)
    module.__dict__.update(attributes)
    _PATCHES[name](module)
    return module


def test_each_export_has_functions_of_its_own() -> None:
    built = []

    class ONNXRegistry:
        def __init__(self) -> None:
            self.functions: dict[str, list[int]] = {}
            self._opset_version = 0

        @classmethod
        def from_torchlib(cls, opset_version: int = 18) -> "ONNXRegistry":
            built.append(opset_version)
            made = cls()
            made._opset_version, made.functions = opset_version, {"add": [1, 2]}
            return made

    name = "torch.onnx._internal.exporter._registration"
    registry = patched(name, ONNXRegistry=ONNXRegistry).ONNXRegistry
    first, second = registry.from_torchlib(21), registry().from_torchlib(opset_version=21)
    assert first._opset_version == second._opset_version == 21
    first.functions["add"].append(3)
    first.functions["mine"] = [4]
    assert second.functions == registry.from_torchlib(21).functions == {"add": [1, 2]}
    assert registry.from_torchlib()._opset_version == 18
    assert built == [21, 21, 18]  # by place, by name, and by default


def test_composite_ops_are_looked_up_again_when_there_are_more() -> None:
    calls = []
    module = patched("torch._export.utils", _materialize_cpp_cia_ops=lambda: calls.append(1))
    for _ in range(3):
        module._materialize_cpp_cia_ops()
    assert len(calls) == 1
    with torch.library._scoped_library("tests_read_once", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        for _ in range(3):
            module._materialize_cpp_cia_ops()
        assert len(calls) == 2


def test_the_functions_are_where_torch_has_them() -> None:
    """A release that moves them makes exports slow without a word."""
    utils = importlib.import_module("torch._export.utils")
    assert callable(utils._materialize_cpp_cia_ops)
    assert callable(utils._collect_all_valid_cia_ops)
