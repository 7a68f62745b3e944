# SPDX-License-Identifier: BSD-3-Clause
"""Names that are a bare participle (`told`, `found`) or a word of our own (`swift`, `rare`).

    python -m tests.support.plain_names            how many of each word, by kind and room
    python -m tests.support.plain_names told       where the word is defined

A name says what a thing is or does: a noun or a verb. tests/test_plain_names.py holds the figures
to bounds that may only go down. Adjectives that the field uses for numbers and tensors are no fault
(`packed`, `fused`, `stored`): FIELD has them, and docs/glossary.md those that need a meaning. Nor
is `left` beside a `right` of the same function or class: a direction, not what remains.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.syntax import tree

PACKAGE = Path(__file__).parents[2] / "blockscale"

IRREGULAR = """
    told known taken given found made done seen left kept held gone sent spent drawn shown written
    grown chosen spoken broken begun said meant built bought brought caught sought thought taught
    led met lost won put cut laid paid dealt felt hung sold wound worn torn borne driven risen
    fallen woven spread parted
""".split()  # noqa: SIM905 - a list of words
OURS = "swift quick once rare weighing gathering telling dealing knowing parting".split()  # noqa: SIM905
FIELD = """seed need feed speed embed red hundred stored
    signed unsigned packed unpacked fused shared tied untied padded unpadded cached compiled
    quantized unquantized dequantized requantized skipped transposed permuted interleaved nested
    masked batched tiled sharded stacked grouped aligned normalized sorted learned hidden routed
    fixed expected supplied restated enabled saturated squared weighted biased centered blocked
    unused required allowed reserved pinned rounded scaled clipped shifted rotated flattened
    converted exported trained strided calibrated lowered traced resized reduced summed
    decoded encoded embedded mixed folded unchanged merged widened negated
""".split()  # noqa: SIM905


@dataclass(frozen=True)
class Name:
    """A definition: `kind` is class, function, property, attribute, parameter or local."""

    text: str
    kind: str
    file: str
    line: int

    @property
    def word(self) -> str:
        """The name without underscores at its ends, in small letters."""
        return _plain(self.text)

    @property
    def is_visible(self) -> bool:
        """Whether code outside its function reads the name."""
        return self.kind != "local"


def is_dialect(word: str) -> bool:
    """Whether a word, a whole name, is a bare participle or one of ours."""
    if word in FIELD or "_" in word:
        return False
    return word in IRREGULAR or word in OURS or re.fullmatch(r"[a-z]+ed", word) is not None


def _plain(text: str) -> str:
    return text.strip("_").lower()


def directions(module: ast.AST) -> set[int]:
    """The lines where a function, or a class of fields, defines `left`, and `right` too."""
    lines = set()
    for scope in ast.walk(module):
        own: list[tuple[str, int]] = []
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            own = [(name.text, name.line) for name in _of_function(scope, "")]
            stores = (each for each in ast.walk(scope) if isinstance(each, ast.Name))
            own += [(each.id, each.lineno) for each in stores if isinstance(each.ctx, ast.Store)]
        elif isinstance(scope, ast.ClassDef):
            fields = [each.target for each in scope.body if isinstance(each, ast.AnnAssign)]
            own = [(each.id, each.lineno) for each in fields if isinstance(each, ast.Name)]
        if any(_plain(text) == "right" for text, _ in own):
            lines |= {line for text, line in own if _plain(text) == "left"}
    return lines


def definitions(module: ast.AST, file: str) -> Iterator[Name]:
    """Every definition in a module's syntax tree; a local variable once a function."""
    waiting: list[tuple[ast.AST, dict[str, int] | None]] = [(module, None)]
    functions: list[dict[str, int]] = []
    while waiting:
        node, own = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_function(node, file)
            own = {}
            functions.append(own)
        elif isinstance(node, ast.ClassDef):
            yield Name(node.name, "class", file, node.lineno)
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield Name(each.target.id, "attribute", file, each.lineno)
            own = None
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Name(node.attr, "attribute", file, node.lineno)
        elif own is not None and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.setdefault(node.id, node.lineno)
        waiting += [(child, own) for child in ast.iter_child_nodes(node)]
    for own in functions:
        yield from (Name(text, "local", file, line) for text, line in own.items())


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, file: str) -> Iterator[Name]:
    decorators = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
    is_property = decorators & {"property", "cached_property"}
    yield Name(node.name, "property" if is_property else "function", file, node.lineno)
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    yield from (Name(each.arg, "parameter", file, each.lineno) for each in every if each)


@cache
def every_dialect_name() -> list[Name]:
    """Those of the package."""
    return [
        name
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in _dialect_of(tree(path.read_text()), str(path.relative_to(PACKAGE)))
    ]


def _dialect_of(module: ast.AST, file: str) -> Iterator[Name]:
    pairs: set[int] | None = None
    for name in definitions(module, file):
        if not is_dialect(name.word):
            continue
        if name.word == "left":
            pairs = directions(module) if pairs is None else pairs
            if name.line in pairs:
                continue
        yield name


def figures() -> dict[str, int]:
    """How many names that other code reads, and how many local variables, are of our dialect."""
    names = every_dialect_name()
    visible = sum(name.is_visible for name in names)
    return {"visible": visible, "local": len(names) - visible}


def _table() -> Iterator[str]:
    names = every_dialect_name()
    for word, count in Counter(name.word for name in names).most_common():
        kinds = Counter(name.kind for name in names if name.word == word)
        rooms = Counter(name.file.split("/")[0] for name in names if name.word == word)
        yield f"{count:5} {word:12} {dict(kinds)} {dict(rooms)}"
    yield f"{figures()}"


def _where(word: str) -> Iterator[str]:
    for name in every_dialect_name():
        if name.word == word:
            yield f"{name.file}:{name.line}: {name.kind} {name.text}"


if __name__ == "__main__":
    words = sys.argv[1:]
    lines = [line for word in words for line in _where(word)] if words else list(_table())
    print("\n".join(lines))
