# SPDX-License-Identifier: BSD-3-Clause
"""Quantized parameters that belong to no layer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from blockscale.core import reference
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.joined_weights import outer_of
from blockscale.core.ledger import Entry
from blockscale.core.operand import quantizer
from blockscale.core.pack import stored_bytes, stored_shape, to_stored
from blockscale.core.recipe import Recipe
from blockscale.layers.decisions import Member, Weight, decide, sharing, told_sharing
from blockscale.layers.expert_stacks import PLAIN, stacks
from blockscale.layers.held_parameters import hold, parameters_again
from blockscale.layers.plan import Decision
from blockscale.layers.reasons import why_adapter, why_not_weight
from blockscale.layers.saturation import (
    block_ranges,
    lost_signs,
    saturates,
    told_of_clipped,
    told_of_odd,
)
from blockscale.layers.store import QWeight
from blockscale.layers.weight_codes import by_kernel, clipped
from blockscale.ops import primitives
from blockscale.ops.quantize import quantize
from blockscale.ops.seed import seed_tensor
from blockscale.ops.tensor import QTensor

# Parameters that belong to no layer: which of them are quantized, and how they are held.
#
# A module that reads its own parameter (xlnet's q, k, v; `in_proj_weight`; the experts of a
# mixture)
# goes on reading it: it gets a WeightTensor (blockscale.layers.weight_tensor).


@dataclass(frozen=True, eq=False)
class ParameterPlan:
    """A parameter that is to be quantized where it is, under all its names in the model.

    parts: of how many matrices each of its stack consists, which share their outer scale
    joined: the names of all parameters that share its outer scale, itself among them; perhaps none
    """

    names: tuple[str, ...]
    parameter: Tensor
    format: Format
    layout: str
    entry: Entry
    parts: int = 1
    joined: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def plan_parameters(
    model: nn.Module, decisions: Iterable[Decision], recipe: Recipe
) -> list[ParameterPlan | Entry]:
    """A plan for each parameter of no layer that is to be quantized, an entry for each other."""
    planned = list(_planned(model, decisions, recipe))
    members = {
        each.name: Member(
            each.format, stored_shape(each.parameter.shape, each.layout), parts=each.parts
        )
        for each in planned
        if isinstance(each, ParameterPlan)
    }
    groups, alone = sharing([each.name for each in planned], members, recipe.fused)

    def one(plan: ParameterPlan | Entry) -> ParameterPlan | Entry:
        if not isinstance(plan, ParameterPlan):
            return plan
        joined = groups.get(plan.name, ())
        told = told_sharing(plan.name, joined, alone.get(plan.name, ""))
        details = "; ".join(filter(None, [plan.entry.details, told]))
        return replace(plan, joined=joined, entry=replace(plan.entry, details=details))

    return [one(each) for each in planned]


def _planned(
    model: nn.Module, decisions: Iterable[Decision], recipe: Recipe
) -> Iterator[ParameterPlan | Entry]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    known = stacks(model)
    for name, parameter, entry in _others(model, decisions):
        every, stack = tuple(names[id(parameter)]), known.get(name, PLAIN)
        owner = model.get_submodule(name.rpartition(".")[0])
        refused = _why_not(owner, parameter)
        weight = described(model, every, parameter, refused)._replace(
            layout=stack.layout, parts=stack.parts
        )
        outcome = decide(weight, recipe)
        if outcome.format is None:
            yield replace(entry, status=outcome.status, reason=outcome.reason)
            continue
        scheme, _ = recipe.decide(name)
        alone = (
            "only its weight is quantized: the layer is read, not called"
            if scheme.input or scheme.output
            else ""
        )
        told = f"input left in float: {type(owner).__name__} computes with it directly"
        done = replace(
            entry,
            status="quantized",
            weight=str(outcome.format),
            details=alone,
            reason="" if scheme.input is None else told,
        )
        yield ParameterPlan(
            every, parameter, outcome.format, stack.layout, done, stack.parts_that_share
        )


def described(
    model: nn.Module, names: tuple[str, ...], parameter: Tensor, refused: str = ""
) -> Weight:
    """A parameter of no layer, as decisions know it; refused: why it cannot be held in codes."""
    shape, dtype = tuple(parameter.shape), parameter.dtype
    adapter = why_adapter(model, names[0])
    return Weight(names[0], names, "parameter", shape, dtype, stays=adapter, refused=refused)


def _why_not(owner: nn.Module, parameter: Tensor) -> str:
    """Why this parameter cannot be held in codes; empty if it can."""
    if isinstance(owner, ParametrizationList):
        return "a parametrization computes the weight from it: remove that first"
    return why_not_weight(parameter)


def plan_others(model: nn.Module, plans: Iterable[Decision], recipe: Recipe) -> Iterator[Entry]:
    """An entry for each parameter of no layer, where parameters cannot be held: in programs and in
    training."""
    for name, parameter, entry in _others(model, plans):
        owner = entry.kind.removeprefix("parameter of ")
        refused = f"{owner} uses it directly, not through a layer that can hold codes"
        outcome = decide(described(model, (name,), parameter, refused), recipe)
        yield replace(entry, status=outcome.status, reason=outcome.reason)


def _others(
    model: nn.Module, plans: Iterable[Decision]
) -> Iterator[tuple[str, nn.Parameter, Entry]]:
    counted = {id(p) for plan in plans for p in plan.owned}
    for name, parameter in model.named_parameters():
        if id(parameter) in counted or nn.parameter.is_lazy(parameter):
            continue
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        size = stored_bytes(parameter)
        entry = Entry(name, f"parameter of {owner}", "kept", elements=parameter.numel())
        yield name, parameter, replace(entry, bytes_before=size, bytes_after=size)


def entries_of(planned: Iterable[ParameterPlan | Entry]) -> list[Entry]:
    """What the ledger says of them before anything is done."""
    return [each.entry if isinstance(each, ParameterPlan) else each for each in planned]


def quantized(
    plan: ParameterPlan,
    seed: int | None,
    made: QWeight | None = None,
    top: Tensor | None = None,
) -> tuple[QWeight, Entry]:
    """A parameter in codes, `made` if they are there, and its entry with what a user should know
    of it.

    top: the largest numerator of all that share its outer scale (layers.joined)
    """
    fmt, parameter = plan.format, plan.parameter
    if made is not None:
        return made, replace(plan.entry, bytes_after=made.nbytes)
    stored = to_stored(parameter.detach(), plan.layout)
    notes = [odd] if (odd := told_of_odd(stored)) else []
    q, more = coded(stored, fmt, None if seed is None else named_seed(seed, plan.name), top)
    weight = QWeight(q, tuple(parameter.shape), parameter.dtype, plan.layout)
    weight.name = plan.name
    return weight, replace(plan.entry, notes=(*notes, *more), bytes_after=weight.nbytes)


def coded(
    stored: Tensor, fmt: Format, seed: int | None, top: Tensor | None = None
) -> tuple[QTensor, list[str]]:
    """A weight as it is stored, in codes, and what a user should know about it in this format.

    top: the largest numerator of all weights that share its outer scale, which it decides
    """
    notes = list(lost_signs("weight", stored, fmt))
    draws = seed_tensor(seed, stored.device) if fmt.rounding == "stochastic" else None
    if (done := by_kernel(stored, fmt, draws, top)) is not None:
        outside, scales = clipped(stored, done.qparams, fmt), done.qparams.scale.numel()
        notes += told_of_clipped(outside, scales, fmt)
        return QTensor(*done, fmt, stored.shape[-1] if stored.ndim else 1), notes
    ranges = block_ranges(stored, fmt)
    outer = None if top is None else outer_of(top, fmt, stored.shape)
    outside = int(saturates(ranges.low, ranges.high, fmt, outer).sum())
    notes += told_of_clipped(outside, ranges.low.numel(), fmt)
    if outer is None:
        return quantize(stored, fmt, seed=draws), notes
    with subnormals_kept():
        qparams = reference.qparams_from_range(*ranges, fmt, outer)
        qparams = reference.settled(stored, ranges, qparams, fmt)
    packed = primitives.quantize(stored, quantizer(qparams, fmt, draws))
    return QTensor(packed, qparams, fmt, stored.shape[-1]), notes


def put(model: nn.Module, plans: Sequence[ParameterPlan], weights: Sequence[QWeight]) -> None:
    """Hold the weights where their parameters are; all of them, or the model is as it was."""
    before = [(module, module.__class__, dict(module._parameters), dict(module._modules))
              for plan in plans for name in plan.names
              for module in [model.get_submodule(name.rpartition(".")[0])]]  # fmt: skip
    try:
        for plan, weight in zip(plans, weights, strict=True):
            for name in plan.names:
                owner, _, attribute = name.rpartition(".")
                hold(model.get_submodule(owner), attribute, weight)
    except BaseException:
        for module, kind, parameters, modules in reversed(before):
            module.__class__ = kind
            module._parameters.clear()
            module._parameters.update(parameters)
            module._modules.clear()
            module._modules.update(modules)
            parameters_again(module)
        raise
