# SPDX-License-Identifier: BSD-3-Clause
"""Models that were not quantized by transformers are saved as if they were.

`save_pretrained` writes the state that it finds. Of a quantized model that would be codes which
`from_pretrained` does not know, beside random numbers in the weights' places. With a quantizer in
the model's `hf_quantizer` it writes what `from_pretrained` reads.
"""

from collections.abc import Iterable
from typing import Any

from blockscale.core.recipe import Recipe
from blockscale.files.save import describe
from blockscale.integrations.transformers.config import BlockscaleConfig
from blockscale.integrations.transformers.quantizer import BlockscaleQuantizer


def attach(models: Iterable[Any], recipe: Recipe | None) -> None:
    """Give each of these models that holds codes a quantizer, unless it has one."""
    for model in models:
        if getattr(model, "hf_quantizer", None) is None and describe(model).tensors:
            model.hf_quantizer = BlockscaleQuantizer(BlockscaleConfig(recipe or Recipe()))
