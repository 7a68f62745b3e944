# SPDX-License-Identifier: BSD-3-Clause
"""A search's result, read from its file: points to draw and errors of candidates, layer by layer.

The file is what `bs.search(…).save(path)` writes, and may be anybody's: every field is checked.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockscale.core.untrusted.json_text import LARGEST, json_object, read_json
from blockscale.core.untrusted.names import TEXT, quoted, shown
from blockscale.files.metadata import FileError

LAYERS = 5_000  # layers of a search that a page lists, and what it lists of each
CANDIDATES = 64
POINTS = 2_000
_LONGEST = 20_000  # characters of a recipe
_ABOUT = ("hardware", "versions")


def is_search(path: str | Path) -> bool:
    """Whether a path is taken for a search's file: by its name, as models have other names."""
    return Path(path).suffix == ".json"


def read_search(path: str | Path) -> dict[str, Any]:
    """A search as plain data, points by bits. Raises FileError for a file that is none."""
    found = json_object(read_json(path, most=LARGEST), path)
    points, layers = found.get("points"), found.get("layers")
    if not isinstance(points, list) or not isinstance(layers, list):
        raise FileError(
            f"{path} has no points and layers: expected a file that bs.search(…).save wrote"
        )
    uniform = found.get("uniform", [])
    if not isinstance(uniform, list):
        raise FileError(f"{path}: its uniform points are not a list")
    every = [("searched", each) for each in points] + [("uniform", each) for each in uniform]
    drawn = [_point(each, kind, f"{path}: a {kind} point") for kind, each in every[:POINTS]]
    known = [point for point in drawn if point["quality"] is not None]
    quality = found.get("quality")
    return {
        "file": shown(path, TEXT),
        "measure": shown(quality) if isinstance(quality, str) else "quality",
        "points": sorted(known, key=lambda point: point["bits"]),
        "chosen": _chosen(found.get("chosen"), path),
        "unmeasured": len(drawn) - len(known),
        "layers": [_layer(each, f"{path}: layer {i}") for i, each in enumerate(layers[:LAYERS])],
        "unlisted": max(len(layers) - LAYERS, 0),
        "command": shown(found.get("command", ""), TEXT),
        **{key: _plain(found[key]) for key in _ABOUT if isinstance(found.get(key), dict)},
    }


def _point(given: Any, kind: str, what: str) -> dict[str, Any]:
    """One recipe: bits, and the quality that was measured with it, or None."""
    told = json_object(given, what)
    quality = told.get("quality")
    recipe = told.get("recipe")
    text = recipe if isinstance(recipe, str) else json.dumps(recipe)
    return {
        "kind": kind,
        "bits": _number(told.get("bits"), f"{what}: bits"),
        "quality": None if quality is None else _number(quality, f"{what}: quality"),
        "recipe": shown(text, _LONGEST),
        "name": shown(told.get("name") or ""),
    }


def _chosen(given: Any, path: str | Path) -> float | None:
    """The bits of the recipe that was asked for."""
    if given is None:
        return None
    what = f"{path}: its chosen point"
    return _number(json_object(given, what).get("bits"), f"{what}: bits")


def _layer(given: Any, what: str) -> dict[str, Any]:
    told = json_object(given, what)
    candidates = told.get("candidates")
    if not isinstance(candidates, list) or not isinstance(told.get("name"), str):
        raise FileError(f"{what} has no name and candidates")
    lines = []
    for i, each in enumerate(candidates[:CANDIDATES]):
        place = f"{what}, candidate {i}"
        line = json_object(each, place)
        sqnr = line.get("sqnr")
        lines.append({
            "format": shown(line.get("format", "")),
            "bits": _number(line.get("bits"), f"{place}: bits"),
            "sqnr": None if sqnr is None else _number(sqnr, f"{place}: sqnr"),
        })  # fmt: skip
    return {"name": shown(told["name"]), "candidates": lines}


def _number(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise FileError(f"{what} is {quoted(given)}, expected a number")
    return float(given)


def _plain(given: Mapping[str, Any]) -> dict[str, str]:
    """Names and values that are one line each."""
    return {
        shown(key): shown(value, TEXT)
        for key, value in list(given.items())[:100]
        if isinstance(value, str | int | float | None)
    }
