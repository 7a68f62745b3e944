# SPDX-License-Identifier: BSD-3-Clause
"""A recommendation: a recipe, what it will cost, and for each claim the measurement behind it."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import call, inference
from blockscale.core.pack import of_convolution
from blockscale.core.parse import display_name
from blockscale.core.recipe import Recipe
from blockscale.kernels.hardware import Hardware
from blockscale.selection.allocation import Budget
from blockscale.selection.candidates import WeightOptions
from blockscale.selection.choose import LayerChoice, LayerError, recipe_of
from blockscale.selection.errors import (
    CheckedEstimate,
    Estimate,
    Laboratory,
    bytes_under,
    check,
    float_bytes,
    predicted_seconds,
)
from blockscale.selection.objective import Objective
from blockscale.selection.result import Point, Search, write_whole
from blockscale.selection.steps import measured_with
from blockscale.selection.times import inputs_of, layer_seconds, race


@dataclass(frozen=True)
class Claim:
    """One sentence, and where its figures come from: what was measured, on what, and how."""

    text: str
    source: str


@dataclass(frozen=True)
class Recommendation:
    """What `bs.recommend` found.

    recipe: for `bs.quantize_`; foretold: what it will cost; search: all that was measured
    formats: {candidate: how many weights have it}, most first; blocks: {elements of a block of
        weights along the sum: how many weights}; rows: {rows of the largest layer: seconds a row}
    """

    budget: Budget
    recipe: Recipe
    foretold: Estimate
    claims: tuple[Claim, ...]
    formats: dict[str, int]
    blocks: dict[str, int]
    rows: dict[int, float]
    search: Search
    objective: Objective

    @property
    def batch(self) -> int | None:
        """The fewest rows at which a row of the largest layer takes at most a tenth more than it
        does at best; None where nothing was timed."""
        if not self.rows:
            return None
        best = min(self.rows.values())
        return min(rows for rows, seconds in self.rows.items() if seconds <= 1.1 * best)

    def check(self, model: nn.Module, batches: Iterable[Any]) -> CheckedEstimate:
        """Quantize a copy of the model and measure what was foretold."""
        return check(model, self.recipe, self.foretold, list(batches), self.objective)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "budget": asdict(self.budget),
            "recipe": self.recipe.to_dict(),
            "foretold": asdict(self.foretold) | {"speedup": self.foretold.speedup},
            "claims": [asdict(each) for each in self.claims],
            "formats": self.formats,
            "blocks": self.blocks,
            "rows": {str(rows): seconds for rows, seconds in self.rows.items()},
            "batch": self.batch,
            "search": self.search.to_dict(),
        }

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"{path}: choose a file in a directory that exists")
        write_whole(path, json.dumps(self.to_dict(), indent=1, allow_nan=False))

    def __str__(self) -> str:
        """The claims with their sources."""
        return "\n".join(f"{each.text}\n    {each.source}" for each in self.claims)


def count(names: Sequence[str]) -> dict[str, int]:
    """{name: how often}, the most frequent first."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


# From a search to advice: layers are timed, a recipe is chosen, and its costs are foretold.

ROWS = (1, 4, 16, 64, 256)
_ALONE = 64  # rows of inputs where there are no batches
_MODEL = "the whole model"


@dataclass(frozen=True)
class Advice:
    """A recipe, what it will cost, and what is told beside it (Recommendation).

    candidate_of: {layer: its candidate}; batches: how many there were
    """

    budget: Budget
    recipe: Recipe
    foretold: Estimate
    candidate_of: dict[str, str]
    formats: dict[str, int]
    blocks: dict[str, int]
    rows: dict[int, float]
    search: Search
    batches: int


