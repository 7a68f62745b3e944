# SPDX-License-Identifier: BSD-3-Clause
"""What is chosen from the statistics of layers' inputs: Before modules and weights' codes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from blockscale.calibration.algorithms import Transform, WeightAlgorithm
from blockscale.calibration.block_calls import BlockAlgorithm
from blockscale.calibration.input_stats import InputStats, InputStatsCollector
from blockscale.calibration.mixing import place_of
from blockscale.calibration.places import share
from blockscale.calibration.session import Session, has_rows, of_a_stack, width
from blockscale.core.pack import to_stored
from blockscale.core.recipe import Scheme
from blockscale.layers.apply import swap
from blockscale.layers.assembly import beside_rows, settle_top
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Plan
from blockscale.layers.store import QWeight
from blockscale.ops.tensor import QTensor

if TYPE_CHECKING:
    from blockscale.layers.before import Before


Item = TypeVar("Item")


def groups(
    items: Iterable[Item],
    size: Callable[[Item], float],
    budget: float,
    place: Callable[[Item], object] = lambda _: None,
) -> list[list[Item]]:
    """Items in groups of neighbours that are in one place and whose sizes fit into the budget."""
    gathered: list[list[Item]] = []
    used, last = 0.0, None
    for item in items:
        needed, here = size(item), place(item)
        if not gathered or here != last or (used and used + needed > budget):
            gathered.append([])
            used = 0.0
        gathered[-1].append(item)
        used, last = used + needed, here
    return gathered


def statistics_bytes(plan: Plan) -> float:
    """Bytes that the statistics of a layer's input need."""
    return InputStatsCollector.nbytes(width(plan)) if has_rows(plan) else 0


def side_by_side(model: nn.Module) -> Callable[[Plan], str]:
    """The place of a layer: its parent module, as query, key and value have one; but each child of
    an nn.Sequential or nn.ModuleList is a place of its own. A stack of experts is a place, and so
    are the experts of a list."""

    def place(plan: Plan) -> str:
        if of_a_stack(plan):  # gate and up of all experts, and after them all down
            stack, _ = plan.module.of_stack  # type: ignore[misc]
            return str(stack.name)
        if (experts := place_of(plan)) is not None:
            return experts[0].rpartition(".")[0]
        parent = plan.name.rpartition(".")[0]
        one_by_one = isinstance(model.get_submodule(parent), nn.Sequential | nn.ModuleList)
        return plan.name if one_by_one else parent

    return place


def choose_before(
    session: Session, transform: Transform | None, layer_groups: Sequence[Sequence[Plan]]
) -> None:
    """What each layer's input goes through first: nothing for those that saw no data."""
    if transform is None:
        return
    tell_untransformed(session, transform, layer_groups)
    for group in layer_groups:
        transform_layers(session, transform, group, session.statistics(group))


def tell_untransformed(
    session: Session, transform: Transform, layer_groups: Sequence[Sequence[Plan]]
) -> None:
    """Say of the layers in none of these groups why they are not transformed."""
    fit = {plan.name for group in layer_groups for plan in group}
    for plan in session.layers:
        if plan.kind.takes_input and plan.name not in fit:
            why = (
                "its convolution has groups" if plan.owns_weight and not plan.tied else "it is tied"
            )
            if of_a_stack(plan):
                why = "experts in a stack have one input each and hold nothing before it"
            session.details[plan.name].append(f"{transform.name}: not transformed, {why}")


def transform_layers(
    session: Session, transform: Transform, group: Sequence[Plan], stats: Mapping[str, InputStats]
) -> None:
    """What these layers' inputs go through first, from the statistics of those that saw data."""

    def choose() -> None:
        for plan in group:
            if session.ranks.owns(plan.name):
                _transform_layer(session, transform, plan, stats.get(plan.name))

    share(session, group, choose)


def _transform_layer(
    session: Session, transform: Transform, plan: Plan, stats: InputStats | None
) -> None:
    if stats is None:
        why = "not transformed: it saw no data"
        session.details[plan.name].append(f"{transform.name}: {why}")
        return
    before, done = transform.prepare(
        weight_of(plan), plan.format, plan.scheme.input, stats, plan.name
    )
    session.places[plan.name].before = cast("Before | None", before)
    session.details[plan.name] += [f"{transform.name}: {each}" for each in done]


