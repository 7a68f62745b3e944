# SPDX-License-Identifier: BSD-3-Clause
"""A bug in this process, in memory: functions that have it, or what imports and reads find.

Functions that are imported already get the code of the file's other text (`swap`); what is not
inside a function (constants, defaults, classes' attributes) must be planted before the import
(`plant`), as everything else may be.
"""

import ast
import builtins
import gc
import importlib.machinery
import io
import linecache
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
Functions = dict[str, list[FunctionType]]  # of each file


class TooLateError(Exception):
    """The bug is not in functions alone: it must be there before its module is imported."""


def functions(root: Path) -> Functions:
    """All functions that are alive, by the file below `root` that they are from."""
    found: Functions = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(f"{root}/"):
            found[each.__code__.co_filename].append(each)
    return found


def swap(path: Path, text: str, alive: Functions) -> None:
    """Give live functions of a Python file the code that they have in another text of it, and
    constants, where they are imported too, their values.

    Raises TooLateError where more differs.
    """
    before, after = path.read_text(), text
    again = _assignments(ast.parse(before), ast.parse(after))
    codes = [compile(each, path, "exec", dont_inherit=True) for each in (before, after)]
    new = dict(_changed(codes[0], codes[1], constants=bool(again)))
    own = [f for f in alive.get(str(path), ()) if _key(f.__code__) in new]
    if not own and not again:
        raise TooLateError("no function with this code is alive")
    for function in own:
        try:
            function.__code__ = new[_key(function.__code__)]
        except ValueError as error:  # another number of variables from around it
            raise TooLateError(str(error)) from error
    _show_lines(path, text)
    for statement in again:
        _assign(path, statement)


def _assignments(before: ast.Module, after: ast.Module) -> list[ast.Assign | ast.AnnAssign]:
    """The constants of a module that differ, and those that are made of them."""
    if len(before.body) != len(after.body):
        raise TooLateError("it has another number of statements")
    found: list[ast.Assign | ast.AnnAssign] = []
    names: set[str] = set()
    for old, new in zip(before.body, after.body, strict=True):
        uses = {each.id for each in ast.walk(new) if isinstance(each, ast.Name)}
        differs = ast.dump(old) != ast.dump(new)
        if isinstance(new, ast.Assign | ast.AnnAssign):
            if differs or uses & names:
                found.append(new)
                names |= uses - {each.id for each in ast.walk(new) if _is_read(each)}
        elif names & _read_at_once(new):
            raise TooLateError(f"line {new.lineno} was made of the constant")
    return found


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _read_at_once(node: ast.stmt) -> set[str]:
    """Names that a statement reads when its module is imported, not when a function is called."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    parts: list[ast.AST] = list(node.decorator_list)
    if isinstance(node, ast.ClassDef):
        parts += node.bases
        inner = set().union(*(_read_at_once(each) for each in node.body))
    else:
        parts += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        inner = set()
    return inner | {n.id for each in parts for n in ast.walk(each) if isinstance(n, ast.Name)}


def _assign(path: Path, statement: ast.Assign | ast.AnnAssign) -> None:
    """Execute it in its module, and give modules that imported the names the new values."""
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
    own = [m for m in modules if m.__file__ == str(path)]
    if len(own) != 1:
        raise TooLateError("its module is not imported")
    names = [each.id for each in ast.walk(statement) if isinstance(each, ast.Name)
             and isinstance(each.ctx, ast.Store)]  # fmt: skip
    old = {name: own[0].__dict__[name] for name in names}
    code = compile(ast.Module([statement], []), path, "exec", dont_inherit=True)
    exec(code, own[0].__dict__)
    for module in modules:
        for name, value in old.items():
            if module.__dict__.get(name, sys) is value and _imports(module, name):
                module.__dict__[name] = own[0].__dict__[name]


def _imports(module: ModuleType, name: str) -> bool:
    file = Path(str(module.__file__))
    if file.suffix != ".py" or not file.is_relative_to(ROOT):
        return False
    imports = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
    return any(name in (each.asname, each.name) for one in imports for each in one.names)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _changed(
    old: CodeType, new: CodeType, constants: bool = False
) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The functions of a code object that differ, or hold one that does.

    constants: those of the module may differ.
    """
    inner_old, inner_new = ([c for c in code.co_consts if isinstance(c, CodeType)]
                            for code in (old, new))  # fmt: skip
    alike = len(inner_old) == len(inner_new) and (constants or _apart(old) == _apart(new))
    within = [pair for pair in zip(inner_old, inner_new, strict=False) if alike]
    below = [each for pair in within for each in _changed(*pair)]
    if old.co_flags & CO_OPTIMIZED:
        if not alike or below:
            yield _key(old), new
    elif not alike:
        raise TooLateError("it is not inside a function")
    yield from below


def _apart(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, without the code objects inside."""
    constants = [(type(c), c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_code, code.co_names, repr(constants), code.co_varnames, code.co_exceptiontable


def plant(path: Path, text: str) -> None:
    """From now on the file holds this text, for imports and for whoever opens it to read."""
    if path.suffix == ".py":
        _show_lines(path, text)
        sys.meta_path.insert(0, _Finder(path, text))
    else:
        _opened(path, text)


def _show_lines(path: Path, text: str) -> None:
    # without a time of change, which checkcache leaves alone: Triton reads functions' lines
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))


class _Loader(importlib.machinery.SourceFileLoader):
    text = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)

    def get_data(self, path: str) -> bytes:
        return self.text.encode() if path == self.path else super().get_data(path)


class _Finder(MetaPathFinder):
    def __init__(self, path: Path, text: str):
        self._path, self._text = str(path), text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin != self._path:
            return None
        spec.loader = _Loader(name, self._path)
        spec.loader.text = self._text
        return spec


def _opened(path: Path, text: str) -> None:
    real = io.open

    def instead(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if not isinstance(file, int) and os.fspath(file) == str(path) and "r" in mode:
            return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)
        return real(file, mode, *rest, **options)

    io.open = builtins.open = instead  # pathlib asks the first, others the second
