# SPDX-License-Identifier: BSD-3-Clause
"""A recipe as diffusers' `quantization_config`."""

from typing import Any

from diffusers.quantizers.quantization_config import QuantizationConfigMixin

from blockscale.integrations.config import METHOD, RecipeConfig


class Method(str):
    """The name of the method, which diffusers reads as it does its own, an enum's."""

    @property
    def value(self) -> str:
        """The name."""
        return str(self)


class BlockscaleConfig(RecipeConfig, QuantizationConfigMixin):
    """A recipe, as diffusers' `quantization_config` (integrations.config.RecipeConfig)."""

    quant_method: Any = Method(METHOD)
