# SPDX-License-Identifier: BSD-3-Clause
"""How the operands of an op become the flat arguments of a torch op, and back.

A parameter of an op that is an Operand or a Quantizer stands for several arguments of the torch
op, so that graphs, exporters and sharding rules see each tensor. They are named after its fields:
an Operand's codes have the parameter's own name, and the other fields of a second operand begin
with its name. What few formats have, the list `more`, comes last of all, so that programs that were
saved before there was one call the op as they did. A plain `fmt: str` is the spelling of a format
as well.

    linear(x, weight: Operand, bias, input: Quantizer)
    linear(x, weight, scale, zero_point, outer, fmt, bias, input_scale, …, input_fmt, input_seed,
           more, input_more)

A Value is an Operand or floats; the other fields of each begin with its name, also those of the
first. A list of Values is a list of each field; their lists `more` are joined to one.

    add(a: Value, b: Value, y: Quantizer)
    add(a, a_scale, …, a_fmt, a_size, b, b_scale, …, y_scale, …, y_fmt, y_seed, a_more, …, y_more)
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from typing import Any, get_type_hints

import torch
from torch import Tensor

from blockscale.core.operand import FIRST, Operand, Quantizer, Value, part_names

Tuples = Callable[..., tuple[Any, ...]]
SizeOf = Callable[..., int]
Values = list[Value]

_KINDS = (Operand, Quantizer, Value, Values)
_TYPES: dict[Any, str] = {  # as torch spells them
    Tensor: "Tensor", Tensor | None: "Tensor?", torch.dtype: "ScalarType",
    str: "str", bool: "bool", float: "float", float | None: "float?",
    int: "SymInt", int | None: "SymInt?", list[int]: "SymInt[]", list[int] | None: "SymInt[]?",
    tuple[int, ...]: "SymInt[]", list[str]: "str[]", list[Tensor]: "Tensor[]",
    list[Tensor | None]: "Tensor?[]", Sequence[Tensor] | None: "Tensor[]?",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """An op's parameters, and the flat arguments of its torch op.

    flat:      the torch op's parameters
    defaults:  of the op's own parameters, Parameter.empty where one has none
    bind:      flat arguments, but for those at the end that have their defaults -> the op's own
    flatten:   the op's own arguments, all of them -> flat
    spellings: the op's own arguments -> the spelling of each format among them; some may be empty
    """

    flat: tuple[Parameter, ...]
    defaults: tuple[Any, ...]
    _own: tuple[Parameter, ...]
    _texts: tuple[tuple[str, ...], ...]  # the expressions of the three functions
    _scope: dict[str, Any] = field(compare=False, repr=False)

    @cached_property
    def bind(self) -> Tuples:
        """Made when it is first asked for, as the others: there are many ops, and few are used."""
        return _function(self.flat, self._texts[0], self._scope)

    @cached_property
    def flatten(self) -> Tuples:
        """The way back from `bind`."""
        return _function(self._own, self._texts[1], self._scope)

    @cached_property
    def spellings(self) -> Tuples:
        """Formats, for the choice of a kernel."""
        return _function(self._own, self._texts[2], self._scope)

    @property
    def plain(self) -> bool:
        """Whether the op's own arguments are the flat ones, none of which can be left out."""
        return self.flat == self._own

    @property
    def names(self) -> tuple[str, ...]:
        """Of the torch op's arguments."""
        return tuple(parameter.name for parameter in self.flat)

    def schema(self, result: Any) -> str:
        """The torch op's, as torch spells it, for an op that returns `result`."""
        written = [_written(each) for each in self.flat]
        if None not in written and result in _TYPES:
            return f"({', '.join(written)}) -> {_TYPES[result]}"  # type: ignore[arg-type]

        def prototype(*_: Any) -> None: ...

        plain = [p for p in self.flat if not _is_more(p)]
        signed = inspect.Signature(plain, return_annotation=result)
        prototype.__signature__ = signed  # type: ignore[attr-defined]
        text: str = torch.library.infer_schema(prototype, mutates_args=())
        arguments, returned = text.rsplit(") -> ", 1)
        for each in self.flat[len(plain) :]:  # a type that infer_schema does not know
            arguments += f", Tensor[]? {each.name}=None"
        return f"{arguments}) -> {returned}"


def signature(reference: Callable[..., Any], size_of: SizeOf | None) -> Signature:
    """The Signature of the op that `reference` defines.

    size_of: gives an Operand's size, from the flat arguments of its parameters' names, where the
        torch op does not take the size itself.
    """
    hints = get_type_hints(reference)
    own = inspect.signature(reference).parameters.items()
    return signature_of([each.replace(annotation=hints[name]) for name, each in own], size_of)


