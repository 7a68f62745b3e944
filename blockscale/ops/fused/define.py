# SPDX-License-Identifier: BSD-3-Clause
"""A fused op is its float body: the rest follows from it.

    @fused(aten=("add.Tensor",))
    def add(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
        return torch.add(a, b, alpha=alpha)

makes the op `fused_add(a: Value, b: Value, alpha: float, dtype, y: Quantizer) -> list[Tensor]`:
each operand that is codes becomes floats of `dtype`, the body computes, its result is cast to
`dtype` and quantized by `y`. That is what the ops do that it stands for, one after the other, by
the same kernels; so the reference is a good way to run it where it has no kernel of its own.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any, get_type_hints

import torch
from torch import Tensor, fx

from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.kernels.registry import find
from blockscale.ops.fused.plan import Order, Plan
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import Op, register
from blockscale.ops.operand import Signature, signature_of

_INSTEAD = "it is for inference; train the prepared graph or model, and fuse what was converted"


Chain = Callable[[fx.Node], tuple[tuple[fx.Node, ...], dict[str, Any]] | None]


@dataclass(frozen=True, eq=False)
class Fused:
    """A fused op, and what stands for it in graphs.

    name: of the body; the op is called `fused_<name>`
    body: what it computes, of floats
    operands: names of its Values; a single list of them if `many`
    settings: name -> default of what follows them, Parameter.empty where it has none
    types: name -> type of each setting
    patterns: calls of aten that it stands for, as `blockscale.ops.fused.matching` reads them
    chain: an overload of aten that ends a chain of calls that it stands for, and what reads the
        chain: node -> (operands, settings), or None
    wide: it computes in float32 whatever `dtype` is, and its floats are widened too
    indices: it gives int64 indices: then `dtype` is only what codes become
    many: its operands are one list
    """

    name: str
    body: Callable[..., Tensor]
    op: Op
    operands: tuple[str, ...]
    settings: dict[str, Any]
    types: dict[str, Any]
    patterns: tuple[str, ...]
    wide: bool
    indices: bool
    many: bool
    chain: tuple[str, Chain] | None

    def __repr__(self) -> str:
        return f"<fused op {self.op.name}>"

    @property
    def ulps(self) -> int:
        """How far a kernel may be from the reference; 0 means equal bits.

        Of element-wise functions, torch's vectors and the scalar code for what is left over differ
        by as much (in bfloat16 by a unit of that): what an element becomes depends on its place.
        """
        return self.op.ulps

    @cached_property
    def aten(self) -> tuple[Any, ...]:
        """The overloads of aten that it stands for."""
        return tuple(dict.fromkeys(overload(each.split()[0]) for each in self.patterns))

    def flatten(
        self, operands: Sequence[Value], settings: dict[str, Any], dtype: torch.dtype, y: Quantizer
    ) -> tuple[Any, ...]:
        """The torch op's arguments, of tensors or of the nodes of a graph."""
        return self.op.flatten(*self._own(operands, settings, dtype, y))

    def __call__(
        self,
        *operands: Value,
        dtype: torch.dtype = torch.float32,
        y: Quantizer = UNQUANTIZED,
        **settings: Any,
    ) -> list[Tensor]:
        """Run the op on these operands: [y], [codes] or [codes, *parts]."""
        outputs: list[Tensor] = self.op(*self._own(operands, settings, dtype, y))
        return outputs

    def _own(
        self, operands: Sequence[Value], settings: dict[str, Any], dtype: torch.dtype, y: Quantizer
    ) -> tuple[Any, ...]:
        """The op's own arguments, settings by name or by default."""
        if not self.many and len(operands) != len(self.operands):
            raise TypeError(
                f"{self.op.name} takes {len(self.operands)} operands ({', '.join(self.operands)}), "
                f"found {len(operands)}"
            )
        whole = self.settings | settings
        missing = [name for name, value in whole.items() if value is Parameter.empty]
        unknown = settings.keys() - self.settings.keys()
        if missing or unknown:
            raise TypeError(
                f"{self.op.name}: missing settings {missing}, unknown ones {sorted(unknown)}; it "
                f"has {', '.join(self.settings) or 'none'}"
            )
        first = ([*operands],) if self.many else tuple(operands)
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
    activation: bool | Order = False,
    shape: Callable[..., Sequence[int]] | None = None,
    floats: Callable[..., Tensor] | None = None,
    chain: tuple[str, Chain] | None = None,
) -> Callable[[Callable[..., Tensor]], Fused]:
    """Make the decorated float body the fused op of its name.

    The body's positional tensors, or its one positional list of them, become operands; its
    keyword-only arguments are settings, which torch must be able to spell.

    ulps: as in blockscale.ops.op
    aten, wide, indices, chain: as in Fused
    activation: it has a last setting of that name, computed in `dtype`; an Order: as there
    shape: gives the result's shape where the body would ask symbolic sizes questions
    floats: takes Values, the dtype to compute in and settings in the place of the body
    """

    def define(body: Callable[..., Tensor]) -> Fused:
        own = _parameters(body, bool(activation))
        operands = [p for p in own if p.annotation in (Value, list[Value])]
        settings = own[len(operands) : -2]
        names = [p.name for p in settings if not (activation and p.name == "activation")]
        plan = Plan(
            f"fused_{body.__name__}", body, tuple(p.name for p in operands), tuple(names),
            operands[0].annotation == list[Value], wide, indices, activation, shape, floats,
        )  # fmt: skip
        result = Fused(
            body.__name__, body, _register(plan, own, ulps), plan.operands,
            {p.name: _default(p) for p in settings}, {p.name: p.annotation for p in settings},
            aten, wide, indices, plan.many, chain,
        )  # fmt: skip
        return FUSED.setdefault(result.name, result)

    return define


def _register(plan: Plan, own: list[Parameter], ulps: int) -> Op:
    """The torch op that runs a plan."""
    takes = signature_of(own)
    run = _when_called(lambda: _runner(plan, takes))
    result = register(
        plan.name, plan.reference, takes, list[Tensor], run, shape=plan.empty, ulps=ulps
    )
    not_differentiable(result, _INSTEAD)
    return result


def _parameters(body: Callable[..., Tensor], activation: bool) -> list[Parameter]:
    """The parameters of the op with this body."""
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
    """The default of a setting; a tuple of numbers becomes a list."""
    return [*parameter.default] if type(parameter.default) is tuple else parameter.default


def _when_called(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function that `make` returns, made at its first call: of many ops few are used."""
    functions: list[Callable[..., Any]] = []

    def run(*args: Any) -> Any:
        if not functions:
            functions.append(make())
        return functions[0](*args)

    return run


def _runner(plan: Plan, takes: Signature) -> Callable[..., Any]:
    """What runs the kernel of the op's arguments or, where there is none, the composition."""
    fits, fit = takes.fits, takes.fitted
    name, reference, check, spellings = plan.name, plan.reference, plan.check, takes.spellings
    many = plan.many

    def run(*args: Any) -> Any:
        check(args)
        if not fits(*args):
            args = fit(*args)
        first = args[0][0] if many else args[0]
        device = first.data.device.type
        kernel = find(name, spellings(*args), device, args, composite=True)
        return reference(*args) if kernel is None else kernel.run(*args)

    return run
