# SPDX-License-Identifier: BSD-3-Clause
"""The house stays in order: no circles inside a room, and public functions that say what they take
and give. tests/test_layers.py has the order of the rooms."""

import ast
import pathlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.layer_order import absolute

PACKAGE = pathlib.Path(__file__).parents[1] / "blockscale"
Imports = dict[str, set[str]]  # module -> the modules that it imports, at any depth of its file


def module_name(path: pathlib.PurePath) -> str:
    """blockscale/a/b.py, without `blockscale/` -> "a.b"; a folder's __init__.py -> the folder."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST, path: pathlib.PurePath, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports, `from folder import module` included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, path)
            names = [f"{base}.{a.name}" for a in node.names] + [base]
            whole = [n for n in names[:-1] if n.removeprefix("blockscale.") in modules]
            names = whole if len(whole) == len(node.names) else [*whole, base]
        else:
            continue
        yield from (n.removeprefix("blockscale.") for n in names if n.startswith("blockscale."))


@cache
def every_import() -> Imports:
    """Of every module but the package's own __init__.py, whose are the public names."""
    paths = {module_name(p.relative_to(PACKAGE)): p for p in PACKAGE.rglob("*.py")}
    del paths["__init__"]
    return {
        name: {
            other
            for other in imported(ast.parse(p.read_text()), p.relative_to(PACKAGE), set(paths))
            if other in paths and other != name
        }
        for name, p in paths.items()
    }


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
    """Strongly connected components: what can be reached from each other."""

    def reach(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for other in graph.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    reached = {node: reach(node) for node in graph}
    return [
        {node, *(other for other in seen if node in reached.get(other, ()))}
        for node, seen in reached.items()
        if node in seen
    ]


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
        for function in public_functions(ast.parse(path.read_text())):
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


# A module below 80 lines that a single module imports is a part of that one, and lies in it.

SMALL = 80

# Sets that grow by a file, however small: {folder: what each member has}
SETS = {
    "calibration.algorithms": r"^class \w+:",
    "core.elements": r"^def read\(",
    "export.auditing": r"^def tensors\(",
    "graph.lowering.integers.rules": r"^def \w+\(",
    "graph.passes": r"^def run\(",
    "kernels.cpu": r"^@kernel\(",
    "kernels.cuda": r"^@kernel\(",
    "kernels.webgpu": r"^@kernel\(",
    "layers": r"^def replacement\(",
    "layers.before": r"^class \w+\(Before\):",
    "ops": r"^@op\(",
    "ops.integer": r"^@integer_op",
    "qat.layers": r"^def trained\(",
}

# module -> why it is not merged
ALONE = {
    "export.to_onnx.integer_shift": "goes with graph/integer, once there is one path to integers",
    "export.to_onnx.take_integers": "goes with graph/integer, once there is one path to integers",
    "ops.round_columns": "an op, though none of torch's: its kernels have its name",
}

# Rooms that are still to be merged, and how many each has: the numbers may only go down.
LEFT = {
    "bench": 2, "calibration": 7, "compat": 1, "demo": 1, "graph": 2, "kernels": 12,
    "qat": 1,
}  # fmt: skip


def with_one_importer(imports: Imports, sources: dict[str, str]) -> dict[str, str]:
    """{a small module: the only one that imports it}, but for members of sets."""
    importers: dict[str, list[str]] = {}
    for name, others in imports.items():
        for other in others:
            importers.setdefault(other, []).append(name)
    return {
        name: importers[name][0]
        for name, source in sources.items()
        if len(importers.get(name, ())) == 1
        and source.count("\n") < SMALL
        and not _member(name, source)
    }


def _member(name: str, source: str) -> bool:
    has = SETS.get(name.rpartition(".")[0])
    return has is not None and re.search(has, source, re.MULTILINE) is not None


def every_small_part() -> dict[str, str]:
    paths = {p: module_name(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py")}
    public = pathlib.PurePath("__init__.py")
    names = imported(ast.parse((PACKAGE / public).read_text()), public, set(paths.values()))
    files = {name: p.read_text() for p, name in paths.items() if p.name != "__init__.py"}
    return with_one_importer(every_import() | {"__init__": set(names)}, files)


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


def test_small_parts_are_seen() -> None:
    imports = {"a.x": {"a.y", "a.z"}, "b.x": {"a.z"}, "c.x": {"qat.layers.lstm"}}
    short, long = "x = 1\n", "x = 1\n" * SMALL
    members = {"qat.layers.lstm": "def trained(kind: type) -> None: ...\n"}
    assert with_one_importer(imports, {"a.y": short, "a.z": short}) == {"a.y": "a.x"}
    assert with_one_importer(imports, {"a.y": long, "a.z": long} | members) == {}
    assert with_one_importer(imports, {"qat.layers.lstm": short}) == {"qat.layers.lstm": "c.x"}
