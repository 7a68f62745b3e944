# SPDX-License-Identifier: BSD-3-Clause
"""Modules under their names of 0.1: they import what took their place, and warn.

A function hid most of them (`import blockscale.calibrate.observers as o` was an ImportError), so
that they have names of their own now; a few lie in a larger module now. The old names go with the
next minor version (docs/stability.md).
"""

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

MOVED = {
    "blockscale.calibrate": "blockscale.calibration",
    "blockscale.calibration.blocks": "blockscale.calibration.find_blocks",
    "blockscale.calibration.blocks.calls": "blockscale.calibration.block_calls",
    "blockscale.calibration.blocks.find": "blockscale.calibration.find_blocks",
    "blockscale.calibration.blocks.lane": "blockscale.calibration.block_lane",
    "blockscale.calibration.blocks.record": "blockscale.calibration.block_record",
    "blockscale.calibration.blocks.task": "blockscale.calibration.block_calls",
    "blockscale.calibration.rotations": "blockscale.calibration.rotated",
    "blockscale.calibration.rotations.learn": "blockscale.calibration.algorithms.spinquant",
    "blockscale.calibration.rotations.matrices": "blockscale.calibration.rotation_matrices",
    "blockscale.calibration.rotations.rotated": "blockscale.calibration.rotated",
    "blockscale.calibration.rotations.stream": "blockscale.calibration.residual_stream",
    "blockscale.calibration.coverage": "blockscale.calibration.batches",
    "blockscale.core.discover": "blockscale.core",
    "blockscale.core.power_of_two": "blockscale.core.integer_scales",
    "blockscale.export.auditing.audit": "blockscale.export.auditing",
    "blockscale.export.c": "blockscale.export.to_c",
    "blockscale.export.compressed_tensors": "blockscale.export.to_compressed_tensors",
    "blockscale.export.executorch": "blockscale.export.to_executorch",
    "blockscale.export.onnx": "blockscale.export.to_onnx",
    "blockscale.export.onnx.blocks": "blockscale.export.to_onnx.steps",
    "blockscale.export.onnx.choose": "blockscale.export.to_onnx.encode",
    "blockscale.export.onnx.integer_shift": "blockscale.export.to_onnx.integer_products",
    "blockscale.export.onnx.pieces": "blockscale.export.to_onnx.take",
    "blockscale.export.onnx.split": "blockscale.export.to_onnx.scope",
    "blockscale.export.onnx.stored": "blockscale.export.to_onnx.scope",
    "blockscale.export.onnx.take_integer": "blockscale.export.to_onnx.take",
    "blockscale.export.onnx.unpack": "blockscale.export.to_onnx.steps",
    "blockscale.export.program": "blockscale.export.to_program",
    "blockscale.files.renaming": "blockscale.files.renaming_moves",
    "blockscale.files.renaming.apart": "blockscale.files.renaming_apart",
    "blockscale.files.renaming.carry": "blockscale.files.renaming_carry",
    "blockscale.files.renaming.moves": "blockscale.files.renaming_moves",
    "blockscale.files.renaming.view": "blockscale.files.renaming_view",
    "blockscale.graph.adopt": "blockscale.graph.adoption",
    "blockscale.graph.convert": "blockscale.graph.conversion",
    "blockscale.graph.draw": "blockscale.graph.drawing",
    "blockscale.graph.fuse": "blockscale.graph.fusion",
    "blockscale.graph.integer": "blockscale.graph.lowering.integers",
    "blockscale.graph.integer.arithmetic": "blockscale.ops.integer.shifts",
    "blockscale.graph.integer.convert": "blockscale.graph.integer_model",
    "blockscale.graph.ledger": "blockscale.graph.ledgers",
    "blockscale.graph.lower": "blockscale.graph.lowering",
    "blockscale.graph.lower.targets": "blockscale.graph.lowering.target",
    "blockscale.graph.prepare": "blockscale.graph.preparation",
    "blockscale.integrations.transformers.from_checkpoint": (
        "blockscale.integrations.transformers.reading"
    ),
    "blockscale.kernels.webgpu.textures.texture": "blockscale.kernels.webgpu.texture_storage",
    "blockscale.layers.embedding": "blockscale.layers.kinds",
    "blockscale.layers.linear": "blockscale.layers.kinds",
    "blockscale.layers.processes": "blockscale.layers.guards",
    "blockscale.layers.reading": "blockscale.layers.weight_tensor",
    "blockscale.layers.reading.pieces": "blockscale.layers.weight_pieces",
    "blockscale.layers.reading.products": "blockscale.layers.weight_tensor",
    "blockscale.layers.reading.source": "blockscale.layers.weight_source",
    "blockscale.layers.reading.weight_tensor": "blockscale.layers.weight_tensor",
    "blockscale.ops.fused.match": "blockscale.ops.fused.matching",
    "blockscale.qat.convert": "blockscale.qat.conversion",
    "blockscale.report": "blockscale.reporting",
    "blockscale.report.wording": "blockscale.reporting.table",
    "blockscale.search": "blockscale.selection",
    "blockscale.selection.system.statistics": "blockscale.selection.system.params",
}


def new_name(name: str) -> str | None:
    """What a module of 0.1 is called now; None where its name is as it was."""
    for old in sorted(MOVED, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return MOVED[old] + name[len(old) :]
    return None


class _Old(ModuleType):
    """An old name, held in sys.modules: importing it neither replaces its parent's function nor
    needs a hook in Python's import system.

    What it has is looked up in the module that took its place, which is imported at that time.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{new_name(name)} under the name it had in 0.1.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        here = str(new_name(self.__name__))
        warnings.warn(
            f"blockscale: the module {self.__name__} is called {here} now; its old name goes with "
            f"0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        module = importlib.import_module(here)
        if not hasattr(module, name) and f"{self.__name__}.{name}" in sys.modules:
            return importlib.import_module(f"{here}.{name}")
        return getattr(module, name)


def _modules(folder: Path, package: str) -> Iterator[str]:
    """`package`, whose files lie in `folder`, and every module in it."""
    yield package
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix == ".py" and path.stem != "__init__":
            yield f"{package}.{path.stem}"
        elif (path / "__init__.py").is_file():
            yield from _modules(path, f"{package}.{path.name}")


def install() -> None:
    """Make the old names importable; again does nothing. `import blockscale` calls it.

    Nothing is imported, the files' names alone are read.
    """
    root = Path(__file__).parent
    for old, new in MOVED.items():
        folder = root.joinpath(*new.split(".")[1:])
        for name in _modules(folder, new):
            stale = old + name[len(new) :]
            if new_name(stale) == name:
                sys.modules.setdefault(stale, _Old(stale))