def choose_weights(
    session: Session,
    algorithm: WeightAlgorithm | None,
    layer_groups: Sequence[Sequence[Plan]],
    *,
    sequential: bool,
) -> None:
    """The codes of every weight, group by group.

    sequential: while a group is looked at, the weights of the groups before are quantized ones.
    """
    if algorithm is None:
        return
    old: dict[str, nn.Module] = {}
    try:
        for group in layer_groups:
            session.deal(group)
            grams = _grams(session, algorithm, group)
            share(session, group, partial(_choose_each, session, algorithm, group, grams))
            if sequential and algorithm.needs_gram:
                layers = weights_only(session, group)
                old |= {name: session.model.get_submodule(name) for name in layers}
                swap(session.model, layers)
    finally:
        swap(session.model, old)


def _choose_each(
    session: Session, algorithm: WeightAlgorithm, group: Sequence[Plan], grams: Mapping[str, Tensor]
) -> None:
    for plan in group:
        if plan.owns_weight:
            choose_weight(session, algorithm, plan, grams.get(plan.name))


def choose_weights_from(
    session: Session,
    algorithm: WeightAlgorithm | BlockAlgorithm | None,
    grams: Mapping[str, Tensor],
) -> None:
    """The codes of every weight from statistics that are there already."""
    if algorithm is not None:
        _choose_each(session, cast("WeightAlgorithm", algorithm), session.layers, grams)


def _grams(
    session: Session, algorithm: WeightAlgorithm, group: Sequence[Plan]
) -> dict[str, Tensor]:
    plans = [plan for plan in group if has_rows(plan)]
    if not algorithm.needs_gram or not plans:
        return {}
    return session.grams(plans)


def choose_weight(
    session: Session, algorithm: WeightAlgorithm, plan: Plan, gram: Tensor | None
) -> None:
    """The codes of a layer's weight, which it owns; none by what only chooses for blocks, and none
    where another process chooses for the layer."""
    if not session.ranks.owns(plan.name):
        settle_top(plan, session.named, session.places)
        return
    if not callable(getattr(algorithm, "quantize", None)):
        session.notes[plan.name].append(
            f"plain rounding: it is in no block that {algorithm.name} processes"
        )
        return
    place = session.places[plan.name]
    stored = weight_of(plan)
    if place.before is not None:
        stored = place.before.to_weight(stored)
    settle_top(plan, session.named, session.places)
    notes: list[str] = []
    drift = session.drifts.pop(plan.name, None)
    more = {"drift": drift} if getattr(algorithm, "needs_drift", False) else {}

    def choose(weight: Tensor) -> QTensor:
        q, told = algorithm.quantize(weight, plan.format, gram, plan.name, **more)
        notes.extend(told)
        return q

    place.weight = beside_rows(stored, plan.format, place.top, choose)
    session.details[plan.name].append(f"weight by {algorithm.name}")
    if not algorithm.needs_gram or plan.kind.takes_input:
        session.notes[plan.name] += notes
    else:  # a table has no inputs to know of, and that is nothing to warn of
        session.details[plan.name] += notes


def weight_of(plan: Plan) -> Tensor:
    """A layer's weight as it is stored [n, k], in float32."""
    return to_stored(plan.parameter.detach(), plan.layout).to(torch.float32)


def weights_only(session: Session, group: Sequence[Plan]) -> dict[str, QLayer]:
    """{name: the layer with its weight quantized, and nothing else}."""
    layers: dict[str, QLayer] = {}
    for plan in group:
        place, parameter = session.places[plan.name], plan.parameter
        if place.weight is None:  # it shares another layer's codes
            continue
        q = QWeight(place.weight, tuple(parameter.shape), parameter.dtype, plan.layout)
        layer = plan.kind.from_float(plan.module, q, Scheme(weight=plan.scheme.weight))
        if place.before is not None:
            layer.set_before(place.before)
        layer.take_place_of(plan.module)
        layers |= dict.fromkeys(plan.names, layer)
    return layers
