# SPDX-License-Identifier: BSD-3-Clause
"""What is to become of each layer and parameter of a model, decided before anything is changed.

It is decided in this order, and what is decided does not change any more:

1. `_decide`: each layer by itself is a `Candidate`, which can be quantized, or `Refused`.
2. `settle_ties`: candidates that share a weight with something that is not quantized in the same
   format are refused as well.
3. `_with_parameters`: every parameter is counted for the first layer that has it. What is left of
   the candidates is a `Plan` now, and what was refused is `Left`.
4. `_joined`: plans of layers that servers join know each other, and share their outer scale.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.joined_weights import partners, shares, told_shared
from blockscale.core.ledger import Entry, Status
from blockscale.core.pack import of_convolution, stored_bytes, stored_shape
from blockscale.core.recipe import Recipe, Scheme
from blockscale.layers.defaults import kept_layer_by_default
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QLayer
from blockscale.layers.reasons import (
    looks_like_a_layer,
    read_by_parent,
    why_adapter,
    why_not_bias,
    why_not_layer,
    why_not_profile,
    why_not_weight,
)
from blockscale.layers.ties import (
    Candidate,
    Names,
    Refused,
    Verdicts,
    settle_ties,
    shared_weights,
    weight_of,
)


@dataclass(frozen=True, eq=False)
class Left:
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
class Plan(Left):
    """A layer that is to be quantized, and into what.

    scheme: the formats of its weight, input, output and bias; format: the weight's
    kind: the class of the quantized layer
    parameter: the float weight; layout: how it is stored (blockscale.core.pack)
    tied: whether another layer has the same weight
    bias_left: why its bias stays in float though the scheme has a format for it, perhaps empty
    gets_bias: whether it will have a bias, also if it has none so far
    joined: the first names of all layers that share its outer scale, itself among them; perhaps
        none (core.weights.fused). told_joined: what the ledger says of that
    """

    scheme: Scheme
    format: Format
    kind: type[QLayer]
    parameter: Tensor
    layout: str
    tied: bool
    bias_left: str = ""
    gets_bias: bool = False
    joined: tuple[str, ...] = ()
    told_joined: str = ""

    parts: ClassVar[int] = 1  # matrices, one below another, that its weight consists of

    @property
    def told(self) -> list[str]:
        """What the ledger says of how the codes of its weight are chosen."""
        return list(filter(None, [self.scheme.told, self.told_joined]))

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

    def left(self, status: Status, reason: str) -> Left:
        """The same layer, left as it is for this reason."""
        entry = replace(self.entry, status=status, reason=reason)
        return Left(self.names, self.module, self.owned, entry)


Decision: TypeAlias = Plan | Left


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
    tied = {module for sharing in shared.values() if len(sharing) > 1 for module in sharing}
    decisions = _joined(list(_with_parameters(layers, verdicts, tied)), recipe)
    for plan in decisions:
        if isinstance(plan, Plan):
            check_axes(plan.name, plan.scheme, plan.layout, plan.parameter.ndim)
    return decisions


def _joined(decisions: Sequence[Decision], recipe: Recipe) -> list[Decision]:
    """The plans of layers that share their outer scale know each other.

    A weight that several layers have shares it with all that any of them is joined with.
    """
    plans = {name: plan for plan in decisions if isinstance(plan, Plan) for name in plan.names}
    kinds = {
        name: (str(plan.format), plan.stored[-1], plan.scheme.profile)
        for name, plan in plans.items()
        if len(plan.stored) == 2 and not shares(plan.format, plan.stored)
    }
    names = [name for each in decisions for name in each.names]
    sharing, alone = partners(names, kinds, recipe.fused)
    weights: dict[int, frozenset[int]] = {}  # {a weight: those that share its outer scale}
    for some in sharing.values():
        ids = frozenset(id(plans[name].parameter) for name in some)
        whole = ids.union(*(weights.get(each, ids) for each in ids))
        weights |= dict.fromkeys(whole, whole)
    owners = {id(plan.parameter): plan.name for plan in plans.values() if plan.owns_weight}

    def one(plan: Decision) -> Decision:
        if not isinstance(plan, Plan):
            return plan
        ids = weights.get(id(plan.parameter), frozenset())
        joined = tuple(name for each, name in owners.items() if each in ids)
        joined = joined if len(joined) > 1 else ()
        told = [told_shared(plan.name, joined)] if joined else []
        told += filter(None, [alone.get(plan.name, "")])
        return replace(plan, joined=joined, told_joined=", ".join(told))

    return [one(each) for each in decisions]


def _decide(
    model: nn.Module, recipe: Recipe, module: nn.Module, names: tuple[str, ...]
) -> Candidate | Refused:
    """What becomes of one layer, whatever it shares with others."""
    decided = [(recipe.decide(name), recipe.bias_of(name)) for name in names]
    decisions = [(replace(each, bias=bias), pattern) for (each, pattern), bias in decided]
    scheme, pattern = decisions[0]
    if isinstance(module, QLayer):
        return Refused("kept", "already quantized")
    if of_adapter := next(filter(None, (why_adapter(model, name) for name in names)), ""):
        return Refused("kept", of_adapter)
    if any(other != scheme for other, _ in decisions):
        shared = ", ".join(names)
        return Refused(
            "skipped", f"{shared} share one layer, and the recipe treats them differently"
        )
    if not scheme:
        why = f"pattern {pattern!r} of the recipe" if pattern else "the recipe is empty"
        return Refused("kept", why)
    if pattern is None and (kept := _kept(model, names, module)):
        return Refused("kept", kept)
    if scheme.weight is None:
        told = "its input, output and bias are quantized only along with its weight"
        return Refused("skipped", told)
    kind, weight = quantized_class(module), weight_of(module)
    layout = "plain" if kind is None else kind.layout_of(module)
    reason = why_not_layer(module, kind)
    if weight is not None and reason is None:
        scheme = scheme.of_weight(weight.dtype, stored_shape(weight.shape, layout))
    reason = reason or why_not_weight(weight, layout, scheme.weight)  # type: ignore[arg-type]
    reason = reason or why_not_profile(weight, layout, scheme.profile)
    if reason is not None:
        return Refused("skipped", reason)
    assert kind is not None and weight is not None  # or there would be a reason
    scheme, note = kind.usable(scheme)
    if (reader := read_by_parent(model, names)) and (scheme.input or scheme.output or scheme.bias):
        scheme = Scheme(scheme.weight, profile=scheme.profile, since=scheme.since)
        note = f"{reader} computes with its weight without calling it: only the weight is quantized"
    return Candidate(scheme, scheme.weight, kind, weight, layout, note)  # type: ignore[arg-type]


def _kept(model: nn.Module, names: tuple[str, ...], module: nn.Module) -> str:
    """Why a layer stays in float unless a rule names it; empty if it does not."""
    weight, name = weight_of(module), f"{names[0]}.weight"
    # transformers' models name what they compute and leave out of their files: tables of sines
    computed = getattr(model, "_keys_to_ignore_on_save", None) or ()
    if weight is not None and any(re.search(each, name) for each in computed):
        return "the model computes it, so it stays in float: name it in a rule to quantize it"
    return "" if weight is None else kept_layer_by_default(name, weight.shape)


def _with_parameters(layers: Names, verdicts: Verdicts, tied: set[nn.Module]) -> Iterator[Decision]:
    """The decisions, each parameter counted for the first layer that has it."""
    counted: set[int] = set()
    for module, names in layers.items():
        owned = [p for p in module.parameters(recurse=False) if id(p) not in counted]
        counted |= {id(parameter) for parameter in owned}
        size, elements = sum(map(stored_bytes, owned)), sum(_numel(p) for p in owned)
        if isinstance(module, QLayer) and id(module.qweight) not in counted:
            counted.add(id(module.qweight))
            size, elements = size + module.qweight.nbytes, elements + module.qweight.shape.numel()
        entry = Entry(names[0], type(module).__name__, "quantized", elements=elements)
        entry = replace(entry, bytes_before=size, bytes_after=size)
        verdict = verdicts[module]
        if isinstance(verdict, Candidate):
            stored = stored_shape(verdict.parameter.shape, verdict.layout)
            left = why_not_bias(module._parameters.get("bias"), verdict.scheme, stored)
            entry = replace(entry, notes=(verdict.note,) if verdict.note else ())
            yield Plan(names, module, tuple(owned), entry, *verdict[:5], module in tied, left)
        else:
            entry = replace(entry, status=verdict.status, reason=verdict.reason)
            yield Left(names, module, tuple(owned), entry)


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
        named = fmt and re.fullmatch(r"(channel|group\d+@)(-?\d+)", fmt.block.name)
        if not named:
            continue
        dim = int(named[2]) if named[2].startswith("-") else int(named[2]) - rank
        if -rank < dim < -1:
            sizes = ("depth", "height", "width")[5 - rank :]
            instead = "channel-1" if named[1] == "channel" else named[1].removesuffix("@")
            raise ValueError(
                f"{name}: its {part} in {fmt} would have scales along the image's "
                f"{sizes[dim + len(sizes) + 1]}, as a convolution's {part} is quantized with its "
                f"channels last, [batch, {', '.join(sizes)}, channels]: for channels write "
                f"{instead}, or tensor for one scale, if need be in a rule for {name!r}"
            )
