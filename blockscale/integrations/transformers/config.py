# SPDX-License-Identifier: BSD-3-Clause
"""A recipe as transformers' `quantization_config`."""

from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from blockscale.integrations.config import METHOD, RecipeConfig


class BlockscaleConfig(RecipeConfig, QuantizationConfigMixin):
    """A recipe, as transformers' `quantization_config` (integrations.config.RecipeConfig)."""

    quant_method: Any = METHOD
