# SPDX-License-Identifier: BSD-3-Clause
"""Experts: the stacks of a model as layers for a while, the codes of these layers as stacks again,
and what the ledger says of experts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from blockscale.calibration.matrices import Matrices, read_as_before, read_as_views
from blockscale.calibration.mixing import TOLD, sets_of
from blockscale.calibration.session import Session, changed_weight_message
from blockscale.core.joined_weights import of_stack
from blockscale.core.ledger import Entry
from blockscale.core.pack import inputs_first, of_joined_stack, stored_shape, to_stored
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.reference import QParams
from blockscale.layers.assembly import Supplied
from blockscale.layers.kinds import quantized_class
from blockscale.layers.parameters import PLAIN, ParameterPlan, stacks
from blockscale.layers.plan import Plan
from blockscale.layers.saturation import lost_signs, odd_values_note
from blockscale.layers.store import QWeight, StackInput
from blockscale.ops.tensor import QTensor


@dataclass(frozen=True, eq=False)
class Stacked:
    """A stack that is to be quantized, and a plan for each of its matrices, or of their parts."""

    plan: ParameterPlan
    matrices: Matrices
    layers: tuple[Plan, ...]

    def weight(self, places: Mapping[str, Supplied]) -> QWeight | None:
        """The codes of all, as the stack holds them; None where not all of them were chosen."""
        weights = [places[each.name].weight for each in self.layers]
        codes = [each for each in weights if each is not None]
        if len(codes) < len(weights):
            return None
        parameter, fmt, layout = self.plan.parameter, self.plan.format, self.plan.layout
        shape = stored_shape(parameter.shape, layout)
        parts: dict[str, Any] = {}
        for name, (_, own) in fmt.stored(shape).items():
            parts[name] = torch.cat([getattr(q.qparams, name) for q in codes]).reshape(own)
        packed = torch.cat([q.packed for q in codes]).reshape(fmt.packed(shape)[1])
        q = QTensor(packed, QParams(**{"scale": None} | parts), fmt, shape[-1])
        weight = QWeight(q, tuple(parameter.shape), parameter.dtype, layout)
        weight.name = self.plan.name
        return weight

    def input(self, places: Mapping[str, Supplied]) -> StackInput | None:
        """Its static input, of each matrix its own; None where not all of them were chosen."""
        fmt, first = self.plan.input, next(iter(sets_of(self.layers).values()), {})
        each = [places[first[e].name].input for e in sorted(first)]
        if fmt is None or not each or any(one is None or not one.static for one in each):
            return None
        result = StackInput(fmt).to(self.plan.parameter.device)
        result.set_each([one for one in each if one is not None])
        return result

    def notes(self) -> list[str]:
        """What a user should know of its weights in this format."""
        stored = to_stored(self.plan.parameter.detach(), self.plan.layout)
        odd = odd_values_note(stored)
        return [odd] * bool(odd) + list(lost_signs("weight", stored, self.plan.format))


@contextmanager
def split_stacks(
    model: nn.Module, decisions: Sequence[ParameterPlan | Entry], recipe: Recipe
) -> Iterator[list[Stacked]]:
    """As long as this lasts, each stack of `decisions` is read by the model's code as a view whose
    products are calls of layers; then the parameters are in their places again."""
    triples = list(_stacked(model, decisions, recipe))
    of_modules: dict[nn.Module, dict[str, Matrices]] = {}
    for each in triples:
        for owner, _, attribute in (name.rpartition(".") for name in each.plan.names):
            of_modules.setdefault(model.get_submodule(owner), {})[attribute] = each.matrices
    before = [
        (module, module.__class__, dict(module._parameters), dict(module._modules))
        for module in of_modules
    ]
    try:
        for module, own in of_modules.items():
            read_as_views(module, own)
        for each in triples:
            each.matrices.home._modules.update(each.matrices.layers)
        yield triples
    finally:
        for module, kind, parameters, modules in before:
            read_as_before(module, kind)
            module._parameters.clear()
            module._parameters.update(parameters)
            module._modules.clear()
            module._modules.update(modules)


_NOT = nn.RNNBase | nn.Sequential | nn.ModuleList | nn.ModuleDict | torch.jit.ScriptModule


def _stacked(
    model: nn.Module, decisions: Sequence[ParameterPlan | Entry], recipe: Recipe
) -> Iterator[Stacked]:
    layouts, triples = stacks(model), []
    for plan in decisions:
        if not isinstance(plan, ParameterPlan) or plan.parameter.is_meta:
            continue
        stack, shape = layouts.get(plan.name, PLAIN), tuple(plan.parameter.shape)
        transposed = of_joined_stack(plan.layout)
        is_matrix = len(shape) == 2 and max(transposed, stack.parts - 1)
        if not is_matrix and len(shape) != 3:
            continue
        count, parts = (transposed or stack.parts, 1) if is_matrix else (shape[0], stack.parts)
        owner = model.get_submodule(plan.name.rpartition(".")[0])
        if 0 in shape or isinstance(owner, _NOT):
            continue
        matrices = Matrices(plan.name, owner, count, parts, transposed=inputs_first(plan.layout))
        scheme = recipe.decide(plan.name)[0]
        fmt = scheme.weight
        stored = stored_shape(shape, plan.layout)
        if fmt is None or of_stack(fmt, stored, stack.parts) != plan.format:
            continue
        triples.append((plan, matrices, Scheme(weight=fmt, input=plan.input)))
    of = {plan.name: matrices for plan, matrices, _ in triples}
    for plan, matrices, scheme in triples:
        layers = (
            _layer(matrices, key, scheme, _together(plan, e, of))
            for e, keys in enumerate(matrices.keys)
            for key in keys
        )
        yield Stacked(plan, matrices, tuple(layers))


def _together(plan: ParameterPlan, e: int, of: Mapping[str, Matrices]) -> tuple[str, ...]:
    """The names of all layers that share the outer scale of expert e."""
    some = [of[name] for name in plan.outer_group if name in of]
    names = [_name(each, key) for each in some for key in each.keys[e]]
    return tuple(names) if len(names) > 1 else ()


def _name(matrices: Matrices, key: str) -> str:
    """The name of a layer in the model."""
    owner, dot, _ = matrices.name.rpartition(".")
    return f"{owner}{dot}{key}"


def number_of(plan: Plan) -> int:
    """Which matrix of its stack a layer is, or is part of."""
    _, number = plan.module.of_stack  # type: ignore[misc]
    return int(number)


def _layer(matrices: Matrices, key: str, scheme: Scheme, group: tuple[str, ...]) -> Plan:
    module = matrices.layers[key]
    name, weight, fmt = _name(matrices, key), module.weight, scheme.weight
    kind = quantized_class(module)
    assert kind is not None and fmt is not None
    entry = Entry(name, "expert", "quantized", elements=weight.numel())
    return Plan(
        (name,), module, (weight,), entry, scheme, fmt, kind, weight, "plain", tied=False,
        outer_group=group,
    )  # fmt: skip


def same_modules(before: Mapping[str, nn.Module], model: nn.Module) -> None:
    """Raise RuntimeError where a model has other modules than before it was calibrated."""
    now = dict(model.named_modules(remove_duplicate=False))
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) is not now.get(name):
            raise RuntimeError(changed_weight_message(name))


# What the ledger says of experts: how many tokens each saw, and what was done for those of few.

_NAMED = 8  # experts that are named one by one


class StackNotes(NamedTuple):
    """What is said of one stack."""

    details: list[str]
    notes: list[str]


def tell_lists(session: Session) -> None:
    """Say of the experts of lists of modules, at the first of each list's layers, what they saw."""
    in_lists = [plan for plan in session.layers if not hasattr(plan.module, "of_stack")]
    for some in sets_of(in_lists).values():
        if len(some) > 1:
            details, notes = _coverage(session, some)
            first = some[min(some)].name
            session.details[first] += details
            session.notes[first] += notes


