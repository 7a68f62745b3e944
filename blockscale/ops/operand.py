"""How the operands of an op become the flat arguments of a torch op, and back.

A parameter of an op that is an Operand or a Quantizer stands for several arguments of the torch
op, so that graphs, exporters and sharding rules see each tensor. They are named after its fields:
an Operand's codes have the parameter's own name, and the other fields of a second operand begin
with its name. A plain `fmt: str` is the spelling of a format as well.

    linear(x, weight: Operand, bias, input: Quantizer)
    linear(x, weight, scale, zero_point, outer, fmt, bias, input_scale, …, input_fmt, input_seed)
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from operator import itemgetter
from typing import Any, get_type_hints

import torch
from torch import Tensor

from blockscale.core.operand import Operand, Quantizer

Make = Callable[[tuple[Any, ...]], Any]  # flat arguments -> one of the op's own


@dataclass(frozen=True)
class Signature:
    """An op's parameters, and the flat arguments of its torch op.

    own:      the op's parameters, by name
    flat:     the torch op's
    widths:   for each of the op's parameters, how many fields of it the torch op takes; None where
              it is no operand
    defaults: for each of the op's parameters, Parameter.empty where it has none
    """

    own: dict[str, Parameter]
    flat: tuple[Parameter, ...]
    widths: tuple[int | None, ...]
    defaults: tuple[Any, ...]
    _makes: tuple[Make, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the torch op's arguments."""
        return tuple(parameter.name for parameter in self.flat)

    def schema(self, result: Any) -> str:
        """The torch op's, as torch spells it, for an op that returns `result`."""

        def prototype(*_: Any) -> None: ...

        signed = inspect.Signature(list(self.flat), return_annotation=result)
        prototype.__signature__ = signed  # type: ignore[attr-defined]
        return torch.library.infer_schema(prototype, mutates_args=())

    def bind(self, flat: tuple[Any, ...]) -> tuple[Any, ...]:
        """Flat arguments, without those at the end that have their defaults -> the op's own."""
        flat += tuple([parameter.default for parameter in self.flat[len(flat) :]])
        return tuple([make(flat) for make in self._makes])

    def flatten(self) -> Callable[..., tuple[Any, ...]]:
        """What makes flat arguments of the op's own, all of them.

        It is written out for each op, as dataclasses write their methods: a loop takes 1 µs.
        """
        names = [f"a{i}" for i in range(len(self.widths))]
        parts = [
            name if width is None else f"*{name}[:{width}]"
            for name, width in zip(names, self.widths, strict=True)
        ]
        made: Callable[..., tuple[Any, ...]] = eval(
            f"lambda {', '.join(names)}: ({', '.join(parts)},)"
        )
        return made

    def spellings(self) -> Callable[[tuple[Any, ...]], tuple[str, ...]]:
        """What reads the spelling of each format among the op's own arguments, perhaps empty."""
        named = zip(self.own, self.widths, strict=True)
        of = [
            (i, width is not None)
            for i, (name, width) in enumerate(named)
            if width is not None or name == "fmt"
        ]
        if len(of) == 1:  # nearly all ops: without a loop it takes a third of the time
            ((i, operand),) = of
            return (lambda args: (args[i].fmt,)) if operand else (lambda args: (args[i],))
        return lambda args: tuple([args[i].fmt if operand else args[i] for i, operand in of])


def signature(reference: Callable[..., Any], size_of: Callable[..., int] | None) -> Signature:
    """The Signature of the op that `reference` defines.

    size_of: gives an Operand's size, from the flat arguments of its parameters' names, where the
        torch op does not take the size itself.
    """
    hints = get_type_hints(reference)
    own = dict(inspect.signature(reference).parameters)
    flat: list[Parameter] = []
    widths: list[int | None] = []
    for name, parameter in own.items():
        kind = hints[name]
        if kind not in (Operand, Quantizer):
            flat.append(parameter.replace(annotation=kind))
            widths.append(None)
            continue
        second = any(width is not None for width in widths)
        fields = _fields(kind, name, f"{name}_" if second else "", sized=size_of is None)
        flat += fields
        widths.append(len(fields))
    required = True
    for i, parameter in reversed([*enumerate(flat)]):  # torch wants defaults at the end only
        required = parameter.default is Parameter.empty
        if required:
            flat[:i] = [each.replace(default=Parameter.empty) for each in flat[:i]]
            break
    makes = _makes([hints[name] for name in own], widths, [each.name for each in flat], size_of)
    defaults = tuple(parameter.default for parameter in own.values())
    return Signature(own, tuple(flat), tuple(widths), defaults, makes)


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


def _makes(
    kinds: list[type],
    widths: list[int | None],
    names: list[str],
    size_of: Callable[..., int] | None,
) -> tuple[Make, ...]:
    """For each of the op's parameters, what makes it of the flat arguments."""
    makes: list[Make] = []
    at = 0
    for kind, width in zip(kinds, widths, strict=True):
        start, stop = at, at + (width or 1)
        at = stop
        if width is None:
            makes.append(itemgetter(start))
        elif kind is Operand and size_of is not None:
            asked = [names.index(name) for name in inspect.signature(size_of).parameters]
            makes.append(_sized(start, stop, size_of, asked))
        else:
            makes.append(_whole(kind, start, stop))
    return tuple(makes)


def _whole(kind: type, start: int, stop: int) -> Make:
    """Makes an operand whose fields are all among the flat arguments."""
    return lambda flat: kind(*flat[start:stop])


def _sized(start: int, stop: int, size_of: Callable[..., int], asked: list[int]) -> Make:
    """Makes an Operand whose size other arguments tell."""

    def make(flat: tuple[Any, ...]) -> Operand:
        size = size_of(*[flat[i] for i in asked])
        codes, scale, zero_point, outer, fmt = flat[start:stop]
        return Operand(codes, scale, zero_point, outer, fmt, size)

    return make
