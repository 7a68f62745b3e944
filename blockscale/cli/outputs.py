# SPDX-License-Identifier: BSD-3-Clause
"""Files that commands write beside what they print: checked before any work, then whole."""

from pathlib import Path

from blockscale.core.recipe import Recipe
from blockscale.files.whole import check_place, written_whole


def check_outputs(out: Path | None, recipe: Path | None) -> None:
    """Raise ValueError for places where no file can be."""
    for path, example in ((out, "search.json"), (recipe, "recipe.json")):
        if path is not None:
            check_place(path, example)


def write_recipe(path: Path | None, recipe: Recipe) -> None:
    """Write a recipe as `blockscale quantize --recipe` reads it; None writes nothing."""
    if path is not None:
        with written_whole(path) as temporary:
            temporary.write_text(recipe.to_json() + "\n")