_STREAMED = (
    "plain rounding: source= reads the weights of one block at a time, and the matrices of a stack "
    "are not calibrated so: load the weights and leave source= out to calibrate experts"
)


def streamed_stacks(
    model: nn.Module, decisions: Sequence[ParameterPlan | Entry]
) -> dict[str, "StackNotes"]:
    """{stack: what is said of it} where the weights are read block by block."""
    layouts = stacks(model)
    names = [plan.name for plan in decisions if isinstance(plan, ParameterPlan)]
    return {name: StackNotes([_STREAMED], []) for name in names if name in layouts}


def stacks_of(session: Session, stacks: Sequence[Stacked]) -> dict[str, StackNotes]:
    """Put the codes of stacks together, into `session.made`; {stack: what is said of it}.

    Afterwards the session knows nothing of the layers that their matrices were.
    """
    notes = {stack.plan.name: _of_stack(session, stack) for stack in stacks}
    names = {plan.name for stack in stacks for plan in stack.layers}
    for entries in (session.places, session.details, session.notes, session.by_name):
        for name in names:
            del entries[name]
    session.layers = [plan for plan in session.layers if plan.name not in names]
    if session.coverage is not None:
        layers = session.coverage.layers
        session.coverage.layers = {n: counts for n, counts in layers.items() if n not in names}
    return notes


