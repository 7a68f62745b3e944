"""What becomes of the parameters that belong to no layer."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import nn

from blockscale.core.ledger import Entry
from blockscale.core.recipe import Recipe
from blockscale.layers.plan import Decision


def plan_others(model: nn.Module, plans: Iterable[Decision], recipe: Recipe) -> Iterator[Entry]:
    """An entry for each parameter that belongs to no layer of the decisions."""
    counted = {id(p) for plan in plans for p in plan.owned}
    for name, parameter in model.named_parameters():
        if id(parameter) in counted or nn.parameter.is_lazy(parameter):
            continue
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        size = parameter.nbytes
        entry = Entry(name, f"parameter of {owner}", "kept", elements=parameter.numel())
        entry = replace(entry, bytes_before=size, bytes_after=size)
        scheme, pattern = recipe.decide(name)
        if parameter.ndim < 2:
            yield replace(entry, reason="a vector, such as a norm's weight or a bias")
        elif not scheme.weight:
            why = f"pattern {pattern!r} of the recipe" if pattern else "no weight format"
            yield replace(entry, reason=why)
        else:
            reason = f"{owner} uses it directly, not through a layer that can hold codes"
            yield replace(entry, status="skipped", reason=reason)
