# SPDX-License-Identifier: BSD-3-Clause
"""What presets reached: the package's own file of figures, and the table of docs/defaults.md."""

import json
import re
from collections.abc import Iterator
from typing import Any

import blockscale as bs
from blockscale.core.parse import display_name
from blockscale.core.presets import MEASURED, Preset
from blockscale.core.recipe import Recipe
from docs.pages import DOCS

NAME = f"../{MEASURED.relative_to(DOCS.parent)}"  # below docs
FIGURES = re.compile(r"(?P<head><!-- presets -->).*?(?P<tail><!-- end of presets -->)", re.DOTALL)


def measured() -> str:
    """{preset: its figures, as blockscale.core.presets.Reached}: JSON of what was measured."""
    decoder = json.loads((DOCS / "real_models.json").read_text())
    others = json.loads((DOCS / "preset_families.json").read_text())
    found = {
        name: [*_decoder(decoder, bs.preset(name)), *others.get(name, [])] for name in bs.presets()
    }
    return json.dumps(found, indent=1) + "\n"


def _decoder(data: dict[str, Any], recipe: Recipe) -> Iterator[dict[str, Any]]:
    """The figure of the row that has the recipe's formats and methods."""
    how = {} if recipe.calibration is None else recipe.calibration.to_dict()
    device = data["hardware"]["devices"][0]["name"]
    for case in data["figures"]:
        row = Recipe(case["weight"], case["input"])
        if (row.weight, row.input) == (recipe.weight, recipe.input) and case["settings"] == how:
            told = case["topics"]
            yield {
                "family": "decoder", "model": data["model"].split(",")[0] + ", a twin",
                "text": f"{data['sequences']} × {data['length']} tokens of Python's help texts",
                "date": case.get("when", data["when"]), "hardware": case.get("device", device),
                "added": told["loss added"]["mean"], "error": told["loss added"]["error"],
                "kl": told["kl"]["mean"], "agreement": told["top-1 agreement"]["mean"],
            }  # fmt: skip


def defaults() -> str:
    """docs/defaults.md with its table."""
    lines = [
        "| preset | weights | inputs | calibrated by | reached |",
        "|---|---|---|---|---|",
        *(_line(each) for each in bs.presets().values()),
    ]
    table = "\n".join(lines)
    return FIGURES.sub(
        lambda m: f"{m['head']}\n{table}\n{m['tail']}", (DOCS / "defaults.md").read_text()
    )


def _line(each: Preset) -> str:
    recipe = bs.preset(each.name)
    weight, taken = (
        "float" if fmt is None else f"`{display_name(str(fmt))}`"
        for fmt in (recipe.weight, recipe.input)
    )
    reached = "<br>".join(f"{figure.family}: {figure}" for figure in each.figures)
    return (
        f"| `{each.name}` | {weight} | {taken} | {each.calibration or 'rounded'} | "
        f"{reached or 'not measured'} |"
    )
