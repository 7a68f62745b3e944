# SPDX-License-Identifier: BSD-3-Clause
"""Models that got quantized layers are announced, so that rooms further right can tell the library
that a model comes from how to save it. Nothing of that library is imported here."""

from collections.abc import Callable

from torch import nn

from blockscale.core.recipe import Recipe

Listener = Callable[[nn.Module, Recipe | None], None]

listeners: list[Listener] = []


def announce(model: nn.Module, recipe: Recipe | None = None) -> None:
    """Say that a model has quantized layers now, by this recipe if one is known."""
    for listener in listeners:
        listener(model, recipe)
