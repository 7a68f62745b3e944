# SPDX-License-Identifier: BSD-3-Clause
"""What the patterns of a recipe cover, and its rules for ops without weights.

`op:softmax` and `op:add@encoder.*` name what a program computes and, after `@`, where: a pattern
for the module whose forward computes it. Layers do not match them, and ops match no other patterns
(blockscale.graph uses them).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.untrusted import quote
from blockscale.core.untrusted_patterns import compiled, full_match

PREFIX = "op:"
_LONGEST = 1000  # characters of a glob: translating it takes their square
KEYS = ("input", "output", "shared")


@dataclass(frozen=True)
class OpScheme:
    """The formats of an op's inputs and of its result; None leaves them in float.

    shared: all its inputs get one scale, as integer hardware needs to add or to join tensors
    """

    input: Format | None = None
    output: Format | None = None
    shared: bool = False

    def __bool__(self) -> bool:
        return self.input is not None or self.output is not None


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` covers the layer `name`, by itself or through a layer above it."""
    if names_op(pattern):
        return False
    steps = name.split(".")
    above = (".".join(steps[:count]) for count in range(1, len(steps) + 1))
    if pattern.startswith("re:"):
        return any(full_match(pattern[3:], each) for each in above)
    return any(fnmatchcase(each, pattern) for each in above)


def check(pattern: str) -> None:
    """Raises ValueError for a pattern that is none, or whose time cannot be bounded."""
    if names_op(pattern):
        pattern = split(pattern)[1]
    if pattern.startswith("re:"):
        compiled(pattern[3:])
    elif len(pattern) > _LONGEST:
        raise ValueError(f"pattern {quote(pattern)} is too long: at most {_LONGEST:,} characters")


def names_op(pattern: str) -> bool:
    """Whether a pattern is one for ops."""
    return pattern.startswith(PREFIX)


def split(pattern: str) -> tuple[str, str]:
    """`op:NAME@WHERE` -> its patterns for the op's name and for the place, "" for anywhere.

    Raises ValueError for a pattern that names no op.
    """
    name, at, where = pattern.removeprefix(PREFIX).partition("@")
    if not name or (at and not where):
        raise ValueError(
            f"pattern {pattern!r}: expected op:NAME or op:NAME@PATTERN, such as 'op:softmax' or "
            f"'op:add@encoder.*'"
        )
    return name, where


def covers_op(pattern: str, op: str, place: str) -> bool:
    """Whether a pattern for ops covers the op `op` of the module `place`."""
    name, where = split(pattern)
    return fnmatchcase(op, name) and (not where or matches(where, place))


def read_scheme(pattern: str, rule: object) -> OpScheme:
    """What a rule for ops asks for: {"input", "output": formats, "shared": bool}, or None.

    Raises TypeError and ValueError that name the rule.
    """
    if rule is None or isinstance(rule, OpScheme):
        return rule or OpScheme()
    if not isinstance(rule, Mapping):
        raise TypeError(
            f"rule {pattern!r}: an op has no weight, so its rule must be an object with "
            f"input, output or both, got {rule!r}"
        )
    if unknown := sorted(set(rule) - set(KEYS)):
        raise ValueError(
            f"rule {pattern!r}: unknown key {unknown[0]!r}; choose from {', '.join(KEYS)}"
        )
    try:
        formats = {p: None if rule.get(p) is None else parse(rule[p]) for p in ("input", "output")}
    except (ValueError, TypeError) as error:
        raise type(error)(f"rule {pattern!r}: {error}") from None
    shared = rule.get("shared", False)
    if not isinstance(shared, bool):
        raise TypeError(f"rule {pattern!r}: shared must be true or false, got {shared!r}")
    if shared and (formats["input"] is None or not formats["input"].block.static):
        raise ValueError(
            f"rule {pattern!r}: shared needs an input format with the block tensor or "
            f"channel-1, whose scales are known in advance; found {formats['input']}"
        )
    return OpScheme(**formats, shared=shared)


def scheme_data(scheme: OpScheme) -> dict[str, object] | None:
    """Plain data that `read_scheme` reads back."""
    if not scheme:
        return None
    formats = {p: getattr(scheme, p) for p in ("input", "output")}
    plain: dict[str, object] = {p: str(fmt) for p, fmt in formats.items() if fmt is not None}
    return plain | ({"shared": True} if scheme.shared else {})
