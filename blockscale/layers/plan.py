# SPDX-License-Identifier: BSD-3-Clause
"""What is to become of each layer and parameter of a model, decided before anything is changed.

It is decided in this order, and what is decided does not change any more:

1. `_decide`: each layer by itself is a `QuantizableLayer`, or an `Outcome` says why it cannot be
   quantized (layers.decisions).
2. `settle_ties`: layers that share a weight with something that is not quantized in the same
   format are refused as well.
3. `_with_parameters`: every parameter is counted for the first layer that has it. What is still to
   be quantized is a `Plan` now, and what was refused is `Left`.
4. `_joined`: plans of layers that servers join know each other, and share their outer scale.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeAlias

from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.joined_weights import Member, group_note, sharing
from blockscale.core.ledger import Entry, Status
from blockscale.core.pack import of_convolution, stored_bytes, stored_shape
from blockscale.core.recipe import Recipe, Scheme
from blockscale.layers.decisions import (
    CodesKey,
    Outcome,
    Weight,
    decide,
    looks_like_a_layer,
    read_by_parent,
    why_adapter,
    why_not_bias,
    why_not_layer,
    why_not_weight,
    why_tied,
)
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QLayer


@dataclass(frozen=True, eq=False)
class Exemption:
    """A layer that stays as it is. `entry` says why.

    names: the layer's names in the model, of which it may have several
    owned: its parameters that no layer before it has
    """

    names: tuple[str, ...]
    module: nn.Module
    owned: tuple[Tensor, ...]
    entry: Entry

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


@dataclass(frozen=True, eq=False)
class Plan(Exemption):
    """A layer that is to be quantized, and into what.

    scheme: the formats of its weight, input, output and bias; format: the weight's
    kind: the class of the quantized layer
    parameter: the float weight; layout: how it is stored (blockscale.core.pack)
    tied: whether another layer has the same weight
    bias_left: why its bias stays in float though the scheme has a format for it, perhaps empty
    gets_bias: whether it will have a bias, also if it has none so far
    outer_group: the first names of all layers that share its outer scale, itself among them, or
        none (core.joined_weights). group_note: what the ledger says of that
    """

    scheme: Scheme
    format: Format
    kind: type[QLayer]
    parameter: Tensor
    layout: str
    tied: bool
    bias_left: str = ""
    gets_bias: bool = False
    outer_group: tuple[str, ...] = ()
    group_note: str = ""

    parts: ClassVar[int] = 1  # matrices, one below another, that its weight consists of

    @property
    def choice_notes(self) -> list[str]:
        """What the ledger says of how the codes of its weight are chosen."""
        return list(filter(None, [self.scheme.note, self.group_note]))

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of the weight as it is stored."""
        return stored_shape(self.parameter.shape, self.layout)

    @property
    def sums_bias(self) -> bool:
        """Whether its bias is to become integers in steps of its sums."""
        return self.quantizes_bias and isinstance(self.scheme.bias, SumInteger)

    @property
    def quantizes_bias(self) -> bool:
        """Whether its bias is to be quantized."""
        has = self.gets_bias or self.module._parameters.get("bias") is not None
        return has and self.scheme.bias is not None and not self.bias_left

    @property
    def bytes_beside(self) -> int:
        """Bytes of what it owns and keeps in float."""
        bias = self.module._parameters.get("bias") if self.quantizes_bias else None
        return sum(stored_bytes(p) for p in self.owned if p is not self.parameter and p is not bias)

    @property
    def owns_weight(self) -> bool:
        """False where an earlier layer has the same weight, which is counted there."""
        return any(p is self.parameter for p in self.owned)

    def features(self, part: str) -> int:
        """The size of the dimension along which the layer's "input" or "output" is quantized."""
        if part == "input" or not self.kind.takes_input:  # a table gives rows of its weight
            return self.kind.features(self.module)
        return self.stored[0]

    def exempt(self, status: Status, reason: str) -> Exemption:
        """The same layer, left as it is for this reason."""
        entry = replace(self.entry, status=status, reason=reason)
        return Exemption(self.names, self.module, self.owned, entry)


Decision: TypeAlias = Plan | Exemption


class QuantizableLayer(NamedTuple):
    """A layer that can be quantized, as far as it alone is concerned."""

    scheme: Scheme
    format: Format
    kind: type[QLayer]
    parameter: Tensor
    layout: str
    note: str = ""


Names: TypeAlias = Mapping[nn.Module, tuple[str, ...]]
Verdicts: TypeAlias = dict[nn.Module, QuantizableLayer | Outcome]


