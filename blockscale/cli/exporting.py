# SPDX-License-Identifier: BSD-3-Clause
"""What `blockscale export` gives a target: a model's graph, and the target's own options."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.calibrate import calibrate
from blockscale.cli.model_directory import program
from blockscale.core.recipe import Recipe
from blockscale.graph import convert, fuse, integer_recipe, lower, prepare

DEFAULT_NAME = "model"
_ROWS = 8


@dataclass(frozen=True)
class Sizes:
    """The sizes that a file is for.

    batch, tokens: rows, None for the target's own number, and tokens of a row: the most, or of c
        exactly those
    name, max_bytes: what names in a C file begin with, and the most that it may take
    """

    batch: int | None
    tokens: int
    name: str = DEFAULT_NAME
    max_bytes: int | None = None

    def check(self, target: str) -> None:
        """Raise ValueError for options that the target does not have."""
        if target != "c" and (self.name != DEFAULT_NAME or self.max_bytes is not None):
            raise ValueError("--name and --max-bytes are only for --to c")

    @property
    def most(self) -> int:
        """The most rows, where a file takes any number up to it."""
        return _ROWS if self.batch is None else self.batch

    @property
    def exactly(self) -> tuple[int, int]:
        """Rows and tokens, where a file takes these alone."""
        return self.batch or 1, self.tokens


def check_recipe(recipe: Recipe | None, quantized: bool, needed: bool = True) -> None:
    """Raise ValueError unless a float model has a recipe, and a quantized one has none.

    needed: whether the target has no recipe of its own
    """
    if quantized and recipe is not None:
        raise ValueError("the weights of MODEL_DIR are quantized already: leave --recipe out")
    if not quantized and recipe is None and needed:
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
    sizes: Sizes,
) -> Any:
    """What the target's function takes: the program of a quantized model, else a converted graph;
    for c a graph of integers, by default under bs.graph.integer_recipe.

    read: the model, and whether its weights are quantized; example: sentences to calibrate with

    Raises ValueError for a recipe too many or too few, and NotIntegerError, which is one and names
    the op, for a model that integers cannot compute.
    """
    model, quantized = read
    integers = target == "c"
    check_recipe(recipe, quantized, needed=not integers)
    if quantized and integers:
        raise ValueError(
            "c needs codes on every edge, and MODEL_DIR has quantized weights alone: name the "
            "float model's directory"
        )
    rows = len(example["input_ids"]) if integers else sizes.most
    made = program(model, example, rows, sizes.tokens, named=target == "onnx")
    if recipe is None and not integers:
        return made
    chosen = integer_recipe(made) if recipe is None else _within(recipe)
    prepared = prepare(made, chosen, observer=observer)
    calibrate(prepared, [example], progress=False)
    converted = convert(prepared)
    return lower(fuse(converted), "integer") if integers else converted


def options(write: Callable[..., None], example: Mapping[str, Tensor], sizes: Sizes) -> Any:
    """A target's named arguments: `overwrite`, as --force has said already that OUT may go, and of
    c the sizes and the name."""
    known = inspect.signature(write).parameters
    given: dict[str, Any] = {"overwrite": True} if "overwrite" in known else {}
    if write.__name__ == "c":
        ones = {name: torch.ones(sizes.exactly, dtype=x.dtype) for name, x in example.items()}
        given |= {"example": ones, "name": sizes.name, "max_bytes": sizes.max_bytes}
    return given


def _within(recipe: Recipe) -> Recipe:
    """The same for layers whose names have the model's own before them."""

    def inside(pattern: str) -> str:
        plain = pattern.startswith(("re:", "op:", "*", "model."))
        return pattern if plain else f"model.{pattern}"

    rules = {inside(pattern): each for pattern, each in recipe.rules.items()}
    skip = tuple(inside(pattern) for pattern in recipe.skip)
    return replace(recipe, rules=rules, skip=skip)
