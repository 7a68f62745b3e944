# SPDX-License-Identifier: BSD-3-Clause
"""Models that were not quantized by diffusers are saved as if they were.

`save_pretrained` writes the state that it finds: codes that `from_pretrained` does not know. With a
quantizer in the model's `hf_quantizer` it writes what `from_pretrained` reads.
"""

from collections.abc import Iterable
from typing import Any

from blockscale.core.recipe import Recipe
from blockscale.files.save import describe
from blockscale.integrations.diffusers.config import BlockscaleConfig
from blockscale.integrations.diffusers.quantizer import BlockscaleQuantizer


def attach(models: Iterable[Any], recipe: Recipe | None) -> None:
    """Give each of these models that holds codes a quantizer, unless it has one."""
    for model in models:
        if getattr(model, "hf_quantizer", None) is None and describe(model).tensors:
            quantizer = BlockscaleQuantizer(BlockscaleConfig(recipe or Recipe()))
            quantizer.belongs_to(model)
            model.hf_quantizer = quantizer
