# SPDX-License-Identifier: BSD-3-Clause
"""What a search found: the errors of every layer in every candidate, recipes, and a front."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockscale.core.recipe import Recipe
from blockscale.core.untrusted.json_text import json_object, read_json
from blockscale.selection.candidates import Candidate, read
from blockscale.selection.choose import LayerChoice, LayerError, recipe_of
from blockscale.selection.state import write_whole


@dataclass(frozen=True)
class Point:
    """A recipe, and what it costs.

    bits: a weight on average, exactly; quality: as measured with that recipe; damage: likewise
    predicted: damage, as the layers' scores add up; gap: see Allocation
    """

    bits: float
    quality: float
    damage: float
    predicted: float
    recipe: Recipe
    budget: float | None = None
    gap: float = 0.0
    name: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Search:
    """What `bs.search` found.

    layers: what was measured; left: {layer: why it stays in float}
    points: a recipe for each budget, the fewest bits first; uniform: every candidate alone
    point: the one that was asked for; recipe: its recipe, for `bs.quantize_`
    score: what the choice is made by; quality: what the points' quality is
    """

    layers: tuple[LayerChoice, ...]
    left: dict[str, str]
    points: tuple[Point, ...]
    uniform: tuple[Point, ...]
    point: Point
    candidates: tuple[Candidate, ...]
    score: str
    objective: str
    quality: str
    hardware: dict[str, Any]
    command: str
    versions: dict[str, str]
    seconds: float

    @property
    def recipe(self) -> Recipe:
        """The recipe of the budget that was asked for."""
        return self.point.recipe

    @property
    def front(self) -> tuple[Point, ...]:
        """The points that no other one, uniform or not, is as good as in bits and quality."""
        every = sorted((*self.points, *self.uniform), key=lambda p: (p.bits, -p.quality))
        found: list[Point] = []
        for point in every:
            if not found or point.quality > found[-1].quality:
                found.append(point)
        return tuple(found)

    def at(self, budget: float, latency: float | None = None) -> Recipe:
        """The recipe for another budget, from the errors that are there: nothing is run.

        budget: bits a weight on average; latency: seconds of these layers for one batch, where the
        search measured them. Raises ValueError where no choice keeps to them.
        """
        return recipe_of(self.layers, self.candidates, self.score, budget, latency).recipe

    def taken(self, recipe: Recipe) -> dict[str, str]:
        """{layer: the candidate that a recipe gives it}; layers that it leaves in float are not."""
        names = {each.scheme: each.name for each in self.candidates}
        schemes = {each.name: recipe.decide(each.name)[0] for each in self.layers}
        return {name: names[scheme] for name, scheme in schemes.items() if scheme in names}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinities and no NaN: null."""
        layers = [_layer(each) for each in self.layers]
        return {
            "layers": layers,
            "points": [_point(each) for each in self.points],
            "uniform": [_point(each) for each in self.uniform],
            "chosen": _point(self.point),
            "left": self.left,
            "score": self.score,
            "objective": self.objective,
            "quality": self.quality,
            "hardware": self.hardware,
            "command": self.command,
            "versions": self.versions,
            "seconds": self.seconds,
        }

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all; `blockscale report` and `read` take the file."""
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            told = (
                f"{path} is a directory" if path.is_dir() else (f"{path.parent} is not a directory")
            )
            raise ValueError(f"{told}: choose a file in a directory that exists, e.g. search.json")
        write_whole(path, json.dumps(self.to_dict(), indent=1, allow_nan=False))

    def __str__(self) -> str:
        """The layers' formats under the recipe, and the points, as plain text."""
        wide = max(len(each.name) for each in self.layers)
        lines = []
        taken = self.taken(self.recipe)
        for layer in self.layers:
            error = layer[taken[layer.name]]
            lines.append(
                f"{layer.name.ljust(wide)}  {error.format}  {error.bits:.3f} bits, "
                f"{error.sqnr:.2f} dB"
            )
        for each in sorted((*self.points, *self.uniform), key=lambda p: p.bits):
            name = each.name or "searched"
            lines.append(f"{each.bits:7.4f} bits  {self.quality} {each.quality:.6f}  {name}")
        return "\n".join(lines)


def _layer(layer: LayerChoice) -> dict[str, Any]:
    plain = asdict(layer) | {"name": layer.name, "names": list(layer.names)}
    plain["candidates"] = [_plain(asdict(each)) for each in layer.candidates]
    return plain | {"shape": list(layer.shape)}


def _point(point: Point) -> dict[str, Any]:
    return _plain(vars(point) | {"recipe": point.recipe.to_dict()})


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


_KEYS = ("layers", "points", "uniform", "chosen", "left", "score", "objective", "quality")


def read_search(path: str | Path) -> Search:
    """A search from the file that `save` wrote. Raises FileError and ValueError for any other."""
    data = json_object(read_json(path), path)
    if missing := sorted({*_KEYS} - data.keys()):
        raise ValueError(
            f"{path} was not saved by bs.search of this version: it has no {missing[0]!r}"
        )
    try:
        names = dict.fromkeys(
            each["format"] for own in data["layers"] for each in own["candidates"]
        )
        candidates = read(list(names))
        points = {key: tuple(map(_read_point, data[key])) for key in ("points", "uniform")}
        return Search(
            tuple(map(_read_layer, data["layers"])), dict(data["left"]), points["points"],
            points["uniform"], _read_point(data["chosen"]), candidates, data["score"],
            data["objective"], data["quality"], data["hardware"], data["command"],
            data["versions"], data["seconds"],
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} was not saved by bs.search of this version: {error!r}") from None


def _read_layer(row: dict[str, Any]) -> LayerChoice:
    candidates = tuple(
        LayerError(**(each | {"sqnr": math.inf if each["sqnr"] is None else each["sqnr"]}))
        for each in row["candidates"]
    )
    return LayerChoice(
        tuple(row["names"]), row["kind"], tuple(row["shape"]), row["elements"], row["float_bits"],
        candidates, dict(row["refused"]), row["seconds"],
    )  # fmt: skip


def _read_point(row: dict[str, Any]) -> Point:
    worst = {key: math.inf if row[key] is None else row[key] for key in ("damage", "predicted")}
    quality = -math.inf if row["quality"] is None else row["quality"]
    return Point(**(row | worst | {"quality": quality, "recipe": Recipe.from_dict(row["recipe"])}))