def plan_layers(model: nn.Module, recipe: Recipe) -> list[Decision]:
    """A Plan for each layer that is to be quantized, and a Left for each other one, in order.

    Other layers are those that look as if they could be quantized, and those that are already.
    Raises ValueError for a convolution's input or output in blocks along the image.
    """
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QLayer) or quantized_class(module) or looks_like_a_layer(module):
            places.setdefault(module, []).append(name)
    layers = {module: tuple(names) for module, names in places.items()}
    verdicts = {module: _decide(model, recipe, module, layers[module]) for module in layers}
    shared = shared_weights(layers)
    settle_ties(model, layers, shared, verdicts)
    tied = {module for users in shared.values() if len(users) > 1 for module in users}
    decisions = _join(list(_with_parameters(layers, verdicts, tied)), recipe)
    for plan in decisions:
        if isinstance(plan, Plan):
            check_axes(plan.name, plan.scheme, plan.layout, plan.parameter.ndim)
    return decisions


def _join(decisions: Sequence[Decision], recipe: Recipe) -> list[Decision]:
    """The plans of layers that share their outer scale know each other.

    A weight that several layers have shares it with all that any of them is joined with.
    """
    plans = {name: plan for plan in decisions if isinstance(plan, Plan) for name in plan.names}
    members = {
        name: Member(plan.format, plan.stored, plan.scheme.profile) for name, plan in plans.items()
    }
    names = [name for each in decisions for name in each.names]
    groups, alone = sharing(names, members, recipe.fused)
    weights: dict[int, frozenset[int]] = {}  # {a weight: those that share its outer scale}
    for some in groups.values():
        ids = frozenset(id(plans[name].parameter) for name in some)
        whole = ids.union(*(weights.get(each, ids) for each in ids))
        weights |= dict.fromkeys(whole, whole)
    owners = {id(plan.parameter): plan.name for plan in plans.values() if plan.owns_weight}

    def one(plan: Decision) -> Decision:
        if not isinstance(plan, Plan):
            return plan
        ids = weights.get(id(plan.parameter), frozenset())
        group = tuple(name for each, name in owners.items() if each in ids)
        group = group if len(group) > 1 else ()
        note = group_note(plan.name, group, alone.get(plan.name, ""))
        return replace(plan, outer_group=group, group_note=note)

    return [one(each) for each in decisions]


# Layers that share one weight: they share its codes, or none of them is quantized.


def weight_of(module: nn.Module) -> Tensor | None:
    """The parameter `weight` of a float layer that could be replaced."""
    is_float = not isinstance(module, QLayer) and quantized_class(module) is not None
    return module._parameters.get("weight") if is_float else None


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
    for key, users in shared.items():
        ours = {f"{name}.weight" for module in users for name in layers[module]}
        others = [name for name in holders.get(key, ()) if name not in ours]
        codes = {layers[module][0]: _codes_of(verdicts[module]) for module in users}
        for module in users:
            if reason := why_tied(layers[module][0], codes, others):
                verdicts[module] = Outcome("skipped", reason)


def _codes_of(verdict: QuantizableLayer | Outcome) -> CodesKey | None:
    """What a layer by itself wants its weight's codes to be, if any."""
    if isinstance(verdict, Outcome):
        return None
    return CodesKey(str(verdict.format), verdict.layout, verdict.scheme.profile)


def _decide(
    model: nn.Module, recipe: Recipe, module: nn.Module, names: tuple[str, ...]
) -> QuantizableLayer | Outcome:
    """What becomes of one layer, whatever it shares with others."""
    weight, kind = weight_of(module), quantized_class(module)
    outcome = decide(_describe(model, module, names, kind, weight), recipe)
    if outcome.format is None:
        return outcome
    assert kind is not None and weight is not None  # or there would be a reason
    scheme, note = kind.usable(outcome.scheme)
    if (reader := read_by_parent(model, names)) and (scheme.input or scheme.output or scheme.bias):
        scheme = Scheme(scheme.weight, profile=scheme.profile, since=scheme.since)
        note = f"{reader} computes with its weight without calling it: only the weight is quantized"
    return QuantizableLayer(scheme, outcome.format, kind, weight, kind.layout_of(module), note)


