# SPDX-License-Identifier: BSD-3-Clause
"""What each constraint of integer hardware costs, layer by layer: each is lifted alone."""

from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.comparison import Comparison, compare
from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.recipe import BiasFormat, Recipe, Scheme
from blockscale.core.scale import FLOAT_SCALES, PowerOfTwo
from blockscale.layers.assembly import without_dynamic
from blockscale.layers.decisions import why_not_bias
from blockscale.layers.plan import Decision, Plan
from blockscale.ops.quantize import fake_quantize

# Biases in training: through the codes that the quantized layer will have.


class BiasQuantizer(nn.Module):
    """A bias through its format. It holds no state.

    seed: for formats that round stochastically: of evaluation and of the quantized model. Training
        draws a new one at each call, from torch's default generator.
    """

    def __init__(self, fmt: BiasFormat, seed: int):
        super().__init__()
        self.format, self.seed = fmt, seed

    def forward(self, bias: Tensor, steps: Callable[[], Tensor], *, fixed: bool = False) -> Tensor:
        """bias [n] -> its values in the format, float32. Its gradient is straight-through, 0 where
        it saturates.

        steps: gives the steps of the layer's sums [n], if the format counts in them
        fixed: draw no numbers, but take those of evaluation
        """
        wide = bias.to(torch.float32)
        if isinstance(self.format, SumInteger):
            return _straight_through(wide, self.format, steps().detach())
        stochastic = self.format.rounding == "stochastic"
        new = stochastic and self.training and not fixed
        return fake_quantize(wide, self.format, seed=None if new else self.seed)

    def extra_repr(self) -> str:
        return f"'{self.format}'"


def _straight_through(bias: Tensor, kind: SumInteger, steps: Tensor) -> Tensor:
    """bias [n], steps [n] float32 -> values [n], with the gradient of bias where it is in range."""
    detached_bias = bias.detach()
    values = kind.decode(kind.encode(detached_bias, steps), steps)
    path = bias - detached_bias  # zeros, but a way back to bias; NaN where bias is not finite
    return values + torch.where(kind.in_range(detached_bias, steps), path, 0.0)


def settle_biases(
    decisions: Iterable[Decision], folded: Collection[str], static: Callable[[Plan], bool]
) -> list[Decision]:
    """The decisions, with those about biases.

    folded: names of convolutions that get a bias, because a batch norm is folded into them
    static: whether a layer's input has a static scale
    """
    entries = [
        _with_a_bias(each) if isinstance(each, Plan) and each.name in folded else each
        for each in decisions
    ]
    return without_dynamic(entries, static)


def _with_a_bias(plan: Plan) -> Plan:
    bias = torch.empty(plan.stored[0], device="meta")
    return replace(plan, gets_bias=True, bias_left=why_not_bias(bias, plan.scheme, plan.stored))


_WIDE = 16
_MODEL = "(the model's output)"


def _float_scale(fmt: Format | None) -> Format | None:
    """With a scale of float32 in place of a power of two."""
    if fmt is None or not isinstance(fmt.scale, PowerOfTwo):
        return fmt
    return replace(fmt, scale=FLOAT_SCALES["fp32"])


def _sixteen(fmt: Format | None) -> Format | None:
    """An integer with 16 bits."""
    if fmt is None or not isinstance(fmt.element, Integer) or fmt.element.bits >= _WIDE:
        return fmt
    return replace(fmt, element=replace(fmt.element, bits=_WIDE))


LIFTED: dict[str, Callable[[Scheme], Scheme]] = {
    "weight scale 2^n": lambda s: replace(s, weight=_float_scale(s.weight)),
    "input scale 2^n": lambda s: replace(s, input=_float_scale(s.input)),
    "output scale 2^n": lambda s: replace(s, output=_float_scale(s.output)),
    "weight bits": lambda s: replace(s, weight=_sixteen(s.weight)),
    "input bits": lambda s: replace(s, input=_sixteen(s.input)),
    "output bits": lambda s: replace(s, output=_sixteen(s.output)),
    "integer bias": lambda s: replace(s, bias=None),
}


@dataclass(frozen=True)
class ConstraintCosts:
    """SQNR in dB of layers' outputs, each given the float model's input, and of the model's.

    base: {layer: SQNR} under the recipe, "(the model's output)" last
    costs: {layer: {constraint: how many dB more without it}}; constraints that the recipe does not
        make are left out
    """

    base: dict[str, float]
    costs: dict[str, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"base": self.base, "costs": self.costs}

    def __str__(self) -> str:
        """A line a layer; dB."""
        names = [*next(iter(self.costs.values()), {})]
        width = max(map(len, self.base))
        lines = ["  ".join(["layer".ljust(width), "SQNR dB", *names])]
        for layer, sqnr in self.base.items():
            cells = [f"{self.costs[layer][name]:+.1f}".rjust(len(name)) for name in names]
            lines.append("  ".join([layer.ljust(width), f"{sqnr:.1f}".rjust(7), *cells]))
        return "\n".join(lines)


def constraint_costs(
    model: nn.Module,
    batches: Iterable[Any],
    recipe: Recipe | Format | str | Path,
    **options: Any,
) -> ConstraintCosts:
    """What each constraint of a recipe costs each layer, before any training.

    The model is calibrated under the recipe, and again with one constraint lifted: scales that are
    powers of two become float32, integers get 16 bits, biases in steps of the sums stay in float.
    Training wins some of it back; where most is lost is where to train, or to lift a constraint.

    model: in float; it stays as it is, a copy is made at a time
    batches: as in `bs.calibrate`, but read once for each constraint, so not a generator
    recipe: as in `bs.quantize_`
    options: further ones of `bs.calibrate`, such as `observer`

    Raises ValueError for a recipe without any of these constraints, and as calibrate does.
    """
    recipe = Recipe.read(recipe)
    if iter(batches) is batches:
        raise ValueError("batches are read once for each constraint: pass a list, not a generator")
    variants = {name: _without(recipe, change) for name, change in LIFTED.items()}
    variants = {name: each for name, each in variants.items() if each != recipe}
    if not variants:
        raise ValueError(
            "the recipe has none of the constraints that can be lifted "
            f"({', '.join(LIFTED)}): it has no power-of-two scales, no integers below 16 bits "
            "and no integer biases"
        )
    base = _sqnr(_compare(model, batches, recipe, options))
    data = {name: _sqnr(_compare(model, batches, r, options)) for name, r in variants.items()}
    costs = {
        layer: {name: _more(each.get(layer, sqnr), sqnr) for name, each in data.items()}
        for layer, sqnr in base.items()
    }
    return ConstraintCosts(base, costs)


def _without(recipe: Recipe, change: Callable[[Scheme], Scheme]) -> Recipe:
    rules: dict[str, Any] = {
        p: change(each) if isinstance(each, Scheme) and each else each
        for p, each in recipe.rules.items()
    }
    new = change(recipe.default)
    return Recipe(new.weight, new.input, new.output, rules, recipe.skip, new.bias, new.profile)


def _compare(
    model: nn.Module, batches: Iterable[Any], recipe: Recipe, options: dict[str, Any]
) -> Comparison:
    quantized = deepcopy(model)
    calibrate(quantized, batches, recipe, **{"progress": False, **options})
    return compare(model, quantized, batches)


def _sqnr(comparison: Comparison) -> dict[str, float]:
    layers = {each.name: each.isolated.sqnr for each in comparison.sorted("name") if each.isolated}
    return layers | {_MODEL: comparison.output.sqnr}


def _more(new: float, old: float) -> float:
    """The difference of two SQNRs, 0 of two infinities."""
    return 0.0 if new == old else new - old
