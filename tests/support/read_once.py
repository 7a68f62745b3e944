# SPDX-License-Identifier: BSD-3-Clause
"""What torch reads anew for each export, read once in a process: the same results, a third of the
time of an ONNX export and a tenth of a decomposition.

torch.onnx parses the source of each of a thousand functions that it could call, each time; and
torch.export asks for every composite op of C++ once for each namespace of ops, some forty, each
time. Neither changes while tests run, and where it does it is read again.
"""

import sys
from functools import cache
from types import ModuleType
from typing import Any

_done: set[str] = set()


def read_once() -> None:
    """Patch those of the modules that are imported by now; asked before each test."""
    for name, patch in _PATCHES.items():
        module = sys.modules.get(name)
        if module is not None and name not in _done:
            _done.add(name)
            patch(module)


def _registry(module: ModuleType) -> None:
    """Each export gets lists of its own, which it may add functions to."""
    kind = module.ONNXRegistry
    build = cache(kind.from_torchlib)

    def from_torchlib(cls: Any, *args: Any, **named: Any) -> Any:
        known, made = build(*args, **named), cls()
        made.__dict__.update(known.__dict__)
        made.functions = {op: list(each) for op, each in known.functions.items()}
        return made

    kind.from_torchlib = classmethod(from_torchlib)


def _composite_ops(module: ModuleType) -> None:
    """Looking an op up puts it into torch.ops for good: again only when there are others."""
    torch = sys.modules["torch"]
    look_up = module._materialize_cpp_cia_ops
    last: list[list[str]] = [[]]

    def materialize() -> None:
        ops = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if ops != last[0]:
            look_up()
            last[0] = ops

    module._materialize_cpp_cia_ops = materialize  # type: ignore[attr-defined]


_PATCHES = {
    "torch.onnx._internal.exporter._registration": _registry,
    "torch._export.utils": _composite_ops,
}
