# SPDX-License-Identifier: BSD-3-Clause
"""What a search found: the errors of every layer in every candidate, recipes, and a front."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from blockscale.core.parse import display_name
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import json_object, read_json
from blockscale.selection.candidates import Candidate, read
from blockscale.selection.choose import LayerChoice, LayerError, recipe_of

# What a search has measured so far, in a file: a run that was stopped goes on where it was.

_SCHEMA = 1


class StateError(ValueError):
    """A file holds what another search measured, or no search at all."""


class SearchState:
    """{key: what was measured}, all of it plain data; `path` None keeps it in memory alone.

    run: what tells this search from others
    """

    def __init__(self, path: str | Path | None, run: str):
        self.path = None if path is None else Path(path)
        self._run = run
        self._values: dict[str, Any] = {}
        if self.path is not None:
            self._read(self.path)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """Keep it, and write the file: beside its place, then renamed."""
        self._values[key] = value
        if self.path is not None:
            data = {"schema": _SCHEMA, "search": self._run, "measured": plain(self._values)}
            write_whole(self.path, json.dumps(data, indent=1, allow_nan=False))

    def _read(self, path: Path) -> None:
        if path.is_dir():
            raise StateError(f"{path} is a directory: name a file for the search's state")
        if not path.parent.is_dir():
            raise StateError(f"{path.parent} is not a directory: create it first")
        if not path.exists():
            return
        data = json_object(read_json(path), path)
        values = data.get("measured")
        if data.get("schema") != _SCHEMA or not isinstance(values, dict):
            raise StateError(
                f"{path} is not the state of a search: name another file, or delete it"
            )
        if data.get("search") != self._run:
            raise StateError(
                f"{path} was measured by another search (other candidates, another model, "
                f"objective or score, or other batches): name another file, or delete it"
            )
        self._values = {key: _back(value) for key, value in values.items()}


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it. Raises OSError where that cannot be."""
    beside = path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")
    try:
        with beside.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """Data for JSON, which has neither infinities nor NaN: they become text."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _back(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _back(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_back(each) for each in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


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
        points: list[Point] = []
        for point in every:
            if not points or point.quality > points[-1].quality:
                points.append(point)
        return tuple(points)

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
            info = (
                f"{path} is a directory" if path.is_dir() else (f"{path.parent} is not a directory")
            )
            raise ValueError(f"{info}: choose a file in a directory that exists, e.g. search.json")
        write_whole(path, json.dumps(self.to_dict(), indent=1, allow_nan=False))

    def __str__(self) -> str:
        """The layers' formats under the recipe, and the points, as plain text."""
        wide = max(len(each.name) for each in self.layers)
        lines = []
        names = self.taken(self.recipe)
        for layer in self.layers:
            error = layer[names[layer.name]]
            lines.append(
                f"{layer.name.ljust(wide)}  {display_name(error.format)}  {error.bits:.3f} bits, "
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
    """The search in the file `path`, which `Search.save` wrote.

    Raises FileError for a file that cannot be read, ValueError for any other.
    """
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
