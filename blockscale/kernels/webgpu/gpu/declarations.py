# SPDX-License-Identifier: BSD-3-Clause
"""WGSL at module scope: its declarations, what each of them uses, and which an entry point reaches.

This reads our own shaders: a declaration begins with a line of its own and ends with one, in `;` or
`}`, and there are no block comments.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

_COMMENT = re.compile(r"//.*")
_NAMED = re.compile(r"\b(fn|struct|alias|const|override|var(?:<[^>]*>)?)\s+([A-Za-z_]\w*)")
# a name that is no member of something else, and whether a colon follows; or what ends a scope
_TOKEN = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\s*:)?|[{};]")
_LOCAL = ("let", "var", "const")


class Declaration(NamedTuple):
    """A function, struct, alias, constant or variable.

    text: with its attributes and the comment before it
    uses: names of others that it may refer to, and words of WGSL
    """

    name: str
    text: str
    uses: frozenset[str]


@lru_cache(2048)
def declarations(text: str) -> tuple[Declaration, ...]:
    """Those of a text, in order. Raises ValueError for lines that declare nothing."""
    return tuple(_declaration(each) for each in _split(text))


def _split(text: str) -> Iterator[str]:
    lines: list[str] = []
    depth = 0
    for line in text.splitlines():
        code = _COMMENT.sub("", line).strip()
        if line or depth:  # comments go with what follows
            lines.append(line)
        if not code and not depth:
            continue
        depth += sum(map(code.count, "({[")) - sum(map(code.count, ")}]"))
        if not depth and code[-1] in ";}":
            yield "\n".join(lines)
            lines = []
    if any(_COMMENT.sub("", line).strip() for line in lines):
        raise ValueError(f"a declaration of WGSL that does not end: {lines[0]}")


def _declaration(text: str) -> Declaration:
    code = _COMMENT.sub("", text)
    named = _NAMED.search(code)
    if named is None:
        raise ValueError(f"expected a declaration of WGSL, found {text.strip()!r}")
    kind, name = named.groups()
    uses = _of_function(code) if kind == "fn" else _of_others(code)
    return Declaration(name, text, frozenset(uses))


def _of_others(code: str) -> set[str]:
    """Names of a struct, constant or variable, but for those of members."""
    return {name for name, colon in _TOKEN.findall(code) if name and not colon}


def _of_function(code: str) -> set[str]:
    """Names in a function that are not its parameters or variables where they stand."""
    head, _, body = code.partition("{")
    used: set[str] = set()
    parameters: set[str] = set()
    for name, colon in _TOKEN.findall(head):
        (parameters if colon else used).add(name)
    scopes, declared, before = [parameters], "", ""
    for token in _TOKEN.finditer(body):
        name = token[1]
        if token[0] == "{":
            scopes.append(set())
        elif token[0] == "}":
            scopes.pop()
        elif token[0] == ";":
            scopes[-1].add(declared)
            declared = ""
        elif before in _LOCAL:
            declared = name  # from the end of its statement on
        elif not any(name in scope for scope in scopes):
            used.add(name)
        before = name or ""
        if not scopes:
            break
    return used


def reached(there: Iterable[Declaration], entry: str = "main") -> frozenset[str]:
    """Names that an entry point uses, directly or through others, its own among them."""
    uses = {each.name: each.uses for each in there}
    found: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in uses and name not in found:
            found.add(name)
            waiting += uses[name]
    return frozenset(found)
