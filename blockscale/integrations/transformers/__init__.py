# SPDX-License-Identifier: BSD-3-Clause
"""Blockscale in transformers' `from_pretrained` and `save_pretrained` (docs/transformers.md).

Importing this is all that transformers needs to read what blockscale wrote.
"""

from blockscale.integrations.transformers.cache import QuantizedCache as QuantizedCache
from blockscale.integrations.transformers.cache_scales import CacheScales as CacheScales
from blockscale.integrations.transformers.cached_states import register_attention
from blockscale.integrations.transformers.quantizer import BlockscaleConfig as BlockscaleConfig
from blockscale.integrations.transformers.quantizer import (
    BlockscaleQuantizer as BlockscaleQuantizer,
)
from blockscale.integrations.transformers.quantizer import attach as attach
from blockscale.integrations.transformers.quantizer import register as register
from blockscale.integrations.transformers.reading import from_checkpoint as from_checkpoint

register()
register_attention()
