"""Weights that are NaN or infinite: formats hide most of them, so `strict` refuses them."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from blockscale.core.ledger import Entry
from blockscale.layers.parameters.planned import ParameterPlan
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.saturation import told_of_odd


def broken(
    decisions: Sequence[Decision],
    planned: Sequence[ParameterPlan | Entry] = (),
    supplied: Container[str] = (),
) -> Iterator[Entry]:
    """An entry, skipped, for each layer and parameter whose weight is not finite.

    supplied: names of layers whose codes are given, so that the float weight says nothing
    """
    plans: list[Plan | ParameterPlan] = [
        each for each in decisions if isinstance(each, Plan) and each.owns_weight
    ]
    plans += [each for each in planned if isinstance(each, ParameterPlan)]
    for plan in plans:
        told = "" if plan.name in supplied else told_of_odd(plan.parameter.detach())
        bias = plan.module._parameters.get("bias") if isinstance(plan, Plan) else None
        if bias is not None and (of_bias := told_of_odd(bias.detach())):
            told = "; ".join(filter(None, [told, of_bias.replace("weights", "biases")]))
        if told:
            yield replace(plan.entry, status="skipped", reason=told)
