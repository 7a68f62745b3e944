# SPDX-License-Identifier: BSD-3-Clause
"""Which fused op stands for a node of a graph.

A fused op's patterns say what it stands for: an overload of aten and, for its arguments in the
order of its schema, one word each:

    name   the operand or setting of that name
    _      it must have the schema's default; so must all that follow the last word
    *      any value: it says nothing about the result (`sparse` of an embedding)
    !      false, zero or None (`training` of a batch norm)
    @      a dtype: None or that of the first operand

Without words they are the operands, in their order, and then settings of the same names. A number
in brackets is the place of the result in a tuple: the pattern is met by the node that takes it out.
"""

import operator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.operand import Quantizer, Value
from blockscale.ops.fused.define import FUSED, Chain, Fused, overload

_MISSING = object()
_INT_LISTS = (tuple[int, ...], list[int], list[int] | None)


@dataclass(frozen=True)
class Match:
    """A node is this op of these nodes, with all of its settings."""

    fused: Fused
    operands: tuple[fx.Node, ...]
    settings: dict[str, Any]

    def arguments(
        self, operands: tuple[Value, ...], dtype: torch.dtype, y: Quantizer
    ) -> tuple[Any, ...]:
        """Of the fused op's node, given its operands as nodes."""
        return self.fused.flatten(operands, self.settings, dtype, y)


@dataclass(frozen=True)
class _Pattern:
    fused: Fused
    words: tuple[str, ...]
    in_place: bool = False
    chain: Chain | None = None


Table = dict[tuple[Any, int | None], list[_Pattern]]


def match(node: fx.Node) -> Match | None:
    """The fused op that computes what the node does; None where there is none, or none for certain.

    It gives the node's bits if `dtype` is the node's own (`dtype_of`), for indices its operands'.
    An op in place matches only where no other node reads the input that it changes.
    """
    place: int | None = None
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node, place = node.args[0], node.args[1]  # type: ignore[assignment]
    for pattern in _table().get((node.target, place), ()):
        if pattern.in_place and not _alone_on(node.args[0]):
            continue
        result = (
            _match_pattern(pattern, node) if pattern.chain is None else _match_chain(pattern, node)
        )
        if result is not None:
            return result
    return None


def _match_chain(pattern: _Pattern, node: fx.Node) -> Match | None:
    """The match of a chain that ends in the node, by the pattern's function."""
    assert pattern.chain is not None
    read = pattern.chain(node)
    if read is None or not all(_is_float(each, pattern.fused) for each in read[0]):
        return None
    return Match(pattern.fused, read[0], pattern.fused.settings | read[1])


@cache
def _table() -> Table:
    """Patterns by the overload, and the place in its result."""
    table: Table = {}
    for fused in FUSED.values():
        for text in fused.patterns:
            name, *words = text.split()
            place = int(name.partition("[")[2][:-1]) if "[" in name else None
            target = overload(name)
            words = words or _words(fused, target)
            table.setdefault((target, place), []).append(_Pattern(fused, tuple(words)))
            packet = getattr(torch.ops.aten, f"{target._schema.name.partition('::')[2]}_", None)
            if place is None and packet is not None and hasattr(packet, target._overloadname):
                changing = getattr(packet, target._overloadname)
                entry = _Pattern(fused, tuple(words), True)
                table.setdefault((changing, None), []).append(entry)
        if fused.chain is not None:  # before the patterns of its last call alone
            ends, chain = fused.chain
            table.setdefault((overload(ends), None), []).insert(0, _Pattern(fused, (), chain=chain))
    return table


def _words(fused: Fused, target: Any) -> list[str]:
    """The words of a pattern that spells none."""
    names = [argument.name for argument in target._schema.arguments]
    count = len(fused.operands)
    return [*fused.operands, *(n if n in fused.settings else "_" for n in names[count:])]


def _alone_on(node: Any) -> bool:
    """Whether the node's result is read once and shares no memory with what others read."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or len(node.users) != 1:
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None or "dropout" in schema.name:  # which gives its input where nothing drops out
        return False
    return not any(result.alias_info is not None for result in schema.returns)


def _match_pattern(pattern: _Pattern, node: fx.Node) -> Match | None:
    """The node's arguments as operands and settings; None where they do not fit the pattern."""
    fused, schema = pattern.fused, node.target._schema.arguments  # type: ignore[union-attr]
    operands: dict[str, Any] = {}
    settings = dict(fused.settings)
    words = [*pattern.words, *"_" * (len(schema) - len(pattern.words))]
    for i, (word, argument) in enumerate(zip(words, schema, strict=True)):
        value = _argument(node, i, argument)
        if word in fused.operands:
            operands[word] = value
        elif word in settings:
            settings[word] = _setting(value, fused.types[word])
        elif not _allowed(word, value, argument, node):
            return None
    if any(value is _MISSING for value in settings.values()):
        return None
    tensors = operands[fused.operands[0]] if fused.many else [operands[n] for n in fused.operands]
    if not tensors or not all(_is_float(each, fused) for each in tensors):
        return None
    return Match(fused, tuple(tensors), settings)


def _argument(node: fx.Node, i: int, argument: Any) -> Any:
    """The i-th argument of a node's schema: the node's own, or the default."""
    if i < len(node.args):
        return node.args[i]
    if argument.name in node.kwargs:
        return node.kwargs[argument.name]
    return argument.default_value if argument.has_default_value() else _MISSING


def _allowed(word: str, value: Any, argument: Any, node: fx.Node) -> bool:
    """Whether an argument that the fused op does not take has a value that it stands for."""
    if word == "*":
        return True
    if word == "!":
        return value is None or value in (0, False)
    if word == "@":
        first = node.args[0]
        return value is None or (isinstance(first, fx.Node) and value == dtype_of(first))
    if not argument.has_default_value():
        return False
    default = argument.default_value
    if isinstance(value, fx.Node) or (type(value) is bool and type(default) is not bool):
        return False
    as_list = isinstance(value, list | tuple) and isinstance(default, list | tuple)
    return bool(list(value) == list(default)) if as_list else bool(value == default)


def _setting(value: Any, kind: Any) -> Any:
    """An argument as a setting of this type; _MISSING if it is none."""
    if value is None:
        return (
            None
            if kind in (Tensor | None, float | None, int | None, list[int] | None)
            else _MISSING
        )
    if kind in (Tensor, Tensor | None):
        return value if isinstance(value, fx.Node) and dtype_of(value) is not None else _MISSING
    if kind in (int, int | None):
        whole = isinstance(value, fx.Node) or (
            isinstance(value, int) and not isinstance(value, bool)
        )
        return value if whole else _MISSING
    if kind in _INT_LISTS:
        return [*value] if isinstance(value, list | tuple) else [value]
    if kind in (float, float | None):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if number else _MISSING
    return value if isinstance(value, kind) else _MISSING


def _is_float(node: Any, fused: Fused) -> bool:
    """Whether it is a node that gives floats; float32 where the op computes in that, as the node
    would not otherwise."""
    dtype = dtype_of(node) if isinstance(node, fx.Node) else None
    if dtype is None or not dtype.is_floating_point:
        return False
    return dtype == torch.float32 or not fused.wide


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """The dtype of the tensor that the node gives; None if it gives none, or is not known."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = node.graph.owning_module
        for name in str(node.target).split("."):
            value = getattr(value, name, None)
    return value.dtype if isinstance(value, Tensor) else None
