"""Layers that share one weight: they share its codes, or none of them is quantized."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.ledger import Status
from blockscale.core.recipe import Scheme
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QLayer


class Refused(NamedTuple):
    """Why a layer stays as it is."""

    status: Status
    reason: str


class Candidate(NamedTuple):
    """A layer that can be quantized, as far as it alone is concerned."""

    scheme: Scheme
    format: Format
    kind: type[QLayer]
    parameter: Tensor
    layout: str
    note: str = ""


Names: TypeAlias = Mapping[nn.Module, tuple[str, ...]]
Verdicts: TypeAlias = dict[nn.Module, Candidate | Refused]


def weight_of(module: nn.Module) -> Tensor | None:
    """The parameter `weight` of a float layer that could be replaced."""
    replaced = not isinstance(module, QLayer) and quantized_class(module) is not None
    return module._parameters.get("weight") if replaced else None


def shared_weights(layers: Names) -> dict[int, list[nn.Module]]:
    """{id of a weight: the layers that have it}."""
    shared: dict[int, list[nn.Module]] = {}
    for module in layers:
        if (weight := weight_of(module)) is not None:
            shared.setdefault(id(weight), []).append(module)
    return shared


def settle_ties(
    model: nn.Module, layers: Names, shared: dict[int, list[nn.Module]], verdicts: Verdicts
) -> None:
    """Refuse candidates whose weight something else uses that does not get the same codes."""
    holders: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), []).append(name)
    for key, sharing in shared.items():
        ours = {f"{name}.weight" for module in sharing for name in layers[module]}
        others = [name for name in holders.get(key, ()) if name not in ours]
        if not others and _one_format([verdicts[module] for module in sharing]):
            continue
        for module in sharing:
            if isinstance(verdicts[module], Candidate):
                ties = others + [layers[other][0] for other in sharing if other is not module]
                told = f"its weight is tied to {', '.join(ties)}, which cannot share its codes"
                verdicts[module] = Refused("skipped", told)


def _one_format(verdicts: Sequence[Candidate | Refused]) -> bool:
    """Whether layers can share codes: all are candidates, in one format and layout, by one
    profile."""
    wanted = {
        (str(each.format), each.layout, each.scheme.profile)
        if isinstance(each, Candidate)
        else None
        for each in verdicts
    }
    return len(wanted) == 1 and None not in wanted
