"""A fused op is its float body: the rest follows from it.

    @fused(aten=("add.Tensor",))
    def add(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
        return torch.add(a, b, alpha=alpha)

makes the op `fused_add(a: Value, b: Value, alpha: float, dtype, y: Quantizer) -> list[Tensor]`: each
operand that is codes becomes floats of `dtype`, the body computes, its result is cast to `dtype`
and quantized by `y`. That is what the ops do that it stands for, one after the other, through the
same kernels; so the reference is a good way to run it where it has no kernel of its own.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any, get_type_hints

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.kernels.registry import find
from blockscale.ops.fused import values
from blockscale.ops.fused.activation import ACTIVATIONS, activated
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import Op, register
from blockscale.ops.operand import Signature, signature_of

_INSTEAD = "it is for inference; train the prepared graph or model, and fuse what was converted"


@dataclass(frozen=True, eq=False)
class Fused:
    """A fused op, and what stands for it in graphs.

    name: of the body; the op is called `fused_<name>`
    operands: names of its Values; a single list of them if `many`
    settings: name -> default of what follows them, Parameter.empty where it has none
    types: name -> type of each setting
    patterns: calls of aten that it stands for, as `blockscale.ops.fused.match` reads them
    wide: it computes in float32 whatever `dtype` is, and its floats are widened too
    indices: it gives int64 indices: then `dtype` is only what codes become
    many: its operands are one list
    """

    name: str
    op: Op
    operands: tuple[str, ...]
    settings: dict[str, Any]
    types: dict[str, Any]
    patterns: tuple[str, ...]
    wide: bool
    indices: bool
    many: bool

    def __repr__(self) -> str:
        return f"<fused op {self.op.name}>"

    @property
    def ulps(self) -> int:
        """How far a kernel may be from the reference; 0 means equal bits."""
        return self.op.ulps

    @cached_property
    def aten(self) -> tuple[Any, ...]:
        """The overloads of aten that it stands for."""
        return tuple(dict.fromkeys(overload(each.split()[0]) for each in self.patterns))

    def flatten(
        self, given: Sequence[Value], settings: dict[str, Any], dtype: torch.dtype, y: Quantizer
    ) -> tuple[Any, ...]:
        """The torch op's arguments, of tensors or of the nodes of a graph."""
        return self.op.flatten(*self._own(given, settings, dtype, y))

    def __call__(
        self,
        *given: Value,
        dtype: torch.dtype = torch.float32,
        y: Quantizer = UNQUANTIZED,
        **settings: Any,
    ) -> list[Tensor]:
        """Run the op on these operands: [y], [codes] or [codes, *parts]."""
        made: list[Tensor] = self.op(*self._own(given, settings, dtype, y))
        return made

    def _own(
        self, given: Sequence[Value], settings: dict[str, Any], dtype: torch.dtype, y: Quantizer
    ) -> tuple[Any, ...]:
        """The op's own arguments, settings by name or by default."""
        if not self.many and len(given) != len(self.operands):
            raise TypeError(
                f"{self.op.name} takes {len(self.operands)} operands ({', '.join(self.operands)}), "
                f"found {len(given)}"
            )
        whole = self.settings | settings
        missing = [name for name, value in whole.items() if value is Parameter.empty]
        unknown = settings.keys() - self.settings.keys()
        if missing or unknown:
            raise TypeError(
                f"{self.op.name}: missing settings {missing}, unknown ones {sorted(unknown)}; it "
                f"has {', '.join(self.settings) or 'none'}"
            )
        first = ([*given],) if self.many else tuple(given)
        return (*first, *whole.values(), dtype, y)


FUSED: dict[str, Fused] = {}


def overload(name: str) -> Any:
    """`add.Tensor` -> torch.ops.aten.add.Tensor; what follows a bracket is left out."""
    packet, _, which = name.partition("[")[0].partition(".")
    return getattr(getattr(torch.ops.aten, packet), which)


def fused(
    *,
    ulps: int = 0,
    aten: tuple[str, ...] = (),
    wide: bool = False,
    indices: bool = False,
    activation: bool = False,
    shape: Callable[..., Sequence[int]] | None = None,
    floats: Callable[..., Tensor] | None = None,
) -> Callable[[Callable[..., Tensor]], Fused]:
    """Make the decorated float body the fused op of its name.

    The body's positional tensors, or its one positional list of them, become operands; its
    keyword-only arguments are settings, which torch must be able to spell.

    ulps: as in blockscale.ops.op; for kernels that sum in another order
    aten, wide, indices: as in Fused
    activation: it has a last setting of that name; the activation computes in `dtype`
    shape: gives the result's shape where the body would ask symbolic sizes questions, of what the
        body takes
    floats: runs in the place of the body on the Values themselves, then compute dtype, then
        settings by name, where there is a better way than to dequantize all of an operand
    """

    def define(body: Callable[..., Tensor]) -> Fused:
        own = _parameters(body, activation)
        operands = [p for p in own if p.annotation in (Value, list[Value])]
        settings = own[len(operands) : -2]
        plan = _Plan(
            f"fused_{body.__name__}", body, tuple(p.name for p in operands),
            tuple(p.name for p in settings if not (activation and p.name == "activation")),
            operands[0].annotation == list[Value], wide, indices, activation, shape, floats,
        )  # fmt: skip
        takes = signature_of(own)
        run = _runner(plan, takes)
        made = register(
            plan.name, plan.reference, takes, list[Tensor], run, shape=plan.empty, ulps=ulps
        )
        not_differentiable(made, _INSTEAD)
        FUSED[body.__name__] = Fused(
            body.__name__, made, plan.operands, {p.name: _default(p) for p in settings},
            {p.name: p.annotation for p in settings}, aten, wide, indices, plan.many,
        )  # fmt: skip
        return FUSED[body.__name__]

    return define


