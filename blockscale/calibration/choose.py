# SPDX-License-Identifier: BSD-3-Clause
"""What is chosen from the statistics of layers' inputs: Before modules and weights' codes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from blockscale.calibration.algorithms import Transform, WeightAlgorithm
from blockscale.calibration.block_calls import BlockAlgorithm
from blockscale.calibration.dealing import LayerPart, has_top, parts_of, weight_shape, width
from blockscale.calibration.input_stats import InputStats, InputStatsCollector
from blockscale.calibration.mixing import place_of
from blockscale.calibration.places import (
    Chosen,
    Message,
    codes_of,
    from_message,
    message_of,
    packed,
    share_messages,
    to_message,
    unpack,
)
from blockscale.calibration.session import Session, has_rows, of_a_stack
from blockscale.core.pack import to_stored
from blockscale.core.recipe import Scheme
from blockscale.layers.apply import swap
from blockscale.layers.assembly import beside_rows, settle_top, top_of, with_rows
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Plan
from blockscale.layers.store import QWeight
from blockscale.ops.tensor import QTensor, join

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
    result: list[list[Item]] = []
    total, last = 0.0, None
    for item in items:
        amount, here = size(item), place(item)
        if not result or here != last or (total and total + amount > budget):
            result.append([])
            total = 0.0
        result[-1].append(item)
        total, last = total + amount, here
    return result


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


def share(
    session: Session, plans: Sequence[Plan], choose: Callable[[], Mapping[str, Message] | None]
) -> dict[str, Message]:
    """choose(), and then what owners have chosen for these layers is chosen in every process.

    choose: may return messages by name, which are all returned in every process of a group
    Raises in every process what choose() raises in one; RuntimeError, in every process, if one of
    them received something else than its owner chose.
    """
    ranks = session.ranks
    if ranks.alone:
        return dict(choose() or {})

    def own() -> dict[str, Message]:
        messages = choose() or {}
        places = {p.name: to_message(*packed(p, session)) for p in plans if ranks.owns(p.name)}
        return {**places, **messages}

    result = share_messages(ranks, own)
    for plan in plans:
        unpack(plan, session, *from_message(result[plan.name]))
    return result


def choose_before(
    session: Session, transform: Transform | None, layer_groups: Sequence[Sequence[Plan]]
) -> None:
    """What each layer's input goes through first: nothing for those that saw no data."""
    if transform is None:
        return
    tell_untransformed(session, transform, layer_groups)
    for group in layer_groups:
        stats = session.statistics(group, gram=weighs(transform))
        transform_layers(session, transform, group, stats)


def weighs(transform: Transform | None) -> bool:
    """Whether a transform looks at the gram matrices of inputs: if it does not say that it needs
    none."""
    return bool(getattr(transform, "needs_gram", True))


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
    before, details = transform.prepare(
        weight_of(plan), plan.format, plan.scheme.input, stats, plan.name
    )
    session.places[plan.name].before = cast("Before | None", before)
    session.details[plan.name] += [f"{transform.name}: {each}" for each in details]


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
            session.deal(group, algorithm)
            grams = _grams(session, algorithm, group)
            choose_each(session, algorithm, group, grams)
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
    """The codes of layers' weights, of those that own one, in every process; none by what only
    chooses for blocks. Each process of a group chooses its parts of their rows."""
    ranks, own = session.ranks, [plan for plan in plans if plan.owns_weight]
    if not callable(getattr(algorithm, "quantize", None)):
        share(session, own, lambda: leave(session.notes, algorithm, own))
        return
    for plan in own:
        settle_top(plan, session.by_name, session.places)
    every = [parts_of(plan, algorithm) for plan in own]
    codes: dict[str, Chosen] = {}

    def choose() -> dict[str, Message]:
        some = [[p for p in parts if ranks.chooses(p.plan.name, p.number)] for parts in every]
        for alike in _alike(session, algorithm, [parts for parts in some if parts]):
            codes.update(_choose_together(session, algorithm, alike, grams))
        return {} if ranks.alone else {name: message_of(each) for name, each in codes.items()}

    messages = share(session, own, choose)
    for parts in every:
        results = [
            codes_of(messages[part.name], part.plan) if part.name in messages
            else codes[part.name]
            for part in parts
        ]  # fmt: skip
        _take(session, algorithm, parts, results)


