# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale recommend`: formats for a model on this machine, with what was measured for them."""

import json
from pathlib import Path
from typing import Annotated

import typer

import blockscale as bs
from blockscale.cli.model_directory import fitting, float_model, sentences_of, tokenize, unpadded
from blockscale.cli.progress import check_outputs, write_recipe
from blockscale.selection.allocation import Budget
from blockscale.selection.errors import CheckedEstimate


def recommend(  # noqa: PLR0913 - one argument an option
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="The model: config, tokenizer, weights.")
    ],
    budget: Annotated[
        str,
        typer.Option(help="Bits or size=, latency=, quality=."),
    ] = "6",
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT", help="A format to try. Repeatable."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Sentences to measure on, one per line.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave these layers in float.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens per sentence.")] = 64,
    state: Annotated[
        Path | None, typer.Option(help="Progress file, to continue a stopped run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the recommendation as JSON here.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Write the recipe as JSON here.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Quantize a copy and check the predictions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Recommend formats for a model, with measured costs.

    The budget is bits per weight, such as 6, or one of size=20MB, latency=5ms and quality=0.99.
    """
    check_outputs(out, recipe)
    bound = Budget.read(budget)
    network = float_model(model)
    batches = [tokenize(model, sentences_of(text), fitting(network, tokens))]
    result = bs.recommend(
        network, bound, batches=batches, candidates=candidate, output=unpadded, skip=skip or [],
        state=state, progress=not quiet,
    )  # fmt: skip
    if out is not None:
        result.save(out)
    write_recipe(recipe, result.recipe)
    estimate = result.check(network, batches) if check else None
    if as_json:
        data = result.to_dict() | ({} if estimate is None else {"errors": estimate.errors})
        print(json.dumps(data, indent=2))
        return
    print(result)
    if estimate is not None:
        print(_text(estimate))


def _text(estimate: CheckedEstimate) -> str:
    lines = [
        f"{name}: foretold {getattr(estimate.foretold, name):.6g}, measured "
        f"{getattr(estimate.measured, name):.6g} ({100 * error:+.2f} %)"
        for name, error in estimate.errors.items()
    ]
    return "\n".join(["checked:", *lines])
