# SPDX-License-Identifier: BSD-3-Clause
"""Imports point one way: a layer imports itself and what is left of it, at any depth of a file."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

from tests.support.layer_order import BESIDE, LAYERS, USERS, absolute
from tests.support.syntax import nodes

PACKAGE = pathlib.Path(__file__).parents[1] / "blockscale"
ROOT = "the package itself"  # its __init__ imports every layer


def allowed(layer: str) -> set[str]:
    if layer in BESIDE:
        return {layer, *BESIDE[layer]}
    place = LAYERS.index(layer) if layer in LAYERS else -1  # test_every_folder_is_a_layer says so
    left = {*LAYERS[: place + 1]}
    return left | {ROOT, *BESIDE} if layer in USERS else left


def modules(source: str, path: pathlib.PurePath) -> Iterator[str]:
    """Every module that is imported, by statement or by a name given to import_module."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, path)
            if base == "blockscale":  # `from blockscale import core`: the layer, or a public name
                yield from (f"blockscale.{a.name}" for a in node.names)
            else:
                yield base
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func).lower():
            values = [a.value for a in node.args if isinstance(a, ast.Constant)]
            yield from (v for v in values if isinstance(v, str))


def wrong_imports(path: pathlib.PurePath, source: str) -> list[str]:
    layer = path.parts[0]
    found = set()
    for module in modules(source, path):
        package, _, rest = module.partition(".")
        if package == "blockscale":
            name = rest.partition(".")[0]
            found.add(name if name in LAYERS or name in BESIDE else ROOT)
    return [f"{path} imports {target}" for target in sorted(found - allowed(layer))]


def test_imports_point_one_way() -> None:
    files = [f for f in PACKAGE.rglob("*.py") if f.parent != PACKAGE]
    assert files
    wrong = [w for f in files for w in wrong_imports(f.relative_to(PACKAGE), f.read_text())]
    assert not wrong, wrong


def test_every_folder_is_a_layer() -> None:
    folders = {p.parent.relative_to(PACKAGE).parts[0] for p in PACKAGE.glob("*/**/*.py")}
    assert folders <= {*LAYERS, *BESIDE}


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("core/a.py", "from blockscale.core.b import c", 0),
        ("core/a.py", "import blockscale.ops.linear", 1),
        ("core/a.py", "def f():\n    from blockscale.ops import linear", 1),
        ("core/a.py", "from blockscale import ops", 1),
        ("core/a.py", "from blockscale import parse", 1),
        ("core/a.py", "import blockscale as bs", 1),
        ("core/elements/a.py", "from ...ops import linear", 1),
        ("core/elements/a.py", "from .. import scale", 0),
        ("core/a.py", "importlib.import_module('blockscale.ops')", 1),
        ("core/a.py", "if TYPE_CHECKING:\n    from blockscale.ops import x", 1),
        ("ops/a.py", "from blockscale.kernels.registry import find", 0),
        ("ops/a.py", "from blockscale.compat import torchao", 1),
        ("compat/a.py", "from blockscale.ops.tensor import QTensor", 0),
        ("compat/a.py", "from blockscale.files import safetensors", 1),
        ("cli/a.py", "import blockscale as bs", 0),
    ],
)
def test_the_check_can_fail(path: str, source: str, count: int) -> None:
    assert len(wrong_imports(pathlib.PurePath(path), source)) == count
