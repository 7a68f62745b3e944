# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale quantize --calibrate`: a model's directory, quantized with what a text shows."""

import json
import shutil
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from blockscale.calibration.calibrate import calibrate
from blockscale.cli.evaluating import tokenizer_of
from blockscale.cli.model_directory import fitting, read_model
from blockscale.cli.progress import Bar
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import shown, shown_lines
from blockscale.evaluation.texts import Text, held_out, windows
from blockscale.files.directory.digests import file_digest
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.directory.output import absolute, check_apart, check_names, check_target
from blockscale.files.directory.plan import DirectoryLedger
from blockscale.files.directory.quantize_directory import (
    as_json,
    check_output,
    plan_directory,
    quantize_directory,
)
from blockscale.files.directory.swap import restore, whole_folder
from blockscale.files.metadata import VERSION
from blockscale.reporting.ledger import ledger_notes, ledger_table
from blockscale.reporting.table import size

_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".index.json")
_NO_TOKENIZER = "put the model's there (tokenizer.json), which --calibrate reads the text with"


@dataclass(frozen=True)
class Calibrating:
    """text: a file, or "-" for Python's help texts; length and count of the sequences of it;
    strict and seed as in `bs.calibrate`."""

    text: Path
    length: int
    count: int
    strict: bool = False
    seed: int = 0

    @property
    def source(self) -> Text:
        """The text itself."""
        return held_out(None if str(self.text) == "-" else self.text)

    def rows(self, model: nn.Module, path: Path) -> Tensor:
        """int64 [sequences, tokens]. Raises ValueError for a text that fills none."""
        length = fitting(model, self.length)
        return windows(self.source, tokenizer_of(path, _NO_TOKENIZER), length, self.count)


def calibrated_directory(
    path: Path, out: Path, recipe: Recipe, how: Calibrating, *, force: int = 0, quiet: bool = False
) -> Ledger:
    """Calibrate the model of a directory, and write it with the files beside its weights.

    `out` appears when it is complete. Raises FileError for directories that cannot be used,
    ValueError for a model that is quantized, a text that is too short, and as `bs.calibrate`.
    """
    goal = absolute(out)
    check_apart(path, goal)
    restore(goal)
    check_names(goal, ())
    check_target(goal, force)
    model, ours = read_model(path, "auto")
    if ours:
        raise ValueError(f"{path} is quantized already: name the float model's directory")
    rows = how.rows(model, path)
    batches = [{"input_ids": x[None], "attention_mask": torch.ones_like(x[None])} for x in rows]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "blockscale:", UserWarning)  # the ledger is shown
        ledger = calibrate(
            model, batches, recipe, weight="auto", strict=how.strict, seed=how.seed,
            progress=not quiet,
        )  # fmt: skip
    if not ledger.quantized:
        raise ValueError(f"the recipe quantizes nothing in {path}")
    with whole_folder(goal, bool(force)) as folder:
        model.save_pretrained(folder)  # type: ignore[operator]
        _copy_others(path, folder)
        about = _about(model, path, how, tuple(rows.shape), folder)
        (folder / LEDGER).write_bytes(as_json(about | ledger.to_dict()))
    return ledger


def _copy_others(path: Path, folder: Path) -> None:
    """What lies beside a model's weights: tokenizer, settings, its card."""
    for file in sorted(path.iterdir()):
        kept = file.is_file() and not file.name.startswith(".")
        kept = kept and not file.name.endswith(_NOT_COPIED) and file.name != LEDGER
        if kept and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def _about(
    model: Any, path: Path, how: Calibrating, shape: tuple[int, ...], folder: Path
) -> dict[str, Any]:
    """What the ledger says besides, as of a directory that was rounded; and of the text."""
    text = how.source
    recipe = model.hf_quantizer.quantization_config.recipe
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_digest(file)}
        for file in sorted(folder.iterdir())
    }
    return {
        "version": VERSION, "source": str(path.absolute()), "recipe": recipe.to_dict(),
        "calibrated_with": {"text": text.name, "text_sha256": text.digest,
                            "sequences": shape[0], "length": shape[1]},
        "seed": how.seed, "blockscale": sys.modules["blockscale"].__version__,
        "torch": torch.__version__, "files": files,
    }  # fmt: skip


# `blockscale quantize`: a model's directory in, a quantized one out.


def quantize(  # noqa: PLR0913 - one argument an option
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL_DIR", help="The model: config, tokenizer, *.safetensors."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="The directory to write.")],
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
        typer.Option(metavar="TEXT", help="Calibrate on this text ('-': Python's help texts)."),
    ] = None,
    sequences: Annotated[int, typer.Option(metavar="N", min=1, help="Of the text.")] = 32,
    tokens: Annotated[int, typer.Option(metavar="N", min=2, help="Per sequence.")] = 512,
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
    """Quantize a model's directory.

    The recipe is a preset (blockscale presets), a format (a name or a spelling), a recipe's JSON,
    or a .json file with one. Tensors are streamed, so a model may be larger than memory. OUT_DIR
    appears when it is complete; to continue a run that was stopped or killed, give the same command
    again. With --calibrate the whole model is read and run by transformers.
    """
    chosen = _recipe(recipe, skip or [])
    began = time.monotonic()
    if calibrate is not None:
        if dry_run:
            raise ValueError("--dry-run shows what is decided without data: leave out --calibrate")
        how = Calibrating(calibrate, tokens, sequences, strict, seed)
        found = calibrated_directory(model, out, chosen, how, force=force, quiet=quiet or as_json)
        _show(found, as_json, quiet, {"seconds": time.monotonic() - began})
        if not as_json and not quiet:
            print(f"wrote {out} in {time.monotonic() - began:.1f} s")
        return
    if dry_run:
        plan = plan_directory(model, out, chosen, strict=strict, seed=seed)
        check_output(out, plan, force)
        _show(plan.ledger, as_json, quiet, {"bytes_written": plan.size})
        if not as_json and not quiet:
            print(f"would write {size(plan.size)} to {out}; nothing is written")
        return
    with Bar(quiet) as bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "blockscale:", UserWarning)  # the ledger is shown below
        ledger = quantize_directory(
            model, out, chosen, force=force, strict=strict, seed=seed, progress=bar
        )
    seconds = time.monotonic() - began
    _show(ledger, as_json, quiet, {"seconds": seconds, "bytes_per_second": bar.speed})
    if not as_json and not quiet:
        print(f"wrote {out} in {seconds:.1f} s ({size(bar.speed)}/s)")


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
