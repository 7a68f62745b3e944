# SPDX-License-Identifier: BSD-3-Clause
"""What programs outside the package import of it is there: most of them run for hours on machines
that no test has, so that a name that changed would be seen by their user alone."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import nodes

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(
    file for folder in ("attack", "benchmarks", "docs") for file in (ROOT / folder).rglob("*.py")
)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """(module of blockscale, name in it) of each import from there."""
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blockscale"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def missing(source: str) -> list[str]:
    """Names that are not there; those of modules that need what is not installed are left out."""
    result = []
    for module, name in imported(source):
        try:
            there = hasattr(importlib.import_module(module), name)
        except ImportError as error:
            if (error.name or "").startswith("blockscale"):
                result.append(f"{module} ({error})")
            continue
        if not there and not (ROOT / module.replace(".", "/") / f"{name}.py").exists():
            result.append(f"{module}.{name}")
    return result


def test_names_are_there() -> None:
    assert len(PROGRAMS) > 50
    found = {str(f.relative_to(ROOT)): missing(f.read_text()) for f in PROGRAMS}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "from blockscale.files.header import stored_tensor",
            "blockscale.files.header.stored_tensor",
        ),
        ("from blockscale.nowhere import x", "blockscale.nowhere (No module named"),
    ],
)
def test_a_name_that_is_gone_is_seen(line: str, name: str) -> None:
    [only] = missing(f"{line}\nfrom blockscale.files import header\nfrom torch import nothing")
    assert only.startswith(name)