def advise(
    model: nn.Module,
    search: Search,
    options: Sequence[WeightOptions],
    budget: Budget,
    bits: float,
    lab: Laboratory | None,
) -> Advice:
    """The advice; without a laboratory, by weights alone. Raises ValueError where no choice keeps
    to the budget."""
    batches = None if lab is None else lab.batches
    with inference(model):
        search, whole = _measure_times(model, search, options, batches)
        point = _choose(search, budget, bits, whole)
        if lab is not None and math.isnan(point.quality):
            lab.remember()
            measurement = measured_with(point.recipe, options, search.candidates, lab)
            point = replace(point, quality=measurement.quality, damage=measurement.damage)
        names = search.taken(point.recipe)
        foretold = Estimate(bytes_under(model, search.layers, names), float_bytes(model))
        if batches is not None:
            schemes = {each.name: each for each in search.candidates}
            by_name = {name: schemes[candidate] for name, candidate in names.items()}
            seconds, whole = predicted_seconds(model, options, by_name, batches[0])
            foretold = replace(
                foretold, seconds=seconds, float_seconds=whole, quality=point.quality
            )
        rows = _rows(options, search, names)
    weights = {each.name: each.scheme.weight for each in search.candidates}
    blocks = [str(fmt.block) for name in names.values() if (fmt := weights[name]) is not None]
    return Advice(
        budget, point.recipe, foretold, names, count(list(names.values())), count(blocks),
        rows, replace(search, point=point), len(batches or ()),
    )  # fmt: skip


def _measure_times(
    model: nn.Module,
    search: Search,
    options: Sequence[WeightOptions],
    batches: Sequence[Any] | None,
) -> tuple[Search, float | None]:
    """The search with its layers' seconds, and those of the whole float model."""
    if batches is None:
        inputs: Mapping[nn.Module, Sequence[Tensor]] = _random_inputs(options)
        times = layer_seconds(inputs, options, search.candidates)
    else:
        inputs = inputs_of(model, options, batches[0])
        more = {_MODEL: lambda: call(model, batches[0])}
        times = layer_seconds(inputs, options, search.candidates, more)
    layers = tuple(_with_times(each, times) for each in search.layers)
    return replace(search, layers=layers), times.get((_MODEL, ""))


def _with_times(layer: LayerChoice, times: Mapping[tuple[str, str], float]) -> LayerChoice:
    own = tuple(
        replace(each, seconds=times.get((layer.name, each.format))) for each in layer.candidates
    )
    return replace(layer, candidates=own, seconds=times.get((layer.name, "")))


def _random_inputs(options: Sequence[WeightOptions]) -> dict[nn.Module, list[Tensor]]:
    """Rows of normal numbers for the layers that multiply them; the others are not timed."""
    return {
        module: [_random_rows(choice, _ALONE)]
        for choice in options
        if _multiplies(choice)
        for module in choice.modules
    }


def _multiplies(choice: WeightOptions) -> bool:
    plan = next(iter(choice.plans.values()))[0]
    return plan.kind.takes_input and not of_convolution(plan.layout)


def _random_rows(choice: WeightOptions, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, choice.shape[-1], generator=generator)
    return x.to(choice.parameter.device, choice.parameter.dtype)


def _choose(search: Search, budget: Budget, bits: float, whole: float | None) -> Point:
    """The point that the budget asks for."""
    if budget.name == "quality":
        return _good_enough(search, budget.value)
    if budget.name == "latency" or not search.points:
        latency = None
        if budget.name == "latency":
            assert whole is not None
            latency = _of_layers(search, budget.value, whole)
        result = recipe_of(search.layers, search.candidates, search.score, bits, latency)
        return Point(
            result.bits, math.nan, math.nan, result.damage, result.recipe, bits, result.gap,
            seconds=result.seconds,
        )  # fmt: skip
    return search.point


def _of_layers(search: Search, latency: float, whole: float) -> float:
    """What a model's latency leaves to the layers. Raises ValueError where that is nothing."""
    rest = whole - sum(each.seconds or 0.0 for each in search.layers)
    if latency <= rest:
        raise ValueError(
            f"the latency cannot be {latency:.6f} s: everything but the quantized layers "
            f"already takes {rest:.6f} s of the float model's {whole:.6f} s for the first "
            "batch here"
        )
    return latency - rest


def _good_enough(search: Search, quality: float) -> Point:
    """The point with the fewest bits whose measured quality is enough."""
    every = (*search.points, *search.uniform)
    enough = [each for each in every if each.quality >= quality]
    if not enough:
        best = max(every, key=lambda point: point.quality)
        raise ValueError(
            f"no recipe reaches {search.quality} {quality:g}: the best of {len(every)} reaches "
            f"{best.quality:.6f} at {best.bits:.3f} bits; name candidates of more bits"
        )
    return min(enough, key=lambda point: point.bits)


