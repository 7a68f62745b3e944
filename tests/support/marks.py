# SPDX-License-Identifier: BSD-3-Clause
"""Where a planted bug belongs: a definition's name and a piece of its code, wherever both are now.

A mark outlives formatting (pieces are compared token by token, so spaces, line breaks, comments and
commas before a bracket do not count) and moves: where the file or the definition is gone, the
definition is looked for by its name in every file of the same language.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py": (".py",), ".wgsl": (".wgsl",), ".h": (".h", ".cpp"), ".cpp": (".h", ".cpp")}
_STRING = (
    "[rbfuRBFU]{0,2}(?:"
    + "|".join(rf"{3 * quote}(?:\\.|[^\\])*?{3 * quote}" for quote in "'\"")
    + "".join(rf"|{quote}(?:\\.|[^{quote}\\\n])*{quote}" for quote in "'\"")
    + ")"
)
_OPERATOR = r"\*\*=|//=|>>=|<<=|<=>|->|:=|::|==|!=|<=|>=|<<|>>|\*\*|&&|\|\||\+\+|--|[-+*/%&|^@]="
_CODE = rf"(\d(?:[eEpP][-+]|'(?=\d)|[\w.])*|{_STRING}|\w+|{_OPERATOR}|\S)"
_PYTHON = re.compile(rf"#[^\n]*|\\\n|{_CODE}", re.DOTALL)
_OTHER = re.compile(rf"//[^\n]*|/\*.*?\*/|\\\n|{_CODE}", re.DOTALL)
_NO_FUNCTIONS = {
    "if", "for", "while", "switch", "catch", "loop", "requires", "decltype", "alignas",
    "workgroup_size", "group", "binding", "__attribute__",
}  # fmt: skip


class MarkError(ValueError):
    """The code that a bug is planted in cannot be found."""


@dataclass(frozen=True)
class Token:
    """A piece of code and where it stands in its text."""

    text: str
    start: int
    end: int


def tokens(text: str, suffix: str) -> list[Token]:
    """The text without spaces, comments and commas before a closing bracket."""
    pattern = _PYTHON if suffix == ".py" else _OTHER
    code = [Token(m[1], *m.span(1)) for m in pattern.finditer(text) if m[1]]
    closes = {i for i, each in enumerate(code) if each.text in (")", "]", "}")}
    return [each for i, each in enumerate(code) if each.text != "," or i + 1 not in closes]


def definitions(text: str, suffix: str) -> dict[str, list[tuple[int, int]]]:
    """Names ("function", "Class.method", "CONSTANT") -> where the definitions begin and end."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, end in _python(text) if suffix == ".py" else _braces(text):
        found.setdefault(name, []).append((start, end))
    return found


def _python(text: str) -> Iterator[tuple[str, int, int]]:
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def inside(node: ast.AST, outer: str, local: bool) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                continue
            first = min([child.lineno, *(d.lineno for d in getattr(child, "decorator_list", []))])
            place = begins[first - 1], begins[child.end_lineno or first]
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield outer + child.name, *place
                function = not isinstance(child, ast.ClassDef)
                yield from inside(child, f"{outer}{child.name}.", function)
            elif isinstance(child, ast.Assign | ast.AnnAssign) and not local:
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                for name in (t for each in targets for t in ast.walk(each)):
                    if isinstance(name, ast.Name):
                        yield outer + name.id, *place
            else:
                yield from inside(child, outer, local)

    return inside(ast.parse(text), "", local=False)


def _braces(text: str) -> Iterator[tuple[str, int, int]]:
    """Functions, methods, types and constants of C++ and WGSL, namespaces left out of names."""
    skipped = [m.span() for m in re.finditer(r"^[ \t]*#(?:\\\n|[^\n])*", text, re.MULTILINE)]
    code = [t for t in tokens(text, ".h") if not any(a <= t.start < b for a, b in skipped)]
    stack: list[tuple[str, int]] = []  # the name of each open brace ("" where it has none)
    begin = 0
    for i, token in enumerate(code):
        named = [name for name, _ in stack if name]
        in_function = any(name.endswith("()") for name in named)
        if token.text == "{":
            stack.append(("" if in_function else _header(code[begin:i]), code[begin].start))
            begin = i + 1
        elif token.text == "}" and stack:
            name, start = stack.pop()
            if name:
                outer = [each for each, _ in stack if each]
                yield ".".join([*outer, name.removesuffix("()")]), start, token.end
            begin = i + 1
        elif token.text == ";":
            words = [each.text for each in code[begin:i]]
            if not in_function and "=" in words[1:]:
                equal = words.index("=", 1)
                before = re.sub(r":.*|\[.*", "", " ".join(words[:equal])).split()
                yield ".".join([*named, before[-1]]), code[begin].start, token.end
            begin = i + 1


