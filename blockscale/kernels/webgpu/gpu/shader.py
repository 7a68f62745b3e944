# SPDX-License-Identifier: BSD-3-Clause
"""WGSL at module scope: its declarations, what each of them uses, and which an entry point reaches.

This reads our own shaders: a declaration begins with a line of its own and ends with one, in `;` or
`}`, and there are no block comments.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

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
    match = _NAMED.search(code)
    if match is None:
        raise ValueError(f"expected a declaration of WGSL, found {text.strip()!r}")
    kind, name = match.groups()
    uses = _of_function(code) if kind == "fn" else _of_others(code)
    return Declaration(name, text, frozenset(uses))


def _of_others(code: str) -> set[str]:
    """Names of a struct, constant or variable, but for those of members."""
    return {name for name, colon in _TOKEN.findall(code) if name and not colon}


def _of_function(code: str) -> set[str]:
    """Names in a function that are not its parameters or variables where they stand."""
    head, _, body = code.partition("{")
    uses: set[str] = set()
    parameters: set[str] = set()
    for name, colon in _TOKEN.findall(head):
        (parameters if colon else uses).add(name)
    scopes, variable, before = [parameters], "", ""
    for token in _TOKEN.finditer(body):
        name = token[1]
        if token[0] == "{":
            scopes.append(set())
        elif token[0] == "}":
            scopes.pop()
        elif token[0] == ";":
            scopes[-1].add(variable)
            variable = ""
        elif before in _LOCAL:
            variable = name  # from the end of its statement on
        elif not any(name in scope for scope in scopes):
            uses.add(name)
        before = name or ""
        if not scopes:
            break
    return uses


def reachable(there: Iterable[Declaration], entry: str = "main") -> frozenset[str]:
    """Names that an entry point uses, directly or through others, its own among them."""
    uses = {each.name: each.uses for each in there}
    names: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in uses and name not in names:
            names.add(name)
            waiting += uses[name]
    return frozenset(names)


# Shaders are composed of named parts of WGSL: kernels, and variants of roles.
#
# Files below `wgsl/` are roles: `wgsl/rounding.wgsl` has the part `rounding/up` under the line
# `//# up`. Those of `wgsl/kernels/` are families of kernels, which have an entry point each:
# `wgsl/kernels/codes.wgsl` has `kernels/codes/quantize` under `//# quantize`. What stands before
# all such lines is the part of the file's own name (`kernels/one_pass`), and a kernel may have
# further parts of its own (`kernels/one_pass/means`).
#
# A shader has what `main` calls, directly or through others, of the parts that its kernel needs,
# and of its constants; the rest is left out.
#
# A part may begin with lines of these kinds:
#
#     // needs: bits/wide, element/{element}         parts that it calls; {element} is a role
#     enable subgroups;                              moved to the top of the shader
#
# What fills the roles is a dataclass of the kernel (ShaderKernel), with a field for each role.
#
# Shaders bind buffers by name, `@group(0) @binding(codes)`, and read the sizes of a call as
# members of `sizes`, which is a constant (baked in) or a uniform: the text is the same. Constant
# arrays that are called TABLE, or end so, are buffers, too: parts bind them by their name in
# small letters.

_FOLDER = Path(__file__).parents[1] / "wgsl"
_PART = re.compile(r"^//# ([a-z0-9_/]+)\n", re.MULTILINE)
_NEEDS = re.compile(r"^// needs: (.*)$", re.MULTILINE)
_ENABLE = re.compile(r"^(?:enable|requires) .*;\n", re.MULTILINE)
_BINDING = re.compile(r"@binding\(([a-z_]+)\)")


class Signed(int):
    """A constant that is an i32 in WGSL; other ints are u32."""


Constant = bool | int | Signed | tuple[int, ...]


@dataclass(frozen=True)
class Roles:
    """What fills {role} in the names of parts: subclasses have a field for each role.

    A field may itself be Roles, which several kernels have in common. None: no part needs it.
    """

    def variants(self) -> dict[str, str]:
        """{role: the variant that fills it}, those of fields that are Roles included."""
        by_name: dict[str, str] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Roles):
                by_name |= value.variants()
            elif value is not None:
                by_name[each.name] = value
        return by_name

    def with_variants(self, **others: str) -> Self:
        """The same with other variants. Raises ValueError for a role that there is not."""
        changes: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Roles):
                own = {name: others.pop(name) for name in [*others] if value.has(name)}
                changes[each.name] = value.with_variants(**own)
            elif each.name in others:
                changes[each.name] = others.pop(each.name)
        if others:
            raise ValueError(
                f"{self.title} has no role {_list_names(others)}; it has {self._names()}"
            )
        return replace(self, **changes)

    def has(self, role: str) -> bool:
        """Whether there is such a role, filled or not."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        groups = [value for value in values.values() if isinstance(value, Roles)]
        own = role in values and not isinstance(values[role], Roles)
        return own or any(each.has(role) for each in groups)

    @property
    def title(self) -> str:
        """Its name in errors."""
        return type(self).__name__

    def _names(self) -> str:
        return _list_names(self.variants()) or "none"