def _parameters(body: Callable[..., Tensor], activation: bool) -> list[Parameter]:
    """Of the op whose body this is."""
    hints, plain = get_type_hints(body), Parameter.POSITIONAL_OR_KEYWORD
    own = []
    for name, each in inspect.signature(body).parameters.items():
        kind = hints[name]
        if each.kind is not Parameter.KEYWORD_ONLY:
            kind = list[Value] if kind == list[Tensor] else Value
        own.append(Parameter(name, plain, default=each.default, annotation=kind))
    if activation:
        own.append(Parameter("activation", plain, default="", annotation=str))
    own.append(Parameter("dtype", plain, annotation=torch.dtype))
    return [*own, Parameter("y", plain, annotation=Quantizer)]


def _default(parameter: Parameter) -> Any:
    """Of a setting; a list, where it is one of numbers."""
    return [*parameter.default] if type(parameter.default) is tuple else parameter.default


@dataclass(frozen=True)
class _Plan:
    """How to run a body on operands."""

    name: str
    body: Callable[..., Tensor]
    operands: tuple[str, ...]
    settings: tuple[str, ...]  # those of the body
    many: bool
    wide: bool
    indices: bool
    activation: bool
    shape: Callable[..., Sequence[int]] | None
    floats: Callable[..., Tensor] | None

    def reference(self, *args: Any) -> list[Tensor]:
        """The composition of dequantize, body and quantize."""
        given, settings, dtype, by = self._parts(args)
        compute = torch.float32 if self.wide else dtype
        first = given[0].data
        with values.precise(compute, first):
            if self.floats is not None:
                y = self.floats(*given, dtype=compute, **settings)
            else:
                y = self._body([values.floats(v, compute, self.wide) for v in given], settings)
        if self.indices:
            return [y]
        y = y.to(dtype)
        if self.activation and args[-3]:
            with values.precise(dtype, first):
                y = activated(y, args[-3])
        return values.quantized(y, by)

    def empty(self, *args: Any) -> list[Tensor]:
        """What `reference` gives, empty."""
        self.check(args)
        given, settings, dtype, by = self._parts(args)
        compute = torch.float32 if self.wide else dtype
        found = [values.empty(v, compute, self.wide) for v in given]
        if self.shape is not None:
            size = self.shape(*found, **settings)
        else:
            size = self._body(found, settings).shape
        y = found[0].new_empty(size, dtype=torch.int64 if self.indices else dtype)
        return [y] if self.indices else values.empty_quantized(y, by)

    def check(self, args: tuple[Any, ...]) -> None:
        """Raise for operands and results that do not fit, before anything is computed."""
        if self.many:
            if not args[0]:
                raise ValueError(f"{self.name}: expected at least one tensor to join, found none")
            for i, value in enumerate(args[0]):
                values.check_value(self.name, f"{self.operands[0]}[{i}]", value)
        else:
            for name, value in zip(self.operands, args, strict=False):
                values.check_value(self.name, name, value)
        values.check_quantizer(self.name, args[-1])
        if self.indices and args[-1].fmt:
            raise ValueError(
                f"{self.name} gives indices, which have no format; found {args[-1].fmt}: leave the "
                f"result's format empty"
            )
        if self.activation and args[-3] not in ACTIVATIONS:
            activated(args[0].data, args[-3])

    def _body(self, found: list[Tensor], settings: dict[str, Any]) -> Tensor:
        return self.body(found, **settings) if self.many else self.body(*found, **settings)

    def _parts(
        self, args: tuple[Any, ...]
    ) -> tuple[Sequence[Value], dict[str, Any], torch.dtype, Quantizer]:
        """An op's arguments as its operands, its body's settings, the dtype and the quantizer."""
        count = len(self.operands)
        settings = dict(zip(self.settings, args[count:], strict=False))
        return args[0] if self.many else args[:count], settings, args[-2], args[-1]


def _runner(plan: _Plan, takes: Signature) -> Callable[..., Any]:
    """What runs the kernel of the op's arguments or, where there is none, the composition."""
    name, reference, check, spellings = plan.name, plan.reference, plan.check, takes.spellings
    many = plan.many

    def run(*args: Any) -> Any:
        check(args)
        first = args[0][0] if many else args[0]
        device = first.data.device.type
        kernel = find(name, spellings(*args), device, args, composed=True)
        return reference(*args) if kernel is None else kernel.run(*args)

    return run