def leave(lines: Mapping[str, list[str]], algorithm: Any, plans: Sequence[Plan]) -> None:
    """Say of these layers that an algorithm for blocks leaves them to plain rounding.

    lines: a session's notes, which warn, where there are no blocks at all; its details beside some
    """
    line = f"plain rounding: it is in no block that {algorithm.name} processes"
    for plan in plans:
        lines[plan.name].append(line)


def _take(
    session: Session,
    algorithm: WeightAlgorithm,
    parts: Sequence[LayerPart],
    results: Sequence[Chosen],
) -> None:
    """A layer's codes are those of all its parts."""
    plan, every = parts[0].plan, [q for q, _ in results]
    session.places[plan.name].weight = every[0] if len(every) == 1 else join(every, 0)
    session.details[plan.name].append(f"weight by {algorithm.name}")
    notes = list(_notes(parts, results))
    if not algorithm.needs_gram or plan.kind.takes_input:
        session.notes[plan.name] += notes
    else:  # a table has no inputs to know of, and that is nothing to warn of
        session.details[plan.name] += notes


def _notes(parts: Sequence[LayerPart], results: Sequence[Chosen]) -> Iterator[str]:
    """What is said of a layer, and of how many of its rows."""
    for note in dict.fromkeys(note for _, notes in results for note in notes):
        pairs = zip(parts, results, strict=True)
        rows = sum(p.rows.stop - p.rows.start for p, (_, notes) in pairs if note in notes)
        n = parts[-1].rows.stop
        yield note if rows == n else f"{note} ({rows} of {n} rows)"


def _alike(
    session: Session, algorithm: WeightAlgorithm, layers: Sequence[Sequence[LayerPart]]
) -> list[list[Sequence[LayerPart]]]:
    """Layers that the algorithm chooses for in one call: of one shape and format, as many as it
    works on side by side."""
    count = getattr(algorithm, "beside", None)
    if count is None:
        return [[parts] for parts in layers]
    sets: dict[tuple[object, ...], list[list[Sequence[LayerPart]]]] = {}
    for parts in layers:
        plan = parts[0].plan
        top, (rows, k) = session.places[plan.name].top, weight_shape(plan)
        rows += top is not None
        groups_of = sets.setdefault((str(plan.format), rows, k, plan.parameter.device), [[]])
        if len(groups_of[-1]) >= count(plan.format, (rows, k)):
            groups_of.append([])
        groups_of[-1].append(parts)
    return [some for each in sets.values() for some in each]


def _choose_together(
    session: Session,
    algorithm: WeightAlgorithm,
    layers: Sequence[Sequence[LayerPart]],
    grams: Mapping[str, Tensor],
) -> dict[str, Chosen]:
    """The codes of parts of layers of one shape and format."""
    parts = [part for own in layers for part in own]
    fmt, names = parts[0].plan.format, [part.plan.name for part in parts]
    tops = {own[0].plan.name: _top(session, algorithm, own[0].plan) for own in layers}
    wholes = {own[0].plan.name: _weight_before(session, own[0].plan) for own in layers}
    stored = [wholes[part.plan.name][part.rows] for part in parts]
    weights = [with_rows(x, fmt, tops[name]) for x, name in zip(stored, names, strict=True)]
    drifts = {name: session.drifts.pop(name, None) for name in tops}
    each = getattr(algorithm, "quantize_each", None)
    if each is not None:
        of = [grams.get(name) for name in names], names, [drifts[name] for name in names]
        results = each(weights, fmt, *of)
    else:
        results = []
        for weight, name in zip(weights, names, strict=True):
            more = {"drift": drifts[name]} if getattr(algorithm, "needs_drift", False) else {}
            results.append(algorithm.quantize(weight, fmt, grams.get(name), name, **more))
    codes = {}
    for part, x, (q, notes) in zip(parts, stored, results, strict=True):
        own = beside_rows(x, fmt, tops[part.plan.name], partial(_codes_of, q))
        codes[part.name] = own, list(notes)
    return codes


def _top(session: Session, algorithm: WeightAlgorithm, plan: Plan) -> Tensor | None:
    """The largest numerator of all layers that share a layer's outer scale, or of all parts of one
    that is chosen in parts; None for others."""
    place = session.places[plan.name]
    if place.top is not None or len(parts_of(plan, algorithm)) == 1:
        return place.top
    return top_of(plan, place) if has_top(plan.format, weight_shape(plan)) else None


def _codes_of(q: QTensor, weight: Tensor) -> QTensor:
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
