# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale report`: a page, figures or plain data about a quantized model or a search."""

import json
from pathlib import Path
from typing import Annotated

import typer

from blockscale.cli.progress import Bar
from blockscale.reporting.model import report as make
from blockscale.reporting.table import size


def report(  # noqa: PLR0913 - one argument an option
    path: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A model's file or directory, or a search's .json."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.html", help="The page to write.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FLOAT_MODEL", help="The float model, to compare with."),
    ] = None,
    search: Annotated[
        Path | None, typer.Option(metavar="SEARCH.json", help="A search to show as well.")
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option(metavar="EVAL.json", help="What `blockscale eval --out` wrote.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder for figures: PDF, SVG, PNG."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.html.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the contents as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Write an HTML page about a quantized model or a search.

    Summary, layers that sort and filter, error and saturation, weights on their format's grid, the
    points of a search, ledger, hardware and files. It opens offline and sends nothing anywhere.
    """
    if output is None and figures is None and not as_json:
        raise ValueError("no place for the report: pass --output OUT.html, --figures DIR or --json")
    if output is not None and output.exists() and not force:
        raise ValueError(f"{output} exists: choose another name, or pass --force")
    with Bar(quiet) as bar:
        data = make(
            path, output, source=source, search=search, evaluation=evaluation, figures=figures,
            progress=bar,
        )  # fmt: skip
    if as_json:
        print(json.dumps(data, indent=2))
    elif output is not None:
        print(f"wrote {output}, {size(output.stat().st_size)}: open it in a browser")
    if figures is not None and not as_json:
        print(f"wrote figures into {figures}")
