"""`blockscale export`: a model's directory in, a file for another runtime out."""

import inspect
import json
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from torch import Tensor, nn

import blockscale.export as exporters
from blockscale.calibrate.calibrate import calibrate
from blockscale.cli.commands.audit import audit_table
from blockscale.cli.model_directory import (
    SENTENCES,
    program,
    read_model,
    tokenized,
    without_place,
)
from blockscale.core.recipe import Recipe
from blockscale.graph import convert, prepare
from blockscale.layers.apply import quantize_
from blockscale.report.wording import size

_NOT_COPIED = (
    ".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".index.json",
)  # fmt: skip


def export(  # noqa: PLR0913 - one argument an option
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="The model, as transformers writes it.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or directory to write.")],
    to: Annotated[
        str, typer.Option(help="The target: onnx, executorch, program or compressed-tensors.")
    ],
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="As of `quantize`; not for a quantized MODEL_DIR."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave these layers in float.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Sentences for static scales, one a line; else eight of ours."),
    ] = None,
    observer: Annotated[str, typer.Option(help="What static scales are chosen by.")] = "min_max",
    batch: Annotated[int, typer.Option(help="The most rows a file is to take.")] = 8,
    tokens: Annotated[int, typer.Option(help="The most tokens a row.")] = 128,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
) -> None:
    """Quantize a model's directory and write it for another runtime.

    What was written is read again and audited: stored types and bytes of every weight, and what
    computes with it.
    """
    write = _target(to)
    if out.exists() and not force:
        raise ValueError(f"{out} exists: choose another output, or replace it with --force")
    chosen = _recipe(recipe, skip or [])
    sentences = _lines(text)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if write.__name__ == "compressed_tensors":
            _write_directory(model, out, chosen, tokenized(model, sentences, tokens), observer)
        else:
            read, quantized = read_model(model)
            example = tokenized(model, sentences, tokens)
            graph = _graph(read, quantized, chosen, example, (observer, batch, tokens))
            write(graph, out, **_options(write))
    for each in dict.fromkeys(str(w.message) for w in told if issubclass(w.category, UserWarning)):
        if each.startswith("blockscale:"):
            typer.echo(each, err=True)
    _show(out, time.monotonic() - began, as_json)


def _target(to: str) -> Callable[..., None]:
    """The function of a target. Raises ValueError if there is none, or it cannot be written."""
    known = {target.name: target for target in exporters.targets()}
    name = to.replace("-", "_")
    if name not in known:
        names = ", ".join(name.replace("_", "-") for name in known)
        raise ValueError(f"no target {to!r}; there are {names}")
    if reason := known[name].unavailable:
        raise ValueError(f"{to} cannot be written here: {reason}")
    found: Callable[..., None] = getattr(exporters, name)
    return found


def _options(write: Callable[..., None]) -> dict[str, Any]:
    """`overwrite` for the targets that ask: that OUT may go has been said by --force."""
    return {"overwrite": True} if "overwrite" in inspect.signature(write).parameters else {}


def _recipe(text: str | None, skip: list[str]) -> Recipe | None:
    if text is None:
        if skip:
            raise ValueError("--skip goes with --recipe")
        return None
    recipe = Recipe.read(text)
    return replace(recipe, skip=(*recipe.skip, *skip))


def _lines(text: Path | None) -> list[str]:
    """The sentences to calibrate with."""
    if text is None:
        return list(SENTENCES)
    found = [line for line in text.read_text().splitlines() if line.strip()]
    if len(found) < 2:
        raise ValueError(f"{text} has {len(found)} sentences: give two or more, one a line")
    return found


def _check_recipe(recipe: Recipe | None, quantized: bool) -> None:
    if quantized and recipe is not None:
        raise ValueError("the weights of MODEL_DIR are quantized already: leave --recipe out")
    if not quantized and recipe is None:
        raise ValueError("say how to quantize the model: --recipe int8_channel, for instance")


def _graph(
    model: nn.Module,
    quantized: bool,
    recipe: Recipe | None,
    example: dict[str, Tensor],
    settings: tuple[str, int, int],
) -> Any:
    """The converted graph of a float model, or the program of a quantized one."""
    observer, batch, tokens = settings
    _check_recipe(recipe, quantized)
    made = program(model, example, batch, tokens)
    if recipe is None:
        return made
    prepared = prepare(made, _within(recipe), observer=observer)
    calibrate(prepared, [example], progress=False)
    return convert(prepared)


def _within(recipe: Recipe) -> Recipe:
    """The same for layers whose names have the model's own before them."""

    def inside(pattern: str) -> str:
        plain = pattern.startswith(("re:", "op:", "*", "model."))
        return pattern if plain else f"model.{pattern}"

    rules = {inside(pattern): each for pattern, each in recipe.rules.items()}
    skip = tuple(inside(pattern) for pattern in recipe.skip)
    return Recipe(recipe.weight, recipe.input, recipe.output, rules, skip, recipe.bias)  # type: ignore[arg-type]


def _write_directory(
    path: Path, out: Path, recipe: Recipe | None, example: dict[str, Tensor], observer: str
) -> None:
    """compressed-tensors: the model's layers, and the files beside its weights."""
    model, quantized = read_model(path, "auto")
    _check_recipe(recipe, quantized)
    if recipe is not None:
        skipped = without_place(model)
        if skipped:
            typer.echo(f"left in float, as its readers do: {', '.join(skipped)}", err=True)
        recipe = replace(recipe, skip=(*recipe.skip, *skipped))
        if recipe.input is not None or any(s.input for s in recipe.layer_rules.values()):
            calibrate(model, [example], recipe, observer, progress=False)
        else:
            quantize_(model, recipe)
    beside = out.with_name(f".{out.name}.{uuid4().hex[:8]}.new")
    try:
        exporters.compressed_tensors(model, beside)
        for file in _other_files(path):
            if not (beside / file.name).exists():
                shutil.copyfile(file, beside / file.name)
        if out.is_dir():
            shutil.rmtree(out)
        out.unlink(missing_ok=True)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _other_files(path: Path) -> list[Path]:
    """What lies beside a model's weights: tokenizer, settings, its card."""
    files = (file for file in sorted(path.iterdir()) if file.is_file())
    return [f for f in files if not f.name.startswith(".") and not f.name.endswith(_NOT_COPIED)]


def _show(out: Path, seconds: float, as_json: bool) -> None:
    found = exporters.audit(out)
    if as_json:
        print(json.dumps(found.to_dict() | {"path": str(out), "seconds": seconds}, indent=2))
        return
    print(audit_table(found))
    files = [out] if out.is_file() else [file for file in out.iterdir() if file.is_file()]
    total = sum(file.stat().st_size for file in files)
    print(f"wrote {out} in {seconds:.1f} s: {size(total)}")
