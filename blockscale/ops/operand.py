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

An op takes the scale of a whole tensor as [], [1] or [1, 1, 1]. What stands behind it, its
reference and every kernel, sees the tensor's own rank: in front of them, a part of one element gets
it. Formats that no kernel knows are restated behind that (blockscale.kernels.restated_ops).
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from inspect import Parameter
from typing import Any, get_type_hints
from weakref import ref

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
    fits:      the op's own arguments, all of them -> whether parts of one element have their ranks
    fitted:    the op's own arguments, all of them -> the same with parts in their ranks
    """

    flat: tuple[Parameter, ...]
    defaults: tuple[Any, ...]
    _own: tuple[Parameter, ...]
    _texts: tuple[tuple[str, ...], ...]  # the expressions of the functions
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

    @cached_property
    def fits(self) -> Callable[..., bool]:
        """A part that has its rank costs a comparison."""
        result: Callable[..., bool] = _lambda(self._own, " and ".join(self._texts[3]), self._scope)
        return result

    @cached_property
    def fitted(self) -> Tuples:
        """A Quantizer's parts get the rank of the argument `x`; in an op without one, or of fused
        operands, whose result has a rank of its own, they stay as they are."""
        return _function(self._own, self._texts[4], self._scope)

    def accepting(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """The op's reference or shape rule, which then takes parts of one element in any rank."""

        @wraps(reference)
        def accepts(*args: Any) -> Any:
            args += self.defaults[len(args) :]
            return reference(*args) if self.fits(*args) else reference(*self.fitted(*args))

        return accepts

    @property
    def plain(self) -> bool:
        """Whether the op's own arguments are the flat ones, none of which can be left out."""
        return self.flat == self._own

    @property
    def names(self) -> tuple[str, ...]:
        """Of the torch op's arguments."""
        return tuple(parameter.name for parameter in self.flat)

    def schema(self, returns: Any) -> str:
        """The torch op's, as torch spells it, for an op that returns `returns`."""
        written = [_written(each) for each in self.flat]
        if None not in written and returns in _TYPES:
            return f"({', '.join(written)}) -> {_TYPES[returns]}"  # type: ignore[arg-type]

        def prototype(*_: Any) -> None: ...

        plain = [p for p in self.flat if not _is_more(p)]
        signed = inspect.Signature(plain, return_annotation=returns)
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
    results, arguments, spelled = [], [], []  # text, for each of the op's parameters
    more: list[Parameter] = []
    last = []  # what is taken for these
    for parameter in own:
        name, kind = parameter.name, parameter.annotation
        if kind not in _KINDS:
            flat.append(parameter)
            results.append(name)
            arguments.append(name)
            spelled += [name] * (name == "fmt")
            continue
        bare = not more and kind in (Operand, Quantizer)
        prefix = "" if bare else f"{name}_"
        fields = _fields(kind, name, prefix, sized=size_of is None)
        more.append(_more(f"{prefix}more"))
        flat += fields
        results.append(_made(kind, [*fields, more[-1]], size_of))
        if kind == Values:
            last.append(f"_more_of({name})")
            arguments.append(f"*_columns({name})")
            spelled.append(f"*[each.fmt for each in {name}]")
        else:
            last.append(f"{name}.more")
            arguments.append(f"*{name}[:{len(fields)}]")
            spelled.append(f"{name}.fmt")
    flat = _late_defaults(flat) + more
    scope = {"_size_of": size_of, "_columns": _columns, "_more_of": _more_of} | _MAKERS
    scope |= {"_of_rank": _of_rank, "_fits": _fits}
    defaults = tuple(parameter.default for parameter in own)
    required = [parameter.replace(default=Parameter.empty) for parameter in own]
    texts = (tuple(results), (*arguments, *last), tuple(spelled), *_ranked(own))
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
    results = []
    for data, scale, zero_point, outer, fmt, size in zip(*named, strict=True):
        count = sum(name not in FIRST for name in part_names(fmt)) if rest and fmt else 0
        results.append(Value(data, scale, zero_point, outer, fmt, size, rest[:count] or None))
        del rest[:count]
    if rest:
        raise ValueError(f"{len(rest)} more tensors were passed than the formats {named[4]} have")
    return results


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
    parameters: Iterable[Parameter], expressions: Iterable[str], scope: dict[str, Any]
) -> Tuples:
    """The function of these parameters that returns a tuple of these expressions.

    It is made as text, as dataclasses make their methods: calls on small tensors take 5 µs, of
    which a loop over parameters would be one.
    """
    made: Tuples = _lambda(parameters, f"({''.join(f'{value}, ' for value in expressions)})", scope)
    return made


