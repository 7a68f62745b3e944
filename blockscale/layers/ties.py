# SPDX-License-Identifier: BSD-3-Clause
"""Layers that share one weight: they share its codes, or none of them is quantized."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.ledger import Status
from blockscale.core.profiles.knobs import Profile
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


class Codes(NamedTuple):
    """What decides whether layers can share a weight's codes: by which of them they differ."""

    format: str
    layout: str
    profile: Profile | None


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
        wanted = {layers[module][0]: _codes_of(verdicts[module]) for module in sharing}
        for module in sharing:
            if told := why_tied(layers[module][0], wanted, others):
                verdicts[module] = Refused("skipped", told)


def _codes_of(verdict: Candidate | Refused) -> Codes | None:
    """What a layer by itself wants its weight's codes to be, if any."""
    if isinstance(verdict, Refused):
        return None
    return Codes(str(verdict.format), verdict.layout, verdict.scheme.profile)


def why_tied(layer: str, wanted: Mapping[str, Codes | None], others: Sequence[str] = ()) -> str:
    """Why a layer whose weight others use as well stays in float; empty if it is quantized, or
    stays so by itself. The one decision about ties, of models and of directories.

    wanted: {each layer that has the weight: what it wants, None where it stays in float}
    others: parameters that are the same weight, of modules that are no layers
    """
    if wanted[layer] is None or (not others and len(set(wanted.values())) == 1):
        return ""
    ties = [*others, *(name for name in wanted if name != layer)]
    return f"its weight is tied to {', '.join(ties)}, which cannot share its codes"
