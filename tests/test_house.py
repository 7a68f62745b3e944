# SPDX-License-Identifier: BSD-3-Clause
"""The house stays in order: no circles inside a room, and public functions that say what they take
and give. tests/test_layers.py has the order of the rooms."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath

import pytest

from tests.support.house_figures import (
    ALONE,
    PACKAGE,
    SHARED,
    SMALL,
    Imports,
    every_import,
    every_small_part,
    figures,
    folders,
    small_folders,
    with_one_importer,
)
from tests.support.syntax import nodes, tree


def circles(imports: Imports) -> list[tuple[str, ...]]:
    """Neighbours, files or whole folders of one folder, that import each other in a circle."""
    found = []
    names = {*imports, *(each for others in imports.values() for each in others)}
    for folder in {parent for name in names for parent in _parents(name)}:
        graph: dict[str, set[str]] = {}
        for name, others in imports.items():
            for other in others:
                a, b = _child(name, folder), _child(other, folder)
                if a and b and a != b:
                    graph.setdefault(a, set()).add(b)
        found += [tuple(sorted(c)) for c in _components(graph) if len(c) > 1]
    return sorted(set(found))


def _parents(module: str) -> Iterator[str]:
    """The folders that a module lies in, and the package itself, which is ""."""
    parts = module.split(".")
    yield from (".".join(parts[:n]) for n in range(len(parts)))


def _child(module: str, folder: str) -> str | None:
    """The file or folder of `folder` that the module is or lies in; None elsewhere."""
    if module == folder:
        return f"{folder}.__init__"
    prefix = f"{folder}." if folder else ""
    if not module.startswith(prefix):
        return None
    return prefix + module[len(prefix) :].partition(".")[0]


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components: what can be reached from each other (Kosaraju)."""
    order: list[str] = []
    _walk_from(graph, list(graph), set(), order.append)
    back: dict[str, set[str]] = {}
    for node, others in graph.items():
        for other in others:
            back.setdefault(other, set()).add(node)
    seen: set[str] = set()
    components: list[set[str]] = []
    for node in reversed(order):
        component: set[str] = set()
        _walk_from(back, [node], seen, component.add)
        components.append(component)
    return components


def _walk_from(
    graph: dict[str, set[str]], start: list[str], seen: set[str], leave: Callable[[str], None]
) -> None:
    """Depth first; `leave` is called with each node after all that it leads to."""
    todo = [(node, True) for node in reversed(start)]
    while todo:
        node, enter = todo.pop()
        if not enter:
            leave(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, False))
            todo += [(other, True) for other in graph.get(node, ())]


