# SPDX-License-Identifier: BSD-3-Clause
"""What a layer may become: the formats of its weight and of its input."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.pack import stored_bytes
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.untrusted import kind_of
from blockscale.layers.apply import plans_for
from blockscale.layers.assembly import Supplied, build
from blockscale.layers.layer import QLayer
from blockscale.layers.parameters import ParameterPlan, plan_parameters
from blockscale.layers.plan import Plan

MXFP4 = "e2m1:group32:e8m0/tosa"

# Weights of 2 to 8 bits, of which all have kernels on every backend. Of each number of bits the
# ones that lose least on normal numbers at 2.25, 3.25, 3.5, 4.25, 4.5, 5.25, 6.25 and 8.25 bits
# with their scales (docs/formats.md); of MXFP4's rules the one that real models ask for
# (docs/defaults.md).
DEFAULT = (
    "int2:group64:fp16",
    "int3:group64:fp16",
    "int3:group32:fp16",
    MXFP4,
    "nf4:group64:fp16",
    "iq4_nl:group32:fp16",
    "nvfp4",
    "int5:group64:fp16",
    "int6:group64:fp16",
    "int8:group64:fp16",
    "int8_channel",
)


@dataclass(frozen=True)
class Candidate:
    """A name, and the scheme that it stands for: weights alone, or weights and inputs."""

    name: str
    scheme: Scheme

    @property
    def rule(self) -> dict[str, str]:
        """What a recipe's rule says of it."""
        parts = {"weight": self.scheme.weight, "input": self.scheme.input}
        return {part: str(fmt) for part, fmt in parts.items() if fmt is not None}

    def recipe(self, skip: tuple[str, ...] = ()) -> Recipe:
        """Every layer as this candidate."""
        return Recipe(self.scheme.weight, input=self.scheme.input, skip=skip)


def read(source: Iterable[Any] | None) -> tuple[Candidate, ...]:
    """The candidates, each once, by default DEFAULT.

    given: names or spellings of weights' formats; "WEIGHT x INPUT" or {"weight": …, "input": …}
        where inputs are quantized, too
    Raises ValueError where one does not parse or there is none, TypeError for anything else.
    """
    if isinstance(source, str | Format | Mapping):
        raise TypeError(f"candidates must be a list of formats: write [{source!r}]")
    every = [_read(each) for each in (DEFAULT if source is None else source)]
    data = {each.scheme: each for each in reversed(every)}  # the first name of a scheme
    if not data:
        raise ValueError("candidates is empty: name at least one format")
    return tuple(each for each in every if data.pop(each.scheme, None) is not None)


def _read(value: Any) -> Candidate:
    if isinstance(value, Candidate):
        return value
    if isinstance(value, Format):
        return Candidate(str(value), Scheme(value))
    if isinstance(value, str):
        weight, between, names = value.partition(" x ")
        scheme = Scheme(parse(weight.strip()), parse(names.strip()) if between else None)
        return Candidate(value, scheme)
    if isinstance(value, Mapping):
        if unknown := sorted(set(value) - {"weight", "input"}):
            raise ValueError(
                f"unknown key {unknown[0]!r} of a candidate; choose from weight, input"
            )
        recipe = Recipe(value.get("weight"), input=value.get("input"))
        value = recipe.default
    if not isinstance(value, Scheme):
        raise TypeError(f"expected a candidate's format, found {kind_of(value)}")
    if value.weight is None:
        raise ValueError("a candidate needs a weight's format")
    both = [str(fmt) for fmt in (value.weight, value.input) if fmt is not None]
    return Candidate(" x ".join(both), Scheme(value.weight, value.input))


# Where there is something to choose: the weights of a model, and what each may become.


@dataclass
class WeightOptions:
    """One weight, which several layers may share, and what it may become.

    names: of all layers that have it, and their other names; kind: the first one's class
    shape: of the weight as it is stored; parameter: the float weight
    plans: {candidate's name: the plans of its layers}
    refusals: {candidate's name: why it cannot be}
    """

    names: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    parameter: Tensor
    plans: dict[str, tuple[Plan, ...]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The first of its layers' names."""
        return self.names[0]

    @property
    def elements(self) -> int:
        """Of the weight."""
        return self.parameter.numel()

    @property
    def float_bytes(self) -> int:
        """Of the weight as it is."""
        return stored_bytes(self.parameter)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The float layers that have it."""
        return tuple(plan.module for plan in next(iter(self.plans.values())))

    @property
    def firsts(self) -> tuple[str, ...]:
        """The first name of each of them."""
        return tuple(plan.name for plan in next(iter(self.plans.values())))

    def bits(self, candidate: Candidate) -> int:
        """That the weight then takes, with scales and all, as stored."""
        assert candidate.scheme.weight is not None
        return 8 * candidate.scheme.weight.nbytes(self.shape)

    def layers(self, candidate: Candidate) -> dict[str, QLayer]:
        """{name: the quantized layer}, of all its names. Nothing is put into the model."""
        weights: dict[int, Any] = {}
        by_name: dict[str, QLayer] = {}
        for plan in self.plans[candidate.name]:
            layer, _ = build(plan, weights, Supplied(), None)
            by_name |= dict.fromkeys(plan.names, layer)
        return by_name


def choices(
    model: nn.Module, candidates: Sequence[Candidate], skip: Sequence[str] = ()
) -> tuple[list[WeightOptions], dict[str, str]]:
    """The choices that a model gives, in its order, and {layer or parameter: why it has none}.

    A layer that a recipe of one format leaves in float has none, nor has a weight that some layer
    which shares it could not have. Raises ValueError where nothing is left to choose.
    """
    options: dict[int, WeightOptions] = {}
    table: dict[str, str] = {}
    for candidate in candidates:
        recipe = candidate.recipe(tuple(skip))
        decisions = plans_for(model, recipe)
        for plan in decisions:
            if isinstance(plan, Plan):
                _add(options, plan, candidate)
            else:
                table.setdefault(plan.name, plan.entry.reason)
        for other in plan_parameters(model, decisions, recipe):
            if isinstance(other, ParameterPlan):
                table.setdefault(
                    other.name,
                    "a parameter that belongs to no layer, which the search does not change",
                )
    for choice in options.values():
        for candidate in candidates:
            if candidate.name not in choice.plans:
                choice.refusals[candidate.name] = table.get(choice.name, "it does not fit")
    layer_names = {name for choice in options.values() for name in choice.names}
    if not options:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(table.items())[:3])
        raise ValueError(f"no layer of the model can have any of the candidates ({reasons})")
    return list(options.values()), {
        name: why for name, why in table.items() if name not in layer_names
    }


def _add(options: dict[int, WeightOptions], plan: Plan, candidate: Candidate) -> None:
    """Take a layer's plan into the choice of its weight."""
    key = id(plan.parameter)
    if key not in options:
        kind = type(plan.module).__name__
        options[key] = WeightOptions((), kind, tuple(plan.stored), plan.parameter)
    choice = options[key]
    choice.names = tuple(dict.fromkeys((*choice.names, *plan.names)))
    choice.plans[candidate.name] = (*choice.plans.get(candidate.name, ()), plan)