def _of_stack(session: Session, stack: Stacked) -> StackNotes:
    if not any(session.tokens.get(plan.name) for plan in stack.layers) and stack.matrices.unseen:
        how = ", ".join(sorted(stack.matrices.unseen))
        return StackNotes(
            [f"plain rounding: its products are not seen (the model reads its floats: {how}); "
             "make it call F.linear, matmul or grouped_mm with one expert, or all"], []
        )  # fmt: skip
    weight: QWeight | None = stack.weight(session.places)
    static = stack.input(session.places)
    numbers = {plan.name: number_of(plan) for plan in stack.layers}
    details = _alike(numbers, session.details)
    notes = _alike(numbers, session.notes)
    first = next(iter(sets_of(stack.layers).values()))
    more, few = _coverage(session, first)
    notes = [note for note in notes if "saw no data in" not in note]
    if static is not None:
        session.places[stack.plan.name] = Supplied(input=static)
    elif stack.plan.input is not None:
        details = [*details, "dynamic input"]
    if weight is None:
        details = ["plain rounding", *details]
    else:
        session.weights[stack.plan.name] = weight
        notes += stack.notes()
    return StackNotes([*details, *more], [*few, *notes])


def _alike(numbers: Mapping[str, int], lines: Mapping[str, list[str]]) -> list[str]:
    """What is said of matrices, each sentence once: of all, or of which."""
    who: dict[str, list[int]] = {}
    for name, number in numbers.items():
        for each in lines[name]:
            who.setdefault(each, []).append(number)
    every = set(numbers.values())
    return [
        text if set(some) == every else f"{_experts(dict.fromkeys(some))}: {text}"
        for text, some in who.items()
    ]


def _coverage(session: Session, some: Mapping[int, Plan]) -> tuple[list[str], list[str]]:
    """Of the experts of one set: details and notes."""
    tokens = {
        e: session.tokens[plan.name] for e, plan in some.items() if plan.name in session.tokens
    }
    if not tokens:
        return [], []
    counts = sorted(tokens.values())
    details = [
        f"tokens per expert: least {counts[0]}, median {median(counts):g}, most {counts[-1]}"
    ]
    notes: list[str] = []
    if session.mixing.every:
        details.append(TOLD)
    if nothing := [e for e, count in tokens.items() if not count]:
        notes.append(f"{_experts(nothing)} of {len(some)} saw no token")
    mixing = session.mixing
    mixes = {e: mixing.own[plan.name] for e, plan in some.items() if plan.name in mixing.own}
    if mixes:
        few = [f"{e} ({count})" for e, count in mixes.items()]
        details.append(
            f"{_experts(few)} of {len(some)} saw fewer than {mixing.minimum} tokens: their "
            f"statistics are filled up to as many with those of all experts"
        )
    return details, notes


def _experts(numbers: Iterable[object]) -> str:
    texts = [str(each) for each in numbers]
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"expert{'s' * (len(texts) > 1)} {', '.join(texts[:_NAMED])}{more}"
