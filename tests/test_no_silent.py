# SPDX-License-Identifier: BSD-3-Clause
"""Nothing is swallowed and nothing is printed: errors reach the caller, words go through cli/."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

from tests.support.syntax import nodes

PACKAGE = pathlib.Path(__file__).parents[1] / "blockscale"
ANYTHING = {"Exception", "BaseException"}
# module -> what it does there on purpose, and why
ALLOWED = {
    "kernels/webgpu/torch_device.py": (
        "catches everything and drops it",
        "torch asks for a device's type while an error is set, under which no function may return; "
        "backward raises the error again: tests/kernels/webgpu/test_torch_device.py",
    ),
}


def catches_anything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(t, ast.Name) and t.id in ANYTHING for t in types)


def silent(handler: ast.ExceptHandler) -> bool:
    """Whether neither an error nor a use of the caught one leaves the handler."""
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    used = any(isinstance(node, ast.Name) and node.id == handler.name for node in nodes)
    return not used and not any(isinstance(node, ast.Raise) for node in nodes)


def faults(source: str, may_print: bool) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno}: a bare `except:`"
        elif isinstance(node, ast.ExceptHandler) and catches_anything(node) and silent(node):
            yield f"line {node.lineno}: catches everything and drops it"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "print" and not may_print:
                yield f"line {node.lineno}: prints"
            if called.endswith("suppress") and {ast.unparse(a) for a in node.args} & ANYTHING:
                yield f"line {node.lineno}: suppresses everything"


def test_nothing_is_silent() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        faulty = list(faults(path.read_text(), name.startswith("cli/")))
        if name in ALLOWED:
            [allowed] = [f for f in faulty if f.endswith(ALLOWED[name][0])]  # once, and needed
            faulty.remove(allowed)
        found += [f"{name} {f}" for f in faulty]
    assert not found, found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("try:\n    f()\nexcept:\n    raise", 1),
        ("try:\n    f()\nexcept Exception:\n    pass", 1),
        ("try:\n    f()\nexcept (ValueError, Exception):\n    x = None", 1),
        ("with contextlib.suppress(Exception):\n    f()", 1),
        ("print(1)", 1),
        ("try:\n    f()\nexcept Exception as e:\n    raise ValueError('why') from e", 0),
        ("try:\n    f()\nexcept Exception as e:\n    ledger.skip(name, str(e))", 0),
        ("try:\n    f()\nexcept ImportError:\n    x = None", 0),
    ],
)
def test_the_check_can_fail(source: str, count: int) -> None:
    assert len(list(faults(source, may_print=False))) == count
