# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale quantize`: a model's directory in, a quantized one out."""

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import typer

from blockscale.cli.calibrating import Calibrating, calibrated_directory
from blockscale.cli.progress import Bar
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import shown, shown_lines
from blockscale.core.work import stopped_softly
from blockscale.export.onnx_files import quantize_onnx
from blockscale.files.directory.plan import DirectoryLedger
from blockscale.files.directory.quantize_directory import (
    check_output,
    plan_directory,
    quantize_directory,
)
from blockscale.files.directory.ranks import ranks_of_launcher
from blockscale.files.directory.shared_run import quantize_over_ranks
from blockscale.layers.guards import is_first, is_launched
from blockscale.reporting.ledger import ledger_notes, ledger_table
from blockscale.reporting.table import size


class RunOptions(TypedDict):
    """Of a run, whoever does it."""

    force: int
    strict: bool
    seed: int


def quantize(  # noqa: PLR0913 - one argument an option
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL_DIR", help="Config, tokenizer, *.safetensors; or an .onnx."),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT_DIR", help="The directory, or .onnx, to write.")
    ],
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            "-r",
            help="A preset, a format, or a recipe (JSON).",
        ),
    ],
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave these layers in float. Repeatable."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="TEXT", help="Calibrate on this text ('-': Python's help texts); .npz."
        ),
    ] = None,
    sequences: Annotated[int, typer.Option(metavar="N", min=1, help="Of the text.")] = 32,
    tokens: Annotated[int, typer.Option(metavar="N", min=2, help="Per sequence.")] = 512,
    weight: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How --calibrate chooses them (the preset's)."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if a layer of the recipe is skipped."),
    ] = False,
    force: Annotated[
        int,
        typer.Option(
            "--force",
            count=True,
            help="Replace OUT_DIR; twice: even a foreign one.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="For stochastic rounding.")] = 0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan and write nothing."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
) -> None:
    """Quantize a model's directory, or a float ONNX file.

    The recipe is a preset (blockscale presets), a format (a name or a spelling), a recipe's JSON,
    or a .json file with one. Tensors are streamed, so a model may be larger than memory. OUT_DIR
    appears when it is complete; to continue a run that was stopped or killed, give the same command
    again. With --calibrate the whole model is read and run by transformers. Several processes, on
    one host or several that share OUT_DIR's disk, do either by torchrun … -m blockscale quantize …
    An .onnx file becomes one; --calibrate names an .npz file, an array for each of its inputs.
    """
    if dry_run and not is_first():
        return
    whole = _recipe(recipe, skip or [])
    began = time.monotonic()
    if model.suffix == ".onnx":
        run = FileOptions(calibrate=calibrate, weight=weight, strict=strict, dry_run=dry_run)
        run |= {"progress": not quiet, "overwrite": force > 0}
        _show_done(_of_file(model, out, whole, run), out, as_json, quiet, began, dry_run)
        return
    if calibrate is not None:
        if dry_run:
            raise ValueError("--dry-run shows what is decided without data: leave out --calibrate")
        how = Calibrating(calibrate, tokens, sequences, strict, seed, weight)
        report = calibrated_directory(model, out, whole, how, force=force, quiet=quiet or as_json)
        if is_first():
            _show_done(report, out, as_json, quiet, began)
        return
    if weight is not None:
        raise ValueError("--weight is chosen from data: name a text by --calibrate")
    options = RunOptions(force=force, strict=strict, seed=seed)
    if dry_run:
        plan = plan_directory(model, out, whole, strict=strict, seed=seed)
        check_output(out, plan, force)
        _show(plan.ledger, as_json, quiet, {"bytes_written": plan.size})
        if not as_json and not quiet:
            print(f"would write {size(plan.size)} to {out}; nothing is written")
        return
    with Bar(quiet or not is_first()) as bar, warnings.catch_warnings(), stopped_softly():
        warnings.filterwarnings("ignore", "blockscale:", UserWarning)  # the ledger is shown below
        ledger = _run(model, out, whole, options, bar)
    if ledger is not None:  # else rank 0 shows it
        _show_run(ledger, out, as_json, quiet, time.monotonic() - began, bar.speed)


class FileOptions(TypedDict):
    """Of an ONNX file's run, as quantize_onnx takes them."""

    calibrate: Path | None
    weight: str | None
    strict: bool
    dry_run: bool
    progress: NotRequired[bool]
    overwrite: NotRequired[bool]


def _of_file(model: Path, out: Path, recipe: Recipe, options: FileOptions) -> Ledger:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "blockscale:", UserWarning)  # the ledger is shown
        return quantize_onnx(model, out, recipe, **options)


def _show_done(
    ledger: Ledger, out: Path, as_json: bool, quiet: bool, began: float, dry_run: bool = False
) -> None:
    seconds = time.monotonic() - began
    _show(ledger, as_json, quiet, {"seconds": seconds})
    if not as_json and not quiet:
        print(f"{'would write' if dry_run else 'wrote'} {out} in {seconds:.1f} s")


def _run(
    model: Path, out: Path, recipe: Recipe, options: RunOptions, bar: Bar
) -> DirectoryLedger | None:
    """Quantize alone, or with all that torchrun started; None where this process only helps."""
    if not is_launched():
        return quantize_directory(model, out, recipe, **options, progress=bar)
    return quantize_over_ranks(model, out, recipe, ranks_of_launcher(), **options, progress=bar)


def _show_run(
    ledger: Ledger, out: Path, as_json: bool, quiet: bool, seconds: float, speed: float
) -> None:
    _show(ledger, as_json, quiet, {"seconds": seconds, "bytes_per_second": speed})
    if not as_json and not quiet:
        print(f"wrote {out} in {seconds:.1f} s ({size(speed)}/s)")


def _recipe(text: str, skip: list[str]) -> Recipe:
    try:
        recipe = Recipe.read(text)
    except (
        TypeError,
        AttributeError,
    ) as error:  # JSON of the right keys with values of another kind
        raise ValueError(f"the recipe {text!r} cannot be used: {error}") from None
    return replace(recipe, skip=(*recipe.skip, *skip))


def _show(ledger: Ledger, as_json: bool, quiet: bool, more: dict[str, Any]) -> None:
    """The ledger on stdout; with `quiet`, only what a user should know, on stderr."""
    if as_json:
        print(json.dumps(ledger.to_dict() | more, indent=2))
    elif quiet:
        skipped = [f"skipped: {entry.name}: {entry.reason}" for entry in ledger.skipped]
        for line in (*skipped, *ledger_notes(ledger)):
            typer.echo(shown_lines(line), err=True)
    else:
        print(ledger_table(ledger))
        if isinstance(ledger, DirectoryLedger):
            for name, why in ledger.left_out.items():
                print(f"left out: {shown(name)}: {shown(why)}")
            print(f"copied: {', '.join(map(shown, ledger.copied)) or 'nothing'}")