def signature_of(own: Sequence[Parameter], size_of: SizeOf | None = None) -> Signature:
    """The Signature of an op that has these parameters, annotated with types; as `signature`."""
    flat: list[Parameter] = []
    made, taken, spelled = [], [], []  # text, for each of the op's parameters
    more: list[Parameter] = []
    last = []  # what is taken for these
    for parameter in own:
        name, kind = parameter.name, parameter.annotation
        if kind not in _KINDS:
            flat.append(parameter)
            made.append(name)
            taken.append(name)
            spelled += [name] * (name == "fmt")
            continue
        bare = not more and kind in (Operand, Quantizer)
        prefix = "" if bare else f"{name}_"
        fields = _fields(kind, name, prefix, sized=size_of is None)
        more.append(_more(f"{prefix}more"))
        flat += fields
        made.append(_made(kind, [*fields, more[-1]], size_of))
        if kind == Values:
            last.append(f"_more_of({name})")
            taken.append(f"*_columns({name})")
            spelled.append(f"*[each.fmt for each in {name}]")
        else:
            last.append(f"{name}.more")
            taken.append(f"*{name}[:{len(fields)}]")
            spelled.append(f"{name}.fmt")
    flat = _late_defaults(flat) + more
    scope = {"_size_of": size_of, "_columns": _columns, "_more_of": _more_of} | _MAKERS
    defaults = tuple(parameter.default for parameter in own)
    required = [parameter.replace(default=Parameter.empty) for parameter in own]
    texts = (tuple(made), (*taken, *last), tuple(spelled))
    return Signature(tuple(flat), defaults, tuple(required), texts, scope)


def _made(kind: Any, fields: list[Parameter], size_of: SizeOf | None) -> str:
    """The expression that makes an operand of these flat arguments."""
    *values, more = (field.name for field in fields)
    if kind is Operand and size_of is not None:
        values.append(f"_size_of({', '.join(inspect.signature(size_of).parameters)})")
    name = "_values" if kind == Values else f"_{kind.__name__}"
    return f"{name}({', '.join([*values, more])})"


def _values(*columns: Any) -> Values:
    """A list of each field, and what the formats have further, joined -> Values."""
    *named, more = columns
    if len({len(column) for column in named}) != 1:
        raise ValueError(
            f"a list of tensors needs as many scales, zero points, outer scales, formats and "
            f"sizes, found {', '.join(str(len(column)) for column in named)}"
        )
    rest = list(more or ())
    made = []
    for data, scale, zero_point, outer, fmt, size in zip(*named, strict=True):
        count = sum(name not in FIRST for name in part_names(fmt)) if rest and fmt else 0
        made.append(Value(data, scale, zero_point, outer, fmt, size, rest[:count] or None))
        del rest[:count]
    if rest:
        raise ValueError(f"{len(rest)} more tensors were passed than the formats {named[4]} have")
    return made


def _columns(values: Values) -> list[list[Any]]:
    """Values -> a list of each field but the last."""
    return [[value[field] for value in values] for field in range(6)]


def _more_of(values: Values) -> list[Tensor] | None:
    """Values -> what their formats have further, joined; None without any."""
    return [part for value in values for part in value.more or ()] or None


_MAKERS = {"_Operand": Operand, "_Quantizer": Quantizer, "_Value": Value, "_values": _values}


def _fields(kind: Any, name: str, prefix: str, sized: bool) -> list[Parameter]:
    """What the torch op takes of an operand that the op calls `name`."""
    plain = Parameter.POSITIONAL_OR_KEYWORD
    if kind != Quantizer:
        scale = Tensor if kind == Operand else Tensor | None
        types: dict[str, Any] = {
            "scale": scale, "zero_point": Tensor | None, "outer": Tensor | None, "fmt": str,
        }  # fmt: skip
        types |= {"size": int} if sized else {}
        many = kind == Values
        first = [Parameter(name, plain, annotation=list[Tensor] if many else Tensor)]
        return first + [
            Parameter(prefix + n, plain, annotation=list[t] if many else t)  # type: ignore[valid-type]
            for n, t in types.items()
        ]
    types = dict.fromkeys(("scale", "zero_point", "outer"), Tensor | None) | {"fmt": str}
    last = Parameter(f"{prefix}seed", plain, annotation=Tensor | None, default=None)
    return [Parameter(prefix + n, plain, annotation=t) for n, t in types.items()] + [last]


def _more(name: str) -> Parameter:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Parameter(name, kind, annotation=Sequence[Tensor] | None, default=None)


def _is_more(parameter: Parameter) -> bool:
    return bool(parameter.annotation == Sequence[Tensor] | None)


def _written(parameter: Parameter) -> str | None:
    """The parameter as torch spells it; None where that is infer_schema's to say."""
    kind, default = _TYPES.get(parameter.annotation), parameter.default
    if kind is None:
        return None
    if default is Parameter.empty:
        return f"{kind} {parameter.name}"
    return f"{kind} {parameter.name}={default}" if default is None or kind == "SymInt" else None


def _late_defaults(parameters: list[Parameter]) -> list[Parameter]:
    """The same without defaults before parameters that have none: torch refuses those."""
    required = [i for i, each in enumerate(parameters) if each.default is Parameter.empty]
    last = max(required, default=-1)
    return [each.replace(default=Parameter.empty) for each in parameters[:last]] + parameters[last:]


def _function(
    parameters: Iterable[Parameter], values: Iterable[str], scope: dict[str, Any]
) -> Tuples:
    """The function of these parameters that returns a tuple of these expressions.

    It is made as text, as dataclasses make their methods: calls on small tensors take 5 µs, of
    which a loop over parameters would be one.
    """
    named = list(parameters)
    scope = scope | {f"_default_{p.name}": p.default for p in named}
    written = ", ".join(
        p.name if p.default is Parameter.empty else f"{p.name}=_default_{p.name}" for p in named
    )
    made: Tuples = eval(f"lambda {written}: ({''.join(f'{value}, ' for value in values)})", scope)
    return made
