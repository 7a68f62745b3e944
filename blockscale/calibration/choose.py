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
from blockscale.calibration.places import from_bytes, packed, to_bytes, unpack
from blockscale.calibration.session import Session, has_rows, of_a_stack, width
from blockscale.core.pack import to_stored
from blockscale.core.recipe import Scheme
from blockscale.layers.apply import swap
from blockscale.layers.assembly import beside_rows, settle_top, with_rows
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


def share(session: Session, plans: Sequence[Plan], choose: Callable[[], object]) -> None:
    """choose(), and then what owners have chosen for these layers is chosen in every process.

    Raises in every process what choose() raises in one; RuntimeError, in every process, if one of
    them received something else than its owner chose.
    """
    ranks = session.ranks
    if ranks.alone:
        choose()
        return

    def own() -> dict[str, bytes]:
        choose()
        return {p.name: to_bytes(*packed(p, session)) for p in plans if ranks.owns(p.name)}

    result = ranks.spread(own)
    for plan in plans:
        unpack(plan, session, *from_bytes(result[plan.name]))


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
            share(session, group, partial(choose_each, session, algorithm, group, grams))
            if sequential and algorithm.needs_gram:
                layers = weights_only(session, group)
                old |= {name: session.model.get_submodule(name) for name in layers}
                swap(session.model, layers)
    finally:
        swap(session.model, old)


def choose_weights_from(
    session: Session,
    algorithm: WeightAlgorithm | BlockAlgorithm | None,
    grams: Mapping[str, Tensor],
) -> None:
    """The codes of every weight from statistics that are there already."""
    if algorithm is not None:
        choose_each(session, cast("WeightAlgorithm", algorithm), session.layers, grams)


def _grams(
    session: Session, algorithm: WeightAlgorithm, group: Sequence[Plan]
) -> dict[str, Tensor]:
    plans = [plan for plan in group if has_rows(plan)]
    if not algorithm.needs_gram or not plans:
        return {}
    return session.grams(plans)


def choose_each(
    session: Session, algorithm: WeightAlgorithm, plans: Sequence[Plan], grams: Mapping[str, Tensor]
) -> None:
    """The codes of layers' weights, of those that own one; none by what only chooses for blocks,
    and none where another process chooses for the layer."""
    own = []
    for plan in plans:
        if not plan.owns_weight:
            continue
        settle_top(plan, session.named, session.places)
        if not session.ranks.owns(plan.name):
            continue
        if callable(getattr(algorithm, "quantize", None)):
            own.append(plan)
        else:
            session.notes[plan.name].append(
                f"plain rounding: it is in no block that {algorithm.name} processes"
            )
    for some in _alike(session, algorithm, own):
        _choose_together(session, algorithm, some, grams)


def _alike(session: Session, algorithm: WeightAlgorithm, plans: Sequence[Plan]) -> list[list[Plan]]:
    """Layers that the algorithm chooses for in one call: of one shape and format, as many as it
    works on side by side."""
    count = getattr(algorithm, "beside", None)
    if count is None:
        return [[plan] for plan in plans]
    sets: dict[tuple[object, ...], list[list[Plan]]] = {}
    for plan in plans:
        top = session.places[plan.name].top
        rows = plan.parameter.numel() // width(plan) + (top is not None)
        key = str(plan.format), rows, width(plan), plan.parameter.device
        groups_of = sets.setdefault(key, [[]])
        if len(groups_of[-1]) >= count(plan.format, (rows, width(plan))):
            groups_of.append([])
        groups_of[-1].append(plan)
    return [some for each in sets.values() for some in each]


def _choose_together(
    session: Session, algorithm: WeightAlgorithm, plans: Sequence[Plan], grams: Mapping[str, Tensor]
) -> None:
    """The codes of layers of one shape and format."""
    stored = [_weight_before(session, plan) for plan in plans]
    tops = [session.places[plan.name].top for plan in plans]
    drifts = [session.drifts.pop(plan.name, None) for plan in plans]
    fmt, own = plans[0].format, [grams.get(plan.name) for plan in plans]
    weights = [with_rows(x, fmt, top) for x, top in zip(stored, tops, strict=True)]
    names = [plan.name for plan in plans]
    each = getattr(algorithm, "quantize_each", None)
    if each is not None:
        results = each(weights, fmt, own, names, drifts)
    else:
        more = {"drift": drifts[0]} if getattr(algorithm, "needs_drift", False) else {}
        results = [algorithm.quantize(weights[0], fmt, own[0], names[0], **more)]
    for plan, x, (q, notes) in zip(plans, stored, results, strict=True):
        place = session.places[plan.name]
        place.weight = beside_rows(x, fmt, place.top, partial(_chosen, q))
        session.details[plan.name].append(f"weight by {algorithm.name}")
        if not algorithm.needs_gram or plan.kind.takes_input:
            session.notes[plan.name] += notes
        else:  # a table has no inputs to know of, and that is nothing to warn of
            session.details[plan.name] += notes


def _chosen(q: QTensor, weight: Tensor) -> QTensor:
    del weight
    return q


def _weight_before(session: Session, plan: Plan) -> Tensor:
    """A layer's weight, changed by what its input goes through first."""
    stored, before = weight_of(plan), session.places[plan.name].before
    return stored if before is None else before.to_weight(stored)


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
