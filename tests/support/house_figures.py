# SPDX-License-Identifier: BSD-3-Clause
"""How large the house is, in figures, each counted here alone.

    python -m tests.support.house_figures          the table
    python -m tests.support.house_figures --which  and what each figure counts

tests/test_house.py holds every figure to a bound that may only go down.
"""

import ast
import pathlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tests.support.layer_order import absolute
from tests.support.syntax import nodes

PACKAGE = pathlib.Path(__file__).parents[2] / "blockscale"
Imports = dict[str, set[str]]  # module -> the modules that it imports, at any depth of its file


def module_name(path: pathlib.PurePath) -> str:
    """blockscale/a/b.py, without `blockscale/` -> "a.b"; a folder's __init__.py -> the folder."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(source: str, path: pathlib.PurePath, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports, `from folder import module` included."""
    for node in nodes(source):
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
    modules = set(paths)
    return {
        name: {
            other
            for other in imported(p.read_text(), p.relative_to(PACKAGE), modules)
            if other in paths and other != name
        }
        for name, p in paths.items()
    }


# A module below 80 lines that a single module imports is a part of that one, and lies in it.

SMALL = 80
SHORT = 15
FEW = 5

# Sets that grow by a file, however small: {folder: what each member has}
SETS = {
    "bench.peers": r"^def unavailable\(",
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
ALONE: dict[str, str] = {}

# Names of classes that several modules have on purpose: why
_TORCH_AO = "torch.ao's own name, which stands in both of its namespaces, eager and PT2E"
SHARED = {
    "BlockscaleConfig": "the name that users import, from each library's integration",
    "BlockscaleQuantizer": "the name that users import, from each library's integration",
    "FakeQuantize": _TORCH_AO,
    "Form": "what kernels know of a format: each backend has one",
    "FusedMovingAvgObsFakeQuantize": _TORCH_AO,
    "HistogramObserver": _TORCH_AO,
    "MinMaxObserver": _TORCH_AO,
    "MovingAverageMinMaxObserver": _TORCH_AO,
    "MovingAveragePerChannelMinMaxObserver": _TORCH_AO,
    "PerChannelMinMaxObserver": _TORCH_AO,
    "PlaceholderObserver": _TORCH_AO,
}


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
    names = imported((PACKAGE / public).read_text(), public, set(paths.values()))
    files = {name: p.read_text() for p, name in paths.items() if p.name != "__init__.py"}
    return with_one_importer(every_import() | {"__init__": set(names)}, files)


# Figures


def every_file() -> list[pathlib.Path]:
    """The package's files that git knows, and new ones that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."]
    names = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True).stdout
    return sorted(PACKAGE / name for name in names.splitlines() if (PACKAGE / name).is_file())


def folders(files: list[pathlib.PurePath]) -> dict[str, int]:
    """{a folder: how many files lie in it, those of its own folders included}."""
    return Counter(folder.as_posix() for f in files for folder in f.parents)


def small_folders(files: list[pathlib.PurePath]) -> list[str]:
    """Folders with fewer than FEW files which are no set that grows."""
    growing = {name.replace(".", "/") for name in SETS}
    return sorted(name for name, n in folders(files).items() if n < FEW and name not in growing)


def short_files() -> list[str]:
    """Files of fewer than SHORT lines."""
    return [
        f.relative_to(PACKAGE).as_posix()
        for f in every_file()
        if len(f.read_bytes().splitlines()) < SHORT
    ]


def classes() -> dict[str, list[str]]:
    """{a class name that is defined more than once, but for SHARED: the files that define it}."""
    places: dict[str, list[str]] = {}
    for path in every_file():
        if path.suffix != ".py":
            continue
        for node in nodes(path.read_text()):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    twice = {name: files for name, files in sorted(places.items()) if len(files) > 1}
    return {name: files for name, files in twice.items() if name not in SHARED}


def figures() -> dict[str, list[str]]:
    """{what is counted: each of it}."""
    files: list[pathlib.PurePath] = [f.relative_to(PACKAGE) for f in every_file()]
    return {
        "files": [f.as_posix() for f in files],
        "folders": sorted(folders(files)),
        f"files under {SHORT} lines": short_files(),
        f"modules under {SMALL} lines with one importer": [
            f"{name}, imported by {by}" for name, by in sorted(every_small_part().items())
        ],
        "class names defined more than once": [
            f"{name}: {', '.join(files)}" for name, files in classes().items()
        ],
        f"folders with fewer than {FEW} files, which are no growing set": small_folders(files),
    }


def main() -> None:
    which = "--which" in sys.argv[1:]
    for name, each in figures().items():
        sys.stdout.write(f"{len(each):6d}  {name}\n")
        if which and name not in ("files", "folders"):
            sys.stdout.writelines(f"          {one}\n" for one in each)


if __name__ == "__main__":
    main()
