"""Quantized models of diffusers, whose `save_pretrained` knows nothing of them."""

import sys
from typing import Any

from torch import nn

from blockscale.core.recipe import Recipe

_TOLD = "blockscale (write it with bs.save, and read it with bs.load: docs/transformers.md)"


class _Config:
    """What diffusers names when it refuses to save."""

    quant_method = _TOLD


class Unsaved:
    """In the place of a model's quantizer: diffusers refuses to save what it does not know.

    Its file would hold codes, and random numbers would take their place when it is loaded.
    """

    quantization_config = _Config()

    def dequantize(self, model: Any) -> Any:
        """Raises NotImplementedError: the floats are gone."""
        raise NotImplementedError(f"{type(model).__name__} is quantized: load the float model")


def tell_diffusers(model: nn.Module, recipe: Recipe | None) -> None:
    """Let `save_pretrained` of quantized models of diffusers refuse, before anything is written."""
    del recipe
    library = sys.modules.get("diffusers.models.modeling_utils")
    if library is None:
        return
    for each in model.modules():
        if isinstance(each, library.ModelMixin) and getattr(each, "hf_quantizer", None) is None:
            each.hf_quantizer = Unsaved()