def _rows(
    options: Sequence[WeightOptions], search: Search, formats: Mapping[str, str]
) -> dict[int, float]:
    """{rows: seconds a row} of the largest layer that multiplies, in its format."""
    able = [choice for choice in options if _multiplies(choice) and choice.name in formats]
    if not able:
        return {}
    largest = max(able, key=lambda choice: choice.elements)
    candidate = next(e for e in search.candidates if e.name == formats[largest.name])
    layer = next(iter(largest.layers(candidate).values()))
    inputs = {rows: _random_rows(largest, rows) for rows in ROWS}
    times = race({rows: (lambda x=x: layer(x)) for rows, x in inputs.items()})  # type: ignore[misc]
    return {rows: seconds / rows for rows, seconds in times.items()}


# What a recommendation says, sentence by sentence, and what was measured for each.


def claims_of(advice: Advice, machine: Hardware) -> tuple[Claim, ...]:
    """The claims, in the order in which people ask for them."""
    here = f"on this {machine.processor}, {machine.threads} threads"
    how = f"medians of samples taken in turns {here} (blockscale.selection.times)"
    return (*_formats(advice), *_size(advice), *_errors(advice), *_speed(advice, how))


def _formats(advice: Advice) -> Iterator[Claim]:
    shares = ", ".join(f"{n} × {display_name(name)}" for name, n in advice.formats.items())
    bits = sum(e.bits * layer.elements for layer, e in _choices(advice))
    total = sum(layer.elements for layer in advice.search.layers)
    yield Claim(
        f"{bits / max(total, 1):.4f} bits a weight under the budget {advice.budget}: {shares}",
        f"counted from {len(advice.candidate_of)} weights as they are stored, scales included",
    )
    blocks = ", ".join(f"{name} in {n}" for name, n in advice.blocks.items())
    yield Claim(f"blocks of weights that share a scale: {blocks}", "counted from the recipe")


def _size(advice: Advice) -> Iterator[Claim]:
    info = advice.foretold
    yield Claim(
        f"all parameters take {info.bytes} bytes, {info.float_bytes} in float: "
        f"{100 * (1 - info.bytes / info.float_bytes):.1f} % are saved",
        "counted from shapes and formats; bs.quantize_'s ledger counts the same",
    )


def _errors(advice: Advice) -> Iterator[Claim]:
    search = advice.search
    worst, error = min(_choices(advice), key=lambda pair: pair[1].sqnr)
    of = "its weight's" if search.quality == "none" else "its output's"
    how = "rounding of the weight" if search.quality == "none" else "its float inputs"
    yield Claim(
        f"the layer with the largest error is {worst.name} in {display_name(error.format)}: {of} "
        f"SQNR is {error.sqnr:.2f} dB",
        f"measured: {how}, {advice.batches} batches" if advice.batches else f"measured: {how}",
    )
    quality = advice.foretold.quality
    if quality is not None and quality == quality:  # not NaN
        yield Claim(
            f"the model's {search.quality} is {quality:.6f}",
            f"measured with the recipe, objective {search.objective!r}; layers chosen by "
            f"{search.score!r}",
        )


def _speed(advice: Advice, how: str) -> Iterator[Claim]:
    info = advice.foretold
    if info.seconds is not None and info.float_seconds is not None:
        yield Claim(
            f"a batch will take {1e3 * info.seconds:.3f} ms, {info.speedup:.2f} times as fast as "
            f"in float ({1e3 * info.float_seconds:.3f} ms)",
            f"the float model's time, its layers' exchanged for the recipe's: {how}",
        )
    layers = [each for each in advice.search.layers if each.seconds]
    if layers:
        largest = max(layers, key=lambda each: each.seconds or 0.0)
        timings = [each for each in largest.candidates if each.seconds]
        fastest = min(timings, key=lambda each: each.seconds or 0.0)
        yield Claim(
            f"of the candidates {display_name(fastest.format)} is the fastest in {largest.name} "
            f"{list(largest.shape)}: {1e6 * (fastest.seconds or 0):.1f} µs, in float "
            f"{1e6 * (largest.seconds or 0):.1f} µs",
            how,
        )
    if advice.rows:
        row_times = ", ".join(f"{rows}: {1e6 * s:.2f}" for rows, s in advice.rows.items())
        yield Claim(f"µs a row of the largest layer, by rows at a time: {row_times}", how)


def _choices(advice: Advice) -> list[tuple[LayerChoice, LayerError]]:
    """Each layer and its error in the candidate that it gets."""
    layers = advice.search.layers
    return [
        (each, each[advice.candidate_of[each.name]])
        for each in layers
        if each.name in advice.candidate_of
    ]