def _lambda(parameters: Iterable[Parameter], expression: str, scope: dict[str, Any]) -> Any:
    """The function of these parameters that returns what this expression gives."""
    named = list(parameters)
    scope = scope | {f"_default_{p.name}": p.default for p in named}
    written = ", ".join(
        p.name if p.default is Parameter.empty else f"{p.name}=_default_{p.name}" for p in named
    )
    return eval(f"lambda {written}: {expression}", scope)


# Scales of one element, in any rank: an op takes [], [1] or [1, 1, 1] for that of a whole tensor.

PARTS = ("scale", "zero_point", "outer")


def _ranked(own: Sequence[Parameter]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The expressions that `fits` joins, and those of the arguments that `fitted` gives."""
    kinds = {parameter.name: parameter.annotation for parameter in own}
    fused = any(kind in (Value, Values) for kind in kinds.values())
    x = "" if fused or "x" not in kinds else "x"
    checks, results = [], []
    for name, kind in kinds.items():
        results.append(name)
        if kind == Values:
            checks.append(f"all(map(_fits, {name}))")
            results[-1] = f"[_of_rank(each, each[0].ndim) for each in {name}]"
        elif rank := _rank(name, kind, x):
            checks += [f"({name}.{part} is None or {name}.{part}.ndim == {rank})" for part in PARTS]
            checks.append(f"not {name}.more")
            results[-1] = f"_of_rank({name}, {rank})"
    return tuple(checks or ["True"]), tuple(results)


def _fits(value: Value) -> bool:
    parts = (value.scale, value.zero_point, value.outer)
    return not value.more and all(p is None or p.ndim == value.data.ndim for p in parts)


def _rank(name: str, kind: Any, x: str) -> str:
    """The expression for the rank that the parts of an argument need; "" for one without parts."""
    if kind in (Operand, Value):
        return f"{name}[0].ndim"
    return f"{x}.ndim" if kind is Quantizer and x else ""


def _of_rank(value: Any, rank: int) -> Any:
    """An Operand, Quantizer or Value with its parts of one element in `rank` dimensions."""
    if value.scale is None:
        return value
    keep = not isinstance(value, Quantizer)
    if not isinstance(value, Quantizer) and not value.scale.ndim and rank == 1 and value.size == 1:
        rank = 0  # one code, packed as a row: that of a tensor without a dimension
    parts: dict[str, Any] = {name: _shaped(getattr(value, name), rank, keep) for name in PARTS}
    if value.more:
        parts["more"] = [_shaped(part, rank, keep) for part in value.more]
    return value._replace(**parts)


def _shaped(part: Tensor | None, rank: int, keep: bool) -> Tensor | None:
    if part is None or part.ndim == rank or part.numel() != 1:
        return part
    if not keep or type(part) is not Tensor or part.requires_grad:
        return part.reshape((1,) * rank)
    return _kept_view(part, rank)


_views: dict[tuple[int, int], tuple[Any, Tensor]] = {}


def _kept_view(part: Tensor, rank: int) -> Tensor:
    """The same view at every call, because what kernels keep beside a weight is that of its very
    tensors (blockscale.kernels.resident)."""
    key = id(part), rank
    value = _views.get(key)
    if value is not None and value[0]() is part and value[1].data_ptr() == part.data_ptr():
        return value[1]

    def forget(gone: Any) -> None:
        if key in _views and _views[key][0] is gone:
            del _views[key]

    view = part.detach().reshape((1,) * rank)  # detached: a view would keep `part` itself alive
    _views[key] = ref(part, forget), view
    return view
