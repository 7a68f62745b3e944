# SPDX-License-Identifier: BSD-3-Clause
"""Quantized parameters that belong to no layer: single ones, and stacks of matrices."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from blockscale.core import reference
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.joined_weights import Member, group_note, outer_of, sharing
from blockscale.core.ledger import Entry
from blockscale.core.operand import quantizer
from blockscale.core.pack import stack_layout, stored_bytes, stored_shape, to_stored
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.rules import matches
from blockscale.layers.decisions import Weight, decide, why_adapter, why_not_weight
from blockscale.layers.held_parameters import hold, parameters_again
from blockscale.layers.plan import Decision
from blockscale.layers.saturation import (
    block_ranges,
    by_kernel,
    clipped,
    clipping_note,
    lost_signs,
    odd_values_note,
    saturates,
)
from blockscale.layers.store import QWeight, StackInput
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

    input: the format of rows that meet a stack of experts, None where they stay in float
    parts: of how many matrices each of its stack consists, which share their outer scale
    outer_group: the names of all parameters that share its outer scale, itself among them, or none
    """

    names: tuple[str, ...]
    parameter: Tensor
    format: Format
    layout: str
    entry: Entry
    parts: int = 1
    outer_group: tuple[str, ...] = ()
    input: Format | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def plan_parameters(
    model: nn.Module, decisions: Iterable[Decision], recipe: Recipe
) -> list[ParameterPlan | Entry]:
    """A plan for each parameter of no layer that is to be quantized, an entry for each other.

    Raises ValueError for a recipe that names single experts of a stack.
    """
    results = list(_plans(model, decisions, recipe))
    members = {
        each.name: Member(
            each.format, stored_shape(each.parameter.shape, each.layout), parts=each.parts
        )
        for each in results
        if isinstance(each, ParameterPlan)
    }
    groups, alone = sharing([each.name for each in results], members, recipe.fused)

    def one(plan: ParameterPlan | Entry) -> ParameterPlan | Entry:
        if not isinstance(plan, ParameterPlan):
            return plan
        group = groups.get(plan.name, ())
        note = group_note(plan.name, group, alone.get(plan.name, ""))
        details = "; ".join(filter(None, [plan.entry.details, note]))
        return replace(plan, outer_group=group, entry=replace(plan.entry, details=details))

    return [one(each) for each in results]


def _plans(
    model: nn.Module, decisions: Iterable[Decision], recipe: Recipe
) -> Iterator[ParameterPlan | Entry]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    stacks_by_name = stacks(model)
    for name, parameter, entry in _others(model, decisions):
        every, stack = tuple(names[id(parameter)]), stacks_by_name.get(name, PLAIN)
        owner = model.get_submodule(name.rpartition(".")[0])
        refusal = _why_not(owner, parameter)
        weight = describe_weight(model, every, parameter, refusal)._replace(
            layout=stack.layout, parts=stack.parts
        )
        outcome = decide(weight, recipe)
        if outcome.format is None:
            yield replace(entry, status=outcome.status, reason=outcome.reason)
            continue
        scheme, _ = recipe.decide(name)
        if name in stacks_by_name and len(parameter.shape) == 3:
            _check_one_format(name, parameter.shape[0], recipe)
        experts = name in stacks_by_name and of_experts(name, type(owner).__name__)
        by = scheme.input if experts else None
        result = replace(
            entry,
            status="quantized",
            weight=str(outcome.format),
            input="" if by is None else str(by),
            **_left_in_float(owner, scheme, experts=experts),
        )
        yield ParameterPlan(
            every, parameter, outcome.format, stack.layout, result, stack.parts_that_share, input=by
        )


def _check_one_format(name: str, count: int, recipe: Recipe) -> None:
    """Raise ValueError where a recipe names single experts of a stack: by their number, which more
    letters behind it would hide from the pattern, as they would not from `*0*`."""
    patterns = [each for each in (*recipe.skip, *recipe.layer_rules) if not matches(each, name)]
    for pattern, e in product(patterns, range(count)):
        if matches(pattern, f"{name}.{e}") and not matches(pattern, f"{name}.{e}_"):
            raise ValueError(
                f"the pattern {pattern!r} names expert {e} of {name}, a stack of {count}, "
                f"and a stack has one format: name the stack, as {name!r}, or quantize a "
                "model that has its experts in a list of modules"
            )