def _header(code: list[Token]) -> str:
    """What a brace opens: "name()", a type's "Name", or "" (a namespace, a block, a list)."""
    words = [each.text for each in code]
    for word, after in pairwise(words):
        if after == "(" and re.match(r"[A-Za-z_]\w*$", word) and word not in _NO_FUNCTIONS:
            return f"{word}()"
    for i, word in enumerate(words[:-1]):
        if word in ("struct", "class", "enum", "union"):
            return next(
                (w for w in words[i + 1 :] if re.match(r"[A-Za-z_]\w*$", w) and w != "class"), ""
            )
    return ""


_definitions = functools.lru_cache(maxsize=512)(definitions)


@dataclass(frozen=True)
class Place:
    """Where the code of a mark is now: text[start:end] of a file."""

    path: Path
    text: str
    start: int
    end: int

    def planted(self, replacement: str) -> str:
        """The file's text with other code in this place."""
        return self.text[: self.start] + replacement + self.text[self.end :]


def places(path: Path, where: str, find: str) -> list[Place] | None:
    """Each place of the code `find` in the definition `where` of a file; None: there is none."""
    text = path.read_text()
    known = _definitions(text, path.suffix)
    ranges = known.get(where) if where else [(0, len(text))]
    if ranges is None:
        return None
    piece = [each.text for each in tokens(find, path.suffix)]
    found = []
    for begin, end in ranges:
        code = tokens(text[begin:end], path.suffix)
        words = [each.text for each in code]
        for i in range(len(words) - len(piece) + 1):
            if words[i : i + len(piece)] == piece:
                last = code[i + len(piece) - 1]
                found.append(Place(path, text, begin + code[i].start, begin + last.end))
    return found


def locate(file: str, where: str, find: str, root: Path = ROOT) -> Place:
    """Where the code of a mark is.

    file: the path in the repository that it was in; where: its definition's qualified name, ""
    for the whole file; find: the code, which the definition has once. Raises MarkError.
    """
    path, last = root / file, where.rpartition(".")[2]
    here = places(path, where, find) if path.is_file() else None
    if here is None and where:  # elsewhere: the definition moved
        files = (f for suffix in SUFFIXES[path.suffix]
                 for f in sorted((root / Path(file).parts[0]).rglob(f"*{suffix}")))  # fmt: skip
        others = [f for f in files if re.search(rf"\b{last}\b", f.read_text())]
        here = [place for f in others for place in places(f, where, find) or []]
    name = f"`{find}` in {where or 'the file'} of {file}"
    if not here:
        raise MarkError(f"{name} is nowhere: the code changed, so change the bug's entry")
    if len(here) > 1:
        there = ", ".join(sorted({str(each.path.relative_to(root)) for each in here}))
        raise MarkError(f"{name} is {len(here)} times in {there}: say more of the code in `find`")
    return here[0]


def current_tests(names: list[str], root: Path = ROOT) -> list[str]:
    """Where tests (pytest's names) are now: those whose file is gone are looked for by name.

    A function's name must be in one file, or in one of the same name as the file that is gone; the
    file's where all of it is meant. Raises MarkError.
    """
    return [_test_now(name, root) for name in names]


def _test_now(name: str, root: Path) -> str:
    file, colons, test = name.partition("::")
    function = test.partition("[")[0].rpartition("::")[2]
    if (root / file).is_file() and (not colons or _defines(root / file, function)):
        return name
    if colons:
        there = [f for f in sorted((root / "tests").rglob("test_*.py")) if _defines(f, function)]
        there = [f for f in there if f.name == Path(file).name] or there
    else:
        there = sorted((root / "tests").rglob(Path(file).name))
    if len(there) != 1:
        where = ", ".join(str(each.relative_to(root)) for each in there) or "nowhere"
        raise MarkError(f"the test {name} is gone, and one of this name is {where}: name another")
    return there[0].relative_to(root).as_posix() + colons + test


def _defines(file: Path, function: str) -> bool:
    return re.search(rf"^\s*(async )?def {function}\b", file.read_text(), re.MULTILINE) is not None
