# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale search`: which layer gets which format under a budget of bits."""

import json
from pathlib import Path
from typing import Annotated

import typer

import blockscale as bs
from blockscale.cli.model_directory import fitting, float_model, sentences_of, tokenize, unpadded
from blockscale.cli.progress import check_outputs, write_recipe
from blockscale.core.parse import display_name
from blockscale.core.untrusted import shown
from blockscale.reporting.table import aligned
from blockscale.selection.result import Search


def search(  # noqa: PLR0913 - one argument an option
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="The model: config, tokenizer, weights.")
    ],
    budget: Annotated[float, typer.Option(help="Most bits per weight, with scales.")] = 4.5,
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT", help="A format to try. Repeatable."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Sentences to measure on, one per line.")
    ] = None,
    objective: Annotated[str, typer.Option(help="distance or kl.")] = ("distance"),
    score: Annotated[str | None, typer.Option(help="fisher, output or sqnr.")] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave these layers in float.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens per sentence.")] = 64,
    state: Annotated[
        Path | None, typer.Option(help="Progress file, to continue a stopped run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the search as JSON here.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Write the recipe as JSON here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Search for formats that lose least within a budget of bits.

    --objective is the distance of outputs, or the KL divergence of logits (kl). --score is how
    layers are ranked: fisher, output or sqnr.
    """
    check_outputs(out, recipe)
    network = float_model(model)
    batch = tokenize(model, sentences_of(text), fitting(network, tokens))
    result = bs.search(
        network, [batch], budget, candidates=candidate, objective=objective,
        output=unpadded, score=score, skip=skip or [], state=state, progress=not quiet,
    )  # fmt: skip
    if out is not None:
        result.save(out)
    write_recipe(recipe, result.recipe)
    print(json.dumps(result.to_dict(), indent=2) if as_json else _text(result))


def _text(result: Search) -> str:
    counts = result.taken(result.recipe)
    layers = [(layer, layer[counts[layer.name]]) for layer in result.layers]
    rows = [
        (shown(layer.name), display_name(e.format), f"{e.bits:.3f}", f"{e.sqnr:.2f}")
        for layer, e in layers
    ]
    points = sorted((*result.points, *result.uniform), key=lambda point: point.bits)
    front = set(map(id, result.front))
    costs = [
        (p.name or "searched", f"{p.bits:.4f}", f"{p.quality:.6f}", "*" if id(p) in front else "")
        for p in points
    ]
    lines = [f"left in float: {shown(name)}: {shown(why)}" for name, why in result.left.items()]
    return "\n\n".join(
        [
            aligned(("layer", "format", "bits", "dB"), rows),
            aligned(("recipe", "bits", result.quality, "front"), costs),
            *(["\n".join(lines)] if lines else []),
        ]
    )
