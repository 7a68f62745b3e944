# SPDX-License-Identifier: BSD-3-Clause
"""Modules under their names of 0.1: they import what took their place, and warn.

A function hid each of them (`import blockscale.calibrate.observers as o` was an ImportError), so
that they have names of their own now. The old names go with the next minor version
(docs/stability.md).
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "blockscale.calibrate": "blockscale.calibration",
    "blockscale.export.auditing.audit": "blockscale.export.auditing.file_kinds",
    "blockscale.export.c": "blockscale.export.to_c",
    "blockscale.export.compressed_tensors": "blockscale.export.to_compressed_tensors",
    "blockscale.export.executorch": "blockscale.export.to_executorch",
    "blockscale.export.onnx": "blockscale.export.to_onnx",
    "blockscale.export.onnx.take_integer": "blockscale.export.to_onnx.take_integers",
    "blockscale.export.program": "blockscale.export.to_program",
    "blockscale.graph.adopt": "blockscale.graph.adoption",
    "blockscale.graph.convert": "blockscale.graph.conversion",
    "blockscale.graph.draw": "blockscale.graph.drawing",
    "blockscale.graph.fuse": "blockscale.graph.fusion",
    "blockscale.graph.ledger": "blockscale.graph.ledgers",
    "blockscale.graph.lower": "blockscale.graph.lowering",
    "blockscale.graph.lower.targets": "blockscale.graph.lowering.target",
    "blockscale.graph.prepare": "blockscale.graph.preparation",
    "blockscale.integrations.transformers.from_checkpoint": (
        "blockscale.integrations.transformers.checkpoints"
    ),
    "blockscale.kernels.webgpu.textures.texture": "blockscale.kernels.webgpu.textures.storage",
    "blockscale.ops.fused.match": "blockscale.ops.fused.matching",
    "blockscale.qat.convert": "blockscale.qat.conversion",
    "blockscale.report": "blockscale.reporting",
    "blockscale.search": "blockscale.selection",
}


def new_name(name: str) -> str | None:
    """What a module of 0.1 is called now; None where its name is as it was."""
    for old in sorted(MOVED, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return MOVED[old] + name[len(old) :]
    return None


class _Old(ModuleType):
    """An old name, held in sys.modules so that importing it never replaces its parent's function.

    What it has is looked up in the module that took its place, which is imported at that time.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{MOVED[name]} under the name it had in 0.1.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _warn(self.__name__)
        return getattr(importlib.import_module(MOVED[self.__name__]), name)


class _Finder(MetaPathFinder, Loader):
    """Finds `blockscale.calibrate.observers` at `blockscale.calibration.observers`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target  # names of modules say everything here
        if not fullname.startswith("blockscale.") or new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> None:
        """None: Python makes an empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        _warn(module.__name__)
        # The import system returns what stands in sys.modules after this.
        sys.modules[module.__name__] = importlib.import_module(str(new_name(module.__name__)))


def _warn(old: str) -> None:
    warnings.warn(
        f"blockscale: the module {old} is called {new_name(old)} now; its old name goes with 0.3",
        DeprecationWarning,
        stacklevel=3,
    )


def install() -> None:
    """Make the old names importable; again does nothing. `import blockscale` calls it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
    for old in MOVED:
        sys.modules.setdefault(old, _Old(old))
