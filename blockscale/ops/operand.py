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
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, get_type_hints

import torch
from torch import Tensor

from blockscale.core.operand import Operand, Quantizer

Tuples = Callable[..., tuple[Any, ...]]
SizeOf = Callable[..., int]


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
    bind: Tuples
    flatten: Tuples
    spellings: Tuples

    @property
    def names(self) -> tuple[str, ...]:
        """Of the torch op's arguments."""
        return tuple(parameter.name for parameter in self.flat)

    def schema(self, result: Any) -> str:
        """The torch op's, as torch spells it, for an op that returns `result`."""

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
    own = inspect.signature(reference).parameters
    flat: list[Parameter] = []
    made, taken, spelled = [], [], []  # text, for each of the op's parameters
    more: list[Parameter] = []
    last = []  # what is taken for these
    for name, parameter in own.items():
        kind = hints[name]
        if kind not in (Operand, Quantizer):
            flat.append(parameter.replace(annotation=kind))
            made.append(name)
            taken.append(name)
            spelled += [name] * (name == "fmt")
            continue
        fields = _fields(kind, name, f"{name}_" if more else "", sized=size_of is None)
        more.append(_more(f"{name}_more" if more else "more"))
        last.append(f"{name}.more")
        flat += fields
        made.append(_made(kind, [*fields, more[-1]], size_of))
        taken.append(f"*{name}[:{len(fields)}]")
        spelled.append(f"{name}.fmt")
    flat = _late_defaults(flat) + more
    scope = {"_Operand": Operand, "_Quantizer": Quantizer, "_size_of": size_of}
    defaults = tuple(parameter.default for parameter in own.values())
    bare = [parameter.replace(default=Parameter.empty) for parameter in own.values()]
    return Signature(
        tuple(flat),
        defaults,
        _function(flat, made, scope),
        _function(bare, taken + last, scope),
        _function(bare, spelled, scope),
    )


def _made(kind: type, fields: list[Parameter], size_of: SizeOf | None) -> str:
    """The expression that makes an operand of these flat arguments."""
    *values, more = (field.name for field in fields)
    if kind is Operand and size_of is not None:
        values.append(f"_size_of({', '.join(inspect.signature(size_of).parameters)})")
    return f"_{kind.__name__}({', '.join([*values, more])})"


def _fields(kind: type, name: str, prefix: str, sized: bool) -> list[Parameter]:
    """What the torch op takes of an operand that the op calls `name`."""
    plain = Parameter.POSITIONAL_OR_KEYWORD
    if kind is Operand:
        types: dict[str, Any] = {
            "scale": Tensor, "zero_point": Tensor | None, "outer": Tensor | None, "fmt": str,
        }  # fmt: skip
        types |= {"size": int} if sized else {}
        first = [Parameter(name, plain, annotation=Tensor)]
        return first + [Parameter(prefix + n, plain, annotation=t) for n, t in types.items()]
    types = dict.fromkeys(("scale", "zero_point", "outer"), Tensor | None) | {"fmt": str}
    last = Parameter(f"{prefix}seed", plain, annotation=Tensor | None, default=None)
    return [Parameter(prefix + n, plain, annotation=t) for n, t in types.items()] + [last]


def _more(name: str) -> Parameter:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Parameter(name, kind, annotation=Sequence[Tensor] | None, default=None)


def _is_more(parameter: Parameter) -> bool:
    return bool(parameter.annotation == Sequence[Tensor] | None)


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
