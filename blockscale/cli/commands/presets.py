# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale presets`: recipes by name, how each is calibrated, and what it reached."""

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from blockscale.core.presets import Preset
from blockscale.core.presets import presets as every_preset
from blockscale.core.recipe import preset
from blockscale.reporting.table import aligned


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="PRESET", help="Show everything about this one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets that --recipe takes, and what they reached.

    Loss added and KL are nats a token; agreement is how often the likeliest class is the float
    model's; cosine is of embeddings with the float model's.
    """
    every = every_preset()
    if name is not None:
        if name not in every:
            preset(name)  # raises with the names that there are
        every = {name: every[name]}
    if as_json:
        data = [each.to_dict() for each in every.values()]
        print(json.dumps(data if name is None else data[0], indent=2))
    elif name is not None:
        print("\n".join(_one(every[name])))
    else:
        rows = [row for each in every.values() for row in _rows(each)]
        print(
            aligned(("preset", "weights, keys", "inputs, values", "how", "reached"), rows, "     ")
        )


def _rows(each: Preset) -> Iterator[tuple[str, ...]]:
    """One line of formats, and the figures of one family a line."""
    figures = [f"{figure.family}: {figure}" for figure in each.figures] or ["not measured"]
    yield each.name, *each.formats, each.how, figures[0]
    for figure in figures[1:]:
        yield "", "", "", "", figure


def _one(each: Preset) -> Iterator[str]:
    yield f"{each.name}: {each.what}"
    data = preset(each.name).to_dict() if each.of == "recipe" else dict(each.data)
    yield json.dumps(data, indent=2)
    for figure in each.figures:
        where = f" on {figure.hardware}" if figure.hardware else ""
        yield f"{figure.family}: {figure}"
        yield f"    {figure.model}; {figure.text}; {figure.date}{where}"
    if not each.figures:
        yield "not measured yet"
