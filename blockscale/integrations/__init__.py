"""Other libraries' loaders and savers, which get what they need to know of quantized models."""

import sys
from importlib import import_module

from torch import nn

from blockscale.core.recipe import Recipe
from blockscale.integrations.diffusers import tell_diffusers
from blockscale.layers.reading.announce import listeners


def tell_transformers(model: nn.Module, recipe: Recipe | None) -> None:
    """Let `save_pretrained` of a quantized transformers model write what was quantized.

    Where transformers was not imported the model is not its own, and nothing is imported.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return
    models = [each for each in model.modules() if isinstance(each, library.PreTrainedModel)]
    if models:
        import_module("blockscale.integrations.transformers.attach").attach(models, recipe)


listeners.extend((tell_transformers, tell_diffusers))
