# SPDX-License-Identifier: BSD-3-Clause
"""What `blockscale export` gives a target: a model's graph, and the target's own options."""

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor, nn

import blockscale.export as exporters
from blockscale.calibration.calibrate import calibrate
from blockscale.cli.commands.audit import audit_table
from blockscale.cli.model_directory import (
    DEFAULT_NAME,
    SENTENCES,
    ExportSizes,
    example_tokens,
    export_options,
    fit_sizes,
    fitting,
    program,
    read_model,
    tokenize,
    without_place,
)
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import json_object, read_json, shown, shown_lines
from blockscale.export.to_onnx.decoder import GENAI, decoder_of
from blockscale.export.to_onnx.decoder_cache import cache_format
from blockscale.files.directory.output import (
    absolute,
    check_apart,
    check_names,
    check_target,
    has_ledger,
)
from blockscale.files.directory.swap import restore, whole_folder
from blockscale.files.whole import check_place
from blockscale.graph import convert, fuse, integer_recipe, lower, prepare
from blockscale.layers.apply import quantize_
from blockscale.reporting.table import size


def check_recipe(recipe: Recipe | None, quantized: bool, required: bool = True) -> None:
    """Raise ValueError unless a float model has a recipe, and a quantized one has none.

    required: whether the target has no recipe of its own
    """
    if quantized and recipe is not None:
        raise ValueError("the weights of MODEL_DIR are quantized already: leave --recipe out")
    if not quantized and recipe is None and required:
        raise ValueError("no recipe: pass one, such as --recipe int8_channel")


def reads_sentences(target: str, recipe: Recipe | None) -> bool:
    """Whether what a target is given depends on sentences: scales of inputs or outputs that may be
    static. For all else any tokens do."""
    if recipe is None:
        return target == "c"
    schemes = (recipe.default, *recipe.layer_rules.values())
    return target == "c" or any(each.input or each.output for each in schemes)


def graph_for(
    target: str,
    read: tuple[nn.Module, bool],
    recipe: Recipe | None,
    example: dict[str, Tensor],
    observer: str,
    sizes: ExportSizes,
) -> Any:
    """What the target's function takes: the program of a quantized model, else a converted graph;
    for c a graph of integers, by default under bs.graph.integer_recipe; with a cache the quantized
    model itself.

    read: the model, and whether its weights are quantized; example: sentences to calibrate with

    Raises ValueError for a recipe too many or too few, and NotIntegerError, which is one and names
    the op, for a model that integers cannot compute.
    """
    model, quantized = read
    integers = target == "c"
    check_recipe(recipe, quantized, required=not integers and sizes.codes is None)
    if quantized and integers:
        raise ValueError(
            "c needs codes on every edge, and MODEL_DIR has quantized weights alone: name the "
            "float model's directory"
        )
    if sizes.cache is not None:
        decoder = decoder_of(model)  # what has no cache is refused before hours of work
        if sizes.codes is not None:
            cache_format(sizes.codes, decoder)
        _quantize_layers(target, model, recipe, example, observer)
        return model
    rows = len(example["input_ids"]) if integers else sizes.most
    exported = program(model, example, rows, sizes.longest, in_dict=target == "onnx")
    if recipe is None and not integers:
        return exported
    full_recipe = integer_recipe(exported) if recipe is None else _within(recipe)
    model_with_observers = prepare(exported, full_recipe, observer=observer)
    calibrate(model_with_observers, [example], progress=False)
    converted = convert(model_with_observers)
    return lower(fuse(converted), "integer") if integers else converted


def _quantize_layers(
    target: str,
    model: nn.Module,
    recipe: Recipe | None,
    example: Mapping[str, Tensor] | None,
    observer: str,
) -> None:
    """Quantize a model's layers in place, if there is a recipe. example: sentences, None for none
    where nothing depends on them"""
    if recipe is None:
        return
    if example is not None and reads_sentences(target, recipe):
        calibrate(model, [example], recipe, observer, progress=False)
    else:
        quantize_(model, recipe)