def _list_names(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))


@dataclass(frozen=True)
class ShaderKernel(Roles):
    """The roles of a kernel, by a subclass: class Pack(ShaderKernel, part="kernels/codes/pack").

    part: the part with the entry point `main`
    """

    part: ClassVar[str] = ""

    def __init_subclass__(cls, part: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.part = part or cls.part

    @property
    def title(self) -> str:
        """Its part, and the class that fills its roles."""
        return f"{self.part} ({type(self).__name__})"


@dataclass(frozen=True)
class _Plain(ShaderKernel):
    """A kernel without roles."""

    name: str = ""

    @property
    def title(self) -> str:
        """Its part."""
        return self.name

    def variants(self) -> dict[str, str]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Shader:
    """A compute shader before the sizes of a call are known. Hashable.

    kernel:    what fills its roles, or the name of its part if it has none
    constants: (name, value): u32, i32 (Signed), bool, or an array of u32
    """

    kernel: ShaderKernel | str
    constants: tuple[tuple[str, Constant], ...] = ()

    @property
    def part(self) -> str:
        """The part with the entry point `main`."""
        return self.kernel if isinstance(self.kernel, str) else self.kernel.part

    @property
    def roles(self) -> ShaderKernel:
        """What fills its roles."""
        return _Plain(self.kernel) if isinstance(self.kernel, str) else self.kernel


@dataclass(frozen=True)
class ShaderSource:
    """WGSL, and the names of the buffers that it binds, in the order of their numbers."""

    text: str
    bindings: tuple[str, ...]


class Code(NamedTuple):
    """A shader but for its sizes, and for the numbers of its bindings.

    enabled:      the lines that come first
    constants:    their declarations
    declarations: of what `main` reaches, with lines that name their parts
    reads_sizes:        it reads any of its sizes
    """

    enabled: str
    constants: str
    declarations: tuple[str, ...]
    reads_sizes: bool


@lru_cache(4096)  # sizes that are baked in may change at every call
def source(shader: Shader, names: tuple[str, ...], sizes: tuple[int, ...] | None) -> ShaderSource:
    """A shader's text, with `sizes` of these names baked in, or as a uniform (None).

    Raises ValueError for a part that does not exist, and for a role that nothing fills.
    """
    code = assemble(shader)
    head = f"{code.constants}{_sizes(names, sizes) if code.reads_sizes else ''}"
    whole = head + "\n".join(code.declarations) + "\n"
    bindings = tuple(dict.fromkeys(_BINDING.findall(whole)))
    text = _BINDING.sub(lambda found: f"@binding({bindings.index(found[1])})", whole)
    return ShaderSource(code.enabled + text, bindings)


@lru_cache(1024)
def assemble(shader: Shader) -> Code:
    """What `main` reaches of the parts of a shader."""
    texts = texts_of(shader)
    there = {name: declarations(_ENABLE.sub("", text)) for name, text in texts.items()}
    names = reachable(each for part in there.values() for each in part)
    if "main" not in names:
        raise ValueError(f"expected a function main in the part {shader.part}; it has none")
    every = [each for part in there.values() for each in part if each.name in names]
    uses = frozenset[str]().union(*(each.uses for each in every))
    enabled: dict[str, None] = {}
    body: list[str] = []
    for name, part in there.items():
        pieces = [each.text for each in part if each.name in names]
        if pieces:
            body += [f"//# {name}", *pieces]
            enabled |= dict.fromkeys(_ENABLE.findall(texts[name]))
    constants = "".join(
        f"{constant(name, value)}\n"
        for name, value in shader.constants
        if name in uses and not is_table(name)
    )
    return Code("".join(enabled), constants, tuple(body), "sizes" in uses)


def is_table(name: str) -> bool:
    """Whether the constant of this name is a buffer of u32, which `launch` binds."""
    return name.endswith("TABLE")


def tables(shader: Shader) -> dict[str, tuple[int, ...]]:
    """The buffers that are a shader's own: their names in bindings, and the words in them."""
    return {
        name.lower(): value
        for name, value in shader.constants
        if is_table(name) and isinstance(value, tuple)
    }


def texts_of(shader: Shader) -> dict[str, str]:
    """{name: text} of the parts that a shader is made of, each after those that it needs.

    Raises ValueError for a part that does not exist, and for a role that nothing fills.
    """
    texts: dict[str, str] = {}
    roles = shader.roles
    _collect(shader.part, roles, roles.variants(), texts)
    return texts


def _collect(
    name: str, roles: ShaderKernel, variants: Mapping[str, str], texts: dict[str, str]
) -> None:
    """Add a part and, before it, the parts that it needs."""
    if name in texts:
        return
    text = part(name)
    for line in _NEEDS.findall(text):
        for pattern in line.split(","):
            try:
                other = pattern.strip().format_map(variants)
            except KeyError as missing:
                raise ValueError(
                    f"{roles.title} fills no role {missing.args[0]!r}, which its part {name} needs "
                    f"({pattern.strip()}); it fills {_list_names(variants) or 'none'}"
                ) from None
            _collect(other, roles, variants, texts)
    texts[name] = _NEEDS.sub("", text)


def part(name: str) -> str:
    """The text of a part. Raises ValueError if there is none of this name."""
    file, mark = _place(name)
    path = _FOLDER / f"{file}.wgsl"
    there = parts_of(path)
    if mark not in there:
        result = f"it has {', '.join(filter(None, there))}" if there else "there is no such file"
        raise ValueError(f"expected the part {name} of shaders in {path}; {result}")
    return there[mark]


def _place(name: str) -> tuple[str, str]:
    """The file of a part, below the folder and without its suffix, and the mark that it follows."""
    words = name.split("/")
    depth = 2 if words[0] == "kernels" else 1
    return "/".join(words[:depth]), "/".join(words[depth:])


@cache
def parts_of(path: Path) -> dict[str, str]:
    """{mark: text} of the parts of a file, the one before all marks by the name ""."""
    if not path.is_file():
        return {}
    first, *others = _PART.split(path.read_text())
    by_mark = {"": first, **dict(zip(others[::2], others[1::2], strict=True))}
    return {mark: text.strip("\n") + "\n" for mark, text in by_mark.items()}


def constant(name: str, value: Constant) -> str:
    """The declaration of a constant in WGSL."""
    if isinstance(value, tuple):
        items = ", ".join(f"{each}u" for each in value)
        return f"const {name} = array<u32, {len(value)}>({items});"
    if isinstance(value, bool):
        return f"const {name}: bool = {str(value).lower()};"
    if isinstance(value, Signed):
        return f"const {name}: i32 = i32({int(value)});"
    return f"const {name}: u32 = {value}u;"


def _sizes(names: tuple[str, ...], sizes: tuple[int, ...] | None) -> str:
    if not names:
        return ""
    members = ", ".join(f"{name}: u32" for name in names)
    if sizes is None:
        bound = "@group(0) @binding(sizes) var<uniform> sizes: Sizes;"
    else:
        bound = f"const sizes = Sizes({', '.join(f'{size}u' for size in sizes)});"
    return f"struct Sizes {{ {members} }};\n{bound}\n"