def test_no_circles() -> None:
    assert circles(every_import()) == []


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a.x": {"a.y"}, "a.y": set()}, []),
        ({"a.x": {"a.y"}, "a.y": {"a.x"}}, [("a.x", "a.y")]),
        ({"a.x": {"a.y"}, "a.y": {"a.z"}, "a.z": {"a.x"}}, [("a.x", "a.y", "a.z")]),
        ({"a.b.x": {"a.y"}, "a.y": {"a.b.z"}, "a.b.z": set()}, [("a.b", "a.y")]),
        ({"a": {"a.x"}, "a.x": {"a"}}, [("a.__init__", "a.x")]),
        ({"a.x": {"b.x"}, "b.x": set(), "b.y": {"a.y"}, "a.y": set()}, [("a", "b")]),
    ],
)
def test_circles_are_seen(imports: Imports, expected: list[tuple[str, ...]]) -> None:
    assert circles(imports) == expected


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions and methods that others call; not the code of GPU kernels, which has no types."""
    bodies = [tree.body]
    bodies += [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
    for body in bodies:
        for node in body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not any("jit" in ast.unparse(d) for d in node.decorator_list):
                yield node


def typed(function: ast.FunctionDef) -> bool:
    """Whether every parameter but `self` and `cls`, and the result, has a type."""
    a = function.args
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    given = all(p.annotation is not None or p.arg in ("self", "cls") for p in named)
    return given and function.returns is not None


def test_public_functions_are_typed() -> None:
    untyped, count = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in public_functions(tree(path.read_text())):
            count += 1
            if not typed(function):
                untyped.append(f"{path.relative_to(PACKAGE)}:{function.name}")
    assert count > 700
    assert len(untyped) <= 0.05 * count, untyped


def test_missing_types_are_seen() -> None:
    source = (
        "def f(x: int) -> int: ...\ndef g(x) -> int: ...\ndef h(x: int): ...\n@jit\ndef k(x): ..."
    )
    assert [typed(f) for f in public_functions(ast.parse(source))] == [True, False, False]


# What the house may have: the numbers may only go down (python -m tests.support.house_figures).
BOUNDS = {
    "files": 850,
    "folders": 86,
    "files under 15 lines": 37,
    "modules under 80 lines with one importer": 2,
    "class names defined more than once": 11,
    "folders with fewer than 5 files, which are no growing set": 10,
}

# Rooms that are still to be merged, and how many each has: the numbers may only go down.
LEFT = {"compat": 1}


def test_no_figure_grows() -> None:
    counts = {name: len(each) for name, each in figures().items()}
    assert counts.keys() == BOUNDS.keys()
    assert {name: count for name, count in counts.items() if count > BOUNDS[name]} == {}


def test_small_folders_are_seen() -> None:
    four: list[PurePath] = [PurePath(f"a/b/{n}.py") for n in range(4)]
    assert folders(four) == {"a/b": 4, "a": 4, ".": 4}
    assert small_folders([*four, PurePath("a/x.py")]) == ["a/b"]
    assert small_folders([*four, PurePath("a/b/x.py")]) == []
    assert small_folders([*four, PurePath("x.py")]) == ["a", "a/b"]
    assert small_folders([*four, PurePath("ops/integer/x.py")]) == ["a", "a/b"]


def test_a_small_part_of_one_module_lies_in_it() -> None:
    found = {name: by for name, by in every_small_part().items() if name not in ALONE}
    rooms = Counter(name.partition(".")[0] for name in found)
    more = {room for room, count in rooms.items() if count > LEFT.get(room, 0)}
    told = [f"{name} is imported by {by} alone" for name, by in sorted(found.items())]
    assert not more, [each for each in told if each.partition(".")[0] in more]


def test_what_is_not_merged_is_little_and_has_a_reason() -> None:
    found = every_small_part()
    assert len(ALONE) <= 5 and ALONE.keys() <= found.keys()
    assert all(len(reason.split()) >= 4 for reason in ALONE.values())


def test_names_that_are_shared_are_and_have_a_reason() -> None:
    twice = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in tree(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name in SHARED if twice[name] < 2] == []
    assert all(len(reason.split()) >= 6 for reason in SHARED.values())


def test_small_parts_are_seen() -> None:
    imports = {"a.x": {"a.y", "a.z"}, "b.x": {"a.z"}, "c.x": {"qat.layers.lstm"}}
    short, long = "x = 1\n", "x = 1\n" * SMALL
    members = {"qat.layers.lstm": "def trained(kind: type) -> None: ...\n"}
    assert with_one_importer(imports, {"a.y": short, "a.z": short}) == {"a.y": "a.x"}
    assert with_one_importer(imports, {"a.y": long, "a.z": long} | members) == {}
    assert with_one_importer(imports, {"qat.layers.lstm": short}) == {"qat.layers.lstm": "c.x"}


PRIVATE = "core/torch_private.py"


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _chain(node: ast.expr) -> list[str]:
    """a.b.c -> ["a", "b", "c"]; empty for what begins with no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *parts[::-1]] if isinstance(node, ast.Name) else []


def _of_torch(source: str) -> Iterator[tuple[str, str]]:
    """What a file imports of torch: the name that it has in the file, and the whole one."""
    for node in nodes(source):
        pairs: list[tuple[str, str]] = []
        if isinstance(node, ast.Import):
            pairs = [(a.asname or a.name.partition(".")[0], a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            pairs = [(a.asname or a.name, f"{node.module}.{a.name}") for a in node.names]
        yield from (pair for pair in pairs if pair[1].partition(".")[0] == "torch")


def private_names(source: str) -> set[str]:
    """torch's private names in a file: what it imports, and attributes of that; ops are not, whose
    underscore is in their public name."""
    imports = list(_of_torch(source))
    known = {name: "torch" if name == "torch" else whole for name, whole in imports}
    names = {whole for _, whole in imports if any(map(_private, whole.split(".")))}
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            first, *rest = _chain(node) or [""]
            whole = ".".join([known.get(first, ""), *rest])
            if first in known and not whole.startswith("torch.ops."):
                names.add(whole)
    return names


def test_private_names_of_torch_lie_in_one_file() -> None:
    """Where each has a check, tests/core/test_torch_private.py."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name != PRIVATE and (names := private_names(path.read_text())):
            found[name] = sorted(names)
    assert not found, f"take them from blockscale/{PRIVATE}: {found}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from torch._guards import detect_fake_mode", {"torch._guards.detect_fake_mode"}),
        ("from torch.utils import _pytree as pytree", {"torch.utils._pytree"}),
        ("import torch._inductor", {"torch._inductor"}),
        ("import torch\ntorch._C.f()", {"torch._C"}),
        ("from torch import nn\nnn.modules.conv._ConvNd", {"torch.nn.modules.conv._ConvNd"}),
        ("import torch\nx = torch.ops.aten._to_copy.default\ntorch.__version__", set()),
        ("import triton\ntriton._x\nself._y\n# torch._C", set()),
    ],
)
def test_private_names_are_seen(source: str, expected: set[str]) -> None:
    assert private_names(source) == expected