def _within(recipe: Recipe) -> Recipe:
    """The same for layers whose names have the model's own before them."""

    def inside(pattern: str) -> str:
        plain = pattern.startswith(("re:", "op:", "*", "model."))
        return pattern if plain else f"model.{pattern}"

    rules = {inside(pattern): each for pattern, each in recipe.rules.items()}
    skip = tuple(inside(pattern) for pattern in recipe.skip)
    return replace(recipe, rules=rules, skip=skip)


# `blockscale export`: a model's directory in, a file for another runtime out.

_METHOD = "compressed-tensors"
_NOT_COPIED = (
    ".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".index.json",
)  # fmt: skip


def export(  # noqa: PLR0913 - one argument an option
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="A model directory of transformers.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or directory to write.")],
    to: Annotated[str, typer.Option(help="The target, listed above.")],
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="The recipe, as for quantize."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave these layers in float.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Calibration sentences, one per line."),
    ] = None,
    observer: Annotated[str, typer.Option(help="How to choose static scales.")] = "mse",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Most rows (default 8; c: 1)."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens per row (default 128).")
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="A decoder's: N tokens, float or a format.")
    ] = None,
    past: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a fixed past, for onnx.")
    ] = None,
    name: Annotated[str, typer.Option(help="Prefix of names in a C file.")] = DEFAULT_NAME,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Largest size of a C model.")] = None,
    force: Annotated[
        int, typer.Option("--force", count=True, help="Replace OUT; twice: even a foreign one.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Quantize a model's directory and write it for another runtime.

    The targets of --to are c, onnx, executorch, program and compressed-tensors. What was written is
    read again and audited: stored types and bytes of every weight, and what computes with it. c has
    a recipe of its own; a quantized MODEL_DIR needs none. Without --text, eight built-in sentences
    choose static scales. --tokens is at most the number of the model's positions.

    --cache is for language models. Of executorch it is a number: the file keeps keys and values of
    so many tokens, and takes one row of new ones. Of onnx it is float or a format, such as
    int8:token:fp32: past keys and values go in and come out, of any number of rows and tokens, or
    with --past N of --batch rows (1), --tokens new tokens (1) and N past ones.
    """
    write = _target(to)
    sizes = ExportSizes(batch, tokens, name, max_bytes, cache, past)
    sizes.check(write.__name__)
    _check_place(out, model, force, write.__name__ == "compressed_tensors", sizes.for_genai)
    full_recipe = _recipe(recipe, skip or [])
    sentences = _lines(text)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        if write.__name__ == "compressed_tensors":
            data = (sentences, sizes.longest, observer)
            _write_directory(model, out, full_recipe, data, bool(force))
        else:
            read, quantized = read_model(model)
            sizes = fit_sizes(sizes, read)
            example = _example(
                model, write.__name__, full_recipe, sentences, fitting(read, sizes.longest)
            )
            graph = graph_for(
                write.__name__, (read, quantized), full_recipe, example, observer, sizes
            )
            write(graph, out, **export_options(write, example, sizes, bool(force)))
    for each in dict.fromkeys(str(w.message) for w in notes if issubclass(w.category, UserWarning)):
        if each.startswith("blockscale:"):
            typer.echo(shown_lines(each), err=True)
    _show(out, time.monotonic() - began, as_json)


def _target(to: str) -> Callable[..., None]:
    """The function of a target. Raises ValueError if there is none, or it cannot be written."""
    targets = {target.name: target for target in exporters.targets()}
    name = to.replace("-", "_")
    if name not in targets:
        names = ", ".join(name.replace("_", "-") for name in targets)
        raise ValueError(f"unknown target {to!r}; choose from {names}")
    if reason := targets[name].unavailable:
        raise ValueError(f"{to} cannot be written here: {reason}")
    write: Callable[..., None] = getattr(exporters, name)
    return write


def _is_export(folder: Path) -> bool:
    """Whether a directory is one that this command, or `quantize`, has written."""
    if has_ledger(folder):
        return True
    try:
        config = json_object(
            read_json(folder / "config.json", unique_keys=False, finite=False), folder
        )
        return json_object(config["quantization_config"], folder)["quant_method"] == _METHOD
    except (ValueError, OSError, KeyError):
        return False


def _check_place(out: Path, model: Path, force: int, folder: bool, for_genai: bool = False) -> None:
    """Raise ValueError where OUT cannot be written, before any work for it. for_genai: whether
    onnxruntime-genai's configuration is written beside it."""
    if folder:
        goal = absolute(out)
        check_apart(model, goal)
        if restore(goal):
            typer.echo(f"{shown(goal)} is back in its place: --force was killed", err=True)
        check_names(goal, ())
        check_target(goal, force, _is_export)
        return
    for place in (out, *([out.with_name(GENAI)] if for_genai else [])):
        if os.path.lexists(place) and not force:
            raise ValueError(f"{place} exists: choose another output, or replace it with --force")
    check_place(out, "model")


def _recipe(text: str | None, skip: list[str]) -> Recipe | None:
    if text is None:
        if skip:
            raise ValueError(
                "--skip needs --recipe: it names layers that the recipe leaves in float"
            )
        return None
    recipe = Recipe.read(text)
    return replace(recipe, skip=(*recipe.skip, *skip))


def _lines(text: Path | None) -> list[str]:
    """The sentences to calibrate with."""
    if text is None:
        return list(SENTENCES)
    lines = [line for line in text.read_text().splitlines() if line.strip()]
    if len(lines) < 2:
        raise ValueError(f"{text} has {len(lines)} sentences: two or more are needed, one a line")
    return lines


def _example(
    path: Path, target: str, recipe: Recipe | None, sentences: list[str], tokens: int
) -> dict[str, Tensor]:
    """What the model is called with: sentences where scales depend on them, else any tokens."""
    if reads_sentences(target, recipe):
        return tokenize(path, sentences, tokens)
    return example_tokens(path, len(sentences), tokens)


def _write_directory(
    path: Path,
    out: Path,
    recipe: Recipe | None,
    data: tuple[list[str], int, str],
    force: bool,
) -> None:
    """compressed-tensors: the model's layers, and the files beside its weights.

    data: sentences, the most tokens of one, and the observer, for scales of inputs
    force: replace `out`, once the new one is complete
    """
    model, quantized = read_model(path, "auto")
    check_recipe(recipe, quantized)
    if recipe is not None:
        skipped = without_place(model)
        if skipped:
            typer.echo(
                f"left in float, as its readers do: {', '.join(map(shown, skipped))}", err=True
            )
        recipe = replace(recipe, skip=(*recipe.skip, *skipped))
        sentences, tokens, observer = data
        example = None
        if reads_sentences("compressed_tensors", recipe):
            example = tokenize(path, sentences, fitting(model, tokens))
        _quantize_layers("compressed_tensors", model, recipe, example, observer)
    with whole_folder(absolute(out), force) as folder:
        exporters.compressed_tensors(model, folder)
        for file in _other_files(path):
            if not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)


def _other_files(path: Path) -> list[Path]:
    """What lies beside a model's weights: tokenizer, settings, its card."""
    files = (file for file in sorted(path.iterdir()) if file.is_file())
    return [f for f in files if not f.name.startswith(".") and not f.name.endswith(_NOT_COPIED)]


def _show(out: Path, seconds: float, as_json: bool) -> None:
    ledger = exporters.audit(out)
    if as_json:
        print(json.dumps(ledger.to_dict() | {"path": str(out), "seconds": seconds}, indent=2))
        return
    print(audit_table(ledger))
    files = [out] if out.is_file() else [file for file in out.iterdir() if file.is_file()]
    total = sum(file.stat().st_size for file in files)
    print(f"wrote {shown(out)} in {seconds:.1f} s: {size(total)}")