def _left_in_float(owner: nn.Module, scheme: Scheme, *, experts: bool) -> dict[str, Any]:
    """What the ledger says of inputs and outputs that have a format and stay in float."""
    if experts:
        text = "output left in float: the products of experts are not called one by one"
        return {"reason": text if scheme.output else ""}
    alone = "only its weight is quantized: the layer is read, not called"
    text = f"input left in float: {type(owner).__name__} computes with it directly"
    return {
        "details": alone if scheme.input or scheme.output else "",
        "reason": text if scheme.input else "",
    }


def describe_weight(
    model: nn.Module, names: tuple[str, ...], parameter: Tensor, refusal: str = ""
) -> Weight:
    """A parameter of no layer, as decisions know it; refusal: why it cannot be held in codes."""
    shape, dtype = tuple(parameter.shape), parameter.dtype
    adapter = why_adapter(model, names[0])
    return Weight(names[0], names, "parameter", shape, dtype, stays=adapter, refusal=refusal)


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
        refusal = f"{owner} uses it directly, not through a layer that can hold codes"
        outcome = decide(describe_weight(model, (name,), parameter, refusal), recipe)
        yield replace(entry, status=outcome.status, reason=outcome.reason)


def _others(
    model: nn.Module, plans: Iterable[Decision]
) -> Iterator[tuple[str, nn.Parameter, Entry]]:
    ids = {id(p) for plan in plans for p in plan.owned}
    for name, parameter in model.named_parameters():
        if id(parameter) in ids or nn.parameter.is_lazy(parameter):
            continue
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        size = stored_bytes(parameter)
        entry = Entry(name, f"parameter of {owner}", "kept", elements=parameter.numel())
        yield name, parameter, replace(entry, bytes_before=size, bytes_after=size)


def entries_of(plans: Iterable[ParameterPlan | Entry]) -> list[Entry]:
    """What the ledger says of them before anything is done."""
    return [each.entry if isinstance(each, ParameterPlan) else each for each in plans]


def quantized(
    plan: ParameterPlan,
    seed: int | None,
    qweight: QWeight | None = None,
    top: Tensor | None = None,
) -> tuple[QWeight, Entry]:
    """A parameter in codes, `made` if they are there, and its entry with what a user should know
    of it. The input of experts has dynamic scales.

    top: the largest numerator of all that share its outer scale (layers.assembly)
    """
    weight, entry = (qweight, plan.entry) if qweight is not None else _quantize(plan, seed, top)
    if plan.input is not None:
        weight.set_input(StackInput(plan.input))
    return weight, replace(entry, bytes_after=weight.nbytes)


def _quantize(plan: ParameterPlan, seed: int | None, top: Tensor | None) -> tuple[QWeight, Entry]:
    fmt, parameter = plan.format, plan.parameter
    stored = to_stored(parameter.detach(), plan.layout)
    notes = [odd] if (odd := odd_values_note(stored)) else []
    q, more = quantize_parameter(
        stored, fmt, None if seed is None else named_seed(seed, plan.name), top
    )
    weight = QWeight(q, tuple(parameter.shape), parameter.dtype, plan.layout)
    weight.name = plan.name
    return weight, replace(plan.entry, notes=(*notes, *more))


def quantize_parameter(
    stored: Tensor, fmt: Format, seed: int | None, top: Tensor | None = None
) -> tuple[QTensor, list[str]]:
    """A weight as it is stored, in codes, and what a user should know about it in this format.

    top: the largest numerator of all weights that share its outer scale, which it decides
    """
    notes = list(lost_signs("weight", stored, fmt))
    draws = seed_tensor(seed, stored.device) if fmt.rounding == "stochastic" else None
    if (result := by_kernel(stored, fmt, draws, top)) is not None:
        outside, scales = clipped(stored, result.qparams, fmt), result.qparams.scale.numel()
        notes += clipping_note(outside, scales, fmt)
        return QTensor(*result, fmt, stored.shape[-1] if stored.ndim else 1), notes
    ranges = block_ranges(stored, fmt)
    outer = None if top is None else outer_of(top, fmt, stored.shape)
    outside = int(saturates(ranges.low, ranges.high, fmt, outer).sum())
    notes += clipping_note(outside, ranges.low.numel(), fmt)
    if outer is None:
        return quantize(stored, fmt, seed=draws), notes
    with subnormals_kept():
        qparams = reference.qparams_from_range(*ranges, fmt, outer)
        qparams = reference.settle(stored, ranges, qparams, fmt)
    packed = primitives.quantize(stored, quantizer(qparams, fmt, draws))
    return QTensor(packed, qparams, fmt, stored.shape[-1]), notes


