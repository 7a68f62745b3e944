# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries' loaders and savers, which get what they need to know of quantized models."""

import sys
from importlib import import_module

from torch import nn

from blockscale.core.recipe import Recipe
from blockscale.integrations.on_import import bring_along
from blockscale.layers.reading.source import listeners


def tell_transformers(model: nn.Module, recipe: Recipe | None) -> None:
    """Let `save_pretrained` of a quantized transformers model write what was quantized."""
    _attach(model, recipe, "transformers", "transformers.modeling_utils", "PreTrainedModel")


def tell_diffusers(model: nn.Module, recipe: Recipe | None) -> None:
    """The same of models of diffusers."""
    _attach(model, recipe, "diffusers", "diffusers.models.modeling_utils", "ModelMixin")


def _attach(model: nn.Module, recipe: Recipe | None, library: str, module: str, kind: str) -> None:
    """Where the library was not imported the model is not its own, and nothing is imported."""
    imported = sys.modules.get(module)
    if imported is None:
        return
    models = [each for each in model.modules() if isinstance(each, getattr(imported, kind))]
    if models:
        import_module(f"blockscale.integrations.{library}.attach").attach(models, recipe)


def tell_peft(model: nn.Module, recipe: Recipe | None) -> None:
    """Let adapters know quantized layers as soon as there are any, whenever peft is imported."""
    del model, recipe
    bring_along("peft", "blockscale.integrations.peft")


listeners.extend((tell_transformers, tell_diffusers, tell_peft))
