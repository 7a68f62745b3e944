# SPDX-License-Identifier: BSD-3-Clause
"""peft's LoRA on quantized layers. `import blockscale` brings it along as soon as peft is imported.

Importing this module does the same by hand: `import blockscale.integrations.peft`.
"""

from blockscale.integrations.peft.into_float import merge_into_float as merge_into_float
from blockscale.integrations.peft.merging import MergeLoss as MergeLoss
from blockscale.integrations.peft.merging import merge_losses as merge_losses
from blockscale.integrations.peft.tuner import QuantizedLoraModel as QuantizedLoraModel
from blockscale.integrations.peft.tuner import register as register

register()