def put_weights(
    model: nn.Module, plans: Sequence[ParameterPlan], weights: Sequence[QWeight]
) -> None:
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


# Which way the matrices of a stacked parameter lie, and of how many matrices each is made.
#
# A parameter [E, n, k] is a stack of E matrices with blocks along k, the sum. What else there is to
# know of it, its shape does not tell: whether the model has [E, k, n] instead (gpt-oss, Llama 4),
# and whether a file of the hub has each matrix in parts, the gate and the up projection of an
# expert, which transformers joins when it loads them (Mixtral, Qwen, DeepSeek, OLMoE). The parts
# are quantized each by itself, so that a model and its files get the same bits.

# What modules of experts, or their classes, are called (JetMoeParallelExperts, DbrxExpertGLU)
_EXPERTS = re.compile("expert|moe", re.IGNORECASE)


def of_experts(*names: str) -> bool:
    """Whether a stack belongs to experts, by its name, its class's or its model's type: matrices
    that rows of inputs are multiplied by, whose input may have a format."""
    return any(_EXPERTS.search(each) for each in names)


# Classes whose stacks are [E, k, n], beside those that say `is_transposed`
_TRANSPOSED = ("Llama4TextExperts",)
# Classes whose stacks are matrices [E * n, k], and the attribute that is E; and those of their
# parameters in which a matrix is [k, n], of the product x @ w
_JOINED = {"DbrxExpertGLU": "moe_num_experts"}
JOINED_TURNED = ("w2",)


class Stack(NamedTuple):
    """layout: of blockscale.core.pack; parts: as blockscale.core.joined_weights.of_stack.

    fused: whether servers compute the parts as one, as gate and up (core.joined_weights)
    """

    layout: str = "plain"
    parts: int = 1
    fused: bool = False

    @property
    def parts_that_share(self) -> int:
        """Of how many parts a matrix consists that share their outer scale."""
        return self.parts if self.fused else 1


PLAIN = Stack()


def stacks(model: nn.Module) -> dict[str, Stack]:
    """{parameter: what is known of it} of a model's stacks of matrices.

    These are its parameters of three dimensions, and of two where a matrix is a joined stack.
    """
    joints = joined_rows(model)
    data = {}
    for prefix, module in model.named_modules():
        for own, parameter in module._parameters.items():
            name = f"{prefix}.{own}" if prefix else own
            layout = "transposed" if _transposed(module) else "plain"
            if parameter is None:
                continue
            if parameter.ndim == 3:
                rows = 2 if layout == "transposed" else 1
                parts = next((n for end, dim, n in joints if _ends(name, end) and dim == rows), 1)
                data[name] = Stack(layout, parts, parts > 1)
            elif parameter.ndim == 2 and (experts := _JOINED.get(type(module).__name__)):
                data[name] = joined_stack(own, int(getattr(module, experts)))
    return data


def joined_stack(name: str, count: int) -> Stack:
    """Of a parameter of matrices that lie one below another."""
    return Stack(stack_layout(count)) if name in JOINED_TURNED else Stack("plain", count)


def _transposed(module: Any) -> bool:
    """Whether a module's stacks are [E, k, n]."""
    return type(module).__name__ in _TRANSPOSED or getattr(module, "is_transposed", False) is True


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def joined_rows(model: nn.Module) -> list[tuple[str, int, int]]:
    """What transformers joins when it loads a model: (end of the parameter's name, the dimension
    along which it concatenates, how many tensors of the file).

    Empty for models that are not of transformers, whose files have their parameters as they are.
    """
    results = []
    for each in _conversions(model):
        operations = getattr(each, "operations", ())
        targets, sources = each.target_patterns, each.source_patterns
        dims = [op.dim for op in operations if type(op).__name__ == "Concatenate"]
        if len(targets) == 1 and len(sources) > 1 and len(dims) == 1 and "\\" not in targets[0]:
            results.append((targets[0].lstrip("."), int(dims[0]), len(sources)))
    return results


def _conversions(model: nn.Module) -> Iterator[Any]:
    """What transformers does with the tensors of a file, of each of its models in this one."""
    modeling = sys.modules.get("transformers.modeling_utils")
    mapping = sys.modules.get("transformers.conversion_mapping")
    conversions = getattr(mapping, "get_model_conversion_mapping", None)  # of transformers 5
    if modeling is None or conversions is None:
        return
    of_transformers = modeling.PreTrainedModel
    inside: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, of_transformers) and not any(_within(name, n) for n in inside):
            inside.append(name)
            yield from conversions(module, add_legacy=False)


def _within(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")
