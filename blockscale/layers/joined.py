# SPDX-License-Identifier: BSD-3-Clause
"""Layers of a model that share their outer scale: what decides it (blockscale.core.joined_weights).

The largest numerator of all of them, `top`, is found before the first of them is quantized: by who
quantizes a model at once and by who goes through it block by block alike.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.pack import to_stored
from blockscale.layers.parameters import ParameterPlan
from blockscale.layers.plan import Plan
from blockscale.layers.saturation import tops_of
from blockscale.layers.supplied import Supplied


def top_of(plan: Plan | ParameterPlan, place: Supplied | None = None) -> Tensor:
    """The largest numerator of a weight, for its layer's changed input where something is before it
    ([..., 1, outer scales in a row] float32)."""
    stored = to_stored(plan.parameter.detach(), plan.layout)
    if place is not None and place.before is not None:
        stored = place.before.to(stored.device).to_weight(stored.to(torch.float32))
    with subnormals_kept():
        return tops_of(stored, plan.format).amax(-2, keepdim=True)


def largest(tops: Sequence[Tensor]) -> Tensor:
    """The largest of several weights' numerators, wherever these are."""
    return reduce(torch.maximum, (each.to(tops[0].device) for each in tops))


def settle_top(plan: Plan, plans: Mapping[str, Plan], places: Mapping[str, Supplied]) -> None:
    """Find the top of a layer, and of all that share its outer scale, if nobody has so far.

    plans: {first name: the layer}, of all that are quantized
    Those whose codes are supplied keep them, and the others do not look at them.
    """
    if not plan.joined or places[plan.name].top is not None:
        return
    known = [plans[name] for name in plan.joined if name in plans]
    group = [each for each in known if places[each.name].weight is None]
    if plan.name not in [each.name for each in group] or len(group) < 2:
        return
    top = largest([top_of(each, places[each.name]) for each in group])
    for each in group:
        places[each.name].top = top.to(each.parameter.device)


def parameter_tops(
    plans: Sequence[ParameterPlan], made: Mapping[str, object] | None = None
) -> dict[str, Tensor]:
    """{name: its top} of parameters that share their outer scale, but for those that are `made`."""
    tops: dict[str, Tensor] = {}
    left = {each.name: each for each in plans if each.joined and each.name not in (made or {})}
    for plan in left.values():
        if plan.name not in tops:
            group = [left[name] for name in plan.joined if name in left]
            top = largest([top_of(each) for each in group])
            tops |= {each.name: top.to(each.parameter.device) for each in group}
    return tops


def disagreeing(outers: Mapping[str, Tensor | None]) -> dict[str, str]:
    """{name: what is to be noted} of weights that share an outer scale and do not have the same."""
    found = {name: outer for name, outer in outers.items() if outer is not None}
    first = next(iter(found.values()), None)
    if first is None or all(_same(first, outer) for outer in found.values()):
        return {}
    told = (
        "its outer scale differs from that of {}, whose codes were passed in: servers that "
        "join them keep only one"
    )
    return {name: told.format(", ".join(n for n in found if n != name)) for name in found}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b.to(a.device))
