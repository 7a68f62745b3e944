# SPDX-License-Identifier: BSD-3-Clause
"""Blockscale in diffusers' `from_pretrained` and `save_pretrained` (docs/transformers.md).

Importing this is all that diffusers needs to read what blockscale wrote.
"""

from blockscale.integrations.diffusers.config import BlockscaleConfig as BlockscaleConfig
from blockscale.integrations.diffusers.quantizer import BlockscaleQuantizer as BlockscaleQuantizer
from blockscale.integrations.diffusers.quantizer import register as register

register()