def _describe(
    model: nn.Module,
    module: nn.Module,
    names: tuple[str, ...],
    kind: type[QLayer] | None,
    weight: Tensor | None,
) -> Weight:
    """A layer's weight, as decisions know it; kind: what would replace the layer."""
    adapters = ("already quantized" if isinstance(module, QLayer) else "",
                *(why_adapter(model, name) for name in names))  # fmt: skip
    lazy = weight is None or nn.parameter.is_lazy(weight)
    return Weight(
        name=f"{names[0]}.weight",
        names=names,
        role="layer",
        shape=() if lazy or weight is None else tuple(weight.shape),
        dtype="" if weight is None else weight.dtype,
        layout="plain" if kind is None else kind.layout_of(module),
        stays=next(filter(None, adapters), ""),
        unless_named="" if weight is None else _computed_by(model, f"{names[0]}.weight"),
        refusal=why_not_layer(module, kind) or why_not_weight(weight),
    )


def _computed_by(model: nn.Module, name: str) -> str:
    """Why what a model computes by itself stays in float; empty for anything else.

    transformers' models name what they leave out of their files, such as tables of sines.
    """
    patterns = getattr(model, "_keys_to_ignore_on_save", None) or ()
    if any(re.search(each, name) for each in patterns):
        return "the model computes it, so it stays in float: name it in a rule to quantize it"
    return ""


def _with_parameters(layers: Names, verdicts: Verdicts, tied: set[nn.Module]) -> Iterator[Decision]:
    """The decisions, each parameter counted for the first layer that has it."""
    ids: set[int] = set()
    for module, names in layers.items():
        own = [p for p in module.parameters(recurse=False) if id(p) not in ids]
        ids |= {id(parameter) for parameter in own}
        size, elements = sum(map(stored_bytes, own)), sum(_numel(p) for p in own)
        if isinstance(module, QLayer) and id(module.qweight) not in ids:
            ids.add(id(module.qweight))
            size, elements = size + module.qweight.nbytes, elements + module.qweight.shape.numel()
        entry = Entry(names[0], type(module).__name__, "quantized", elements=elements)
        entry = replace(entry, bytes_before=size, bytes_after=size)
        verdict = verdicts[module]
        if isinstance(verdict, QuantizableLayer):
            stored = stored_shape(verdict.parameter.shape, verdict.layout)
            rest = why_not_bias(module._parameters.get("bias"), verdict.scheme, stored)
            entry = replace(entry, notes=(verdict.note,) if verdict.note else ())
            yield Plan(names, module, tuple(own), entry, *verdict[:5], module in tied, rest)
        else:
            entry = replace(entry, status=verdict.status, reason=verdict.reason)
            yield Exemption(names, module, tuple(own), entry)


def _numel(parameter: Tensor) -> int:
    return 0 if nn.parameter.is_lazy(parameter) else parameter.numel()


# Blocks of a convolution's input that would run along the image, where channels are meant.


def check_axes(name: str, scheme: Scheme, layout: str, rank: int) -> None:
    """Raise ValueError for an input or output whose blocks are rows or columns of an image.

    A convolution's input is quantized with its channels last (docs/design.md), so that `channel1`
    is not the channels of PyTorch's layout but the rows of each image. Nobody has asked for those.

    name, layout, rank: of the layer, and of its weight.
    """
    if not of_convolution(layout):
        return
    for part in ("input", "output"):
        fmt = getattr(scheme, part)
        match = fmt and re.fullmatch(r"(channel|group\d+@)(-?\d+)", fmt.block.name)
        if not match:
            continue
        dim = int(match[2]) if match[2].startswith("-") else int(match[2]) - rank
        if -rank < dim < -1:
            sizes = ("depth", "height", "width")[5 - rank :]
            instead = "channel-1" if match[1] == "channel" else match[1].removesuffix("@")
            raise ValueError(
                f"{name}: its {part} in {fmt} would have scales along the image's "
                f"{sizes[dim + len(sizes) + 1]}, as a convolution's {part} is quantized with its "
                f"channels last, [batch, {', '.join(sizes)}, channels]: for channels write "
                f"{instead}, or tensor for one scale, if need be in a rule for {name!r}"
            )


def without_slow(plans: Sequence[Decision]) -> list[Decision]:
    """The same, but that layers stay in float which would not be sure to be faster here."""
    decisions: list[Decision] = []
    for plan in plans:
        slow = ""
        if isinstance(plan, Plan):
            read = "" if plan.scheme.input is None else str(plan.scheme.input)
            slow = plan.kind.slow_once(plan.module, read, str(plan.format))
        if isinstance(plan, Plan) and slow:
            decisions.append(plan.exempt("kept", f"it would not be sure to be faster: {slow}"))
        else:
            decisions.append(plan)
    return decisions
