# SPDX-License-Identifier: BSD-3-Clause
"""What programs outside the package import of it is there, scripts of the shell among them: most
run for hours, or on machines that no test has, so that their user alone would see a name change."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import nodes

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(
    file for folder in ("attack", "benchmarks", "docs") for file in (ROOT / folder).rglob("*.py")
)
SCRIPTS = [ROOT / "Makefile", ROOT / ".ci/run", *ROOT.glob("*/*.sh")]
_IN_A_SCRIPT = re.compile(r"\bfrom blockscale[\w.]* import [\w, ]+")


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
    sources = {f: f.read_text() for f in PROGRAMS}
    sources |= {f: "\n".join(_IN_A_SCRIPT.findall(f.read_text())) for f in SCRIPTS}
    assert "import missing" in sources[ROOT / "requirements/vulkan.sh"]
    found = {str(file.relative_to(ROOT)): missing(source) for file, source in sources.items()}
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
